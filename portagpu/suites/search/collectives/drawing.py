"""How programs of collectives are drawn: up to sixteen calls, of which many are in flight.

A call is drawn as bytes: one for which call it is, and one for each of its arguments, as a place in
a table, the simplest first. So it is one choice of hypothesis, and not twenty. Most of the time of
a call is waiting for other ranks: the more are in flight, the more run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hypothesis import strategies as st

from portagpu.devices.precision.model import Support
from portagpu.suites.search.area import Rows, Sweep, Swept, once
from portagpu.suites.search.collectives.buffers import REFUSED
from portagpu.suites.search.collectives.calls import (
    CALLS,
    CHECKED,
    CLAIMED,
    EACH_PART,
    FLOATS,
    HELPERS,
    REDUCES,
    is_claimed,
)
from portagpu.suites.search.collectives.model import BITWISE, OPS
from portagpu.suites.search.collectives.values import INTEGER_BITS, SIZE
from portagpu.suites.search.strategies import call, hands

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from random import Random

    from hypothesis.strategies import SearchStrategy

    from portagpu.devices.contract import Backend
    from portagpu.suites.search.area import Call, Program
    from portagpu.suites.search.strategies import Table

GROUPS: Final = ("same", "whole", "even", "tail", "pair", "one", "pair")
MAY_REFUSE: Final = {"same": "whole", "pair": "even"}
"""Groups in which nothing is refused, and where it is instead.

A barrier of Gloo raises the errors of earlier calls of its group, as long as somebody holds their
works (pytorch v2.13.0, ProcessGroupGloo.cpp: AsyncBarrierWork waits for ``priorWork``).
"""
SMALL: Final = (1, 0, 1, 2, 3, 4, 5, 6, 7, 8)
MIDDLE: Final = (12, 16, 17, 30, 31, 64, 65, 257, 1000, 1023, 1024)
LARGE: Final = (70_001, 70_001, 70_001, 300_007)
"""More than 64 KiB of any dtype, and a quarter of it of float32. More than 1 MiB of float32, the
segment of Gloo's ring (gloo/allreduce.h, kMaxSegmentSize)."""
BYTES_OF_PART: Final = ("4 KiB", "16 KiB", "128 KiB", "196 KiB", "1 MiB")
"""Where libraries change protocols and algorithms, as a size of any dtype: of a part in collectives
of parts a quarter."""
SIZES: Final = (*SMALL, *MIDDLE, *LARGE, *BYTES_OF_PART)
SWEPT_SIZES: Final = (1, 0, 2, 3, 7, 16, 31, 257, 1024, 70_001, *BYTES_OF_PART)
"""Those whose pairs with other arguments are covered: few, so that all meet soon."""
SWEPT_GROUPS: Final = ("same", "same", "same", "whole", "even", "tail", "pair", "one")
SWEPT_DRAWN: Final = frozenset({"seed", "late", "checked", "outsiders"})
"""Arguments that cost time, or number what is the same: drawn as often as in any program."""
HOW: Final = ("sync", "later", "wait", "later", "later")
SHAPES: Final = ("flat", "rows", "deep", "transposed", "scalar", "apart")
MOVED: Final = (
    "float32", "float64", "float16", "bfloat16", "int64", "int32", "int8", "uint8", "bool",
    "int16", "complex64", "float8_e4m3fn", "float8_e5m2",
)  # fmt: skip
REDUCED: Final = (
    "float32", "float64", "float16", "bfloat16", "int64", "int32", "int8", "uint8", "bool",
    "int16", "complex64", "uint16", "uint32", "float8_e4m3fn", "float8_e4m3fnuz",
)  # fmt: skip
RARE: Final = 4
"""How many of the last of them libraries refuse often: they are drawn half as often."""
WHOLE: Final = frozenset(
    {"all_gather_into_tensor", "all_gather_single", "all_gather_bytes", "all_gather_tuned"}
)
IN_PLACE: Final = WHOLE | {
    *("gather", "reduce_scatter_tensor", "reduce_scatter_single", "reduce_scatter_tuned"),
}
TUNED: Final = {
    "all_reduce_tuned": (
        "chunks-2",
        "chunks-4",
        "reduce_scatter+all_gather",
        "all_to_all+sum+all_gather",
        "all_gather+sum",
    ),
    "broadcast_tuned": ("chunks-2", "chunks-4", "scatter+all_gather"),
    "all_gather_tuned": ("list", "broadcasts"),
    "reduce_scatter_tuned": ("all_reduce+share", "all_to_all+sum"),
}
"""Ways of :mod:`portagpu.devices.collectives.algorithms` that are not the library's own call."""
_FLAT: Final = frozenset({"all_to_all_single", "all_to_all_bytes"})
INSTEAD: Final = {"BAND": "AVG", "BOR": "PRODUCT", "BXOR": "AVG"}
"""What floats have for bitwise ops."""
BYTES: Final = range(256)
NO_YES: Final = (False, True)
ROOTS: Final = (0, 1, 2, 3)
ROOTED: Final = frozenset({"reduce", "broadcast", "gather", "scatter", "message", "ring"})
OPEN_TO_OUTSIDERS: Final = frozenset(
    {"all_reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter_tensor"}
)
OFTEN: Final = {"all_reduce": 4, "reduce_scatter_tensor": 4, "message": 6}
"""How often a call is drawn: what trains models, and messages, which are four functions.

Others are at 3, and portagpu's own, which are several collectives each, at 1.
"""
MAX_CALLS: Final = 16
_WIDTH: Final = 18
"""Bytes of a call: one more than its arguments."""


def programs(gpu: Backend) -> SearchStrategy[Program]:
    """Programs of 1 to ``MAX_CALLS`` calls."""
    every = {
        False: _tables(gpu, GROUPS),
        True: _tables(gpu, ("same", "same", "same", "tail", "one")),
    }

    def made(drawn: tuple[bool, list[bytes]]) -> Program:
        default, dealt = drawn
        calls = [_dealt(gpu, every[default], each) for each in dealt]
        return _in_default_group(calls) if default else calls

    # the default group in programs of its own: after an error in it there is no other program
    return st.tuples(st.sampled_from((False, False, True)), hands(_WIDTH, MAX_CALLS)).map(made)


def sweep(gpu: Backend, chance: Random) -> Sweep:
    """Programs in which any two values of two arguments of a call meet."""
    tables = _tables(gpu, GROUPS)
    calls = []
    for table in {each.name: each for each in tables}.values():
        lists = {
            name: values if name in SWEPT_DRAWN else once(values)
            for name, values in table.arguments.items()
        }
        lists |= {"n": SWEPT_SIZES} if "n" in lists else {}
        lists |= {"group": SWEPT_GROUPS} if table.arguments.get("group") == GROUPS else {}
        times = sum(each.name == table.name for each in tables)
        calls.append(Swept(table.name, {}, Rows(lists, chance, SWEPT_DRAWN), times))

    def settled_all(program: Program) -> Program:
        found = [
            (name, settled(gpu, name, given) if name in CALLS else given) for name, given in program
        ]
        return _in_default_group(found) if chance.random() < 1 / 3 else found

    return Sweep(calls, chance, MAX_CALLS, settled_all)


def _dealt(gpu: Backend, every: Sequence[Table], hand: bytes) -> Call:
    """The call of those bytes."""
    name, given = every[hand[0] % len(every)].dealt(hand[1:])
    return name, settled(gpu, name, given) if name in CALLS else given


def _tables(gpu: Backend, groups: Sequence[str]) -> list[Table]:
    """Each call as often as it is drawn, with the values of its arguments."""
    found = [
        call(name, **_collective(gpu, name), group=groups)
        for name in CALLS
        for _ in range(OFTEN.get(name, 1 if name in HELPERS else 3))
    ]
    kinds = ("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list")
    rest = [
        (4, call("objects", group=groups, kind=kinds, root=ROOTS, seed=BYTES)),
        (3, call("wait", which=("first", "last", "all"))),
        (2, call("barrier", group=tuple(MAY_REFUSE), late=ROOTS, how=("sync", "wait"))),
        (1, call("describe", group=groups)),
        (
            1,
            call("all_gather_uneven", group=groups, dtype=MOVED, columns=(1, 3, 0), seed=BYTES),
        ),
        (1, call("refuse", group=("whole", "even", "tail", "one"), kind=REFUSED)),
    ]
    return found + [each for often, each in rest for _ in range(often)]


def has_float(gpu: Backend, name: str) -> bool:
    """Whether the device has numbers of that format."""
    import torch

    return gpu.precision.support(getattr(torch, name)) is not Support.NONE


def _widened(gpu: Backend) -> tuple[str, ...]:
    return ("float16", "bfloat16", *(["float32"] if has_float(gpu, "float64") else []))


def _in_default_group(program: Program) -> Program:
    """The program with the default group in place of those in which nothing is refused."""
    return [
        (name, given | {"group": "default"} if given.get("group") in MAY_REFUSE else given)
        for name, given in program
    ]


def _collective(gpu: Backend, name: str) -> dict[str, Sequence[Any]]:
    """The values of the arguments of a call on buffers, but for its group."""
    without = {name for name in FLOATS if not has_float(gpu, name)}
    every = [each for each in (REDUCED if name in REDUCES else MOVED) if each not in without]
    often = len(every) - (RARE + 2 if name in REDUCES else RARE)
    found: dict[str, Sequence[Any]] = {
        "n": SIZES,
        "dtype": (*2 * every[:often], *every[often:]),
        "seed": BYTES,
        "how": HOW,
        "shape": SHAPES,
        "offset": (4, 1, 3, 7),
        "times": (1, 2),
        "late": (*[-1] * 20, *ROOTS),
    }
    if name in REDUCES:
        # claimed ones three times as often as others
        found["op"] = (*3 * sorted(gpu.comm.reduce_ops, reverse=True), *sorted(OPS, reverse=True))
        # a rounded result says less than an exact one
        found["values"] = ("small", "exact", "random", "exact", "extreme", "special")
    if name in ROOTED:
        found |= {"root": ROOTS, "by_position": NO_YES}
    if name in ("broadcast_bytes", "broadcast_tuned"):
        found["root"] = ROOTS
    if name in IN_PLACE:
        # no library has to reduce in place
        found["in_place"] = (False, False, True)
    if name in CHECKED:
        found["checked"] = (*[False] * 9, True)
    if name in TUNED:
        found["way"] = TUNED[name]
    if name == "message":
        # send and recv are functions of their own
        found["how"] = ("sync", "later")
    if name in _FLAT:
        found["uneven"] = NO_YES
    if name in OPEN_TO_OUTSIDERS:
        found["outsiders"] = NO_YES
    return found


def settled(gpu: Backend, name: str, given: dict[str, Any]) -> dict[str, Any]:
    """The arguments, with those replaced that have no meaning with the others."""
    found = dict(given)
    if isinstance(found["n"], str):
        count, unit = found["n"].split()
        found["n"] = int(count) * {"KiB": 2**10, "MiB": 2**20}[unit] // SIZE[found["dtype"]]
    n, dtype = found["n"], found["dtype"]
    single = name in WHOLE or name in _FLAT or name.startswith("reduce_scatter_")
    several = name in EACH_PART or "gather" in name
    if n > 2000 and several:
        found["n"] = n // 4
    if found["shape"] == "scalar" and (n != 1 or several):
        found["shape"] = "flat"
    if found["shape"] == "transposed" and (single or name in HELPERS):
        found["shape"] = "rows"
    if found["shape"] == "apart" and (found.get("in_place") or name in HELPERS):
        found["shape"] = "rows"
    if found.get("uneven"):
        found |= {"shape": "flat", "n": n % 40}
    if name in HELPERS:
        found["how"] = "sync"
        if "in_place" in found:
            found["in_place"] = False
    if name in TUNED:
        # they hold for tensors with elements, of dtypes that every library has
        found |= {"n": max(1, n // 5), "dtype": dtype if dtype in CLAIMED else "float32"}
        dtype = found["dtype"]
    if "op" in found:
        if name == "all_reduce_wider" and dtype not in _widened(gpu):
            # float32 would be summed in float64, which not every device has
            dtype = "float16"
        found |= _settled_reduction(name, dtype, found["op"], found["values"], gpu.comm.reduce_ops)
    claimed = is_claimed(
        gpu.comm,
        name,
        found["dtype"],
        found.get("op", ""),
        found["shape"],
        in_place=found.get("in_place", False),
    )
    if found.get("checked"):
        # a checked group that has refused a call refuses all others
        found |= {"checked": claimed, "outsiders": False, "by_position": False}
    if not claimed:
        found["group"] = MAY_REFUSE.get(found["group"], found["group"])
    return found


def _settled_reduction(
    name: str, dtype: str, op: str, values: str, ops: Collection[str]
) -> dict[str, Any]:
    """An op that the format has, and values whose reduction is specified."""
    if name == "all_reduce_wider":
        op = op if op in ("SUM", "AVG", "PRODUCT") else "SUM"
    if name in TUNED:
        # torch.sum takes the sign of -0.0
        op, values = "SUM", "exact" if values == "extreme" else values
    if name == "all_reduce_with_nan":
        op = op if op in ("MIN", "MAX") else "MAX"
        dtype = dtype if dtype in (*FLOATS, "int64") else "float32"
        values = "zeros" if values == "small" else values
    elif op in ("MIN", "MAX") and values == "special":
        # what becomes of NaN depends on the library
        values = "extreme"
    if dtype == "complex64" or (dtype.startswith("float8") and op != "AVG"):
        op = "SUM"
    elif dtype == "bool":
        op = "MAX"
    elif op in BITWISE and dtype not in INTEGER_BITS:
        op = INSTEAD[op] if INSTEAD[op] in ops else "SUM"
    if op == "PRODUCT" and dtype in FLOATS and values in ("small", "random"):
        values = "exact"
    return {"dtype": dtype, "op": op, "values": values}

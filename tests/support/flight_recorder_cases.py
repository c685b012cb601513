"""Cases of flight-recorder dumps, each with what it shows, worked out by hand.

Those of ``torch`` are the cases of torch's own tests of its analyser
(pytorch, ``test/distributed/flight_recorder/test_fr_analysis.py``), which only differ in the
values that are written here. The others are dumps on which the analyser's ``build_db`` runs too.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.process.test_doctor_dumps import OPEN, document, entry

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class DumpCase:
    """``documents`` are the dumps of ranks 0, 1 ...; ``shows`` the findings that are not PASS.

    ``torch_says`` is what torch's own test states, empty for a case of ours. ``pair`` compares the
    first calls of two ranks alone, as most of torch's cases do.
    """

    name: str
    documents: Sequence[dict[str, Any]]
    shows: Sequence[str]
    torch_says: str = ""
    pair: bool = False


def event(
    operation: str,
    given: list[list[int]],
    taken: list[list[int]],
    state: str = "scheduled",
    number: int = 1,
    record: int = 0,
    group: tuple[str, str] = ("0", "default"),
    **other: Any,
) -> dict[str, Any]:
    """A call as torch's tests write them: numbers and dtypes as texts, and without ``retired``."""
    return {
        "profiling_name": f"gloo:{operation}",
        "state": state,
        "process_group": group,
        "input_sizes": given,
        "output_sizes": taken,
        "input_dtypes": "float32",
        "output_dtypes": "float32",
        "collective_seq_id": str(number),
        "p2p_seq_id": "0",
        "time_created_ns": 0,
        "frames": [],
        "record_id": record,
        "is_p2p": False,
        **other,
    }


def dumps(*calls: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Dumps of ranks in one default group, and each in a group of its own."""
    ranks = str(list(range(len(calls))))
    return [
        {
            "version": "2.8",
            "rank": rank,
            "pg_config": {
                "0": {"name": "0", "desc": "default_pg", "ranks": ranks},
                "1": {"name": "1", "desc": "sub_pg", "ranks": f"[{rank}]"},
            },
            "entries": [copy.deepcopy(each) for each in mine],
        }
        for rank, mine in enumerate(calls)
    ]


SQUARE = [[4, 4]]
SUM = event("all_reduce", SQUARE, SQUARE)
GATHER = event("gather", SQUARE, [[4, 4], [4, 4]], "completed")
DONE = event("all_reduce", SQUARE, SQUARE, "completed")
RUNNING = ["in-flight"]
"""A call that all made in the same way and none has done."""


def _pair(
    name: str, one: dict[str, Any], other: dict[str, Any], says: str, *shows: str
) -> DumpCase:
    return DumpCase(f"torch: {name}", dumps([one], [other]), shows, says, pair=True)


def _operations() -> list[DumpCase]:
    from torch.distributed.flight_recorder.components.types import COLLECTIVES

    found = []
    for operation in sorted(COLLECTIVES):
        taken, says = SQUARE, "FULLY_MATCHED"
        if "reduce_scatter" in operation.lower() and "coalesced" not in operation[-11:]:
            taken = [[8]]
        if operation == "reduce_scatter_tensor_coalesced":
            taken = [[8]]
        if operation in ("all_gather", "_all_gather_base", "all_gather_into_tensor_coalesced"):
            taken = [[2 * math.prod(SQUARE[0])]]
        if operation == "all_to_all":
            says = "UNDECIDED"
        call = event(operation, SQUARE, taken)
        found.append(_pair(f"two of the same: {operation}", call, call, says, *RUNNING))
    return found


def _coalesced(first: int, operation: str, sizes: Sequence[int], end: str) -> list[dict[str, Any]]:
    parts = [
        event(operation, [[size, size]], [[size, size]], "completed", 0, first + n)
        for n, size in enumerate(sizes)
    ]
    return [*parts, event(end, [[]], [[]], "completed", 0, first + len(sizes))]


def _built() -> list[DumpCase]:
    call = event("all_reduce", SQUARE, SQUARE, "completed", 0)
    own = event("all_reduce", [[5, 5]], [[5, 5]], "completed", 0, 1, ("1", "sub_pg"))
    several = event("allreduce_coalesced", SQUARE, SQUARE, "completed", 0)
    two = _coalesced(0, "broadcast", [4, 4], "coalesced")
    even, uneven = (
        _coalesced(0, "_broadcast_oop", sizes, "ALLGATHER_coalesced") for sizes in ([4, 4], [4, 5])
    )
    scattered = _coalesced(0, "_reduce_oop", [4, 4], "REDUCE_SCATTER_coalesced")
    more = [call, *_coalesced(1, "_reduce_oop", [4, 4], "REDUCE_SCATTER_coalesced")]
    return [
        DumpCase("torch: matched all_reduce", dumps([call, own], [call, own]), (), "passes"),
        DumpCase("torch: allreduce_coalesced", dumps([several], [several]), (), "passes"),
        DumpCase("torch: two coalesced broadcasts", dumps(two, two), (), "passes"),
        DumpCase("torch: uneven all-gather", dumps(uneven, even), ("shape",), "fails"),
        DumpCase("torch: uneven reduce-scatter", dumps(scattered, scattered), (), "passes"),
        DumpCase(
            "torch: coalesced calls on one rank", dumps([call], more), ("behind",), "fails: missing"
        ),
    ]


def torch_cases() -> list[DumpCase]:
    """Every case of torch's own tests."""
    exchange = event("all_to_all", SQUARE, SQUARE)
    other_dtype = event("all_reduce", SQUARE, SQUARE, "completed", output_dtypes="float16")
    broken = event("all_reduce", SQUARE, [[5, 4]], number=2)
    size, kind = "SIZE_OR_SYNTAX_MISMATCH", "COLLECTIVE_TYPE_MISMATCH"
    found = [
        _pair("the same", SUM, SUM, "FULLY_MATCHED", *RUNNING),
        _pair("another operation", SUM, event("all_gather", SQUARE, SQUARE), kind, "operation"),
        _pair("all_to_all", exchange, exchange, "UNDECIDED", *RUNNING),
        _pair("input size", SUM, event("all_reduce", [[5, 4]], SQUARE), size, "shape"),
        _pair("output size", SUM, event("all_reduce", SQUARE, [[5, 4]]), size, "shape"),
        _pair("a result of another size on both", broken, broken, size, "shape"),
        _pair("one is done", SUM, DONE, "COLLECTIVE_STATE_MISMATCH", "partial"),
        _pair("output dtype", other_dtype, DONE, "COLLECTIVE_DTYPE_MISMATCH", "dtype"),
        _pair(
            "gather, nothing at the other",
            GATHER,
            event("gather", SQUARE, [[]], "completed", output_dtypes=""),
            "FULLY_MATCHED",
        ),
        _pair(
            "gather, one at the other",
            GATHER,
            event("gather", SQUARE, SQUARE, "completed", output_dtypes=""),
            "FULLY_MATCHED",
        ),
    ]
    for library in ("nccl", "ncclx", "gloo", "xccl"):
        call = {**DONE, "profiling_name": f"{library}:all_reduce"}
        found.append(_pair(f"library {library}", call, call, "FULLY_MATCHED"))
    strange = {**DONE, "profiling_name": "unknown_backend:all_reduce"}
    found.append(_pair("a library that it does not know", strange, strange, "AssertionError"))
    return [*found, *_operations(), *_built()]


def own_cases() -> list[DumpCase]:
    """Dumps in the form of torch 2.13 that torch's tests do not have."""
    three = [entry(0), entry(1), entry(2, **OPEN)]
    waits = document([entry(0), entry(1, **OPEN)], world=3)
    calls = [entry(0, **OPEN)]
    usual = document(calls, world=3)
    groups = {
        "0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"},
        "7": {"name": "7", "desc": "tensor", "ranks": "[0, 1]"},
    }
    there = document([entry(0, process_group=("7", "tensor"), **OPEN)], pg_config=groups)
    late = document([entry(0), entry(1, state="started", retired=True)])

    def peers(record: int, words: str, **other: Any) -> dict[str, Any]:
        return entry(record, words, is_p2p=True, p2p_seq_id=record + 1, **other)

    def odd(**changes: Any) -> dict[str, Any]:
        return document([entry(0, **changes, **OPEN)], world=3)

    send = document([peers(0, "send 0->1")])
    receive = document([peers(0, "recv 1<-0"), peers(1, "recv 1<-0", **OPEN)])
    five = {"input_sizes": [[5, 4]], "output_sizes": [[5, 4]]}
    half = {"input_dtypes": ["Half"], "output_dtypes": ["Half"]}
    cut = [document([entry(n) for n in range(7, 9)]), document([entry(n) for n in range(5, 9)])]
    return [
        DumpCase("a rank is behind", [document(three), document(three[:2])], ("behind",)),
        DumpCase("one called another operation", [usual, odd(profiling_name="nccl:barrier"), usual],
                 ("operation",)),
        DumpCase("one has another shape", [odd(**five), usual, usual], ("shape",)),
        DumpCase("one has another dtype", [usual, usual, odd(**half)], ("dtype",)),
        DumpCase("a rank left no dump", [waits, waits], ("missing-dump", "in-flight")),
        DumpCase("two groups in another order", [document(calls, pg_config=groups), there],
                 ("other-group", "other-group")),
        DumpCase("all ran out of time", [late, late], ("timed-out",)),
        DumpCase("a receive without its send", [send, receive], ("peer",)),
        DumpCase("recorders that are full", cut, ()),
    ]  # fmt: skip

"""Collectives that do the same with every library; the results are worked out by hand."""

from __future__ import annotations

import math
import re
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from portagpu.base.errors import Unsupported
from portagpu.devices.collectives import helpers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from portagpu.runs.world import Ranks

ROOT = Path(__file__).resolve().parents[2]
NAN, INF = math.nan, math.inf


def values(ranks: Ranks, function: str, world: int, **options: Any) -> list[Any]:
    done = ranks.run(
        f"tests.support.helper_ranks:{function}",
        world,
        arguments=options,
        backend="cpu",
        timeout_s=60.0,
    )
    assert done.ok, done.sentence
    return done.values


# ---- uneven all-gather

MOVED = ("float32", "float64", "bfloat16", "float8_e4m3fn", "int16", "uint32", "bool", "complex64")


def _row(rank: int, row: int, itemsize: int) -> list[int]:
    return [rank, *[0] * (itemsize - 1), row, *[0] * (itemsize - 1), *[0] * itemsize]


@pytest.mark.parametrize("rows", [(2,), (1, 3), (0, 2), (0, 0), (3, 0, 1), (2, 2, 2, 2)], ids=str)
def test_rows_of_every_rank_come_in_order(ranks: Ranks, rows: tuple[int, ...]) -> None:
    dtype, size = ("float8_e4m3fn", 1) if len(rows) == 2 else ("float32", 4)
    expected = [
        [[count, 3], [byte for row in range(count) for byte in _row(rank, row, size)]]
        for rank, count in enumerate(rows)
    ]
    found = values(ranks, "gathers_uneven", len(rows), rows=rows, dtype=dtype)
    assert found == [expected] * len(rows)


def test_every_dtype_is_gathered(ranks: Ranks) -> None:
    for dtype in MOVED:
        size = getattr(torch, dtype).itemsize
        # 1 is the only byte of a boolean but 0
        expected = [[[0, 3], []], [[1, 3], _row(1, 0, size)]]
        found = values(ranks, "gathers_uneven", 2, rows=(0, 1), dtype=dtype)
        assert found == [expected] * 2, dtype


def test_only_the_ranks_of_a_group_are_gathered(ranks: Ranks) -> None:
    found = values(ranks, "gathers_uneven", 3, rows=(9, 1, 2), dtype="float32", group=True)
    both = [[[1, 3], _row(1, 0, 4)], [[2, 3], _row(2, 0, 4) + _row(2, 1, 4)]]
    assert found == [None, both, both]


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("shape", "rank 1 has float32[5, 4], and rank 0 has float32[2, 3]: only the first"),
        ("dimensions", "rank 1 has float32[2, 3, 1], and rank 0 has float32[2, 3]: only"),
        ("dtype", "rank 1 has int32[2, 3], and rank 0 has float32[2, 3]: only"),
        ("scalar", "rank 1 has float32[]: give tensors of 1 to 62 dimensions"),
    ],
)
def test_what_differs_more_is_one_error_on_every_rank(ranks: Ranks, kind: str, said: str) -> None:
    for found, after in values(ranks, "gathers_what_differs", 3, kind=kind):
        assert found[0] == "CollectiveMismatch"
        assert found[1].startswith(f"all_gather_uneven: {said}")
        assert after == 3.0, "the group is not usable afterwards"


def test_a_strided_tensor_is_gathered_in_its_own_order(ranks: Ranks) -> None:
    zeros = [[0.0] * 3] * 2
    for found, _ in values(ranks, "gathers_what_differs", 2, kind="strided"):
        assert found == [zeros, [[0.0, 2.0, 4.0], [1.0, 3.0, 5.0]]]
    for found, _ in values(ranks, "gathers_what_differs", 2, kind="rows"):
        assert found == [zeros, []]


def test_strange_tensors_are_moved_or_refused_in_one_line(ranks: Ranks) -> None:
    (*first, nobody), (*second, other) = values(ranks, "strange_tensors", 2)
    assert first == second
    empty, gathered, whole, sent, sparse, wider = first
    assert empty == [[2, 0], [3, 0]]
    assert gathered == ["[(1-2j), -3j]"] * 2
    assert whole == "[(1-2j), -3j, (1-2j), -3j]"
    assert sent == "[(1-0j), -2j]"
    assert sparse == ["ValueError", "all_gather_uneven takes dense tensors: give tensor.to_dense()"]
    assert wider == ["ValueError", "all_reduce_wider takes dense tensors: give tensor.to_dense()"]
    assert (nobody, other) == ("", "all_gather_uneven: this rank is not a member of the group")


# ---- MAX and MIN with NaN

ROWS = [
    # what ranks 0, 1 and 2 have, MAX, MIN
    ((0.0, 1.0, 2.0), 2.0, 0.0),
    ((NAN, 1.0, 2.0), NAN, NAN),
    ((0.0, NAN, 2.0), NAN, NAN),
    ((0.0, 1.0, NAN), NAN, NAN),
    ((-NAN, -1.0, -2.0), NAN, NAN),
    ((INF, -INF, NAN), NAN, NAN),
    ((INF, 1.0, -INF), INF, -INF),
    ((-0.0, 0.0, -0.0), 0.0, -0.0),
    ((0.0, -0.0, 0.0), 0.0, -0.0),
    ((-0.0, -0.0, -0.0), -0.0, -0.0),
    ((-3.0, -1.0, -2.0), -1.0, -3.0),
    ((-1.5, 0.5, -0.25), 0.5, -1.5),
    ((-INF, -4.0, -INF), -4.0, -INF),
]
COLUMNS = [[row[rank] for row, _, _ in ROWS] for rank in range(3)]
FORMATS = {"float64": ("<d", 8), "float32": ("<f", 4), "float16": ("<e", 2), "bfloat16": ("", 2)}


def packed(numbers: Sequence[float], dtype: str) -> list[int]:
    """The bytes of the numbers, by Python's own conversion; NaN is the positive quiet one."""
    found: list[int] = []
    for number in numbers:
        if dtype == "bfloat16":
            found += struct.pack("<f", number)[2:]
        else:
            found += struct.pack(FORMATS[dtype][0], number)
    return found


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("op", ["MAX", "MIN"])
def test_a_nan_of_any_rank_is_everybodys(ranks: Ranks, op: str, dtype: str) -> None:
    expected = packed([high if op == "MAX" else low for _, high, low in ROWS], dtype)
    found = values(ranks, "reduces", 3, values=COLUMNS, dtype=dtype, op=op)
    assert found == [[expected, expected]] * 3


@pytest.mark.parametrize("fault", ["no guard", "no order of negative numbers"])
def test_a_guard_with_a_fault_is_seen(ranks: Ranks, fault: str) -> None:
    expected = packed([high for _, high, _ in ROWS], "float32")
    found = values(ranks, "reduces", 3, values=COLUMNS, dtype="float32", op="MAX", fault=fault)
    assert found != [[expected, expected]] * 3


def test_integers_and_booleans_are_reduced_as_they_are(ranks: Ranks) -> None:
    numbers = [[5, -7], [-9, 1]]
    found = values(ranks, "reduces", 2, values=numbers, dtype="int64", op="MIN")
    expected = list(struct.pack("<qq", -9, -7))
    assert found == [[expected, expected]] * 2
    found = values(ranks, "reduces", 2, values=[[True, False]] * 2, dtype="bool", op="MAX")
    assert found == [[[1, 0], [1, 0]]] * 2


@pytest.mark.parametrize(
    ("dtype", "op", "said"),
    [
        ("float32", "SUM", "takes MAX and MIN, not SUM"),
        ("float8_e4m3fn", "MAX", "no library's MAX is for float8_e4m3fn: widen it first"),
        ("complex64", "MAX", "complex numbers have no order"),
    ],
)
def test_what_has_no_maximum_is_refused(ranks: Ranks, dtype: str, op: str, said: str) -> None:
    for kind, message in values(ranks, "reduces", 2, values=[[1.0]] * 2, dtype=dtype, op=op):
        assert kind == "ValueError"
        assert said in message
        assert "\n" not in message


# ---- wider

BIG = {"bfloat16": 256.0, "float16": 2048.0, "float32": 2.0**24, "float8_e5m2": 8.0}
"""The least number to which adding 1 changes nothing, and 2 does."""


@pytest.mark.parametrize("dtype", BIG)
def test_a_sum_is_rounded_once(ranks: Ranks, dtype: str) -> None:
    big = BIG[dtype]
    # at each place another rank has the large number
    mine = [[big, 1.0, 1.0], [1.0, big, 1.0], [1.0, 1.0, big]]
    found = values(ranks, "reduces", 3, values=mine, dtype=dtype, op="SUM", name="all_reduce_wider")
    wanted = torch.tensor([big + 2] * 3).to(getattr(torch, dtype)).view(torch.uint8).tolist()
    assert found == [[wanted, wanted]] * 3


def test_a_sum_that_is_not_wider_is_seen(ranks: Ranks) -> None:
    mine = [[256.0, 1.0, 1.0], [1.0, 256.0, 1.0], [1.0, 1.0, 256.0]]
    options = {"values": mine, "dtype": "bfloat16", "op": "SUM", "name": "all_reduce_wider"}
    wanted = packed([258.0] * 3, "bfloat16")
    assert values(ranks, "reduces", 3, fault="not wider", **options) != [[wanted, wanted]] * 3


@pytest.mark.parametrize(("op", "result"), [("AVG", [2.0, -3.0]), ("PRODUCT", [3.0, 8.0])])
def test_averages_and_products_are_worked_out_wider(
    ranks: Ranks, op: str, result: list[float]
) -> None:
    mine = [[1.0, -2.0], [3.0, -4.0]]
    found = values(
        ranks, "reduces", 2, values=mine, dtype="float16", op=op, name="all_reduce_wider"
    )
    assert found == [[packed(result, "float16")] * 2] * 2


@pytest.mark.parametrize(
    ("dtype", "op", "said"),
    [
        ("float64", "SUM", "has no wider dtype for float64"),
        ("int32", "SUM", "has no wider dtype for int32"),
        ("float32", "MAX", "takes SUM, AVG and PRODUCT, not MAX"),
    ],
)
def test_what_needs_or_has_no_wider_dtype_is_refused(
    ranks: Ranks, dtype: str, op: str, said: str
) -> None:
    found = values(
        ranks, "reduces", 2, values=[[1]] * 2, dtype=dtype, op=op, name="all_reduce_wider"
    )
    for kind, message in found:
        assert kind == "ValueError"
        assert said in message


def test_a_device_without_float64_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch does it for Apple's GPUs, and for memory that is full."""
    errors: list[Exception] = [
        TypeError("Cannot convert a MPS Tensor to float64 dtype"),
        torch.OutOfMemoryError("out of memory"),
    ]

    def refuses(*_: object, **__: object) -> None:
        raise errors.pop(0)

    monkeypatch.setattr(helpers, "_size", lambda *_: 2)
    monkeypatch.setattr(torch.Tensor, "to", refuses)
    with pytest.raises(Unsupported, match="cpu devices have no float64, in which float32 would"):
        helpers.all_reduce_wider(torch.ones(2))
    with pytest.raises(torch.OutOfMemoryError):
        helpers.all_reduce_wider(torch.ones(2))


# ---- bytes


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2fnuz", "int16", "float32"])
def test_every_byte_is_moved_as_it_is(ranks: Ranks, dtype: str) -> None:
    size = getattr(torch, dtype).itemsize

    def mine(rank: int) -> list[int]:
        return [(byte + 16 * rank) % 256 for byte in range(256)]

    for me, found in enumerate(values(ranks, "moves", 2, dtype=dtype)):
        sent, square, gathered, taken = found
        assert sent == square == mine(1)
        assert gathered == mine(0) + mine(1)
        # rank 0 has a row of two elements for each rank, and rank 1 has two
        row = 2 * size
        assert (
            taken == mine(0)[me * row : (me + 1) * row] + mine(1)[2 * me * row : (me + 1) * 2 * row]
        )


def test_bytes_that_are_moved_as_numbers_are_seen(ranks: Ranks) -> None:
    done = ranks.run(
        "tests.support.helper_ranks:moves",
        2,
        arguments={"dtype": "int16", "fault": "as numbers"},
        backend="cpu",
        timeout_s=60.0,
    )
    assert not done.ok


def test_what_does_not_fit_is_one_line(ranks: Ranks) -> None:
    only = "only the first dimension may differ"
    wanted = [
        "all_gather_bytes: the output has 4 elements, and 2 ranks with 4 each need 8",
        "all_gather_bytes: the output is float32, and the input float16",
        "all_gather_bytes: the output is not contiguous: give a contiguous one",
        f"all_to_all_bytes: rows of [2] cannot hold rows of [3]: {only}",
        f"all_to_all_bytes: rows of [] cannot hold rows of []: {only}",
        "all_to_all_bytes: the output has 4 rows, which [1, 2] does not split among 2 ranks",
        "all_to_all_bytes: the input has 4 rows, which [-1, 5] does not split among 2 ranks",
        "all_to_all_bytes: the output has 3 rows, which [1, 1] does not split among 2 ranks",
    ]
    for found in values(ranks, "moves_what_does_not_fit", 2):
        assert [message for _, message in found] == wanted


def test_the_documented_examples_run(training_ranks: Ranks, tmp_path: Path) -> None:
    page = (ROOT / "docs/collectives.md").read_text(encoding="utf-8")
    section = page.partition("\n## Helpers\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert len(blocks) == 2
    found = values(training_ranks, "runs_examples", 2, blocks=blocks, folder=str(tmp_path))
    assert found == [[[[], [[1.0] * 3]], "[1.0, nan]", [2.0] * 4, ["bias", "weight"], True]] * 2

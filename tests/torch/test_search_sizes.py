"""Operations on both sides of sizes: right on the CPU, and faults past a size by their sentence."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import portagpu
from portagpu.suites.search.sizes import AREA, DTYPES, OPS, PAST_INDEX, SIZES, size_difference

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.torch

CPU = portagpu.backend("cpu")


class Broken(TorchDispatchMode):
    """``aten::NAME`` gives what ``change`` makes of its result and its first argument."""

    def __init__(self, name: str, change: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.name, self.change = name, change

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        narrow = args and torch.is_tensor(args[0]) and args[0].dtype != torch.float64
        right = func._schema.name != f"aten::{self.name}" or not narrow
        return found if right else self.change(found, args[0])


@pytest.mark.parametrize("n", [1024, 1025, 4097])
def test_every_operation_is_right_on_the_cpu(n: int) -> None:
    for op, (_, dtypes, _) in OPS.items():
        for dtype in dtypes:
            assert size_difference(CPU, op, dtype, n) == ""


def test_where_bytes_saturate_the_second_operand_is_within_64(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = []

    def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        given.append(int(y.min()))
        return (x.long() @ y.long()).int()

    monkeypatch.setattr(torch, "_int_mm", product)
    for saturates in (frozenset(), frozenset({torch.int8})):
        precision = replace(CPU.precision, saturates=saturates)
        monkeypatch.setattr(type(CPU), "precision", precision)
        assert size_difference(CPU, "inner size of a product of bytes", "int8", 1025) == ""
    assert given == [-128, -64]


def last_row_lost(found: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Rows past 65,536 are not written (after legacy-rocm-build#6595, with another threshold)."""
    found[65536:] = 0
    return found


def no_places(found: Any, x: torch.Tensor) -> Any:
    """Places of a sort are lost where it has many columns (after pytorch#183885)."""
    return found[0], found[1] * (x.shape[-1] <= 65536)


CAUGHT = [
    ("mm", last_row_lost, "rows of a product", "float32", 2**16 + 1,
     "rows of a product of 65537 float32 gave 0 at element 262144 of 262148, not 19"),
    ("sort", no_places, "sort of columns", "int32", 2**16 + 1,
     "gave 0 at element 0 of 131074, not 1"),
    ("_int_mm", lambda found, x: (found.double() + 1).int() if x.shape[1] > 1040 else found,
     "inner size of a product of bytes", "int8", 4097, "inner size of a product of bytes of 4097"),
    # after pytorch#78915
    ("topk", lambda found, x: (found[0] * (torch.arange(40) < 16), found[1]),
     "topk", "int64", 1025, "topk of 1025 int64 gave 0 at element 16 of 40, not 124"),
    # after pytorch PR 193291: the last block of a reduction in several is not read
    ("max", lambda found, x: found if found.dim() or len(x) < 2**15 else x[: -len(x) // 8].max(),
     "ends", "float32", 2**15, "ends of 32768 float32 gave 1 at element 0 of 12, not 2"),
    # after warp-ctc PR 30: the largest of the first 128 alone
    ("_softmax", lambda found, x: (x - x[:, :128].amax(1, keepdim=True)).exp().softmax(1),
     "softmax", "float32", 1025, "gave nan at element"),
    # after pytorch#96614
    ("cumsum", lambda found, x: found.to(torch.int8), "count", "bool", 1024, "gave -128 at"),
    # after torch7-distro#159
    ("uniform_", lambda found, x: found.copy_(found[:2048].repeat(len(found) // 2048)),
     "draws", "float32", 2**16, "draws of 65536 float32 gave 1 at element 0 of 4, not 0"),
    # after cupynumeric#1028
    ("_unique2", lambda found, x: (found[0].repeat(2), *found[1:]),
     "unique", "int32", 1025, "unique of 1025 int32 gave the shape [254], not [127]"),
    # after composable_kernel#883
    ("bmm", lambda found, x: found * (x.shape[1] > 1 or x.shape[2] % 32 == 0),
     "rows of a batch", "float16", 1025, "rows of a batch of 1025 float16 gave 0 at element"),
    # after pytorch#190781 and pytorch#38018
    ("sort", lambda found, x: (found[0].roll(4), found[1]),
     "NaN", "bfloat16", 1024, "NaN of 1024 bfloat16 gave 1 at element 0 of 1026, not 0"),
    ("median", lambda found, x: (found[0].nan_to_num(29.5), found[1]),
     "NaN", "float32", 1025, "gave 0 at element 1025 of 1027, not 1"),
    ("clone", lambda found, x: found * 0, "copy", "uint8", 1025, "gave 0 at element 0 of 9, not 1"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "change", "op", "dtype", "n", "words"), CAUGHT)
def test_a_fault_past_a_size_is_named(
    name: str, change: Any, op: str, dtype: str, n: int, words: str
) -> None:
    with Broken(name, change) if name else contextlib.nullcontext():
        assert words in size_difference(CPU, op, dtype, n)
    assert size_difference(CPU, op, dtype, n) == ""


def test_each_operation_begins_with_its_largest_size_and_then_has_all_dtypes_and_sizes() -> None:
    listed = AREA.listed(CPU)
    order = AREA.ordered(listed, 7)
    assert sorted(map(repr, order)) == sorted(map(repr, listed))
    assert order != AREA.ordered(listed, 8)
    calls = [program[0][1] for program in order]
    first = {given["op"]: given["n"] for given in reversed(calls)}
    for op, n in first.items():
        assert n == max(given["n"] for given in calls if given["op"] == op)
    assert first["copy"] == PAST_INDEX
    count = AREA.first_pass(listed)
    assert {(each["op"], each["dtype"]) for each in calls[:count]} == {
        (op, dtype) for op, (_, dtypes, _) in OPS.items() for dtype in dtypes
    }
    assert all(each["n"] < 2**18 for each in calls[len(OPS) : count])
    sums = [each for each in calls if each["op"] == "sum"]
    assert sums[0] == {"op": "sum", "dtype": "float32", "n": SIZES[-1]}
    assert {each["n"] for each in sums[: len(DTYPES) + len(SIZES)]} == set(SIZES)

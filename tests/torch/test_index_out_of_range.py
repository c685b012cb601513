"""The case that compares what calls do with an index that their table does not have."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

import portagpu
from portagpu.base.paths import matrix_dir
from portagpu.suites.conformance.ranks import load_function

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.torch

FILE = matrix_dir() / "conformance/test_kernels_lanes.py"
CASE = load_function(f"{FILE}:test_index_out_of_range")
ROWS = 8


def judged(in_child: Callable[..., Any]) -> list[str]:
    """What the case records; raises AssertionError where it fails."""
    recorded: list[str] = []
    CASE(in_child, recorded.append)
    return recorded


def here(function: Callable[..., Any], calls: Any) -> Any:
    rank = SimpleNamespace(gpu=portagpu.backend("cpu"))
    return SimpleNamespace(ok=True, values=[function(rank, calls=calls)])


def test_a_device_that_refuses_all_passes() -> None:
    assert judged(here) == []


# after pytorch#169779 and pytorch#571
@pytest.mark.parametrize(("first", "words"), [(0, "row 8 of 8 gave"), (-8, "row -1 of 8 gave")])
def test_one_call_that_takes_such_an_index_fails(
    monkeypatch: pytest.MonkeyPatch, first: int, words: str
) -> None:
    good = torch.Tensor.index_select

    def taken(table: Any, dim: int, row: Any) -> Any:
        # from the end on, or from the last row on
        return good(table, dim, row % ROWS if first else row.clamp(-1, ROWS - 1))

    monkeypatch.setattr(torch.Tensor, "index_select", taken)
    with pytest.raises(AssertionError, match="where other calls refuse") as raised:
        judged(here)
    assert words in str(raised.value)
    assert str(raised.value).startswith("index_select of row")


def test_a_process_that_ends_has_refused_and_each_call_has_one_of_its_own() -> None:
    asked = []

    def ends(function: Callable[..., Any], calls: Any) -> Any:
        asked.append(len(calls))
        return SimpleNamespace(ok=False, values=[None])

    assert judged(ends) == []
    assert asked[0] > 1
    assert set(asked[1:]) == {1}
    assert len(asked) == asked[0] + 1


def test_a_device_that_checks_no_index_is_recorded() -> None:
    def gives(function: Callable[..., Any], calls: Any) -> Any:
        return SimpleNamespace(ok=True, values=[["gave [1.0]"] * len(calls)])

    assert judged(gives) == ["no index is checked on the device"]

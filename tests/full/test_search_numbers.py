"""The models of numbers against worked values and ml_dtypes, and programs on a right device."""

from __future__ import annotations

import ast
import tempfile
from typing import Any, cast

import pytest

pytest.importorskip("hypothesis")

from portagpu.suites.search.area import from_text
from portagpu.suites.search.numbers.area import AREA, CALLS, MAX_CALLS, _choices
from portagpu.suites.search.numbers.formats import claimed
from portagpu.suites.search.worker import Budget, Round
from tests.support.faults import faults_of
from tests.torch.test_search_numbers import _Rank
from tests.torch.test_search_numbers import gpu as gpu

pytestmark = pytest.mark.torch


def test_a_failure_shrinks_to_one_call_of_the_simplest_arguments(gpu: Any) -> None:
    fault = next(
        each
        for each in faults_of("numbers")
        if each.name == "flip: of int64: the first element is wrong"
    )
    with tempfile.TemporaryFile() as journal, fault.apply():
        budget = Budget(seconds=60.0, shrink_s=30.0, max_programs=2000)
        found = Round(AREA, cast("Any", _Rank(gpu)), journal.fileno(), budget).run(1)
    assert found.difference.startswith("flip of int64"), found.smallest
    (call,) = from_text(found.smallest)[1]
    assert call[0] == "move"
    plain = {"kind": "distinct", "shape": [3, 5], "dim": 0, "layout": "plain", "seed": 0}
    assert call[1] == {"op": "flip", "dtype": "int64", **plain}


def test_no_call_of_a_search_comes_twice_and_all_operations_come(
    gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    for name in CALLS:
        monkeypatch.setitem(CALLS, name, lambda gpu, **given: seen.append(str(given)) or "")
    with tempfile.TemporaryFile() as journal:
        budget = Budget(seconds=60.0, shrink_s=0.0, max_programs=300)
        Round(AREA, cast("Any", _Rank(gpu)), journal.fileno(), budget).run(3)
    assert len(seen) > 300 * MAX_CALLS * 0.8
    assert len(set(seen)) > len(seen) * 0.95
    pairs = {(each.get("op"), each.get("dtype")) for each in map(ast.literal_eval, seen)}
    assert len(pairs) > 0.85 * sum(
        len(each.lists["dtype"]) for each in _choices(claimed(gpu)) if "op" in each.fixed
    )

"""Torch's operators against float64: bounds worked by hand, a right device, and reported faults."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("expecttest")


from tests.ranks.test_search_operators import found as found


def test_every_operator_is_in_one_class_and_none_is_lost(found: dict[str, Any]) -> None:
    # each pair in two halves, and the samples that torch lacks
    assert sum(found["listed"].values()) == 2 * found["claimed"] + found["more"]
    assert 300 < found["more"] < found["claimed"]
    assert min(found["listed"].values()) > 100

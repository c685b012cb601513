"""How much a nudged result differs, by elements, from which the tolerance of an operator comes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from portagpu.suites.search.operators.compare import _change

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("right", "other", "changes"),
    [
        (None, None, 0.0),
        # what is not a number of a continuum says nothing, on either side
        ([1, 2, 3], [1, 3, 2], [0.0, INF, INF]),
        ([True, False], [True, True], [0.0, INF]),
        (4, 5, INF),
        # a change divided by the relative change of the input, here an eighth
        ([1.0, 2.0, 4.0], [1.0, 2.5, 3.0], [0.0, 4.0, 8.0]),
        ([1j, 0j], [1j, 3 + 4j], [0.0, 40.0]),
        ([NAN, INF, -INF], [NAN, INF, -INF], [0.0, 0.0, 0.0]),
        ([NAN, 1.0, INF], [1.0, NAN, 1.0], [INF, INF, INF]),
        # other shapes cannot be compared
        ([1.0, 2.0], [1.0], [INF, INF]),
        ([1.0], None, [INF]),
    ],
)
def test_a_changed_result_is_off_by(right: Any, other: Any, changes: Any) -> None:
    given = [None if each is None else torch.tensor(each) for each in (right, other)]
    assert _change(given[0], given[1], 0.125).tolist() == changes

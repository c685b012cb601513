"""Larger models, whose memory in closed form is compared with torch's tracker."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from tests.torch.test_planning_trackers import DEAR, near_the_tracker

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("name", DEAR)
def test_the_closed_form_is_near_the_tracker(name: str) -> None:
    near_the_tracker(name)

"""Larger models, whose memory in closed form is compared with torch's tracker."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from portagpu.facts.targets import load_target
from portagpu.train.planning import Layout, Recipe, estimate, track
from tests.support.planned_models import Decoder, adamw, decoder, loss_of, shard
from tests.torch.test_planning_trackers import DEAR, near_the_tracker, torch

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("name", DEAR)
def test_the_closed_form_is_near_the_tracker(name: str) -> None:
    near_the_tracker(name)


def test_a_sharded_module_is_near_the_closed_form_too() -> None:
    model = decoder(4, 256, 704, 1000)
    tracked = track(lambda: Decoder(model), loss_of(4, 256), adamw, ranks=8, shard=shard)
    recipe = Recipe(micro_batch=4, sequence=256, precision="fp32", sharding="fsdp2", foreach=False)
    found = estimate(model, recipe, Layout(dp=8), target=load_target("cpu-x86-64"))
    assert tracked.ranks == 8
    assert abs(tracked.disagreement(found.expected)) < 0.15
    assert not torch.distributed.is_initialized()

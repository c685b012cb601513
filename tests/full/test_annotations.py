"""Annotations in torch's profiler and in the vendors' tools, and where nothing listens."""

from __future__ import annotations

import pytest

import portagpu as pg
from tests.torch.test_annotations import _on_the_cpu as _on_the_cpu
from tests.torch.test_annotations import torch

pytestmark = pytest.mark.torch


@pg.annotate("decorated", last=False)
def _decorated(x):
    with pg.annotate("inner"):
        return x * 2


def _marked(x):
    with pg.annotate("block", step=1, domain="mine"):
        x = x + 1
    return _decorated(x)


@pytest.mark.parametrize("recording", [False, True], ids=["idle", "recording"])
@pytest.mark.parametrize("opened", [False, True], ids=["new", "opened"])
def test_labelled_code_compiles_whole_and_once(recording, opened):
    torch._dynamo.reset()
    if opened:
        pg.backend()
    compiled = torch.compile(_marked, backend="eager", fullgraph=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for records in (recording, not recording, recording):
            if records:
                with torch.profiler.profile() as profile:
                    found = compiled(torch.ones(2))
                names = {each.key for each in profile.key_averages()}
                assert not {"block", "decorated", "inner"} & names, "compiled code is marked"
            else:
                found = compiled(torch.ones(2))
            assert found.tolist() == [4.0, 4.0]
    assert torch._dynamo.explain(_marked)(torch.ones(2)).graph_break_count == 0

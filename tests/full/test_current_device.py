"""The current device is torch's: whoever changed it, in every thread, and inside torch.compile."""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler

import pytest

import portagpu as pg
from tests.torch.test_current_device import _fresh as _fresh
from tests.torch.test_current_device import torch

pytestmark = pytest.mark.torch


CALLS = {
    "device": lambda x: x + torch.ones(2, device=pg.device()),
    "backend": lambda x: x + torch.ones(2, device=pg.backend().device),
    "named": lambda x: x + torch.ones(2, device=pg.backend("cpu", 0).device),
    "string": lambda x: x + torch.ones(2, device=pg.device("cpu")),
    "index": lambda x: x + torch.ones(2, device=pg.device(0)),
    "argument": lambda x: x + torch.ones(2, device=pg.current_device()),
    "synchronize": lambda x: (pg.synchronize(), x + 1)[1],
    "count": lambda x: x + pg.device_count(),
}


@pytest.mark.processes(2, "another process is what is tested")
def test_a_handle_passes_to_a_spawned_process(child):
    # as multiprocessing's "spawn" passes it
    given = bytes(ForkingPickler.dumps(pg.backend("cpu"))).hex()
    read = "import pickle, sys; print(pickle.loads(bytes.fromhex(sys.argv[1])).name)"
    assert child("-c", read, given).ok().split() == ["cpu"]


@pytest.mark.parametrize("warm", [False, True], ids=["first", "later"])
@pytest.mark.parametrize("name", CALLS)
def test_compiled_functions_call_it(monkeypatch, name, warm):
    monkeypatch.setenv("PORTAGPU_BACKEND", "cpu")
    torch._dynamo.reset()
    if warm:
        pg.device()
    compiled = torch.compile(CALLS[name], backend="eager", fullgraph=True)
    for _ in range(2):
        assert compiled(torch.ones(2)).tolist() == [2.0, 2.0]

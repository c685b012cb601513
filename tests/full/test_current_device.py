"""The current device is torch's: whoever changed it, in every thread, and inside torch.compile."""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler

import pytest

import portagpu as pg
from tests.torch.test_current_device import _fresh as _fresh

pytestmark = pytest.mark.torch


@pytest.mark.processes(2, "another process is what is tested")
def test_a_handle_passes_to_a_spawned_process(child):
    # as multiprocessing's "spawn" passes it
    given = bytes(ForkingPickler.dumps(pg.backend("cpu"))).hex()
    read = "import pickle, sys; print(pickle.loads(bytes.fromhex(sys.argv[1])).name)"
    assert child("-c", read, given).ok().split() == ["cpu"]

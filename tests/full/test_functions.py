"""The functions of the module: the backend's methods under torch's names and with its arguments."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

import portagpu as pg
from portagpu.base.errors import Unsupported
from tests.torch.test_functions import PUBLIC, UNSUPPORTED
from tests.torch.test_functions import on_the_cpu as on_the_cpu

pytestmark = pytest.mark.torch


CALLS = {
    "Event": ((), {"enable_timing": True, "blocking": True}),
    "GradScaler": ((), {"enabled": False}),
    "Stream": ((), {"device": 0, "priority": -1}),
    "annotate": (("x",), {}),
    "autocast": ((torch.bfloat16,), {}),
    "manual_seed": ((7,), {}),
    "manual_seed_all": ((7,), {}),
    "set_device": ((0,), {}),
    "set_rng_state": ((torch.get_rng_state(),), {"device": "cpu"}),
    "set_rng_state_all": (([torch.get_rng_state()],), {}),
    "stream": ((None,), {}),
    "pin": ((torch.ones(1),), {}),
    "graph": ((None,), {}),
    "range_push": (("x",), {}),
    "mark": (("x",), {}),
    "supports": (("graphs",), {}),
    "device_index": ((0,), {}),
    "device_of": ((torch.ones(1),), {}),
    "set_stream": ((None,), {}),
    "ExternalStream": ((0,), {}),
    "dump_memory_snapshot": (("x",), {}),
    "use_mem_pool": ((None,), {}),
    "set_per_process_memory_fraction": ((0.5,), {}),
    "can_device_access_peer": ((0, 1), {}),
}


@pytest.mark.parametrize("name", [name for name in PUBLIC if name != "range_pop"])
def test_every_function_works_on_the_cpu_or_says_unsupported(name):
    arguments, options = CALLS.get(name, ((), {}))
    call = getattr(pg, name)
    if name in UNSUPPORTED:
        with pytest.raises(Unsupported):
            call(*arguments, **options)
        return
    call(*arguments, **options)
    if name == "range_push":
        pg.range_pop()

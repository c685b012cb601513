"""What an answer rests on: versions, measured times, known errors, and the device's own library."""

from __future__ import annotations

import subprocess
import sys

import pytest

ASKS = """
import os, torch
from types import SimpleNamespace
import torch.distributed as dist
from portagpu.devices.collectives import choice
from portagpu.devices.collectives.comm import Comm
from portagpu.base.errors import Unsupported

library = Comm("gloo", "Gloo", None, "cpu")
def ask(**more):
    try:
        found = library.choose("all_reduce", 4096, ranks=2, ask_library=True, **more)
        print(found.basis, "|", round(found.best.time_us, 3), "|", found.own_answer)
    except Unsupported as error:
        print(error)
ask()
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
ask()

class Estimates:
    supports_time_estimate = True
class Group:
    def _get_backend(self, device): return Estimates()
class Estimator:
    estimated_time = None
    def __init__(self, group, device): pass
    def __enter__(self): return self
    def __exit__(self, *failure): self.estimated_time = self.time
from torch.distributed import distributed_c10d as c10d
c10d._get_default_group = Group
dist.get_world_size = lambda group=None: 1
called = []
for name, new in (("all_reduce", ""), ("all_gather_into_tensor", "all_gather_single"),
                  ("reduce_scatter_tensor", "reduce_scatter_single")):
    call = lambda *tensors, n=name, **_: called.append((n, tensors[0].numel()))
    setattr(dist, name, call)
    if hasattr(dist, new):
        setattr(dist, new, call)
c10d._time_estimator = Estimator
Estimator.time = 12.5
ask()
from portagpu.facts.targets import load_target
from portagpu_cuda.cost_model import MODEL
gpu = SimpleNamespace(plugin=SimpleNamespace(cost_model=lambda: MODEL),
                      target=load_target("nvidia-h100-sxm"))
library = Comm("gloo", "NCCL", "2.30.7", "cpu", _gpu=gpu)
found = library.choose("all_reduce", 4096, ranks=2, ask_library=True)
print(found.best, found.best.time_us, found.alternatives, found.basis, found.remarks)
Estimator.time = 0.0
ask()
print(called)
for operation in ("all_gather", "reduce_scatter"):
    Estimator.time = 3.0
    print(choice.estimated_time_us(operation, 4096, torch.device("cpu")))
try:
    choice.estimated_time_us("all_to_all", 4096, torch.device("cpu"))
except Unsupported as error:
    print(error)
os._exit(0)
"""


MODEL_WAY = "algorithm and protocol: model, constants of version 2.30.7"


OWN = "all_reduce, all_gather, reduce_scatter, broadcast, reduce"


@pytest.mark.torch
def test_the_library_is_asked_only_where_it_can_answer():
    pytest.importorskip("torch")
    ended = subprocess.run(
        [sys.executable, "-u", "-c", ASKS], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert lines == [
        "the library's own answer needs a process group: initialise one first",
        "the library's own answer is not available: gloo estimates no times through this torch",
        "library's own answer: Gloo estimated the time | 12.5 | asked",
        f"Ring LL 12.5 () library's own answer: NCCL 2.30.7 estimated the time ('{MODEL_WAY}',)",
        "the library estimated no time for all_reduce",
        "[('all_reduce', 2048), ('all_reduce', 2048), ('all_reduce', 2048)]",
        "3.0",
        "3.0",
        f"the library's own answer covers {OWN}, not all_to_all",
    ]

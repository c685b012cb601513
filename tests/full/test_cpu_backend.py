"""The CPU backend: every primitive does what it says, judged by the kernel and by torch."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")


pytestmark = pytest.mark.torch


@pytest.mark.processes(1, "this process has threads")
def test_preparing_to_fork_imports_what_opening_needs_and_starts_no_thread(child):
    code = """
import os, sys
import torch.distributed  # brings numpy, whose OpenBLAS has threads of its own that survive a fork
threads = len(os.listdir("/proc/self/task"))
from portagpu.devices.registry import plugin, resolve
plugin(resolve("cpu")).prepare()
before = set(sys.modules)
print(len(os.listdir("/proc/self/task")) - threads)
plugin("cpu").open(0)
print(*sorted(name for name in set(sys.modules) - before if name.startswith("portagpu")))
"""
    threads, *imported = child("-c", code).ok().splitlines()
    assert threads == "0", f"{threads} threads would be lost in a fork"
    assert imported == [""], f"opening the device still imports {imported}"

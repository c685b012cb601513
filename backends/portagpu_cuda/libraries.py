"""What NVIDIA's libraries add: cuDNN's search for a convolution, and cuFile. No GPU has run this.

cuDNN (torch, "CUDA semantics" and ``torch.backends.cudnn.benchmark``): what it found is kept in the
process and in no file. TunableOp is not here: it tunes AMD's libraries only
(torch/cuda/tunable.py).

cuFile (GPUDirect Storage) copies through the host's memory where it cannot go directly, unless
``allow_compat_mode`` is false (NVIDIA, cuFile API Reference Guide, "cuFile Compatibility Mode"),
for which the variable stands. Two file systems do so all the same: Lustre below
``posix_gds_min_kb``, and WekaFS with ``rdma_write_support`` false. The driver counts what went
through it where its statistics are on (GPUDirect Storage Troubleshooting Guide, "Displaying GDS
NVIDIA FS Driver Statistics"); transfers by the kernel's own P2PDMA do not pass it.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from portagpu.devices.plugin_parts import DirectStorage, Tuner, TunerState
from portagpu_torch_gpu.libraries import GdsFile, searched

if TYPE_CHECKING:
    from collections.abc import Mapping


def _state() -> TunerState:
    import torch

    return TunerState(torch.backends.cudnn.benchmark, None, None, remark="kept in the process only")


TUNERS: Final = (Tuner("cudnn-benchmark", "convolution", _state, searched),)


_STATISTICS: Final = Path("/proc/driver/nvidia-fs/stats")


def counts_of(text: str) -> Mapping[str, int]:
    """``read_bytes`` and ``write_bytes`` of the driver's statistics; empty where they are off."""
    if not re.search(r"^IO stats: Enabled", text, re.MULTILINE):
        return {}
    found = {
        name: re.search(rf"^{title}\s*:.*\b{title.lower()[:-1]}MiB=(\d+)", text, re.MULTILINE)
        for name, title in (("read_bytes", "Reads"), ("write_bytes", "Writes"))
    }
    return {name: int(match[1]) << 20 for name, match in found.items() if match is not None}


def counters() -> Mapping[str, int]:
    """What nvidia-fs has moved for all processes; empty without it."""
    try:
        return counts_of(_STATISTICS.read_text("utf-8", "replace"))
    except OSError:
        return {}


STORAGE: Final = DirectStorage(
    library="cuFile",
    open=partial(GdsFile, "cuFile"),
    proof="CUFILE_ALLOW_COMPAT_MODE=false has cuFile fail where it would copy through the host",
    environment={"CUFILE_ALLOW_COMPAT_MODE": "false"},
    counters=counters,
)

"""Whether a GPU has joined the NVLink fabric, from what nvidia-smi states of it.

NVML's nvmlGpuFabricInfo has the state of the registration, an error, which counts once the state is
"Completed", and a health mask. Until then CUDA does not start on machines with NVSwitches (error
802, NVSentinel issue 883). With FABRIC_MODE=1 a GPU waits until somebody activates its partition
(gpu-driver-container pull request 909), so that waiting alone is not a fault.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_WAITS: Final = ("not started", "in progress")
# NVML_GPU_FABRIC_HEALTH_SUMMARY_* and NVML_GPU_FABRIC_HEALTH_MASK_DEGRADED_BW_TRUE
_HEALTH: Final = (
    ("fabric health", "health", "unhealthy"),
    ("fabric bandwidth", "bandwidth", "degraded"),
)


def hive(cluster: str | None, clique: str | None) -> str | None:
    """Cluster and clique. All zeros means that no fabric manager assigned a cluster."""
    if cluster is None or re.search(r"[1-9a-fA-F]", cluster) is None:
        return None
    return cluster if clique is None else f"{cluster}.{clique}"


def fabric_wait(stated: Mapping[str, str]) -> str | None:
    """The state in which the GPU has not joined yet."""
    state = stated.get("fabric state", "")
    return state if state.lower() in _WAITS else None


def fabric_error(stated: Mapping[str, str]) -> str | None:
    """Why the GPU cannot use the fabric as it should, though its registration has ended."""
    if stated.get("fabric state", "").lower() != "completed":
        return None
    status = stated.get("fabric status", "")
    if status.lower() not in ("", "success"):
        return status
    return next(
        (
            f"{name} {stated[key]}"
            for key, name, bad in _HEALTH
            if stated.get(key, "").lower() == bad
        ),
        None,
    )

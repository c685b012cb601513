"""What the loaded torch states of the libraries that it was built with. No device is opened."""

from __future__ import annotations

import re


def nccl_version() -> str | None:
    """What the library behind "nccl" states: "2.27.7"; None where torch was built without it.

    RCCL states the release of NCCL that it is compatible with, and no other number.
    """
    import torch

    try:
        return ".".join(str(part).lstrip(".-") for part in torch.cuda.nccl.version())
    except (AttributeError, RuntimeError):
        return None


def dnn_version_number() -> int | None:
    """The number of ``torch.backends.cudnn.version()``; None where there is no such library."""
    import torch

    try:
        number: int | None = torch.backends.cudnn.version()
    except (AttributeError, RuntimeError):
        return None
    return number


def rocm_version() -> str | None:
    """What ``torch.version.rocm`` states, where it does, else the first two numbers of HIP's.

    HIP's are those of the ROCm release that it is of ("6.4.43482-..." of ROCm 6.4.0).
    """
    import torch

    stated: str | None = getattr(torch.version, "rocm", None)
    match = re.match(r"\d+\.\d+", torch.version.hip or "")
    return stated or (match[0] if match else None)

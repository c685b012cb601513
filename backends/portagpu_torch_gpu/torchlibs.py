"""What the loaded torch states of the libraries that it was built with. No device is opened."""

from __future__ import annotations


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

"""Whether an error says that memory is exhausted, whoever raised it."""

from __future__ import annotations

import errno
import re
from typing import TYPE_CHECKING, Any, Final

from portagpu.facts.vendors import vendors

if TYPE_CHECKING:
    from torch import OutOfMemoryError as OutOfMemoryError

_HOST_TEXTS: Final = (
    # pytorch, c10/core/impl/alloc_cpu.cpp: Linux, and the text of Windows
    "defaultcpuallocator: can't allocate memory",
    "defaultcpuallocator: not enough memory",
    # pytorch, aten/src/ATen/MapAllocator.cpp: errno 12 is ENOMEM
    "cannot allocate memory (12)",
)
"""Texts of the host, in lower case. ``Vendor.out_of_memory`` has those of vendors."""
_TRITON: Final = re.compile(r"triton error \[\w+\]:.*out of memory")
"""How Triton reports a vendor's errors (third_party/*/backend/driver.c)."""


def __getattr__(name: str) -> Any:
    """``OutOfMemoryError`` is torch's own class, which the allocators of GPUs raise.

    The host's allocator raises a RuntimeError: :func:`is_oom` knows both. Without torch, which
    alone raises it, the name is MemoryError.
    """
    if name != "OutOfMemoryError":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import torch
    except ModuleNotFoundError:
        return MemoryError
    return torch.OutOfMemoryError


def is_oom(error: BaseException) -> bool:
    """Whether ``error`` says that a device's or the host's memory is exhausted.

    True for ``torch.OutOfMemoryError``, ``MemoryError``, an ``OSError`` of ENOMEM, a
    ``RuntimeError`` with the text of a vendor's runtime, libraries or allocator, and whatever was
    raised ``from`` one of them: a smaller batch may work. False for whatever else has the word
    memory in it, such as a kernel's shared memory or /dev/shm.
    """
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        if _is_out_of_memory(cause):
            return True
        seen.add(id(cause))
        cause = cause.__cause__
    return False


def _is_out_of_memory(error: BaseException) -> bool:
    """Whether this error, without its causes, is one of exhausted memory."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    if not isinstance(error, RuntimeError):
        return isinstance(error, MemoryError)
    import torch

    text = str(error).lower()
    if isinstance(error, torch.OutOfMemoryError) or _TRITON.search(text) is not None:
        return True
    declared = (each for vendor in vendors().values() for each in vendor.out_of_memory)
    return any(each in text for each in (*_HOST_TEXTS, *declared))

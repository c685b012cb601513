"""Whether an error says that memory is exhausted, whoever raised it."""

from __future__ import annotations

import errno
import re
from typing import TYPE_CHECKING, Final

from portagpu.vendors import vendors

if TYPE_CHECKING:
    from collections.abc import Iterable

_TEXTS: Final = (
    # pytorch, c10/core/impl/alloc_cpu.cpp: Linux, and the text of Windows
    "defaultcpuallocator: can't allocate memory",
    "defaultcpuallocator: not enough memory",
    # pytorch, aten/src/ATen/MapAllocator.cpp: errno 12 is ENOMEM
    "cannot allocate memory (12)",
)
"""Of the host, in lower case; those of vendors are theirs (``Vendor.out_of_memory``)."""
_of_opened: set[str] = set()
"""In lower case: the own words of the vendors of the devices that this process opened."""
_TRITON: Final = re.compile(r"triton error \[\w+\]:.*out of memory")
"""A vendor's errors as Triton says them (third_party/*/backend/driver.c)."""


def remember(texts: Iterable[str]) -> None:
    """From now on, an error that has one of ``texts`` says that memory is exhausted.

    A device's own texts are remembered when it is opened
    (:attr:`portagpu.contract.Plugin.out_of_memory`).
    """
    _of_opened.update(text.lower() for text in texts)


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
        if _says_so(cause):
            return True
        seen.add(id(cause))
        cause = cause.__cause__
    return False


def _says_so(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    if not isinstance(error, RuntimeError):
        return isinstance(error, MemoryError)
    import torch

    text = str(error).lower()
    known = isinstance(error, torch.OutOfMemoryError) or _TRITON.search(text) is not None
    if known or any(each in text for each in (*_TEXTS, *_of_opened)):
        return True
    return any(each in text for vendor in vendors().values() for each in vendor.out_of_memory)

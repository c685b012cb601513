"""Whether an error says that memory is exhausted, whoever raised it."""

from __future__ import annotations

import errno
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_TEXTS: Final = (
    # torch's caching allocator, which raises OutOfMemoryError; older builds, and code that wraps
    # it, raise a RuntimeError with the text (pytorch, c10/cuda/CUDACachingAllocator.cpp)
    "cuda out of memory",
    "hip out of memory",
    # cudaErrorMemoryAllocation and hipErrorOutOfMemory as torch says them, and behind the words of
    # NCCL and RCCL (src/include/checks.h)
    "cuda error: out of memory",
    "hip error: out of memory",
    "cuda driver error: out of memory",
    "hip driver error: out of memory",
    "failure 2 'out of memory'",
    "failure 'out of memory'",
    # pytorch, c10/core/impl/alloc_cpu.cpp: Linux, and the text of Windows
    "defaultcpuallocator: can't allocate memory",
    "defaultcpuallocator: not enough memory",
    # pytorch, aten/src/ATen/MapAllocator.cpp: errno 12 is ENOMEM
    "cannot allocate memory (12)",
    # status names of the libraries: cublasStatus_t, cudnnStatus_t, cusolverStatus_t,
    # cusparseStatus_t, cufftResult, hipblasStatus_t, rocblas_status, miopenStatus_t
    "cublas_status_alloc_failed",
    "cudnn_status_alloc_failed",
    "cusolver_status_alloc_failed",
    "cusparse_status_alloc_failed",
    "cufft_alloc_failed",
    "hipblas_status_alloc_failed",
    "hipsparse_status_alloc_failed",
    "hipsolver_status_alloc_failed",
    "hipfft_alloc_failed",
    "rocblas_status_memory_error",
    "miopenstatusallocfailed",
    # NCCL, and RCCL with the same words (src/include/alloc.h)
    "failed to cuda malloc",
    "failed to cuda calloc",
)
"""In lower case."""
_of_opened: set[str] = set()
"""In lower case: the own words of the vendors of the devices that this process opened."""
_TRITON: Final = re.compile(r"triton error \[(cuda|hip)\]:.*out of memory")
"""The same errors as Triton says them (third_party/nvidia and amd, backend/driver.c)."""


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
    known = any(each in text for each in (*_TEXTS, *_of_opened))
    known = known or _TRITON.search(text) is not None
    return known or isinstance(error, torch.OutOfMemoryError)

"""Whether an error says that memory is exhausted, whoever raised it."""

from __future__ import annotations

from typing import Final

_TEXTS: Final = (
    # torch's caching allocator, which raises OutOfMemoryError; older builds, and code that wraps
    # it, raise a RuntimeError with the text (pytorch, c10/cuda/CUDACachingAllocator.cpp)
    "cuda out of memory",
    "hip out of memory",
    # cudaErrorMemoryAllocation and hipErrorOutOfMemory behind "CUDA error: ", "HIP error: " and
    # "CUDA driver error: ", and behind the words of NCCL and RCCL (src/include/checks.h)
    "error: out of memory",
    "failure 2 'out of memory'",
    "failure 'out of memory'",
    # pytorch, c10/core/impl/alloc_cpu.cpp: Linux, and the text of Windows
    "defaultcpuallocator: can't allocate memory",
    "defaultcpuallocator: not enough memory",
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
)
"""In lower case."""


def is_oom(error: BaseException) -> bool:
    """Whether ``error`` says that a device's or the host's memory is exhausted.

    True for ``torch.OutOfMemoryError``, ``MemoryError``, and a ``RuntimeError`` with the text of a
    vendor's runtime, libraries or allocator: a smaller batch may work. False for whatever else has
    the word memory in it, such as a kernel's shared memory or /dev/shm.
    """
    if isinstance(error, MemoryError):
        return True
    if not isinstance(error, RuntimeError):
        return False
    import torch

    text = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError) or any(each in text for each in _TEXTS)

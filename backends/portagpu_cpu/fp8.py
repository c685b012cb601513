"""What torch does with fp8 on this CPU, found out by a product of each format.

No list of units says it. torch multiplies fp8 matrices in float32 on a CPU without AMX-INT8, and
hands them to oneDNN on one with it, unless ``torch.backends.mkldnn`` is switched off (pytorch,
aten/src/ATen/native/Blas.cpp or ScaledBlas.cpp, ``_scaled_mm_out_cpu``). There torch refuses the
FNUZ formats (mkldnn/MKLDNNCommon.cpp, ``itensor_view_from_dense`` and ``get_mkldnn_dtype``), and
oneDNN 3.7 to 3.12 takes the OCP formats from AVX512_CORE_FP16 on (src/cpu/platform.cpp,
``has_data_type_support``), so that ``ONEDNN_MAX_CPU_ISA`` decides too. torch does not multiply by
itself what is refused there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Final

import torch

from portagpu.devices.precision import Support
from portagpu.devices.precision.formats import FP8_NAMES

FP8: Final = tuple(getattr(torch, name) for name in FP8_NAMES)


class Table(Mapping[torch.dtype, Support]):
    """``known``, and the support of each fp8 dtype, which is found out when it is asked for."""

    __slots__ = ("_known",)

    def __init__(self, known: Mapping[torch.dtype, Support]) -> None:
        self._known = dict(known)

    def __getitem__(self, dtype: torch.dtype) -> Support:
        return fp8_support(dtype) if dtype in FP8 else self._known[dtype]

    def __contains__(self, dtype: object) -> bool:
        return dtype in FP8 or dtype in self._known

    def __iter__(self) -> Iterator[torch.dtype]:
        yield from self._known
        yield from FP8

    def __len__(self) -> int:
        return len(self._known) + len(FP8)

    def __repr__(self) -> str:
        return repr(dict(self))


def fp8_support(dtype: torch.dtype) -> Support:
    """EMULATED where torch's scaled product of this fp8 dtype is right on this CPU, else STORAGE.

    Runs one product of small matrices at the first question, and again where oneDNN was switched
    on or off since.
    """
    return Support.EMULATED if _works(dtype) else Support.STORAGE


def _works(dtype: torch.dtype) -> bool:
    return _works_with(dtype, torch.backends.mkldnn.enabled)


# what torch.compiler.assume_constant_result sets, whose import of torch._dynamo takes a second:
# code that is compiled asks then, and does not trace the product
setattr(_works, "_dynamo_marked_constant", True)  # noqa: B010 - mypy knows no such field


@cache
def _works_with(dtype: torch.dtype, onednn: bool) -> bool:
    del onednn  # a key: it decides who multiplies
    # A thread of its own has none of the caller's modes: a fake tensor mode, a default device or a
    # profile neither changes the answer nor sees it. Threads that OpenMP starts for it end with it,
    # as a later fork would need.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_multiplies, dtype).result()


def _multiplies(dtype: torch.dtype) -> bool:
    """Whether a product of small integers comes out exactly."""
    left = (torch.arange(16 * 32) % 5 - 2).reshape(16, 32)
    right = (torch.arange(16 * 32) % 3 - 1).reshape(16, 32).t()
    one = torch.ones((), dtype=torch.float32)
    fp8 = left.float().to(dtype), right.float().to(dtype)
    try:
        product = torch._scaled_mm(*fp8, one, one, out_dtype=torch.bfloat16)
    except (RuntimeError, TypeError):  # of its kinds NotImplementedError is the first's
        return False
    return torch.equal(product.long(), left @ right)

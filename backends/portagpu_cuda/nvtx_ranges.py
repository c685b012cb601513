"""Ranges for NVIDIA's profilers: NVTX through the package ``nvtx``, else through torch.

NVTX looks once for a tool, at its first call: ``NVTX_INJECTION64_PATH`` names its library, or one
is linked in (nvtxInit.h). Without a tool a push returns -2 (NVTX_NO_PUSH_POP_TRACKING in
nvToolsExt.h) and a domain is a dummy one (nvtx 0.2.17, ``nvtx._lib.Domain``), and stays so: then
nothing has to be called again.
"""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import torch

from portagpu.facts.captures.labels import DOMAIN
from portagpu_torch_gpu.ranges import TorchRanges, in_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from portagpu.facts.captures.labels import Label
    from portagpu.facts.captures.marked_blocks import RangeTool

_NO_TOOL: Final = -2
_INT64: Final = range(-(2**63), 2**63)


@cache
def attached() -> RangeTool | None:
    """What hands ranges to the tool that is attached to this process; None where none is."""
    if not os.environ.get("NVTX_INJECTION64_PATH"):
        depth = torch.cuda.nvtx.range_push(DOMAIN)
        if depth == _NO_TOOL:
            return None
        torch.cuda.nvtx.range_pop()
    try:
        import nvtx
    except ImportError:
        return TorchRanges()
    listens = type(nvtx.get_domain(DOMAIN)).__name__ != "DummyDomain"
    return NvtxPackage(nvtx) if listens else TorchRanges()


def profiler_name() -> str | None:
    """The profiler that started this process: "nsys", "ncu" or None; from its variables.

    nsys sets the first when its session begins and the second from the start. The third is ncu's.
    """
    injected = os.path.basename(os.environ.get("NVTX_INJECTION64_PATH", ""))  # noqa: PTH119 - text
    if "NSYS_PROFILING_SESSION_ID" in os.environ or injected.startswith("libToolsInjection"):
        return "nsys"
    return "ncu" if "NV_NSIGHT_INJECTION_TRANSPORT_TYPE" in os.environ else None


class NvtxPackage(TorchRanges):
    """Domains, colours and payloads; labels are in the text too, where every reader finds them."""

    def __init__(self, nvtx: Any) -> None:
        self._nvtx = nvtx

    def push(self, name: str, labels: Mapping[str, Label], domain: str, color: int | None) -> None:
        if not domain:
            super().push(name, labels, domain, color)
            return
        target = self._nvtx.get_domain(domain)
        text = in_text(name, labels)
        target.push_range(target.get_event_attributes(text, color, None, payload(labels)))

    def pop(self, domain: str) -> None:
        if domain:
            self._nvtx.get_domain(domain).pop_range()
        else:
            super().pop(domain)


def payload(labels: Mapping[str, Label]) -> Any:
    """The labels as the package takes them: a number, or a record of NumPy; None without any.

    Without NumPy only a single number has a form. Integers beyond 64 bits are text.
    """
    if not labels:
        return None
    first = next(iter(labels.values()))
    if len(labels) == 1 and not isinstance(first, str | bool) and _kind(first) != "S":
        return first
    try:
        import numpy as np
    except ImportError:
        return None
    values = [
        (str(value).encode("utf-8", "backslashreplace") or b"\0") if _kind(value) == "S" else value
        for value in labels.values()
    ]
    kinds = [f"S{len(value)}" if isinstance(value, bytes) else _kind(value) for value in values]
    # a name that is empty or stands twice is none to NumPy, and surrogates are none to the package
    names = [
        f"{number}:{key}".encode("ascii", "replace").decode() if not key.isidentifier() else key
        for number, key in enumerate(labels)
    ]
    return np.array(tuple(values), dtype=list(zip(names, kinds, strict=True)))


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "i1"
    if isinstance(value, int):
        return "i8" if value in _INT64 else "S"
    return "f8" if isinstance(value, float) else "S"

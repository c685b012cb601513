"""Attention that is exact: by selection of one row, and by the mean of a power of two of rows.

Where one score is more than 150 above all others, softmax is 1 there and 0 elsewhere, because
exp(-150) is below the smallest float32. Where all are equal it is one part of their number.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from portagpu.train.exact.probe import Expected, Probe
from portagpu.train.exact.vectors import lacks

if TYPE_CHECKING:
    from portagpu.devices.contract import Backend
    from portagpu.train.exact.draws import Draws
    from portagpu.train.exact.probe import Work

_HEADS: Final = 2
"""Times ``scale``."""
_TOKENS: Final = 64
"""Also the width of a head: key n is 40 in place n, and a score 1600 / 8."""
_PEAK: Final = 40.0
_LARGEST: Final = {"float32": 255, "bfloat16": 3, "float16": 15}
"""The largest value: sums of 64 have at most the bits of the dtype."""


def _make(variant: str, dtype: str, gpu: Backend, draws: Draws, scale: int) -> Work:
    import torch
    from torch.nn.functional import scaled_dot_product_attention as attention

    kind = getattr(torch, dtype)
    heads, largest = _HEADS * scale, _LARGEST[dtype]
    values = draws.integers("values", (1, heads, _TOKENS, _TOKENS), -largest, largest)
    v = values.to(torch.float32).to(kind)
    keys = (torch.eye(_TOKENS, device=v.device) * _PEAK).to(kind).expand(1, heads, -1, -1)
    k = keys.contiguous()
    if variant == "uniform":
        q = torch.zeros_like(k)
        mean = values.sum(2, keepdim=True).to(torch.float32) / _TOKENS
        expected = mean.to(kind).expand_as(v).contiguous()
    else:
        # queries may choose one key several times
        chosen = draws.integers("chosen", (1, heads, _TOKENS), 0, _TOKENS - 1)
        places = chosen[..., None].expand(-1, -1, -1, _TOKENS)
        q, expected = k.gather(2, places), v.gather(2, places)
    return Expected(lambda: attention(q, k, v), expected, 3 * v.numel())


PROBES: Final = tuple(
    Probe(
        f"attention/{dtype}[{variant}]",
        dtype,
        partial(_make, variant, dtype),
        partial(lacks, dtype),
    )
    for dtype in _LARGEST
    for variant in ("selection", "uniform")
)

"""Faults in one operation of torch, for ``tests/support/suite_patches.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

FUNCTIONAL = torch.nn.functional


def replaced(
    place: Any, name: str, change: Callable[..., Any]
) -> Callable[[pytest.MonkeyPatch], None]:
    """``place.name`` becomes ``change(good, ...)``."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        good = getattr(place, name)
        monkeypatch.setattr(place, name, lambda *given, **named: change(good, *given, **named))

    return patch


def scatter_once(good: Any, total: Any, dim: int, where: Any, values: Any) -> Any:
    """Of values for one place the last one counts."""
    del good
    return total.scatter_(dim, where, total.gather(dim, where) + values)


def narrow_sums(good: Any, values: Any, dim: int) -> Any:
    """Prefix sums in int32."""
    return good(values.int(), dim, dtype=torch.int32).long()


def narrow_products(good: Any, left: Any, right: Any) -> Any:
    """Products of int64 in int32."""
    if left.dtype != torch.int64:
        return good(left, right)
    return good(left, right).int().long()


def wrong_pattern(good: Any, values: Any, *given: Any, **named: Any) -> Any:
    """Of float16, one bit pattern of 65,536 becomes the next float32."""
    found = good(values, *given, **named)
    if (values.dtype, found.dtype) == (torch.float16, torch.float32):
        found[values.view(torch.int16) == 0x3555] += 2.0**-25
    return found


def unconjugated(good: Any, values: Any) -> Any:
    """A matrix that only says it is conjugated."""
    del good
    return values


def first_of_a_batch(good: Any, left: Any, right: Any, **named: Any) -> Any:
    """The product of the first pair for every pair."""
    found = good(left, right, **named)
    return found.copy_(found[:1].clone().expand(len(left), -1, -1))


def variance_by_squares(good: Any, values: Any, shape: Any, eps: float = 1e-5) -> Any:
    """A layer norm whose variance is E[x^2] - E[x]^2."""
    del good, shape
    mean = values.mean()
    return (values - mean) / (values.square().mean() - mean.square() + eps).sqrt()


def last_is_allowed(good: Any, low: int, high: int, size: Any, **named: Any) -> Any:
    """Whole numbers up to and with the upper end."""
    return good(low, high + 1, size, **named)


def too_wide(good: Any, *size: Any, **named: Any) -> Any:
    """Normal numbers of a standard deviation of 1.1."""
    return 1.1 * good(*size, **named)


def biased(good: Any, chances: Any) -> Any:
    """True more often than asked for."""
    return good(1.1 * chances)


def unscaled(good: Any, values: Any, chance: float) -> Any:
    """Dropout that does not make up for what it drops."""
    return good(values, chance) * (1 - chance)


def halved(good: Any, values: Any) -> Any:
    """Exponential numbers of another rate."""
    return good(values).mul_(0.5)


def with_repeats(good: Any, count: int, **named: Any) -> Any:
    """A permutation in which one number stands for another."""
    found = good(count, **named)
    found[0] = found[-1]
    return found


def from_the_last_key(good: Any, *inputs: Any, is_causal: bool = False, **named: Any) -> Any:
    """A causal mask whose last query sees every key."""
    queries, keys = inputs[0].shape[-2], inputs[1].shape[-2]
    if not is_causal or queries == keys:
        return good(*inputs, is_causal=is_causal, **named)
    mask = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
    return good(*inputs, attn_mask=mask, **named)


def no_fp8(good: Any, *given: Any, **named: Any) -> Any:
    """A CPU whose library multiplies no fp8."""
    del good, given, named
    raise RuntimeError("could not create a primitive descriptor for the matmul primitive")


def any_fp8(good: Any, left: Any, right: Any, *scales: Any, out_dtype: Any) -> Any:
    """A CPU on which torch multiplies fp8 in float32."""
    del good, scales
    return (left.float() @ right.float()).to(out_dtype)


def in_tf32(good: Any, left: Any, right: Any, *given: Any, **named: Any) -> Any:
    """A float32 product in TF32, whatever the switch says: it stays on after "ieee"."""
    if left.dtype == right.dtype == torch.float32:
        left, right = _ten_bits(left), _ten_bits(right)
    return good(left, right, *given, **named)


def _ten_bits(values: Any) -> Any:
    """Rounded to the 10 bits of TF32's fraction, ties to even."""
    bits = values.detach().contiguous().view(torch.int32)
    rounded = (bits + 0xFFF + (bits >> 13 & 1)) >> 13 << 13
    return values + (rounded.view(torch.float32) - values.detach()).nan_to_num(0.0, 0.0, 0.0)


def stuck_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Matrix products, layers and convolutions in TF32."""
    for place, name in (
        *((torch, "matmul"), (torch, "mm"), (torch.Tensor, "__matmul__"), (FUNCTIONAL, "conv2d")),
        (FUNCTIONAL, "linear"),
    ):
        replaced(place, name, in_tf32)(monkeypatch)


def written_by_nobody(value: float) -> Callable[..., Any]:
    """What the function returns holds ``value`` alone, in its shape and dtype."""

    def change(good: Any, *given: Any, **named: Any) -> Any:
        result = good(*given, **named)
        return result.masked_fill(torch.ones_like(result, dtype=torch.bool), value)

    return change

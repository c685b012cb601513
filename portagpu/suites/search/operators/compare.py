"""The first element of results that is not right, as the end of a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from portagpu.suites.search.operators.classes import growth, smallest, unit_roundoff
from portagpu.suites.search.operators.database import dtype_name

if TYPE_CHECKING:
    from portagpu.suites.search.operators.bounds import Reference
    from portagpu.suites.search.operators.calls import Result


def first_difference(
    got: list[Result], reference: Reference, terms: int, each: bool, names: list[str], values: bool
) -> str:
    """What is wrong first: "element 7 of the result is 3.5, not 3.25 (12 times the bound)".

    ``names`` are those of the results; one without a name is not compared. Without ``values``
    shapes and dtypes alone are compared.
    """
    right = reference.right
    if len(got) != len(right):
        return f"there are {len(got)} results, not {len(right)}"
    for number, (one, other) in enumerate(zip(got, right, strict=True)):
        name = names[number]
        found = _kind(one, other, reference.dtype, name)
        if not found and (reference.plain and (reference.gradient or not number)):
            found = _width(one, other, reference.dtype, name)
        if not found and values and name:
            found = _element(one, number, reference, terms, each, name)
        if found:
            return found
    return ""


def _kind(one: Result, other: Result, dtype: Any, name: str) -> str:
    import torch

    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        if one.shape != other.shape:
            return f"{name} has the shape {list(one.shape)}, not {list(other.shape)}"
        kinds = [
            (each.dtype.is_complex, each.dtype.is_floating_point or each.dtype.is_complex)
            for each in (one, other)
        ]
        whole = not kinds[0][1] and one.dtype != other.dtype
        if kinds[0] != kinds[1] or whole:
            return (
                f"{name} is {dtype_name(one.dtype)}, not {dtype_name(_narrow(other.dtype, dtype))}"
            )
        return ""
    if type(one) is not type(other):
        return f"{name} is {_shown(one)}, not {_shown(other)}"
    return f"{name} is {one}, not {other}" if isinstance(one, str) and one != other else ""


def _width(one: Result, other: Result, dtype: Any, name: str) -> str:
    """A floating-point result has the pair's width, or float64's where the call asks for it."""
    import torch

    if not (isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)):
        return ""
    narrow = _narrow(other.dtype, dtype)
    if one.dtype in (narrow, other.dtype):
        return ""
    return f"{name} is {dtype_name(one.dtype)}, not {dtype_name(narrow)}"


def _narrow(wide: Any, dtype: Any) -> Any:
    """The dtype that a widened one stands for in a pair: that of whole numbers is the default."""
    import torch

    if wide == torch.float64:
        if dtype.is_complex:
            return dtype.to_real()
        return dtype if dtype.is_floating_point else torch.get_default_dtype()
    if wide == torch.complex128:
        if dtype.is_complex:
            return dtype
        # there is no complex number of two bfloat16
        halves = (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)
        real = dtype.is_floating_point and dtype not in halves
        return dtype.to_complex() if real else torch.complex64
    return wide


def _shown(value: Any) -> str:
    import torch

    if isinstance(value, torch.Tensor):
        return f"a tensor of {list(value.shape)}"
    return "nothing" if value is None else f"{value!r}"


def _element(
    one: Result, number: int, reference: Reference, terms: int, each: bool, name: str
) -> str:
    """The worst element of one result, where it is wrong."""
    import torch

    other = reference.right[number]
    if other is None or isinstance(other, str):
        return ""
    one, other = torch.as_tensor(one), torch.as_tensor(other)
    if not one.numel():
        return ""
    if not (other.is_floating_point() or other.is_complex()):
        whole = not (reference.dtype.is_floating_point or reference.dtype.is_complex)
        return _whole(one, other, None if whole else reference.changes, number, name)
    wide = one.to(other.dtype)
    same = (wide == other) | (wide.isnan() & other.isnan())
    if bool(same.all()):
        return ""
    unit = max(reference.unit, unit_roundoff(one.dtype))
    near = (wide - other).abs() <= growth(terms, unit) * other.abs() + smallest(one.dtype)
    if bool((same | near).all()):
        return ""
    first = reference.bound(number, terms, each, one.dtype, signs=1)
    if bool((same | ((wide - other).abs() <= first) & first.isfinite()).all()):
        return ""
    bound = reference.bound(number, terms, each, one.dtype)
    off = (wide - other).abs().double()
    largest = torch.finfo(one.dtype).max
    # what may round beyond the largest number may be infinite, or the difference of two such
    over = other.abs() + bound >= largest
    if not each:
        # a bound of the first order says nothing of a result that has no right digit
        over = over | (bound >= other.abs().nan_to_num(0.0, 0.0).max())
    over = over & ~wide.isfinite()
    right = same | (off <= bound) | over | ~bound.isfinite().expand(off.shape)
    if bool(right.all()):
        return ""
    worst = torch.where(right, 0.0, torch.where(off.isnan(), torch.inf, off / bound))
    place = int(worst.flatten().argmax())
    times, limit = float(worst.flatten()[place]), float(bound.expand(off.shape).flatten()[place])
    return _sentence(one, other, place, name, _times(times, limit))


def _times(times: float, limit: float) -> str:
    if not limit:
        return "has to be equal"
    return f"{times:.3g} times the bound" if times < float("inf") else f"the bound is {limit:.3g}"


def _whole(one: Any, other: Any, changes: Any, number: int, name: str) -> str:
    """The first whole number that is another one, and is no matter of the inputs' roundings."""
    wrong = one != other
    if not bool(wrong.any()):
        return ""
    if changes is not None:
        wrong = wrong & (changes(number) == 0)
        if not bool(wrong.any()):
            return ""
    return _sentence(one, other, int(wrong.flatten().int().argmax()), name, "has to be equal")


def _sentence(one: Any, other: Any, place: int, name: str, how: str) -> str:
    got, right = one.flatten()[place].item(), other.flatten()[place].item()
    where = f"element {place} of {name}" if one.dim() else name
    if isinstance(right, (float, complex)):
        return f"{where} is {got:.6g}, not {right:.6g} ({how})"
    return f"{where} is {got}, not {right} ({how})"


def equal_results(one: Any, other: Any) -> bool:
    """Whether two results have the same dtypes and values."""
    return getattr(one, "dtype", None) == getattr(other, "dtype", None) and same_values(one, other)


def same_values(one: Any, other: Any) -> bool:
    """Whether two results have the same values; NaN is NaN."""
    import torch

    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        if one.shape != other.shape:
            return False
        if one.layout != torch.strided:
            one, other = one.to_dense(), other.to_dense()
        equal = (one == other) | ((one != one) & (other != other))
        return bool(equal.all())
    return bool(one == other) or (one != one and other != other)

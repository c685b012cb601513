"""The times and values of the events that Kineto writes, in columns.

``ts`` and ``dur`` are microseconds with up to three decimals, and become whole nanoseconds exactly:
a float64 is nearer than half a nanosecond to any such number below 2**43 (102 days), which Kineto's
own relative times are. From there on numbers are read as decimals.
"""

from __future__ import annotations

import re
from decimal import Decimal
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.text import excerpt
from portagpu.facts.captures.columns import FARTHEST_NS, text_of, whole
from portagpu.facts.captures.model import COPY_KINDS, import_library
from portagpu.facts.vendors import vendors

if TYPE_CHECKING:
    from collections.abc import Sequence

_EXACT_US: Final = 1 << 43
# c10/core/ScalarType.h: what torch calls each in Python, and its bytes
_DTYPES: Final = {
    "Byte": ("uint8", 1),
    "Char": ("int8", 1),
    "Short": ("int16", 2),
    "Int": ("int32", 4),
    "Long": ("int64", 8),
    "Half": ("float16", 2),
    "Float": ("float32", 4),
    "Double": ("float64", 8),
    "ComplexFloat": ("complex64", 8),
    "ComplexDouble": ("complex128", 16),
    "Bool": ("bool", 1),
    "BFloat16": ("bfloat16", 2),
    "Float8_e5m2": ("float8_e5m2", 1),
    "Float8_e4m3fn": ("float8_e4m3fn", 1),
    "Float8_e5m2fnuz": ("float8_e5m2fnuz", 1),
    "Float8_e4m3fnuz": ("float8_e4m3fnuz", 1),
}
# names that the process groups of torch (torch/csrc/distributed/c10d) give their operations
_OPERATIONS: Final = (
    (re.compile(r"all_?reduce"), "all_reduce"),
    (re.compile(r"all_?gather"), "all_gather"),
    (re.compile(r"reduce_?scatter"), "reduce_scatter"),
    (re.compile(r"all_?to_?all"), "all_to_all"),
)
_DIRECTION: Final = re.compile(r"\b(" + "|".join(COPY_KINDS) + r")\b")


NO_TIME: Final = -(1 << 62)


def are_exact(batch: Sequence[Any]) -> bool:
    """Whether no time is a float that may have lost nanoseconds."""
    return _all_exact([each.ts for each in batch]) and _all_exact([each.dur for each in batch])


def _all_exact(values: list[Any]) -> bool:
    kinds = set(map(type, values))
    if float not in kinds:
        return True
    if not kinds <= {int, float}:
        values = [each for each in values if type(each) is float]
    return bool(min(values) > -_EXACT_US and max(values) < _EXACT_US)


def all_nanoseconds(values: list[Any]) -> Any:
    """Microseconds as an array of nanoseconds; NO_TIME where a value is not a time."""
    np: Any = import_library("numpy")
    kinds = set(map(type, values))
    if kinds <= {int, float}:
        try:
            found = np.array(values)
        except (OverflowError, ValueError):
            found = np.array([], object)
        if found.dtype.kind == "f" and (np.abs(found) < _EXACT_US).all():
            below = np.floor(found)
            return below.astype(np.int64) * 1000 + np.rint((found - below) * 1000).astype(np.int64)
        if found.dtype.kind == "i" and (np.abs(found) < FARTHEST_NS // 1000).all():
            return found.astype(np.int64) * 1000
    exact = [nanoseconds(each) for each in values]
    return np.array([NO_TIME if each is None else each for each in exact], np.int64)


def nanoseconds(value: object) -> int | None:
    """One time in microseconds as nanoseconds; None where it is none or on no clock."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    try:
        number = Decimal(value)
        if not number.is_finite() or number.adjusted() > 18:
            return None
        nanoseconds = round(number.scaleb(3))
    except ArithmeticError:
        return None
    return nanoseconds if -FARTHEST_NS < nanoseconds < FARTHEST_NS else None


# --- values


def texts(values: list[Any]) -> list[Any]:
    if set(map(type, values)) <= {str, type(None)}:
        return values
    return [text_of(each) for each in values]


def any_stated(values: Sequence[Any]) -> bool:
    # comparing each with None takes longer than a look at the first, which mostly decides
    return bool(values) and (values[0] is not None or values.count(None) < len(values))


def or_else(stated: list[Any], events: list[Any], attribute: str, bits: int) -> list[Any]:
    """What is stated, and where nothing is, the whole number that the event itself has."""
    if None not in set(stated):
        return stated
    return [
        whole(getattr(event, attribute), bits) if each is None else each
        for each, event in zip(stated, events, strict=True)
    ]


def axes(name: str, values: Sequence[Any]) -> dict[str, Sequence[Any]]:
    names = [f"{name}_{axis}" for axis in "xyz"]
    if set(map(type, values)) == {tuple}:
        flat = list(chain.from_iterable(values))
        return {each: flat[at::3] for at, each in enumerate(names)}
    three = [each if type(each) is tuple else (None,) * 3 for each in values]
    return {each: [axes[at] for axes in three] for at, each in enumerate(names)}


def direction(stated: object, name: str | None) -> str | None:
    if isinstance(stated, str) and stated in COPY_KINDS:
        return stated
    found = _DIRECTION.search(name or "")
    return found[1] if found else None


def copy_name(name: str | None) -> str | None:
    """ "Memcpy HtoD (Pageable -> Device)" by its direction alone."""
    return name.partition(" (")[0] if name else name


def collective(args: list[Any]) -> dict[str, Sequence[Any]]:
    types = [_DTYPES.get(each.dtype) if isinstance(each.dtype, str) else None for each in args]
    return {
        "operation": [operation(each.operation) for each in args],
        "dtype": [
            dtype[0] if dtype else text_of(each.dtype)
            for each, dtype in zip(args, types, strict=True)
        ],
        "bytes": [_held_bytes(each, dtype) for each, dtype in zip(args, types, strict=True)],
        "group": texts([each.group for each in args]),
        "group_size": [each.group_size for each in args],
        "sequence": [each.sequence for each in args],
    }


def operation(name: object) -> str | None:
    if not isinstance(name, str):
        return None
    for pattern, operation in _OPERATIONS:
        if pattern.search(name):
            return operation
    return name.lstrip("_")


def _held_bytes(args: Any, dtype: tuple[str, int] | None) -> int | None:
    """What one rank holds: the output of all_gather, the input of reduce_scatter."""
    counts = [each for each in (whole(args.sent), whole(args.received)) if each is not None]
    return max(counts) * dtype[1] if counts and dtype else None


def vendor(name: str, head: dict[str, Any]) -> str:
    """Whose device it is, by the maker in its name or the runtime that torch was built for."""
    for vendor in vendors().values():
        if any(re.match(rf"{maker}\b", name.lower()) for maker in vendor.makers):
            return vendor.name
    for vendor in vendors().values():
        if vendor.torch_build and f"{vendor.torch_build}_runtime_version" in head:
            return vendor.name
    return ""


def word(value: object) -> str:
    return excerpt(str(value)) if isinstance(value, str | int | float) else ""

"""Values of several readings of one device as one: the first that is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any


def first_known(values: Sequence[Any]) -> Any:
    """The first known value; mappings and groups of values are merged key by key."""
    kind: Any = next((value for value in values if value is not None), None)
    if isinstance(kind, Mapping):
        joined: dict[Any, Any] = {}
        for value in values:
            for key, item in value.items():
                joined.setdefault(key, item)
        return joined
    if not is_dataclass(kind) or isinstance(kind, type) or len(values) == 1:
        return kind
    names = [field.name for field in fields(kind)]
    return replace(
        kind, **{name: first_known([getattr(v, name) for v in values]) for name in names}
    )

"""Records of AMD SMI: what JSON, text or CSV says of one GPU, a tree of lower-case keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from portagpu.facts.formats import stated
from portagpu_rocm.formats._amd import scalar_text

Record = Mapping[str, object]


def merge(records: Iterable[Record]) -> list[dict[str, object]]:
    """One record a GPU, of which a later one's values count; sections are joined."""
    found: dict[str, dict[str, object]] = {}
    for record in records:
        name = scalar_text(record.get("gpu")) or scalar_text(record.get("gpu_id"))
        if name is None:
            continue
        merged = found.setdefault(name, {"gpu": name})
        for key, value in record.items():
            old = merged.get(key)
            if isinstance(old, dict) and isinstance(value, Mapping):
                old.update(value)
            elif has_value(value) or key not in merged:
                merged[key] = dict(value) if isinstance(value, Mapping) else value
    return list(found.values())


def has_value(value: object) -> bool:
    """Whether ``value`` is anything but one of the tool's ways to say that it has none."""
    return value is not None and (not isinstance(value, str) or stated(value) is not None)


def inner(record: Record, section: str, key: str) -> object:
    inner = record.get(section)
    return inner.get(key) if isinstance(inner, Mapping) else None


def field(record: Record, section: str, key: str) -> object:
    """The value in its section or, as CSV has it, without one."""
    return inner(record, section, key) if section in record else record.get(key)

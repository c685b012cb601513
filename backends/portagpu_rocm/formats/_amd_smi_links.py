"""The links between GPUs that ``amd-smi topology`` and ``amd-smi xgmi`` state.

``numa_bw`` and ``bandwidth`` are "<least>-<most>" in MB/s of 10^6 bytes, as the KFD counts them
(``amdsmi_minmax_bandwidth_get``; "0-0" and "N/A" are not stated). ``bit_rate`` is of one lane and
``max_bandwidth`` of one link, both in Gb/s; a maximum of the type (65535, 4294967295) is AMD SMI's
way before ROCm 7.12 to say that there is no xGMI link.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from portagpu.facts.formats import pci_address
from portagpu.facts.readings import End, Link, Node
from portagpu_rocm.formats._amd import count, measure, scalar_text

if TYPE_CHECKING:
    from portagpu_rocm.formats._amd_smi_records import Record

Facts = dict[str, object]

KINDS: Final = {"XGMI": "xgmi", "PCIE": "pcie"}
_UP: Final = {"U": True, "UP": True, "D": False, "DOWN": False, "X": False, "DISABLED": False}
_ACCESS: Final = {"ENABLED": True, "DISABLED": False, "TRUE": True, "FALSE": False}
_WORDS: Final = ("link_type", "status", "link_status")
_EXTRA: Final = ("coherent", "atomics", "dma", "bi_dir", "read", "write")
# keys of ``topology --json`` before ROCm 6.2, and what they are called since
_OLD_KEYS: Final = {
    "link_accessibility": "link_status",
    "weight": "weight",
    "hops": "num_hops",
    "link_type": "link_type",
    "numa_bandwidth": "bandwidth",
}


@dataclass(slots=True)
class _Ends:
    """The GPUs that records name, each time by number, by address or by both."""

    by_key: dict[str, End] = field(default_factory=dict)
    keys: dict[tuple[str | None, str | None], str | None] = field(default_factory=dict)

    def key(self, entry: Record) -> str | None:
        """The key of the GPU that ``entry`` names; None where it names none."""
        named = (scalar_text(entry.get("gpu")), scalar_text(entry.get("bdf")))
        if named not in self.keys:
            self.keys[named] = self._add(count(named[0]), pci_address(named[1]))
        return self.keys[named]

    def _add(self, index: int | None, pci: str | None) -> str | None:
        if index is None and pci is None:
            return None
        key = f"GPU{index}" if index is not None else f"{pci}"
        old = self.by_key.get(key)
        if old is None or old.pci is None:
            self.by_key[key] = End(Node.GPU, key, pci, index)
        return key


def links(records: Iterable[Record], source: str) -> tuple[Link, ...]:
    """Every link of the records, one for each direction that is stated."""
    ends = _Ends()
    found: dict[tuple[str, str], Facts] = {}
    for record in records:
        start = ends.key(record)
        if start is None:
            continue
        for other, facts in _peers(record, ends):
            if other != start:
                found.setdefault((start, other), {}).update(facts)
    named = ends.by_key
    made = (_link(named[a], named[b], facts, source) for (a, b), facts in found.items())
    return tuple(link for link in made if link is not None)


def _peers(record: Record, ends: _Ends) -> Iterable[tuple[str, Facts]]:
    metrics = record.get("link_metrics")
    shared: Facts = {}
    if isinstance(metrics, Mapping):
        shared = {key: metrics.get(key) for key in ("bit_rate", "max_bandwidth", "link_type")}
    for source, common in ((record, {}), (metrics, shared)):
        entries = source.get("links") if isinstance(source, Mapping) else None
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, dict) and (key := ends.key(entry)) is not None:
                facts = common | entry
                yield key, {name: facts[name] for name in facts if scalar_text(facts[name])}
    for old, new in _OLD_KEYS.items():
        column = record.get(old)
        for name, value in column.items() if isinstance(column, Mapping) else ():
            match = re.fullmatch(r"gpu_(\d{1,6})", name)
            if match is not None and scalar_text(value) is not None:
                key = ends.key({"gpu": match.group(1)})
                if key is not None:
                    yield key, {new: value}


def _link(a: End, b: End, facts: Facts, source: str) -> Link | None:
    words = {key: (scalar_text(facts.get(key)) or "").upper() for key in _WORDS}
    if not facts.keys() - {"gpu", "bdf"} or words["link_type"] == "SELF":
        return None
    rate, whole = measure(facts.get("bit_rate")), measure(facts.get("max_bandwidth"))
    return Link(
        source=source,
        a=a,
        b=b,
        kind=KINDS.get(words["link_type"], "unknown"),
        width=round(whole / rate) if rate and whole else None,
        speed_gbit_s=rate,
        bandwidth_bytes_s=most_bandwidth(scalar_text(facts.get("bandwidth")))
        or (whole * 1e9 / 8 if whole else None),
        weight=count(facts.get("weight")),
        hops=count(facts.get("num_hops")),
        up=_UP.get(words["status"]),
        peer_access=_ACCESS.get(words["link_status"]),
        extra={key: f"{scalar_text(facts[key])}" for key in _EXTRA if key in facts},
    )


def most_bandwidth(text: str | None) -> float | None:
    """Bytes a second of the most in "50000-100000" MB/s; None for 0, which is not stated."""
    match = re.fullmatch(r"\d{1,12}-(\d{1,12})", text or "")
    return int(match.group(1)) * 1e6 or None if match is not None else None

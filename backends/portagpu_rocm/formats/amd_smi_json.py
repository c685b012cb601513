"""Reads ``amd-smi list|static|metric|monitor|topology|xgmi|partition|process|... --json``.

ROCm 5.7 to 6.3 write a list of records, ROCm 6.4 and later a mapping that holds such lists
("gpu_data", "current_partition"); ROCm 6.0 has "10 W" where later ones have a value and its unit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from portagpu.facts.formats import within_device_limit
from portagpu.facts.formats.json_xml import json_documents, json_start
from portagpu.facts.readings import Findings, FormatError
from portagpu_rocm.formats._amd import first_stated, scalar_text
from portagpu_rocm.formats._amd_smi import (
    OF_PROCESSES,
    Record,
    driver_version,
    links,
    merge,
    reading,
)

KIND: Final = "amd-smi --json"

_HEAD: Final = 4096
# a record, or a mapping whose first value is a list of records; not a tree of "children"
_FIRST_KEY: Final = re.compile(
    r'[\s\[{]*(?:"[a-z_]{1,40}"\s*:[\s\[]*\{\s*)?'
    r'"(?:gpu"(?!\s*:\s*\{\s*"children")|gpu_id"|tool"\s*:\s*"amdsmi|timestamp"\s*:\s*\d{1,20}\s*,\s*"gpu")'
)
_VERSIONS: Final = (
    ("rocm_version", "rocm"),
    ("amdsmi_library_version", "amdsmi"),
    ("amdgpu_version", "amdgpu"),
)
_PARTITIONS: Final = ("current_partition", "memory_partition")


def matches(text: str) -> bool:
    """Whether ``text`` begins like AMD SMI's JSON."""
    start = json_start(text[:_HEAD])
    if start is None:
        return False
    head = text[start : start + _HEAD].lower()
    return _FIRST_KEY.match(head) is not None


def parse(text: str) -> Findings:
    """What the records say; raises FormatError where there is no record."""
    documents, broken = json_documents(text)
    records = [record for document in documents for record in _records(document)]
    versions = _versions(documents)
    merged = merge(records)
    if not merged and not versions:
        raise FormatError("this JSON has no record of a GPU")
    driver = first_stated(*(driver_version(record) for record in merged))
    if driver is not None:
        versions["amdgpu"] = driver
    return Findings(
        kind=KIND,
        readings=within_device_limit((reading(record, KIND) for record in merged), KIND),
        links=links(records, KIND),
        versions=versions,
        problems=("the JSON breaks off; what comes before is read",) if broken else (),
        breaks_off=broken,
        complete=not broken if any(each.keys() - OF_PROCESSES for each in merged) else None,
    )


def _records(document: object) -> Iterator[Record]:
    """Records of GPUs in a document, those of partitions as the section of that name."""
    if isinstance(document, Mapping):
        if "gpu" in document:
            yield document
        for name, listed in document.items():
            for entry in _entries(listed):
                gpu = entry.get("gpu", entry.get("gpu_id"))
                yield {"gpu": gpu, "partition": entry} if name in _PARTITIONS else entry
    else:
        yield from _entries(document)


def _entries(value: object) -> Iterator[Record]:
    """Objects of a list and, as ``xgmi`` since ROCm 6.4 has them, of the lists in it."""
    for entry in value if isinstance(value, list) else ():
        for inner in entry if isinstance(entry, list) else [entry]:
            if isinstance(inner, Mapping):
                yield inner


def _versions(documents: list[object]) -> dict[str, str]:
    found: dict[str, str] = {}
    for document in documents:
        for entry in document if isinstance(document, list) else [document]:
            if isinstance(entry, Mapping):
                stated = ((name, scalar_text(entry.get(key))) for key, name in _VERSIONS)
                found |= {name: version for name, version in stated if version is not None}
    return found

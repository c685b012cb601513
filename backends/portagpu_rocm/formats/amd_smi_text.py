"""Reads what ``amd-smi`` prints for people, and its CSV.

``list``, ``static``, ``metric``, ``process``, ``firmware`` and ``bad-pages`` print sections that
are YAML with the quotes taken away and keys in upper case; ``monitor``, ``topology``, ``xgmi``,
``partition`` and ``amd-smi`` alone print tables (``_amd_smi_tables.py``).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Final

from portagpu.facts.formats import Shape, stated, within_device_limit
from portagpu.facts.readings import Findings, FormatError
from portagpu_rocm.formats._amd import first_stated, without_colours
from portagpu_rocm.formats._amd_smi import driver_version, reading
from portagpu_rocm.formats._amd_smi_links import links
from portagpu_rocm.formats._amd_smi_records import merge
from portagpu_rocm.formats._amd_smi_tables import BEGINS, Rows, is_title, table_records

KIND: Final = "amd-smi"

_HEAD: Final = 4096
_SECTION: Final = re.compile(r"(GPU|CPU|CORE): *(\d{1,6})")
_ENTRY: Final = re.compile(r"( *)([A-Z][A-Z0-9_#./ -]{0,63}?) *:(?:\s+(.*))?")
_CSV_HEADER: Final = re.compile(r"(?:timestamp,)?gpu,[a-z][a-z0-9_,#]*")
_VERSION: Final = re.compile(
    r"AMDSMI Tool: \S+ \| AMDSMI Library version: (?P<amdsmi>\S+) \| ROCm version: (?P<rocm>\S+)"
    r"(?: \| amdgpu version: (?P<amdgpu>\S+))?"
)
_SUMMARY: Final = re.compile(
    r"\| AMD-SMI +(?P<amdsmi>\S+) +amdgpu version: +(?P<amdgpu>\S+) +"
    r"ROCm version: +(?P<rocm>\S+) *\|"
)
_OF_PROCESSES: Final = frozenset({"gpu", "process_list"})
SHAPES: Final = (
    Shape(
        r"(?:GPU|CPU): *\d{1,6} *\n|(?:timestamp,)?gpu,[a-z]|AMDSMI Tool: \S|\| AMD-SMI +\S|"
        + BEGINS,
        re.compile(
            r"\s+\S|(?:GPU|CPU|CORE): *\d|(?:timestamp,)?gpu,|[\d,]|GPU\d|GPU[ _]|AMDSMI "
            r"|\|(?! NVIDIA-SMI )|\+"
            rf"|[0-9a-fA-F]{{4,8}}:[0-9a-fA-F]{{2}}:|Legends?:|bdf |N/A|\* |(?:{BEGINS})"
        ),
    ),
)


def matches(text: str) -> bool:
    """Whether one of the first lines of ``text`` is one that AMD SMI begins with."""
    return any(
        _SECTION.fullmatch(line.rstrip()) is not None
        or _CSV_HEADER.fullmatch(line.rstrip()) is not None
        or _VERSION.match(line) is not None
        or _SUMMARY.match(line) is not None
        or is_title(line)
        for line in without_colours(text[:_HEAD]).splitlines()
    )


def parse(text: str) -> Findings:
    """What the sections and tables say; raises FormatError where there is none."""
    lines = without_colours(text).splitlines()
    sections = _sections(lines)
    records = [*sections, *table_records(Rows(lines)), *_csv_records(lines)]
    versions = _versions(lines)
    merged = merge(records)
    if not merged and not versions:
        raise FormatError("this text has no section and no table of AMD SMI")
    driver = first_stated(*(driver_version(record) for record in merged))
    broken = tuple(_break_off_problems(lines, sections))
    return Findings(
        kind=KIND,
        readings=within_device_limit((reading(record, KIND) for record in merged), KIND),
        links=links(records, KIND),
        versions=versions | ({"amdgpu": driver} if driver is not None else {}),
        problems=broken,
        # a table of processes is of those GPUs that have some
        breaks_off=bool(broken)
        or (bool(merged) and all(record.keys() == _OF_PROCESSES for record in merged)),
    )


def _break_off_problems(lines: list[str], sections: list[dict[str, object]]) -> Iterator[str]:
    """Problems if the text breaks off; a list of sections has no end mark."""
    last = next((line for line in reversed(lines) if line.strip()), "")
    if any(map(_SUMMARY.match, lines)) and not last.startswith("+"):
        yield "the table breaks off: its last border is not in it"
    for above, line in pairwise(lines):
        if _CSV_HEADER.fullmatch(above.rstrip()) and 0 < line.count(",") < above.count(","):
            yield "the text breaks off: a line has fewer values than there are columns"
    if len(sections) > 1 and _paths(sections[-1]) < _paths(sections[0]):
        yield "the text breaks off: the last GPU has less to say than the first"


def _paths(record: Mapping[str, object]) -> frozenset[str]:
    return frozenset(
        f"{key}/{inner}"
        for key, value in record.items()
        for inner in (value if isinstance(value, Mapping) else ("",))
    )


def _versions(lines: list[str]) -> dict[str, str]:
    for line in lines:
        match = _VERSION.match(line) or _SUMMARY.match(line)
        if match is not None:
            return {
                name: value
                for name, value in match.groupdict().items()
                if stated(value) is not None and value != "Linuxver"
            }
    return {}


def _sections(lines: list[str]) -> list[dict[str, object]]:
    """Sections "GPU: 0" as records: a key with nothing behind it holds the deeper ones."""
    records: list[dict[str, object]] = []
    stack: list[tuple[int, dict[str, object]]] = []
    continued: tuple[dict[str, object], str, list[str]] | None = None
    for line in lines:
        if continued is not None:
            owner, key, parts = continued
            parts.append(line.strip())
            if "]" in line or not line.strip():
                owner[key] = " ".join(parts)
                continued = None
            continue
        section = _SECTION.fullmatch(line.rstrip())
        if section is not None:
            record: dict[str, object] = {section.group(1).lower(): section.group(2)}
            records.append(record)
            stack = [(0, record)]
            continue
        entry = _ENTRY.fullmatch(line.rstrip())
        if entry is None or not stack or not entry.group(1):
            # a title or a table ends the section; a line that is cut does not
            stack = [] if entry is not None or is_title(line) else stack
            continue
        indent, key, value = len(entry.group(1)), entry.group(2).lower(), entry.group(3)
        while len(stack) > 1 and stack[-1][0] >= indent:
            stack.pop()
        owner = stack[-1][1]
        if not value:
            inner: dict[str, object] = {}
            _add_value(owner, key, inner)
            stack.append((indent, inner))
        elif value.startswith("[") and "]" not in value:
            continued = (owner, key, [value])
        else:
            _add_value(owner, key, value)
    return [record for record in records if "gpu" in record]


def _add_value(owner: dict[str, object], key: str, value: object) -> None:
    """Store ``value``; the second of a key makes a list, as processes and pages are listed."""
    old = owner.get(key)
    if isinstance(old, list):
        old.append(value)
    else:
        owner[key] = value if old is None else [old, value]


def _csv_records(lines: list[str]) -> list[dict[str, object]]:
    """Rows under a header that begins with "gpu"; rows of processes are counted a GPU."""
    records: list[dict[str, object]] = []
    processes: dict[str, list[object]] = {}
    header: list[str] | None = None
    for line in lines:
        if _CSV_HEADER.fullmatch(line.rstrip()) is not None:
            header = line.rstrip().split(",")
            continue
        cells = _cells(line) if header is not None and line.strip() else []
        if header is None or len(cells) != len(header):
            header = header if not line.strip() else None
            continue
        row: dict[str, object] = dict(zip(header, cells, strict=True))
        if "pid" in row or "process_info" in row:
            info: object = {"pid": row["pid"]} if "pid" in row else row["process_info"]
            processes.setdefault(f"{row['gpu']}", []).append(info)
        else:
            records.append(row)
    for gpu, listed in processes.items():
        records.append({"gpu": gpu, "process_list": listed})
    return records


def _cells(line: str) -> list[str]:
    try:
        return next(csv.reader([line]), [])
    except csv.Error:
        return []

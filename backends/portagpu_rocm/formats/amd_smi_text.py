"""Reads what ``amd-smi`` prints for people, and its CSV.

``list``, ``static``, ``metric``, ``process``, ``firmware`` and ``bad-pages`` print sections that
are YAML with the quotes taken away and keys in upper case; ``monitor``, ``topology``, ``xgmi``,
``partition`` and ``amd-smi`` alone print tables, which become records with the keys of the JSON.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from portagpu.base.text import excerpt
from portagpu.facts.formats import Shape, integer, pci_address, stated, within_device_limit
from portagpu.facts.readings import Findings, FormatError
from portagpu_rocm.formats._amd import first_stated, without_colours
from portagpu_rocm.formats._amd_smi import OF_PROCESSES, driver_version, links, merge, reading

if TYPE_CHECKING:
    from collections.abc import Iterator

    from portagpu_rocm.formats._amd_smi import Record


# columns of ``amd-smi monitor`` of ROCm 6.0 to 7.14, and the keys of its JSON
_MONITOR: Final = {
    "GPU": "gpu",
    "POWER": "power_usage",
    "PWR_CAP": "power_cap",
    "GPU_TEMP": "hotspot_temperature",
    "GPU_T": "hotspot_temperature",
    "MEM_TEMP": "memory_temperature",
    "MEM_T": "memory_temperature",
    "GFX_UTIL": "gfx",
    "GFX%": "gfx",
    "GFX_CLOCK": "gfx_clock",
    "GFX_CLK": "gfx_clock",
    "MEM_CLOCK": "mem_clock",
    "SINGLE_ECC": "single_bit_ecc",
    "DOUBLE_ECC": "double_bit_ecc",
    "PCIE_REPLAY": "pcie_replay",
    "VRAM_USED": "vram_used",
    "VRAM_TOTAL": "vram_total",
    "VRAM_USAGE": "vram_usage",
    "PVIOL": "ppt_violation_activity",
    "TVIOL": "socket_thermal_violation_activity",
    "PHOT_TVIOL": "prochot_violation_activity",
    "VR_TVIOL": "vr_thermal_violation_activity",
    "HBM_TVIOL": "hbm_thermal_violation_activity",
}
_MATRICES: Final = {
    "ACCESS TABLE": "link_status",
    "WEIGHT TABLE": "weight",
    "HOPS TABLE": "num_hops",
    "LINK TYPE TABLE": "link_type",
    "NUMA BW TABLE": "bandwidth",
    "CACHE COHERANCY TABLE": "coherent",
    "CACHE COHERENCY TABLE": "coherent",
    "ATOMICS TABLE": "atomics",
    "DMA TABLE": "dma",
    "BI-DIRECTIONAL TABLE": "bi_dir",
}
_METRICS, _STATUS, _PORTS = "LINK METRIC TABLE", "XGMI LINK STATUS", "GPU LINK PORT STATUS"
_CURRENT, _CURRENT_MEMORY = "CURRENT_PARTITION", "MEMORY_PARTITION"
_PROCESSES: Final = "PROCESS INFO"
# what partitions a GPU could have: nothing of it is the state of one
_PROFILES: Final = frozenset({"ACCELERATOR_PARTITION_PROFILES", "ACCELERATOR_PARTITION_RESOURCES"})
_TITLES: Final = frozenset(
    {*_MATRICES, _METRICS, _STATUS, _PORTS, _CURRENT, _CURRENT_MEMORY, _PROCESSES, *_PROFILES}
)
BEGINS: Final = (
    rf"(?:{'|'.join(sorted(map(re.escape, _TITLES)))}):? *\n"
    r"|(?:TIMESTAMP +)?GPU(?: +XCP)?(?: +(?:POWER|PWR_CAP|(?:GPU|MEM)_T(?:EMP)?|GFX_UTIL|GFX%|"
    r"GFX_CLO?C?K|VRAM_\w{1,10}|\w{1,12}_ECC|PCIE_REPLAY|\w{1,8}VIOL))+(?: |\n)"
)
"""Of a line with which a table begins."""
_MONITOR_HEADER: Final = re.compile(r"(?:TIMESTAMP +)?GPU(?: +[A-Z][A-Z_%]*)+")
_METRIC_ROW: Final = re.compile(
    r"(GPU\d{1,6})\s+(\S+)\s+(N/A|\d+(?:\.\d+)? Gb/s)\s*(N/A|\d+(?:\.\d+)? Gb/s)\s*(\S+)?"
)
# ``amd-smi`` alone: two rows a GPU, address, name and power above number, partition and memory
_WIDTH: Final = 120
_SUMMARY_ROW: Final = re.compile(
    r"\| *([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) +(\S.*?) *\| *(N/A|\d+ %) +(\S+(?: °C)?) +"
    r"(\S+) +(N/A|[^\s/]+)(?:/(\S+))?(?: W)? *\|"
)
_LIKE_A_SUMMARY_ROW: Final = re.compile(r"\| *[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] ")
_SUMMARY_NEXT: Final = re.compile(
    r"\| *(\d{1,6}) +\S+ +\S+ +(?:([A-Z]{3})/(NPS\d)|N/A) *\| *(N/A|\d+ %) .*?"
    r"(?:(\d+)/(\d+) MB|N/A) *\|"
)


@dataclass(slots=True)
class Rows:
    """Lines that are taken one after another."""

    lines: list[str]
    position: int = 0

    def take(self) -> str | None:
        """The next line without blanks at its end; None after the last."""
        if self.position >= len(self.lines):
            return None
        self.position += 1
        return self.lines[self.position - 1].rstrip()

    def until_blank(self) -> Iterator[str]:
        """The lines up to a blank one or the next title, which stays."""
        while self.position < len(self.lines):
            line = self.lines[self.position].rstrip()
            if not line.strip() or is_title(line):
                return
            self.position += 1
            yield line


def is_title(line: str) -> bool:
    """Whether ``line`` is a table's title or the header of ``monitor``, which has no title."""
    bare = line.strip()
    return bare.removesuffix(":") in _TITLES or _is_monitor(bare)


def _is_monitor(line: str) -> bool:
    return _MONITOR_HEADER.fullmatch(line) is not None and len(_MONITOR.keys() & line.split()) > 1


def table_records(rows: Rows) -> Iterator[Record]:
    """The records of every table; other lines are passed over."""
    while (line := rows.take()) is not None:
        title = line.strip().removesuffix(":")
        if title in _MATRICES:
            yield from _matrix(rows, _MATRICES[title])
        elif title == _STATUS:
            yield from _status(rows)
        elif title == _PORTS:
            yield from _ports(rows)
        elif title == _METRICS:
            yield from _metrics(rows)
        elif title in (_CURRENT, _CURRENT_MEMORY):
            yield from _partitions(rows)
        elif title == _PROCESSES:
            yield from _processes(rows)
        elif _is_monitor(title):
            yield from _monitor(rows, title.split())
        elif (match := _SUMMARY_ROW.match(line[:_WIDTH])) is not None:
            yield from _summary(rows, match)


def _entry(name: str, index: int) -> dict[str, object]:
    """A GPU that a row or column names by its address or as "GPU3"."""
    match = re.fullmatch(r"GPU(\d{1,6})", name)
    if match is not None:
        return {"gpu": match.group(1)}
    return {"gpu": str(index), "bdf": name}


def _matrix(rows: Rows, key: str) -> Iterator[Record]:
    columns: list[dict[str, object]] | None = None
    index = 0
    for line in rows.until_blank():
        cells = line.split()
        if columns is None:
            columns = [_entry(name, number) for number, name in enumerate(cells)]
        elif len(cells) == len(columns) + 1:
            links = [end | {key: cell} for end, cell in zip(columns, cells[1:], strict=True)]
            yield _entry(cells[0], index) | {"links": links}
            index += 1


def _status(rows: Rows) -> Iterator[Record]:
    """Link states by peer; ROCm 6.4 and 7.0 print states by port under the same title.

    Where every link is down, a guest may not see their states (AMD SMI's changelog, mVF).
    """
    columns = (next(rows.until_blank(), "")).split()[1:]
    table = [line.split() for line in rows.until_blank()]
    seen = any("U" in cells[2:] for cells in table)
    for cells in table:
        if len(cells) < 3 or pci_address(cells[1]) is None:
            continue
        record = _entry(cells[0], 0) | {"bdf": cells[1]}
        if len(columns) == len(cells) - 2 and columns[0].startswith("GPU"):
            record["links"] = [
                _entry(name, 0) | {"status": cell} | ({"link_type": "XGMI"} if cell != "X" else {})
                for name, cell in zip(columns, cells[2:], strict=True)
                if cell in {"U", "X"} or (cell == "D" and seen)
            ]
        elif set(cells[2:]) <= {"U", "D", "X"}:
            record["xgmi_ports"] = " ".join(cells[2:])
        yield record


def _ports(rows: Rows) -> Iterator[Record]:
    for line in rows.until_blank():
        cells = line.split()
        if len(cells) > 2 and pci_address(cells[1]) is not None:
            ports = [cell for cell in cells[2:] if cell in {"U", "D", "X"}]
            yield _entry(cells[0], 0) | {"bdf": cells[1], "xgmi_ports": " ".join(ports)}


def _metrics(rows: Rows) -> Iterator[Record]:
    columns: list[str] = []
    found: list[dict[str, object]] = []
    links: list[dict[str, object]] = []
    for line in rows.until_blank():
        match = _METRIC_ROW.match(line)
        cells = line.split()
        if match is not None:
            links = [_entry(name, number) for number, name in enumerate(columns)]
            kind = match.group(5) or "N/A"
            metrics = {"bit_rate": match.group(3), "max_bandwidth": match.group(4)}
            found.append(
                {"gpu": match.group(1).removeprefix("GPU"), "bdf": match.group(2)}
                | {"link_metrics": metrics | {"link_type": kind, "links": links}}
            )
        elif cells[0] == "bdf":
            columns = cells[4:]
        elif cells[0] in ("Read", "Write"):
            amounts = re.findall(r"N/A|\b\d{1,20} [KMGT]?B\b", line)
            for link, amount in zip(links, amounts, strict=False):
                link[cells[0].lower()] = amount
    yield from found


def _partitions(rows: Rows) -> Iterator[Record]:
    columns: list[str] = []
    for line in rows.until_blank():
        cells = line.split()
        if cells[0] == "GPU_ID":
            columns = [
                name.lower().replace("current_memory_partition", "current") for name in cells
            ]
        elif len(cells) == len(columns) and integer(cells[0]) is not None:
            values = dict(zip(columns, cells, strict=True))
            yield {"gpu": values.pop("gpu_id"), "partition": values}


def _processes(rows: Rows) -> Iterator[Record]:
    listed: dict[str, list[dict[str, object]]] = {}
    for line in rows.until_blank():
        cells = line.split()
        if integer(cells[0]) is not None and len(cells) > 2:
            pids = [cell for cell in cells[1:] if re.fullmatch(r"\d+|N/A", cell)]
            listed.setdefault(cells[0], []).append({"pid": pids[0] if pids else "N/A"})
    for gpu, processes in listed.items():
        yield {"gpu": gpu, "process_list": processes}


def _monitor(rows: Rows, columns: list[str]) -> Iterator[Record]:
    for line in rows.until_blank():
        cells: list[list[str]] = []
        for word in line.split():
            # a unit belongs to the number before it, as does the "/ 15.9" of a usage
            if cells and not re.match(r"[\d-]|N/A", word):
                cells[-1] += [" ", word]
            elif cells and cells[-1][-1].endswith("/"):
                cells[-1].append(word)
            else:
                cells.append([word])
        if len(cells) == len(columns):
            row = zip(columns, map("".join, cells), strict=True)
            yield {_MONITOR[name]: cell for name, cell in row if name in _MONITOR}


def _summary(rows: Rows, above: re.Match[str]) -> Iterator[Record]:
    below = _SUMMARY_NEXT.match((rows.take() or "")[:_WIDTH])
    if below is None:
        return
    address, name, _, temperature, uncorrected, power, limit = above.groups()
    gpu, compute, memory, graphics, used, total = below.groups()
    # a name that is too long has its beginning cut off
    known = name if not name.startswith("...") else None
    yield {
        "gpu": gpu,
        "bdf": address,
        "asic": {"market_name": known},
        "partition": {"compute_partition": compute, "memory_partition": memory},
        "hotspot_temperature": temperature,
        "double_bit_ecc": uncorrected,
        "power_usage": power,
        "power_cap": limit,
        "gfx": graphics,
        "vram_used": None if used is None else f"{used} MB",
        "vram_total": None if total is None else f"{total} MB",
    }


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
SHAPES: Final = (
    Shape(
        r"(?:GPU|CPU): *\d{1,6} *\n|(?:timestamp,)?gpu,[a-z]|AMDSMI Tool: \S|\| AMD-SMI +\S|"
        + BEGINS,
        re.compile(
            r"\s+\S|(?:GPU|CPU|CORE): *\d|(?:timestamp,)?gpu,|[\d,]|GPU\d|GPU[ _]|AMDSMI "
            r"|\|(?! NVIDIA-SMI )|\+"
            rf"|[0-9a-fA-F]{{4,8}}:[0-9a-fA-F]{{2}}:|Legends?:|bdf |N/A|\*[ *]|(?:{BEGINS})"
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
    if not merged and any(line.strip().removesuffix(":") in _PROFILES for line in lines):
        return Findings(kind=KIND, versions=versions)
    if not merged and not versions:
        raise FormatError("this text has no section and no table of AMD SMI")
    driver = first_stated(*(driver_version(record) for record in merged))
    broken = tuple(_break_off_problems(lines, sections))
    # a table of processes is of those GPUs that have some
    of_processes = bool(merged) and all(record.keys() == OF_PROCESSES for record in merged)
    return Findings(
        kind=KIND,
        readings=within_device_limit((reading(record, KIND) for record in merged), KIND),
        links=links(records, KIND),
        versions=versions | ({"amdgpu": driver} if driver is not None else {}),
        problems=broken,
        breaks_off=bool(broken) or of_processes,
        # the table of amd-smi alone has a border below; sections and other tables end with the text
        complete=None
        if of_processes or not merged
        else not broken and any(map(_SUMMARY.match, lines)),
    )


def _break_off_problems(lines: list[str], sections: list[dict[str, object]]) -> Iterator[str]:
    """Problems if the text breaks off; a list of sections has no end mark."""
    last = next((line for line in reversed(lines) if line.strip()), "")
    if any(map(_SUMMARY.match, lines)) and not last.startswith("+"):
        yield "the table breaks off: its last border is not in it"
    for above, line in pairwise([*lines, ""]):
        if _LIKE_A_SUMMARY_ROW.match(above) and not (
            _SUMMARY_ROW.match(above[:_WIDTH]) and _SUMMARY_NEXT.match(line[:_WIDTH])
        ):
            yield f"a row that looks like a GPU was not read: {excerpt(above)!r}"
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
    """Sections "GPU: 0" as records: a key with nothing after it holds the deeper ones."""
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

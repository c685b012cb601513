"""The tables of AMD SMI, as records with the keys that its JSON has."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from portagpu.facts.formats import integer, pci_address

if TYPE_CHECKING:
    from collections.abc import Iterator

    from portagpu_rocm.formats._amd_smi_records import Record

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
_TITLES: Final = frozenset(
    {*_MATRICES, _METRICS, _STATUS, _PORTS, _CURRENT, _CURRENT_MEMORY, _PROCESSES}
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
    r"(\S+) +(\S+)/(\S+) W *\|"
)
_SUMMARY_NEXT: Final = re.compile(
    r"\| *(\d{1,6}) +\S+ +\S+ +(?:([A-Z]{3})/(NPS\d)|N/A) *\| *(N/A|\d+ %) .*?(\d+)/(\d+) MB *\|"
)


@dataclass(slots=True)
class Rows:
    """Lines that are taken one after another."""

    lines: list[str]
    position: int = 0

    def take(self) -> str | None:
        """The next line without blanks at its end; None behind the last."""
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
    """Link states by peer; ROCm 6.4 and 7.0 print states by port under the same title."""
    columns = (next(rows.until_blank(), "")).split()[1:]
    for line in rows.until_blank():
        cells = line.split()
        if len(cells) < 3 or pci_address(cells[1]) is None:
            continue
        record = _entry(cells[0], 0) | {"bdf": cells[1]}
        if len(columns) == len(cells) - 2 and columns[0].startswith("GPU"):
            record["links"] = [
                _entry(name, 0) | {"status": cell}
                for name, cell in zip(columns, cells[2:], strict=True)
                if cell != "SELF"
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
        "vram_used": f"{used} MB",
        "vram_total": f"{total} MB",
    }

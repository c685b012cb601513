"""Reads what ``rocm-smi`` prints for people: the concise table and its sections.

Sections are "GPU[0] : key: value" lines under a title between "=" signs; ``--showtopo`` and
``--shownodesbw`` print matrices, ``--showrasinfo`` and ``--showpagesinfo`` a table a GPU. The
tables of ``rocm-smi`` alone and ``--showhw`` become cards with the keys of its JSON. Their columns
are at least two blanks apart. ROCm 5 has one row a GPU; 6.0 and 6.1 have the name in a second row,
cut after 20 characters; 6.2 has KFD node, device id and GUID instead.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from portagpu.facts.formats import Shape, integer, stated, within_device_limit
from portagpu.facts.readings import Findings, FormatError, Memory
from portagpu_rocm.formats._amd import without_colours
from portagpu_rocm.formats._rocm_smi import Pair, link, reading

if TYPE_CHECKING:
    from collections.abc import Iterator


_COLUMNS: Final = {
    "Node": "node id",
    "NODE": "node id",
    "DID": "device id",
    "GUID": "guid",
    "GFX VER": "gfx version",
    "VBIOS": "vbios version",
    "BUS": "pci bus",
    "PARTITION ID": "partition id",
    "AvgPwr": "average graphics package power (w)",
    "Power": "average graphics package power (w)",
    "PwrCap": "max graphics package power (w)",
    "SCLK": "sclk clock speed",
    "MCLK": "mclk clock speed",
    "VRAM%": "vram%",
    "GPU%": "gpu use (%)",
}
_PARTITIONS: Final = ("memory partition", "compute partition", "partition id")
_NAME_LENGTH: Final = 20
_SENSORS: Final = {"dieedge": "edge"}


# rows of which the head was cut: of ROCm 6.2 and later, and before that with temperature and power
_NEW_ROW: Final = r"\d{1,4} +\d{1,5} +(?:0x[0-9a-f]{4}|N/A), +(?:\d{1,6}|N/A) +\S{3,8} +"
_OLD_ROW: Final = (
    r"\d{1,4} +(?:\d{1,3}(?:\.\d)?\S{0,2}[cC]|N/A) +(?:\d{1,4}(?:\.\d{1,3})?W|N/A) +"
    r"(?:\d{1,5}Mhz|N/A) +(?:\d{1,5}Mhz|N/A) +"
)
_ROW: Final = re.compile(rf"\s*(?:{_NEW_ROW}|{_OLD_ROW})")
_HEAD_ROW: Final = r"(?:GPU +Temp +AvgPwr|Device +Node +IDs) "
_CELLS: Final = re.compile(r"\s{2,}")
_COMMON: Final = ("SCLK", "MCLK", "Fan", "Perf", "PwrCap", "VRAM%", "GPU%")
_NEW_HEAD: Final = ("Device", "Node", "IDs", "GUID", "Temp", "Power", "Partitions", *_COMMON)
_OLD_HEAD: Final = ("GPU", "Temp", "AvgPwr", *_COMMON)


def _columns_of(line: str) -> list[str]:
    """The columns of a row without its head; none where it has another number of cells."""
    if _ROW.match(line) is None:
        return []
    cells = _CELLS.split(line.strip())
    return next((list(each) for each in (_NEW_HEAD, _OLD_HEAD) if len(each) == len(cells)), [])


def concise_cards(lines: list[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Index and keys of each row; a second row of a GPU comes on its own."""
    columns: list[str] = []
    index: int | None = None
    sensor = "edge"
    for line in lines:
        cells = _CELLS.split(line.strip())
        if cells[0] in ("Device", "GPU") and len(cells) > 3:
            columns, index = cells, None
            if "IDs" in columns:
                columns.insert(columns.index("IDs") + 1, "GUID")
        elif not columns and index is None:
            columns = _columns_of(line)
            # of which sensor the temperature is, the head said
            sensor = "gpu" if columns else sensor
        if not columns:
            continue
        named = re.search(r"(?:Temp |\s)\((DieEdge|Edge|Junction|Memory|Hbm \d)\)", line[:200])
        if named is not None and index is None:
            sensor = _SENSORS.get(named.group(1).lower(), named.group(1).lower())
        if line.startswith("=") and index is not None:
            columns = []
        elif len(cells) == len(columns) and re.fullmatch(r"\d{1,6}", cells[0]):
            index = int(cells[0])
            yield index, _card(dict(zip(columns, cells, strict=True)), sensor)
        elif index is not None and len(cells) == 1 and 0 < len(cells[0]) < _NAME_LENGTH:
            yield index, {"card series": cells[0]}


def _card(row: dict[str, str], sensor: str) -> dict[str, str]:
    card = {_COLUMNS[name]: cell for name, cell in row.items() if name in _COLUMNS}
    model = re.match(r"\[(0x[0-9a-f]+) : ", row.get("[Model : Revision]", ""))
    if model is not None:
        card["card model"] = model.group(1)
    if "IDs" in row:
        card["device id"] = row["IDs"].rstrip(",")
    temperature = next((cell for name, cell in row.items() if name.startswith("Temp")), None)
    if temperature is not None:
        card[f"temperature (sensor {sensor}) (c)"] = temperature
    partitions = [part.strip() for part in row.get("Partitions", "").split(",")]
    return card | dict(zip(_PARTITIONS, partitions, strict=False))


KIND: Final = "rocm-smi"

_HEAD: Final = 4096
_BANNER: Final = "ROCm System Management Interface"
_ENTRY: Final = re.compile(r"GPU\[(\d{1,6})\]\s*: ?(.*)")
_NO_VALUE: Final = re.compile(
    r"GPU\[(\d{1,6})\]\s*: ?\w{1,60}, Not supported on the given system\s*$"
)
"""A GPU that is there, and of which the driver has no such value."""
_MATRICES: Final = {
    "weight between two gpus": "weight",
    "hops between two gpus": "hops",
    "link type between two gpus": "type",
    "link accessibility between two gpus": "access",
    "bandwidth": "bandwidth",
}
_END: Final = "End of ROCm SMI Log"

SHAPES: Final = (
    Shape(rf"=* *{_BANNER}|GPU\[\d{{1,6}}\]\s*:", re.compile(r"."), re.compile(_END)),
    Shape(
        f"{_NEW_ROW}|{_OLD_ROW}|{_HEAD_ROW}",
        re.compile(rf"{_ROW.pattern}|\s*(?:={{20,}}|{_HEAD_ROW}|\(DID,)"),
        weak=True,
        last=re.compile(r".*%\s*"),
    ),
)
_PROBLEM: Final = re.compile(
    # of a product that has no such value, or a GPU that sleeps
    r"(?:ERROR|WARNING): (?!.*(?:unsupported|[Nn]ot supported|NOT_SUPPORTED|not been implemented"
    r"|low-power state)).+"
)
_MAX_PROBLEMS: Final = 20


def matches(text: str) -> bool:
    """Whether ROCm SMI's banner or one of its sections stands in the first lines of ``text``."""
    head = without_colours(text[:_HEAD])
    if _BANNER in head or any(map(_columns_of, head.splitlines()[:8])):
        return True
    return re.search(r"^GPU\[\d+\]\s*:", head, re.MULTILINE) is not None


def parse(text: str) -> Findings:
    """What the sections and tables say; raises FormatError where there is none."""
    lines = without_colours(text).splitlines()
    cards: dict[int, dict[str, str]] = {}
    for index, card in concise_cards(lines):
        cards.setdefault(index, {}).update(card)
    for index, key, value in _entries(lines):
        cards.setdefault(index, {})[key] = value
    for entry in filter(None, map(_NO_VALUE.match, lines)):
        cards.setdefault(int(entry.group(1)), {})
    memory = _memory_tables(lines)
    pairs = _matrices(lines)
    versions = _versions(lines)
    for index in {index for pair in pairs for index in pair} | set(memory):
        cards.setdefault(index, {})
    # several outputs may follow one another, each between its banner and its end
    broken = sum(_BANNER in line for line in lines) > sum(_END in line for line in lines)
    problems = [line.strip() for line in lines if _PROBLEM.match(line)][:_MAX_PROBLEMS]
    if broken:
        problems.append(f"the text breaks off: {_END!r} is not in it")
    if not cards and not versions and not broken:
        raise FormatError("this text has no section and no table of ROCm SMI")
    return Findings(
        kind=KIND,
        readings=within_device_limit(
            (reading(index, cards[index], KIND, memory.get(index)) for index in sorted(cards)),
            KIND,
        ),
        links=tuple(link(pair, facts, KIND) for pair, facts in pairs.items()),
        versions=versions,
        problems=tuple(problems),
        breaks_off=broken,
        complete=any(_BANNER in line for line in lines) and not broken if cards or broken else None,
    )


def _entries(lines: list[str]) -> Iterator[tuple[int, str, str]]:
    for line in lines:
        match = _ENTRY.match(line)
        if match is None:
            continue
        key, separator, value = match.group(2).partition(": ")
        if separator and value.strip():
            yield int(match.group(1)), key.strip().rstrip(":").lower(), value.strip()


def _versions(lines: list[str]) -> dict[str, str]:
    for line in lines:
        name, _, value = line.partition(": ")
        if name.strip() == "Driver version" and (version := stated(value)) is not None:
            return {"amdgpu": version}
    return {}


def _matrices(lines: list[str]) -> dict[Pair, dict[str, str]]:
    found: dict[Pair, dict[str, str]] = {}
    name: str | None = None
    columns: list[int] = []
    for line in lines:
        if line.startswith("="):
            name, columns = _MATRICES.get(line.strip("= ").lower()), []
            continue
        cells = line.split()
        if name is None or not cells or not re.fullmatch(r"GPU\d{1,6}", cells[0]):
            continue
        if all(re.fullmatch(r"GPU\d{1,6}", cell) for cell in cells[1:]) and not columns:
            columns = [int(cell[3:]) for cell in cells]
        elif len(cells) == len(columns) + 1:
            row = int(cells[0][3:])
            for column, cell in zip(columns, cells[1:], strict=True):
                if column != row:
                    found.setdefault((row, column), {})[name] = cell
    return found


def _memory_tables(lines: list[str]) -> dict[int, Memory]:
    """Errors by block, and pages that are out of use, of each GPU."""
    blocks: dict[int, dict[str, tuple[int | None, int | None]]] = {}
    states: dict[int, dict[str, str]] = {}
    pages: dict[int, dict[str, int]] = {}
    index: int | None = None
    for line in lines:
        head = re.match(r"GPU\[(\d{1,6})\]:\s+(RAS|[A-Z]+ PAGES) INFO", line)
        if head is not None:
            index = int(head.group(1))
            (blocks if head.group(2) == "RAS" else pages).setdefault(index, {})
            continue
        if index is None or line.startswith(("=", "GPU[")):
            index = None
            continue
        cells = line.split()
        if index in blocks and 2 <= len(cells) <= 4 and re.fullmatch(r"[A-Z][A-Z0-9_]*", cells[0]):
            counts = [integer(cell) for cell in cells[2:]]
            states.setdefault(index, {})[cells[0]] = cells[1]
            if len(counts) == 2:
                blocks[index][cells[0]] = (counts[0], counts[1])
        elif index in pages and len(cells) == 3 and cells[0].startswith("0x"):
            pages[index][cells[2]] = pages[index].get(cells[2], 0) + 1
    return {
        index: Memory(
            ecc_enabled=_is_enabled(states.get(index, {}).get("UMC")),
            by_block=blocks.get(index, {}),
            retired_pages={
                name: number
                for name, number in pages.get(index, {}).items()
                if name.lower() != "pending"
            },
            pending=pages[index].get("pending", 0) > 0 if index in pages else None,
        )
        for index in {**blocks, **pages}
    }


def _is_enabled(state: str | None) -> bool | None:
    return {"ENABLED": True, "DISABLED": False}.get(state or "")

"""``nvidia-smi --query-... --format=csv``: one line of column names, one line an answer."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from portagpu.facts.formats import Shape, pci_address, stated, within_device_limit
from portagpu.facts.readings.model import Findings, FormatError, GpuState, Memory, Reading
from portagpu_cuda.formats._nvidia import (
    VENDOR,
    failures,
    lost_gpu,
    pick,
    reading,
    unmasked_uuid,
    version_texts,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Table = tuple[tuple[Reading, ...], list[str]]

KIND: Final = "nvidia-smi --query-gpu"
PROCESSES: Final = "nvidia-smi --query-compute-apps"
PAGES: Final = "nvidia-smi --query-retired-pages"

# columns that no other tool has, and those that a query may consist of beside them
_OWN: Final = re.compile(
    r"gpu_(?:name|bus_id|serial|uuid)|(?:driver|kmd|cuda_umd)_version|vbios_version|compute_cap|compute_mode|"
    r"(?:memory|utilization|temperature|clocks|power|pcie?|ecc|fan|mig|remapped_rows|retired_pages|"
    r"clocks_event_reasons|clocks_throttle_reasons)\.[\w.]{1,60}"
)
_PLAIN: Final = frozenset({"timestamp", "name", "index", "count", "uuid", "serial", "pstate"})
_NAME: Final = re.compile(r"[a-z][\w.]{1,80}")
_HEAD_LINES: Final = 40
"""Lines in which column names are looked for: notes may stand above them."""
_VALUES: Final = {
    "timestamp": re.compile(r"\d{4}/\d\d/\d\d .+"),
    "index": re.compile(r"\d{1,4}"),
    "count": re.compile(r"\d{1,4}"),
    "uuid": re.compile(r"(?:GPU|MIG)-\S+"),
    "gpu_uuid": re.compile(r"(?:GPU|MIG)-\S+"),
    "pstate": re.compile(r"P\d{1,2}"),
}
"""Forms of answers, for columns whose names occur in other files too."""
_ALONE: Final = re.compile(
    r"(?:NVIDIA|Tesla|Quadro|GeForce|TITAN|GRID|Graphics Device)\b.*|\S*\d.*|"
    r"(?:not )?active|enabled|disabled|yes|no|default|exclusive_process|prohibited",
    re.IGNORECASE,
)
"""Forms of an answer that is alone in its line."""
_LONGEST_UNIT: Final = 12
_COLUMN: Final = r"[a-z][\w.]{1,80}(?: \[[^\]\n,]{1,12}\])?"

CSV_SHAPE: Final = Shape(
    # a name that only this tool has, among names alone
    rf"(?=[^\n]{{0,4000}}?(?:^|, ?|\b)(?:{_OWN.pattern}))(?:{_COLUMN}, ?)+{_COLUMN} *\n"
    rf"|(?:index|uuid|name|gpu_uuid|pci\.bus_id|timestamp)(?:, ?{_COLUMN})+ *\n",
    re.compile(r"[^\n,]{0,200},|[Uu]nable to determine the device handle for "),
    last=re.compile(r".*,.*"),
)


def header(text: str) -> tuple[int, list[str]] | None:
    """(line number, column names) of the first line that names columns of this tool."""
    lines = text.splitlines()[: _HEAD_LINES + 1]
    for at, line in enumerate(lines[:_HEAD_LINES]):
        names = [_without_unit(name.strip()).lower() for name in line.split(",")]
        if not all(map(_NAME.fullmatch, names)):
            continue
        own = any(map(_OWN.fullmatch, names))
        if (own and len(names) > 1) or (
            (own or _PLAIN.issuperset(names)) and _is_answered(names, lines[at + 1 :])
        ):
            return at, names
    return None


def _without_unit(name: str) -> str:
    """ "memory.total [MiB]" as "memory.total"."""
    bare, bracket, unit = name.removesuffix("]").rpartition("[")
    if not bracket or not name.endswith("]") or len(unit) > _LONGEST_UNIT or "]" in unit:
        return name
    return bare.rstrip(" ")


def _is_answered(names: Sequence[str], below: Sequence[str]) -> bool:
    """Whether the first line below words that may be column names is an answer to them."""
    line = next((each for each in below if each.strip()), None)
    if line is None:
        return False
    if lost_gpu(line) is not None or line.strip().startswith(names[0] + ","):
        return True
    cells = [cell.strip() for cell in line.split(",")]
    return len(cells) == len(names) and all(
        _fits(name, cell, alone=len(names) == 1)
        for name, cell in zip(names, cells, strict=True)
        if stated(cell) is not None
    )


def _fits(name: str, cell: str, *, alone: bool) -> bool:
    form = _VALUES.get(name, _ALONE if alone else None)
    return form is None or form.fullmatch(cell) is not None


def is_csv(text: str) -> bool:
    """Whether a line of column names stands at the beginning of ``text``."""
    return header(text) is not None


def parse_csv(text: str) -> Findings:
    """What the lines say of each GPU; of the last sample where the tool was run in a loop.

    Raises FormatError without the line of column names: "noheader" leaves nothing to go by.
    """
    head = header(text)
    if head is None:
        raise FormatError(f"{KIND}: no line of column names; record without 'noheader'")
    at, names = head
    rows: list[dict[str, str]] = []
    gone: list[tuple[Reading, str]] = []
    problems: list[str] = []
    short = False
    for line in text.splitlines()[at + 1 :]:
        if (missing := lost_gpu(line)) is not None:
            gone.append(missing)
            continue
        if not line.strip() or line.strip().startswith(names[0] + ","):
            continue
        cells = [cell.strip() for cell in line.split(",")]
        short = len(cells) < len(names)
        if len(cells) == len(names):
            rows.append(dict(zip(names, cells, strict=True)))
        elif not problems:
            problems.append(f"a line has {len(cells)} values under {len(names)} columns")
    if rows and not text.endswith("\n") and _may_be_cut(rows, names[-1]):
        del rows[-1][names[-1]]
        short = True
        problems.append("the last line breaks off")
    kind, read = _reader(names)
    readings, found = read(rows)
    versions = version_texts(rows[-1]) if rows else {}
    return Findings(
        kind=kind,
        readings=(*readings, *(one for one, _ in gone)),
        versions=versions,
        taken=stated(rows[-1].get("timestamp")) if rows else None,
        problems=(*found, *problems, *(problem for _, problem in gone)),
        # processes and pages are of those GPUs that have some
        breaks_off=short or not rows or kind != KIND,
    )


def _may_be_cut(rows: Sequence[dict[str, str]], name: str) -> bool:
    """Whether the last value of the text may be cut, compared with the first line's."""
    return len(rows) == 1 or len(rows[-1][name]) < len(rows[0][name])


def _reader(names: Sequence[str]) -> tuple[str, Callable[[list[dict[str, str]]], Table]]:
    if "retired_pages.address" in names:
        return PAGES, _pages
    if "pid" in names:
        # accounted processes have ended: they are not on the GPU
        return PROCESSES, _processes if "time" not in names else _no_readings
    return KIND, _gpus


def _no_readings(_rows: list[dict[str, str]]) -> Table:
    return (), []


def _gpu_identity(row: dict[str, str]) -> tuple[str | None, str | None]:
    return pci_address(pick(row, "pci")), unmasked_uuid(pick(row, "uuid"))


def _gpus(rows: list[dict[str, str]]) -> Table:
    last: dict[tuple[object, ...], dict[str, str]] = {}
    for number, row in enumerate(rows):
        who = (*_gpu_identity(row), stated(row.get("index")))
        # lines that name no GPU are one each: nothing says that two are of the same
        last[who if any(who) else (number,)] = row
    readings = within_device_limit((reading(row, KIND) for row in last.values()), KIND)
    problems = [failures(row, one) for row, one in zip(last.values(), readings, strict=True)]
    if len(last) < len(rows):
        problems.append(f"{len(rows)} lines are of {len(last)} GPUs; the last of each is read")
    return readings, [problem for problem in problems if problem is not None]


def _processes(rows: list[dict[str, str]]) -> Table:
    counts: dict[tuple[str | None, str | None], set[str]] = {}
    for row in rows:
        counts.setdefault(_gpu_identity(row), set()).add(row["pid"])
    return tuple(
        Reading(
            source=PROCESSES, vendor=VENDOR, pci=pci, uuid=uuid, state=GpuState(processes=len(pids))
        )
        for (pci, uuid), pids in counts.items()
        if pci or uuid
    ), []


def _pages(rows: list[dict[str, str]]) -> Table:
    """Pages by cause; a line without an address says that none can be listed."""
    causes = {"single bit ecc": "single-bit", "double bit ecc": "double-bit"}
    counts: dict[tuple[str | None, str | None], dict[str, int]] = {}
    for row in rows:
        cause = causes.get(row.get("retired_pages.cause", "").lower())
        if cause is not None and stated(row["retired_pages.address"]) is not None:
            pages = counts.setdefault(_gpu_identity(row), {})
            pages[cause] = pages.get(cause, 0) + 1
    return tuple(
        Reading(source=PAGES, vendor=VENDOR, pci=pci, uuid=uuid, memory=Memory(retired_pages=pages))
        for (pci, uuid), pages in counts.items()
        if pci or uuid
    ), []

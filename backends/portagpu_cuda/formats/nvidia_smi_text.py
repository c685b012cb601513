"""What nvidia-smi prints: its table, ``-q``, ``-L``, ``--query-gpu ... --format=csv``, versions.

The table has GPUs, their MIG devices and processes. A GPU is two or three lines of three cells;
driver 2.x wrote "0." for its number and "SB / DB" for its errors, MIG came with 450, and the
columns' widths change with every driver.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from portagpu.base.text import excerpt
from portagpu.facts.formats import (
    Shape,
    integer,
    is_error,
    number,
    pci_address,
    stated,
    within_device_limit,
)
from portagpu.facts.readings.model import (
    Findings,
    FormatError,
    GpuPart,
    GpuState,
    Memory,
    Reading,
    without_none,
)
from portagpu_cuda.formats._nvidia import (
    NO_HANDLE,
    VENDOR,
    lost_gpu,
    memory_bytes,
    unmasked_uuid,
    yes_or_no,
)
from portagpu_cuda.formats._nvidia_csv import (
    CSV_SHAPE,
    PART_SHAPE,
    QUERY_SHAPE,
    is_csv,
    is_query,
    parse_csv,
    parse_query,
)

_HEAD: Final = re.compile(
    r"\| NVIDIA-SMI +(\S+) +(?:Driver|KMD) Version: +(\S+)(?: +CUDA (?:UMD )?Version: +(\S+))?"
)
_TIME: Final = re.compile(r"[A-Z][a-z]{2} [A-Z][a-z]{2} +\d{1,2} [\d:]{8} \d{4}")
_FIRST: Final = re.compile(r"(\d{1,10})\.? +(\S.*)")
_FLAGS: Final = frozenset({"On", "Off", "N/A", "ERR!", "WDDM", "TCC", "MCDM"})
"""Of the column after a name: the persistence mode; of Windows the driver's model."""
_LIKE_A_GPU: Final = re.compile(r"\| +\d{1,4}\.? +[^\W\d]")
_VGPU_TITLE: Final = re.compile(r"\| +vGPU ID +Name +\|")
_PROCESS: Final = re.compile(r"\| +(\d{1,4})\.? +(?:(?:\S+ +){2})?(\d{1,10}) +\S")
_CUT: Final = "..."
_COLUMNS: Final = 3
_MEASURES: Final = (True, False, True)
"""Of a GPU's second line: what it does now, its memory, how busy it is."""
_BORDER: Final = re.compile(r"\+[-=+]+\+")
_DIVIDER: Final = re.compile(r"\|[-+]+\|")

TABLE_SHAPE: Final = Shape(
    r"\| NVIDIA-SMI +\S",
    re.compile(rf"\s*(?:\|(?! AMD-SMI )|\+|{_TIME.pattern}|{NO_HANDLE})"),
    checks_its_end=True,
)
_GPU_ROW: Final = (
    # Intel's tool prints the same columns
    r"\| +\d{1,4}\.?  +(?!Intel\b)\S[^|]{1,60}"
    r"\| +[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7] +"
    r"(?:On|Off|N/A) *\|[^|]{4,40}\|"
)
_SECOND_ROW: Final = (
    r"\| *(?:N/A|\d{1,3}%|ERR!) +(?:\d{1,3}C|N/A|ERR!) +(?:P\d{1,2}|N/A|ERR!) +[^|]{3,40}\|"
    r"[^|]{0,30}\bMi?B / [^|]{1,30}\|[^|]{1,40}\|"
)
_ANY_ROW: Final = re.compile(rf"\s*(?:{_GPU_ROW}|{_SECOND_ROW})")
_MIG_TITLE: Final = r"\| MIG devices:"
ROWS_SHAPE: Final = TABLE_SHAPE._replace(begins=f"{_GPU_ROW}|{_SECOND_ROW}|{_MIG_TITLE}", weak=True)
"""The table without its head, as people cut it."""


@dataclass(slots=True)
class _Row:
    """One GPU's cells, line by line."""

    index: int
    lines: list[list[str]]
    parts: list[GpuPart] = field(default_factory=list)
    processes: int | None = None
    part_errors: dict[str, int] = field(default_factory=dict)
    """Uncorrected errors by GPU instance of MIG: its own row has "On" in the place of a number."""
    virtual: int = 0
    """Virtual GPUs of it that guests have."""


def is_table(text: str) -> bool:
    """Whether the table's head line, a row of a GPU, or the MIG devices stand in ``text``."""
    if _HEAD.search(text) is not None or re.search(rf"^ *{_MIG_TITLE}", text, re.MULTILINE):
        return True
    return any(map(_ANY_ROW.match, text.splitlines()))


def parse_table(text: str) -> Findings:
    """The GPUs of the last table in ``text``."""
    head = None
    time: str | None = None
    section = "gpus"
    rows: dict[int, _Row] = {}
    current: _Row | None = None
    gone: list[tuple[Reading, str]] = []
    problems: list[str] = []
    closed = last_is_border = False
    unread: list[str] = []
    borders = 0
    for line in map(str.strip, text.splitlines()):
        is_border = _BORDER.match(line) is not None
        if line:
            last_is_border = is_border
            borders = 2 if _DIVIDER.fullmatch(line) else borders + 1 if is_border else 0
        # of the list of processes portagpu record keeps the borders alone, below the last GPU's
        closed |= is_border and (section == "processes" or (borders > 2 and bool(rows)))
        if (match := _HEAD.match(line)) is not None:
            if head is not None:
                problems.append("the text holds several tables; this is the last")
            head, section, rows, current, gone = match, "gpus", {}, None, []
            closed, unread = False, []
        elif (clock := _TIME.match(line)) is not None:
            time = clock.group()
        elif (missing := lost_gpu(line)) is not None:
            gone.append(missing)
        elif line.startswith("| MIG devices"):
            section = "mig"
        elif re.match(r"\| (?:Compute p|P)rocesses:", line):
            section, closed = "processes", False
            for row in rows.values():
                row.processes = 0
        elif not line.startswith("|"):
            current = None if line.startswith("+") else current
        elif section == "gpus" and _VGPU_TITLE.match(line):
            section = "vgpus"
        elif section == "vgpus":
            current = _vgpu_line(line, rows, current)
        elif section == "gpus":
            before, current = current, _gpu_line(line, rows, current)
            alone = current is None and _ANY_ROW.match(line) is not None
            if alone or (current is before and _LIKE_A_GPU.match(line) is not None):
                unread.append(line)
        elif section == "mig":
            _mig_line(line, rows, alone=head is None)
        else:
            _process_line(line, rows)
    if section == "vgpus":
        closed = closed or last_is_border
    only_mig = head is None and section == "mig" and last_is_border
    if only_mig and not rows:
        raise FormatError(f"{KIND}: its list of MIG devices has none; give the whole table")
    broken = not closed
    if broken and not only_mig:
        problems.append("the table breaks off: the list of processes and its border are not in it")
    if head is None:
        broken = True
        problems.append("the table's head is not in it, nor what may have stood below the head")
    if unread:
        broken = True
        shown = excerpt(unread[0], 60)
        problems.append(f"{len(unread)} row(s) that look like a GPU are not read: {shown!r}")
    # where no GPU counts errors, somebody has switched that off
    counted = any(row.lines[0][2][-1:].isdigit() for row in rows.values())
    readings = within_device_limit((_reading(row, counted) for row in rows.values()), KIND)
    # first what is said of a GPU: a report names one problem and counts the others
    failures = [sentence for row in rows.values() if (sentence := _failure(row)) is not None]
    return Findings(
        kind=KIND,
        readings=(*readings, *(one for one, _ in gone)),
        versions=_versions(head),
        taken=time,
        problems=(*dict.fromkeys([*failures, *problems]), *(problem for _, problem in gone)),
        breaks_off=broken,
        complete=head is not None and not broken and section != "vgpus",
    )


def _versions(head: re.Match[str] | None) -> dict[str, str]:
    if head is None:
        return {}
    return without_none({"driver": stated(head.group(2)), "cuda": stated(head.group(3))})


def _cells(line: str) -> list[str]:
    """The cells between the bars; what somebody wrote after a row's last bar is not one."""
    *cells, after = line.removeprefix("|").split("|")
    if not cells or (after.strip() and len(cells) < _COLUMNS):
        cells.append(after)
    return [cell.strip() for cell in cells]


def _gpu_line(line: str, rows: dict[int, _Row], current: _Row | None) -> _Row | None:
    cells = _cells(line)
    if len(cells) != _COLUMNS:
        return None
    match = _FIRST.fullmatch(cells[0])
    # the second line's first cell may begin with a number as well: the fan's "30%" does not
    if match is not None and (current is None or _is_address(cells[1])):
        current = _Row(int(match.group(1)), [[match.group(2), *cells[1:]]])
        rows[current.index] = current
    elif current is not None and len(current.lines) < 3:
        current.lines.append(cells)
    return current


def _vgpu_line(line: str, rows: dict[int, _Row], current: _Row | None) -> _Row | None:
    """A row of ``nvidia-smi vgpu``: a GPU's, or below it one of a virtual GPU."""
    cells = _cells(line)
    match = _FIRST.fullmatch(cells[0]) if len(cells) == _COLUMNS else None
    if match is None:
        return current
    if _is_address(cells[1]):
        current = _Row(int(match.group(1)), [[match.group(2), cells[1], ""], ["", "", cells[2]]])
        rows[current.index] = current
    elif current is not None:
        current.virtual += 1
    return current


def _is_address(cell: str) -> bool:
    first = cell.split(" ", 1)[0]
    return pci_address(first) is not None or is_error(first)


def _mig_line(line: str, rows: dict[int, _Row], *, alone: bool) -> None:
    """Add a MIG device to its GPU; where they stand alone, they name their GPUs."""
    cells = _cells(line)
    numbers = cells[0].split()
    if len(numbers) != 4 or not all(word.isdecimal() for word in numbers) or len(cells) < 3:
        return
    index = _bounded_integer(numbers[0])
    row = rows.setdefault(index, _Row(index, [["", "", ""]])) if alone else rows.get(index)
    if row is not None:
        used = _pair(cells[1])
        row.parts.append(
            GpuPart(
                index=_bounded_integer(numbers[3]),
                memory_bytes=memory_bytes(used[1]) if used else None,
                unit_count=integer(cells[2].split(" ")[0]),
            )
        )
        errors = integer(cells[2].split()[-1]) if len(cells[2].split()) > 1 else None
        if errors is not None:
            row.part_errors[numbers[1]] = errors


def _pair(cell: str) -> tuple[str, str] | None:
    """The words around a slash that stands between blanks, unlike that of "N/A"."""
    words = cell.split()
    at = next((n for n, word in enumerate(words[1:-1], 1) if word == "/"), None)
    return None if at is None else (words[at - 1], words[at + 1])


def _bounded_integer(digits: str) -> int:
    return int(digits[:9])


def _process_line(line: str, rows: dict[int, _Row]) -> None:
    match = _PROCESS.match(line)
    words = line.strip("| ").split()
    if match is not None and (row := rows.get(int(match.group(1)))) is not None:
        row.processes = (row.processes or 0) + 1
    elif "Not Supported" in line and words[0].rstrip(".").isdecimal():
        unknown = rows.get(_bounded_integer(words[0].rstrip(".")))
        if unknown is not None:
            unknown.processes = None


def _reading(row: _Row, counted: bool) -> Reading:
    first, second, third = (*row.lines, [], [], [])[:3]
    words = first[0].rsplit(maxsplit=1)
    name = stated(words[0] if len(words) == 2 and words[1] in _FLAGS else first[0])
    cut = name is not None and name.endswith(_CUT)
    errors = first[2].split()
    uncorrected = integer(errors[-1]) if errors else None
    if uncorrected is None and row.part_errors:
        uncorrected = sum(row.part_errors.values())
    draw = _pair(second[0]) if second else None
    used = _pair(second[1]) if second else None
    temperature = re.search(r"\b(\d{1,3}) ?C\b", second[0]) if second else None
    busy = re.match(r"(\d{1,3})%", second[2]) if second else None
    return Reading(
        source=KIND,
        vendor=VENDOR,
        index=row.index,
        pci=pci_address(first[1].split(" ", 1)[0]),
        name=None if cut else name,
        memory_bytes=memory_bytes(used[1]) if used else None,
        mig_enabled=yes_or_no(third[2]) if third else None,
        parts=tuple(row.parts),
        # one number is uncorrected errors since the driver was loaded, two are "SB / DB"
        memory=Memory(
            ecc_enabled=errors[-1] != "Off" if counted and errors and stated(errors[-1]) else None,
            corrected=integer(errors[0]) if len(errors) == 2 else None,
            uncorrected=uncorrected,
        ),
        state=GpuState(
            temperatures_c={"gpu": float(temperature.group(1))} if temperature else {},
            power_w=number(draw[0]) if draw else None,
            power_limit_w=number(draw[1]) if draw else None,
            utilization_percent=float(busy.group(1)) if busy else None,
            memory_used_bytes=memory_bytes(used[0]) if used else None,
            processes=row.processes,
            error=_error_word(second),
        ),
        extra=({"name begins with": name.removesuffix(_CUT)} if cut and name else {})
        | ({"vgpus": str(row.virtual)} if row.virtual else {}),
    )


def _error_word(second: list[str]) -> str | None:
    """The error word that replaces every measure of a GPU that no longer answers."""
    if len(second) != len(_MEASURES):
        return None
    words = [
        next((word for word in cell.split() if is_error(word)), None)
        for cell, measure in zip(second, _MEASURES, strict=True)
        if measure
    ]
    return words[0] if None not in words else None


def _failure(row: _Row) -> str | None:
    words = [word for line in row.lines for cell in line for word in cell.split() if is_error(word)]
    if not words:
        return None
    return f"GPU number {row.index} answers {words[0]!r} in the place of {len(words)} values"


KIND: Final = "nvidia-smi"
LIST: Final = "nvidia-smi -L"

_BEGINNING: Final = 8000
_GPU: Final = re.compile(r"GPU (\d{1,4}): (\S.{0,200}?) \((?:UUID|S/N): ([^()]{1,100})\)")
_MIG: Final = re.compile(r"MIG (\S{1,40}) +Device +(\d{1,4}): \(UUID: ([^()]{1,100})\)")
_VERSION: Final = re.compile(
    r"(NVIDIA-SMI|NVML|DRIVER|CUDA|KMD|CUDA UMD) [Vv]ersion +: +(\d\S*|N/A|Not Found)"
)
_VERSION_NAMES: Final = {
    "NVML": "nvml",
    "DRIVER": "driver",
    "CUDA": "cuda",
    "KMD": "driver",
    "CUDA UMD": "cuda",
}
_VERSIONS: Final = r"(?:NVIDIA-SMI|NVML|DRIVER|CUDA|KMD|CUDA UMD) [Vv]ersion +: +\S"
# nvidia-smi's answers where there is nothing to list
_NONE: Final = re.compile(
    r"No devices were found|(?:NVIDIA-SMI has failed because|Failed to initialize NVML:) .{0,200}"
)

SHAPES: Final = (
    TABLE_SHAPE,
    ROWS_SHAPE,
    QUERY_SHAPE,
    CSV_SHAPE,
    PART_SHAPE,
    # nvidia-smi nvlink has the same lines of GPUs, and more below them
    Shape(
        r"GPU \d{1,4}: \S[^\n]{0,200} \((?:UUID|S/N): ",
        re.compile(
            r"\s*(?:GPU \d|MIG \S+ +Device |Link \d|NVML: |Unable to |Nvlink |Device does not|"
            # nvlink -info
            r"NVLE: |Firmware Version:$|(?:MSE|NETIR[ A-Z]{0,8}): \d|"
            rf"{NO_HANDLE})"
        ),
        # a line of a list ends with the bracket after the UUID, one of a link with its speed
        last=re.compile(
            rf".{{1,400}}\([^()]{{1,120}}\)|{NO_HANDLE}.*\.[0-7].*"
            r"|Link \d{1,3}: (?:[\d.]{1,9} GB/s|<inactive>)"
            r"|NVML: Unable to .{1,60} all links are in[Aa]ctive"
        ),
        device=re.compile(r"GPU \d{1,4}:"),
    ),
    Shape(_VERSIONS, re.compile(_VERSIONS), weak=True, checks_its_end=True),
    Shape(
        f"{_NONE.pattern}|{NO_HANDLE}",
        re.compile(f"{_NONE.pattern}|{NO_HANDLE}"),
        weak=True,
        # each is a sentence, and what it says stands before its end
        last=re.compile(rf"{_NONE.pattern}|{NO_HANDLE}.*\.[0-7].*"),
    ),
)


def matches(text: str) -> bool:
    """Whether one of these outputs stands at the beginning, and nothing of the other readers'."""
    start = text[:_BEGINNING]
    if "<nvidia_smi_log" in text[: 3 * _BEGINNING]:
        return False
    known = is_table(start) or is_query(start) or is_csv(start) or _is_list(start)
    return known or any(
        _VERSION.match(line) or _NONE.match(line) or lost_gpu(line) is not None
        for line in start.splitlines()[:8]
    )


def parse(text: str) -> Findings:
    """What the one output in ``text`` says; several in one text are divided before."""
    for known, read in (
        (is_query, parse_query),
        (is_table, parse_table),
        (_is_list, _parse_list),
        (is_csv, parse_csv),
    ):
        if known(text):
            return read(text)
    return _parse_rest(text)


def _is_list(text: str) -> bool:
    """Whether the text lists GPUs and MIG devices, without the links that ``nvlink`` adds."""
    lines = [line.strip() for line in text.splitlines()]
    return any(_GPU.match(line) for line in lines) and not any(
        line.startswith(("Link ", "Nvlink ", "NVML: Unable to retrieve")) or "Nvlink" in line
        for line in lines
    )


def _parse_list(text: str) -> Findings:
    gpus: list[tuple[re.Match[str], list[GpuPart]]] = []
    gone: list[tuple[Reading, str]] = []
    for line in map(str.strip, text.splitlines()):
        # a person's list has several in a line
        if found := list(_GPU.finditer(line)):
            gpus += [(match, []) for match in found]
        elif (match := _MIG.match(line)) is not None and gpus:
            profile, index, uuid = match.groups()
            gpus[-1][1].append(GpuPart(index=int(index), uuid=unmasked_uuid(uuid), profile=profile))
        elif (missing := lost_gpu(line)) is not None:
            gone.append(missing)
    numbers = [match.group(1) for match, _ in gpus]
    return Findings(
        kind=LIST,
        readings=(
            *within_device_limit(
                (_list_reading(match, within_device_limit(parts, LIST)) for match, parts in gpus),
                LIST,
            ),
            *(one for one, _ in gone),
        ),
        problems=tuple(problem for _, problem in gone),
        # lists of several containers or machines have the same numbers, and none is of all GPUs
        complete=False if len(set(numbers)) == len(numbers) else None,
    )


def _list_reading(match: re.Match[str], parts: tuple[GpuPart, ...]) -> Reading:
    index, name, identity = match.groups()
    return Reading(
        source=LIST,
        vendor=VENDOR,
        index=int(index),
        # drivers before 270 state a serial number there
        uuid=unmasked_uuid(identity) if identity.startswith("GPU-") else None,
        name=stated(name),
        mig_enabled=True if parts else None,
        parts=parts,
    )


def _parse_rest(text: str) -> Findings:
    """Read ``--version``, or the one line in which the tool says that it cannot answer."""
    versions: dict[str, str] = {}
    readings: list[Reading] = []
    problems: list[str] = []
    for line in map(str.strip, text[:_BEGINNING].splitlines()):
        if (match := _VERSION.match(line)) is not None:
            name, value = match.groups()
            if name in _VERSION_NAMES and stated(value) is not None:
                versions[_VERSION_NAMES[name]] = value
        elif (match := _NONE.match(line)) is not None:
            problems.append(match.group().strip())
        elif (missing := lost_gpu(line)) is not None:
            readings.append(missing[0])
            problems.append(missing[1])
    if not versions and not problems:
        raise FormatError(f"{KIND}: none of the tool's outputs is in the text")
    return Findings(
        kind=KIND,
        readings=tuple(readings),
        versions=versions,
        problems=tuple(problems),
        # one that has no handle is named by itself
        breaks_off=bool(readings),
    )

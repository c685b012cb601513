"""``nvidia-smi -q``, an indented outline, and ``--query-... --format=csv``, rows below names.

The outline is the XML's tree under other names. CSV has one line of column names and one line an
answer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from portagpu.facts.formats import Shape, integer, pci_address, stated, within_device_limit
from portagpu.facts.readings.model import Event, Findings, FormatError, GpuState, Memory, Reading
from portagpu_cuda.formats._nvidia import (
    NO_HANDLE,
    VENDOR,
    failures,
    lost_gpu,
    mig_part,
    pick,
    reading,
    slug,
    unmasked_uuid,
    version_texts,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Table = tuple[tuple[Reading, ...], list[str]]
    from collections.abc import Iterable


KIND: Final = "nvidia-smi --query-gpu"
PROCESSES: Final = "nvidia-smi --query-compute-apps"
PAGES: Final = "nvidia-smi --query-retired-pages"

# columns that no other tool has, and those that a query may have next to them
_OWN: Final = re.compile(
    r"gpu_(?:name|bus_id|serial|uuid)|(?:driver|kmd|cuda_umd)_version|vbios_version|compute_cap|compute_mode|"
    r"(?:memory|utilization|temperature|clocks|power|pcie?|ecc|fan|fabric|mig|remapped_rows|retired_pages|"
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
_MAX_UNIT: Final = 12
_COLUMN: Final = r"[a-z][\w.]{1,80}(?: \[[^\]\n,]{1,12}\])?"

CSV_SHAPE: Final = Shape(
    # a name that only this tool has, among names alone
    rf"(?=[^\n]{{0,4000}}?(?:^|, ?|\b)(?:{_OWN.pattern}))(?:{_COLUMN}, ?)+{_COLUMN} *\n"
    rf"|(?:index|uuid|name|gpu_uuid|pci\.bus_id|timestamp)(?:, ?{_COLUMN})+ *\n",
    re.compile(rf"[^\n,]{{0,200}},|{NO_HANDLE}"),
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
    if not bracket or not name.endswith("]") or len(unit) > _MAX_UNIT or "]" in unit:
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
        complete=False if kind == KIND else None,
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


_FULL: Final = "nvidia-smi -q"

_BANNER: Final = "NVSMI LOG"
_LICENCES: Final = tuple(
    f"{block}/license_status"
    for block in ("vgpu_software_licensed_product", "grid_licensed_product")
)
_GPU: Final = re.compile(r"GPU ((?:[0-9A-Fa-f]{4,8}:)?[0-9A-Fa-f]{1,2}:[0-9A-Fa-f]{1,2}[.:][0-7])")
_ALONE_BLOCKS: Final = (
    r"Remapped Rows|Retired Pages|ECC Errors|Clocks (?:Event|Throttle) Reasons|Temperature"
    r"|(?:GPU )?Power Readings|(?:vGPU Software|GRID) Licensed Product|Fabric"
)
"""Blocks of one GPU that people quote alone."""
_ALONE_LINES: Final = {
    "GPU Recovery Action": "gpu_recovery_action",
    "Reset Required": "gpu_reset_status/reset_required",
    "SRAM Threshold Exceeded": "ecc_errors/aggregate/sram_threshold_exceeded",
    "Unrepairable Memory": "ecc_errors/unrepairable_memory",
    "Channel Repair Pending": "ecc_errors/channel_repair_pending",
    "TPC Repair Pending": "ecc_errors/tpc_repair_pending",
    "Remapping Failure Occurred": "remapped_rows/remapping_failure_occurred",
    "Pending Page Blacklist": "retired_pages/pending_page_blacklist",
    "License Status": "vgpu_software_licensed_product/license_status",
}
"""Lines that people search for with grep, one a GPU, each with its path in the whole log."""
_A_LINE: Final = rf"(?:{'|'.join(_ALONE_LINES)}) +: \S"
_OWN_LINES: Final = {
    "Product Name": "product_name",
    "GPU UUID": "uuid",
    "Minor Number": "minor_number",
    "VBIOS Version": "vbios_version",
    "Bus Id": "pci/bus_id",
}
"""Lines of which each GPU has one, each with its path: of a log cut in a GPU, or of grep."""
_AN_OWN_LINE: Final = rf"(?:{'|'.join(_OWN_LINES)}) {{2,40}}: \S"
# a GPU's line and the first below it; or a block of errors alone
_BLOCK: Final = re.compile(
    r"^GPU (?:[0-9A-F]{4,8}:)[0-9A-F]{2}:[0-9A-F]{2}\.[0-7] *\n(?: .{0,200}\n){0,2}? .{1,200} : "
    rf"|^ *(?:{_ALONE_BLOCKS}) *\n(?: {{1,40}}(?:Volatile|Aggregate) *\n)? .{{1,200}} : "
    rf"|^ *(?:{_A_LINE}|{_AN_OWN_LINE})",
    re.MULTILINE,
)
_MIG: Final = "mig_device"
_PROCESS_BLOCKS: Final = ("processes", "compute_processes")
_DEEPEST: Final = 8

QUERY_SHAPE: Final = Shape(
    rf"=+ ?{_BANNER} ?=+",
    re.compile(
        rf"=+ ?{_BANNER}|\s+\S|{_GPU.pattern}"
        rf"|[A-Z][\w ()/-]{{1,60}}? :(?: |$)|{NO_HANDLE}"
    ),
)

PART_SHAPE: Final = QUERY_SHAPE._replace(
    begins=r"(?:Timestamp|Driver Version|(?:CUDA|KMD|CUDA UMD) Version|Attached GPUs) +: \S"
    r"|GPU [0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7] *\n[A-Z][\w ()/-]{1,60}(?: :|$)"
    rf"|(?:{_ALONE_BLOCKS}) *\n(?:(?:Volatile|Aggregate) *$|[A-Z][\w. ()/-]{{1,60}} : )"
    rf"|{_A_LINE}|{_AN_OWN_LINE}",
    weak=True,
)
"""A log without its banner: people begin to copy below it, at a GPU, in one, or at a block."""


@dataclass(slots=True)
class _Gpu:
    address: str
    values: dict[str, str] = field(default_factory=dict)
    parts: list[dict[str, str]] = field(default_factory=list)
    processes: int | None = None


def is_query(text: str) -> bool:
    """Whether the log's banner stands in ``text``, or what is below it in a part of a log."""
    return _BANNER in text or _BLOCK.search(text) is not None


def parse_query(text: str) -> Findings:
    """The GPUs of the log; of the last log where the tool was run in a loop."""
    logs = text.split(_BANNER)
    header: dict[str, str] = {}
    gpus: list[_Gpu] = []
    gone: list[tuple[Reading, str]] = []
    lines = logs[-1].splitlines()
    for number, line in enumerate(lines):
        if (match := _GPU.fullmatch(line.strip())) is not None:
            gpus.append(_Gpu(match.group(1)))
            _read_outline(gpus[-1], _block(lines, number + 1))
        elif (missing := lost_gpu(line)) is not None:
            gone.append(missing)
        elif not gpus and (pair := _pair(line)) is not None:
            header.setdefault(slug(pair[0]), pair[1])
    cut = [] if _BANNER in text else _gpus_without_heads(lines)
    if cut:
        gpus = [*cut, *gpus]
    elif not gpus and _BANNER not in text:
        for block in _blocks_alone(text, lines):
            gpus.append(_Gpu(""))
            _read_outline(gpus[-1], block)
        if gpus and not re.search(rf"^ *(?:{_ALONE_BLOCKS}) *$", text, re.MULTILINE):
            gpus = [_Gpu("", values) for values in _lines_alone(lines)]
    attached = integer(header.get("attached_gpus"))
    # a GPU that has no handle is attached, and not described
    complete = attached in (len(gpus), len(gpus) + len(gone)) or (attached is None and bool(gpus))
    complete = complete and not cut
    numbered = attached in (None, len(gpus))
    readings = within_device_limit(
        (
            reading(
                {"pci/bus_id": gpu.address, **gpu.values},
                _FULL,
                index=position if numbered else None,
                parts=within_device_limit(map(mig_part, gpu.parts), _FULL),
                processes=gpu.processes,
            )
            for position, gpu in enumerate(gpus)
        ),
        _FULL,
    )
    problems = [failures(gpu.values, one) for gpu, one in zip(gpus, readings, strict=True)]
    if len(logs) > 2:
        problems.append(f"the text holds {len(logs) - 1} logs; this is the last")
    if cut:
        problems.append("the log begins in a GPU, and may have had others before it")
    elif not complete:
        problems.append(
            f"{'?' if attached is None else attached} GPUs are attached and {len(gpus)} described"
        )
    return Findings(
        kind=_FULL,
        readings=(*readings, *(one for one, _ in gone)),
        events=tuple(event for gpu in gpus if (event := _unlicensed(gpu)) is not None),
        versions=version_texts(header),
        taken=stated(header.get("timestamp")),
        problems=(*filter(None, problems), *(problem for _, problem in gone)),
        breaks_off=not complete,
        complete=complete and attached is not None,
    )


def _unlicensed(gpu: _Gpu) -> Event | None:
    """The event of a virtual GPU without a licence, which the driver slows after some time."""
    status = next((gpu.values[path] for path in _LICENCES if path in gpu.values), "")
    if not status.lower().startswith("unlicensed"):
        return None
    return Event(
        source=_FULL,
        vendor=VENDOR,
        code="vGPU unlicensed",
        meaning="The virtual GPU has no licence, and the driver will slow it",
        action="give the guest a licence: see its log of nvidia-gridd",
        todo="monitor",
        reference="https://docs.nvidia.com/vgpu/latest/grid-licensing-user-guide/index.html",
        line=status,
        pci=pci_address(gpu.address),
    )


def _blocks_alone(text: str, lines: list[str]) -> Iterable[list[str]]:
    """The lines of each GPU without an address: one that has a block already is another one."""
    block = _BLOCK.search(text)
    found: list[list[str]] = [[]]
    titles: set[str] = set()
    for line in lines if block is None else text[block.start() :].splitlines():
        title = line.strip()
        if re.fullmatch(_ALONE_BLOCKS, title):
            if title in titles:
                found.append([])
                titles.clear()
            titles.add(title)
        found[-1].append(line)
    return found


def _gpus_without_heads(lines: list[str]) -> list[_Gpu]:
    """The GPUs of lines above the first GPU's address: where a GPU's own line returns, the next."""
    found: list[_Gpu] = []
    block: list[str] = []
    seen: set[str] = set()
    own: dict[str, str] = {}
    title = ""

    def end() -> None:
        if own:
            found.append(_Gpu("", dict(own)))
            _read_outline(found[-1], block)

    for line in lines:
        if _GPU.fullmatch(line.strip()) is not None:
            break
        pair = _pair(line)
        path = _OWN_LINES.get(pair[0]) if pair is not None else None
        title = line if pair is None else title
        # a licence has a product's name, too
        if pair is not None and path is not None and "Licensed" not in title:
            if path in seen:
                end()
                block, seen, own = [], set(), {}
            seen.add(path)
            own[path] = pair[1]
        block.append(line)
    end()
    return found


def _lines_alone(lines: list[str]) -> list[dict[str, str]]:
    """The values of each GPU where lines of the log stand without what is above them."""
    found: list[dict[str, str]] = []
    for line in lines:
        pair = _pair(line)
        path = _ALONE_LINES.get(pair[0].strip()) if pair is not None else None
        if pair is not None and path is not None:
            if not found or path in found[-1]:
                found.append({})
            found[-1][path] = pair[1]
    return found


def _block(lines: list[str], first: int) -> Iterable[str]:
    """The lines from ``first`` that are indented, which are those of one GPU."""
    for number in range(first, len(lines)):
        if lines[number][:1].strip():
            return
        yield lines[number]


def _pair(line: str) -> tuple[str, str] | None:
    """("GPU Current Temp", "42 C"); None for the title of a block."""
    label, separator, value = line.partition(" : ")
    if not separator:
        if not line.rstrip().endswith(" :"):
            return None
        label = line.rstrip()[:-2]
    return label.strip(), value.strip()


def _read_outline(gpu: _Gpu, lines: Iterable[str]) -> None:
    above: list[tuple[int, str]] = []
    for line in lines:
        if not line.strip():
            continue
        indent = len(line) - len(line.lstrip())
        while above and above[-1][0] >= indent:
            above.pop()
        pair = _pair(line)
        label = slug(pair[0] if pair else line)
        if pair is None and label == _MIG:
            gpu.parts.append({})
        _store(gpu, [name for _, name in above], label, pair[1] if pair else None)
        if len(above) < _DEEPEST:
            above.append((indent, label))


def _store(gpu: _Gpu, above: list[str], label: str, value: str | None) -> None:
    if above[:1] == [_MIG] and gpu.parts and value is not None:
        gpu.parts[-1].setdefault("/".join((*above[1:], label)), value)
    elif above[:1] and above[0] in _PROCESS_BLOCKS:
        gpu.processes = (gpu.processes or 0) + (label == "process_id")
    elif label in _PROCESS_BLOCKS and not above:
        if value is not None and value.lower() == "none":
            gpu.processes = 0
    elif value is not None:
        gpu.values.setdefault("/".join((*above, label)), value)

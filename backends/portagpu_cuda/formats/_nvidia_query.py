"""The text of ``nvidia-smi -q``: an indented outline, which is the XML's tree under other names."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from portagpu.facts.formats import Shape, integer, stated, within_device_limit
from portagpu.facts.readings.model import Findings, Reading
from portagpu_cuda.formats._nvidia import failures, lost_gpu, mig_part, reading, slug, version_texts

if TYPE_CHECKING:
    from collections.abc import Iterable

KIND: Final = "nvidia-smi -q"

_BANNER: Final = "NVSMI LOG"
_GPU: Final = re.compile(r"GPU ((?:[0-9A-Fa-f]{4,8}:)?[0-9A-Fa-f]{1,2}:[0-9A-Fa-f]{1,2}[.:][0-7])")
# a GPU's line and the first below it; or a block of errors alone, as people quote it
_BLOCK: Final = re.compile(
    r"^GPU (?:[0-9A-F]{4,8}:)[0-9A-F]{2}:[0-9A-F]{2}\.[0-7] *\n(?: .{0,200}\n){0,2}? .{1,200} : "
    r"|^ *(?:Remapped Rows|Retired Pages|ECC Errors|Clocks (?:Event|Throttle) Reasons) *\n"
    r" .{1,200} : ",
    re.MULTILINE,
)
_MIG: Final = "mig_device"
_PROCESS_BLOCKS: Final = ("processes", "compute_processes")
_DEEPEST: Final = 8

QUERY_SHAPE: Final = Shape(
    rf"=+ ?{_BANNER} ?=+",
    re.compile(
        rf"=+ ?{_BANNER}|\s+\S|{_GPU.pattern}"
        r"|[A-Z][\w ()/-]{1,60}? :(?: |$)|[Uu]nable to determine the device handle for "
    ),
)


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
    if not gpus and _BANNER not in text:
        gpus.append(_Gpu(""))
        _read_outline(gpus[0], lines)
    attached = integer(header.get("attached_gpus"))
    # a GPU that has no handle is attached, and not described
    complete = attached in (len(gpus), len(gpus) + len(gone)) or (attached is None and bool(gpus))
    numbered = attached in (None, len(gpus))
    readings = within_device_limit(
        (
            reading(
                {"pci/bus_id": gpu.address, **gpu.values},
                KIND,
                index=position if numbered else None,
                parts=within_device_limit(map(mig_part, gpu.parts), KIND),
                processes=gpu.processes,
            )
            for position, gpu in enumerate(gpus)
        ),
        KIND,
    )
    problems = [failures(gpu.values, one) for gpu, one in zip(gpus, readings, strict=True)]
    if len(logs) > 2:
        problems.append(f"the text holds {len(logs) - 1} logs; this is the last")
    if not complete:
        problems.append(
            f"{'?' if attached is None else attached} GPUs are attached and {len(gpus)} described"
        )
    return Findings(
        kind=KIND,
        readings=(*readings, *(one for one, _ in gone)),
        versions=version_texts(header),
        taken=stated(header.get("timestamp")),
        problems=(*filter(None, problems), *(problem for _, problem in gone)),
        breaks_off=not complete,
    )


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

"""What nvidia-smi prints: its table, ``-q``, ``-L``, ``--query-gpu ... --format=csv``, versions."""

from __future__ import annotations

import re
from typing import Final

from portagpu.facts.formats import Shape, stated, within_device_limit
from portagpu.facts.readings.model import Findings, FormatError, GpuPart, Reading
from portagpu_cuda.formats._nvidia import VENDOR, lost_gpu, unmasked_uuid
from portagpu_cuda.formats._nvidia_csv import CSV_SHAPE, is_csv, parse_csv
from portagpu_cuda.formats._nvidia_query import QUERY_SHAPE, is_query, parse_query
from portagpu_cuda.formats._nvidia_table import TABLE_SHAPE, is_table, parse_table

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
_NO_HANDLE: Final = r"[Uu]nable to determine the device handle for "

SHAPES: Final = (
    TABLE_SHAPE,
    QUERY_SHAPE,
    CSV_SHAPE,
    # nvidia-smi nvlink has the same lines of GPUs, and more below them
    Shape(
        r"GPU \d{1,4}: \S[^\n]{0,200} \((?:UUID|S/N): ",
        re.compile(
            r"\s*(?:GPU \d|MIG \S+ +Device |Link \d|NVML: |Unable to |Nvlink |Device does not|"
            rf"{_NO_HANDLE})"
        ),
        # a line of a list ends with the bracket behind the UUID, one of a link with its speed
        last=re.compile(r".{1,400}\([^()]{1,120}\)|Link \d{1,3}: (?:[\d.]{1,9} GB/s|<inactive>)"),
        device=re.compile(r"GPU \d{1,4}:"),
    ),
    Shape(_VERSIONS, re.compile(_VERSIONS), weak=True, tells_its_end=True),
    Shape(f"{_NONE.pattern}|{_NO_HANDLE}", re.compile(f"{_NONE.pattern}|{_NO_HANDLE}"), weak=True),
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
        if (match := _GPU.match(line)) is not None:
            gpus.append((match, []))
        elif (match := _MIG.match(line)) is not None and gpus:
            profile, index, uuid = match.groups()
            gpus[-1][1].append(GpuPart(index=int(index), uuid=unmasked_uuid(uuid), profile=profile))
        elif (missing := lost_gpu(line)) is not None:
            gone.append(missing)
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

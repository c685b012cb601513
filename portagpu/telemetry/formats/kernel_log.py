"""What the drivers wrote to the kernel's log, and the fabric manager to its own.

Reads ``dmesg`` with any of its clocks, ``journalctl -k``, ``/var/log/kern.log`` and
``/var/log/fabricmanager.log``. What a line means is data: ``portagpu/telemetry/kernel_log.toml``.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from portagpu.inventory.model import Event, Findings, FormatError, Reading
from portagpu.telemetry.formats import Shape, pci_address

KIND: Final = "kernel log"

_TABLE: Final = Path(__file__).resolve().parents[1] / "kernel_log.toml"
_LINE_CHARS: Final = 2000
"""Of a line that are looked at; the kernel cuts its own at 1024 (``PRINTKRB_RECORD_MAX``)."""

_TIMES: Final = re.compile(
    r"(?:<\d{1,3}>)?(?:"
    r"\d{1,4},\d{1,20},(?P<kmsg>\d{1,20}),[^;]{0,40};"
    r"|\[(?P<bracket>[^\]\[]{1,40})\]"
    r"|(?P<iso>\d{4}-\d\d-\d\dT[\d:.,+Z-]{8,24}) "
    r"|(?P<syslog>[A-Z][a-z]{2} [ \d]\d [\d:.]{8,15}) )"
)
_IS_LOG: Final = re.compile(
    r"NVRM: |nvidia-nvswitch\d|\[drm[:\]]|amdgpu [0-9a-f]{4}:|(?<=\S )kernel: \S|\[tid \d+\]"
    r"|^(?:<\d{1,3}>)?\[ *\d{1,12}\.\d{3,9}\] "
    r"|^\[[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d [\d:]{8} \d{4}\]",
    re.MULTILINE,
)

_CLOCK: Final = (
    r"\[ *\d{1,12}\.\d{1,9}\](?:\[[ \w]{1,12}\])? ?"
    r"|\[[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d [\d:.]{8,15} \d{4}\] ?"
    # dmesg -H: the minute, then seconds since the line before
    r"|\[(?:[A-Z][a-z]{2} ?[ \d]\d \d\d:\d\d| *[+<] *\d{1,9}[.,]\d{1,9}>?)\] ?"
)
_DRIVER: Final = r"NVRM: |nvidia-nvswitch\d|nvidia-nvlink: |\[drm[:\]]|amdgpu(?: [0-9a-f]{4}:|: )"
SHAPE: Final = Shape(
    "",
    re.compile(
        rf"(?:<\d{{1,3}}>)?(?:\w{{3,8}} *:\w{{3,6}} *: ?)?(?:(?:{_CLOCK})|kernel: |{_DRIVER}"
        r"|\d{1,4},\d{1,20},\d{1,20},[^;]{0,40};|\[\.\.\.\] "
        r"|\[[A-Z][a-z]{2} \d\d \d{4} [\d:]{8}\] \[\w{1,12}\] "
        r"|[A-Z][a-z]{2} [ \d]\d [\d:.]{8,15} \S{1,100} (?:kernel|nv-fabricmanager)\b"
        r"|\d{4}-\d\d-\d\d[T ][\d:.,]{8,18}(?:Z|[+-]\d\d:?\d\d)? "
        rf"(?:\S{{1,100}} kernel: |(?:{_DRIVER})))"
    ),
)
"""Of a log each line is known by itself, wherever it stands."""


@dataclass(frozen=True, slots=True)
class _Rule:
    pattern: re.Pattern[str]
    vendor: str
    code: str
    codes: str | None
    meaning: str | None
    action: str | None
    fatal: bool | None


@dataclass(frozen=True, slots=True)
class _Tables:
    rules: tuple[_Rule, ...]
    gpus: tuple[tuple[str, re.Pattern[str]], ...]
    versions: tuple[tuple[str, re.Pattern[str]], ...]
    codes: dict[str, dict[str, list[str]]]
    unused: dict[str, frozenset[int]]
    actions: dict[str, dict[str, Any]]
    recovery: dict[str, dict[str, Any]]


def matches(text: str) -> bool:
    """Whether a text has lines of the kernel's or the fabric manager's log in its beginning."""
    return _IS_LOG.search(text[:20_000]) is not None


def parse(text: str) -> Findings:
    """Every line that a driver wrote about an error, in order, with what the vendor says of it."""
    if not matches(text):
        raise FormatError(f"{KIND}: no line in it is of a kernel's log; record dmesg -T")
    tables = _tables()
    events = []
    readings: dict[str, Reading] = {}
    versions: dict[str, str] = {}
    for line in text.splitlines():
        line = line[:_LINE_CHARS]
        if (event := _event(line, tables)) is not None:
            events.append(event)
            continue
        for vendor, pattern in tables.gpus:
            match = pattern.search(line)
            address = pci_address(match.group("pci")) if match is not None else None
            if match is not None and address is not None:
                reading = Reading(source=KIND, vendor=vendor, pci=address, uuid=match.group("uuid"))
                readings[address] = reading
        for name, pattern in tables.versions:
            if (match := pattern.search(line)) is not None:
                versions[name] = match.group("version")
    return Findings(
        kind=KIND, readings=tuple(readings.values()), events=tuple(events), versions=versions
    )


def _event(line: str, tables: _Tables) -> Event | None:
    for rule in tables.rules:
        match = rule.pattern.search(line)
        if match is None:
            continue
        groups = {key: value for key, value in match.groupdict().items() if value is not None}
        if groups.get("count", "1").strip("0") == "":
            return None  # the driver also reports that there are none
        meaning, action, fatal = _meaning(rule, groups, tables)
        return Event(
            source=KIND,
            vendor=rule.vendor,
            code=rule.code.format(**{"number": "", "block": "", **groups}),
            pci=pci_address(groups.get("pci")),
            time=_time(line),
            meaning=meaning,
            action=action,
            fatal=fatal,
            line=line.strip(),
        )
    return None


def _meaning(
    rule: _Rule, groups: dict[str, str], tables: _Tables
) -> tuple[str | None, str | None, bool | None]:
    """(meaning, action, fatal) of a line; the line's own words count more than the tables."""
    meaning, action, fatal = rule.meaning, rule.action, rule.fatal
    if rule.codes is not None:
        number = str(int(groups["number"]))
        meaning, bucket = tables.codes[rule.codes].get(number, (None, ""))
        if int(number) in tables.unused.get(rule.codes, frozenset()):
            meaning = "not used by the vendor's current GPUs"
        todo = tables.actions.get(bucket, {})
        action, fatal = todo.get("action"), todo.get("fatal")
    if "recovery" in groups:
        todo = tables.recovery.get(str(int(groups["recovery"], 16)), {})
        action, fatal = todo.get("action", action), todo.get("fatal", fatal)
    if "severity" in groups:
        fatal = not groups["severity"].lower().startswith("non")
    return meaning, action, fatal


def _time(line: str) -> str | None:
    """When the line was written, as it says it: a date, or seconds since the kernel started."""
    match = _TIMES.match(line)
    if match is None:
        return None
    if match.group("kmsg") is not None:
        return f"{int(match.group('kmsg')) / 1e6:.6f}"  # in microseconds
    text = next(filter(None, match.groups()), "").strip()
    return text if any(character.isdigit() for character in text) else None


@cache
def _tables() -> _Tables:
    data = tomllib.loads(_TABLE.read_text(encoding="utf-8"))
    rules = tuple(
        _Rule(
            re.compile(each["pattern"]),
            each["vendor"],
            each["code"],
            each.get("codes"),
            each.get("meaning"),
            each.get("action"),
            each.get("fatal"),
        )
        for each in data["event"]
    )
    return _Tables(
        rules,
        tuple((each["vendor"], re.compile(each["pattern"])) for each in data["gpu"]),
        tuple((each["name"], re.compile(each["pattern"])) for each in data["version"]),
        data["codes"],
        {name: frozenset(numbers) for name, numbers in data["unused"].items()},
        data["actions"],
        data["recovery"],
    )

"""What ``dcgmi health`` prints: the watches of the host engine and their incidents.

Source: NVIDIA/DCGM, dcgmi/Health.cpp and DcgmiOutput.cpp of 2.x to 4.x, and the table of 1.x. A
report of a host engine without watches says nothing of the GPUs.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from portagpu.facts.actions import Action
from portagpu.facts.formats import Shape
from portagpu.facts.readings.model import Event, Findings, FormatError
from portagpu_cuda.formats._dcgm import HEALTH, Check, check_event, row_of
from portagpu_cuda.formats._nvidia import VENDOR

if TYPE_CHECKING:
    from collections.abc import Iterator

KIND: Final = "dcgmi health"

_NOT_WATCHED: Final = (
    r"Error: (?:Health watches not enabled|Unable to (?:check|get) health watches)\b"
)
_SET: Final = "Health monitor systems set successfully"
_REPORT: Final = r"\|.{0,80}\bHealth Monitor Report|Health [Mm]onitor (?:systems )?[Rr]eport"
SHAPES: Final = (
    Shape(
        rf"\+[-=+]{{20,}}\s*\n(?:{_REPORT})|{_REPORT}|\|? ?Overall Health: |{_NOT_WATCHED}"
        r"|Health monitor systems set successfully",
        re.compile(r"\s*(?:\||\+[-=+]+\+?|Overall Health\b|Error: |Health monitor systems set)"),
        checks_its_end=True,
    ),
)
_BEGINS: Final = re.compile(
    rf"^[ \t]*(?:{_REPORT}|\|? ?Overall Health\b|{_NOT_WATCHED}|{_SET})", re.MULTILINE
)
_OVERALL: Final = re.compile(
    r"\|?\s*Overall Health\s*[:|]?\s*(?P<health>Healthy|Warn(?:ing)?|Fail(?:ure)?|Internal error)",
    re.IGNORECASE,
)
_GROUP: Final = re.compile(r"(?:GPU|vGPU|GPU_I|GPU_CI|NvSwitch|Link|CPU(?: Core)?|ConnectX)s?$")
_ENTITY: Final = re.compile(r"(?:-> )?(?:(?P<who>[A-Za-z]{2,12}) ID: )?(?P<number>\d{1,4})$")
_SYSTEM: Final = re.compile(r"-> (?P<name>[A-Z][\w ]{1,40})$")
_OLD: Final = re.compile(
    r"(?P<name>[A-Z][\w ]{1,40}): (?P<health>Warning|Failure)(?: - (?P<said>.*))?$"
)
_WATCH: Final = re.compile(r"(?:On|Off)$")


def matches(text: str) -> bool:
    """Whether the title of a report, or what stands in its place, is in the beginning."""
    return _BEGINS.search(text[:20_000]) is not None


def parse(text: str) -> Findings:
    """An event for each incident; one for a failure without any, and for watches that are off."""
    lines = [line.strip() for line in text.splitlines()]
    events = [check_event(each, KIND, HEALTH) for each in _incidents(lines)]
    overall = next((m["health"].lower() for line in lines if (m := _OVERALL.match(line))), None)
    refused = next((line for line in lines if re.match(_NOT_WATCHED, line)), None)
    watches = sum(_is_watch(line) for line in lines)
    if refused is not None:
        events.append(_not_known(refused))
    elif overall is None and not events:
        if not watches and _SET not in text:
            raise FormatError(f"{KIND}: no state of health in it")
    elif overall not in (None, "healthy") and not events:
        events.append(check_event(Check("overall health", overall or ""), KIND, HEALTH))
    return Findings(
        kind=KIND,
        events=tuple(events),
        problems=()
        if overall or refused or watches or _SET in text
        else ("the overall health is cut off",),
        breaks_off=overall is None and refused is None and not watches and _SET not in text,
    )


def _is_watch(line: str) -> bool:
    row = row_of(line, closed=False)
    return row is not None and _WATCH.match(row[1]) is not None


def _incidents(lines: list[str]) -> Iterator[Check]:
    group, who = "", ""
    current: Check | None = None
    for line in lines:
        row = row_of(line, closed=False)
        if row is None or _OVERALL.match(line):
            continue
        left, right = row
        old = _OLD.match(right) if not left else None
        if not left and old is None:
            if current is not None and right:
                current.said.append(right)
            continue
        if current is not None:
            yield current
            current = None
        if old is not None:
            said = [old["said"]] if old["said"] else []
            current = Check(old["name"], old["health"].lower(), who, said)
        elif _GROUP.match(left):
            group, who = left, ""
        elif (entity := _ENTITY.match(left)) is not None:
            who = f"{entity['who'] or group or 'GPU'} {entity['number']}"
        elif (system := _SYSTEM.match(left)) is not None and right and right != "Healthy":
            current = Check(system["name"], right.lower(), who)
    if current is not None:
        yield current


def _not_known(line: str) -> Event:
    return replace(
        check_event(Check("health watches", "warn", "", [line]), KIND, HEALTH),
        vendor=VENDOR,
        action="switch the watches on with dcgmi health -s a, and check again after a minute",
        todo=str(Action.NONE),
        unsettled=True,
    )

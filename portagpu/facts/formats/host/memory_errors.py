"""Errors of the host's memory and processors: ``ras-mc-ctl`` (rasdaemon), ``mcelog --client`` and
``/var/log/mcelog``.

Source: rasdaemon, util/ras-mc-ctl.in (--errors, --summary, --error-count), and mcelog, msg.c and
memdb.c. Counts are since the tools' own records began.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from portagpu.base.text import excerpt
from portagpu.facts.actions import Action
from portagpu.facts.formats import Shape
from portagpu.facts.formats.events import HOST
from portagpu.facts.readings.model import Event, Findings, FormatError

if TYPE_CHECKING:
    from collections.abc import Iterator

KIND: Final = "memory errors"

_NONE: Final = (
    r"No (?:Memory|PCIe AER|Extlog|MCE|ARM processor|devlink|disk|Memory failure|CXL .{2,40}) "
    r"(?:errors|events)\."
)
_TITLES: Final = (
    r"(?:Memory controller|PCIe AER|Extlog|MCE|ARM processor|[Dd]evlink|Disk|Memory failure) "
    r"(?:events|errors|records)(?: summary)?:"
)
_RECORD: Final = re.compile(
    r"\d{1,9} \d{4}-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d{4} "
    r"(?:error: (?P<mce>.{1,300})|(?P<count>\d{1,9}) (?P<kind>Corrected|Uncorrected|Fatal|Deferred)"
    r" error\(s\): (?P<what>.{1,300})"
    r"|(?P<aer>(?:[0-9a-f:.]{7,12} )?(?:Corrected|Uncorrected|Non-Fatal|Fatal) error: .{1,300}))"
)
_SUMMARY: Final = re.compile(
    r"(?P<kind>Corrected|Uncorrected|Fatal|Deferred) on DIMM Label\(s\): '(?P<dimm>.{0,120}?)'"
    r".{0,100}? errors: (?P<count>\d{1,12})"
)
_SUMMED: Final = re.compile(r"(?P<count>\d{1,12}) (?P<kind>[A-Z].{2,120}?)(?: errors?)?$")
_COUNTS: Final = re.compile(r"(?P<dimm>\S.{0,80}?)\t+(?P<ce>\d{1,12})\t+(?P<ue>\d{1,12})$")
_PLACE: Final = re.compile(r"SOCKET \d{1,3} CHANNEL \w{1,5} DIMM \w{1,5}$")
_TOTAL: Final = re.compile(r"(\d{1,12}) total$")
_LINE: Final = (
    rf"{_NONE}|{_TITLES}|Label\s+CE\s+UE|Memory errors|SOCKET \d|(?:un)?corrected memory errors:"
    r"|\d{1,12} (?:total|in 24h)|\d{1,9} \d{4}-\d\d-\d\d |DMI_NAME |Per page "
)
_HARDWARE: Final = "Hardware event. This is not a software error."
_MCELOG: Final = (
    r"Hardware event\. |MCE \d|CPU \d|TIME \d|MISC |ADDR |MCG |MCi |MCi_|MCA: |MCGCAP |CPUID "
    r"|STATUS |[A-Z]{2,12}(?:_[A-Z0-9]{1,16}){1,6}\b|mcelog: |SOCKET |PPIN |PROCESSOR "
    r"|Error (?:overflow|enabled)"
    r"|(?:Unc|C)orrect(?:ed|able) |Transaction: |Memory |Processor |Threshold |Large |Generic "
    r"|[Tt]imeout |failure that |Hardware |Running trigger |Corrected error"
)
_WHERE: Final = re.compile(
    r"CPU (?P<cpu>\d{1,5})(?: \d{1,3})?(?: BANK (?P<bank>\d{1,4}))?"
    r"|Memory (?:DIMM ID of error: (?P<dimm>\w{1,8})|channel ID of error: (?P<channel>\w{1,8})"
    r"|error in (?P<place>\S.{0,60}))"
)
SHAPES: Final = (
    Shape(
        r"\S{1,60}-\d{1,9} +\[\d{1,5}\] [^\n]{0,60}?"
        r"\b(?:mc|mce|aer|extlog_mem|arm|memory_failure|non_standard)_(?:event|record):? ",
        re.compile(r"\s*(?:\S{1,60}-\d{1,9} +\[\d{1,5}\] |rasdaemon: )"),
        checks_its_end=True,
    ),
    Shape(
        r"Hardware event\. This is not a software error\.\s*(?:\n|$)",
        re.compile(rf"\s*(?:{_MCELOG})|\s+\S"),
        checks_its_end=True,
    ),
    Shape(
        rf"(?:{_NONE}|{_TITLES}|Label\s+CE\s+UE)\s*(?:\n|$)|Memory errors\s*\nSOCKET ",
        re.compile(rf"\s*(?:{_LINE})|\s+\S|\S.{{0,80}}\t+\d+\t+\d+\s*$"),
        checks_its_end=True,
    ),
)
_TRACED: Final = re.compile(
    r"\S{1,60}-\d{1,9} +\[\d{1,5}\] (?:[\w.]{4,6} )? *[\d.]{1,20}:? +"
    r"(?P<event>mc|mce|aer|extlog_mem|arm|memory_failure|non_standard)_(?:event|record):? +"
    r"(?:\[(?P<level>[A-Z]{4,6})\] )?\d{4}-\d\d-\d\d [\d:]{8} [+-]\d{4} (?P<what>.{1,1000})"
)
"""What rasdaemon -f and its journal have of an event: trace-cmd's head, then its own words."""
_SOURCE: Final = "https://github.com/mchehab/rasdaemon/blob/master/util/ras-mc-ctl.in"
_HARMLESS: Final = re.compile(r"(?i)\bcorrected|no action required|deferred")


def matches(text: str) -> bool:
    """Whether a title of one of the tools stands alone in a line of the beginning."""
    head = text[:8000]
    titles = (
        rf"^[ \t]*(?:{_NONE}|{_TITLES}|Label\s+CE\s+UE)\s*$|^[ \t]*Memory errors\s*\n\s*SOCKET "
    )
    return (
        _HARDWARE in head
        or re.search(titles, head, re.MULTILINE) is not None
        or _TRACED.search(head) is not None
    )


def parse(text: str) -> Findings:
    """An event for each record of an error, and for each place that has counted some."""
    lines = text.splitlines()
    found = [*_records(lines), *_mcelog(lines), *_decoded(lines), *_traced(lines)]
    if not found and not matches(text):
        raise FormatError(f"{KIND}: no title of ras-mc-ctl or mcelog in it")
    return Findings(kind=KIND, events=tuple(found))


def _records(lines: list[str]) -> Iterator[Event]:
    section = ""
    for line in map(str.strip, lines):
        if re.match(_TITLES, line) or re.match(_NONE, line):
            section = line
        elif (one := _RECORD.match(line)) is not None:
            said = one["mce"] or one["what"] or one["aer"]
            words = f"{one['kind'] or ''} {said}"
            count = int(one["count"] or 1)
            name = (
                "PCIe error" if one["aer"] else "memory error" if one["what"] else "machine check"
            )
            yield _event(name, _HARMLESS.search(words) is not None, count, None, line)
        elif (each := _SUMMARY.search(line)) is not None:
            harmless = each["kind"] in ("Corrected", "Deferred")
            yield _event("memory error", harmless, int(each["count"]), each["dimm"], line)
        elif "summary" in section and (each := _SUMMED.match(line)) is not None:
            harmless = _HARMLESS.search(each["kind"]) is not None
            kind = section.partition(" ")[0]
            name = {"PCIe": "PCIe error", "Memory": "memory error"}.get(kind, "machine check")
            yield _event(name, harmless, int(each["count"]), None, line)
        elif (each := _COUNTS.match(line)) is not None:
            for key, harmless in (("ce", True), ("ue", False)):
                if int(each[key]):
                    yield _event("memory error", harmless, int(each[key]), each["dimm"], line)


def _traced(lines: list[str]) -> Iterator[Event]:
    names = {"mc": "memory error", "memory_failure": "memory failure", "aer": "PCIe error"}
    for line in lines:
        if (one := _TRACED.search(line)) is not None:
            # a page that was lost is a memory error that nothing corrected
            harmless = one["event"] != "memory_failure" and (
                one["level"] == "ERROR" or _HARMLESS.search(one["what"]) is not None
            )
            yield _event(names.get(one["event"], "machine check"), harmless, 1, None, one["what"])


def _mcelog(lines: list[str]) -> Iterator[Event]:
    place, harmless = "", True
    for line in map(str.strip, lines):
        if _PLACE.match(line):
            place = line
        elif line in ("corrected memory errors:", "uncorrected memory errors:"):
            harmless = line.startswith("c")
        elif (total := _TOTAL.match(line)) is not None and place and int(total.group(1)):
            yield _event("memory error", harmless, int(total.group(1)), place, line)


def _decoded(lines: list[str]) -> Iterator[Event]:
    """The records of mcelog's own log: an event for each."""
    for text in "\n".join(lines).split(_HARDWARE)[1:]:
        place: dict[str, str] = {}
        for match in _WHERE.finditer(text):
            for name, value in match.groupdict().items():
                if value is not None:
                    place.setdefault(name, value.strip())
        is_memory = re.search(r"MEMORY CONTROLLER|Memory (?:error|ECC|DIMM)", text) is not None
        harmless = "Uncorrected error" not in text and "Uncorrectable" not in text
        where = " ".join(f"{name} {value}" for name, value in place.items())
        said = next((line for line in text.split("\n") if line.startswith("MCA: ")), where)
        name = "memory error" if is_memory else "machine check"
        yield _event(name, harmless, 1, where or None, said or _HARDWARE)


def _event(name: str, harmless: bool, count: int, place: str | None, line: str) -> Event:
    word = "corrected" if harmless else "uncorrected"
    article = "a" if harmless else "an"
    times = "" if count == 1 else f", {count} counted"
    return Event(
        source=KIND,
        vendor=HOST,
        code=f"host {word} {name}",
        meaning=f"The host reports {article} {word} {name}{times}",
        action="see whether they grow" if harmless else "find the part, and have it replaced",
        todo=str(Action.MONITOR if harmless else Action.REPLACE),
        fatal=None if harmless else True,
        reference=_SOURCE,
        line=excerpt(line),
        device=place,
    )

"""The kernel's log, and the log of the fabric manager.

Reads ``dmesg`` with any of its clocks, ``journalctl -k``, ``/var/log/kern.log`` and
``/var/log/fabricmanager.log``. Meanings of lines are data:
``portagpu/facts/formats/kernel_log.toml``."""

from __future__ import annotations

import re
from typing import Final

from portagpu.facts.formats import Shape, pci_address
from portagpu.facts.formats.events import events, table
from portagpu.facts.readings.model import Event, Findings, FormatError, Reading

KIND: Final = "kernel log"
UNREAD: Final = "kernel log, not read"
"""The kind of a log without a line of the kernel, which has lines since its start."""
SERVICE: Final = "fabric manager, journal"
"""The kind of the journal of the fabric manager's service alone."""
NOT_READ: Final = "the log was not read"
NO_LINE: Final = (
    "no line in it is of a kernel's log; give what `dmesg -T` or `journalctl -k` prints for root"
)

_HEAD: Final = (
    # the file that grep found the line in; syslog's priority, or the facility and level of dmesg -x
    r"(?:/[\w./-]{1,80}:)?(?:<\d{1,3}>|[a-z]{3,8} *:[a-z]{2,6} *: ?|kernel: )?"
)
_STARTS: Final = (
    # seconds since the start, and not those of the X server
    rf"^{_HEAD}\[ *\d{{1,12}}\.\d{{3,9}}(?: *< *[\d.]{{1,18}}>)?\](?:\[[ \w]{{1,12}}\])? "
    r"(?!\((?:II|EE|WW|NI|--|\*\*|==|\+\+|!!|\?\?)\) )"
    rf"|^{_HEAD}\[[A-Z][a-z]{{2}} [A-Z][a-z]{{2}} [ \d]\d [\d:]{{8}} \d{{4}}\] "
    # dmesg --time-format iso; other programs write such times, and none of them this
    rf"|^{_HEAD}\d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\d,\d{{6}}[+-]\d\d:\d\d "
    # dmesg -H: the minute, then seconds since the line before
    rf"|^{_HEAD}\[(?:[A-Z][a-z]{{2}} ?[ \d]\d \d\d:\d\d| *\+\d{{1,9}}\.\d{{6}})\] "
    # /dev/kmsg; talosctl dmesg
    r"|^\d{1,4},\d{1,20},\d{1,20},[^;\s]{0,40};"
    r"|^(?:[\w.-]{1,60}: )?kern: [a-z]{3,8}: \[\d{4}-\d\d-\d\dT"
    # a syslog's, or one of which the time and the host were cut
    r"|(?<=\S )kernel: \S|(?<=\d  )kernel: \S|^kernel: (?=\S[^\n]{0,80}?: )"
)
_NAMES: Final = (
    r"NVRM: |nvidia-nvswitch\d|nvidia-nvlink: |nvidia-peermem:? |\[drm[:\] ]|amdgpu [0-9a-f]{4}:"
    r"|drmn\d{1,2}: |(?:pcieport|nouveau|i915|xe) [0-9a-f]{4}:|nvgpu: \d|EDAC \S"
    r"|(?:mce: )?(?:\{\d{1,9}\})?\[Hardware Error\]: "
    r"|CPU \d{1,5}: Machine Check Exception: "
    # dev_printk: a driver and the address of its device; and the first lines of a boot
    r"|[a-z][\w-]{1,20} [0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]: \S"
    r"|Linux version \d\S{1,80} \(|(?:Kernel c|C)ommand line: (?:BOOT_IMAGE|ro |root)|BIOS-e820: "
    r"|BIOS-provided physical RAM map:|ACPI: [A-Z]{3,9} |nvidia: module "
)
"""How lines begin of which everything before the message was cut."""
_IS_KERNELS: Final = (
    rf"{_STARTS}|NVRM: |nvidia-nvswitch\d|\[drm[:\]]|amdgpu [0-9a-f]{{4}}:|^(?:{_NAMES})"
)
_KERNELS: Final = re.compile(_IS_KERNELS, re.MULTILINE)
_IS_LOG: Final = re.compile(rf"{_IS_KERNELS}|\[tid \d+\]", re.MULTILINE)
_SERVICE: Final = re.compile(r"(?<=\S )nv-fabricmanager(?:\[\d{1,9}\])?: \S")
# journalctl's marks between boots; what it and dmesg print in place of a log that they may not read
_NO_LINE: Final = (
    r"-- (?:No entries|Reboot|Boot [0-9a-f]{32}|(?:Logs begin|Journal begins) at .{10,120}) --"
    r"|No journal files were (?:found|opened due to insufficient permissions)\."
    r"|Hint: You are currently not seeing messages from .{1,60}\.$"
    r"|Users in (?:the '[\w-]{1,40}' group|groups '[\w-]{1,40}'(?:, '[\w-]{1,40}'){0,9}) can see "
    r"|Pass -q to turn off this notice\."
    r"|dmesg: (?:read kernel buffer failed|klogctl): .{1,60}$"
)
_HAS_NO_LINE: Final = re.compile(rf"^\s*(?:{_NO_LINE})", re.MULTILINE)

_CLOCK: Final = (
    r"\[ *\d{1,12}\.\d{1,9}\](?:\[[ \w]{1,12}\])? ?"
    r"|\[[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d [\d:.]{8,15} \d{4}\] ?"
    # dmesg -H: the minute, then seconds since the line before
    r"|\[(?:[A-Z][a-z]{2} ?[ \d]\d \d\d:\d\d| *[+<] *\d{1,9}[.,]\d{1,9}>?)\] ?"
)
_DRIVER: Final = rf"{_NAMES}|amdgpu: "
_NO_ROOM: Final = "no room for a BAR"
_ASSIGNED: Final = re.compile(
    r"(?P<pci>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]): (?P<bar>BAR [0-5])"
    r"(?: \[[^\]\n]{1,60}\])?: assigned\b"
)
_SPEAKER: Final = re.compile(r"(?:NVRM|nvidia|nv_mem|amdgpu|kfd|drmn\d|\[drm)\b")
SHAPE: Final = Shape(
    "",
    re.compile(
        rf"{_HEAD}(?:(?:{_CLOCK})|(?<=kernel: )\S|{_DRIVER}"
        r"|\d{1,4},\d{1,20},\d{1,20},[^;]{0,40};|\[\.\.\.\] "
        r"|(?:[\w.-]{1,60}: )?kern: [a-z]{3,8}: \["
        r"|\[[A-Z][a-z]{2} \d\d \d{4} [\d:]{8}\] \[\w{1,12}\] "
        r"|(?:[^\W\d_]{3,9}\.?|\d{1,2}月) [ \d]\d [\d:.]{8,15} {1,4}(?:\S{1,100} )?"
        r"(?:kernel|nv-fabricmanager)\b"
        r"|\d\d:\d\d:\d\d (?:\S{1,100} )?kernel: \S"
        r"|\d{4}-\d\d-\d\d[T ][\d:.,]{8,18}(?:Z|[+-]\d\d:?\d\d)? "
        rf"(?:(?:\S{{1,100}} )?kernel: |(?:{_DRIVER}))"
        # dmesg --time-format iso; journalctl's own lines
        r"|\d{4}-\d\d-\d\dT[\d:]{8},\d{6}[+-]\d\d:\d\d "
        rf"|{_NO_LINE})"
    ),
)
"""Each line of a log is recognised by itself, anywhere in a text."""


def matches(text: str) -> bool:
    """Whether a text has lines of the kernel's or the fabric manager's log in its beginning."""
    return _IS_LOG.search(_with_blanks(text[:20_000])) is not None


def has_kernel_lines(text: str) -> bool:
    """Whether a line is the kernel's own: of another log, or of none, a judgement has read none."""
    return _KERNELS.search(_with_blanks(text)) is not None


def _without_second_tries(events: list[Event], text: str) -> list[Event]:
    """``events`` without those of BARs for which the kernel found room later."""
    if all(event.code != _NO_ROOM for event in events):
        return events
    found = {(pci_address(m["pci"]), m["bar"]) for m in _ASSIGNED.finditer(text)}
    return [
        event
        for event in events
        if event.code != _NO_ROOM
        or (bar := re.search(r"BAR \d", event.line)) is None
        or (event.pci, bar.group()) not in found
    ]


def _with_blanks(text: str) -> str:
    """``text`` without the tabs that some forms of paste have in the place of blanks."""
    return text.replace("\t", " ")


def from_the_driver(line: str) -> str:
    """A line from the name of a GPU's driver on; the whole line, where none is in it."""
    match = _SPEAKER.search(line)
    return line[match.start() :] if match is not None else line


def process_codes() -> frozenset[str]:
    """Codes of events whose lines name processes and no device."""
    return table("kernel_log").process_codes


def parse(text: str) -> Findings:
    """An event for every line that reports an error, in order, with its documented meaning.

    The marks of a log without lines are findings of the kind ``UNREAD``. Raises FormatError for a
    text that has neither.
    """
    text = _with_blanks(text)
    # a system's log may begin with many lines of programs
    is_service = _IS_LOG.search(text) is None and _SERVICE.search(text) is not None
    if _IS_LOG.search(text) is None and not is_service:
        if _HAS_NO_LINE.search(text) is None:
            raise FormatError(f"{KIND}: {NO_LINE}")
        return Findings(kind=UNREAD, problems=(f"{NOT_READ}: {NO_LINE}",))
    rules = table("kernel_log")
    found = []
    readings: dict[str, Reading] = {}
    versions: dict[str, str] = {}
    for line, event in events(text, rules, KIND):
        if event is not None:
            found.append(event)
            continue
        for vendor, pattern in rules.gpus:
            match = pattern.search(line)
            address = pci_address(match.group("pci")) if match is not None else None
            if match is not None and address is not None:
                reading = Reading(source=KIND, vendor=vendor, pci=address, uuid=match.group("uuid"))
                readings[address] = reading
        for name, pattern in rules.versions:
            if (match := pattern.search(line)) is not None:
                versions[name] = match.group("version")
    return Findings(
        kind=SERVICE if is_service else KIND,
        readings=tuple(readings.values()),
        events=tuple(_without_second_tries(found, text)),
        versions=versions,
    )

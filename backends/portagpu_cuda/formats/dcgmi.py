"""What dcgmi prints: ``discovery -l``, ``diag`` and ``nvlink --link-status``.

Source: NVIDIA/DCGM, dcgmi/ of 3.x and 4.x (DeviceInfo, Diag, Nvlink), and outputs that
people published. DCGM numbers GPUs as NVML does. The list of discovery is of the host engine, which
may serve fewer GPUs than the machine has.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from portagpu.facts.formats import MAX_DEVICES, Shape, pci_address, stated, within_device_limit
from portagpu.facts.readings.model import End, Findings, FormatError, Link, Node, Reading
from portagpu_cuda.formats._dcgm import DIAGNOSIS, Check, check_event, row_of
from portagpu_cuda.formats._nvidia import VENDOR, unmasked_uuid

if TYPE_CHECKING:
    from collections.abc import Iterator

KIND: Final = "dcgmi"

_TABLE: Final = re.compile(r"\s*(?:\||\+[-=]|\d{1,4} (?:GPU|NvSwitch|CPU)(?:e?s)? found\.)")
_LINKS: Final = re.compile(
    r"\s*(?:\||\+[-=+]+\+|GPUs:|NvSwitches:|gpuId \d|physicalId \d|switchId \d"
    r"|[UDX_?](?: [UDX_?])*\s*$|No NvSwitches|No GPUs|Key:)"
)
SHAPES: Final = (
    Shape(
        r"\d{1,4} GPUs? found\.\s*\n\+-|\| GPU ID \| Device Information|"
        r"\| +Diagnostic +\| +Result |Successfully ran diagnostic for group\."
        r"|[|+]-----  (?:Metadata|Deployment|Integration|Hardware|Stress)  -+\+-+[|+]",
        re.compile(
            _TABLE.pattern + r"|\s*Successfully ran diagnostic|\s*(?:Error|Warning): .{0,300}"
        ),
        checks_its_end=True,
    ),
    Shape(r"\|\s+NvLink Link Status\s+\||gpuId \d{1,4}:\s*\n[UDX_?] ", _LINKS, checks_its_end=True),
)
_FOUND: Final = re.compile(r"(\d{1,4}) GPUs? found\.")
_SAYS: Final = re.compile(r"(Name|PCI Bus ID|Device UUID)[ =>:]{1,8}(\S.{0,200})")
_RESULT: Final = re.compile(r"(Fail|Warn(?:ing)?|Error)\b(?: - (?P<who>.{1,80}))?", re.IGNORECASE)
_MESSAGE: Final = re.compile(r"(?:Error|Warning|Info)\b")
_LINK_OF: Final = re.compile(r"gpuId (\d{1,4}):")
_TITLES: Final = re.compile(
    rf"Device Information|NvLink Link Status|{_LINK_OF.pattern}"
    r"|\|\s+Diagnostic\s+\|\s+Result|^\s*[|+]-----  [A-Z]",
    re.MULTILINE,
)
_STATES: Final = re.compile(r"[UDX_?](?: [UDX_?]){0,63}")
_ENTITY: Final = re.compile(
    r"(?P<who>[A-Za-z_]{2,12}) ?(?P<number>\d{1,4}): (?P<result>Pass|Skip|Warn|Fail|Not Run)$"
)
"""The result of one device, in a row of its own (4.x)."""


def matches(text: str) -> bool:
    """Whether one of the tool's titles stands in the beginning."""
    return _TITLES.search(text[:20_000]) is not None


def parse(text: str) -> Findings:
    """The GPUs of discovery, the checks that did not pass, and the links that are not up."""
    lines = [line.strip() for line in text.splitlines()]
    readings = list(_devices(lines))
    found = _FOUND.search(text)
    count = int(found.group(1)) if found is not None and "Device Information" in text else None
    links = list(_links(lines))[: MAX_DEVICES * 8]
    checks = list(_checks(lines))
    known = readings or links or checks or count is not None
    if not known and "Diagnostic" not in text and "-----  " not in text:
        raise FormatError(f"{KIND}: no device, check or link in it")
    short = count is not None and len(readings) < count
    return Findings(
        kind=KIND,
        readings=within_device_limit(readings, KIND),
        links=tuple(links),
        events=tuple(check_event(each, KIND, DIAGNOSIS) for each in checks),
        problems=(f"{count} GPUs are counted and {len(readings)} described",) if short else (),
        breaks_off=short,
        complete=None if count is None else not short,
    )


def _devices(lines: list[str]) -> Iterator[Reading]:
    """The rows of the table of devices; rows of switches and CPUs say no address."""
    index: int | None = None
    facts: dict[str, str] = {}
    of_gpus = False
    for line in [*lines, "+-+"]:
        row = row_of(line, closed=True)
        if row is not None and row[1] == "Device Information":
            of_gpus = row[0] == "GPU ID"
        elif row is None and line.startswith("+"):
            if index is not None and facts:
                yield _device(index, facts)
            index, facts = None, {}
        elif row is not None and of_gpus:
            if row[0].isdigit():
                index = int(row[0][:6])
            if (says := _SAYS.match(row[1])) is not None:
                facts[says.group(1)] = says.group(2).strip()


def _device(index: int, facts: dict[str, str]) -> Reading:
    name = stated(facts.get("Name"))
    return Reading(
        source=KIND,
        vendor=VENDOR,
        index=index,
        pci=pci_address(facts.get("PCI Bus ID")),
        uuid=unmasked_uuid(facts.get("Device UUID")),
        # the engine's own words where it has no name
        name=None if name is None or "NULL" in name else name,
    )


def _checks(lines: list[str]) -> Iterator[Check]:
    """The checks of a diagnosis that did not pass."""
    current: Check | None = None
    for line in lines:
        row = row_of(line, closed=True)
        if row is None:
            continue
        name, value = row
        result = _RESULT.match(value)
        if current is not None and not name and (entity := _ENTITY.match(value)) is not None:
            if entity["result"] in ("Warn", "Fail"):
                who = f", {entity['number']}" if current.who else f"GPU {entity['number']}"
                is_gpu = entity["who"] == "GPU"
                current = replace(current, who=current.who + (who if is_gpu else ""))
                if not is_gpu:
                    current.said.append(value)
        elif current is not None and (not name or _MESSAGE.match(name) is not None):
            current.said.append(value)
        elif name and _MESSAGE.match(name) is None:
            if current is not None:
                yield current
            current = None
            if result is not None:
                current = Check(name, result.group(1).lower(), result["who"] or "")
    if current is not None:
        yield current


def _links(lines: list[str]) -> Iterator[Link]:
    index: int | None = None
    for line in lines:
        if (of := _LINK_OF.match(line)) is not None:
            index = int(of.group(1))
        elif line.startswith("NvSwitches"):
            index = None
        elif index is not None and _STATES.fullmatch(line) is not None:
            for number, state in enumerate(line.split()):
                # a link that the GPU does not have, or that is switched off
                if state in "UD":
                    yield Link(
                        source=KIND,
                        a=End(Node.GPU, f"GPU{index}", index=index),
                        b=End(Node.UNKNOWN, "not stated"),
                        kind="nvlink",
                        count=1,
                        up=state == "U",
                        extra={"link": str(number)},
                    )

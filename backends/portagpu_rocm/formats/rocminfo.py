"""Reads ``rocminfo``: one reading for each agent that is a GPU.

An agent's own lines are two blanks deep and begin with its name (``rocminfo.cc``); pools and ISAs
stand deeper. The tool prints no PCI domain, so an address is given only where all agents' differ,
with the domain 0 of machines with one; what it prints under "Node" is the KFD's node. In lines that
grep took out of the list, an agent that is named after an architecture is a GPU.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from portagpu.facts.arch import base_name
from portagpu.facts.formats import Shape, integer, number, stated, within_device_limit
from portagpu.facts.formats.events import no_answer_events
from portagpu.facts.readings import Findings, FormatError, GpuState, Reading
from portagpu.facts.readings.model import without_none
from portagpu_rocm.formats._amd import (
    VENDOR,
    gfx_arch,
    product_name,
    unique_id_from_uuid,
    without_colours,
)

KIND: Final = "rocminfo"
MASKED: Final = True
"""The variables of visible devices hide GPUs from it."""

_HEAD: Final = 4096
_LINE: Final = re.compile(r"( *)([A-Za-z][^:]{0,63}):+\s*(.*)")
_MODULE: Final = re.compile(r"ROCk module version (\S{1,40}) is loaded")
_VERSIONS: Final = {"Runtime Version": "hsa", "Runtime Ext Version": "hsa-ext"}
_FIRMWARE: Final = {"Packet Processor uCode": "CP", "SDMA engine uCode": "SDMA"}
_AGENT_DEPTH: Final = 2
_NO_GPU: Final = "rocminfo: no agent is a GPU"
"""What the tool does not print, and its list shows."""
_END: Final = "*** Done ***"

_GREPPED: Final = re.compile(r"Name: +(gfx[0-9a-f]{3,5})\s*$", re.MULTILINE)
_CUT: Final = (
    r"(?:Uuid: +GPU-[0-9a-f]|Chip ID: +\d|Device Type: +GPU\b|Marketing Name: +AMD Instinct)"
)
"""A line of a GPU's agent, from which on people copy."""
_GREPPED_LINE: Final = r"(?:Marketing |Vendor )?Name: +\S"
SHAPES: Final = (
    Shape(
        r"Name: +(?:gfx[0-9a-f]{3,5}|amdgcn-amd-amdhsa--gfx\S{3,40})\s*\n",
        re.compile(rf"\s*{_GREPPED_LINE}"),
        weak=True,
        last=re.compile(rf".*{_GREPPED_LINE}.*"),
    ),
    Shape(
        _CUT,
        re.compile(r"\s+\S|\*\*\*|Agent +\d|[A-Z][^:\n]{1,63}:|\w{0,60}: not "),
        weak=True,
    ),
    Shape(
        r"ROCk module |HSA System Attributes|HSA Agents *\n\*{3}",
        re.compile(
            r"\s+\S|[=*]|ROCk module |HSA |Agent +\d|[A-Z][^:\n]{0,63}:|\w{0,60}: not |\*\*\*"
        ),
        re.compile(re.escape(_END)),
    ),
)


@dataclass(slots=True)
class _Agent:
    values: dict[str, str] = field(default_factory=dict)
    pool_bytes: int | None = None
    isas: list[str] = field(default_factory=list)


def matches(text: str) -> bool:
    """Whether one of the headings stands in the first lines of ``text``."""
    head = text[:_HEAD]
    known = "HSA System Attributes" in head or "HSA Agents" in head or _GREPPED.search(head)
    return bool(known) or re.search(rf"^ *{_CUT}", head, re.MULTILINE) is not None


def parse(text: str) -> Findings:
    """What the agents say; raises FormatError where there is none."""
    lines = without_colours(text).splitlines()
    if not any(title in text for title in ("HSA System Attributes", "HSA Agents", _END)):
        in_an_agent = re.search(rf"^ *{_CUT}", text, re.MULTILINE) is not None
        if not in_an_agent or (_GREPPED.search(text) is not None and "Device Type:" not in text):
            return _grepped(lines)
        lines = _from_an_agent(lines)
    agents, versions = _agents(lines)
    if not agents:
        raise FormatError("this text has no agent of rocminfo")
    gpus = [agent for agent in agents if agent.values.get("Device Type") == "GPU"]
    locations = [integer(agent.values.get("BDFID")) for agent in gpus]
    uses = Counter(locations)
    untyped = sum("Device Type" not in agent.values for agent in agents)
    broken = _END not in text
    problems = [f"agents without a device type, passed over: {untyped}"] if untyped else []
    if broken:
        problems.append(f"the text breaks off: {_END!r} is not in it")
    return Findings(
        kind=KIND,
        events=() if gpus or untyped else no_answer_events(_NO_GPU),
        readings=within_device_limit(
            (
                _reading(index, agent, uses[location] == 1)
                for index, (agent, location) in enumerate(zip(gpus, locations, strict=True))
            ),
            KIND,
        ),
        versions=versions,
        problems=tuple(problems),
        breaks_off=broken,
        complete=False,
    )


def _from_an_agent(lines: list[str]) -> list[str]:
    """Lines that begin in an agent, as deep as the tool prints them below the agent's name."""
    depths = [len(match.group(1)) for line in lines if (match := _LINE.match(line)) is not None]
    more = " " * max(0, _AGENT_DEPTH - min(depths, default=0))
    own = " " * _AGENT_DEPTH
    found = [f"{own}Name:"]
    named = False
    for line in lines:
        match = _LINE.match(f"{more}{line}")
        label = match.group(2) if match is not None and match.group(1) == own else ""
        if label == "Marketing Name" and named:
            # grep left the names alone
            found.append(f"{own}Name:")
        named = label == "Marketing Name" or (named and label != "Name")
        found.append(f"{more}{line}")
        if match is not None and label == "Marketing Name" and match[3].startswith("AMD Instinct"):
            found.append(f"{own}Device Type: GPU")
    return found


def _grepped(lines: list[str]) -> Findings:
    """The GPUs of lines with names alone."""
    gpus: list[_Agent] = []
    is_gpu = False
    for line in map(str.strip, lines):
        if (name := _GREPPED.match(line)) is not None:
            gpus.append(_Agent({"Name": name.group(1)}))
            is_gpu = True
        elif line.startswith("Name:"):
            is_gpu = is_gpu and "amdgcn" in line
        elif line.startswith("Marketing Name:") and is_gpu:
            gpus[-1].values.setdefault("Marketing Name", line.partition(":")[2].strip())
    if not gpus:
        raise FormatError("this text has no agent of rocminfo")
    return Findings(
        kind=KIND,
        readings=within_device_limit(
            (_reading(index, agent, False) for index, agent in enumerate(gpus)), KIND
        ),
        problems=("lines were taken out of the list: more of it says more",),
        breaks_off=True,
        complete=False,
    )


def _agents(lines: list[str]) -> tuple[list[_Agent], dict[str, str]]:
    agents: list[_Agent] = []
    versions: dict[str, str] = {}
    part, segment = "", ""
    for line in lines:
        match = _LINE.match(line)
        if match is None:
            module = _MODULE.match(line)
            if module is not None:
                versions["amdgpu"] = module.group(1)
            continue
        depth, key, value = len(match.group(1)), match.group(2).strip(), match.group(3).strip()
        if depth == 0:
            if key in _VERSIONS and stated(value) is not None:
                versions[_VERSIONS[key]] = value
        elif depth == _AGENT_DEPTH:
            if key == "Name":
                agents.append(_Agent())
            part = key
            if agents:
                agents[-1].values.setdefault(key, value)
        elif agents and part == "Pool Info":
            if key == "Segment":
                segment = value
            elif key == "Size" and segment.startswith("GLOBAL") and agents[-1].pool_bytes is None:
                agents[-1].pool_bytes = _kilobytes(value)
        elif agents and part == "ISA Info" and key == "Name":
            agents[-1].isas.append(value)
    return agents, versions


def _kilobytes(text: str) -> int | None:
    """Bytes of "67092480(0x3ffc000) KB", which counts 1024 bytes each (``DisplayPoolInfo``)."""
    amount = integer(text)
    return amount * 1024 if amount is not None and amount > 0 and text.endswith("KB") else None


def _reading(index: int, agent: _Agent, address_is_its_own: bool) -> Reading:
    values = agent.values
    uuid, name = stated(values.get("Uuid")), values.get("Name", "")
    unique_id = unique_id_from_uuid(uuid)
    isas = [isa.removeprefix("amdgcn-amd-amdhsa--") for isa in agent.isas]
    firmware = {name: stated(values.get(key)) for key, name in _FIRMWARE.items()}
    extra = {
        "node_id": stated(values.get("Node")),
        "bdfid": stated(values.get("BDFID")),
        "isa": " ".join(isas) or None,
        "shader_engines": stated(values.get("Shader Engines")),
        "simds_per_cu": stated(values.get("SIMDs per CU")),
    }
    return Reading(
        source=KIND,
        vendor=VENDOR,
        index=index,
        pci=_address(integer(values.get("BDFID"))) if address_is_its_own else None,
        uuid=uuid if unique_id is not None else None,
        unique_id=unique_id,
        name=product_name(values.get("Marketing Name")),
        arch=gfx_arch(name) or next((base_name(isa) for isa in isas if gfx_arch(isa)), None),
        warp_size=integer(values.get("Wavefront Size")),
        device_id=integer(values.get("Chip ID")),
        memory_bytes=agent.pool_bytes,
        unit_count=integer(values.get("Compute Unit")),
        firmware=without_none(firmware),
        state=GpuState(max_clock_mhz=number(values.get("Max Clock Freq. (MHz)"))),
        extra=without_none(extra),
    )


def _address(location: int | None) -> str | None:
    """The location id's low 16 bits are bus, device and function."""
    if location is None or location <= 0:
        return None
    return f"0000:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}.{location & 7}"

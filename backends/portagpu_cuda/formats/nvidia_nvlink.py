"""``nvidia-smi nvlink``: status (-s), capabilities (-c), errors (-e), remote ends (-p, -R).

All are a line a GPU and lines a link below it. Speeds are of one direction: NVLink 4 is 26.562 GB/s
a link here and 900 GB/s for 18 links in both directions in the data sheet.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from portagpu.base.text import excerpt
from portagpu.facts.formats import Shape, pci_address, stated, within_device_limit
from portagpu.facts.readings.model import End, Findings, FormatError, Link, Node, Reading
from portagpu_cuda.formats._nvidia import VENDOR, unmasked_uuid

if TYPE_CHECKING:
    from collections.abc import Collection

KIND: Final = "nvidia-smi nvlink"

_GPU: Final = re.compile(r"GPU (\d{1,4}): (\S[^()]{0,200}?)(?: *\(UUID: ([^()]{1,100})\))?")
_LINK: Final = re.compile(r"Link (\d{1,3})(: |, )(.{1,200})")
_SPEED: Final = re.compile(r"(\d{1,6}(?:\.\d{1,6})?) GB/s")
_COUNT: Final = re.compile(r"([A-Z][\w /-]{1,60}?): (\d{1,20})")
_CAPABILITY: Final = re.compile(r"(\S[\w ]{1,60}?) (?:is )?supported: (true|false)")
_REMOTE: Final = re.compile(r"(?:Remote Device )?([0-9A-Fa-f:.]{7,16})(?:: Link (\d{1,3}))?")
_ANSWER: Final = re.compile(
    r"(?:NVML: )?(?:Nvlink queries|Device does not|Unable to retrieve N[vV][lL]ink).{0,200}"
)
_ABSENT: Final = "Device does not"
_ALL_INACTIVE: Final = "all links are inactive"
"""Of products with NVLink a fault; of cards without a bridge as designed. Their facts decide."""
_INACTIVE: Final = "<inactive>"
_GIGABYTE: Final = 1e9

_LINES: Final = re.compile(r"\s*(?:GPU \d|Link \d|NVML: |Nvlink |Unable to |Device does not)")
SHAPES: Final = (
    # of drivers and options that print no UUID
    Shape(
        r"GPU \d{1,4}: [^()\n]{1,200}\n"
        r"(?:Link \d|NVML: |Nvlink |Unable to retrieve N|Device does not)",
        _LINES,
        device=re.compile(r"GPU \d{1,4}:"),
    ),
    Shape(r"Link \d{1,3}: (?:\d{1,6}(?:\.\d{1,6})? GB/s|<inactive>)", _LINES, weak=True),
)


@dataclass(slots=True)
class _Lane:
    """One NVLink of a GPU, from all lines about it."""

    up: bool | None = None
    gb_s: float | None = None
    access: bool | None = None
    remote: str | None = None
    extra: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Gpu:
    index: int | None
    name: str | None = None
    uuid: str | None = None
    answer: str | None = None
    links: dict[int, _Lane] = field(default_factory=dict)


def matches(text: str) -> bool:
    """Whether lines of links, or the tool's answer that there are none, stand at the beginning."""
    lines = [line.strip() for line in text[:20_000].splitlines()[:60]]
    return any(_is_link(line) or _ANSWER.fullmatch(line) is not None for line in lines)


def parse(text: str) -> Findings:
    """A link for each NVLink, from all lines about it, and a reading for each GPU."""
    gpus: dict[int | None, _Gpu] = {}
    current: _Gpu | None = None
    for line in map(str.strip, text.splitlines()):
        if (match := _GPU.fullmatch(line)) is not None:
            index, name, uuid = match.groups()
            current = gpus.setdefault(
                int(index), _Gpu(int(index), stated(name), unmasked_uuid(uuid))
            )
        elif (link := _LINK.fullmatch(line)) is not None:
            # "-i 1" of old drivers prints the links without the line of their GPU
            current = current or gpus.setdefault(None, _Gpu(None))
            _store(current.links.setdefault(int(link.group(1)), _Lane()), link.group(3))
        elif _ANSWER.fullmatch(line) is not None and current is not None:
            current.answer = excerpt(line)
    if not any(gpu.links or gpu.answer for gpu in gpus.values()):
        raise FormatError(f"{KIND}: no line of a link is in the text")
    last = list(gpus.values())[-1]
    broken = (not last.links and last.answer is None) or _breaks_off(last, gpus.values())
    if broken:
        # a link of which nothing is said may be up
        last.links = {at: lane for at, lane in last.links.items() if lane.up is False}
    return Findings(
        kind=KIND,
        readings=within_device_limit(
            (_reading(gpu) for gpu in gpus.values() if gpu.index is not None), KIND
        ),
        links=(
            *(
                _link(gpu, number, lane)
                for gpu in gpus.values()
                for number, lane in gpu.links.items()
            ),
            *(
                replace(_link(gpu, 0, _Lane()), count=0, extra={})
                for gpu in gpus.values()
                if not gpu.links and _ALL_INACTIVE in (gpu.answer or "").lower()
            ),
        ),
        problems=tuple(
            f"GPU {gpu.index}: {gpu.answer}"
            for gpu in gpus.values()
            if gpu.answer is not None and not gpu.answer.startswith(_ABSENT)
        ),
        breaks_off=broken,
    )


def _breaks_off(last: _Gpu, gpus: Collection[_Gpu]) -> bool:
    """Whether the last GPU has fewer lines of links than others of its name.

    The tool lists all links of a product, also those that are down.
    """
    return any(one.name == last.name and len(one.links) > len(last.links) > 0 for one in gpus)


def _is_link(line: str) -> bool:
    match = _LINK.fullmatch(line)
    return match is not None and _is_known_value(match.group(3))


def _is_known_value(words: str) -> bool:
    forms = (_SPEED, _COUNT, _CAPABILITY, _REMOTE)
    return words == _INACTIVE or any(form.fullmatch(words) for form in forms)


def _store(lane: _Lane, words: str) -> None:
    if words == _INACTIVE:
        lane.up = False
    elif (speed := _SPEED.fullmatch(words)) is not None:
        lane.up, lane.gb_s = True, float(speed.group(1))
    elif (ability := _CAPABILITY.fullmatch(words)) is not None:
        name, answer = ability.groups()
        if name == "P2P":
            lane.access = answer == "true"
        lane.extra[f"{name} supported"] = answer
    elif (count := _COUNT.fullmatch(words)) is not None:
        lane.extra[count.group(1).lower()] = count.group(2)
    elif (remote := _REMOTE.fullmatch(words)) is not None:
        lane.remote = pci_address(remote.group(1))
        if remote.group(2) is not None:
            lane.extra["remote link"] = remote.group(2)


def _reading(gpu: _Gpu) -> Reading:
    return Reading(
        source=KIND,
        vendor=VENDOR,
        index=gpu.index,
        uuid=gpu.uuid,
        name=gpu.name,
        extra={} if gpu.answer is None else {"nvlink": gpu.answer},
    )


def _link(gpu: _Gpu, number: int, lane: _Lane) -> Link:
    name = "GPU" if gpu.index is None else f"GPU{gpu.index}"
    return Link(
        source=KIND,
        a=End(Node.GPU, name, index=gpu.index),
        # a GPU or an NVSwitch: the tool states no more than its address
        b=End(Node.UNKNOWN, lane.remote or "not stated", pci=lane.remote),
        kind="nvlink",
        # lines of errors are often chosen, and do not count a GPU's links
        count=None if lane.up is None and lane.remote is None and lane.access is None else 1,
        bandwidth_bytes_s=None if lane.gb_s is None else round(lane.gb_s * _GIGABYTE),
        up=lane.up,
        peer_access=lane.access,
        extra={"link": str(number), **lane.extra},
    )

"""``nvidia-smi -q -x``: XML of all driver generations, nvsmi_device_v2.dtd to v13.dtd."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from portagpu.facts.formats import integer, stated, within_device_limit
from portagpu.facts.formats.json_xml import Element, read_xml
from portagpu.facts.readings.model import Findings, FormatError, GpuPart, Reading
from portagpu_cuda.formats._nvidia import (
    failures,
    lost_gpu,
    mig_part,
    reading,
    slug,
    version_texts,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

KIND: Final = "nvidia-smi -q -x"

ROOT: Final = "nvidia_smi_log"
_ROOT: Final = f"<{ROOT}"
_END: Final = f"</{ROOT}>"
_BEGINNING: Final = 20_000
"""Characters in which the root element stands: ``--dtd`` puts the whole DTD before it."""

# long lists that say nothing of the GPU's state
_SKIPPED: Final = frozenset({"supported_clocks", "accounted_processes", "mig_device"})
_PROCESSES: Final = ("processes", "compute_processes")
_DEEPEST: Final = 8


def matches(text: str) -> bool:
    """Whether the root element of nvidia-smi's XML stands at the beginning."""
    return _ROOT in text[:_BEGINNING]


def parse(text: str) -> Findings:
    """The GPUs of the log; of the last that is complete where the tool was run in a loop."""
    document, before, count = _document(text)
    root, problems = read_xml(document, KIND)
    if root.tag != "nvidia_smi_log":
        raise FormatError(f"{KIND}: the root element is {root.tag[:40]!r}")
    found = list(problems)
    broken = bool(problems)
    if count > 1:
        found.append(f"the text holds {count} logs; this is the last that is complete")
    gpus = within_device_limit(root.children_named("gpu"), KIND)
    attached = integer(_text(root, "attached_gpus"))
    if attached is not None and attached != len(gpus):
        found.append(f"{attached} GPUs are attached and {len(gpus)} described")
        broken = True
    readings: list[Reading] = []
    for position, gpu in enumerate(gpus):
        # the log states no index: the order is the index only where every GPU is there
        one, problem = _gpu(gpu, position if attached in (None, len(gpus)) else None)
        readings.append(one)
        found.extend(filter(None, (problem,)))
    for line in before.splitlines():
        if (missing := lost_gpu(line)) is not None:
            readings.append(missing[0])
            found.append(missing[1])
    versions = version_texts({child.tag: child.text for child in root.children})
    if not readings and not versions and attached is None:
        raise FormatError(f"{KIND}: the log breaks off before it says anything")
    return Findings(
        kind=KIND,
        readings=tuple(readings),
        versions=versions,
        taken=_text(root, "timestamp"),
        problems=tuple(found),
        breaks_off=broken,
        complete=attached is not None and not broken,
    )


def _document(text: str) -> tuple[str, str, int]:
    """(a log's text, what stands before the first, how many logs there are)."""
    starts = [at for at in (text.find(head) for head in ("<?xml", "<!DOCTYPE", _ROOT)) if at >= 0]
    first = min(starts, default=0)
    before, text = text[:first], text[first:]
    pieces = text.split(_END)
    count = len(pieces) - 1 + (_ROOT in pieces[-1])
    chosen = pieces[-2] + _END if len(pieces) > 1 else pieces[-1]
    # control characters that XML does not allow would hide everything after them
    clean = chosen.lstrip().translate(
        {code: None for code in range(32) if chr(code) not in "\t\n\r"}
    )
    return clean, before, count


def _text(element: Element, tag: str) -> str | None:
    return next((stated(child.text) for child in element.children_named(tag)), None)


def _gpu(gpu: Element, position: int | None) -> tuple[Reading, str | None]:
    values = dict(_leaves(gpu))
    if (address := gpu.get("id")) is not None:
        values.setdefault("pci/pci_bus_id", address)
    found = reading(values, KIND, index=position, parts=_parts(gpu), processes=_process_count(gpu))
    return found, failures(values, found)


def _leaves(element: Element) -> Iterator[tuple[str, str]]:
    """(path, text) of every element that holds text, below ``element``."""
    waiting = [("", child) for child in reversed(element.children)]
    seen: set[str] = set()
    while waiting:
        above, child = waiting.pop()
        path = f"{above}{slug(child.tag)}"
        if child.text.strip() and path not in seen:
            seen.add(path)
            yield path, child.text.strip()
        if child.tag not in _SKIPPED and path.count("/") < _DEEPEST:
            waiting.extend((f"{path}/", below) for below in reversed(child.children))


def _parts(gpu: Element) -> tuple[GpuPart, ...]:
    return tuple(
        mig_part(dict(_leaves(device)))
        for devices in gpu.children_named("mig_devices")
        for device in devices.children_named("mig_device")
    )


def _process_count(gpu: Element) -> int | None:
    """The number of processes; None for "N/A", when the tool may not see them."""
    for tag in _PROCESSES:
        for listed in gpu.children_named(tag):
            if not listed.text.strip() or listed.children:
                return len(listed.children_named("process_info"))
            if listed.text.strip().lower() == "none":
                return 0
    return None

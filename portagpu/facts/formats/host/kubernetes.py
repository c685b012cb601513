"""What kubectl says of a node's GPUs: capacity and allocatable, conditions, and events.

``kubectl describe node`` and ``get node -o yaml`` or ``json``. A device plugin lowers allocatable
when it calls a device unhealthy. Conditions are those of node-problem-detector's plugins:
NVSentinel, AKS and others name theirs after GPUs. "True" is a problem in each of them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.text import excerpt
from portagpu.facts.actions import Action
from portagpu.facts.formats import Shape
from portagpu.facts.formats.events import HOST
from portagpu.facts.formats.json_xml import json_documents, json_start
from portagpu.facts.readings.model import Event, Findings, FormatError

if TYPE_CHECKING:
    from collections.abc import Iterator

KIND: Final = "kubectl"

_RESOURCE: Final = r"[a-z0-9.-]{2,60}/(?:gpu|mig-[\w.-]{2,30}|vgpu|gpumem)"
_NUMBER: Final = re.compile(rf"\s*[\"']?({_RESOURCE})[\"']?:\s*[\"']?(\d{{1,6}})[\"']?(?:\s.*)?,?$")
_SECTION: Final = re.compile(r"\s*[\"']?(capacity|allocatable)[\"']?:\s*\{?\s*$", re.IGNORECASE)
_CONDITION: Final = re.compile(
    r"\s*(?P<type>[A-Z]\w{2,60})\s+(?P<status>True|False|Unknown)\s+(?P<rest>\S.{0,2000})$"
)
_GPU_WORDS: Final = re.compile(
    r"gpu|xid|nvlink|nvswitch|nvidia|amd|infiniband|\bib\b|accelerat", re.IGNORECASE
)
_CONDITION_KEYS: Final = ('"lastTransitionTime"', '"status"', '"type"')
"""Of the conditions alone, as a path of kubectl's prints them."""
_NORMAL: Final = frozenset(
    {"MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable", "Ready"}
)
_GOOD: Final = re.compile(r"(?:Ready|Healthy|OK|Available|Schedulable)$")
_TIMES: Final = re.compile(
    r"(?:[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} [\d:]{8} [+-]\d{4}\s+){1,2}"
)
_ACTION: Final = re.compile(r"Recommended Action=(?P<action>[A-Z_]{2,40})")
RECOMMENDED: Final = {
    "NONE": Action.NONE,
    "COMPONENT_RESET": Action.RESET,
    "REPLACE_VM": Action.REPLACE,
    **dict.fromkeys(("RESTART_VM", "RESTART_BM", "CONTACT_SUPPORT"), Action.ISOLATE),
    **dict.fromkeys(("RUN_FIELDDIAG", "RUN_DCGMEUD"), Action.ISOLATE),
}
"""What NVSentinel recommends (RecommendedAction of its health_event.proto), as our actions."""
_FIELDS: Final = (
    r"Name|Roles|Labels|Annotations|CreationTimestamp|Taints|Unschedulable|Lease|Conditions"
    r"|Addresses|Capacity|Allocatable|System Info|PodCIDRs?|ProviderID|Non-terminated Pods"
    r"|ExternalID|Allocated resources|Events"
)
SHAPES: Final = (
    Shape(
        r"(?:Capacity|Allocatable|capacity|allocatable):\s*\n|Name: {5,}\S+\s*\nRoles: "
        r"|Type {5,}Status +(?:LastHeartbeatTime|LastTransitionTime) ",
        re.compile(
            rf"\s*(?:(?:{_FIELDS}|capacity|allocatable):|[\w.-]{{1,80}}(?:/[\w.-]{{1,80}})?[:=]"
            r"|[A-Z]\w{2,60} +(?:True|False|Unknown) |Type +Status|-{2,}[ -]*$)"
            r"|\s+\S"
        ),
        checks_its_end=True,
    ),
)
_SOURCE: Final = (
    "https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/device-plugins/"
)


def matches(text: str) -> bool:
    """Whether a node's sections stand in the beginning, as text, YAML or JSON."""
    head = text[:60_000]
    if json_start(head) == 0:
        return (
            ('"allocatable"' in head and '"capacity"' in head)
            or ('"conditions"' in head and '"nodeInfo"' in head)
            or all(word in head for word in _CONDITION_KEYS)
        )
    return any(map(_SECTION.match, head.splitlines())) or re.search(
        r"^[ \t]*Type +Status +Last(?:Heartbeat|Transition)Time ", head, re.MULTILINE
    ) is not None  # fmt: skip


def parse(text: str) -> Findings:
    """An event for each GPU resource that is not whole, and for each condition that names GPUs."""
    counts: dict[str, dict[str, int]] = {"capacity": {}, "allocatable": {}}
    events: list[Event] = []
    section = ""
    if any(key in text for key in ('"allocatable"', '"conditions"', _CONDITION_KEYS[0])):
        events += _read_json(text, counts)
    for line in text.splitlines():
        if (found := _SECTION.match(line)) is not None:
            section = found.group(1).lower()
        elif section and (number := _NUMBER.match(line)) is not None:
            counts[section].setdefault(number.group(1), int(number.group(2)))
        elif re.match(r"\S", line) and not line.startswith(("}", "]")):
            section = ""
        if (condition := _CONDITION.match(line)) is not None:
            events += _condition(condition["type"], condition["status"], condition["rest"])
    if not any(counts.values()) and not events and not matches(text):
        raise FormatError(f"{KIND}: no section of a node in it")
    known = counts["capacity"].keys() & counts["allocatable"].keys()
    events += [
        _short(name, counts["allocatable"][name], counts["capacity"][name])
        for name in sorted(known)
        if counts["allocatable"][name] < counts["capacity"][name]
    ]
    return Findings(kind=KIND, events=tuple(events))


def _read_json(text: str, counts: dict[str, dict[str, int]]) -> list[Event]:
    """The events of the conditions; numbers of resources go to ``counts``."""
    events: list[Event] = []
    try:
        documents, _ = json_documents(text)
    except FormatError:
        return events
    for document in documents:
        items = document.get("items") if isinstance(document, dict) else None
        if isinstance(document, list):
            items = [{"status": {"conditions": document}}]
        elif isinstance(document, dict) and all(key[1:-1] in document for key in _CONDITION_KEYS):
            items = [{"status": {"conditions": [document]}}]
        for node in items if isinstance(items, list) else [document]:
            status: Any = node.get("status") if isinstance(node, dict) else None
            if not isinstance(status, dict):
                continue
            for section, found in counts.items():
                stated = status.get(section)
                for name, count in stated.items() if isinstance(stated, dict) else ():
                    if re.fullmatch(_RESOURCE, name) and str(count).isdigit():
                        found.setdefault(name, int(str(count)[:6]))
            conditions = status.get("conditions")
            for each in conditions if isinstance(conditions, list) else ():
                if isinstance(each, dict):
                    said = f"{each.get('reason', '')} {each.get('message', '')}"
                    kind = str(each.get("type", ""))
                    events += _condition(kind, str(each.get("status", "")), said)
    return events


def _short(resource: str, allocatable: int, capacity: int) -> Event:
    missing = capacity - allocatable
    return Event(
        source=KIND,
        vendor=HOST,
        code="GPUs not allocatable",
        meaning=f"{missing} of {capacity} {resource} cannot be allocated",
        action="see the device plugin's log for the device that it calls unhealthy, and that "
        "device's own errors; restart the plugin where they are mended",
        todo=str(Action.MONITOR),
        reference=_SOURCE,
        line=f"{resource}: capacity {capacity}, allocatable {allocatable}",
        device=resource,
        unsettled=True,
    )


def _condition(kind: str, status: str, rest: str) -> Iterator[Event]:
    # a condition of what is well is bad where it is False
    is_bad = "False" if _GOOD.search(kind) is not None else "True"
    if kind in _NORMAL or status not in (is_bad, "Unknown") or not _GPU_WORDS.search(kind):
        return
    said = excerpt(_TIMES.sub("", rest), 300)
    stated = _ACTION.search(said)
    todo = RECOMMENDED.get(stated["action"] if stated is not None else "", Action.MONITOR)
    # NVSentinel's own false alarm: no IMEX daemon runs where no domain of several nodes is in use
    imex = "IMEX_UNHEALTHY" in said or "DCGMHealthCode122" in said
    if stated is None and is_bad == "False" and status == is_bad:
        # the agent that sets it has the node repaired
        todo = Action.ISOLATE
    fatal = status == is_bad and todo >= Action.RESET and not imex
    yield Event(
        source=KIND,
        vendor=HOST,
        code=f"condition {kind}",
        meaning=said,
        action="follow what the condition says of the device",
        todo=str(Action.NONE if imex else todo),
        fatal=fatal or None,
        reference=_SOURCE,
        line=f"{kind} {status}",
        unsettled=not fatal and not imex and todo > Action.NONE,
    )

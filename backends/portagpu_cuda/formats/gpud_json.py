"""The states and events of gpud (leptonai/gpud), as ``/v1/states`` and ``/v1/events`` give them.

Components that watch NVIDIA's GPUs begin with "accelerator-nvidia"; others watch the host. Actions
are those that gpud suggests (api/v1/types.go).
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.text import excerpt
from portagpu.facts.actions import Action
from portagpu.facts.formats.events import HOST
from portagpu.facts.formats.json_xml import json_documents, json_start
from portagpu.facts.readings.model import Event, Findings, FormatError
from portagpu_cuda.formats._nvidia import VENDOR
from portagpu_cuda.formats._xid import xid_event

if TYPE_CHECKING:
    from collections.abc import Iterator

KIND: Final = "gpud"

_HEAD: Final = 4096
_KEYS: Final = re.compile(r'"component"\s*:\s*"[\w.-]{1,80}"\s*,\s*"(?:states|events|startTime)"')
_XID: Final = re.compile(r"\bX[Ii][Dd][ :=]*(?P<number>\d{1,3})\b")
_ADDRESS: Final = re.compile(
    r"(?:PCI:)?\b([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?)\b", re.IGNORECASE
)
_UUID: Final = re.compile(r"\bGPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.IGNORECASE)
_TODO: Final = {
    "ignore_no_action_required": Action.NONE,
    "check_user_app_and_gpu": Action.NONE,
    "reboot_system": Action.ISOLATE,
    "hardware_inspection": Action.ISOLATE,
}
_SOURCE: Final = "https://github.com/leptonai/gpud/blob/main/api/v1/types.go"
_GRAVE: Final = frozenset({"unhealthy", "fatal", "critical"})
_MAX: Final = 2000


def matches(text: str) -> bool:
    """Whether the JSON is of gpud's components."""
    start = json_start(text[:_HEAD])
    return start is not None and _KEYS.search(text[start : start + _HEAD]) is not None


def parse(text: str) -> Findings:
    """An event for each state that is not healthy, and for each Xid."""
    documents, broken = json_documents(text)
    components = [each for document in documents for each in _components(document)]
    if not components:
        raise FormatError(f"{KIND}: no component in it")
    found = [event for each in components[:_MAX] for event in _events(each)]
    return Findings(kind=KIND, events=tuple(dict.fromkeys(found[:_MAX])), breaks_off=broken)


def _components(document: object) -> Iterator[dict[str, Any]]:
    for each in document if isinstance(document, list) else [document]:
        if isinstance(each, dict) and isinstance(each.get("component"), str):
            yield each


def _events(component: dict[str, Any]) -> Iterator[Event]:
    name = component["component"]
    for state in _dicts(component.get("states")):
        health = str(state.get("health") or "").lower()
        healthy = health == "healthy" or (not health and state.get("healthy") is not False)
        said = str(state.get("reason") or state.get("error") or "")
        if not healthy:
            actions = (state.get("suggested_actions") or {}).get("repair_actions") or []
            yield _event(name, health, said, [str(each).lower() for each in actions])
    for event in _dicts(component.get("events")):
        kind = str(event.get("type") or "").lower()
        if kind in ("critical", "fatal", "warning"):
            yield _event(name, kind, str(event.get("message") or event.get("name") or ""), [])


def _dicts(value: object) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _event(component: str, health: str, said: str, actions: list[str]) -> Event:
    address, uuid = _ADDRESS.search(said), _UUID.search(said)
    pci = f"{address.group(1)}" if address is not None else None
    device = uuid.group() if uuid is not None else None
    number = _XID.search(said) if "xid" in component and "sxid" not in component else None
    if number is not None:
        event = xid_event(int(number["number"]), KIND, pci=pci, device=device, line=excerpt(said))
        if event is not None:
            # gpud knows the line that it does not print
            doubt = health in _GRAVE and not event.fatal and event.todo != Action.NONE
            return replace(event, unsettled=True) if doubt else event
    asked = max((_TODO.get(each, Action.MONITOR) for each in actions), default=Action.MONITOR)
    bad = health in _GRAVE
    return Event(
        source=KIND,
        vendor=VENDOR if "nvidia" in component else HOST,
        code=f"gpud {component}",
        meaning=excerpt(said) or "gpud calls it unhealthy",
        action=", ".join(each.replace("_", " ") for each in actions) or "look at the component",
        todo=str(asked),
        fatal=(bad and asked >= Action.RESET) or None,
        reference=_SOURCE,
        line=excerpt(said),
        device=device or component,
        unsettled=bad and asked is Action.MONITOR,
    )

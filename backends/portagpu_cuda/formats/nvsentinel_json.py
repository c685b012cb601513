"""Health events of NVSentinel (NVIDIA/NVSentinel), as its store, logs and requests have them.

Source: data-models/protobufs/health_event.proto: HealthEvent with checkName, isFatal, isHealthy,
recommendedAction, errorCode and entitiesImpacted. A later healthy event of a check on an entity
takes an earlier fault back.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.text import excerpt
from portagpu.facts.actions import Action
from portagpu.facts.formats import pci_address
from portagpu.facts.formats.host.kubernetes import RECOMMENDED
from portagpu.facts.formats.json_xml import json_documents, json_start
from portagpu.facts.readings.model import Event, Findings, FormatError
from portagpu_cuda.formats._nvidia import VENDOR
from portagpu_cuda.formats._xid import xid_event

if TYPE_CHECKING:
    from collections.abc import Iterator

KIND: Final = "NVSentinel"

_HEAD: Final = 60_000
_KEYS: Final = re.compile(r'"check_?name"\s*:\s*"', re.IGNORECASE)
_OTHER_KEYS: Final = re.compile(
    r'"(?:is_?fatal|is_?healthy|recommended_?action|entities_?impacted)"\s*:', re.IGNORECASE
)
_XID: Final = re.compile(r"(?:X[Ii][Dd][_ :]*)?(\d{1,3})$")
# proto numbers: RecommendedAction of health_event.proto
_ACTIONS: Final = {"0": "NONE", "2": "COMPONENT_RESET", "5": "CONTACT_SUPPORT",
                   "6": "RUN_FIELDDIAG", "15": "RESTART_VM", "24": "RESTART_BM",
                   "25": "REPLACE_VM", "26": "RUN_DCGMEUD"}  # fmt: skip
_SOURCE: Final = "https://github.com/NVIDIA/NVSentinel"
_MAX: Final = 4096
_MAX_DEPTH: Final = 8


def matches(text: str) -> bool:
    """Whether the JSON has the keys of a health event."""
    head = text[:_HEAD]
    return (
        json_start(head) is not None
        and _KEYS.search(head) is not None
        and _OTHER_KEYS.search(head) is not None
    )


def parse(text: str) -> Findings:
    """An event for each fault that no later event of the same check takes back."""
    documents, broken = json_documents(text)
    found: dict[tuple[str, str], Event | None] = {}
    for each in _health_events(documents, 0):
        entities = _entities(each)
        key = (str(_get(each, "checkname")), str(sorted(entities.items())))
        found[key] = None if _is_healthy(each) else _event(each, entities)
        if len(found) > _MAX:
            break
    if not found:
        raise FormatError(f"{KIND}: no health event in it")
    events = tuple(event for event in found.values() if event is not None)
    return Findings(kind=KIND, events=events, breaks_off=broken)


def _get(event: dict[str, Any], name: str) -> Any:
    """A field by its name in lower case without "_", as JSON of proto and BSON differ in it."""
    return next((v for k, v in event.items() if k.replace("_", "") == name), None)


def _health_events(value: object, depth: int) -> Iterator[dict[str, Any]]:
    """The health events in documents of stores, requests and logs, at any depth."""
    if depth > _MAX_DEPTH:
        return
    if isinstance(value, list):
        for each in value:
            yield from _health_events(each, depth + 1)
    elif isinstance(value, dict):
        if isinstance(_get(value, "checkname"), str):
            yield value
        else:
            for each in value.values():
                yield from _health_events(each, depth + 1)


def _is_healthy(event: dict[str, Any]) -> bool:
    # proto's JSON leaves out what is false, and a request has no such field
    return _get(event, "ishealthy") is True


def _entities(event: dict[str, Any]) -> dict[str, str]:
    stated = _get(event, "entitiesimpacted")
    found: dict[str, str] = {}
    for each in stated if isinstance(stated, list) else ():
        if isinstance(each, dict):
            kind = str(_get(each, "entitytype") or "")
            found.setdefault(kind.upper(), str(_get(each, "entityvalue") or ""))
    return found


def _event(event: dict[str, Any], entities: dict[str, str]) -> Event:
    name = str(_get(event, "checkname"))
    said = excerpt(str(_get(event, "message") or ""), 200)
    asked = str(_get(event, "recommendedaction") or "NONE").upper()
    asked = _ACTIONS.get(asked, asked)
    fatal = _get(event, "isfatal") is True
    todo = RECOMMENDED.get(asked, Action.MONITOR)
    pci = pci_address(entities.get("PCI"))
    gpu = entities.get("GPU_UUID") or entities.get("GPU") or ""
    device = f"GPU {gpu}" if gpu.isdigit() else gpu or None
    codes = _get(event, "errorcode")
    codes = [str(each) for each in codes] if isinstance(codes, list) else []
    number = _XID.match(codes[0]) if codes and "xid" in name.lower() else None
    if number is not None and "SXID" not in name and "sxid-" not in name:
        xid = xid_event(int(number.group(1)), KIND, pci=pci, device=device, line=said)
        if xid is not None:
            # the monitor's own advice counts where it asks for more
            known = Action(xid.todo) if xid.todo is not None else Action.NONE
            return xid if known >= todo else replace(xid, todo=str(todo), fatal=fatal or xid.fatal)
    imex = any("IMEX_UNHEALTHY" in each for each in codes)
    return Event(
        source=KIND,
        vendor=VENDOR,
        code=f"NVSentinel {name}",
        pci=pci,
        meaning=said or ", ".join(codes) or "the monitor reports a fault",
        action=asked.replace("_", " ").lower(),
        todo=str(Action.NONE if imex else todo if fatal else min(todo, Action.MONITOR)),
        fatal=(fatal and todo >= Action.RESET and not imex) or None,
        reference=_SOURCE,
        line=f"{name}: {said}",
        device=None if pci is not None else device or entities.get("NODE"),
        unsettled=fatal and todo < Action.RESET,
    )

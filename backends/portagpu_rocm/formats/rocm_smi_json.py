"""Reads ``rocm-smi --json``: {"card0": {key: text}, ..., "system": {key: text}}.

Links stand under "system" once for both directions ("(Topology) Weight between DRM devices 0 and
1"), because ROCm SMI takes its matrix to be symmetric (``formatMatrixToJSON``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from portagpu.facts.formats import stated, within_device_limit
from portagpu.facts.formats.json_xml import json_documents, json_start
from portagpu.facts.readings import Findings, FormatError
from portagpu_rocm.formats._amd import scalar_text
from portagpu_rocm.formats._rocm_smi import Pair, link, reading

KIND: Final = "rocm-smi --json"

_HEAD: Final = 4096
_FIRST_KEY: Final = re.compile(r'[\s{]*"(card\d+|system)"\s*:\s*\{')
_BETWEEN: Final = re.compile(
    r"\(topology\) (weight|hops|link type|link accessibility) between drm devices "
    r"(\d{1,6}) and (\d{1,6})"
)
_FACTS: Final = {"link type": "type", "link accessibility": "access"}


def matches(text: str) -> bool:
    """Whether ``text`` begins like ROCm SMI's JSON."""
    start = json_start(text[:_HEAD])
    return start is not None and _FIRST_KEY.match(text, start) is not None


def parse(text: str) -> Findings:
    """What the cards say; raises FormatError where there is none."""
    documents, broken = json_documents(text)
    cards: dict[int, dict[str, str]] = {}
    system: dict[str, str] = {}
    for document in documents:
        for name, values in document.items() if isinstance(document, Mapping) else ():
            match = re.fullmatch(r"card(\d{1,6})", name)
            if match is not None and isinstance(values, Mapping):
                cards.setdefault(int(match.group(1)), {}).update(_texts(values))
            elif name == "system" and isinstance(values, Mapping):
                system |= _texts(values)
    if not cards and not system:
        raise FormatError("this JSON has no card")
    driver = stated(system.get("driver version"))
    return Findings(
        kind=KIND,
        readings=within_device_limit(
            (reading(index, card, KIND) for index, card in cards.items()), KIND
        ),
        links=tuple(link(pair, facts, KIND) for pair, facts in _pairs(system).items()),
        versions={"amdgpu": driver} if driver is not None else {},
        problems=("the JSON breaks off; what comes before is read",) if broken else (),
        breaks_off=broken,
        complete=not broken if cards else None,
    )


def _texts(values: Mapping[str, object]) -> dict[str, str]:
    found = ((key.strip().rstrip(":"), scalar_text(value)) for key, value in values.items())
    return {key: text for key, text in found if text is not None}


def _pairs(system: Mapping[str, str]) -> dict[Pair, dict[str, str]]:
    found: dict[Pair, dict[str, str]] = {}
    for key, value in system.items():
        match = _BETWEEN.fullmatch(key)
        if match is not None and match.group(2) != match.group(3):
            name = _FACTS.get(match.group(1), match.group(1))
            a, b = int(match.group(2)), int(match.group(3))
            for pair in ((a, b), (b, a)):
                found.setdefault(pair, {})[name] = value
    return found

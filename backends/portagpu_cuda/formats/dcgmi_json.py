"""JSON of DCGM: ``dcgmi diag --json`` of 2.x to 4.x, nvvs, and ``dcgmi health --json``.

Also the log of NVSentinel's check before a job (preflight-checks), which runs the diagnosis.

Source: NVIDIA/DCGM, common/NvvsJsonStrings.h, dcgmi/Diag.cpp and DcgmiOutput.cpp.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from portagpu.facts.formats.json_xml import json_documents, json_start
from portagpu.facts.readings.model import Findings, FormatError
from portagpu_cuda.formats._dcgm import DIAGNOSIS, HEALTH, Check, check_event

if TYPE_CHECKING:
    from collections.abc import Iterator

KIND: Final = "dcgmi --json"

_HEAD: Final = 60_000
_KEYS: Final = re.compile(
    r'"DCGM (?:GPU )?Diagnostic"\s*:|"test_categories"\s*:|"Overall Health"\s*:'
    r'|"header"\s*:\s*\[\s*"Health Monitor Report"'
    r'|"event"\s*:\s*"(?:Test (?:fail|warn|err)|Diagnostic summary)'
)
_BAD: Final = ("fail", "warn", "err", "internal")
_MAX: Final = 4096


def matches(text: str) -> bool:
    """Whether the JSON has the keys of a diagnosis or of a report of health."""
    start = json_start(text[:_HEAD])
    return start is not None and _KEYS.search(text[start : start + _HEAD]) is not None


def parse(text: str) -> Findings:
    """An event for each result of a check, and for each incident, that is not a pass."""
    documents, broken = json_documents(text)
    found: list[tuple[Check, str]] = []
    known, missing = False, 0
    for document in documents:
        for each in document if isinstance(document, list) else [document]:
            if not isinstance(each, dict):
                continue
            if isinstance(body := each.get("body"), dict):
                known |= "overall health" in body
                found += [(check, HEALTH) for check in _incidents(body)]
            if categories := _categories(each):
                known = True
                found += [(check, DIAGNOSIS) for check in _checks(categories)]
            if str(each.get("event", "")).startswith(("Test ", "Diagnostic summary")):
                known = True
                checks = list(_preflight(each))
                found += [(check, DIAGNOSIS) for check in checks]
                failed = each.get("failed")
                missing += failed if isinstance(failed, int) else 0
                missing -= sum(not check.result.startswith("warn") for check in checks)
            if (error := _runtime_error(each)) is not None:
                known = True
                found.append((error, DIAGNOSIS))
    if not known:
        raise FormatError(f"{KIND}: neither a diagnosis nor a report of health in it")
    if missing > 0:
        # a part of a log: what failed may be hardware
        said = f"{missing} results failed that are not in the text"
        found.append((Check("software", "fail", "", [said]), DIAGNOSIS))
    events = [check_event(check, KIND, document) for check, document in found[:_MAX]]
    return Findings(kind=KIND, events=tuple(dict.fromkeys(events)), breaks_off=broken)


def _categories(document: dict[str, Any]) -> list[dict[str, Any]]:
    inner = document.get("dcgm diagnostic", document.get("dcgm gpu diagnostic", document))
    return _dicts(inner.get("test_categories")) if isinstance(inner, dict) else []


def _runtime_error(document: dict[str, Any]) -> Check | None:
    """A diagnosis that did not run: the engine's error in place of results."""
    inner = document.get("dcgm diagnostic", document.get("dcgm gpu diagnostic", document))
    said = inner.get("runtime_error") if isinstance(inner, dict) else None
    # what keeps a diagnosis from its work is mostly software
    return Check("software", "error", "", [str(said)]) if said else None


def _checks(categories: list[dict[str, Any]]) -> Iterator[Check]:
    for category in categories:
        for test in _dicts(category.get("tests")):
            name = str(test.get("name") or "check")
            bad = [each for each in _dicts(test.get("results")) if _is_bad(each.get("status"))]
            summary = test.get("test_summary")
            if not bad and isinstance(summary, dict) and _is_bad(summary.get("status")):
                bad = [summary]
            for each in bad:
                yield Check(name, str(each["status"]).lower(), _who(each), _said(each))


def _preflight(line: dict[str, Any]) -> Iterator[Check]:
    """A result of NVSentinel's check before a job: one line of its log."""
    result = str(line.get("event", "")).removeprefix("Test ").lower()
    if result.startswith(_BAD):
        yield Check(
            str(line.get("test") or "check"),
            result,
            str(line.get("gpu") or ""),
            [str(line.get("detail") or "")],
        )


def _who(result: dict[str, Any]) -> str:
    group = str(result.get("entity_group") or "GPU")
    number = result.get("entity_id", result.get("gpu_id", result.get("gpu_ids")))
    return "" if number in (None, "") else f"{group} {number}"


def _said(result: dict[str, Any]) -> list[str]:
    warnings = result.get("warnings")
    said = warnings if isinstance(warnings, list) else [warnings] if warnings else []
    return [str(each.get("warning", "")) if isinstance(each, dict) else str(each) for each in said]


def _incidents(body: dict[str, Any]) -> Iterator[Check]:
    found = False
    for group, devices in body.items():
        for number, device in _children(devices).items():
            who = f"{'GPU' if group == 'gpu' else group} {number}"
            errors = _children(_children(device).get("errors"))
            for system, state in errors.items():
                if _is_bad(_value(state)):
                    found = True
                    said = state.get("overflow") if isinstance(state, dict) else None
                    lines = said if isinstance(said, list) else [said] if said else []
                    yield Check(system, _value(state), who, [str(each) for each in lines])
            if not errors and _is_bad(_value(device)):
                found = True
                yield Check("health", _value(device), who)
    if not found and _is_bad(overall := _value(body.get("overall health"))):
        yield Check("overall health", overall)


def _children(value: object) -> dict[str, Any]:
    inner = value.get("children") if isinstance(value, dict) else None
    return inner if isinstance(inner, dict) else {}


def _value(state: object) -> str:
    return str(state.get("value") or "").lower() if isinstance(state, dict) else ""


def _is_bad(status: object) -> bool:
    return str(status or "").lower().startswith(_BAD)


def _dicts(value: object) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []

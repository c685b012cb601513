"""A run as JUnit XML: a CI server shows it as green exactly if the run passed.

How each verdict is written:

- FAIL is a ``failure``, ERROR an ``error``, SKIP is ``skipped`` (the target does not claim it).
- INCONCLUSIVE is an ``error`` of type INCONCLUSIVE. JUnit has no third outcome, and servers count
  ``skipped`` as green, which a claimed but unjudged check must not be.
- UNVERIFIED passes, with a note in ``system-out``; in a strict run it is an ``error`` of that type.
- A run can be worse than its cases: interrupted, or with nothing judged. It then has one more
  case, ``run/verdict``, that is an ``error``.

Attributes and their order follow the schema that the JUnit ant task writes
(https://github.com/windyroad/JUnit-Schema).
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from portagpu.base.files import write_atomic
from portagpu.runs.results.plain import UNSAFE
from portagpu.runs.results.verdicts import Verdict

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from portagpu.runs.results.run import Result, Run, RunInfo

# XML 1.0, production 2 (Char): everything else cannot be written, not even escaped
_NOT_XML: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render(run: Run) -> str:
    """``run`` as an XML document with a test suite for each area of each suite, in order."""
    root = ET.Element("testsuites", {"name": "portagpu"})
    groups: dict[str, list[Result]] = {}
    for result in run.results:
        groups.setdefault(f"{result.suite}.{result.area}", []).append(result)
    for name, results in groups.items():
        _suite(root, name, run.info, [_case(result, strict=run.info.strict) for result in results])
    judged = run.verdict is Verdict.PASS or any(True for _ in root.iter("failure"))
    if not judged and not any(True for _ in root.iter("error")):
        case = ET.Element("testcase", _case_attributes("run/verdict", "run", 0.0))
        _outcome(case, "error", run.verdict, run.why)
        _suite(root, "run", run.info, [case])
    _count(root)
    root.set("time", _seconds(run.info.duration_s))
    ET.indent(root)
    body = ET.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{body}\n'


def write_junit(run: Run, path: str | os.PathLike[str]) -> Path:
    """Write ``render(run)`` to a file, whole or not at all.

    :param run: the run.
    :param path: the file, which is replaced where it exists.
    :returns: the path.
    :raises OutputError: where it cannot be written.
    """
    return write_atomic(path, render(run))


def _suite(root: ET.Element, name: str, info: RunInfo, cases: list[ET.Element]) -> None:
    suite = ET.SubElement(root, "testsuite", {"name": _clean(name)})
    _count(suite, cases)
    suite.set("time", _seconds(sum(float(case.get("time", "0")) for case in cases)))
    # the schema's dateTime has no zone; ours is UTC
    started = datetime.fromisoformat(info.started).astimezone(UTC)
    suite.set("timestamp", f"{started:%Y-%m-%dT%H:%M:%S}")
    suite.set("hostname", _clean(info.host) or "unknown")
    properties = ET.SubElement(suite, "properties")
    for key, value in _properties(info).items():
        ET.SubElement(properties, "property", {"name": _clean(key), "value": _clean(value)})
    suite.extend(cases)


def _properties(info: RunInfo) -> dict[str, str]:
    versions = {f"version.{key}": value or "none" for key, value in info.versions.items()}
    devices = {f"device.{i}": str(device["name"]) for i, device in enumerate(info.devices)}
    return {
        "run": info.id,
        "target": info.target or "none",
        "backend": info.backend or "none",
        **versions,
        **devices,
    }


def _case(result: Result, *, strict: bool) -> ET.Element:
    name = f"{result.id} on {result.device}" if result.device else result.id
    case = ET.Element(
        "testcase", _case_attributes(name, f"{result.suite}.{result.area}", result.duration_s)
    )
    verdict = result.verdict
    if verdict is Verdict.SKIP:
        ET.SubElement(case, "skipped", {"message": _clean(result.reason)})
    elif verdict is Verdict.FAIL:
        _outcome(case, "failure", verdict, result.reason)
    elif verdict in (Verdict.ERROR, Verdict.INCONCLUSIVE):
        _outcome(case, "error", verdict, result.reason)
    elif verdict is Verdict.UNVERIFIED and strict:
        _outcome(case, "error", verdict, result.reason or "measured, and nothing to judge it by")
    if note := _note(result):
        ET.SubElement(case, "system-out").text = _clean(note)
    return case


def _case_attributes(name: str, classname: str, duration_s: float) -> dict[str, str]:
    return {"name": _clean(name), "classname": _clean(classname), "time": _seconds(duration_s)}


def _outcome(case: ET.Element, tag: str, verdict: Verdict, reason: str) -> None:
    message = _clean(reason).strip() or str(verdict)
    outcome = ET.SubElement(case, tag, {"type": str(verdict), "message": message.split("\n")[0]})
    outcome.text = message


def _note(result: Result) -> str:
    """Details for ``system-out``: value, evidence, and what the outcome does not say."""
    parts = []
    if result.verdict is Verdict.UNVERIFIED:
        parts.append(f"UNVERIFIED: {result.reason or 'measured, and nothing to judge it by'}")
    if result.value is not None:
        unit = "" if result.unit == "1" else f" {result.unit}"
        parts.append(f"value: {result.value}{unit}")
    if result.blocked_by:
        parts.append(f"blocked by: {result.blocked_by}")
    if result.evidence:
        parts.append(f"evidence: {', '.join(result.evidence)}")
    if result.does_not_show:
        parts.append(f"does not show: {result.does_not_show}")
    return "\n".join(parts)


def _count(element: ET.Element, cases: list[ET.Element] | None = None) -> None:
    """Set the number of cases and of each outcome."""
    cases = list(element.iter("testcase")) if cases is None else cases
    element.set("tests", str(len(cases)))
    for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        element.set(attribute, str(sum(case.find(tag) is not None for case in cases)))


def _seconds(duration_s: float) -> str:
    return f"{duration_s:.6f}"


def _clean(text: str) -> str:
    return _NOT_XML.sub("", UNSAFE.sub("", text))

"""The objects of OCP Test & Validation Output that a run, its devices and its results become."""

from __future__ import annotations

import math
import re
import shlex
from typing import TYPE_CHECKING, Any, Final

from portagpu.runs.results.advice import Action, action_of, action_source, check_of
from portagpu.runs.results.verdicts import Verdict
from portagpu.runs.results.wording import bounds

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from portagpu.runs.results.run import Result, RunInfo

SERIES: Final = ("curve", "curves", "samples")
"""Keys of ``extra`` that are measurement series."""
_SYSTEM: Final = frozenset({"driver", "kernel"})
"""Components that are part of the operating system; the others are applications."""
_VERB: Final = re.compile(r"[a-z]+")


def run_start(info: RunInfo) -> dict[str, Any]:
    """``testRunStart``, with the devices that are described so far."""
    verb = info.command[1] if len(info.command) > 1 else ""
    parameters = {
        "target": info.target,
        "backend": info.backend,
        "strict": info.strict,
        "seed": info.seed,
    }
    return {
        "name": f"portagpu-{verb}" if _VERB.fullmatch(verb) else "portagpu",
        "version": info.versions.get("portagpu") or "unknown",
        "commandLine": shlex.join(info.command),
        "parameters": _present(parameters),
        "dutInfo": _dut(info),
        "metadata": {
            "run": info.id,
            "started": info.started,
            "switches": dict(info.switches),
            "replay": [dict(each) for each in info.replay],
        },
    }


def step_name(result: Result) -> str:
    own = result.id.startswith(f"{result.suite}/")
    name = result.id if own else f"{result.suite}/{result.id}"
    return f"{name} on {result.device}" if result.device else name


def _present(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def unit_field(unit: str | None) -> dict[str, str]:
    """The field of a unit; a plain number has none."""
    return {} if unit in (None, "1") else {"unit": str(unit)}


def hardware_id(place: int) -> str:
    return f"device-{place}"


def _dut(info: RunInfo) -> dict[str, Any]:
    """What was tested: the host or the recording, its devices and its software."""
    recorded = next((str(each["name"]) for each in info.replay), "")
    named = info.host or recorded
    versions = [(name, text) for name, text in info.versions.items() if text]
    return {
        "dutInfoId": named or "unknown",
        **({"name": named} if named else {}),
        "hardwareInfos": [_hardware(n, each, info.host) for n, each in enumerate(info.devices)],
        "softwareInfos": [
            {
                "softwareInfoId": f"software-{number}",
                "name": name,
                "version": text,
                "softwareType": "SYSTEM" if name in _SYSTEM else "APPLICATION",
            }
            for number, (name, text) in enumerate(versions)
        ],
        # hardwareInfo has no place for the rest of a device
        "metadata": {"devices": [dict(each) for each in info.devices]},
    }


def _hardware(place: int, entry: Mapping[str, Any], host: str) -> dict[str, str]:
    kind = entry.get("kind")
    stated = {
        "manufacturer": entry.get("vendor") if entry.get("vendor") != kind else None,
        "serialNumber": entry.get("uuid"),
        "location": entry.get("pci"),
        "partType": str(kind).upper() if kind else None,
        "computerSystem": host or None,
    }
    texts = {key: str(value) for key, value in stated.items() if value}
    return {"hardwareInfoId": hardware_id(place), "name": str(entry["name"]), **texts}


def measurement(result: Result) -> dict[str, Any]:
    keys = ("statistic", "n", "spread", "shape")
    metadata = _present({key: getattr(result, key) for key in keys})
    validators = _validators(result)
    if validators:
        expected = {**(result.expected or {})}
        metadata["expected"] = _present(expected)
    return {
        "name": result.id,
        "value": result.value,
        **unit_field(result.unit),
        **({"validators": validators} if validators else {}),
        **({"metadata": metadata} if metadata else {}),
    }


def _validators(result: Result) -> list[dict[str, Any]]:
    """What the value was compared with, where comparisons with one value say it.

    An expectation in words may need more than those. None contradicts a PASS: whoever compares
    again finds the same.
    """
    expected, value = result.expected, result.value
    if expected is None:
        return []
    rules: list[tuple[str, Any]]
    if isinstance(expected["reference"], str):
        rules = [("EQUAL", expected["reference"])]
        same = value == expected["reference"]
        if same is not (result.verdict is Verdict.PASS):
            return []
    else:
        lower, upper = bounds(expected)
        one_value = lower is not None and lower == upper
        rules = [("GREATER_THAN_OR_EQUAL", lower), ("LESS_THAN_OR_EQUAL", upper)]
        rules = [("EQUAL", lower)] if one_value else rules
        rules = [each for each in rules if each[1] is not None and math.isfinite(each[1])]
        if result.verdict is Verdict.PASS and not all(_holds(value, *each) for each in rules):
            return []
    source = str(expected["source"])
    return [{"name": source, "type": kind, "value": bound} for kind, bound in rules]


def _holds(value: Any, kind: str, bound: Any) -> bool:
    if kind == "EQUAL":
        return bool(value == bound)
    return bool(value >= bound if kind == "GREATER_THAN_OR_EQUAL" else value <= bound)


def series_of(
    result: Result,
) -> Iterator[tuple[str, str | None, Iterator[tuple[float, dict[str, Any]]]]]:
    """Name, unit and elements of each curve and of the samples; a gap has no element."""
    samples = result.extra.get("samples")
    if samples:
        values = ((value, dict[str, Any]()) for value in samples if value is not None)
        yield f"{result.id}/samples", result.unit, values
    single = [result.extra["curve"]] if "curve" in result.extra else []
    for curve in (*single, *result.extra.get("curves", ())):
        yield f"{result.id}/{curve['series']}", curve["y_unit"], _points(curve)


def _points(curve: Mapping[str, Any]) -> Iterator[tuple[float, dict[str, Any]]]:
    for x, y in zip(curve["x"], curve["y"], strict=True):
        if y is not None:
            at = {} if x is None else {"x": x}
            yield y, {**at, "x_label": curve["x_label"], "x_unit": curve["x_unit"]}


def place_of(result: Result) -> dict[str, Any]:
    """Where the wrong elements of a result are, as a part of the device."""
    wrong = result.extra.get("wrong")
    where = wrong.get("where") if isinstance(wrong, dict) else None
    sentence = where.get("sentence") if isinstance(where, dict) else None
    if not isinstance(sentence, str) or not sentence:
        return {}
    part = {"type": "ASIC-SUBSYSTEM", "name": result.id, "location": sentence}
    return {"subcomponent": part}


def advice_of(result: Result) -> str:
    """What to do about a result: a diagnosis has no place for it."""
    action = action_of(result)
    if action is Action.NONE and not result.failed:
        return ""
    check = check_of(result)
    step = str(result.extra.get("remedy") or (check.do if check is not None else ""))
    said = f"action: {action} ({action_source(result)})"
    return f"{said}; next: {step}" if step else said


def form_of(result: Result) -> dict[str, Any]:
    """The result as ``portagpu.result/1`` writes it, without its series."""
    document = result.to_json()
    extra = {key: value for key, value in document["extra"].items() if key not in SERIES}
    return {**document, "extra": extra}

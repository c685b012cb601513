"""A run as lines of OCP Test & Validation Output 2.0, while it goes on or from a saved result.

The specification is ``json_spec`` of https://github.com/opencomputeproject/ocp-diag-core. Each
result is a test step of its own, so a run that is killed leaves whole steps. How a verdict is
written, as diagnosis and status of its step:

- PASS is PASS, FAIL is FAIL; the step is COMPLETE.
- UNVERIFIED is UNKNOWN in a step that is COMPLETE. INCONCLUSIVE is UNKNOWN in one that is SKIP.
- SKIP has no diagnosis, and a step that is SKIP.
- ERROR is an ``error`` without a diagnosis, in a step that is ERROR.

The run ends as PASS only where its verdict is PASS. The form of a result that has no place in the
specification is in an ``extension`` of the step, without its curves and samples: those are
measurement series.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.files import write_atomic
from portagpu.base.text import one_line
from portagpu.reports.ocp.artifacts import (
    advice_of,
    form_of,
    hardware_id,
    measurement,
    place_of,
    run_start,
    series_of,
    step_name,
    unit_field,
)
from portagpu.runs.ledger.accounts import devices_of, fact_of
from portagpu.runs.results.plain import json_text
from portagpu.runs.results.schema import SCHEMA
from portagpu.runs.results.verdicts import Evidence, Verdict
from portagpu.runs.results.wording import found_in_words

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from portagpu.runs.ledger.accounts import Device
    from portagpu.runs.results.run import Result, Run, RunInfo

_DIAGNOSES: Final = {
    Verdict.PASS: "PASS",
    Verdict.FAIL: "FAIL",
    Verdict.UNVERIFIED: "UNKNOWN",
    Verdict.INCONCLUSIVE: "UNKNOWN",
}
_STEP_STATUS: Final = {
    Verdict.INCONCLUSIVE: "SKIP",
    Verdict.SKIP: "SKIP",
    Verdict.ERROR: "ERROR",
}
_RUN_END: Final = {
    Verdict.PASS: ("COMPLETE", "PASS"),
    Verdict.FAIL: ("COMPLETE", "FAIL"),
    Verdict.ERROR: ("ERROR", "NOT_APPLICABLE"),
}
"""Every other run was not judged: only these combinations and SKIP are valid."""
_NOT_JUDGED: Final = ("SKIP", "NOT_APPLICABLE")
_SO_FAR_S: Final = 60.0
"""Between two elements of the series of what was judged so far: a screen takes hours."""


def render(run: Run) -> str:
    """``run`` as the lines that a stream of it would have, except for their times.

    A result does not say when it was made. The first two lines have the time at which the run
    began, and all others that of its end.

    :param run: a run that is over.
    """
    began = datetime.fromisoformat(run.info.started).astimezone(UTC)
    try:
        ended = began + timedelta(seconds=run.info.duration_s)
    except OverflowError:
        ended = began
    lines: list[str] = []
    stream = Stream(lines.append, lambda: began if len(lines) < 2 else ended)
    stream.begin()
    stream.end(run)
    return "".join(lines)


def write_ocp(run: Run, path: str | os.PathLike[str]) -> Path:
    """Write ``render(run)`` to a file, whole or not at all.

    :param run: a run that is over.
    :param path: the file, which is replaced where it exists.
    :returns: the path.
    :raises OutputError: where it cannot be written.
    """
    return write_atomic(path, render(run))


@dataclass(slots=True)
class _Step:
    """A test step that began: its id, its series, and the diagnoses that it has."""

    id: str
    said: set[tuple[str, str]] = field(default_factory=set)
    series: str | None = None
    """The id of the series of what was judged so far, which is not over."""
    elements: int = 0


def _steady_clock() -> Callable[[], datetime]:
    """The time in UTC, which does not go back where the machine's clock is set back."""
    began, began_s = datetime.now(UTC), time.monotonic()
    return lambda: began + timedelta(seconds=time.monotonic() - began_s)


class Stream:
    """Writes a run line by line.

    ``testRunStart`` has the devices, so it waits until a run that has a backend or judges a
    recording describes them. A failure does not wait.

    :param write: gets each line, with its end; what it raises ends the call.
    :param now: the time of the next line, in UTC; by default the machine's when the stream is
        made, and what has passed since.
    """

    def __init__(
        self, write: Callable[[str], object], now: Callable[[], datetime] | None = None
    ) -> None:
        self._write = write
        self._now = now or _steady_clock()
        self._lines = 0
        self._ids = 0
        self._started = False
        self._written = 0
        """Results of the run that are written."""
        self._devices: Sequence[Device] = ()
        self._described = 0
        """Objects of the run's devices that are written."""
        self._names: dict[str | None, str] = {}
        self._open: dict[tuple[str, str, str | None], _Step] = {}
        self._so_far: datetime | None = None

    def begin(self) -> None:
        """Write the version of the specification, which is the first line."""
        self._line({"schemaVersion": {"major": 2, "minor": 0}})

    def update(self, run: Run) -> None:
        """Write the results of ``run`` that are not written yet; they do not change any more."""
        if not self._ready(run):
            return
        for result in run.results[self._written :]:
            self._written += 1
            self._result(result, run)

    def judged_so_far(self, run: Run) -> None:
        """Write what is known of results that still change: failures, and how much was judged.

        :param run: what the run would be if it ended now. A result counts what it judged as
            ``extra.results``.
        """
        if not self._ready(run):
            return
        now = self._now()
        due = self._so_far is None or (now - self._so_far).total_seconds() >= _SO_FAR_S
        self._so_far = now if due else self._so_far
        for result in run.results:
            if result.failed:
                step = self._step(result)
                self._conclude(step, result, self._hardware_of(result, run))
            count = result.extra.get("results")
            if due and isinstance(count, int):
                self._count(self._step(result), result, count, run)

    def end(self, run: Run) -> None:
        """Write what is missing of ``run``, which is over, and the end."""
        self._start(run.info)
        self.update(run)
        for step in list(self._open.values()):
            self._log("WARNING", "the run ended before this step", step)
            self._end_step(step, "SKIP")
        self._open.clear()
        if run.info.interrupted:
            self._log("WARNING", "interrupted: what was not run is missing")
        if run.info.error is not None:
            message = one_line(str(run.info.error["message"]))
            self._of_run("error", {"symptom": "run-error", "message": message})
        grave = "INFO" if run.verdict is Verdict.PASS else "ERROR"
        self._log(grave, run.summary_line())
        status, result = _RUN_END.get(run.verdict, _NOT_JUDGED)
        self._of_run("testRunEnd", {"status": status, "result": result})

    def _ready(self, run: Run) -> bool:
        """Whether results can be written: the run has started, or starts now."""
        info = run.info
        if not self._started:
            describes = info.backend is not None or bool(info.replay)
            waits = describes and not info.devices
            if waits and not any(each.failed for each in run.results):
                return False
            self._start(info)
        for entry in info.devices[self._described :]:
            self._log("INFO", f"further device, not in dutInfo: {entry['name']}")
        self._described = len(info.devices)
        return True

    def _start(self, info: RunInfo) -> None:
        if self._started:
            return
        self._started = True
        self._devices = tuple(devices_of(info.devices, info.backend))
        self._described = len(info.devices)
        self._of_run("testRunStart", run_start(info))

    def _result(self, result: Result, run: Run) -> None:
        hardware = self._hardware_of(result, run)
        step = self._step(result)
        if step.series is not None:
            count = result.extra.get("results")
            self._count(step, result, count if isinstance(count, int) else 0, run)
        if result.value is not None:
            self._of_step(step, "measurement", {**measurement(result), **hardware})
        for name, unit, values in series_of(result):
            self._whole_series(step, {"name": name, **unit_field(unit), **hardware}, values)
        self._conclude(step, result, hardware)
        self._of_step(step, "extension", {"name": SCHEMA, "content": form_of(result)})
        self._end_step(step, _STEP_STATUS.get(result.verdict, "COMPLETE"))
        del self._open[_key(result)]

    def _conclude(self, step: _Step, result: Result, hardware: Mapping[str, str]) -> None:
        """Write the diagnosis, error or log of a verdict, unless the step has it."""
        said = (str(result.verdict), result.reason)
        if said in step.said:
            return
        again = any(verdict == said[0] for verdict, _ in step.said)
        step.said.add(said)
        message = result.reason or found_in_words(result)
        kind = _DIAGNOSES.get(result.verdict)
        if again or result.verdict is Verdict.SKIP:
            self._log("INFO", message, step)
        elif kind is None:
            # what broke is about the check and not about the hardware
            self._of_step(step, "error", {"symptom": result.id, "message": message})
        else:
            verdict = f"{result.id}-{str(result.verdict).lower()}"
            about = {**hardware, **place_of(result)}
            said_of = {"message": message} if message else {}
            self._of_step(step, "diagnosis", {"verdict": verdict, "type": kind, **said_of, **about})
        if not again and (advice := advice_of(result)):
            self._log("ERROR" if result.failed else "WARNING", advice, step)

    def _count(self, step: _Step, result: Result, count: int, run: Run) -> None:
        if step.series is None:
            step.series = self._id()
            named = {"name": f"{result.id}/results", "unit": "results"}
            about = self._hardware_of(result, run)
            start = {**named, "measurementSeriesId": step.series, **about}
            self._of_step(step, "measurementSeriesStart", start)
        self._element(step, step.series, step.elements, count)
        step.elements += 1

    def _whole_series(
        self, step: _Step, start: Mapping[str, Any], values: Iterable[tuple[float, Any]]
    ) -> None:
        series, number = self._id(), 0
        self._of_step(step, "measurementSeriesStart", {**start, "measurementSeriesId": series})
        for value, metadata in values:
            self._element(step, series, number, value, metadata)
            number += 1
        self._end_series(step, series, number)

    def _element(
        self,
        step: _Step,
        series: str,
        number: int,
        value: float,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        element = {
            "index": number,
            "value": value,
            "timestamp": _instant(self._now()),
            "measurementSeriesId": series,
            **({"metadata": metadata} if metadata else {}),
        }
        self._of_step(step, "measurementSeriesElement", element)

    def _end_series(self, step: _Step, series: str, count: int) -> None:
        end = {"measurementSeriesId": series, "totalCount": count}
        self._of_step(step, "measurementSeriesEnd", end)

    def _step(self, result: Result) -> _Step:
        """The step of a result, which begins now if it did not."""
        key = _key(result)
        step = self._open.get(key)
        if step is None:
            step = self._open[key] = _Step(self._id())
            self._of_step(step, "testStepStart", {"name": step_name(result)})
        return step

    def _end_step(self, step: _Step, status: str) -> None:
        if step.series is not None:
            self._end_series(step, step.series, step.elements)
        self._of_step(step, "testStepEnd", {"status": status})

    def _hardware_of(self, result: Result, run: Run) -> dict[str, str]:
        """The device that a result is about as a field, where ``testRunStart`` has it."""
        if result.device is None and Evidence.EXECUTED not in result.evidence:
            # about the host: it would be wrong to blame its only device
            return {}
        found = fact_of(result, run, self._devices, self._names).device
        if not found and len(self._devices) == 1:
            return {"hardwareInfoId": hardware_id(0)}
        for place, device in enumerate(self._devices):
            if found and device.id == found:
                return {"hardwareInfoId": hardware_id(place)}
        return {}

    def _log(self, severity: str, message: str, step: _Step | None = None) -> None:
        log = {"severity": severity, "message": message}
        if step is None:
            self._of_run("log", log)
        else:
            self._of_step(step, "log", log)

    def _of_run(self, kind: str, artifact: Mapping[str, Any]) -> None:
        self._line({"testRunArtifact": {kind: artifact}})

    def _of_step(self, step: _Step, kind: str, artifact: Mapping[str, Any]) -> None:
        self._line({"testStepArtifact": {"testStepId": step.id, kind: artifact}})

    def _line(self, artifact: Mapping[str, Any]) -> None:
        # no key is ever null: the schema refuses it where the text allows it
        head = {"sequenceNumber": self._lines, "timestamp": _instant(self._now())}
        text = json_text({**artifact, **head}, ascii_only=True)
        self._lines += 1
        self._write(f"{text}\n")

    def _id(self) -> str:
        self._ids += 1
        return str(self._ids - 1)


def _key(result: Result) -> tuple[str, str, str | None]:
    return result.suite, result.id, result.device


def _instant(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%S.%f}Z"

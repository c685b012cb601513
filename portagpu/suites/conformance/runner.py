"""All cases on one device: children one after another, until every case has a result."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.documents import decode, encode
from portagpu.base.errors import BackendNotFound, PortagpuError
from portagpu.base.installation import missing_cases
from portagpu.base.paths import matrix_dir
from portagpu.base.patience import LIMITS
from portagpu.base.subprocesses import BrokenMessage
from portagpu.facts.capability import Capability
from portagpu.runs.engine import add_result
from portagpu.suites.conformance.cases import base_id, matches
from portagpu.suites.conformance.judge import (
    FAILED_KINDS,
    LOST_KINDS,
    apply_expected_failures,
    judge,
    missing_case,
    mostly_unjudged_areas,
    not_begun_result,
    other_target_result,
    shared_world_failures,
    stale_expected_failures,
    suite_error,
    unjudged_claims,
    unused_overrides,
)
from portagpu.suites.conformance.messages import (
    CaseOutcome,
    Child,
    Collection,
    DeviceUnderTest,
    ListedCase,
    Searches,
    SuiteError,
    TargetClaims,
)
from portagpu.suites.conformance.options import SelectionError, cases_of_area, matching_patterns
from portagpu.suites.conformance.upstream import SUITE as UPSTREAM
from portagpu.suites.conformance.upstream import expected_failures, files_with_tests
from portagpu.suites.search.area import MAX_REPEATS_S, from_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from portagpu.facts.targets import ExpectedFailure, Target
    from portagpu.runs.engine import Progress
    from portagpu.runs.results.run import Result, Run, Verdict
    from portagpu.runs.world import Ranks
    from portagpu.suites.conformance import ConformOptions

SMOKE_SHARE: Final = 0.1
"""The part of their default time that random programs have in the smoke selection."""


@dataclass(frozen=True, slots=True)
class Collected:
    cases: list[ListedCase]
    problems: list[Result]


class DeviceRun:
    """The run of all cases on one device; making the object runs them."""

    def __init__(
        self,
        run: Run,
        options: ConformOptions,
        *,
        progress: Progress,
        backend: str,
        wanted: Target | None,
        forker: Ranks,
        index: int,
        known: dict[str, DeviceUnderTest] | None = None,
        several: bool = True,
    ) -> None:
        self.run = run
        self.options = options
        self.progress = progress
        self.forker = forker
        self.index = index
        self.several = several
        self.further: bool = known is not None
        self.known: dict[str, DeviceUnderTest] = {} if known is None else known
        self.backend = backend
        self.wanted: TargetClaims | None = (
            None if wanted is None else TargetClaims.from_target(wanted)
        )
        self.folder: Path = cases_folder(options.folder)
        self.upstream: tuple[list[Path], str] | None = None
        self.expected: Sequence[ExpectedFailure] | None = None
        if options.upstream:
            files = files_with_tests(self.folder, options.selection.only)
            self.upstream = files, f"{backend}:{index}"
            self.expected = expected_failures(options.expected) if options.expected else ()
        self.results: list[Result] = []
        self.raw: dict[str, Verdict] = {}
        self.failed: set[str] = set()
        self.shared_worlds: dict[str, dict[str, str]] = {}
        self.set_aside: Counter[str] = Counter()
        self.searches: Searches = Searches()
        self.machine: DeviceUnderTest | None = None
        self.pending: list[ListedCase] = []
        self.chosen: list[ListedCase] = []
        self.left_out: set[str] = set()
        """The cases of the deep level, where they do not run."""
        self.ended: str = ""
        self.total: int = 0
        self._all_children()

    def _all_children(self) -> None:
        first = True
        while first or self.pending:
            with Child(self.folder, self.forker, self.upstream) as child:
                try:
                    machine = self._open(child, first)
                except PortagpuError as error:
                    if first:
                        raise
                    self._stop(f"not begun, because {error}")
                    break
                if not self.pending:
                    break
                child.send({"go_on": True})
                self._drain(child, machine)
            first = False
        for result in self._suite_results():
            self._emit(result)

    def stop_reason(self) -> str:
        """Why no further case begins; empty to go on."""
        failed = self.run.first_failure if self.options.exit_first else None
        if failed is not None:
            return f"not begun, because {failed.id} failed (-x)"
        return self.progress.stop_reason()

    def _suite_results(self) -> Iterator[Result]:
        """Results about the suite as a whole; some need a complete run."""
        yield from shared_world_failures(self.shared_worlds, self.failed)
        yield from mostly_unjudged_areas(self.results, self.set_aside)
        if self.machine is not None and not self._partial:
            failures = self._expected(self.machine)
            asked = [each for each in failures if self._ran(each.case_id_pattern)]
            yield from stale_expected_failures(asked, self.raw)
            if self.upstream is not None:
                return
            overrides = [each for each in self.machine.overrides if self._ran(each.pattern)]
            yield from unused_overrides(overrides, self.raw)
            yield from unjudged_claims(self.machine, self.chosen, self.raw)

    def _expected(self, machine: DeviceUnderTest) -> Sequence[ExpectedFailure]:
        """The failures that are known: of the target, or of PyTorch's tests."""
        if self.expected is not None:
            return self.expected
        return () if machine.target is None else machine.target.expected_failures

    def _ran(self, pattern: str) -> bool:
        """Whether all cases ran that fit the pattern, those of the deep level too."""
        return not any(matches(pattern, each) for each in self.left_out)

    @property
    def _partial(self) -> bool:
        other_target = self.machine is not None and self._is_other_target(self.machine)
        part = self.options.selection.partial or self.options.program
        return bool(part or other_target or self.ended)

    def _is_other_target(self, machine: DeviceUnderTest) -> bool:
        here = None if machine.target is None else machine.target.id
        return self.wanted is not None and here != self.wanted.id

    def _open(self, child: Child, first: bool) -> DeviceUnderTest:
        """Read the list of cases, and have the child open the device."""
        collected = collect(child)
        if first:
            problems = [] if self.further else [*collected.problems, *self._missing(collected)]
            for problem in problems:
                self._emit(problem)
            self.pending = self.chosen = self._select_cases(collected)
            deep = {case.id for case in collected.cases if not case.default}
            self.left_out = deep - {case.id for case in self.chosen}
            self.searches = _searches(self.options, self.chosen)
            if any(case.search for case in self.chosen) and not self.options.program:
                self.run.info = replace(self.run.info, seed=self.searches.seed)
            self.total = len(self.pending)
        request = {
            "backend": self.backend,
            "index": self.index,
            "timeout_s": self.options.timeout_s,
            "ids": [case.id for case in self.pending],
            "searches": encode(self.searches),
        }
        child.send(request)
        machine = decode(DeviceUnderTest, _expect(child, "machine").get("machine"), "machine")
        if first:
            if machine.name in self.known:
                raise SuiteError(f"it opens as {machine.name}, which was judged already")
            self.known[machine.name] = self.machine = machine
            target = machine.target.id if machine.target is not None else None
            machine.describe_in(self.run, target, "arch", "vendor")
            self.progress.opened(machine)
            self._skip_other_target(machine)
        return machine

    def _missing(self, collected: Collected) -> Iterator[Result]:
        """Errors for missing cases: of a damaged installation, or of those that failed before."""
        counts = Counter(case.area for case in collected.cases)
        damage = missing_cases(counts) if self.options.folder is None else ""
        if damage and not collected.problems:
            yield suite_error("contents", damage)
        for name in self.options.selection.unknown_failed_ids(collected.cases):
            yield missing_case(name)

    def _select_cases(self, collected: Collected) -> list[ListedCase]:
        """The selected cases; an unreadable file may be the reason that there are none."""
        asked = self.options.selection
        if self.options.program:
            return cases_of_area(from_text(self.options.program)[0], collected.cases)
        if not collected.problems:
            return asked.choose(collected.cases)
        found = replace(asked, only=matching_patterns(asked.only, collected.cases))
        try:
            return found.choose(collected.cases) if bool(found.only) == bool(asked.only) else []
        except SelectionError:
            return []

    def _skip_other_target(self, machine: DeviceUnderTest) -> None:
        """Give every case its result without running it if this machine is another target."""
        wanted = self.wanted
        if wanted is None or not self._is_other_target(machine):
            return
        for case in self.pending:
            self._emit(other_target_result(case, machine, wanted), case)
        self.pending = []

    def _drain(self, child: Child, machine: DeviceUnderTest) -> None:
        """Receive results until the child is done or dies, or a case exceeds its time limit."""
        running: ListedCase | None = None
        begun = 0
        while True:
            limit_s = LIMITS.start_s if running is None else self._time_limit_s(running, machine)
            watch = child.watch(limit_s)
            try:
                event = child.receive(watch)
                if event is not None:
                    self._check_event(event, running)
            except TimeoutError:
                starved = watch.starved
                where = child.current_frame()
                child.kill()
                did = "go on" if running is None else "finish"
                stood = f" and stood{where}" if where else ""
                reason = f"did not {did} within {limit_s:g} s{starved.remark}{stood}"
                if running is None:
                    self._ended_between(reason, begun, machine)
                else:
                    kind = "starved" if starved.is_starved else "hung"
                    self._judge_outcome(running, _failed_outcome(kind, reason, limit_s), machine)
                return
            except PortagpuError as error:
                child.end_broken(error)
                event = None
            if event is None:
                how = child.how_it_ended()
                if running is None:
                    self._ended_between(f"{how}{_complaint(child)}", begun, machine)
                else:
                    outcome = _failed_outcome("error", f"the process {how}", 0.0)
                    self._judge_outcome(running, outcome, machine)
                return
            if running is not None and event["event"] in ("start", "done"):
                reason = "the suite's process gave it up without a result"
                self._judge_outcome(running, _failed_outcome("error", reason, 0.0), machine)
                running = None
            if event["event"] == "start":
                running = next(each for each in self.pending if each.id == event["id"])
                begun += 1
                self._announce(running)
            elif event["event"] == "result" and running is not None:
                self._judge_outcome(running, event, machine)
                running = None
                self.ended = self.stop_reason()
                if self.ended and self.pending:
                    child.kill()
                    self._stop(self.ended)
                    return
            elif event["event"] == "done":
                if self.pending and not begun:
                    self._ended_between("ended", begun, machine)
                return

    def _check_event(self, event: Mapping[str, Any], running: ListedCase | None) -> None:
        """Raise PortagpuError for an event that the suite does not send now."""
        kind, now = event.get("event"), None if running is None else running.id
        if kind == "result" and now is not None and event.get("id") == now:
            given = {key: value for key, value in event.items() if key not in ("event", "id")}
            decode(CaseOutcome, given, now)
            return
        others = [case.id for case in self.pending if case.id != now]
        if kind != "done" and (kind != "start" or event.get("id") not in others):
            raise BrokenMessage(event)

    def _ended_between(self, how: str, begun: int, machine: DeviceUnderTest) -> None:
        """Give the next case an error; if the child ran no case, no other child is started."""
        if not self.pending:
            self._emit(suite_error("end", f"its process {how} after the last case"))
            return
        case = replace(self.pending[0], evidence=None)
        reason = f"the suite's process {how} before it began"
        self._judge_outcome(case, _failed_outcome("error", reason, 0.0), machine)
        if not begun:
            self._stop(f"not begun, because {reason.replace('it began', 'any case')}")

    def _stop(self, reason: str) -> None:
        """Begin no further case."""
        self.ended = reason
        for case in self.pending:
            self._emit(not_begun_result(case, reason), case)
        self.pending = []

    def _judge_outcome(
        self, case: ListedCase, outcome: dict[str, Any], machine: DeviceUnderTest
    ) -> None:
        judged = judge(case, outcome, machine)
        failures = self._expected(machine)
        result = apply_expected_failures(judged, failures, lost=outcome["kind"] in LOST_KINDS)
        self.raw[case.id] = judged.verdict
        if outcome["kind"] in (*FAILED_KINDS, "starved", "error"):
            self.failed.add(base_id(case.id))
        if outcome.get("shared_world") is not None:
            self.shared_worlds[base_id(case.id)] = outcome["shared_world"]
        if (
            result.verdict is not judged.verdict
            or case.first_override(machine.overrides) is not None
        ):
            self.set_aside[case.area] += 1
        self.pending = [each for each in self.pending if each.id != case.id]
        self._emit(result, case)

    def _emit(self, result: Result, case: ListedCase | None = None) -> None:
        """Add a result to the run; it names the device if it is about that one of several."""
        several = self.several or (self.machine is not None and self.machine.count > 1)
        own = self.further or (case is not None and case.per_device)
        if self.machine is not None and several and own:
            result = replace(result, device=self.machine.name)
        if self.upstream is not None:
            result = replace(result, suite=UPSTREAM)
        self.results.append(result)
        add_result(self.run, self.progress, result)

    def _announce(self, case: ListedCase) -> None:
        self.progress.item_begins(case.id, self.total - len(self.pending) + 1, self.total)

    def _time_limit_s(self, case: ListedCase, machine: DeviceUnderTest) -> float:
        """Seconds for a case; one on ranks may start two worlds, a shared one and its own."""
        starts = 2 if Capability.COLLECTIVES in case.capability else 0
        limit_s = (case.timeout_s or self.options.timeout_s) + starts * machine.start_s
        if not case.search:
            return limit_s
        return limit_s + case.search_s * self.searches.share + MAX_REPEATS_S


def _searches(options: ConformOptions, chosen: Sequence[ListedCase]) -> Searches:
    """How the chosen cases run random programs; raises SelectionError for a deep run of none."""
    share = SMOKE_SHARE if options.selection.smoke else 1.0
    if options.search_s is not None:
        default_s = sum(case.search_s for case in chosen)
        if chosen and not default_s:
            raise SelectionError("no selected case runs random programs: leave out --level deep")
        share = options.search_s / (default_s or 1.0)
    return Searches(seed=options.seed or 0, share=share, program=options.program)


def _failed_outcome(kind: str, reason: str, duration_s: float) -> dict[str, Any]:
    return {"kind": kind, "reason": reason, "duration_s": duration_s, "observed": []}


def cases_folder(folder: Path | None) -> Path:
    return (matrix_dir() / "conformance") if folder is None else folder.resolve()


def collect(child: Child) -> Collected:
    found = decode(Collection, _expect(child, "collected"), "collected")
    return Collected(
        list(found.cases), [suite_error(each.name, each.reason) for each in found.problems]
    )


def _expect(child: Child, kind: str) -> dict[str, Any]:
    """What the child's next event holds; raises SuiteError unless it is of that kind."""
    try:
        event = child.receive(child.watch(LIMITS.start_s))
    except TimeoutError:
        what = "the device was not opened" if kind == "machine" else "the suite did not start"
        where = child.current_frame()
        stood = f" and stood{where}" if where else ""
        raise SuiteError(f"{what} within {LIMITS.start_s:g} s{stood}") from None
    if event is None:
        raise SuiteError(
            f"the suite cannot run: its process {child.how_it_ended()}{_complaint(child)}"
        )
    name = event.pop("event", None)
    if name == "fatal":
        what = f"{event.get('kind')}: {event.get('reason')}"
        raise BackendNotFound(f"the device cannot be opened: {what}")
    if name != kind:
        raise SuiteError(f"the suite answered {name!r} instead of {kind!r}")
    return event


def _complaint(child: Child) -> str:
    """The last output of a child that has ended, after a colon; empty without output."""
    output = child.last_line()
    return f": {output}" if output else ""

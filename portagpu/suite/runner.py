"""Running the suite: children one after the other until every case has its result."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from portagpu.codec import decode
from portagpu.contents import check_installation, missing_cases
from portagpu.contract import Capability
from portagpu.errors import BackendNotFound, PortagpuError
from portagpu.paths import matrix_dir
from portagpu.results.run import Verdict
from portagpu.suite.child import Child, SuiteError
from portagpu.suite.ids import base_id, matches
from portagpu.suite.judge import (
    FAILED,
    audit,
    broken_file,
    elsewhere,
    excused,
    gone,
    idle_claims,
    judge,
    not_begun,
    not_judged_again,
    unexplained,
    unjudged,
    unopened,
    unused,
)
from portagpu.suite.machine import Judged, Listed, Machine
from portagpu.suite.select import EVERYTHING, Selection, SelectionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from portagpu.results.run import Result
    from portagpu.target import Target

STARTUP_LIMIT_S: Final = 120.0
"""Importing torch on a cold, busy machine takes tens of seconds."""


@dataclass(frozen=True, slots=True)
class Request:
    """What to run; see :func:`portagpu.suite.conform`."""

    backend: str | None = None
    target: str | Target | None = None
    selection: Selection = EVERYTHING
    timeout_s: float = 60.0
    folder: Path | None = None
    ended: Callable[[], str] = str
    indices: tuple[int, ...] = (0,)
    """The devices to judge."""


@dataclass(frozen=True, slots=True)
class Callbacks:
    """Whom to tell while it runs."""

    on_result: Callable[[Result], None] | None = None
    on_start: Callable[[str, int, int], None] | None = None
    on_machine: Callable[[Machine], None] | None = None


@dataclass(frozen=True, slots=True)
class _Collected:
    cases: list[Listed]
    problems: list[Result]


def listing(selection: Selection, folder: Path | None) -> list[Listed]:
    """The cases that are asked for; raises SuiteError when a file of the suite is broken."""
    with Child(_folder(folder)) as child:
        collected = _collect(child)
    if collected.problems:
        raise SuiteError(collected.problems[0].reason)
    return selection.of(collected.cases)


def run(request: Request, callbacks: Callbacks) -> list[Result]:
    """Run what is asked for and return every result, in the order in which the cases ran."""
    from portagpu.registry import plugin, resolve
    from portagpu.target import load_target

    check_installation()
    wanted = load_target(request.target) if isinstance(request.target, str) else request.target
    name = resolve(request.backend)
    if not request.indices:
        raise ValueError("conform() judges at least one device: index is empty")
    first, *others = dict.fromkeys(request.indices)
    if plugin(name).shared:
        request, others = replace(request, indices=(first,)), []
    judged = _Run(request, callbacks, name, wanted, first)
    results = judged.results
    known = {each.device: each for each in (judged.machine,) if each is not None}
    further = replace(request, selection=replace(request.selection, of_device=True))
    for index in others:
        results += _further(further, callbacks, name, wanted, index, known)
    for device in sorted(request.selection.failed_on - set(known)):
        result = not_judged_again(device)
        results.append(result)
        if callbacks.on_result is not None:
            callbacks.on_result(result)
    return results


def _further(
    request: Request,
    callbacks: Callbacks,
    name: str,
    wanted: Target | None,
    index: int,
    known: dict[str, Machine],
) -> list[Result]:
    """The results of one more device; none where no case that is asked for is about a device.

    One that opens as a device of ``known``, which gains it, is an error of its own.
    """
    device = f"{name} device {index}"
    reason = request.ended()
    try:
        if not reason:
            return _Run(request, callbacks, name, wanted, index, known).results
        result = replace(unopened(device, reason), verdict=Verdict.INCONCLUSIVE)
    except PortagpuError as error:
        result = unopened(device, str(error))
    if callbacks.on_result is not None:
        callbacks.on_result(result)
    return [result]


class _Run:
    def __init__(
        self,
        request: Request,
        callbacks: Callbacks,
        backend: str,
        wanted: Target | None,
        index: int,
        known: dict[str, Machine] | None = None,
    ) -> None:
        self.request = request
        self.index = index
        self.further = known is not None
        self.known = {} if known is None else known
        self.callbacks = callbacks
        self.backend = backend
        self.wanted = None if wanted is None else Judged.of(wanted)
        self.folder = _folder(request.folder)
        self.results: list[Result] = []
        self.raw: dict[str, Verdict] = {}
        self.failed: set[str] = set()
        self.shared_worlds: dict[str, dict[str, str]] = {}
        self.set_aside: Counter[str] = Counter()
        self.machine: Machine | None = None
        self.pending: list[Listed] = []
        self.chosen: list[Listed] = []
        self.ended = ""
        self.total = 0
        self._all_children()

    def _all_children(self) -> None:
        first = True
        while first or self.pending:
            before = len(self.pending)
            with Child(self.folder) as child:
                machine = self._open(child, first)
                if not self.pending:
                    break
                child.send({"ids": [case.id for case in self.pending]})
                self._drain(child, machine)
            if not first and len(self.pending) == before:
                raise SuiteError("the suite makes no progress: its process ends before any case")
            first = False
        for result in self._of_the_suite():
            self._emit(result)

    def _of_the_suite(self) -> Iterator[Result]:
        """What the cases' results together say; some of it of a complete run alone."""
        yield from unexplained(self.shared_worlds, self.failed)
        yield from unjudged(self.results, self.set_aside)
        if self.machine is not None and not self._partial:
            if self.machine.target is not None:
                yield from audit(self.machine.target.excuses, self.raw)
            yield from unused(self.machine.overrides, self.raw)
            yield from idle_claims(self.machine, self.chosen, self.raw)

    @property
    def _partial(self) -> bool:
        elsewhere = self.wanted is not None and self.machine is not None
        here = self.machine.target if self.machine is not None else None
        away = elsewhere and (here is None or self.wanted is None or here.id != self.wanted.id)
        return bool(self.request.selection.partial or away or self.ended)

    def _open(self, child: Child, first: bool) -> Machine:
        """Read which cases there are, and have the child open the device."""
        collected = _collect(child)
        if first:
            problems = [] if self.further else [*collected.problems, *self._missing(collected)]
            for problem in problems:
                self._emit(problem)
            self.pending = self.chosen = self._selected(collected)
            self.total = len(self.pending)
        request = {"backend": self.backend, "index": self.index}
        child.send({**request, "timeout_s": self.request.timeout_s})
        event = _expect(child, "machine")
        machine = decode(Machine, event["machine"], "machine")
        if first:
            if machine.device in self.known:
                raise SuiteError(f"it opens as {machine.device}, which was judged already")
            self.known[machine.device] = self.machine = machine
            if self.callbacks.on_machine is not None:
                self.callbacks.on_machine(machine)
            self._away(machine)
        return machine

    def _missing(self, collected: _Collected) -> Iterator[Result]:
        """What should be there: the cases of a whole installation, and those that failed before."""
        counts = Counter(case.area for case in collected.cases)
        damage = missing_cases(counts) if self.request.folder is None else ""
        if damage and not collected.problems:
            yield broken_file("contents", damage)
        for name in self.request.selection.without_case(collected.cases):
            yield gone(name)

    def _selected(self, collected: _Collected) -> list[Listed]:
        """The cases that are asked for; a file that cannot be read may be why there is none."""
        asked = self.request.selection
        if not collected.problems:
            return asked.of(collected.cases)
        found = replace(asked, only=_known(asked.only, collected.cases))
        try:
            return found.of(collected.cases) if bool(found.only) == bool(asked.only) else []
        except SelectionError:
            return []

    def _away(self, machine: Machine) -> None:
        """Where the target is not this machine there is nothing to run."""
        wanted = self.wanted
        if wanted is None or (machine.target is not None and machine.target.id == wanted.id):
            return
        for case in self.pending:
            self._emit(elsewhere(case, machine, wanted), case)
        self.pending = []

    def _drain(self, child: Child, machine: Machine) -> None:
        """Take results until the child is done, dies, or a case runs out of its time."""
        running: Listed | None = None
        while True:
            limit_s = STARTUP_LIMIT_S if running is None else self._limit(running, machine)
            try:
                event = child.receive(limit_s)
            except TimeoutError:
                if running is None:
                    raise SuiteError("the suite hangs between two cases") from None
                where = child.where()
                child.kill()
                reason = (
                    f"did not finish within {limit_s:g} s{' and stood' + where if where else ''}"
                )
                self._settle(running, _lost("lost", reason, limit_s), machine)
                return
            if event is None:
                self._child_ended(child, running, machine)
                return
            if running is not None and event["event"] in ("start", "done"):
                reason = "the suite's process gave it up without a result"
                self._settle(running, _lost("error", reason, 0.0), machine)
                running = None
            if event["event"] == "start":
                running = self._case(event["id"])
                self._tell_start(running)
            elif event["event"] == "result" and running is not None:
                self._settle(running, event, machine)
                running = None
                self.ended = self.request.ended()
                if self.ended and self.pending:
                    child.kill()
                    for case in self.pending:
                        self._emit(not_begun(case, self.ended), case)
                    self.pending = []
                    return
            elif event["event"] == "done":
                return

    def _child_ended(self, child: Child, running: Listed | None, machine: Machine) -> None:
        how = child.how_it_ended()
        if running is None:
            raise SuiteError(f"the suite's process {how} between two cases{_said(child)}")
        self._settle(running, _lost("error", f"the process {how}", 0.0), machine)

    def _settle(self, case: Listed, outcome: dict[str, Any], machine: Machine) -> None:
        judged = judge(case, outcome, machine)
        excuses = () if machine.target is None else machine.target.excuses
        result = excused(judged, excuses, lost=outcome["kind"] == "lost")
        self.raw[case.id] = judged.verdict
        if outcome["kind"] in (*FAILED, "error"):
            self.failed.add(base_id(case.id))
        if outcome.get("shared_world") is not None:
            self.shared_worlds[base_id(case.id)] = outcome["shared_world"]
        if result.verdict is not judged.verdict or case.override_of(machine.overrides) is not None:
            self.set_aside[case.area] += 1
        self.pending = [each for each in self.pending if each.id != case.id]
        self._emit(result, case)

    def _emit(self, result: Result, case: Listed | None = None) -> None:
        """Keep and tell a result, which names the device where that one alone has it."""
        several = len(self.request.indices) > 1
        several = several or (self.machine is not None and self.machine.count > 1)
        own = self.further or (case is not None and case.of_device)
        if self.machine is not None and several and own:
            result = replace(result, device=self.machine.device)
        self.results.append(result)
        if self.callbacks.on_result is not None:
            self.callbacks.on_result(result)

    def _tell_start(self, case: Listed) -> None:
        if self.callbacks.on_start is not None:
            self.callbacks.on_start(case.id, self.total - len(self.pending) + 1, self.total)

    def _case(self, full: str) -> Listed:
        return next(each for each in self.pending if each.id == full)

    def _limit(self, case: Listed, machine: Machine) -> float:
        """A case on ranks may start two worlds: one for all its parameters, and one of its own."""
        starts = 2 if Capability.COLLECTIVES in case.capability else 0
        return (case.timeout_s or self.request.timeout_s) + starts * machine.start_s


def _known(only: Sequence[str], cases: Sequence[Listed]) -> tuple[str, ...]:
    """Those that name a case: the others' may stand in a file that cannot be read."""
    return tuple(one for one in only if any(matches(one, each.id) for each in cases))


def _lost(kind: str, reason: str, duration_s: float) -> dict[str, Any]:
    return {"kind": kind, "reason": reason, "duration_s": duration_s, "observed": []}


def _folder(folder: Path | None) -> Path:
    return (matrix_dir() / "conformance") if folder is None else folder.resolve()


def _collect(child: Child) -> _Collected:
    event = _expect(child, "collected")
    cases = [decode(Listed, each, "case") for each in event["cases"]]
    problems = [broken_file(each["name"], each["reason"]) for each in event["problems"]]
    return _Collected(cases, problems)


def _expect(child: Child, kind: str) -> dict[str, Any]:
    """The next event, which has to be of that kind."""
    try:
        event = child.receive(STARTUP_LIMIT_S)
    except TimeoutError:
        what = "the device was not opened" if kind == "machine" else "the suite did not start"
        where = child.where()
        stood = f" and stood{where}" if where else ""
        raise SuiteError(f"{what} within {STARTUP_LIMIT_S:g} s{stood}") from None
    if event is None:
        raise SuiteError(f"the suite cannot run: its process {child.how_it_ended()}{_said(child)}")
    if event["event"] == "fatal":
        raise BackendNotFound(f"the device cannot be opened: {event['kind']}: {event['reason']}")
    if event["event"] != kind:
        raise SuiteError(f"the suite answered {event['event']!r} instead of {kind!r}")
    return event


def _said(child: Child) -> str:
    """What a child that has ended complained of, behind a colon; empty where it said nothing."""
    said = child.last_words()
    return f": {said}" if said else ""

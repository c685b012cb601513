"""Runs the checklist: each gate once and in order, blocked if a gate that it needs failed.

The context of a gate's check has the machine under test, the gate's amounts, and makes results.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.errors import BackendNotFound, MissingDependency, UnknownBackend
from portagpu.base.installation import check_installation
from portagpu.base.text import error_line
from portagpu.checks.bringup.gates import Gate, left_out_gates, load_gates, with_load_duration
from portagpu.devices.registry import plugin, resolve
from portagpu.machine.inventory.sources import Live, Machine
from portagpu.runs import engine as running
from portagpu.runs.engine import RunOptions, broken_world
from portagpu.runs.results.advice import cause_of, separated
from portagpu.runs.results.run import Evidence, Result, Run, Verdict, verdict_of
from portagpu.runs.world import Ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from portagpu.checks.bringup.device import CheckedDevice
    from portagpu.checks.recordings.replay import Recording
    from portagpu.facts.targets import Target
    from portagpu.machine.inventory.sources import Origin
    from portagpu.runs.world import WorldOutcome


_UNJUDGED: Final = frozenset({Verdict.SKIP, Verdict.INCONCLUSIVE})


@dataclass(slots=True)
class MachineUnderTest:
    """What is under test, and what its gates have found of it so far.

    ``devices`` is empty until the identity gate has found them. ``target`` is the target to judge
    by: the wanted one, else the one that was found.
    """

    backend: str | None
    """None in a replay: no device is used."""
    ranks: Ranks
    machine: Machine = field(default_factory=Live)
    """The machine whose files and devices are read: this one, or a recording."""
    origins: Sequence[Origin] = ()
    """The replayed recordings; empty if this machine is judged."""
    target: Target | None = None
    wanted: Target | None = None
    expect_devices: int | None = None
    unusable: str = ""
    """Why no backend can be used; empty if one can."""
    from_files: bool = False
    """Whether no device is opened: only files and the vendors' libraries are judged."""
    shared: bool = False
    """Whether all ranks of the machine share one device."""
    devices: list[CheckedDevice] = field(default_factory=list)
    device_count: int = 1
    """How many there are to open; 1 until the identity gate has counted them."""
    versions: dict[str, str | None] = field(default_factory=dict)


@dataclass(slots=True)
class Context:
    """What a gate's check gets: the tested machine, the gate with its amounts, and its clock.

    Its methods make the results of the gate.
    """

    tested: MachineUnderTest
    gate: Gate
    effort: str
    suite: str = "bringup"
    """The suite of its results: "health" judges with gates of this one."""
    step: Callable[[str], None] = lambda _: None
    """Reports what the check is doing, for the progress view."""
    started_s: float = field(default_factory=time.monotonic)

    @property
    def amounts(self) -> Mapping[str, Any]:
        """The gate's amounts for this effort."""
        return self.gate.amounts[self.effort]

    @property
    def limit_s(self) -> float:
        """Seconds for one device, or for a gate that does not go by devices.

        Each device gets all of it, whatever the gate has used up: with less time than its runtime
        needs to start, it would be blamed for the others.
        """
        stated: float = self.amounts["limit_s"]
        return stated

    def time_is_up(self) -> str:
        """Why the gate starts nothing more, in one clause; empty while it has time.

        Its time is ``limit_s``, plus ``device_s`` for every device after the first.
        """
        further: float = self.amounts.get("device_s", 0.0) * (self.tested.device_count - 1)
        limit_s = self.limit_s + further
        if time.monotonic() - self.started_s < limit_s:
            return ""
        return f"not run: the gate {self.gate.id} has used up its {limit_s:g} s"

    def result(
        self,
        name: str,
        verdict: Verdict,
        reason: str = "",
        *,
        device: str | None = None,
        **fields: Any,
    ) -> Result:
        """A result of this gate; ``name`` is completed to the id "gate/name".

        A judged or measured result has the gate's evidence, or "recorded" with the recordings in
        ``extra``. SKIP and INCONCLUSIVE have none, nor has a result without an open device.
        """
        if verdict not in _UNJUDGED:
            earned = None if self.tested.from_files else self.gate.earns
            earned = Evidence.RECORDED if self.tested.origins else earned
            fields.setdefault("evidence", () if earned is None else (earned,))
            if self.tested.origins:
                of = [each.to_json() for each in self.tested.origins]
                fields["extra"] = {**fields.get("extra", {}), "recordings": of}
        return Result(
            id=f"{self.gate.id}/{name}",
            suite=self.suite,
            area=self.gate.id,
            verdict=verdict,
            reason=reason,
            device=device,
            **fields,
        )

    def judge(
        self, name: str, good: bool, reason: str, *, expected: Mapping[str, Any], **fields: Any
    ) -> Result:
        """PASS or FAIL by one condition; ``reason`` says what was seen, in both cases.

        ``expected`` is made by ``portagpu.runs.results.wording``.
        """
        verdict = Verdict.PASS if good else Verdict.FAIL
        return self.result(name, verdict, reason, expected=expected, **fields)

    def failure(self, name: str, outcome: WorldOutcome, device: str | None = None) -> Result:
        """The result of a world whose ranks did not all end well; names the device or the rank."""
        culprit = outcome.culprit
        if device is None and culprit is not None:
            device = f"rank {culprit}"
        blamed = outcome.ranks[culprit] if culprit is not None else None
        extra = {"output": blamed.output} if blamed is not None and blamed.output else {}
        return self.result(name, device=device, extra=extra, **broken_world(outcome, blamed))

    def compared(self, by_device: Iterable[Iterable[Result]]) -> Iterator[Result]:
        """The results of one device after the other, and at the end those with a wrong value.

        Only then is it known whether their peers are wrong too, and in the same bits.
        """
        seen: list[Result] = []
        try:
            for results in by_device:
                for result in results:
                    seen.append(result)
                    if cause_of(result) is None:
                        yield result
        except (Exception, KeyboardInterrupt):
            # what was found before the gate broke or was stopped stays in the run
            yield from _wrong_values(seen)
            raise
        yield from _wrong_values(seen)

    def adopt(self, result: Result) -> Result:
        """A result of another suite as one of this gate: its id stays, ``extra`` has its suite."""
        return replace(
            result,
            suite=self.suite,
            area=self.gate.id,
            extra={**result.extra, "suite": result.suite, "area": result.area},
        )


def check_function(
    gate: Gate, *, replay: bool = False
) -> Callable[[Context], Iterator[Result]] | None:
    """The check of a gate, which is imported now.

    :param gate: A gate of the checklist.
    :param replay: Whether a recording is judged and not this machine.
    :returns: None where the gate has no check of recordings.
    """
    named = gate.replay if replay else gate.check
    if named is None:
        return None
    module, _, name = named.partition(":")
    check: Callable[[Context], Iterator[Result]] = getattr(import_module(module), name)
    return check


def _wrong_values(results: Iterable[Result]) -> Iterator[Result]:
    return (each for each in separated(results) if cause_of(each) is not None)


_DEVICE_KEYS: Final = ("arch", "uuid", "pci", "memory_bytes", "target", "parent")
"""The facts of a device in the run's record, in addition to its kind, vendor and name."""
_FAILED: Final = frozenset({Verdict.FAIL, Verdict.ERROR})


@dataclass(frozen=True, slots=True, kw_only=True)
class BringupOptions(RunOptions):
    """The options of a bring-up.

    ``effort`` is "quick" or "full", ``target`` what the machine has to be, ``backend`` a backend's
    name, by default the one that ``portagpu.backend()`` chooses, ``expect_devices`` the required
    number of devices. Without a usable torch and backend, and after a blocked gate, the gates that
    can judge files do so; the run is then not a PASS. ``only`` names gates to run, with those they
    need, and ``skip`` gates to leave out; gates that do not run are INCONCLUSIVE. ``duration_s`` is
    the duration of the sustained load, by default the checklist's. With ``replay`` the same gates
    judge a recording instead of this machine. ``asked`` is the option that chose ``only``.
    """

    effort: str = "quick"
    backend: str | None = None
    expect_devices: int | None = None
    only: Sequence[str] = ()
    skip: Sequence[str] = ()
    duration_s: float | None = None
    replay: Recording | None = None
    asked: str = ""


class GateProgress(running.Progress):
    """The progress of a bring-up, reported while it runs."""

    def gate_begins(self, gate: Gate) -> None:
        """``gate`` is about to run."""

    def step(self, gate: Gate, text: str) -> None:
        """``gate`` is doing what ``text`` says."""

    def gate_ends(self, gate: Gate, results: Sequence[Result], duration_s: float) -> None:
        """``gate`` has these results; they are already part of the run."""


def bringup(
    options: BringupOptions,
    progress: GateProgress | None = None,
    gates: Sequence[Gate] | None = None,
) -> Run:
    """Run every gate on this machine, or on a recording.

    On Ctrl-C the run is marked as interrupted: it has every result so far, and INCONCLUSIVE ones
    for the gates that did not finish.

    :param options: What to test, and what to replay.
    :param progress: Reports gates and results as they come.
    :param gates: The gates in order; by default those of the matrix.
    :returns: The finished run.
    :raises TargetNotFound: No target has the wanted id; nothing has run.
    :raises UnknownBackend: No backend has the wanted name; nothing has run.
    :raises UnknownGate: ``only`` or ``skip`` names a gate that does not exist.
    """
    check_installation()
    progress = progress or GateProgress()
    gates = load_gates() if gates is None else gates
    if options.duration_s is not None:
        gates = [with_load_duration(gate, options.duration_s) for gate in gates]
    absent = left_out_gates(gates, options.only, options.skip, options.asked)
    wanted = options.load_target()
    machine = options.replay or Live()
    origins = machine.origins()
    name, unusable = (None, "") if origins else _usable_backend(options.backend, machine)

    def work(run: Run) -> None:
        with Ranks() as ranks:
            if name is not None:
                ranks.start()
            tested = MachineUnderTest(
                backend=name,
                ranks=ranks,
                machine=machine,
                origins=origins,
                target=wanted,
                wanted=wanted,
                expect_devices=options.expect_devices,
                unusable=unusable,
                from_files=name is None,
                shared=name is not None and plugin(name).shared,
            )
            context = Context(tested, gates[0], options.effort)
            pending = list(gates)
            try:
                _run_gates(pending, context, run, progress, absent)
            except KeyboardInterrupt:
                _close_interrupted(pending, context, run)
                raise

    run = options.new_run(
        backend=name,
        replay=[origin.to_json() for origin in origins],
        host="" if origins else None,
    )
    return running.complete(run, progress, work)


def _usable_backend(wanted: str | None, machine: Machine) -> tuple[str | None, str]:
    """(the backend to test, ""), or (None, why none can be); raises UnknownBackend."""
    try:
        name = resolve(wanted)
    except UnknownBackend:
        raise
    except (BackendNotFound, MissingDependency) as error:
        return None, str(error)
    build = machine.torch()
    if build is None or build.problem is not None:
        return None, "torch is not installed" if build is None else str(build.problem)
    return name, ""


def _run_gates(
    pending: list[Gate],
    context: Context,
    run: Run,
    progress: GateProgress,
    absent: Mapping[str, str],
) -> None:
    """Run the gates; each leaves ``pending`` when its results are in the run.

    ``absent`` maps the gates that are left out to the reason.
    """
    unusable: dict[str, str] = {}
    while pending:
        gate = pending[0]
        context.gate = gate
        context.started_s = time.monotonic()
        context.step = partial(progress.step, gate)
        progress.gate_begins(gate)
        needs = () if context.tested.origins else gate.needs
        blocker = next((need for need in needs if need in unusable), None)
        if gate.id in absent:
            reason = f"this run is partial: {absent[gate.id]}"
            found = [run.add(context.result("left-out", Verdict.INCONCLUSIVE, reason))]
        else:
            found = []
            for result in _gate_results(context, unusable.get(blocker or ""), run):
                progress.result_added(result)
                found.append(result)
        if blocker is not None:
            unusable[gate.id] = unusable[blocker]
        elif verdict_of(found) in _FAILED or (gate.id in absent and gate.opens_devices):
            unusable[gate.id] = gate.id
        describe(run, context)
        duration_s = time.monotonic() - context.started_s
        taken = {**run.info.area_duration_s, gate.id: round(duration_s, 3)}
        run.info = replace(run.info, area_duration_s=taken)
        pending.pop(0)
        progress.gate_ends(gate, found, duration_s)


def _gate_results(context: Context, failed_gate: str | None, run: Run) -> Iterator[Result]:
    """Add the gate's results; if it is blocked, only those that need no device."""
    if failed_gate is not None or (context.tested.unusable and context.gate.needs):
        yield _blocked_result(context, failed_gate, run)
        if context.gate.replay is None:
            return
        context.tested.from_files = True
    yield from _check_results(context, run)


def _check_results(context: Context, run: Run) -> Iterator[Result]:
    """Add the results of the gate's check, or one result if it breaks or finds nothing."""
    count = 0
    try:
        check = check_function(context.gate, replay=context.tested.from_files)
        if check is None:
            reason = (
                "a recording cannot run this" if context.tested.origins else "no device is opened"
            )
            yield run.add(context.result("replay", Verdict.INCONCLUSIVE, reason))
            return
        for result in check(context):
            count += 1
            yield run.add(result)
    except Exception as error:  # noqa: BLE001 - a check that breaks must not end the checklist
        reason = f"the check broke: {error_line(error)}"
        yield run.add(context.result("check", Verdict.ERROR, reason))
        return
    if not count:
        reason = "the check found nothing to judge"
        yield run.add(context.result("check", Verdict.INCONCLUSIVE, reason))


def _blocked_result(context: Context, failed_gate: str | None, run: Run) -> Result:
    """Add the result of a blocked gate, with the result that failed."""
    cause = next(
        (entry for entry in run.results if entry.area == failed_gate and entry.failed), None
    )
    failed = "failed" if cause is not None else "was left out"
    why = f"the gate {failed_gate} {failed}" if failed_gate else context.tested.unusable
    files_too = context.gate.replay is not None
    reason = f"judged by files alone, because {why}" if files_too else f"not run, because {why}"
    return run.add(
        context.result(
            "blocked",
            Verdict.INCONCLUSIVE,
            reason,
            blocked_by=cause.id if cause is not None else failed_gate,
        )
    )


def _close_interrupted(pending: Sequence[Gate], context: Context, run: Run) -> None:
    for number, gate in enumerate(pending):
        context.gate = gate
        reason = "interrupted before it finished" if number == 0 else "interrupted before it began"
        run.add(context.result("interrupted", Verdict.INCONCLUSIVE, reason))


def describe(run: Run, context: Context) -> None:
    """Put the devices, versions and target into the run's record."""
    devices = [
        {
            "kind": "cpu" if device.facts["arch_vendor"] == "cpu" else "gpu",
            "vendor": device.facts["arch_vendor"],
            "name": device.facts["product"] or device.name,
            "index": device.index,
            **{key: device.facts.get(key) for key in _DEVICE_KEYS},
        }
        for device in context.tested.devices
    ]
    target: Target | None = context.tested.wanted or context.tested.target
    run.info = replace(
        run.info,
        devices=tuple(devices),
        versions={**run.info.versions, **context.tested.versions},
        target=target.id if target is not None else run.info.target,
    )

"""Judges a node once with the gates of a bring-up that need no device, and gives the results an
action each.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from portagpu.base.text import error_line
from portagpu.checks.bringup.checks import environment
from portagpu.checks.bringup.checks.health import check_host
from portagpu.checks.bringup.gates import load_gates
from portagpu.checks.bringup.run import Context, MachineUnderTest, describe
from portagpu.checks.health.machine import Snapshot
from portagpu.runs.results.advice import with_action
from portagpu.runs.results.run import Run, Verdict
from portagpu.runs.world import Ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from portagpu.checks.health.watchdog import HealthOptions
    from portagpu.machine.inventory.sources import Machine
    from portagpu.runs.results.run import Result

SUITE: Final = "health"
_SHARE: Final = 0.6
"""Of the limit, what one library or the journal may take, so that the rest is judged without it."""


def health(options: HealthOptions) -> Run:
    """Judge the node. Raises TargetNotFound, RecordingError, and ValueError for ``since``."""
    *_, last = health_so_far(options)
    return last


def health_so_far(options: HealthOptions) -> Iterator[Run]:
    """The run after each stage, the last one whole: the host with the kernel's log, the devices,
    and their links as the vendors' tools show them.

    A later run has everything that an earlier one has, unless the same was judged better.
    """
    begun_s = time.monotonic()
    target = options.load_target()
    machine = Snapshot(
        _recording(options.replay) if options.replay else None,
        log=options.log,
        since=options.since,
        limit_s=_SHARE * options.limit_s,
    )
    origins = machine.origins()
    gates = {gate.id: gate for gate in load_gates()}
    tested = MachineUnderTest(
        backend=None,
        ranks=Ranks(),
        machine=machine,
        origins=origins,
        target=target,
        wanted=target,
        expect_devices=options.expect_devices,
        from_files=True,
    )
    context = Context(tested, gates["health"], "quick", SUITE)

    def judged(
        gate: str, check: Callable[[Context], Iterator[Result]] | None = None
    ) -> list[Result]:
        context.gate = gates[gate]
        check = check or context.gate.load(replay=True)
        return list(_results(context, check)) if check is not None else []

    first = options.new_run(
        replay=[origin.to_json() for origin in origins], host="" if origins else None
    )

    def run_of(*groups: Sequence[Result]) -> Run:
        run = Run(first.info)
        describe(run, context)
        run.extend([with_action(each) for group in groups for each in group])
        return run.finish(duration_s=time.monotonic() - begun_s)

    log = judged("health", _log)
    if not options.replay:
        yield run_of(log, judged("health", check_host))
    devices = _device_gates(judged)
    yield run_of(log, *devices.values())
    if options.tools and not options.replay and machine.inventory().gpus:
        if machine.ask_tools():
            context.tested.devices.clear()
            devices = _device_gates(judged)
        else:
            devices["links"] = judged("links")
        yield run_of(log, *devices.values())


def _device_gates(judged: Callable[..., list[Result]]) -> dict[str, list[Result]]:
    """The results of each gate that judges devices, in the order of a bring-up."""
    return {
        "environment": judged("environment", _sources),
        **{gate: judged(gate) for gate in ("identity", "links", "health")},
    }


def _recording(paths: Sequence[str]) -> Machine:
    # a live machine needs none of the readers of outputs
    from portagpu.checks.recordings.replay import Recording

    return Recording(*paths)


def _results(context: Context, check: Callable[[Context], Iterator[Result]]) -> Iterator[Result]:
    """The results of a check, or one result if it breaks: that stops no other."""
    try:
        yield from check(context)
    except Exception as error:  # noqa: BLE001 - a check that breaks must not end the judgement
        reason = f"the check broke: {error_line(error)}"
        yield context.result("check", Verdict.ERROR, reason)


def _sources(context: Context) -> Iterator[Result]:
    """What was read, and what could not be; declarations that cannot be used."""
    yield environment.recording(context)
    yield from environment.declarations(context)


def _log(context: Context) -> Iterator[Result]:
    """Whether the kernel's log was read, and all of it."""
    machine = context.tested.machine
    assert isinstance(machine, Snapshot)  # noqa: S101 - this engine made it
    log = machine.kernel_log
    if log.problem:
        yield context.result("log", Verdict.INCONCLUSIVE, log.problem)
    elif log.cut:
        yield context.result("log", Verdict.UNVERIFIED, log.cut)

"""Runs the steps of a fleet through Slurm, and keeps the record of them.

Each step is one job, pinned to its nodes: the tasks of a job array cannot be pinned, and would meet
some nodes twice and others never. The record always says what is left to do. Whoever ends this
process loses nothing: jobs go on, and the next run of the same command finds them.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from portagpu.base.errors import MissingDependency, OutputError
from portagpu.base.patience import LIMITS
from portagpu.base.units import count
from portagpu.reports.fleet import slurm
from portagpu.reports.fleet.record import FleetRecord, Step, StepState, locked, write_record
from portagpu.reports.fleet.request import (
    arguments_of,
    begun_record,
    came_to_its_end,
    chosen_nodes,
    collected,
    gres_of,
    last_line,
    lost,
)
from portagpu.reports.fleet.scheduler import drain, scheduler_of, to_drain

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from portagpu.reports.fleet.request import FleetOptions
    from portagpu.reports.fleet.scheduler import Scheduler
    from portagpu.reports.fleet.slurm import Job, Node
    from portagpu.runs.results.run import RunInfo

SCRIPT: Final = Path(__file__).resolve().parent / "step.sh"
LIVE: Final = (StepState.SUBMITTED, StepState.RUNNING)
MAX_ATTEMPTS: Final = 5
"""How often a step is submitted whose job other jobs preempt."""
_BY_ITSELF: Final = ("COMPLETED", "FAILED")
"""States of a job whose command ended by itself, with whatever exit code."""
_ENDS: Final = (StepState.DONE, StepState.LOST)
_OTHERWISE: Final = "; for nodes without Slurm name them with --ssh, or try --local 2 here"


class FleetProgress:
    """What a run reports; override the methods of interest."""

    def begin(self, record: FleetRecord) -> None:
        """The run begins, or goes on; ``record`` is where it stands."""

    def changed(self, step: Step, record: FleetRecord) -> None:
        """``step`` is further than it was."""

    def note(self, text: str) -> None:
        """Something that the operator should know, in one line."""

    def end(self) -> None:
        """The run is over or was interrupted."""


@dataclass(frozen=True, slots=True)
class FleetOutcome:
    """The record at the end; ``interrupted`` by Ctrl-C, with jobs that may go on."""

    record: FleetRecord
    interrupted: bool = False


def run(options: FleetOptions, progress: FleetProgress | None = None) -> FleetOutcome:
    """Run what is left of the fleet's steps. Nothing is submitted before everything was checked.

    Raises FleetUsageError, SlurmError, MissingDependency, FleetBusy and OutputError. The record is
    whole at any time, and jobs that were submitted go on without this process.
    """
    heard = progress or FleetProgress()
    scheduler = scheduler_of(options)
    try:
        version = scheduler.version()
        nodes = scheduler.nodes()
    except (slurm.SlurmError, MissingDependency) as error:
        # no node was looked at
        raise MissingDependency(f"{error}{_OTHERWISE if options.nodes else ''}") from error
    names = chosen_nodes(options, nodes)
    gres = gres_of(options, names, nodes)
    with locked(options.folder):
        record = begun_record(options, names, gres, version)
        runner = _Runner(options, heard, scheduler, gres, record)
        heard.begin(runner.record)
        try:
            runner.run(nodes)
        except KeyboardInterrupt:
            runner.stop()
            return FleetOutcome(runner.record, interrupted=True)
        except BaseException:
            runner.stop()
            raise
        finally:
            heard.end()
        return FleetOutcome(runner.record)


def job_name(record: FleetRecord) -> str:
    """The name of all jobs of a run."""
    return f"portagpu-{record.id}"


@dataclass(slots=True)
class _Runner:
    """The steps on their way; ``since`` is when each was submitted or seen to end."""

    options: FleetOptions
    progress: FleetProgress
    scheduler: Scheduler
    gres: str
    record: FleetRecord
    since: dict[str, float] = field(default_factory=dict)
    silent_since: float | None = None
    tried: set[str] = field(default_factory=set)
    """The nodes that this was to drain, whatever became of that."""
    seen: dict[str, tuple[str, str]] = field(default_factory=dict)
    noted: set[tuple[str, str]] = field(default_factory=set)

    def run(self, nodes: Mapping[str, Node]) -> None:
        self._begin_again()
        jobs: Mapping[str, Job] = self.scheduler.jobs(job_name(self.record))
        while True:
            self._adopt(jobs)
            self._follow(jobs, nodes)
            self._submit(nodes)
            if all(step.state in _ENDS for step in self.record.steps):
                return
            self.scheduler.pause(self.options.poll_s)
            jobs, nodes = self._seen(jobs, nodes)

    def _begin_again(self) -> None:
        """Steps that were lost are tried again, and those that ended with an earlier process."""
        ended = (StepState.LOST,) if self.scheduler.LASTS else (StepState.LOST, *LIVE)
        again = [
            replace(step, state=StepState.WAITING, reason="")
            for step in self.record.steps
            if step.state in ended
        ]
        self._put(again)

    def stop(self) -> None:
        """End what does not go on without this process; those steps wait again."""
        live = [step for step in self.record.steps if step.state in LIVE]
        if live and not self.scheduler.LASTS:
            running = count(len(live), "step")
            self.progress.note(f"ending {running}, at most {LIMITS.interrupt_s:.0f} s")
        self.scheduler.stop()
        if not self.scheduler.LASTS:
            self._put([replace(step, state=StepState.WAITING, reason="") for step in live])

    def _adopt(self, jobs: Mapping[str, Job]) -> None:
        """Find jobs that were submitted without their number being kept.

        The process of this run was ended just then, or did not get Slurm's answer.
        """
        waiting = {step.id: step for step in self.record.steps if step.state is StepState.WAITING}
        live = {job.comment: job for job in jobs.values() if not job.ended}
        found = [
            replace(step, state=StepState.SUBMITTED, job=live[name].id, attempts=step.attempts + 1)
            for name, step in waiting.items()
            if name in live and live[name].id != step.job
        ]
        self._put(found)

    def _seen(
        self, jobs: Mapping[str, Job], nodes: Mapping[str, Node]
    ) -> tuple[Mapping[str, Job], Mapping[str, Node]]:
        """The jobs and nodes now; what was seen last where Slurm is away for a while."""
        try:
            seen = self.scheduler.jobs(job_name(self.record)), self.scheduler.nodes()
        except slurm.SlurmError as error:
            now = time.monotonic()
            if self.silent_since is None:
                self.silent_since = now
                self.progress.note(f"{error}; waiting for Slurm")
            if now - self.silent_since > self.options.answer_limit_s:
                raise
            return jobs, nodes
        self.silent_since = None
        return seen

    def _follow(self, jobs: Mapping[str, Job], nodes: Mapping[str, Node]) -> None:
        """See how far each step is that was submitted."""
        followed = [step for step in self.record.steps if step.state in LIVE and step.job]
        further = [self._further(step, jobs.get(step.job or ""), nodes) for step in followed]
        self._put([now for now, step in zip(further, followed, strict=True) if now != step])
        if self.options.drain:
            self._drain()

    def _drain(self) -> None:
        wanted = to_drain(self.record, self.record.steps)
        fresh = {name: why for name, why in wanted.items() if name not in self.tried}
        self.tried |= set(fresh)
        self.record, outcomes = drain(self.options.folder, self.record, fresh, self.scheduler)
        for each in outcomes:
            self.progress.note(f"{each.node} {each.text}")

    def _further(self, step: Step, job: Job | None, nodes: Mapping[str, Node]) -> Step:
        folder = self.options.folder / step.id
        number = step.job or ""
        # a job whose node does not let go of it, or that Slurm has forgotten, may have its result
        over = job is None or job.ended or job.state == "COMPLETING"
        if over and came_to_its_end(folder, number):
            found, info = collected(folder, step)
            if info is not None:
                self._compare(step, info)
            if found.state is StepState.DONE or job is None or job.state in _BY_ITSELF:
                return found
        if job is None or over:
            return self._late(step, job, nodes)
        broken = self._broken(step, nodes)
        if job.state == "PENDING" and (why := self._why_never(step, job, broken)):
            try:
                self.scheduler.cancel([number])
            except slurm.SlurmError:
                # it began or ended just now, or Slurm is busy: the next look shows it
                return step
            return lost(step, why)
        if job.runs and step.state is StepState.SUBMITTED:
            return replace(step, state=StepState.RUNNING)
        if job.state == "PENDING" and step.state is StepState.RUNNING:
            reason = "Slurm took it back into its queue"
            return replace(step, state=StepState.SUBMITTED, reason=reason)
        return step

    def _broken(self, step: Step, nodes: Mapping[str, Node]) -> list[Node]:
        """The nodes of a step that will run nothing; one that is unknown has a while to answer."""
        found = []
        now = time.monotonic()
        for name in step.nodes:
            node = nodes.get(name) or slurm.Node(name, "invalid", frozenset(), "", "not in Slurm")
            silent = now - self.since.setdefault(f"{node.name}/unknown", now)
            if not node.unknown:
                del self.since[f"{node.name}/unknown"]
            if not node.usable or (node.unknown and silent > self.options.settle_s):
                found.append(node)
        return found

    def _compare(self, step: Step, info: RunInfo) -> None:
        """Report once each thing in which a node differs from the first one."""
        of = "+".join(step.nodes)
        for what, value in (
            ("target", info.target or "none that is known"),
            ("portagpu", info.versions.get("portagpu") or "unknown"),
        ):
            first, usual = self.seen.setdefault(what, (of, value))
            if value != usual and (what, value) not in self.noted:
                self.noted.add((what, value))
                self.progress.note(
                    f"{of} has {what} {value}, and {first} {usual}: compare them with care"
                )

    def _why_never(self, step: Step, job: Job, broken: Sequence[Node]) -> str:
        """Why there is no point in waiting for a job in the queue; empty where there is."""
        if broken:
            again = " while the step ran" if step.reason or step.state is StepState.RUNNING else ""
            return "; ".join(f"{node.why_unusable}{again}" for node in broken)
        if job.hopeless:
            return f"Slurm would let the job wait for ever: {job.reason}"
        limit = self.options.queue_limit_s
        waited = time.monotonic() - self.since.setdefault(step.id, time.monotonic())
        if limit is not None and waited > limit and step.state is StepState.SUBMITTED:
            return f"not begun within {limit:g} s in the queue: {job.reason or 'no reason given'}"
        return ""

    def _late(self, step: Step, job: Job | None, nodes: Mapping[str, Node]) -> Step:
        """A job that is over and left no end: wait for a shared folder, unless it was stopped."""
        state = "gone" if job is None else job.state
        if state == "PREEMPTED" and step.attempts < MAX_ATTEMPTS:
            return replace(step, state=StepState.WAITING, reason="preempted; it starts again")
        if job is not None and job.ended and state not in _BY_ITSELF:
            # if the spool is full, Slurm reports only the node's reason
            unusable = [
                nodes[name].why_unusable
                for name in step.nodes
                if name in nodes and not nodes[name].usable
            ]
            ended = f"{self.scheduler.TITLE} ended the job: {state}{_because(job)}"
            why = "; ".join([ended, *unusable])
            return lost(step, why)
        key = f"{step.id}/ended"
        waited = time.monotonic() - self.since.setdefault(key, time.monotonic())
        if job is not None and not job.ended:
            # its node clears up, or does not answer, which Slurm notices after minutes
            limit = self.options.answer_limit_s
            if waited < limit:
                return step
            return lost(step, f"the job has been {state} for {limit:g} s without a result")
        if waited < self.options.settle_s:
            return step
        logged = last_line(self.options.folder / step.id / "job.log")
        return lost(
            step,
            f"the job is {state} and left no result within {self.options.settle_s:g} s: is "
            f"{self.options.folder} shared with the node, writable there, and not full?"
            + (f" The log ends: {logged}" if logged else ""),
        )

    def _submit(self, nodes: Mapping[str, Node]) -> None:
        """Submit steps in their order, as many as may be in the queue at once."""
        if self.silent_since is not None:
            return
        live = sum(step.state in LIVE for step in self.record.steps)
        busy = {name for step in self.record.steps if step.state in LIVE for name in step.nodes}
        changed: list[Step] = []
        try:
            for step in self.record.steps:
                if live >= self.options.at_once:
                    return
                if step.state is not StepState.WAITING:
                    continue
                if broken := self._broken(step, nodes):
                    why = "; ".join(node.why_unusable for node in broken)
                    changed.append(lost(step, f"not submitted: {why}"))
                    continue
                if any(nodes[name].unknown for name in step.nodes):
                    continue
                waits = not busy.isdisjoint(step.nodes)
                # also those that wait: rounds keep their order on every node
                busy.update(step.nodes)
                if waits:
                    continue
                changed.append(self._submitted(step))
                live += 1
        except slurm.SlurmError as error:
            # a limit of jobs in the queue ends when those that are there do
            if not live:
                raise
            self.progress.note(f"{error}; trying again later")
        finally:
            self._put(changed)

    def _submitted(self, step: Step) -> Step:
        options, folder = self.options, self.options.folder / step.id
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(
                f"cannot make {folder}: {error.strerror}; repeat the command when that is fixed"
            ) from error
        number = self.scheduler.submit(
            SCRIPT,
            slurm.Request(
                name=job_name(self.record),
                comment=step.id,
                nodes=step.nodes,
                folder=folder,
                words=[str(folder), *self._command(step, folder)],
                minutes=options.minutes,
                gres=self.gres,
                partition=options.partition,
                account=options.account,
                exclusive=options.exclusive,
                tasks_per_node=self._ranks_per_node() if len(step.nodes) > 1 else None,
                options=options.sbatch,
            ),
        )
        self.since[step.id] = time.monotonic()
        self.since.pop(f"{step.id}/ended", None)
        return replace(
            step, state=StepState.SUBMITTED, job=number, attempts=step.attempts + 1, reason=""
        )

    def _command(self, step: Step, folder: Path) -> list[str]:
        options = self.options
        end = ["--out", str(folder)] if self.scheduler.SHARES else ["--json", "-"]
        if options.what != "collectives":
            return [*options.program, options.what, *arguments_of(self.record), *end]
        ranks = self._ranks_per_node()
        return [
            "srun",
            f"--nodes={len(step.nodes)}",
            f"--ntasks={ranks * len(step.nodes)}",
            f"--ntasks-per-node={ranks}",
            "--kill-on-bad-exit=1",
            # a rank chooses its cores by its GPU
            "--cpu-bind=none",
            *options.program,
            "fleet",
            "rank",
            *options.arguments,
            *end,
        ]

    def _ranks_per_node(self) -> int:
        """As it was asked for, or one for each GPU that a node is asked for; at least one."""
        counts = re.findall(r"gpu(?::[^:,]+)?:(\d+)(?:,|$)", self.gres)
        return self.options.ranks_per_node or sum(map(int, counts)) or 1

    def _put(self, steps: Sequence[Step]) -> None:
        """Put further states of steps into the record, and report them."""
        if not steps:
            return
        new = {step.id: step for step in steps}
        self.record = replace(
            self.record, steps=tuple(new.get(step.id, step) for step in self.record.steps)
        )
        write_record(self.options.folder, self.record)
        for step in steps:
            self.progress.changed(step, self.record)


def _because(job: Job) -> str:
    return "" if job.reason in ("", "None") else f" ({job.reason})"

"""Screens devices for silent corruption: all at once, all with the same operands, all judged.
Errors of memory that the machine counts meanwhile are reported next to the verdict.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.installation import check_installation
from portagpu.base.patience import LIMITS
from portagpu.devices import registry
from portagpu.facts.actions import Action
from portagpu.facts.capability import Capability
from portagpu.facts.host.sensors import read_memory_controllers
from portagpu.machine.inventory.sources import Live
from portagpu.runs.engine import Progress, broken_world, check_device, complete
from portagpu.runs.results.advice import separation_of
from portagpu.runs.results.run import Evidence, Result, Verdict
from portagpu.runs.results.wording import exactly
from portagpu.runs.world import Ranks
from portagpu.suites.performance.device import MeasuredDevice
from portagpu.suites.screen.judge import Screened, results_of, separate_blind
from portagpu.suites.screen.options import (
    SUITE,
    TOGETHER,
    ScreenOptions,
    chosen_indices,
    selected_probes,
)
from portagpu.suites.screen.tally import Tally
from portagpu.train.exact.draws import campaign_of
from portagpu.train.exact.probes import published_digests

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from portagpu.machine.inventory.sources import Machine
    from portagpu.runs.results.run import Run
    from portagpu.runs.world import RankOutcome, WorldOutcome
    from portagpu.train.exact.probe import Probe


CORRECTED: Final = "corrected"
UNCORRECTED: Final = "uncorrected"


def error_counts(machine: Machine) -> dict[tuple[str, str], int]:
    """(GPU or memory controller, CORRECTED or UNCORRECTED) -> errors, where they are counted."""
    counted = [
        *((each.pci or each.uuid or "GPU", each.memory) for each in machine.inventory().gpus),
        *((each.name, each) for each in read_memory_controllers(machine.tree)),
    ]
    return {
        (name, kind): number
        for name, each in counted
        for kind in (CORRECTED, UNCORRECTED)
        if (number := getattr(each, kind)) is not None
    }


def errors_result(
    before: Mapping[tuple[str, str], int], after: Mapping[tuple[str, str], int]
) -> Result:
    """What was counted between two readings: FAIL for what ECC could not correct.

    Corrected errors are UNVERIFIED: nothing says how many are too many in this time.
    """
    both = before.keys() & after.keys()
    # a counter that began again while the screen ran has counted what it shows
    new = {
        key: after[key] - before[key] if after[key] >= before[key] else after[key] for key in both
    }
    found = {key: number for key, number in new.items() if number}
    said = "; ".join(f"{number} {kind} on {name}" for (name, kind), number in sorted(found.items()))
    grave = any(kind == UNCORRECTED for _, kind in found)
    verdict, reason, action = Verdict.PASS, "", Action.NONE
    if not both:
        verdict, reason = Verdict.SKIP, "nothing here counts errors of memory"
    elif found:
        verdict = Verdict.FAIL if grave else Verdict.UNVERIFIED
        action = Action.RESET if grave else Action.MONITOR
        reason = f"errors of memory were counted while the screen ran: {said}"
    return Result(
        id="screen/memory-errors",
        suite=SUITE,
        area=SUITE,
        verdict=verdict,
        reason=reason,
        value=float(sum(found.values())) if both else None,
        unit="1" if both else None,
        expected=exactly(0, "errors while the screen ran") if both else None,
        evidence=(Evidence.LOADED,) if both else (),
        does_not_show="errors that ECC does not see",
        extra={"action": str(action)} if found else {},
    )


_PEER_RUNS: Final = 4
"""How often a peer runs the operands of a wrong result."""
_NO_LIMIT_S: Final = 86_400.0
_PARTIAL_S: Final = 5.0
"""Between two reports of what was judged so far."""


class ScreenProgress(Progress):
    """The progress of a screen, reported while it runs."""

    def judged(self, results: Sequence[Result]) -> None:
        """``results`` are what the run would have if it ended now."""


def run(options: ScreenOptions, progress: Progress | None = None) -> Run:
    """Screen the devices, and return the finished run.

    On Ctrl-C the returned run is marked as interrupted, and has what was judged. Raises
    UnknownProbe, TargetNotFound, UnknownDevice, and MissingDependency without torch.
    """
    progress = progress or Progress()
    options.load_target()
    options = replace(options, backend=registry.resolve(options.backend))
    selected_probes(options)
    indices = chosen_indices(options)
    for index in indices:
        check_device(options.backend, index)

    def work(run: Run) -> None:
        with Ranks() as ranks:
            add_results(run, options, ranks, progress)

    return complete(options.new_run(), progress, work)


def add_results(run: Run, options: ScreenOptions, ranks: Ranks, progress: Progress) -> None:
    """Screen the devices, and add the results to ``run``, also where Ctrl-C ends it."""
    check_installation()
    campaign = campaign_of() if options.seed is None else options.seed
    run.info = replace(run.info, seed=campaign)
    screen = _Screen(options, ranks, progress, selected_probes(options), campaign)
    before = error_counts(Live()) if options.count_errors else None
    try:
        screen.open(run, chosen_indices(options))
        screen.work()
    finally:
        screen.finish(run, before)


class SilentRank(Exception):
    """A rank was silent for too long while others were heard."""

    def __init__(self, rank: int, step: str) -> None:
        super().__init__(rank, step)
        self.rank, self.step = rank, step


@dataclass(slots=True)
class Heard:
    """When each rank of a world was last heard, and in which step.

    The rank server ends a world in which no rank is heard any more. One silent rank among others
    is found here.
    """

    limit_s: float
    clock: Callable[[], float] = time.monotonic
    last: dict[int, tuple[float, str]] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)

    def hear(self, rank: int, step: str, *, ended: bool) -> None:
        """Note a step; raises SilentRank for another rank whose last one is too long ago."""
        now_s = self.clock()
        self.last[rank] = now_s, step
        if ended:
            self.ended.add(rank)
        for other, (heard_s, doing) in self.last.items():
            if other not in self.ended and now_s - heard_s > self.limit_s:
                raise SilentRank(other, doing)

    def step_of(self, rank: int) -> str:
        """The last step of a rank; empty before it had one."""
        return self.last.get(rank, (0.0, ""))[1]


@dataclass(slots=True)
class _Screen:
    """A screen of several devices, and what was judged so far."""

    options: ScreenOptions
    ranks: Ranks
    progress: Progress
    probes: list[Probe]
    campaign: int
    """The number from which seeds are made: of the day on which it began."""
    screened: list[Screened] = field(default_factory=list)
    joins: bool = True
    """Whether a communication library joins the devices, so that they have collectives."""
    partial_s: float = 0.0

    @property
    def left(self) -> list[Screened]:
        """The devices that can go on."""
        return [each for each in self.screened if not each.lost]

    def open(self, run: Run, indices: Sequence[int]) -> None:
        """Open every device, and describe it in the run."""
        wanted = self.options.load_target()
        opened: dict[int, MeasuredDevice] = {}
        left = list(indices)
        lost: dict[int, tuple[WorldOutcome, RankOutcome | None]] = {}
        while left:
            outcome = self.ranks.run(
                "portagpu.suites.performance.device:describe",
                len(left),
                backend=self.options.backend,
                indices=left,
                group=False,
                timeout_s=LIMITS.device_s,
            )
            if outcome.ok:
                found = map(MeasuredDevice.from_json, outcome.values)
                opened = dict(zip(left, found, strict=True))
                break
            failed = outcome.first_failure
            blamed = left if failed is None or outcome.culprit is None else [left[failed.rank]]
            lost |= dict.fromkeys(blamed, (outcome, failed))
            left = [each for each in left if each not in blamed]
        self.joins = all(Capability.COLLECTIVES in each.capabilities for each in opened.values())
        shares = len(indices) > 1 and any(each.shared for each in opened.values())
        for place, index in enumerate(indices):
            device = opened.get(index)
            if device is None:
                name = f"{self.options.backend or 'device'} {index}"
                screened = Screened(name, index)
                screened.lose(broken_world(*lost[index]), "the device cannot be opened")
            else:
                screened = Screened(f"rank {place}" if shares else device.name, index)
                screened.shared = device.shared
                device.describe_in(run, device.target, "arch")
                self.progress.opened(device)
                if wanted is not None and device.target != wanted.id:
                    here = device.product or device.arch or device.name
                    screened.lost = f"this machine's device is {here}, not {wanted.id}"
            screened.tallies = {each.name: Tally() for each in self.probes}
            self.screened.append(screened)

    def work(self) -> None:
        """Run all probes, and then what was wrong on one device on the others."""
        self.partial_s = time.monotonic()
        together = [each.name for each in self.probes if each.area == TOGETHER]
        alone = [each.name for each in self.probes if each.area != TOGETHER]
        if len(self.screened) < 2 or not self.joins:
            alone, together = [*alone, *together], []
        share = len(alone) / max(1, len(self.probes))
        if alone:
            self.run_probes(alone, share * self.options.seconds, together=False)
        if together:
            self.run_probes(together, (1 - share) * self.options.seconds, together=True)
        self.ask_peers()

    def run_probes(self, names: Sequence[str], seconds: float, *, together: bool) -> None:
        """Run probes on all devices; one that dies or hangs leaves the screen."""
        until_s = time.monotonic() + seconds
        while self.left:
            left_s = until_s - time.monotonic()
            counted = self.options.batches
            if counted is None and left_s <= 0:
                return
            devices = self.left
            plans = [self.plan(each, names) for each in devices]
            if not any(plans):
                return
            outcome = self.run_world(
                devices,
                "portagpu.suites.screen.ranks:screen",
                left_s if counted is None else None,
                group=together,
                place=self.options.place,
                plans=plans,
                campaign=self.campaign,
                published_seed=published_digests().seed,
                seconds=left_s if counted is None else None,
                batches=counted,
                runs=self.options.runs,
                threads=self.options.threads,
                together=together,
            )
            if outcome is not None and outcome.ok:
                return
            if together and outcome is not None:
                # the others cannot go on without the one that is gone
                return

    def plan(self, device: Screened, names: Sequence[str]) -> dict[str, int]:
        """The next batch of each probe that may run further; -1 is that of the digest."""
        return {
            name: tally.batches if tally.digest else -1
            for name in names
            if (tally := device.tallies[name]).open
        }

    def run_world(
        self,
        devices: Sequence[Screened],
        function: str,
        budget_s: float | None,
        *,
        group: bool = False,
        **arguments: Any,
    ) -> WorldOutcome | None:
        """Run a function on the devices; None where one of them was silent for too long.

        A device that died, hung or raised is lost.
        """
        limit_s = self.options.silence_s
        began_s = time.monotonic()
        heard = Heard(2 * limit_s)

        def hear(rank: int, step: str, data: Mapping[str, Any]) -> None:
            heard.hear(rank, step, ended="ended" in data)
            self.take(devices[rank], step, data)

        try:
            outcome = self.ranks.run(
                function,
                len(devices),
                arguments=arguments,
                backend=self.options.backend,
                indices=[each.index for each in devices],
                group=group,
                timeout_s=limit_s,
                most_s=(budget_s or _NO_LIMIT_S) + 2 * limit_s,
                on_step=hear,
            )
        except SilentRank as silent:
            devices[silent.rank].hang(limit_s, silent.step, time.monotonic() - began_s)
            return None
        if not outcome.ok:
            blamed = devices if outcome.culprit is None else [devices[outcome.culprit]]
            for each in blamed:
                fields = broken_world(outcome, outcome.first_failure)
                each.lose(fields, outcome.sentence, heard.step_of(devices.index(each)))
        return outcome

    def take(self, device: Screened, step: str, data: Mapping[str, Any]) -> None:
        """Count what a device reports, and show how far all are."""
        if (record := data.get("record")) is not None:
            device.tallies[step].add(record)
        if step not in device.tallies or record is not None:
            return
        done = sum(tally.results > 0 for tally in device.tallies.values())
        self.progress.item_begins(f"{step} on {device.name}", done, len(self.probes))
        now_s = time.monotonic()
        if now_s - self.partial_s >= _PARTIAL_S and isinstance(self.progress, ScreenProgress):
            self.partial_s = now_s
            self.progress.judged(self.results())

    def ask_peers(self) -> None:
        """Have the others run the operands of each wrong result, which shows what is to blame."""
        wrong = [
            (device, name, tally.failure)
            for device in self.screened
            for name, tally in device.tallies.items()
            if tally.failure is not None
        ]
        for device, name, failure in wrong:
            device.tallies[name].separation = separation_of(failure["digest"], ())
        separate_blind(self.screened)
        if not wrong or len(self.left) < 2:
            return
        items = [
            {"probe": name, "seed": failure["seed"], "scale": failure["scale"]}
            for _, name, failure in wrong
        ]
        devices = self.left
        outcome = self.run_world(
            devices,
            "portagpu.suites.screen.ranks:replay",
            None,
            place=self.options.place,
            items=items,
            runs=_PEER_RUNS,
        )
        if outcome is None:
            return
        answers = {
            each.index: answer.value
            for each, answer in zip(devices, outcome.ranks, strict=True)
            if isinstance(answer.value, list)
        }
        for place, (device, name, failure) in enumerate(wrong):
            peers = [
                [digest or None for digest in found[place]]
                for index, found in answers.items()
                if index != device.index
            ]
            device.tallies[name].separation = separation_of(
                failure["digest"], peers, distinct=not device.shared
            )

    def results(self) -> list[Result]:
        """What was judged so far, as results."""
        return results_of(self.screened, self.campaign)

    def finish(self, run: Run, before: Mapping[tuple[str, str], int] | None) -> None:
        """Add the results to the run, and what the machine counted meanwhile."""
        results = self.results()
        if before is not None:
            results.append(errors_result(before, error_counts(Live())))
        for each in results:
            self.progress.result_added(run.add(each))

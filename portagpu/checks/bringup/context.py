"""The context of a gate's check: the machine under test, the gate's amounts, and result makers."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from portagpu.machine.inventory.sources import Live, Machine
from portagpu.runs.engine import broken_world
from portagpu.runs.results.run import Evidence, Result, Verdict
from portagpu.runs.results.wrong import cause_of, separated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from portagpu.checks.bringup.device import CheckedDevice
    from portagpu.checks.bringup.gates import Gate
    from portagpu.facts.targets import Target
    from portagpu.machine.inventory.sources import Origin
    from portagpu.runs.world import Ranks, WorldOutcome

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

        ``expected`` is made by ``portagpu.runs.results.expectations``.
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
        """The results of one device after the other, those with a wrong value at the end.

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


def _wrong_values(results: Iterable[Result]) -> Iterator[Result]:
    return (each for each in separated(results) if cause_of(each) is not None)

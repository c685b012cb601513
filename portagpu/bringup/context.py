"""What a gate's check is given: the machine under test, its amounts, and a way to say results."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from portagpu.inventory.sources import Live, Machine
from portagpu.results.run import Evidence, Result, Verdict
from portagpu.running import broken_world

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from portagpu.bringup.gates import Gate
    from portagpu.inventory.origin import Origin
    from portagpu.results.judgement import Judgement
    from portagpu.target import Target
    from portagpu.world import Ranks, WorldOutcome

_UNJUDGED: Final = frozenset({Verdict.SKIP, Verdict.INCONCLUSIVE})


@dataclass(slots=True)
class CheckedDevice:
    """One device as its backend describes it, read in a rank of its own."""

    index: int
    name: str
    """What results call it: "cpu", "cuda:3"."""
    facts: dict[str, Any]
    """The keys of ``portagpu.bringup.device.describe``."""


@dataclass(slots=True)
class Context:
    """The state of a bring-up that its checks share.

    ``devices`` is empty until the identity gate has found them. ``target`` is the one to judge by:
    the one that was asked for, else the one that was found.
    """

    backend: str | None
    """None in a replay: nothing is asked of a device."""
    effort: str
    ranks: Ranks
    gate: Gate
    target: Target | None = None
    wanted: Target | None = None
    expect_devices: int | None = None
    machine: Machine = field(default_factory=Live)
    """Whose files and devices are read: this machine, or a recording of another."""
    origins: Sequence[Origin] = ()
    """The recordings that are replayed; empty where the machine itself is judged."""
    unusable: str = ""
    """Why no backend can be used, where none can."""
    from_files: bool = False
    """Whether no device is opened: what files and the vendors' libraries say is judged alone."""
    shared: bool = False
    """Whether all ranks of the machine share one device."""
    devices: list[CheckedDevice] = field(default_factory=list)
    device_count: int = 1
    """How many there are to open; 1 until the identity gate has counted them."""
    versions: dict[str, str | None] = field(default_factory=dict)
    step: Callable[[str], None] = lambda _: None
    """Says what the check is doing, for whoever watches."""
    started_s: float = field(default_factory=time.monotonic)

    @property
    def amounts(self) -> Mapping[str, Any]:
        """The gate's amounts for this effort."""
        return self.gate.amounts[self.effort]

    @property
    def limit_s(self) -> float:
        """Seconds for one device, or for the gate where it does not go by devices.

        What a check runs has it for itself, whatever the gate has used up: a device that is given
        less than the start of its runtime takes would be blamed for the others.
        """
        stated: float = self.amounts["limit_s"]
        return stated

    def time_is_up(self) -> str:
        """Why the gate begins nothing more, in one clause; empty while it has time.

        Its time is ``limit_s``, and ``device_s`` for every device after the first.
        """
        further: float = self.amounts.get("device_s", 0.0) * (self.device_count - 1)
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

        What was judged or measured has the evidence that the gate earns, or "recorded" with the
        recordings in ``extra``; what was not has none, and neither has what was judged without a
        device.
        """
        if verdict not in _UNJUDGED:
            earned = None if self.from_files else self.gate.earns
            earned = Evidence.RECORDED if self.origins else earned
            fields.setdefault("evidence", () if earned is None else (earned,))
            if self.origins:
                of = [each.to_json() for each in self.origins]
                fields["extra"] = {**fields.get("extra", {}), "recordings": of}
        return Result(
            id=f"{self.gate.id}/{name}",
            suite="bringup",
            area=self.gate.id,
            verdict=verdict,
            reason=reason,
            device=device,
            **fields,
        )

    def judge(
        self, name: str, good: bool, reason: str, *, expected: Mapping[str, Any], **fields: Any
    ) -> Result:
        """PASS or FAIL by one condition; ``reason`` says what was seen, and is kept with both.

        ``expected`` is what was asked for (``portagpu.results.expectations``).
        """
        verdict = Verdict.PASS if good else Verdict.FAIL
        return self.result(name, verdict, reason, expected=expected, **fields)

    def judged(self, found: Judgement) -> Result:
        """A judgement of the inventory as a result of this gate."""
        named = {"severity": found.severity} if found.severity is not None else {}
        return self.result(
            found.name,
            found.verdict,
            found.reason,
            device=found.device,
            value=found.value,
            unit=found.unit,
            expected=found.expected,
            extra=named,
        )

    def failure(self, name: str, outcome: WorldOutcome, device: str | None = None) -> Result:
        """The result of a world that did not come back whole; names the device or the rank."""
        culprit = outcome.culprit
        if device is None and culprit is not None:
            device = f"rank {culprit}"
        blamed = outcome.ranks[culprit] if culprit is not None else None
        extra = {"output": blamed.output} if blamed is not None and blamed.output else {}
        return self.result(name, device=device, extra=extra, **broken_world(outcome, blamed))

    def adopt(self, result: Result) -> Result:
        """A result of another suite as one of this gate: its id stays, ``extra`` has its suite."""
        return replace(
            result,
            suite="bringup",
            area=self.gate.id,
            extra={**result.extra, "suite": result.suite, "area": result.area},
        )

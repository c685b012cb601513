"""What the child process tells about itself: the cases that it found and the device it opened."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import date  # noqa: TC003 - the codec reads the types of fields
from typing import TYPE_CHECKING, Any

from portagpu.contract import Override  # noqa: TC001 - the codec reads the types of fields
from portagpu.results.verdicts import Evidence  # noqa: TC001 - as above
from portagpu.running import OpenedDevice
from portagpu.suite.ids import matches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from portagpu.target import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One case as it runs: its id has the labels of its parameters."""

    id: str
    area: str
    spec: str
    traps: tuple[str, ...] = ()
    capability: tuple[str, ...] = ()
    outcome: str = "exact"
    covers: tuple[str, ...] = ()
    smoke: bool = False
    timeout_s: float | None = None
    does_not_show: str = ""
    function: str = ""
    """The file and name of its pytest function."""
    of_device: bool = False
    """Whether it asks something of one device, so that each device has to answer it."""
    evidence: Evidence | None = None
    """What its result earns where it is judged: ``EARNS`` of ``portagpu.suite.cases``."""

    def to_json(self, overrides: Sequence[Override] = ()) -> dict[str, Any]:
        """An entry of the document ``portagpu.cases/1``; several capabilities are joined by +.

        ``outcome`` is that of the first of ``overrides`` that fits, which is then there too.
        """
        entry: dict[str, Any] = {
            "id": self.id,
            "area": self.area,
            "spec": self.spec,
            "traps": list(self.traps),
            "capability": "+".join(self.capability) or None,
            "outcome": self.outcome,
        }
        override = self.override_of(overrides)
        if override is not None:
            entry |= {"outcome": override.outcome, "override": asdict(override)}
        return entry

    def override_of(self, overrides: Sequence[Override]) -> Override | None:
        """The first override that fits this case."""
        return next((each for each in overrides if matches(each.pattern, self.id)), None)


@dataclass(frozen=True, slots=True)
class Excuse:
    """A failure that a target declares to be known until a day."""

    pattern: str
    reason: str
    url: str
    expires: date


@dataclass(frozen=True, slots=True)
class TargetClaims:
    """What of a target the verdicts depend on."""

    id: str
    claims: frozenset[str]
    excuses: tuple[Excuse, ...] = ()

    @classmethod
    def of(cls, target: Target) -> TargetClaims:
        """Those parts of ``target``."""
        excuses = tuple(
            Excuse(each.case_id_pattern, each.reason, each.url, each.expires)
            for each in target.expected_failures
        )
        return cls(target.id, frozenset(target.claims), excuses)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUnderTest(OpenedDevice):
    """The device that the child opened; ``count`` is 1 where all ranks share one."""

    vendor: str | None
    capabilities: frozenset[str]
    target: TargetClaims | None
    start_s: float = 0.0
    """Seconds that a world of ranks may need before its time limit begins."""
    overrides: tuple[Override, ...] = ()

    @property
    def title(self) -> str:
        """What this machine is, for a sentence."""
        if self.target is not None:
            return self.target.id
        return f"{self.product or 'an unknown product'} ({self.arch})"

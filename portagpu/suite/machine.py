"""What the child process tells about itself: the cases that it found and the device it opened."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from datetime import date
from typing import TYPE_CHECKING, Any

from portagpu.contract import Override
from portagpu.suite.ids import matches
from portagpu.verdicts import Evidence

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Listed:
        """The case that the child described."""
        lists = {key: tuple(data[key]) for key in ("traps", "capability", "covers")}
        earns = data["evidence"]
        return cls(**{**data, **lists, "evidence": None if earns is None else Evidence(earns)})

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
class Judged:
    """What of a target the verdicts depend on."""

    id: str
    claims: frozenset[str]
    excuses: tuple[Excuse, ...] = ()

    @classmethod
    def of(cls, target: Target) -> Judged:
        """Those parts of ``target``."""
        excuses = tuple(
            Excuse(each.case_id_pattern, each.reason, each.url, each.expires)
            for each in target.expected_failures
        )
        return cls(target.id, frozenset(target.claims), excuses)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Judged:
        """What :meth:`to_json` gave."""
        excuses = tuple(
            Excuse(
                each["pattern"], each["reason"], each["url"], date.fromisoformat(each["expires"])
            )
            for each in data["excuses"]
        )
        return cls(data["id"], frozenset(data["claims"]), excuses)

    def to_json(self) -> dict[str, Any]:
        """The same as JSON has it."""
        excuses = [
            {
                "pattern": each.pattern,
                "reason": each.reason,
                "url": each.url,
                "expires": each.expires.isoformat(),
            }
            for each in self.excuses
        ]
        return {"id": self.id, "claims": sorted(self.claims), "excuses": excuses}


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The device that the child opened."""

    backend: str
    device: str
    product: str | None
    vendor: str | None
    arch: str
    capabilities: frozenset[str]
    target: Judged | None
    count: int = 1
    """How many devices the backend has beside each other; 1 where all ranks share one."""
    start_s: float = 0.0
    """Seconds that a world of ranks may need before its time limit begins."""
    overrides: tuple[Override, ...] = ()
    versions: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What this machine is, for a sentence."""
        if self.target is not None:
            return self.target.id
        return f"{self.product or 'an unknown product'} ({self.arch})"

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Machine:
        """The device that the child described."""
        target = data["target"]
        parts = {
            "capabilities": frozenset(data["capabilities"]),
            "target": None if target is None else Judged.from_json(target),
            "overrides": tuple(Override(**each) for each in data["overrides"]),
        }
        return cls(**{**data, **parts})

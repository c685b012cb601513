"""What the child process tells about itself: the cases that it found and the device it opened."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

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

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Listed:
        """The case that the child described."""
        lists = {key: tuple(data[key]) for key in ("traps", "capability", "covers")}
        return cls(**{**data, **lists})

    def to_json(self) -> dict[str, Any]:
        """An entry of the document ``portagpu.cases/1``; several capabilities are joined by +."""
        return {
            "id": self.id,
            "area": self.area,
            "spec": self.spec,
            "traps": list(self.traps),
            "capability": "+".join(self.capability) or None,
            "outcome": self.outcome,
        }


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
        }
        return cls(**{**data, **parts})

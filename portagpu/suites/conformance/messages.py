"""The child process that runs pytest, free of the user's configuration, and what it sends.

It sends the cases that it found, the device that it opened, and outcomes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.errors import MissingDependency, PortagpuError
from portagpu.base.files import Scratch
from portagpu.base.plugins import install
from portagpu.base.subprocesses import Subprocess
from portagpu.devices.contract import Override  # noqa: TC001 - documents read the types of fields
from portagpu.facts.targets import ExpectedFailure, Target  # noqa: TC001 - as above
from portagpu.runs.engine import OpenedDevice
from portagpu.runs.results.verdicts import Evidence  # noqa: TC001 - as above
from portagpu.runs.world import RankState  # noqa: TC001 - as above
from portagpu.suites.conformance.cases import matches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from portagpu.base.subprocesses.fork import Forker


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedCase:
    """One case with its parameters: their labels are part of its id."""

    id: str
    area: str
    spec: str
    traps: tuple[str, ...] = ()
    capability: tuple[str, ...] = ()
    outcome: str = "exact"
    covers: tuple[str, ...] = ()
    smoke: bool = False
    default: bool = True
    """Whether it runs at the default level."""
    timeout_s: float | None = None
    does_not_show: str = ""
    function: str = ""
    """The file and name of its pytest function."""
    per_device: bool = False
    """Whether it is about one device, so that it runs on each device."""
    search: str = ""
    """The area of which it runs random programs, and for how many seconds by default."""
    search_s: float = 0.0
    evidence: Evidence | None = None
    """The evidence of its result: ``EARNS`` of ``portagpu.suites.conformance.cases``."""

    def to_json(self, overrides: Sequence[Override] = ()) -> dict[str, Any]:
        """An entry of the document ``portagpu.cases/1``; several capabilities are joined by +.

        The first of ``overrides`` that fits sets ``outcome``, and is part of the entry.
        """
        entry: dict[str, Any] = {
            "id": self.id,
            "area": self.area,
            "spec": self.spec,
            "traps": list(self.traps),
            "capability": "+".join(self.capability) or None,
            "outcome": self.outcome,
        }
        override = self.first_override(overrides)
        if override is not None:
            entry |= {"outcome": override.outcome, "override": asdict(override)}
        return entry

    def first_override(self, overrides: Sequence[Override]) -> Override | None:
        """The first override that fits this case."""
        return next((each for each in overrides if matches(each.pattern, self.id)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Searches:
    """How cases run random programs: from which seed, and how much of their default time.

    With ``program``, as ``--program`` takes it, that one runs and no other.
    """

    seed: int = 0
    share: float = 1.0
    program: str = ""


@dataclass(frozen=True, slots=True)
class Problem:
    """What keeps a file or a function from being cases."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Collection:
    """The cases that the child found, and what it could not read."""

    cases: tuple[ListedCase, ...]
    problems: tuple[Problem, ...]


class OutcomeKind(StrEnum):
    """How a case ended; ``session.outcome_of_error`` says which error is which."""

    PASSED = "passed"
    FAILED = "failed"
    RAISED = "raised"
    LOST = "lost"
    HUNG = "hung"
    STARVED = "starved"
    """It took too long while it waited for a CPU."""
    UNSUPPORTED = "unsupported"
    NOT_HERE = "not-here"
    NOT_CLAIMED = "not-claimed"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class SharedWorld:
    """How the world failed that a case shared with its other parameters."""

    state: RankState
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseOutcome:
    """How a case went; ``no_world`` is whether it asked for ranks and started none."""

    kind: OutcomeKind
    reason: str
    duration_s: float
    observed: tuple[str, ...]
    shared_world: SharedWorld | None
    no_world: bool

    def __post_init__(self) -> None:
        if not 0 <= self.duration_s < float("inf"):
            raise ValueError("duration_s must be a number of seconds")
        if self.kind is not OutcomeKind.PASSED and not self.reason.strip():
            raise ValueError(f"{self.kind} needs a reason")


@dataclass(frozen=True, slots=True)
class TargetClaims:
    """The parts of a target that verdicts depend on."""

    id: str
    claims: frozenset[str]
    expected_failures: tuple[ExpectedFailure, ...] = ()

    @classmethod
    def from_target(cls, target: Target) -> TargetClaims:
        """Those parts of ``target``."""
        return cls(target.id, frozenset(target.claims), target.expected_failures)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUnderTest(OpenedDevice):
    """The device that the child opened; ``count`` is 1 if all ranks share one."""

    vendor: str | None
    capabilities: frozenset[str]
    target: TargetClaims | None
    start_s: float = 0.0
    """Seconds that a world of ranks may need before its time limit begins."""
    overrides: tuple[Override, ...] = ()

    @property
    def title(self) -> str:
        """The target's id, or the product and architecture, for sentences."""
        if self.target is not None:
            return self.target.id
        return f"{self.product or 'an unknown product'} ({self.arch})"


_UPSTREAM: Final = "portagpu.suites.conformance.upstream_plugin"
_INI: Final = Path(__file__).with_name("suite.ini")
_PYTEST: Final = "pytest"
_NEEDED: Final = (_PYTEST, "hypothesis")
"""Of the extra ``conform``: a training script needs neither."""
LEFT_OUT: Final = (
    "PYTEST_ADDOPTS",
    "PYTEST_PLUGINS",
    "PYTHONOPTIMIZE",
    "PYTHONWARNINGS",
    "TRITON_INTERPRET",
)
"""Variables that change which tests run, what an assertion means, or where a kernel runs."""


class SuiteError(PortagpuError, RuntimeError):
    """The suite itself could not run; the message says why."""


def check_dependencies() -> None:
    """Raise MissingDependency, with what to install, where the suite's packages are missing."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        needed = " and ".join(missing)
        raise MissingDependency(f"the conformance suite needs {needed}: {install('conform')}")


class Child(Subprocess):
    """One pytest process over the files of a folder; a context manager that cleans up.

    A ``forker`` has imported what cases need; without one the process does when they need it.
    ``upstream`` are files of PyTorch's tests, and the device for which it makes them as the option
    ``OPTION`` of :mod:`portagpu.suites.conformance.upstream_plugin` has it.
    Raises MissingDependency where the suite's packages are not installed.
    """

    def __init__(
        self,
        folder: Path,
        forker: Forker | None = None,
        upstream: tuple[Sequence[Path], str] | None = None,
    ) -> None:
        check_dependencies()
        self._scratch = Scratch("suite")
        scratch = self._scratch.path
        plugins = ["portagpu.suites.conformance.child_plugin", "no:cacheprovider", "no:junitxml"]
        options = [word for name in plugins for word in ("-p", name)]
        files: Sequence[Path] = (folder,)
        if upstream is not None:
            files, device = upstream
            options += ["-p", _UPSTREAM, f"--portagpu-upstream={device}"]
        try:
            super().__init__(
                *(
                    _PYTEST,
                    *map(str, files),
                    "-c",
                    str(_INI),
                    "--rootdir",
                    str(folder),
                    "--noconftest",
                ),
                *("--import-mode=importlib", "--capture=no", "-qq", *options),
                *("--continue-on-collection-errors", f"--basetemp={scratch / 'pytest'}"),
                leave_out=LEFT_OUT,
                environment={
                    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
                    # the default is a name in /tmp that any user can guess and create first
                    "TORCHINDUCTOR_CACHE_DIR": str(scratch / "inductor"),
                },
                folder=None,
                prints=False,
                forker=forker,
            )
        except BaseException:
            self._scratch.remove()
            raise

    def close(self, limit_s: float = 0.0) -> None:
        """End the process and remove its folder."""
        super().close(limit_s)
        self._scratch.remove()

"""Shared by the engines: their options, the progress that they report, and the run they return.

``conform``, ``run``, ``compile_kernels`` and ``bringup`` (``suites``, ``checks``) are functions
``(options, progress) -> Run``. Each raises for invalid options before it begins. On Ctrl-C each
returns the run with the results so far.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from portagpu.base.errors import PortagpuError
from portagpu.runs.results.run import Run, Verdict, new_run
from portagpu.runs.results.wording import exactly

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from portagpu.facts.targets import Target
    from portagpu.runs.results.run import Result
    from portagpu.runs.world import RankOutcome, WorldOutcome


class UnknownDevice(PortagpuError, LookupError):
    """The backend sees no device of that number; the message says how many it sees."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The options of every engine.

    ``target`` is the target to judge by, by default this machine's. With ``strict``, UNVERIFIED
    results lower a PASS. ``command`` is the command line in the run's record.
    """

    target: Target | str | None = None
    strict: bool = False
    command: Sequence[str] = ()

    def load_target(self) -> Target | None:
        """The wanted target, or None; raises TargetNotFound."""
        if not isinstance(self.target, str):
            return self.target
        from portagpu.facts.targets import load_target

        return load_target(self.target)

    def new_run(self, **fields: Any) -> Run:
        """A run of these options that starts now; ``fields`` are further ones of ``new_run``."""
        target = (
            self.target if self.target is None or isinstance(self.target, str) else self.target.id
        )
        return new_run(self.command, target=target, strict=self.strict, **fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedDevice:
    """A device as the process that opened it describes it; None is unknown."""

    backend: str
    name: str
    """Its name in results: "cpu", "cuda:3"."""
    product: str | None = None
    arch: str = ""
    count: int = 1
    """How many devices its backend sees."""
    index: int | None = None
    uuid: str | None = None
    pci: str | None = None
    versions: Mapping[str, str | None] = field(default_factory=dict)

    def describe_in(self, run: Run, target: str | None, *keys: str) -> None:
        """Add the device to ``run.info``, with its name and what identifies it.

        The first device also sets the run's backend and versions.

        :param run: its ``info`` is replaced.
        :param target: the target of the run, where it has none yet.
        :param keys: further attributes of the device to add.
        """
        identity = {"index": self.index, "uuid": self.uuid, "pci": self.pci}
        entry = {
            "name": self.product or self.name,
            **{key: value for key, value in identity.items() if value is not None},
            **{key: getattr(self, key) for key in keys},
        }
        info = run.info
        if not info.devices:
            versions = {**info.versions, **self.versions}
            target = info.target or target
            info = replace(info, backend=self.backend, target=target, versions=versions)
        run.info = replace(info, devices=(*info.devices, entry))


class Progress:
    """The events that an engine reports while it runs; override the methods of interest."""

    def begin(self, run: Run) -> None:
        """The run is about to start and has no results."""

    def opened(self, device: OpenedDevice) -> None:
        """``device`` was opened; the next results are about it."""

    def item_begins(self, name: str, number: int, total: int) -> None:
        """The case, measure or kernel ``name`` is about to run."""

    def result_added(self, result: Result) -> None:
        """``result`` was added to the run."""

    def stop_reason(self) -> str:
        """Why nothing more should begin; empty to go on."""
        return ""

    def end(self) -> None:
        """The run is over or was interrupted; no further event follows."""


def complete(run: Run, progress: Progress, work: Callable[[Run], None]) -> Run:
    """Add the results of ``work`` to ``run`` and finish it.

    :param run: The run, without its results.
    :param progress: Gets the begin and the end of the work.
    :param work: Adds the results to the run that it is called with.
    :returns: The same run, finished; after Ctrl-C it is marked as interrupted.
    """
    interrupted = False
    try:
        progress.begin(run)
        work(run)
    except KeyboardInterrupt:
        interrupted = True
    finally:
        progress.end()
    return run.finish(interrupted=interrupted)


def add_result(run: Run, progress: Progress, result: Result) -> None:
    """Add ``result`` to ``run``, and report it."""
    progress.result_added(run.add(result))


def broken_world(outcome: WorldOutcome, blamed: RankOutcome | None) -> dict[str, Any]:
    """The fields of a result for a world in which not every rank ended well.

    ``blamed`` is the rank at fault. One that died or hung is a failure of the device or its
    library; one that raised is taken as an error of the check. One that hung on a busy machine may
    only have been slow: that is INCONCLUSIVE.
    """
    from portagpu.runs.world import RankState

    verdict = Verdict.FAIL
    if blamed is not None and blamed.state is RankState.RAISED:
        verdict = Verdict.ERROR
    elif blamed is not None and blamed.is_starved:
        verdict = Verdict.INCONCLUSIVE
    return {
        "verdict": verdict,
        "reason": outcome.sentence,
        "value": str(blamed.state) if blamed is not None else None,
        "expected": exactly(str(RankState.DONE), "every rank ends"),
        "duration_s": outcome.duration_s,
    }


def check_device(backend: str | None, index: int) -> None:
    """Raise UnknownDevice if the backend does not see that device.

    Raises UnknownBackend for a name that no distribution declares, and BackendNotFound, with the
    reason, for a backend that cannot be used.
    """
    from portagpu.base.environment import shared_count
    from portagpu.devices import registry

    name = registry.resolve(backend)
    count = registry.count(name)
    if registry.plugin(name).shared:
        count = max(count, shared_count())
    if index >= count:
        raise UnknownDevice(
            f"the {name} backend has no device {index}: it sees {count}, numbered from 0"
        )

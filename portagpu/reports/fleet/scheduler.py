"""What a fleet run needs of whoever starts its steps: Slurm, ssh, or this machine alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from portagpu.reports.fleet.request import FleetOptions
    from portagpu.reports.fleet.slurm import Job, Node, Request


class Scheduler(Protocol):
    """Starts steps on nodes, and says how far they are. ``portagpu.reports.fleet.slurm`` is one."""

    @property
    def TITLE(self) -> str:  # noqa: N802 - a constant of a module
        """Its name for people."""

    @property
    def LASTS(self) -> bool:  # noqa: N802
        """Whether jobs go on without this process."""

    @property
    def SHARES(self) -> bool:  # noqa: N802
        """Whether nodes write into the folder themselves; else the result comes as output."""

    def version(self) -> str: ...

    def nodes(self) -> Mapping[str, Node]: ...

    def jobs(self, name: str, /) -> Mapping[str, Job]: ...

    def submit(self, script: Path, request: Request, /) -> str: ...

    def cancel(self, numbers: Iterable[str], /) -> None: ...

    def pause(self, seconds: float, /) -> None:
        """Wait so long; less where a job ends before."""

    def stop(self) -> None:
        """End what does not go on without this process."""

    def drain(self, name: str, reason: str, /) -> None: ...

    def resume(self, name: str, /) -> None: ...


def scheduler_of(options: FleetOptions) -> Scheduler:
    """Who starts the steps of a run. Raises UnknownNodes and MissingDependency."""
    if options.local is None and options.ssh is None:
        from portagpu.reports.fleet import slurm

        return slurm
    from portagpu.reports.fleet.processes import Processes, nodes_of

    if options.ssh is None:
        names = tuple(f"local-{number}" for number in range(options.local or 0))
        return Processes(names, None, options.drain_with)
    command = ["ssh", *(["-F", str(options.ssh_config)] if options.ssh_config else [])]
    return Processes(nodes_of(options.ssh), command, options.drain_with)

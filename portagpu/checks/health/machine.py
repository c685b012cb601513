"""The machine to judge, each source of which is asked once and with a time limit."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from portagpu.checks.health.logs import KernelLog, cutoff_s, events_since, journal, log_file
from portagpu.machine.inventory.kernel import kernel_findings
from portagpu.machine.inventory.kernel_links import kfd_links, read_infiniband
from portagpu.machine.inventory.sources import Live, Machine, tool_findings
from portagpu.machine.inventory.topology import build_topology

if TYPE_CHECKING:
    from collections.abc import Mapping

    from portagpu.devices.contract import Status
    from portagpu.facts.readings.model import Findings
    from portagpu.facts.torchbuild import TorchBuild
    from portagpu.machine.inventory.gpu import Inventory
    from portagpu.machine.inventory.sources import Origin
    from portagpu.machine.inventory.topology import Topology


class Snapshot(Machine):
    """A machine as it is at one moment: this one, or with ``source`` a recording.

    ``log`` is the file of its kernel's log, by default the journal of this machine, and a recording
    has its own. Events before ``since`` are left out ("boot", "all", or seconds). A vendor's
    library and the journal have ``limit_s`` seconds each.
    """

    def __init__(
        self,
        source: Machine | None = None,
        *,
        log: str | None = None,
        since: str | None = None,
        limit_s: float = 30.0,
    ) -> None:
        self._live = Live()
        self._source = source or self._live
        self._recorded = source is not None
        self._limit_s = limit_s
        self._log_file = log
        self.tree = self._source.tree
        self.environment = self._source.environment
        self.software_known = self._source.software_known
        self._tools: tuple[Findings, ...] = ()
        self._since = since or ("all" if self._recorded else "boot")
        self._cutoff = cutoff_s(self._since)

    @cached_property
    def _libraries(self) -> tuple[Findings, ...]:
        from portagpu.devices.discovery import probes

        asked = probes(self._limit_s).values() if self.tree.is_live else ()
        return tuple(each for each in asked if each.readings or each.problems)

    @cached_property
    def _findings(self) -> tuple[Findings, ...]:
        if self._recorded:
            return self._source.findings()
        return (*self._libraries, *kernel_findings(self.tree))

    def ask_tools(self) -> bool:
        """Ask the vendors' command-line tools for links, and say whether devices are known better.

        That is so where no library answered: then what the tools say of devices counts as well.
        """
        self._tools = tuple(tool_findings(self._live.commands(self._findings)))
        told = [each for each in self._tools if each.readings or each.events]
        if not told or any(each.readings for each in self._libraries):
            return False
        self._findings = (*self._libraries, *told, *kernel_findings(self.tree))
        self.__dict__.pop("_inventory", None)
        return True

    @cached_property
    def kernel_log(self) -> KernelLog:
        """The log that was given or read; empty for a recording, whose findings have it."""
        if self._log_file is not None:
            own = not self._recorded
            of_this_boot = own and self._since != "all"
            found = log_file(self._log_file, of_this_machine=own, of_this_boot=of_this_boot)
        elif self._recorded:
            return KernelLog()
        else:
            found = journal(self._limit_s)
            # the journal is of this boot; a clock that was set later must not hide its beginning
            if self._since == "boot":
                return found
        if found.findings is None:
            return found
        events = events_since(found.findings.events, self._cutoff)
        return replace(found, findings=replace(found.findings, events=events))

    @cached_property
    def _inventory(self) -> Inventory:
        found = super().inventory()
        return replace(found, events=events_since(found.events, self._cutoff))

    def findings(self) -> tuple[Findings, ...]:
        return self._findings

    def inventory(self) -> Inventory:
        return self._inventory

    def log(self) -> Findings | None:
        return self.kernel_log.findings

    def topology(self) -> Topology:
        if self._recorded:
            return self._source.topology()
        more = (*self._tools, kfd_links(self.tree), read_infiniband(self.tree))
        return build_topology([*self.findings(), *more])

    def origins(self) -> tuple[Origin, ...]:
        return self._source.origins()

    def torch(self) -> TorchBuild | None:
        return self._source.torch()

    def libraries(self) -> Mapping[str, str]:
        return self._source.libraries()

    def backends(self) -> Mapping[str, Status]:
        return self._source.backends()

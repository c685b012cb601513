"""Sources of an inventory behind one interface: this machine, a file tree, or a recording."""

from __future__ import annotations

import contextlib
import os
import platform
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from portagpu.base.errors import BackendNotFound
from portagpu.facts.formats.host import kernel_log
from portagpu.facts.host.tree import Tree, as_tree
from portagpu.facts.readings.model import Findings
from portagpu.machine.inventory.infiniband import read_infiniband
from portagpu.machine.inventory.join import join
from portagpu.machine.inventory.kernel import kernel_findings
from portagpu.machine.inventory.kfd_links import kfd_links
from portagpu.machine.inventory.names import name_findings, with_pci_id_names
from portagpu.machine.inventory.tools import kernel_log_output, tool_findings
from portagpu.machine.inventory.topology import build_topology

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from portagpu.devices.contract import Status
    from portagpu.facts.torchbuild import TorchBuild
    from portagpu.machine.inventory.gpu import Inventory
    from portagpu.machine.inventory.origin import Origin
    from portagpu.machine.inventory.tools import CommandOutput
    from portagpu.machine.inventory.topology import Topology


class Machine(ABC):
    """One machine: its files, its environment, and the findings of its sources.

    ``info`` reads a live machine and a recording through these members alone.
    """

    tree: Tree
    """The kernel's files: of a live machine, of a recording, or an empty folder."""
    environment: Mapping[str, str]
    """The environment of the process to describe."""
    software_known: bool = True
    """Whether torch, libraries and backends are known; of a recording of hardware they are not."""

    @abstractmethod
    def findings(self) -> tuple[Findings, ...]:
        """The findings of each source; where two contradict each other, the first counts."""

    @abstractmethod
    def torch(self) -> TorchBuild | None:
        """The torch that is installed there; None where there is none, or none is known."""

    @abstractmethod
    def libraries(self) -> Mapping[str, str]:
        """Versions of what is installed there, by name."""

    @abstractmethod
    def backends(self) -> Mapping[str, Status]:
        """The status of each backend there, by name."""

    def log(self) -> Findings | None:
        """The kernel's log, where ``findings`` do not have it; None where it is not read."""
        return None

    def origins(self) -> tuple[Origin, ...]:
        """The recordings that are read; empty for a live machine."""
        return ()

    def inventory(self) -> Inventory:
        """The machine that the findings describe; names by PCI id where no source has one."""
        found = self.findings()
        return with_pci_id_names(join([*found, name_findings(self.tree, found)]), self.tree)

    def topology(self) -> Topology:
        """The graph of its devices, from the same findings and the kernel's links."""
        more = (kfd_links(self.tree), read_infiniband(self.tree))
        return build_topology([*self.findings(), *more])


class Live(Machine):
    """This machine, or the file tree below ``root`` as if it were one.

    Libraries are called only for this machine: they know no other file tree.
    """

    def __init__(
        self, root: Tree | Path | str = "/", environment: Mapping[str, str] | None = None
    ) -> None:
        self.tree = as_tree(root)
        self.environment = os.environ if environment is None else environment

    def findings(self) -> tuple[Findings, ...]:
        return (*self.library_findings(), *kernel_findings(self.tree))

    def library_findings(self) -> tuple[Findings, ...]:
        """Findings of the vendors' libraries that have readings or problems."""
        from portagpu.devices.discovery import probes

        asked = tuple(probes().values()) if self.tree.is_live else ()
        return tuple(each for each in asked if each.readings or each.problems)

    def log_output(self) -> CommandOutput | None:
        """The kernel's log as it is printed, of this machine alone."""
        return kernel_log_output() if self.tree.is_live else None

    def log(self) -> Findings | None:
        output = self.log_output()
        if output is None or output.problem:
            return None
        found = kernel_log.parse(output.text)
        # a container sees the log of its host, whose GPUs are not all its own
        return Findings(kind=found.kind, events=found.events)

    def topology(self) -> Topology:
        found = self.findings()
        more = (kfd_links(self.tree), read_infiniband(self.tree))
        return build_topology([*found, *tool_findings(self.commands(found)), *more])

    def commands(self, findings: Iterable[Findings]) -> tuple[tuple[str, ...], ...]:
        """The command lines of the plugins whose GPUs ``findings`` show, of this machine alone."""
        from portagpu.devices.discovery import candidates, plugin

        if not self.tree.is_live:
            return ()
        vendors = {reading.vendor for each in findings for reading in each.readings}
        found: list[tuple[str, ...]] = []
        for name in candidates() if vendors else ():
            with contextlib.suppress(BackendNotFound):
                each = plugin(name)
                found.extend(each.commands if each.vendor in vendors else ())
        return tuple(found)

    def torch(self) -> TorchBuild | None:
        from portagpu.facts.torchbuild import torch_build

        return torch_build()

    def libraries(self) -> Mapping[str, str]:
        from portagpu._version import __version__
        from portagpu.facts.torchbuild import library_versions

        python = {"python": platform.python_version()}
        return python | library_versions() | {"portagpu": __version__}

    def backends(self) -> Mapping[str, Status]:
        from portagpu.devices.registry import statuses

        return statuses()

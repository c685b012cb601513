"""The topology of this machine, or of a recorded tree of its files, from files alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from portagpu.host.tree import as_tree
from portagpu.inventory.infiniband import read_infiniband
from portagpu.inventory.pci_tree import read_pci
from portagpu.inventory.topology import build

if TYPE_CHECKING:
    from pathlib import Path

    from portagpu.host.tree import Tree
    from portagpu.inventory.topology import Topology


def read_topology(root: Tree | Path | str = "/") -> Topology:
    """What the kernel's files below ``root`` show: the PCI tree with its links, and RDMA devices.

    The links of the GPUs' own fabric are in no file of the kernel that every driver writes.
    """
    tree = as_tree(root)
    return build([read_pci(tree), read_infiniband(tree)])

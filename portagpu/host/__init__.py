"""Facts of the machine from kernel files below a replaceable root. No device is opened.

``read_host()`` reads everything once. ``read_clocks``, ``read_temperatures`` and
``read_throttling`` read changing values. ``gpus_on_machine()`` finds GPUs without vendor libraries.
Unknown is None.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from portagpu.lazy import lazy_names

if TYPE_CHECKING:
    from portagpu.host.cgroup import CgroupLimits as CgroupLimits
    from portagpu.host.cpu import Cache as Cache
    from portagpu.host.cpu import Cpu as Cpu
    from portagpu.host.cpu import NumaNode as NumaNode
    from portagpu.host.cpu import read_cpu as read_cpu
    from portagpu.host.gpus import Partition as Partition
    from portagpu.host.gpus import PciGpu as PciGpu
    from portagpu.host.gpus import gpus_on_machine as gpus_on_machine
    from portagpu.host.gpus import pci_of_uuid as pci_of_uuid
    from portagpu.host.gpus import unreadable_files as unreadable_files
    from portagpu.host.limits import UNLIMITED as UNLIMITED
    from portagpu.host.limits import Limits as Limits
    from portagpu.host.limits import Ulimits as Ulimits
    from portagpu.host.limits import read_limits as read_limits
    from portagpu.host.machine import Host as Host
    from portagpu.host.machine import Kernel as Kernel
    from portagpu.host.machine import read_host as read_host
    from portagpu.host.masks import visibility as visibility
    from portagpu.host.masks import visibility_variables as visibility_variables
    from portagpu.host.memory import Memory as Memory
    from portagpu.host.memory import read_memory as read_memory
    from portagpu.host.power import Energy as Energy
    from portagpu.host.power import read_energy as read_energy
    from portagpu.host.power import read_power as read_power
    from portagpu.host.sensors import Clocks as Clocks
    from portagpu.host.sensors import Sensors as Sensors
    from portagpu.host.sensors import Temperature as Temperature
    from portagpu.host.sensors import Throttling as Throttling
    from portagpu.host.sensors import read_clocks as read_clocks
    from portagpu.host.sensors import read_cpu_temperatures as read_cpu_temperatures
    from portagpu.host.sensors import read_sensors as read_sensors
    from portagpu.host.sensors import read_temperatures as read_temperatures
    from portagpu.host.sensors import read_throttling as read_throttling
    from portagpu.host.tree import Tree as Tree
else:
    __all__, __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "portagpu.host.cgroup": "CgroupLimits",
            "portagpu.host.cpu": "Cache Cpu NumaNode read_cpu",
            "portagpu.host.gpus": "Partition PciGpu gpus_on_machine pci_of_uuid unreadable_files",
            "portagpu.host.limits": "UNLIMITED Limits Ulimits read_limits",
            "portagpu.host.memory": "Memory read_memory",
            "portagpu.host.power": "Energy read_energy read_power",
            "portagpu.host.sensors": (
                "Clocks Sensors Temperature Throttling read_clocks read_cpu_temperatures "
                "read_sensors read_temperatures read_throttling"
            ),
            "portagpu.host.tree": "Tree",
            "portagpu.host.machine": "Host Kernel read_host",
            "portagpu.host.masks": "visibility visibility_variables",
        },
    )

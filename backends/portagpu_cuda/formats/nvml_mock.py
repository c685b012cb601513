"""Descriptions of NVIDIA's NVML mock: what its driver library would say, written as YAML.

They are authored by the vendor to match real parts; they are no recording of a machine. The file
has ``system``, ``device_defaults``, ``devices`` with what differs for each, ``nvlink`` and
``pcie_topology`` (NVIDIA/k8s-test-infra, nvml-mock).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from portagpu.formats import Shape, integer, number, pci_address, stated, within_device_limit
from portagpu.readings.model import (
    End,
    Findings,
    FormatError,
    GpuState,
    Link,
    Memory,
    Node,
    Pcie,
    Reading,
)
from portagpu_cuda.formats._nvidia import VENDOR, pci_id, subsystem_id, unmasked_uuid, yes_or_no
from portagpu_cuda.formats._yaml import read_yaml

if TYPE_CHECKING:
    from portagpu_cuda.formats._yaml import Yaml

KIND: Final = "NVML mock description"

_BEGINNING: Final = 20_000

SHAPES: Final = (
    Shape(
        r"(?:device_defaults|system|devices):\s*\n",
        re.compile(r"\s+\S|#|---|[\w.-]{1,100}:(?:\s|$)|- "),
    ),
)
_LIMITS: Final = {
    "shutdown": "shutdown_threshold_c",
    "slowdown": "slowdown_threshold_c",
    "max-operating": "max_operating_c",
}
_IDLE: Final = "gpu_idle"


def matches(text: str) -> bool:
    """Whether the keys of a description begin lines at the beginning."""
    lines = {line.rstrip() for line in text[:_BEGINNING].splitlines()}
    return "device_defaults:" in lines


def parse(text: str) -> Findings:
    """A reading for each device, with a link to the switches where the description has NVLink."""
    root, left_out = read_yaml(text)
    defaults = root.get("device_defaults")
    if not isinstance(defaults, dict):
        raise FormatError(f"{KIND}: there is no 'device_defaults' in the text")
    given = root.get("devices")
    devices = (
        within_device_limit((one for one in given if isinstance(one, dict)), KIND)
        if isinstance(given, list)
        else ()
    )
    nodes = _numa_nodes(root)
    readings = tuple(_reading(_Device(one, defaults), nodes) for one in devices)
    system = _Device(root, {})
    versions = {name: system.text(f"system/{name}_version") for name in ("driver", "cuda", "nvml")}
    problems = []
    if left_out:
        problems.append(f"{left_out} lines are not of the YAML that is read")
    if not devices:
        problems.append("the description lists no devices")
    return Findings(
        kind=KIND,
        readings=readings,
        links=tuple(link for one in readings for link in _nvlinks(one, system)),
        versions={name: value for name, value in versions.items() if value is not None},
        problems=tuple(problems),
    )


class _Device:
    """Values by path, of a device where it states them and of the defaults otherwise."""

    def __init__(self, own: Yaml | str, defaults: Yaml | str) -> None:
        self._layers = (own, defaults)

    def text(self, path: str) -> str | None:
        for layer in self._layers:
            value: Yaml | str | None = layer
            for key in path.split("/"):
                value = value.get(key) if isinstance(value, dict) else None
            if isinstance(value, str) and value:
                return stated(value)
        return None

    def integer(self, path: str) -> int | None:
        return integer(self.text(path))

    def number(self, path: str) -> float | None:
        return number(self.text(path))

    def watts(self, path: str) -> float | None:
        milliwatts = self.number(path)
        return None if milliwatts is None else milliwatts / 1000

    def flags(self, path: str) -> dict[str, bool]:
        """Keys below ``path`` that are true or false; the device's own before the defaults."""
        found: dict[str, bool] = {}
        for layer in reversed(self._layers):
            value: Yaml | str | None = layer.get(path) if isinstance(layer, dict) else None
            for key, text in value.items() if isinstance(value, dict) else ():
                answer = yes_or_no(text) if isinstance(text, str) else None
                if answer is not None:
                    found[key] = answer
        return found


def _reading(device: _Device, nodes: dict[str, int]) -> Reading:
    pci = pci_address(device.text("pci/bus_id"))
    major = device.integer("compute_capability/major")
    minor = device.integer("compute_capability/minor")
    number_ = device.integer("minor_number")
    firmware = {
        "vbios": device.text("vbios_version"),
        "gsp": device.text("gsp_firmware/version"),
        "inforom": device.text("inforom/image_version"),
    }
    extra = {
        "architecture": device.text("architecture"),
        "cuda cores": device.text("num_gpu_cores"),
        "serial": device.text("serial"),
    }
    return Reading(
        source=KIND,
        vendor=VENDOR,
        index=device.integer("index"),
        pci=pci,
        uuid=unmasked_uuid(device.text("uuid")),
        name=device.text("name"),
        arch=None if major is None or minor is None else f"sm_{major}{minor}",
        device_id=pci_id(device.text("pci/device_id")),
        subsystem_id=subsystem_id(device.text("pci/subsystem_id")),
        memory_bytes=device.integer("memory/total_bytes"),
        numa_node=None if pci is None else nodes.get(pci),
        device_file=None if number_ is None else f"/dev/nvidia{number_}",
        firmware={name: value for name, value in firmware.items() if value is not None},
        mig_enabled=yes_or_no(device.text("mig/mode_current")),
        pcie=Pcie(
            generation=device.integer("pcie/current_link_gen"),
            width=device.integer("pcie/current_link_width"),
            max_generation=device.integer("pcie/max_link_gen"),
            device_width=device.integer("pcie/max_link_width"),
            replays=device.integer("pcie/replay_counter"),
        ),
        memory=_memory(device),
        state=_state(device),
        extra={name: value for name, value in extra.items() if value is not None},
    )


def _memory(device: _Device) -> Memory:
    pages = {"single-bit": "single_bit_retirement", "double-bit": "double_bit_retirement"}
    retired = {name: device.integer(f"retired_pages/{key}/count") for name, key in pages.items()}
    rows = {
        name: device.integer(f"remapped_rows/{name}") for name in ("correctable", "uncorrectable")
    }
    pending = [
        yes_or_no(device.text(path))
        for path in ("retired_pages/pending_retirement", "remapped_rows/pending")
    ]
    return Memory(
        ecc_enabled=yes_or_no(device.text("ecc/mode_current")),
        corrected=device.integer("ecc/errors/volatile/single_bit/total"),
        uncorrected=device.integer("ecc/errors/volatile/double_bit/total"),
        corrected_total=device.integer("ecc/errors/aggregate/single_bit/total"),
        uncorrected_total=device.integer("ecc/errors/aggregate/double_bit/total"),
        retired_pages={name: count for name, count in retired.items() if count is not None},
        remapped_rows={name: count for name, count in rows.items() if count is not None},
        pending=True if True in pending else False if False in pending else None,
        remap_failed=yes_or_no(device.text("remapped_rows/failure_occurred")),
    )


def _state(device: _Device) -> GpuState:
    temperatures = {
        name: device.number(f"thermal/temperature_{name}_c") for name in ("gpu", "memory")
    }
    limits = {name: device.number(f"thermal/{key}") for name, key in _LIMITS.items()}
    reasons = device.flags("clocks_throttle_reasons")
    return GpuState(
        temperatures_c={name: value for name, value in temperatures.items() if value is not None},
        limits_c={name: value for name, value in limits.items() if value is not None},
        power_w=device.watts("power/current_draw_mw"),
        power_limit_w=device.watts("power/enforced_limit_mw"),
        clock_mhz=device.number("clocks/sm_current"),
        max_clock_mhz=device.number("clocks/sm_max"),
        memory_clock_mhz=device.number("clocks/memory_current"),
        max_memory_clock_mhz=device.number("clocks/memory_max"),
        utilization_percent=device.number("utilization/gpu"),
        memory_used_bytes=device.integer("memory/used_bytes"),
        throttling=tuple(name for name, on in reasons.items() if on and name != _IDLE)
        if reasons
        else None,
    )


def _numa_nodes(root: dict[str, Yaml | str]) -> dict[str, int]:
    """The NUMA node of each address that ``pcie_topology`` lists."""
    found: dict[str, int] = {}
    topology = root.get("pcie_topology")
    complexes = topology.get("root_complexes") if isinstance(topology, dict) else None
    for one in complexes if isinstance(complexes, list) else ():
        if not isinstance(one, dict):
            continue
        node, addresses = one.get("numa_node"), one.get("devices")
        number_ = integer(node) if isinstance(node, str) else None
        for text in addresses if isinstance(addresses, list) else ():
            pci = pci_address(text) if isinstance(text, str) else None
            if pci is not None and number_ is not None:
                found[pci] = number_
    return found


def _nvlinks(one: Reading, system: _Device) -> tuple[Link, ...]:
    """One link from the GPU to the switches, which the description does not number."""
    count = system.integer("nvlink/links_per_gpu")
    if not count:
        return ()
    name = f"GPU{one.index}" if one.index is not None else (one.pci or "GPU")
    megabytes = system.number("nvlink/bandwidth_per_link_mbps")
    return (
        Link(
            source=KIND,
            a=End(Node.GPU, name, pci=one.pci, index=one.index),
            b=End(Node.SWITCH, "NVSwitch"),
            kind="nvlink",
            count=count,
            bandwidth_bytes_s=None if megabytes is None else count * megabytes * 1e6,
        ),
    )

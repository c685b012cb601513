"""What readings mean where two vendors' tools write them differently, or are missing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from portagpu.facts.host.machine import read_settings
from portagpu.facts.host.tree import Tree
from portagpu_cuda.formats import nvidia_smi_text
from portagpu_rocm.formats import amd_smi_json

if TYPE_CHECKING:
    from pathlib import Path

HEADER = "index, name, power.draw [W], clocks.current.sm [MHz], temperature.gpu"


def _amd(**metric):
    """What AMD SMI's JSON of one GPU with those sections is read as."""
    text = json.dumps({"gpu_data": [{"gpu": 0, **metric}]})
    (reading,) = amd_smi_json.parse(text).readings
    return reading.state


def _nvidia(values):
    (reading,) = nvidia_smi_text.parse(f"{HEADER}\n{values}\n").readings
    return reading.state


def test_power_is_in_watts() -> None:
    """441 W are 441 W from either vendor's tool, with the unit next to the number or in it."""
    amd = _amd(power={"socket_power": {"value": 441, "unit": "W"}}).power_w
    nvidia = _nvidia("0, NVIDIA H100 80GB HBM3, 441.00 W, 1980 MHz, 61").power_w
    assert (amd, nvidia) == (441.0, 441.0), f"441 W are {amd} W from AMD SMI, {nvidia} W from NVML"


def test_not_available_is_not_a_zero() -> None:
    """A tool's N/A is an absent reading, never 0."""
    amd = _amd(
        power={"socket_power": "N/A"}, temperature={"hotspot": {"value": 61, "unit": "C"}}
    ).power_w
    nvidia = _nvidia("0, NVIDIA H100 80GB HBM3, [N/A], [Not Supported], 61")
    found = {"AMD SMI": amd, "nvidia-smi": nvidia.power_w, "its clock": nvidia.clock_mhz}
    assert set(found.values()) == {None}, f"readings that are not available are {found}"


def test_sensors_are_named() -> None:
    """A temperature has the name of its sensor, so that a hot spot is not taken for a die."""
    degrees = {"edge": 51, "hotspot": 78, "mem": 64}
    sections = {name: {"value": value, "unit": "C"} for name, value in degrees.items()}
    amd = _amd(temperature=sections).temperatures_c
    nvidia = _nvidia("0, NVIDIA H100 80GB HBM3, 441.00 W, 1980 MHz, 61").temperatures_c
    assert sorted(amd.values()) == [51.0, 64.0, 78.0], f"three sensors are {dict(amd)}"
    assert list(nvidia.values()) == [61.0], f"one sensor is {dict(nvidia)}"
    shared = {name for name in nvidia if amd.get(name) == 78.0}
    assert not shared, f"AMD's hot spot and NVIDIA's die are both called {shared}"


@pytest.mark.parametrize("mode", ("slow", "fast", "unknown"))
def test_host_settings(tmp_path: Path, mode: str) -> None:
    """NUMA balancing and the IOMMU's mode, which slow one vendor's collectives down, are read
    from the kernel's files.
    """
    if mode != "unknown":
        for name, text in {
            "proc/sys/kernel/numa_balancing": "1\n" if mode == "slow" else "0\n",
            "proc/cmdline": "quiet amd_iommu=on\n" if mode == "slow" else "quiet iommu=pt\n",
        }.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        (tmp_path / "sys/class/iommu/ivhd0").mkdir(parents=True)
    found = read_settings(Tree(tmp_path))
    expected = {"slow": (True, None), "fast": (False, "passthrough"), "unknown": (None, None)}[mode]
    seen = (found.numa_balancing, found.iommu)
    assert seen == expected, f"NUMA balancing and IOMMU are {seen}, not {expected}"
    stated = {"slow": ("amd_iommu=on",), "fast": ("iommu=pt",), "unknown": ()}[mode]
    assert found.parameters == stated, f"of the kernel's parameters {found.parameters} are stated"

"""Telemetry: what readings mean where two vendors' tools write them differently, or are missing."""

from __future__ import annotations

import json
import subprocess
import sys

from portagpu.host.settings import read_settings
from portagpu.host.tree import Tree
from portagpu.suite import case
from portagpu_cuda.formats import nvidia_smi_text
from portagpu_rocm.formats import amd_smi_json

CHILD_LIMIT_S = 60.0
HEADER = "index, name, power.draw [W], clocks.current.sm [MHz], temperature.gpu"


def _amd(**metric):
    """What AMD SMI's JSON of one GPU with those sections is read as."""
    text = json.dumps({"gpu_data": [{"gpu": 0, **metric}]})
    (reading,) = amd_smi_json.parse(text).readings
    return reading.state


def _nvidia(values):
    (reading,) = nvidia_smi_text.parse(f"{HEADER}\n{values}\n").readings
    return reading.state


@case(
    "telemetry/power-is-in-watts",
    spec="441 W are 441 W from either vendor's tool, with the unit beside the number or in it.",
    traps=("T01",),
)
def test_power_is_in_watts():
    amd = _amd(power={"socket_power": {"value": 441, "unit": "W"}}).power_w
    nvidia = _nvidia("0, NVIDIA H100 80GB HBM3, 441.00 W, 1980 MHz, 61").power_w
    assert (amd, nvidia) == (441.0, 441.0), f"441 W are {amd} W from AMD SMI, {nvidia} W from NVML"


@case(
    "telemetry/not-available-is-no-zero",
    spec="A tool's N/A is an absent reading, never 0.",
    traps=("T02",),
)
def test_not_available_is_no_zero():
    amd = _amd(
        power={"socket_power": "N/A"}, temperature={"hotspot": {"value": 61, "unit": "C"}}
    ).power_w
    nvidia = _nvidia("0, NVIDIA H100 80GB HBM3, [N/A], [Not Supported], 61")
    found = {"AMD SMI": amd, "nvidia-smi": nvidia.power_w, "its clock": nvidia.clock_mhz}
    assert set(found.values()) == {None}, f"readings that are not available are {found}"


@case(
    "telemetry/sensors-are-named",
    spec="A temperature has the name of its sensor, so that a hot spot is not taken for a die.",
    traps=("T03",),
)
def test_sensors_are_named():
    degrees = {"edge": 51, "hotspot": 78, "mem": 64}
    sections = {name: {"value": value, "unit": "C"} for name, value in degrees.items()}
    amd = _amd(temperature=sections).temperatures_c
    nvidia = _nvidia("0, NVIDIA H100 80GB HBM3, 441.00 W, 1980 MHz, 61").temperatures_c
    assert sorted(amd.values()) == [51.0, 64.0, 78.0], f"three sensors are {dict(amd)}"
    assert list(nvidia.values()) == [61.0], f"one sensor is {dict(nvidia)}"
    shared = {name for name in nvidia if amd.get(name) == 78.0}
    assert not shared, f"AMD's hot spot and NVIDIA's die are both called {shared}"


WITHOUT = """
import json, sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("pynvml", "amdsmi", "pyrsmi", "nvidia_smi"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Missing())
from portagpu import discovery
plugin = discovery.plugin(sys.argv[1])
print(json.dumps([dict(plugin.telemetry(0)), len(plugin.probe().readings)]))
"""


@case(
    "telemetry/libraries-may-be-missing",
    spec="Without any vendor's management library readings are fewer, and nothing is raised.",
    covers=("Plugin.telemetry", "Plugin.probe"),
    traps=("T04",),
)
def test_libraries_may_be_missing(gpu):
    done = subprocess.run(
        [sys.executable, "-P", "-c", WITHOUT, gpu.name],
        capture_output=True,
        text=True,
        timeout=CHILD_LIMIT_S,
        check=False,
    )
    said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
    assert done.returncode == 0, f"without a management library telemetry fails: {said}"
    readings, _ = json.loads(done.stdout.splitlines()[-1])
    wrong = {name: value for name, value in readings.items() if not isinstance(value, float | int)}
    assert not wrong, f"{wrong} are no readings"


@case(
    "telemetry/host-settings",
    spec="NUMA balancing and the IOMMU's mode, which slow one vendor's collectives down, are read "
    "from the kernel's files.",
    traps=("E13",),
    params={"mode": ("slow", "fast", "unknown")},
)
def test_host_settings(tmp_path, mode):
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
    assert found.parameters == stated, f"of the kernel's parameters {found.parameters} are told"

"""Telemetry: readings in the unit that their name states, also without a vendor's library."""

from __future__ import annotations

import json
import math
import subprocess
import sys

from portagpu.facts.readings.stream import Stream
from portagpu.suites.conformance import NotClaimed, NotHere, case


def _readings(gpu):
    found = gpu.plugin.telemetry(gpu.index)
    if not found:
        raise NotClaimed("this machine shows no reading")
    return found


@case(
    "telemetry/readings-have-units",
    spec="Readings are finite numbers whose names end in their unit; none is shown as absent.",
    covers=("Plugin.telemetry",),
    traps=("T01", "T02"),
)
def test_telemetry_has_units(backend):
    readings = _readings(backend)
    for name, value in readings.items():
        unit = name.rpartition("_")[2]
        assert unit in {"mhz", "c", "w", "count"}, f"the reading {name} names no known unit"
        assert math.isfinite(value), f"{name} is {value}"


@case(
    "telemetry/readings-are-plausible",
    spec="A clock is at least 1 MHz, a temperature between -40 and 150 degrees Celsius.",
    covers=("Plugin.telemetry",),
    traps=("T03",),
)
def test_telemetry_is_plausible(backend):
    readings = _readings(backend)
    for name in ("clock_mhz", "memory_clock_mhz"):
        assert readings.get(name, 1.0) >= 1.0, f"{name} is {readings[name]}: not shown is absent"
    assert -40 <= readings.get("temperature_c", 20) <= 150, f"{readings['temperature_c']} degrees"


@case(
    "telemetry/probe-knows-the-device",
    spec="What the management library says of the machine holds this device, or says in a sentence "
    "why it does not; a field without a value is None and never 0.",
    covers=("Plugin.probe",),
    traps=("T02", "T04", "E07"),
)
def test_probe_knows_the_device(backend):
    found = backend.plugin.probe()
    if not found.readings and not found.problems:
        raise NotClaimed("no library manages this device")
    if not found.readings:
        assert all(problem.strip() for problem in found.problems), "a problem has no words"
        raise NotHere(found.problems[0])
    addresses = [reading.pci for reading in found.readings]
    assert backend.pci is None or backend.pci in addresses, (
        f"{backend.pci} is not among {addresses}"
    )
    for reading in found.readings:
        for name in ("memory_bytes", "unit_count", "device_id"):
            assert getattr(reading, name) != 0, f"{name} of {reading.pci} is 0: unknown is None"
        assert reading.name != "", f"the name of {reading.pci} is empty: unknown is None"


@case(
    "telemetry/sampler-knows-the-device",
    spec="What reads the machine again and again shows this device in each sample, under one key, "
    "or says in a sentence why it does not.",
    covers=("Plugin.sampler",),
    traps=("T04",),
)
def test_sampler_knows_the_device(backend):
    source = backend.plugin.sampler()
    if source is None:
        raise NotClaimed("nothing reads this device again and again")
    with Stream([source]) as stream:
        samples = [stream.read(60.0), stream.read(60.0)]
    for sample in samples:
        assert all(problem.text.strip() for problem in sample.problems), "a problem has no words"
        if not sample.readings:
            raise NotHere(sample.problems[0].text)
        addresses = [reading.pci for reading in sample.readings]
        assert backend.pci is None or backend.pci in addresses, (
            f"{backend.pci} is not among {addresses}"
        )
    first, second = ({reading.key for reading in sample.readings} for sample in samples)
    assert first == second, f"the devices were {sorted(first)}, and then {sorted(second)}"


CHILD_LIMIT_S = 60.0


WITHOUT = """
import json, sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("pynvml", "amdsmi", "pyrsmi", "nvidia_smi"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Missing())
from portagpu.devices import discovery
plugin = discovery.plugin(sys.argv[1])
print(json.dumps([dict(plugin.telemetry(0)), len(plugin.probe().readings)]))
"""


@case(
    "telemetry/libraries-may-be-missing",
    spec="Without any vendor's management library readings are fewer, and nothing is raised.",
    covers=("Plugin.telemetry", "Plugin.probe"),
    traps=("T04",),
)
def test_libraries_may_be_missing(backend):
    done = subprocess.run(
        [sys.executable, "-P", "-c", WITHOUT, backend.name],
        capture_output=True,
        text=True,
        timeout=CHILD_LIMIT_S,
        check=False,
    )
    said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
    assert done.returncode == 0, f"without a management library telemetry fails: {said}"
    readings, _ = json.loads(done.stdout.splitlines()[-1])
    wrong = {name: value for name, value in readings.items() if not isinstance(value, float | int)}
    assert not wrong, f"{wrong} are not readings"

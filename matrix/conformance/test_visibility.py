"""Visible devices: what a child process sees that is given one, or none, of this machine's."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from portagpu.facts import visible
from portagpu.suites.conformance import NotClaimed, NotHere, case

CHILD_LIMIT_S = 50.0
NAMES = {
    "cuda": "CUDA_VISIBLE_DEVICES",
    "hip": "HIP_VISIBLE_DEVICES",
    "rocr": "ROCR_VISIBLE_DEVICES",
}
MASK_OF = {"cuda": "CUDA_VISIBLE_DEVICES", "rocm": "HIP_VISIBLE_DEVICES"}


COUNT = (
    "import json, portagpu; gpu = portagpu.backend(NAME); print(json.dumps([gpu.device_count(), "
    "gpu.uuid, gpu.pci]))"
)


def _devices_in_child(gpu, devices, runtime):
    """[count, uuid, pci] in a child process that is given those devices, or its last error line."""
    from portagpu.base.subprocesses.start import python_environment

    changes = visible.environment_for(devices, runtime)
    environment = {**python_environment(), **{k: v for k, v in changes.items() if v is not None}}
    for name in [name for name, value in changes.items() if value is None]:
        environment.pop(name, None)
    done = subprocess.run(
        [sys.executable, "-P", "-c", COUNT.replace("NAME", repr(gpu.name))],
        env=environment,
        capture_output=True,
        text=True,
        timeout=CHILD_LIMIT_S,
        check=False,
    )
    if done.returncode:
        return done.stderr.strip().splitlines()[-1]
    return json.loads(done.stdout)


def _mask_runtime(gpu):
    runtimes = [
        each for each in visible.relevant_runtimes(None, [gpu.arch.vendor]) if each in MASK_OF
    ]
    if not runtimes:
        raise NotClaimed(f"the {gpu.name} backend has no masks: its device cannot be hidden")
    if any(os.environ.get(name) for name in NAMES.values()):
        raise NotHere("masks are set here, so that indices of the whole machine are not known")
    return runtimes[0]


@case(
    "visibility/child-sees-the-device-by-index",
    spec="A child that is given the last device sees that one alone, with the same PCI address.",
    traps=("E05", "E07"),
)
def test_child_sees_the_device_by_index(backend):
    runtime = _mask_runtime(backend)
    last = backend.device_count() - 1
    here = backend.plugin.open(last)
    seen = _devices_in_child(backend, [visible.DeviceId(last, here.uuid)], runtime)
    assert seen == [1, here.uuid, here.pci], f"the child that is given device {last} says {seen}"


@case(
    "visibility/child-without-devices-says-why",
    spec="A child from which every device is hidden gets an error that names the mask.",
    traps=("E04",),
)
def test_child_without_devices_says_why(backend):
    runtime = _mask_runtime(backend)
    seen = _devices_in_child(backend, [], runtime)
    assert isinstance(seen, str), f"with every device hidden the child sees {seen}"
    assert MASK_OF[runtime] in seen, f"the mask is not named: {seen}"

"""Visible devices: who reads which mask, and what a child process is given.

Most cases work out masks over eight made-up devices; their oracles are the vendors' documentation
and sources that docs/visibility.md names. The last ones start a child process on this machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

from portagpu import visible
from portagpu.suite import NotClaimed, NotHere, case, refused

CHILD_LIMIT_S = 50.0
DEVICES = tuple(
    visible.DeviceId(index, f"GPU-{name}000000000000")
    for index, name in enumerate(("a0a0", "a0b1", "b2b2", "c3c3", "d4d4", "e5e5", "f6f6", "7777"))
)
NAMES = {
    "cuda": "CUDA_VISIBLE_DEVICES",
    "hip": "HIP_VISIBLE_DEVICES",
    "rocr": "ROCR_VISIBLE_DEVICES",
}
READ = {"cuda": {NAMES["cuda"]}, "rocm": {*NAMES.values(), "GPU_DEVICE_ORDINAL"}}
MASK_OF = {"cuda": "CUDA_VISIBLE_DEVICES", "rocm": "HIP_VISIBLE_DEVICES"}


def _seen(runtime, **masks):
    environment = {NAMES[name]: value for name, value in masks.items()}
    return visible.resolve(environment, DEVICES, runtime)


def _shown(runtime, **masks):
    return [device.index for device in _seen(runtime, **masks).devices]


def _expect(runtime, masks, wanted):
    shown = _shown(runtime, **masks)
    assert shown == wanted, f"{masks} shows {shown} on {runtime}, and not {wanted}"


@case(
    "visibility/order-is-the-masks",
    spec="Devices are numbered in the order in which a mask names them.",
    params={"runtime": ("cuda", "rocm")},
    traps=("E03",),
)
def test_order_is_the_masks(runtime):
    own = "cuda" if runtime == "cuda" else "hip"
    _expect(runtime, {own: "2,1"}, [2, 1])
    _expect(runtime, {own: "7"}, [7])
    _expect(runtime, {}, list(range(8)))


@case(
    "visibility/list-ends-at-what-is-no-device",
    spec="A negative number, or one that is not there, ends the list.",
    params={"runtime": ("cuda", "rocm"), "end": ("-1", "8", "99")},
    traps=("E03",),
)
def test_list_ends_at_what_is_no_device(runtime, end):
    own = "cuda" if runtime == "cuda" else "hip"
    _expect(runtime, {own: f"0,2,{end},1"}, [0, 2])
    _expect(runtime, {own: end}, [])


@case(
    "visibility/repeated-device",
    spec="A device that is named twice hides all on CUDA and counts once on HIP.",
    traps=("E03",),
)
def test_repeated_device():
    _expect("cuda", {"cuda": "0,0"}, [])
    _expect("rocm", {"hip": "0,0"}, [0])


@case(
    "visibility/two-index-spaces",
    spec="ROCR_VISIBLE_DEVICES filters first, and HIP_VISIBLE_DEVICES counts among what is left.",
    traps=("E03",),
)
def test_two_index_spaces():
    _expect("rocm", {"rocr": "2,3", "hip": "1"}, [3])
    _expect("rocm", {"rocr": "2,3", "cuda": "0"}, [2])
    _expect("rocm", {"rocr": "2,3", "hip": "2"}, [])
    problems = {problem.id for problem in _seen("rocm", rocr="2,3", cuda="2,3").harmful}
    assert problems, "two masks over two index spaces are not reported as harmful"


@case(
    "visibility/one-mask-shadows-the-other",
    spec="HIP reads CUDA_VISIBLE_DEVICES only where HIP_VISIBLE_DEVICES is not set.",
    traps=("E03", "E05"),
)
def test_one_mask_shadows_the_other():
    _expect("rocm", {"cuda": "2,3"}, [2, 3])
    _expect("rocm", {"cuda": "2,3", "hip": "0"}, [0])
    _expect("cuda", {"cuda": "2,3", "hip": "0", "rocr": "1"}, [2, 3])


@case(
    "visibility/empty-mask-hides-all",
    spec="An empty mask hides every device, and is reported: releases before ROCm 5.6 read it as "
    "if it were not set.",
    params={"runtime": ("cuda", "rocm")},
    traps=("E04",),
)
def test_empty_mask_hides_all(runtime):
    own = "cuda" if runtime == "cuda" else "hip"
    _expect(runtime, {own: ""}, [])
    if runtime == "rocm":
        told = [str(problem.id) for problem in _seen(runtime, hip="").problems]
        assert "empty-mask" in told, f"an empty mask is reported as {told}"


@case(
    "visibility/torch-counts-otherwise",
    spec="Where torch counts other devices than the runtime shows, that is reported as harmful.",
    params={"mask": ("rocr-empty", "rocr-negative", "rocr-and-cuda")},
    traps=("E03", "E04"),
)
def test_torch_counts_otherwise(mask):
    masks = {
        "rocr-empty": {"rocr": ""},
        "rocr-negative": {"rocr": "0,-1,1"},
        "rocr-and-cuda": {"rocr": "2,3", "cuda": "0"},
    }[mask]
    seen = _seen("rocm", **masks)
    assert seen.by_torch.count != len(seen.devices), f"torch agrees on {masks}"
    told = [str(problem.id) for problem in seen.harmful]
    assert "torch-disagrees" in told, f"{masks} is reported as {told}"


@case(
    "visibility/uuids",
    spec="A UUID names a device by as many digits as only that one begins with.",
    params={"runtime": ("cuda", "rocm")},
    traps=("E07",),
)
def test_uuids(runtime):
    own = "cuda" if runtime == "cuda" else "rocr"
    _expect(runtime, {own: "GPU-c,GPU-b2"}, [3, 2])
    _expect(runtime, {own: "GPU-a0"}, [])
    _expect(runtime, {own: "GPU-c3c3000000000000"}, [3])


@case(
    "visibility/slices-are-named-by-uuid",
    spec="A MIG slice is visible by its UUID, alone, and has its GPU's index.",
)
def test_slices_are_named_by_uuid():
    parent = "GPU-a0a0"
    slices = [visible.DeviceId(0, f"MIG-{letter}", parent=parent) for letter in "xyz"]
    seen = visible.resolve({"CUDA_VISIBLE_DEVICES": "MIG-y"}, slices, "cuda")
    assert [device.uuid for device in seen.devices] == ["MIG-y"], f"MIG-y shows {seen.devices}"
    assert seen.devices[0].index == 0, f"a slice of GPU 0 has the index {seen.devices[0].index}"


@case(
    "visibility/child-sees-what-it-is-given",
    spec="The environment for a child shows it exactly the devices that were chosen, whatever "
    "masks are set here, with one of its runtime's variables set and no other left.",
    params={"runtime": ("cuda", "rocm")},
    traps=("E03", "E05", "E06"),
)
def test_child_sees_what_it_is_given(runtime):
    for here in ({}, {"CUDA_VISIBLE_DEVICES": "5,3,1"}, {"GPU_DEVICE_ORDINAL": "3"}):
        chosen = [DEVICES[3], DEVICES[1]]
        changes = visible.environment_for(chosen, runtime, here)
        child = {key: value for key, value in {**here, **changes}.items() if value is not None}
        seen = visible.resolve(child, DEVICES, runtime)
        assert list(seen.devices) == chosen, f"over {here} the child sees {seen.devices}"
        assert not seen.harmful, f"over {here} the child is told {seen.harmful[0].message}"
        masks = [name for name in child if name in READ[runtime]]
        assert masks == [MASK_OF[runtime]], f"over {here} the child has {masks}"


@case(
    "visibility/child-sees-nothing",
    spec="A child that is given no device sees none, by a mask that every release reads so.",
    params={"runtime": ("cuda", "rocm")},
    traps=("E04",),
)
def test_child_sees_nothing(runtime):
    changes = visible.environment_for([], runtime)
    child = {key: value for key, value in changes.items() if value is not None}
    assert child == {MASK_OF[runtime]: "-1"}, f"no device is written as {child}"
    assert not visible.resolve(child, DEVICES, runtime).devices, "the child sees a device"


@case(
    "visibility/hidden-device-is-refused",
    spec="A device that a mask hides from this process cannot be given to a child.",
    outcome="unsupported",
    params={"runtime": ("cuda", "rocm")},
)
def test_hidden_device_is_refused(runtime):
    base = {MASK_OF[runtime]: "0,1"}

    def give():
        return visible.environment_for([DEVICES[2]], runtime, base)

    refused(give, visible.VisibilityError, "a device that is hidden here")


@case(
    "visibility/long-and-odd-masks",
    spec="A mask of any text is read without an error, in a time that grows with its length.",
    params={"runtime": ("cuda", "rocm")},
)
def test_long_and_odd_masks(runtime):
    for mask in ("0," * 10_000, "-" * 9_999, "GPU-" * 3_000, "\t,\x01,é", "1e3", "0x1,010"):
        for name in ("cuda", "hip", "rocr"):
            seen = _seen(runtime, **{name: mask})
            assert len(seen.devices) <= len(DEVICES), f"{mask[:20]!r} shows {len(seen.devices)}"
            for problem in seen.problems:
                assert "\n" not in problem.message, f"{problem.id} is told in several lines"
                assert len(problem.message) < 400, f"{problem.id} is told in {problem.message}"


COUNT = (
    "import json, portagpu; gpu = portagpu.backend(NAME); print(json.dumps([gpu.device_count(), "
    "gpu.uuid, gpu.pci]))"
)


def _child(gpu, devices, runtime):
    """[count, uuid, pci] as a process with the environment for those devices sees them."""
    from portagpu.subprocesses.start import python_environment

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


def _runtime(gpu):
    runtimes = [each for each in visible.runtimes_on(None, [gpu.arch.vendor]) if each in MASK_OF]
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
def test_child_sees_the_device_by_index(gpu):
    runtime = _runtime(gpu)
    last = gpu.device_count() - 1
    here = gpu.plugin.open(last)
    told = _child(gpu, [visible.DeviceId(last, here.uuid)], runtime)
    assert told == [1, here.uuid, here.pci], f"the child that is given device {last} says {told}"


@case(
    "visibility/child-without-devices-says-why",
    spec="A child from which every device is hidden gets an error that names the mask.",
    traps=("E04",),
)
def test_child_without_devices_says_why(gpu):
    runtime = _runtime(gpu)
    told = _child(gpu, [], runtime)
    assert isinstance(told, str), f"with every device hidden the child sees {told}"
    assert MASK_OF[runtime] in told, f"the mask is not named: {told}"

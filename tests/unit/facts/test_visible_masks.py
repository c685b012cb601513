"""Masks over eight made-up devices, read as each vendor's runtime reads them.

The oracles are the vendors' documentation and sources that docs/machine.md names.
"""

from __future__ import annotations

import pytest

from portagpu.facts import visible
from portagpu.suites.conformance import refused

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


@pytest.mark.parametrize("runtime", ("cuda", "rocm"))
def test_order_is_the_masks(runtime: str) -> None:
    """Devices are numbered in the order in which a mask names them."""
    own = "cuda" if runtime == "cuda" else "hip"
    _expect(runtime, {own: "2,1"}, [2, 1])
    _expect(runtime, {own: "7"}, [7])
    _expect(runtime, {}, list(range(8)))


@pytest.mark.parametrize("runtime", ("cuda", "rocm"))
@pytest.mark.parametrize("end", ("-1", "8", "99"))
def test_list_ends_at_what_is_not_a_device(runtime: str, end: str) -> None:
    """A negative number, or one that is not there, ends the list."""
    own = "cuda" if runtime == "cuda" else "hip"
    _expect(runtime, {own: f"0,2,{end},1"}, [0, 2])
    _expect(runtime, {own: end}, [])


def test_repeated_device() -> None:
    """A device that is named twice hides all on CUDA and counts once on HIP."""
    _expect("cuda", {"cuda": "0,0"}, [])
    _expect("rocm", {"hip": "0,0"}, [0])


def test_device_repeated_by_another_name() -> None:
    """What a number or a UUID names again hides all on CUDA, ends ROCr's list, and HIP skips it."""
    first, second = DEVICES[0].uuid, DEVICES[1].uuid
    _expect("cuda", {"cuda": f"{first},{first[:8]},{second}"}, [])
    _expect("rocm", {"rocr": f"0,{first},1"}, [0])
    _expect("rocm", {"hip": f"0,{first},1"}, [0, 1])


def test_length_of_a_uuid_for_rocr() -> None:
    """ROCr takes 5 to 20 characters for a UUID, with "GPU-"; another text ends its list."""
    whole = DEVICES[2].uuid
    for length, wanted in ((4, []), (5, [2]), (19, [2]), (20, [2]), (21, [])):
        _expect("rocm", {"rocr": f"{whole}0"[:length]}, wanted)


def test_two_index_spaces() -> None:
    """ROCR_VISIBLE_DEVICES filters first, and HIP_VISIBLE_DEVICES counts among what is left."""
    _expect("rocm", {"rocr": "2,3", "hip": "1"}, [3])
    _expect("rocm", {"rocr": "2,3", "cuda": "0"}, [2])
    _expect("rocm", {"rocr": "2,3", "hip": "2"}, [])
    problems = {problem.id for problem in _seen("rocm", rocr="2,3", cuda="2,3").harmful}
    assert problems, "two masks over two index spaces are not reported as harmful"


def test_one_mask_shadows_the_other() -> None:
    """HIP reads CUDA_VISIBLE_DEVICES only where HIP_VISIBLE_DEVICES is not set."""
    _expect("rocm", {"cuda": "2,3"}, [2, 3])
    _expect("rocm", {"cuda": "2,3", "hip": "0"}, [0])
    _expect("cuda", {"cuda": "2,3", "hip": "0", "rocr": "1"}, [2, 3])


@pytest.mark.parametrize("runtime", ("cuda", "rocm"))
def test_empty_mask_hides_all(runtime: str) -> None:
    """An empty mask hides every device, and is reported: releases before ROCm 5.6 read it as if
    it were not set.
    """
    own = "cuda" if runtime == "cuda" else "hip"
    _expect(runtime, {own: ""}, [])
    if runtime == "rocm":
        reported = [str(problem.id) for problem in _seen(runtime, hip="").problems]
        assert "empty-mask" in reported, f"an empty mask is reported as {reported}"


@pytest.mark.parametrize("mask", ("rocr-empty", "rocr-negative", "rocr-and-cuda"))
def test_torch_counts_otherwise(mask: str) -> None:
    """Where torch counts other devices than the runtime shows, that is reported as harmful."""
    masks = {
        "rocr-empty": {"rocr": ""},
        "rocr-negative": {"rocr": "0,-1,1"},
        "rocr-and-cuda": {"rocr": "2,3", "cuda": "0"},
    }[mask]
    seen = _seen("rocm", **masks)
    assert seen.by_torch.count != len(seen.devices), f"torch agrees on {masks}"
    reported = [str(problem.id) for problem in seen.harmful]
    assert "torch-disagrees" in reported, f"{masks} is reported as {reported}"


@pytest.mark.parametrize("runtime", ("cuda", "rocm"))
def test_uuids(runtime: str) -> None:
    """A UUID names a device by as many digits as only that one begins with."""
    own = "cuda" if runtime == "cuda" else "rocr"
    _expect(runtime, {own: "GPU-c,GPU-b2"}, [3, 2])
    _expect(runtime, {own: "GPU-a0"}, [])
    _expect(runtime, {own: "GPU-c3c3000000000000"}, [3])


def test_slices_are_named_by_uuid() -> None:
    """A MIG slice is visible by its UUID, alone, and has its GPU's index."""
    parent = "GPU-a0a0"
    slices = [visible.DeviceId(0, f"MIG-{letter}", parent=parent) for letter in "xyz"]
    seen = visible.resolve({"CUDA_VISIBLE_DEVICES": "MIG-y"}, slices, "cuda")
    assert [device.uuid for device in seen.devices] == ["MIG-y"], f"MIG-y shows {seen.devices}"
    assert seen.devices[0].index == 0, f"a slice of GPU 0 has the index {seen.devices[0].index}"


@pytest.mark.parametrize("runtime", ("cuda", "rocm"))
def test_child_sees_what_it_is_given(runtime: str) -> None:
    """The environment for a child shows it exactly the devices that were chosen, whatever masks
    are set here, with one of its runtime's variables set and no other left.
    """
    for here in ({}, {"CUDA_VISIBLE_DEVICES": "5,3,1"}, {"GPU_DEVICE_ORDINAL": "3"}):
        chosen = [DEVICES[3], DEVICES[1]]
        changes = visible.environment_for(chosen, runtime, here)
        child = {key: value for key, value in {**here, **changes}.items() if value is not None}
        seen = visible.resolve(child, DEVICES, runtime)
        assert list(seen.devices) == chosen, f"over {here} the child sees {seen.devices}"
        assert not seen.harmful, f"over {here} the child gets the message {seen.harmful[0].message}"
        masks = [name for name in child if name in READ[runtime]]
        assert masks == [MASK_OF[runtime]], f"over {here} the child has {masks}"


@pytest.mark.parametrize("runtime", ("cuda", "rocm"))
def test_child_sees_nothing(runtime: str) -> None:
    """A child that is given no device sees none, by a mask that every release reads so."""
    changes = visible.environment_for([], runtime)
    child = {key: value for key, value in changes.items() if value is not None}
    assert child == {MASK_OF[runtime]: "-1"}, f"no device is written as {child}"
    assert not visible.resolve(child, DEVICES, runtime).devices, "the child sees a device"


@pytest.mark.parametrize("runtime", ("cuda", "rocm"))
def test_hidden_device_is_refused(runtime: str) -> None:
    """A device that a mask hides from this process cannot be given to a child."""
    base = {MASK_OF[runtime]: "0,1"}

    def give():
        return visible.environment_for([DEVICES[2]], runtime, base)

    refused(give, visible.VisibilityError, "a device that is hidden here")


@pytest.mark.parametrize("runtime", ("cuda", "rocm"))
def test_long_and_odd_masks(runtime: str) -> None:
    """A mask of any text is read without an error, in a time that grows with its length."""
    for mask in ("0," * 10_000, "-" * 9_999, "GPU-" * 3_000, "\t,\x01,é", "1e3", "0x1,010"):
        for name in ("cuda", "hip", "rocr"):
            seen = _seen(runtime, **{name: mask})
            assert len(seen.devices) <= len(DEVICES), f"{mask[:20]!r} shows {len(seen.devices)}"
            for problem in seen.problems:
                assert "\n" not in problem.message, f"{problem.id} is reported in several lines"
                assert len(problem.message) < 400, f"{problem.id} is reported in {problem.message}"

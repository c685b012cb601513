"""Environment variables by vendor: what cases about two vendors do not reach."""

from __future__ import annotations

import pytest

from portagpu.base.errors import Unsupported
from portagpu.devices import discovery as candidates
from portagpu.devices.plugin_parts import Variables
from tests.support.fake_plugins import FakePlugin


def test_a_plugin_without_variables_has_empty_ones() -> None:
    assert FakePlugin().variables == Variables()
    assert Variables().for_debugging() == {}
    assert Variables().for_job("/scratch") == {}


def test_a_device_without_allocator_or_architectures_says_so() -> None:
    variables = candidates.plugin("cpu").variables
    with pytest.raises(Unsupported, match="no caching allocator"):
        variables.for_allocator("max_split_size_mb:512", torch="2.13.0", toolkit=None)
    with pytest.raises(Unsupported, match="not built for architectures"):
        variables.for_building(["x86-64"])


@pytest.mark.parametrize(
    ("torch", "toolkit", "given"),
    [
        ("2.11.0", "7.0", True),
        ("2.12.0a0+git1", "7.2.53211", True),
        ("3.0", "8.0", True),
        ("2.10.9", "7.2", False),
        ("2.11.0", "6.4.43482-0f2d60242", False),
        ("nightly", "7.0", False),
    ],
)
def test_expandable_segments_by_release(torch: str, toolkit: str, given: bool) -> None:
    variables = candidates.plugin("rocm").variables
    settings = "expandable_segments: True"
    if given:
        found = variables.for_allocator(settings, torch=torch, toolkit=toolkit)
        assert set(found.values()) == {settings}
        return
    with pytest.raises(Unsupported, match=r"torch and a toolkit of 2\.11 and 7\.0"):
        variables.for_allocator(settings, torch=torch, toolkit=toolkit)


@pytest.mark.parametrize("arch", ["sm_9x", "90", "sm_", "gfx942", ""])
def test_what_is_not_an_architecture_of_nvidia_is_refused(arch: str) -> None:
    with pytest.raises(ValueError, match="not an architecture that TORCH_CUDA_ARCH_LIST can name"):
        candidates.plugin("cuda").variables.for_building([arch])


def test_an_architecture_named_twice_is_built_once() -> None:
    found = candidates.plugin("cuda").variables.for_building(["sm_75", "sm_100f", "sm_75"])
    assert found == {"TORCH_CUDA_ARCH_LIST": "7.5;10.0f"}

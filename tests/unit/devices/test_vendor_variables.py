"""The environment variables of each vendor, which are data and need no hardware."""

from __future__ import annotations

from pathlib import PurePath

import pytest

from portagpu.base.errors import Unsupported
from portagpu.devices import discovery as candidates
from portagpu.suites.conformance import refused

RUNTIMES = ("cuda", "rocm")


OWN = {
    "cuda": ("CUDA_",),
    "rocm": ("AMD_", "HIP_", "HSA_", "MIOPEN_", "PYTORCH_TUNABLEOP_"),
}


COMMON = ("TORCHINDUCTOR_", "TRITON_")
"""Prefixes of variables that only that vendor's stack reads, and of those that every stack does."""


def _variables(runtime):
    return candidates.plugin(runtime).variables


def _is_read_by(runtime, name):
    return name.startswith((*OWN[runtime], *COMMON))


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_debugging_variables(runtime: str) -> None:
    """Launches run one by one by the vendor's own variable, not by the other vendor's, which its
    runtime does not read.
    """
    needed = {"cuda": ("CUDA_LAUNCH_BLOCKING", "1"), "rocm": ("AMD_SERIALIZE_KERNEL", "3")}
    name, value = needed[runtime]
    found = _variables(runtime).for_debugging()
    assert found.get(name) == value, f"{name} is {found.get(name)} for debugging, not {value}"
    foreign = [each for each in found if not _is_read_by(runtime, each)]
    assert not foreign, f"the {runtime} runtime does not read {', '.join(foreign)}"


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_job_caches(runtime: str) -> None:
    """Every cache of a job is inside its folder, one place each, and no job's is another's."""
    variables = _variables(runtime)
    jobs = [variables.for_job(f"/scratch/{job}") for job in ("one", "two")]
    names = set(variables.caches)
    assert names, f"the {runtime} stack is said to keep no cache"
    foreign = [each for each in names if not _is_read_by(runtime, each)]
    assert not foreign, f"the {runtime} stack does not read {', '.join(foreign)}"
    if runtime == "rocm":
        missing = {"MIOPEN_USER_DB_PATH", "MIOPEN_CUSTOM_CACHE_DIR"} - names
        assert not missing, f"{', '.join(missing)} would stay in the home folder, for all jobs"
    for job, found in zip(("one", "two"), jobs, strict=True):
        places = [PurePath(found[name]) for name in names]
        outside = [place for place in places if place.parent != PurePath(f"/scratch/{job}")]
        assert not outside, f"{outside[0]} is not in the folder of the job"
        assert len(set(places)) == len(places), f"two caches share a place: {sorted(places)}"


def test_tuning_results_by_device() -> None:
    """Where results of tuning are kept in a file, each device has its own."""
    file = _variables("rocm").for_job("/scratch/one").get("PYTORCH_TUNABLEOP_FILENAME", "")
    assert "%d" in file, f"results of tuning are in {file!r}, the same for every device"
    alien = [name for name in _variables("cuda").for_job("/x") if "TUNABLEOP" in name]
    assert not alien, "CUDA builds have no tunable operations"


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_faults_leave_no_dump(runtime: str) -> None:
    """A job says whether a fault writes an image of the GPU's memory: it does not."""
    found = _variables(runtime).for_job("/scratch/one")
    # one is a switch that turns dumps off, the other one that turns them on
    name, off = {
        "cuda": ("CUDA_ENABLE_COREDUMP_ON_EXCEPTION", "0"),
        "rocm": ("HSA_DISABLE_COREDUMP_ON_EXCEPTION", "1"),
    }[runtime]
    assert found.get(name) == off, f"{name} is {found.get(name)}, not {off}: faults leave dumps"


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_allocator_variables(runtime: str) -> None:
    """The allocator's settings are under every name that versions of torch read them from."""
    settings = "max_split_size_mb:512"
    found = _variables(runtime).for_allocator(settings, torch="2.13.0", toolkit="7.1")
    needed = {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}
    needed |= {"PYTORCH_HIP_ALLOC_CONF"} if runtime == "rocm" else set()
    missing = needed - set(found)
    assert not missing, f"{', '.join(sorted(missing))} is not set, which some torch reads first"
    assert set(found.values()) == {settings}, f"the names do not agree: {found}"


EXPANDABLE = "max_split_size_mb:512,expandable_segments:True"


STACKS = {
    "older-toolkit": ("2.13.0+rocm6.4", "6.4.43482-0f2d60242"),
    "older-torch": ("2.10.0+rocm7.0", "7.0.51831"),
    "unknown-toolkit": ("2.13.0", None),
}


@pytest.mark.parametrize("stack", tuple(STACKS))
def test_expandable_segments(stack: str) -> None:
    """Expandable segments are refused for a stack that ignores them, and given to one that has
    them.
    """
    torch, toolkit = STACKS[stack]
    variables = _variables("rocm")

    def give():
        return variables.for_allocator(EXPANDABLE, torch=torch, toolkit=toolkit)

    refused(give, Unsupported, f"expandable segments for torch {torch} and HIP {toolkit}")
    plain = EXPANDABLE.replace("True", "False")
    off = variables.for_allocator(plain, torch=torch, toolkit=toolkit)
    assert set(off.values()) == {plain}, "settings without expandable segments are not kept"
    new = variables.for_allocator(EXPANDABLE, torch="2.11.0+rocm7.0", toolkit="7.0.51831")
    cuda = _variables("cuda").for_allocator(EXPANDABLE, torch="2.6.0", toolkit="12.4")
    assert set(new.values()) == set(cuda.values()) == {EXPANDABLE}, "a stack that has them does not"


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_build_architectures(runtime: str) -> None:
    """Extensions are built for the architectures that are named, in the vendor's own spelling,
    never for those of the machine that builds.
    """
    archs, expected, alien = {
        "cuda": (("sm_90a", "sm_120"), {"TORCH_CUDA_ARCH_LIST": "9.0a;12.0"}, "gfx942"),
        "rocm": (("gfx90a", "gfx942"), {"PYTORCH_ROCM_ARCH": "gfx90a;gfx942"}, "sm_90"),
    }[runtime]
    variables = _variables(runtime)
    found = variables.for_building(archs)
    assert found == expected, f"a build for {', '.join(archs)} has {found}, not {expected}"
    refused(lambda: variables.for_building([]), ValueError, "a build for no architecture")
    refused(lambda: variables.for_building([alien]), ValueError, f"a build for {alien}")

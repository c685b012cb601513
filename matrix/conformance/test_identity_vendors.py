"""Identity: what distinguishes vendors of the same names and numbers, and their variables."""

from __future__ import annotations

import importlib.metadata
import operator
import os

from portagpu.facts.arch import Arch
from portagpu.facts.torchbuild import torch_build
from portagpu.suites.conformance import NotClaimed, case, refused


@case(
    "identity/architectures-have-no-order",
    spec="Architectures are equal or not; none is newer than another, of another vendor least.",
    covers=("Backend.arch",),
    traps=("E01",),
)
def test_architectures_have_no_order(backend):
    for other in (Arch("nvidia", "sm_90", 32), Arch("amd", "gfx90a", 64)):
        for compare in (operator.lt, operator.ge):
            sign = compare.__name__
            refused(lambda c=compare, o=other: c(backend.arch, o), TypeError, f"{sign} of {other}")
    numbers = [name for name in ("major", "minor", "capability") if hasattr(backend.arch, name)]
    assert not numbers, f"an architecture has a {numbers[0]}, which vendors count differently"


@case(
    "identity/build-fits-the-backend",
    spec="The torch that runs is the one whose files were read, and was built for this backend.",
    covers=("Backend.versions", "Plugin.status"),
    traps=("E02", "I01"),
)
def test_build_fits_the_backend(backend, torch):
    build = torch_build()
    stated = "rocm" if torch.version.hip else "cuda" if torch.version.cuda else build.kind
    assert build.kind == stated, f"its files say {build.kind}, torch says {stated}"
    needed = getattr(getattr(backend.plugin, "need", None), "kind", None)
    if needed is not None:
        assert build.kind == needed, f"the {backend.name} backend runs on a {build.kind} build"


@case(
    "identity/libraries-are-the-vendors",
    spec="Versions are under the names of the libraries that run, not under those that torch uses "
    "for every vendor.",
    covers=("Backend.versions",),
    traps=("E11",),
)
def test_libraries_are_the_vendors(backend):
    others = {
        "nvidia": ("hip", "rocm", "rccl", "miopen", "hipblas"),
        "amd": ("cuda", "nccl", "cudnn", "cublas"),
        "cpu": ("cuda", "hip", "nccl", "rccl", "cudnn", "miopen"),
    }
    alien = others.get(backend.arch.vendor, ())
    wrong = [name for name in backend.versions if name.split(" ")[0] in alien]
    assert not wrong, f"a {backend.arch.vendor} device has the version of {', '.join(wrong)}"


@case(
    "identity/dlpack-device",
    spec="DLPack calls the device by its vendor's code, and a tensor passed through it is shared, "
    "not copied.",
    covers=("Backend.device",),
    traps=("G04",),
)
def test_dlpack_device(gpu, torch):
    # dlpack.h: kDLCPU, kDLCUDA, kDLROCM
    codes = {"cpu": 1, "nvidia": 2, "amd": 10}
    expected = codes.get(gpu.arch.vendor)
    if expected is None:
        raise NotClaimed(f"no case knows the code of DLPack for {gpu.arch.vendor}")
    tensor = torch.zeros(4, device=gpu.device)
    kind, index = tensor.__dlpack_device__()
    assert kind == expected, f"DLPack calls a device of {gpu.arch.vendor} {kind}, not {expected}"
    assert index == (gpu.device.index or 0), f"DLPack gives it the index {index}"
    other = torch.from_dlpack(tensor)
    other.fill_(3.0)
    assert tensor.cpu().tolist() == [3.0] * 4, "a tensor that went through DLPack is a copy"


PACKAGES = ("flash_attn", "xformers", "apex", "transformer_engine", "deep_gemm", "cupy", "numba")


@case(
    "identity/packages-of-one-vendor",
    spec="Which packages are here whose meaning depends on the vendor they were built for.",
    outcome="undefined",
    traps=("I02", "I03", "I04"),
)
def test_packages_of_one_vendor(installed, record):
    here = [name for name in PACKAGES if installed(name)]
    record(f"installed: {', '.join(here) or 'none'}")
    if "flash_attn" in here:
        chosen = os.environ.get("FLASH_ATTENTION_TRITON_AMD_ENABLE", "not set")
        version = importlib.metadata.version("flash-attn")
        record(f"flash-attn {version}, FLASH_ATTENTION_TRITON_AMD_ENABLE is {chosen}")


@case(
    "identity/tuners-say-their-state",
    spec="Each tuning back end that is listed has a name of its own, and says whether it is on.",
    covers=("Plugin.tuners",),
)
def test_tuners_say_their_state(backend, torch):
    tuners = backend.plugin.tuners()
    names = [each.name for each in tuners]
    assert len(set(names)) == len(names), f"two tuning back ends have one name: {names}"
    for each in tuners:
        state = each.state()
        assert type(state.on) is bool, f"{each.name} says that on is {state.on!r}"


@case(
    "identity/direct-storage-says-what-proves-it",
    spec="Direct storage that is named has a library, a proof, variables of text and counts.",
    covers=("Plugin.direct_storage",),
)
def test_direct_storage_says_what_proves_it(backend, torch):
    storage = backend.plugin.direct_storage()
    if storage is None:
        return
    assert storage.library.strip(), "direct storage names no library"
    assert storage.proof.strip(), "direct storage says nothing that proves it"
    variables = [*storage.environment, *storage.environment.values()]
    assert all(type(each) is str for each in variables), f"no text: {storage.environment}"
    counts = storage.counters()
    assert all(type(each) is int for each in counts.values()), f"no counts: {counts}"


@case(
    "identity/variables-are-not-set",
    spec="Asking for an environment writes none, and every name and value of it is text.",
    covers=("Plugin.variables",),
)
def test_variables_are_not_set(backend):
    before = dict(os.environ)
    variables = backend.plugin.variables
    found = {**variables.for_debugging(), **variables.for_job("/scratch/one")}
    strange = {name: value for name, value in found.items() if not (name and str(value) == value)}
    assert not strange, f"{strange} is not an environment"
    assert dict(os.environ) == before, "the process's own environment was changed"

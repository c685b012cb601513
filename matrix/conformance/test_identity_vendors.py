"""Identity: what tells two vendors apart where they use the same names and numbers."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import operator
import os

from portagpu.arch import Arch
from portagpu.host import visibility
from portagpu.suite import NotClaimed, case, refused
from portagpu.target import identify, load_target
from portagpu.torchbuild import read_build, torch_build

SAME_NUMBERS = {
    "9.0": ("sm_90", "gfx90a"),
    "10.3": ("sm_103", "gfx1030"),
    "12.0": ("sm_120", "gfx1201"),
}
"""Capability numbers that torch reports for architectures of both vendors, or nearly so."""


@case(
    "identity/architectures-have-no-order",
    spec="Architectures are equal or not; none is newer than another, of another vendor least.",
    covers=("Backend.arch",),
    traps=("E01",),
)
def test_architectures_have_no_order(gpu):
    for other in (Arch("nvidia", "sm_90", 32), Arch("amd", "gfx90a", 64)):
        for compare in (operator.lt, operator.ge):
            sign = compare.__name__
            refused(lambda c=compare, o=other: c(gpu.arch, o), TypeError, f"{sign} of {other}")
    numbers = [name for name in ("major", "minor", "capability") if hasattr(gpu.arch, name)]
    assert not numbers, f"an architecture has a {numbers[0]}, which vendors count differently"


@case(
    "identity/same-numbers-other-hardware",
    spec="Architectures of two vendors with the same capability numbers are told apart, and each "
    "has its own fp8.",
    covers=("Backend.target",),
    traps=("E01", "K13"),
    params={"numbers": tuple(SAME_NUMBERS)},
)
def test_same_numbers_other_hardware(numbers):
    nvidia, amd = SAME_NUMBERS[numbers]
    ours, theirs = identify("nvidia", nvidia, None), identify("amd", amd, None)
    assert ours.arch.vendor == "nvidia", f"{nvidia} is said to be of {ours.arch.vendor}"
    assert theirs.arch.vendor == "amd", f"{amd} is said to be of {theirs.arch.vendor}"
    swapped = [identify("amd", nvidia, None), identify("nvidia", amd, None)]
    assert swapped == [None, None], f"{nvidia} or {amd} is known as the other vendor's"
    # CUDA has OCP fp8 on each of these; gfx90a and gfx1030 have none, gfx1201 has OCP
    flavours = [each.value("matrix.fp8_flavour") for each in (ours, theirs)]
    expected = ["ocp", "ocp" if amd == "gfx1201" else None]
    assert flavours == expected, f"{nvidia} and {amd} run {flavours}, not {expected}"


@case(
    "identity/instructions-are-of-one-vendor",
    spec="No architecture of AMD's has the matrix instructions of sm_90a, whatever its numbers.",
    covers=("Backend.target",),
    traps=("K13", "E01"),
    params={"arch": ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201")},
)
def test_instructions_are_of_one_vendor(arch):
    known = identify("amd", arch, None).value("matrix.instructions") or ()
    alien = [name for name in known if name.startswith(("wgmma", "tcgen05", "mma."))]
    assert not alien, f"{arch} is said to have {', '.join(alien)}"
    hopper = identify("nvidia", "sm_90", None).value("matrix.instructions")
    assert any(name.startswith("wgmma") for name in hopper), "sm_90 is said to have no wgmma"


BUILDS = {
    "rocm": ("__version__ = '2.9.1+rocm6.4'\ncuda = None\nhip = '6.4.43482-0f2d60242'\n", "rocm"),
    "cuda": ("__version__ = '2.9.1+cu128'\ncuda: str = '12.8'\nhip = None\n", "cuda"),
    "replaced": ("__version__ = '2.9.1'\ncuda = '12.8'\nhip = None\nrocm = None\n", "cuda"),
    "cpu": ("__version__ = '2.9.1+cpu'\ncuda = None\nhip = None\n", "cpu"),
    "silent": ("__version__ = '2.9.1'\n", "cpu"),
}


@case(
    "identity/build-is-told-from-its-files",
    spec="For which vendor a torch was built is told by what its files state, where a version is "
    "None or missing too, not by its name.",
    covers=("Backend.versions",),
    traps=("E02", "I01"),
    params={"build": tuple(BUILDS)},
)
def test_build_is_told_from_its_files(tmp_path, build):
    text, expected = BUILDS[build]
    (tmp_path / "version.py").write_text(text, encoding="utf-8")
    found = read_build(tmp_path)
    assert found.problem is None, f"its files cannot be read: {found.problem}"
    assert found.kind == expected, f"a torch of {text!r} is a {found.kind} build, not {expected}"


@case(
    "identity/build-fits-the-backend",
    spec="The torch that runs is the one whose files were read, and was built for this backend.",
    covers=("Backend.versions", "Plugin.status"),
    traps=("E02", "I01"),
)
def test_build_fits_the_backend(gpu, torch):
    build = torch_build()
    stated = "rocm" if torch.version.hip else "cuda" if torch.version.cuda else build.kind
    assert build.kind == stated, f"its files say {build.kind}, torch says {stated}"
    needed = getattr(getattr(gpu.plugin, "need", None), "kind", None)
    if needed is not None:
        assert build.kind == needed, f"the {gpu.name} backend runs on a {build.kind} build"


@case(
    "identity/libraries-are-the-vendors",
    spec="Versions are under the names of the libraries that run, not under those that torch uses "
    "for every vendor.",
    covers=("Backend.versions",),
    traps=("E11",),
)
def test_libraries_are_the_vendors(gpu):
    others = {
        "nvidia": ("hip", "rocm", "rccl", "miopen", "hipblas"),
        "amd": ("cuda", "nccl", "cudnn", "cublas"),
        "cpu": ("cuda", "hip", "nccl", "rccl", "cudnn", "miopen"),
    }
    alien = others.get(gpu.arch.vendor, ())
    wrong = [name for name in gpu.versions if name.split(" ")[0] in alien]
    assert not wrong, f"a {gpu.arch.vendor} device has the version of {', '.join(wrong)}"


@case(
    "identity/disguise-is-told",
    spec="A variable that makes a GPU pose as another architecture is remarked on.",
    covers=("portagpu.backend",),
    traps=("I05",),
)
def test_disguise_is_told():
    from portagpu.diagnostics import remarks
    from portagpu.host import read_host
    from portagpu.host.settings import Settings

    name, value = "HSA_OVERRIDE_GFX_VERSION", "11.0.0"
    seen = visibility({name: value, "HOME": "/root"})
    assert seen == {name: value}, f"of the variables that disguise devices {seen} is seen"
    told = [text for text in remarks(read_host(), [], None, seen, Settings()) if name in text]
    assert told, f"nothing is said of {name}={value}"
    quiet = [text for text in remarks(read_host(), [], None, {}, Settings()) if name in text]
    assert not quiet, f"{name} is remarked on where it is not set"


PRODUCTS = {
    # units x FLOP/clock/unit x clock: CUDA C++ and CDNA3 white papers' own figures
    "amd-mi300x": ("bf16", 304 * 2048 * 2100e6 / 1e12),
    "nvidia-a100-sxm-80gb": ("bf16", 108 * 2048 * 1410e6 / 1e12),
    "nvidia-h100-sxm": ("bf16", 132 * 4096 * 1830e6 / 1e12),
}


@case(
    "identity/peaks-are-the-products",
    spec="A product's peak is its units times their rate times its clock, and has a source; no "
    "placeholder of a vendor's stands for it.",
    outcome="bounded: within 1 % of units x rate x clock",
    covers=("Backend.target",),
    traps=("T05",),
    params={"product": tuple(PRODUCTS)},
)
def test_peaks_are_the_products(product):
    dtype, expected = PRODUCTS[product]
    peak = load_target(product).peak(dtype)
    assert peak is not None, f"{product} has no peak in {dtype}"
    assert peak.source, f"the peak of {product} has no source"
    off = abs(peak.value - expected) / expected
    assert off <= 0.01, f"{product} has {peak.value} {peak.unit}, its units make {expected:.1f}"


@case(
    "identity/unknown-product-has-no-peak",
    spec="A product that is not known has no peak, not even that of its architecture.",
    covers=("Backend.target",),
    traps=("T05",),
)
def test_unknown_product_has_no_peak():
    found = identify("amd", "gfx942", "AMD Instinct MI399Z")
    peaks = {dtype: found.peak(dtype) for dtype in ("bf16", "fp32", "fp64", "fp8")}
    assert not any(peaks.values()), f"a product that nobody knows has the peaks {peaks}"


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
def test_packages_of_one_vendor(record):
    here = [name for name in PACKAGES if importlib.util.find_spec(name) is not None]
    record(f"installed: {', '.join(here) or 'none'}")
    if "flash_attn" in here:
        chosen = os.environ.get("FLASH_ATTENTION_TRITON_AMD_ENABLE", "not set")
        version = importlib.metadata.version("flash-attn")
        record(f"flash-attn {version}, FLASH_ATTENTION_TRITON_AMD_ENABLE is {chosen}")

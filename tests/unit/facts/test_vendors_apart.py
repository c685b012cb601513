"""What distinguishes two vendors where they use the same names and numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from portagpu.base.plugins import OWN_DISTRIBUTION, distribution_of, entry_points
from portagpu.facts.host import visibility
from portagpu.facts.targets import identify, load_target
from portagpu.facts.torchbuild import read_build
from portagpu.facts.vendors.model import GROUP, wrong_field

if TYPE_CHECKING:
    from pathlib import Path

SAME_NUMBERS = {
    "9.0": ("sm_90", "gfx90a"),
    "10.3": ("sm_103", "gfx1030"),
    "12.0": ("sm_120", "gfx1201"),
}
"""Capability numbers that torch reports for architectures of both vendors, or nearly so."""


def test_what_this_distribution_declares_is_right() -> None:
    """A process checks only what others declare."""
    own = [each for each in entry_points(GROUP) if distribution_of(each) == OWN_DISTRIBUTION]
    wrong = {point.name: wrong_field(point.load()) for point in own}
    assert wrong == {"cuda": "", "rocm": ""}


@pytest.mark.parametrize("numbers", tuple(SAME_NUMBERS))
def test_same_numbers_other_hardware(numbers: str) -> None:
    """Architectures of two vendors with the same capability numbers are distinguished, and each has
    its own fp8.
    """
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


@pytest.mark.parametrize("arch", ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201"))
def test_instructions_are_of_one_vendor(arch: str) -> None:
    """No architecture of AMD's has the matrix instructions of sm_90a, whatever its numbers."""
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


@pytest.mark.parametrize("build", tuple(BUILDS))
def test_build_is_distinguished_from_its_files(tmp_path: Path, build: str) -> None:
    """For which vendor a torch was built follows from what its files state, where a version is
    None or missing too, not by its name.
    """
    text, expected = BUILDS[build]
    (tmp_path / "version.py").write_text(text, encoding="utf-8")
    found = read_build(tmp_path)
    assert found.problem is None, f"its files cannot be read: {found.problem}"
    assert found.kind == expected, f"a torch of {text!r} is a {found.kind} build, not {expected}"


def test_disguise_is_reported() -> None:
    """A variable that makes a GPU pose as another architecture is remarked on."""
    from portagpu.checks.diagnostics import machine_diagnostics
    from portagpu.facts.host import read_host
    from portagpu.facts.host.machine import Settings

    name, value = "HSA_OVERRIDE_GFX_VERSION", "11.0.0"
    seen = visibility({name: value, "HOME": "/root"})
    assert seen == {name: value}, f"of the variables that disguise devices {seen} is seen"
    reported = [
        text
        for text in machine_diagnostics(read_host(), [], None, seen, Settings())
        if name in text
    ]
    assert reported, f"nothing is said of {name}={value}"
    quiet = [
        text for text in machine_diagnostics(read_host(), [], None, {}, Settings()) if name in text
    ]
    assert not quiet, f"{name} is remarked on where it is not set"


PRODUCTS = {
    # units x FLOP/clock/unit x clock: CUDA C++ and CDNA3 white papers' own figures
    "amd-mi300x": ("bf16", 304 * 2048 * 2100e6 / 1e12),
    "nvidia-a100-sxm-80gb": ("bf16", 108 * 2048 * 1410e6 / 1e12),
    "nvidia-h100-sxm": ("bf16", 132 * 4096 * 1830e6 / 1e12),
}


@pytest.mark.parametrize("product", tuple(PRODUCTS))
def test_peaks_are_the_products(product: str) -> None:
    """A product's peak is its units times their rate times its clock, and has a source; no
    placeholder of a vendor's stands for it.
    """
    dtype, expected = PRODUCTS[product]
    peak = load_target(product).peak(dtype)
    assert peak is not None, f"{product} has no peak in {dtype}"
    assert peak.source, f"the peak of {product} has no source"
    off = abs(peak.value - expected) / expected
    assert off <= 0.01, f"{product} has {peak.value} {peak.unit}, its units make {expected:.1f}"


def test_unknown_product_has_no_peak() -> None:
    """A product that is not known has no peak, not even that of its architecture."""
    found = identify("amd", "gfx942", "AMD Instinct MI399Z")
    peaks = {dtype: found.peak(dtype) for dtype in ("bf16", "fp32", "fp64", "fp8")}
    assert not any(peaks.values()), f"a product that nobody knows has the peaks {peaks}"

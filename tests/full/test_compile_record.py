"""What was compiled, as it is committed: valid by today's facts and kernels, and shown in docs."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest

from portagpu.base.errors import BundleError
from portagpu.suites.compile.record import check_record, read_record
from tests.unit.suites.test_compile_record import FILE, _row
from tests.unit.suites.test_compile_record import committed as committed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def _without(document: dict[str, Any], arch: str, kernel: str) -> None:
    del document["architectures"][arch][kernel]


def _compiler(document: dict[str, Any], arch: str, kernel: str, stated: str) -> None:
    document["architectures"][arch][kernel]["compiler"] = stated


def _code(document: dict[str, Any], arch: str, kernel: str, **changes: Any) -> None:
    document["architectures"][arch][kernel]["code"].update(changes)


def test_reads_of_the_unit_are_judged_by_the_vendors_packages(committed: dict[str, Any]) -> None:
    """A reader that loads none of them lets a failure stand, and no kernel be left out."""
    kernel = "product_by_unit[float16]"
    for arch in ("sm_90", "gfx942"):
        unread = copy.deepcopy(committed)
        _code(unread, arch, kernel, unit_reads={})
        with pytest.raises(BundleError, match=rf"{arch} .*PASS where .* FAIL: unit reads 0"):
            check_record(unread, by_toolchains=True)
        unread["architectures"][arch][kernel]["verdict"] = "FAIL"
        assert check_record(unread, by_toolchains=True) == check_record(unread) == unread
        skipped = copy.deepcopy(committed)
        _row(skipped, arch, kernel, verdict="SKIP", reason="no document says it")
        assert check_record(skipped) == skipped
        with pytest.raises(BundleError, match="SKIP without having been built"):
            check_record(skipped, by_toolchains=True)
    other = copy.deepcopy(committed)
    other["architectures"]["sm_90"]["matmul[float16]"]["verdict"] = "FAIL"
    with pytest.raises(BundleError, match="FAIL where the facts say PASS"):
        check_record(other)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"day":', '"day": "2020-01-01",\n  "day":'),
        ('"registers":', '"registers": 1, "registers":'),
        ('"registers":', '"registers": NaN, "registers":'),
        ('    "gfx906": {', '    "gfx906": {},\n    "gfx906": {'),
        ("}\n", "}  \n"),
    ],
)
def test_a_record_that_was_written_by_other_means_is_refused(
    tmp_path: Path, old: str, new: str
) -> None:
    text = FILE.read_text("utf-8")
    assert old in text
    (tmp_path / "r.json").write_text(text.replace(old, new, 1), "utf-8")
    with pytest.raises(BundleError, match="is not written as it is made"):
        read_record(tmp_path / "r.json")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d.update(schema="portagpu.result/1"), "schema: must be one of portagpu.com"),
        (lambda d: d.update(host="a"), "host: is not a known key"),
        (lambda d: d.update(day="today"), "day: must be a day such as"),
        (lambda d: d.update(portagpu=None), "portagpu: must be a version"),
        (lambda d: d.update(day="2026-13-45"), "day: must be a day such as"),
        (lambda d: d.update(day="\u0662\u0660\u0662\u0666-11-11"), "day: must be a day such as"),
        (lambda d: d.update(portagpu=""), "portagpu: must be a version"),
        (lambda d: d["architectures"].pop("sm_90"), "not those of the matrix"),
        (lambda d: _without(d, "gfx906", "ballot_rank"), "gfx906: has other kernels"),
        (lambda d: _without(d, "sm_90", "copy[int32]"), "sm_90: has other kernels"),
        (
            lambda d: _code(d, "sm_90", "histogram[i32]", registers=300),
            "is PASS where the facts say FAIL: registers 300",
        ),
        (
            lambda d: _code(d, "gfx942", "matmul[float16]", matrix={}),
            "facts say FAIL: matrix 0 instructions",
        ),
        (
            lambda d: _code(d, "gfx906", "ballot_rank", spills=1),
            "facts say FAIL: spill 1 registers",
        ),
        (lambda d: _code(d, "gfx906", "ballot_rank", threads=None), "facts say UNVERIFIED"),
        (lambda d: _code(d, "gfx906", "ballot_rank", registers="9"), "has no machine code"),
        (lambda d: _code(d, "gfx906", "ballot_rank", registers=-1), "has no machine code"),
        (lambda d: _code(d, "gfx906", "ballot_rank", registers=10**4200), "has no machine code"),
        (lambda d: _code(d, "gfx906", "ballot_rank", spill_unit="bananas"), "has no machine code"),
        (
            lambda d: _code(
                d, "sm_90", "matmul[int8]", matrix={"IGMMA.64x128x32.S8.S8": 3, "A": -2, "B": 2}
            ),
            "has no machine code",
        ),
        (
            lambda d: _code(d, "sm_90", "matmul[int8]", matrix={"A": 10**4299, "B": 9 * 10**4299}),
            "has no machine code",
        ),
        (
            lambda d: _code(d, "gfx942", "softmax[bfloat16]", scalar_spills=None),
            "other measures than there are",
        ),
        (
            lambda d: _code(d, "sm_90", "softmax[bfloat16]", scalar_spills=0),
            "other measures than there are",
        ),
        (
            lambda d: _code(d, "sm_90", "ballot_rank", stack_bytes=None),
            "other measures than there are",
        ),
        (
            lambda d: _code(d, "gfx942", "softmax[bfloat16]", accumulators=200),
            "other measures than there are",
        ),
        (lambda d: _compiler(d, "gfx906", "ballot_rank", "gcc"), "a compiler with its version"),
        (lambda d: _compiler(d, "sm_90", "ballot_rank", "NVRTC 13 | x"), "a compiler with its"),
        (lambda d: _compiler(d, "sm_90", "ballot_rank", "NVRTC 13\n| x |"), "a compiler with its"),
        (lambda d: _compiler(d, "sm_90", "ballot_rank", "NVRTC \ud800"), "a compiler with its"),
        (lambda d: _compiler(d, "sm_90", "ballot_rank", "Triton 3.9.0"), "a compiler with its"),
        (lambda d: _compiler(d, "sm_90", "copy[int32]", "clang 22.1.8"), "a compiler with its"),
        (
            lambda d: _row(d, "sm_70", "triton", verdict=["SKIP"], reason="no"),
            "without having been built",
        ),
        (
            lambda d: _row(d, "gfx906", "ballot_rank", verdict="PASS"),
            "neither code with a compiler",
        ),
        (
            lambda d: _row(d, "gfx906", "ballot_rank", verdict="PASS", reason="yes"),
            "is PASS without having been built",
        ),
        (
            lambda d: _row(d, "sm_90", "copy[int32]", verdict="SKIP", reason="no time"),
            "is SKIP without having been built",
        ),
        (
            lambda d: _row(d, "sm_70", "triton", verdict="SKIP", reason="/home/jdoe/x is missing"),
            r"holds what may identify \(path\)",
        ),
    ],
)
def test_what_does_not_follow_is_refused(
    committed: dict[str, Any], change: Callable[[dict[str, Any]], object], said: str
) -> None:
    document = copy.deepcopy(committed)
    change(document)
    with pytest.raises(BundleError, match=said):
        check_record(document)

"""Exact results are the same with other instructions and numbers of threads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import random

from portagpu.train.exact import judge
from portagpu.train.exact.draws import Draws
from tests.conftest import ROOT
from tests.support.looped import looped
from tests.torch.test_exact_probes import HERE, Reference, changed, torch
from tests.torch.test_exact_probes import gpu as gpu

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Child

SOURCE = """
import os, torch
# OMP_NUM_THREADS gives no more threads than there are cores
torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
from portagpu.train.exact.probes import published_digests
from tests.support.exact_digests import digest_of, published
stated = published_digests().sha256
print([each.name for each in published() if digest_of(each) != stated[each.name]])
"""


MEASURED = """
import os, torch, portagpu
from portagpu.suites.performance import matmul
torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
gpu = portagpu.backend("cpu")
for dtype in ("fp64", "fp32", "tf32", "bf16", "fp16", "int8"):
    for shape in ((64, 96, 128), (65, 67, 1031), (16, 48, 4096)):
        for seed in range(2):
            work = matmul.judged_product(gpu, dtype, *shape, seed)
            matmul.multiply(work)
            wrong = work.sampled or matmul.verify(work, 0)
            assert not wrong, (dtype, shape, seed, wrong)
print("right")
"""
LIMITED = pytest.mark.parametrize(
    "variables",
    [
        {"ONEDNN_MAX_CPU_ISA": "SSE41", "ATEN_CPU_CAPABILITY": "default", "OMP_NUM_THREADS": "1"},
        {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "OMP_NUM_THREADS": "2"},
        {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE", "OMP_NUM_THREADS": "3"},
        {"OMP_NUM_THREADS": "4"},
    ],
    ids=["SSE41", "AVX2", "AVX512", "the machine's own"],
)


@LIMITED
def test_digests_do_not_depend_on_instructions_or_threads(
    variables: dict[str, str], child: Callable[..., Child]
) -> None:
    assert child("-c", SOURCE, path=[ROOT], environment=variables).ok().splitlines() == ["[]"]


@LIMITED
def test_every_element_that_is_measured_is_right_with_any_instructions(
    variables: dict[str, str], child: Callable[..., Child]
) -> None:
    # torch's threads wait for each other in loops, which takes minutes on a busy machine
    ended = child("-c", MEASURED, path=[ROOT], environment=variables, limit_s=600)
    assert ended.ok().strip() == "right"


@looped("probe", HERE)
def test_a_sound_device_passes_with_every_seed(probe, gpu) -> None:
    if refused := probe.refuses(gpu):
        assert "\n" not in refused
        if probe.name == "products/int8[full]":  # CPUs without VNNI
            assert torch.int8 in gpu.precision.saturates
            return
        assert refused.startswith(("the cpu backend", "torch has no product of"))
        assert (
            probe.name.startswith(("products/tf32", "products/float8")) or "float32]" in probe.name
        )
        return
    for seed in (0, 2**63):
        work = probe.make(gpu, Draws(seed), 1)
        for _ in range(2):
            result = work.run()
            assert result.numel() == work.results
            assert work.judge(result) is None, f"seed {seed}"
    assert probe.make(gpu, Draws(3), 2).results >= work.results


def test_every_exact_probe_gives_its_published_digest() -> None:
    from portagpu.train.exact.probes import published_digests
    from tests.support.exact_digests import SEED, digest_of, published

    stated = published_digests()
    assert stated.seed == SEED
    assert {probe.name: digest_of(probe) for probe in published()} == stated.sha256


def test_published_digests_are_those_of_products_in_integers() -> None:
    """numpy multiplies int64 by itself, and its draws are Python's integers."""
    import hashlib

    import numpy as np

    from portagpu.train.exact.probes import published_digests

    stated = published_digests()
    drawn = Reference(stated.seed).integers
    for name, (m, n, k), (left, right), exponents, kind in (
        ("float32[square]", (256, 256, 512), (255, 255), 30, np.float32),
        ("float32[square,kk]", (256, 256, 512), (2047, 31), 30, np.float32),
        ("tf32[odd]", (131, 257, 383), (255, 255), 30, np.float32),
        ("bfloat16[square,float32]", (256, 256, 512), (255, 255), 30, np.float32),
        ("float64[thin]", (8, 1024, 512), (1 << 22, 1 << 22), 100, np.float64),
        ("int8[square]", (256, 256, 512), (127, 64), 0, np.int32),
        ("int8[full]", (256, 256, 512), (127, 127), 0, np.int32),
    ):
        a, b = drawn("a", (m, k), -left, left), drawn("b", (k, n), -right, right)
        exact = (a @ b).astype(kind)
        if exponents:
            rows = drawn("rows", (m, 1), -exponents, exponents)
            exact = np.ldexp(exact, rows + drawn("columns", (1, n), -exponents, exponents))
        found = hashlib.sha256((exact + kind(0)).tobytes()).hexdigest()
        assert found == stated.sha256[f"products/{name}"], name
    for name, left, right, exponents, kind in (
        ("float32[toggling]", 255, 255, 30, np.float32),
        ("int8[toggling]", 127, 63, 0, np.int32),
    ):
        # 0101... on odd diagonals and its complement on even ones
        checkers = np.indices((256, 512)).sum(0) % 2
        a = np.where(checkers, left - left // 3, left // 3) * (2 * drawn("a", (256, 512), 0, 1) - 1)
        b = np.where(checkers.T, right - right // 3, right // 3)
        exact = (a @ (b * (2 * drawn("b", (512, 256), 0, 1) - 1))).astype(kind)
        if exponents:
            rows = drawn("rows", (256, 1), -exponents, exponents)
            exact = np.ldexp(exact, rows + drawn("columns", (1, 256), -exponents, exponents))
        found = hashlib.sha256((exact + kind(0)).tobytes()).hexdigest()
        assert found == stated.sha256[f"products/{name}"], name


@looped("probe", HERE)
def test_one_wrong_element_is_found_with_its_place(probe, gpu) -> None:
    generator = random.Random(probe.name)  # noqa: S311 - places that can be drawn again
    if probe.refuses(gpu):
        return
    work = probe.make(gpu, Draws(5), 1)
    right = work.run()
    assert work.judge(right) is None
    for how in ("lowest bit", "zero", "nan"):
        place = generator.randrange(right.numel())
        result = changed(right, place, how)
        if torch.equal(judge.bit_patterns(result), judge.bit_patterns(right)):
            continue  # it was zero already
        wrong = work.judge(result)
        assert wrong is not None, how
        assert (wrong.count, wrong.places.tolist()) == (1, [place]), how
        assert wrong.expected.tolist() == judge.bit_patterns(right).flatten()[[place]].tolist()
        assert wrong.found.tolist() == judge.bit_patterns(result).flatten()[[place]].tolist()
        assert wrong.shape == tuple(right.shape)

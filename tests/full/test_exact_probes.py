"""Exact results are the same with other instructions and numbers of threads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from portagpu.train.exact.draws import Draws
from tests.conftest import ROOT
from tests.support.looped import looped
from tests.torch.test_exact_probes import HERE, torch
from tests.torch.test_exact_probes import gpu as gpu

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Child

SOURCE = """
import os, torch
# OMP_NUM_THREADS gives no more threads than there are cores
torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
from portagpu.train.exact.published import published_digests
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

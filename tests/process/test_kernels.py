"""The portable kernels: their numbers in Triton's interpreter, their limits, what they refuse."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Final

import pytest

from portagpu.base.errors import Unsupported
from portagpu.facts.targets import architecture_names, load_architecture, load_targets
from portagpu.train.kernels.plan import (
    Config,
    Limits,
    all_configs,
    candidates,
    constants,
    shared_estimate,
)
from tests.support.looped import looped

if TYPE_CHECKING:
    from collections.abc import Callable

    from portagpu.facts.targets import Target
    from tests.conftest import Child

GPUS: Final = [
    target
    for target in (*load_targets().values(), *map(load_architecture, architecture_names()))
    if target.vendor != "cpu"
]
# by the rows of a, the columns of b, bytes of depth and stages: the stages of both operands, or
# where that is more, 4 B for each element of the output
SHARED_BYTES: Final = {
    (128, 128, 64, 2): 128 * 128 * 4,
    (128, 256, 128, 3): 3 * (128 + 256) * 128,
    (128, 128, 128, 3): 3 * (128 + 128) * 128,
    (128, 128, 128, 2): 2 * (128 + 128) * 128,
    (128, 64, 64, 3): 3 * (128 + 64) * 64,
    (64, 128, 64, 2): 64 * 128 * 4,
    (32, 64, 128, 2): 2 * (32 + 64) * 128,
    (64, 64, 64, 2): 64 * 64 * 4,
    (32, 64, 64, 2): 2 * (32 + 64) * 64,
}
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="triton is not installed: pip install 'portagpu[compile]'",
)


@pytest.mark.torch
def test_cpu_is_refused_in_one_line() -> None:
    torch = pytest.importorskip("torch")
    from portagpu.train import kernels

    x = torch.ones(2, 2)
    for call in (
        lambda: kernels.copy(x),
        lambda: kernels.triad(x, x, 1.0),
        lambda: kernels.sum(x),
        lambda: kernels.softmax(x),
        lambda: kernels.rms_norm(x, x[0]),
        lambda: kernels.matmul(x.half(), x.half()),
        lambda: kernels.quantize_fp8(x),
        lambda: kernels.adamw_step(x, x, x, x, step=1),
    ):
        with pytest.raises(Unsupported, match=r"Triton does not run|needs triton") as caught:
            call()
        assert "\n" not in str(caught.value)


@pytest.mark.torch
@pytest.mark.parametrize("decay", [0.0, 0.125])
def test_reference_of_adamw_is_torchs_in_float64(decay: float) -> None:
    """Settings that fp32 holds exactly, so that both compute with the same numbers."""
    torch = pytest.importorskip("torch")
    from portagpu.train.kernels import reference

    draw = torch.Generator().manual_seed(1)
    settings = {"lr": 2.0**-7, "betas": (0.875, 1 - 2.0**-10), "eps": 2.0**-20}
    theirs = torch.randn(100, generator=draw, dtype=torch.float64).requires_grad_()
    optimiser = torch.optim.AdamW([theirs], weight_decay=decay, foreach=False, **settings)
    ours = (theirs.detach().clone(), *torch.zeros(2, 100, dtype=torch.float64))
    for step in range(1, 11):
        theirs.grad = torch.randn(100, generator=draw, dtype=torch.float64)
        optimiser.step()
        ours = reference.adamw_step(
            ours[0], theirs.grad, *ours[1:], step=step, weight_decay=decay, **settings
        )
    state = optimiser.state[theirs]
    for found, right in zip(ours, (theirs, state["exp_avg"], state["exp_avg_sq"]), strict=True):
        assert torch.allclose(found, right, rtol=1e-12, atol=1e-14)


@pytest.mark.torch
def test_missing_triton_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from portagpu.train import kernels

    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "triton" else found(name)
    )
    with pytest.raises(Unsupported, match=r"pip install .*\[compile\]"):
        kernels.softmax(torch.ones(2, 2))


@needs_triton
@pytest.mark.torch
def test_wrong_arguments_are_named(child: Callable[..., Child]) -> None:
    pytest.importorskip("torch")
    code = """
import torch
from portagpu.train import kernels as k
from portagpu.base.errors import Unsupported
x = torch.ones(4, 4)
h = x.half()
for call in (
    lambda: k.copy(x.T), lambda: k.triad(x, x[0], 1.0), lambda: k.triad(x.double(), x, 1.0),
    lambda: k.sum(x.to(torch.complex64)), lambda: k.softmax(torch.tensor(1.0)),
    lambda: k.softmax(x.int()), lambda: k.rms_norm(x, x), lambda: k.matmul(x, x),
    lambda: k.matmul(h, h[:3]), lambda: k.matmul(h, h.bfloat16()),
    lambda: k.quantize_fp8(x, torch.float16), lambda: k.copy(x.to('meta').T),
    lambda: k.sum(torch._neg_view(x)), lambda: k.softmax(torch._neg_view(x)),
    lambda: k.triad(x, torch._neg_view(x), 1.0), lambda: k.matmul(h, torch._neg_view(h)),
    lambda: k.copy(x.to(torch.complex64).conj()),
    lambda: k.adamw_step(x, h, x, x, step=1), lambda: k.adamw_step(x, x[0], x, x, step=1),
    lambda: k.adamw_step(x, x, x[0], x[0], step=1), lambda: k.adamw_step(x, x, x, x[0], step=1),
    lambda: k.adamw_step(h, h, h, h, step=1), lambda: k.adamw_step(x, x.T, x, x, step=1),
    lambda: k.adamw_step(x.double(), x.double(), x, x, step=1),
    *(
        lambda wrong=wrong: k.adamw_step(x, x, x, x, **{'step': 1, **wrong})
        for wrong in (
            {'step': 0}, {'step': 1.0}, {'step': None}, {'betas': (0.9, 1 - 1e-9)},
            {'betas': (-0.1, 0.9)}, {'betas': (0.9, float('nan'))}, {'lr': -1.0},
            {'lr': float('inf')}, {'eps': -1e-8}, {'weight_decay': float('nan')},
        )
    ),
):
    try:
        call()
    except ValueError as error:
        assert str(error) and chr(10) not in str(error), error
    else:
        raise SystemExit('not refused')
for call in (lambda: k.softmax([1.0]), lambda: k.sum(None), lambda: k.copy(x.numpy())):
    try:
        call()
    except TypeError as error:
        assert 'kernels take tensors' in str(error), error
    else:
        raise SystemExit('not refused')
for call in (lambda: k.softmax(x.requires_grad_()), lambda: k.quantize_fp8(x.detach())):
    try:
        call()
    except Unsupported as error:
        print(error)
"""
    said = child("-c", code, environment={"TRITON_INTERPRET": "1"}).ok()
    assert "no gradient" in said
    assert "name a dtype" in said


def test_importing_kernels_imports_neither_torch_nor_triton(child: Callable[..., Child]) -> None:
    code = (
        "import sys, portagpu.train.kernels; print({'torch', 'triton', 'numpy'} & {*sys.modules})"
    )
    assert child("-c", code).ok().strip() == "set()"


@looped("kind", ["stream", "sum", "row", "matmul", "matrix by unit", "vector by unit"])
@looped("target", GPUS)
def test_configs_fit_every_target(kind: str, target: Target) -> None:
    """All that fit and no other, on the products, the architectures, and on parts of them."""
    whole = Limits.of_target(target)
    assert whole.max_threads == 1024
    assert whole.shared_bytes is not None
    assert candidates(kind, whole), "there is nothing to run"
    for part in (1, 2, 4, 8):
        limits = Limits(whole.warp_size, whole.max_threads // part, whole.shared_bytes // part)
        assert candidates(kind, limits) == tuple(
            config
            for config in all_configs(kind)
            if config.threads <= whole.max_threads // part
            and shared_by_hand(config) <= whole.shared_bytes // part
        )
    for config in all_configs(kind):
        warps = config.warps(whole.warp_size)
        assert warps & (warps - 1) == 0
        assert warps * whole.warp_size == config.threads


def shared_by_hand(config: Config) -> int:
    """Shared memory, B: of a product by the table, of the others a word of 4 B a thread."""
    sizes = dict(config.blocks)
    if "BLOCK" in sizes:
        return config.threads * 4
    tile = (sizes["BLOCK_M"], sizes["BLOCK_N"], sizes["DEPTH_BYTES"])
    return SHARED_BYTES[*tile, config.stages]


def test_every_gpu_of_the_matrix_is_held_against_its_limits() -> None:
    assert len(GPUS) >= 33 + 17, "products or architectures are missing"
    assert {t.arch.warp_size for t in GPUS} == {32, 64}


def test_threads_not_warps_are_limited() -> None:
    """1024 threads are 16 waves of 64 and 32 warps of 32; what exceeds the limit is left out."""
    wave = candidates("stream", Limits(64, 1024, 65536))
    warp = candidates("stream", Limits(32, 1024, 65536))
    assert max(config.warps(64) for config in wave) == 16
    assert max(config.warps(32) for config in warp) == 32
    assert max(config.threads for config in candidates("stream", Limits(64, 512, 65536))) == 512


def test_small_shared_memory_leaves_out_deep_pipelines() -> None:
    """64 KiB hold 2 stages of (128 + 128) rows of 128 B and no third: 98304 B."""
    deep = Config(
        (("BLOCK_M", 128), ("BLOCK_N", 128), ("DEPTH_BYTES", 128), ("GROUP_M", 8)), 256, 3
    )
    assert shared_estimate(deep) == 98304
    assert deep in candidates("matmul", Limits(32, 1024, 101376))
    assert deep not in candidates("matmul", Limits(64, 1024, 65536))


def test_unknown_shared_memory_takes_the_smallest_product() -> None:
    (only,) = candidates("matmul", Limits(64, 1024, None))
    assert shared_estimate(only) == 16384


@pytest.mark.parametrize(("element_bytes", "depth"), [(1, 64), (2, 32)])
def test_depth_of_a_product_is_in_bytes(element_bytes: int, depth: int) -> None:
    config = candidates("matmul", Limits(32, 1024, 65536))[0]
    assert constants(config, element_bytes)["BLOCK_K"] == depth
    for each in candidates("matmul", Limits(32, 1024, 232448)):
        sizes = constants(each, element_bytes)
        # below 16 one compiler refuses and the other leaves the matrix unit
        assert min(sizes["BLOCK_M"], sizes["BLOCK_N"], sizes["BLOCK_K"]) >= 16

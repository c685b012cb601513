"""The portable kernels: their numbers in Triton's interpreter, their limits, what they refuse."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Final

import pytest

from portagpu.errors import Unsupported
from portagpu.kernels.plan import (
    Config,
    Limits,
    all_configs,
    candidates,
    constants,
    shared_estimate,
)
from portagpu.target import architecture_names, load_architecture, load_targets
from tests.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

    from portagpu.target import Target
    from tests.conftest import Child

NUMERICS: Final = ROOT / "tests/support/kernel_numerics.py"
LIMIT_S: Final = 240
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
}
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="triton is not installed: pip install 'portagpu[compile]'",
)


@pytest.fixture(scope="module")
def numerics() -> dict[str, str]:
    """What every case of kernel_numerics.py found, by case."""
    pytest.importorskip("torch")
    import os

    ended = subprocess.run(
        [sys.executable, str(NUMERICS)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    lines = [json.loads(line) for line in ended.stdout.splitlines()]
    return {line["case"]: line["problem"] for line in lines}


@needs_triton
@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(
    ("check", "least"),
    [
        ("copy", 100),
        ("triad", 30),
        ("sum", 70),
        ("softmax", 60),
        ("rms_norm", 30),
        ("adamw_step", 120),
        ("adamw_step-as-torch", 8),
        ("adamw_step-and-autograd", 1),
        ("not-finite", 7),
        ("quantize_fp8", 120),
        ("quantize_fp8-fp32", 4),
        ("matmul", 80),
    ],
)
def test_kernel_agrees_with_float64(numerics: dict[str, str], check: str, least: int) -> None:
    mine = {case: what for case, what in numerics.items() if case.startswith(f"{check}[")}
    if "without-fnuz" in numerics and check in ("quantize_fp8", "matmul"):
        least //= 2
    assert len(mine) >= least, "cases are missing"
    wrong = {case: what for case, what in mine.items() if what}
    assert not wrong, wrong


@pytest.mark.torch
def test_cpu_is_refused_in_one_line() -> None:
    torch = pytest.importorskip("torch")
    from portagpu import kernels

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
        with pytest.raises(Unsupported, match=r"Triton runs nothing|need triton") as caught:
            call()
        assert "\n" not in str(caught.value)


@pytest.mark.torch
@pytest.mark.parametrize("decay", [0.0, 0.125])
def test_reference_of_adamw_is_torchs_in_float64(decay: float) -> None:
    """Settings that fp32 holds exactly, so that both compute with the same numbers."""
    torch = pytest.importorskip("torch")
    from portagpu.kernels import reference

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
    from portagpu import kernels

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
from portagpu import kernels as k
from portagpu.errors import Unsupported
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
        assert 'is no torch.Tensor' in str(error), error
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
    code = "import sys, portagpu.kernels; print({'torch', 'triton', 'numpy'} & {*sys.modules})"
    assert child("-c", code).ok().strip() == "set()"


@pytest.mark.parametrize("kind", ["stream", "sum", "row", "matmul"])
@pytest.mark.parametrize("target", GPUS, ids=lambda t: t.id)
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


BUILD: Final = """
import json
from types import SimpleNamespace
from portagpu.machine_code.toolchain import MachineCode
from portagpu.discovery import toolchain_for
from portagpu.compile.worker import build
from portagpu.kernels.catalogue import variants_by_id
from portagpu.kernels.plan import OPTIN, Limits, candidates, shared_estimate
from portagpu.target import architecture_names, load_architecture
product = variants_by_id()["matmul[float16]"]
# nothing of the code is read
unread = MachineCode(
    wave_size=0, threads=None, registers=0, spills=0, spill_unit="B", shared_bytes=0, matrix={}
)
for target in map(load_architecture, architecture_names()):
    if "triton" in (target.value("compile.routes") or ()):
        _, tools = toolchain_for(target.vendor)
        tools = SimpleNamespace(triton_target=tools.triton_target, inspect=lambda *_, **__: unread)
        config = max(candidates("matmul", Limits.of_target(target)), key=shared_estimate)
        code = build(product, config, tools, target.arch.name, target.arch.warp_size)
        print(json.dumps([target.id, code.shared_bytes, target.value(OPTIN)]))
"""


@needs_triton
@pytest.mark.slow
def test_largest_product_that_fits_is_built_to_fit(child: Callable[..., Child]) -> None:
    """What the compiler asks for, where the estimate has chosen: it knows nothing of padding."""
    said = child("-c", BUILD, environment={"TRITON_CACHE_DIR": "built"}).ok()
    found = [json.loads(line) for line in said.splitlines()]
    assert len(found) >= 13, "architectures are missing"
    assert not [each for each in found if not 0 < each[1] <= each[2]]


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

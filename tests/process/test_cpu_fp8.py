"""fp8 on a CPU is stated as it runs, whatever the CPU and whatever oneDNN may use of it.

torch asks its own copy of cpuinfo whether there is AMX-INT8, and oneDNN asks the processor. A child
process that sets torch's copy (c10 exports it) takes the way of a CPU with AMX on any x86-64, where
oneDNN then runs what this processor and ``ONEDNN_MAX_CPU_ISA`` leave it.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from portagpu.devices.precision import Support
from portagpu.devices.precision.formats import FLAVOURS, FP8_NAMES
from portagpu.runs.results.run import Verdict
from portagpu.suites.performance.device import _support
from portagpu_cpu import identity
from tests.support import suite_harness

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import Child

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("forked")]

CASES = (
    "precision/support-as-it-runs",
    "precision/arithmetic-works",
    "precision/storage-holds",
    "precision/storage-only-does-not-sum",
    "precision/support-is-a-level",
)


@pytest.fixture
def answers() -> Iterator[None]:
    """Answers that were found out are forgotten before the test, and those of the test after it."""
    identity._works_with.cache_clear()
    yield
    identity._works_with.cache_clear()


def multiply_as(refused: tuple[str, ...]) -> Callable[..., torch.Tensor]:
    """``torch._scaled_mm`` of a CPU that refuses these formats and multiplies the others."""

    def scaled_mm(left, right, left_scale, right_scale, out_dtype):
        if str(left.dtype).removeprefix("torch.") in refused:
            raise RuntimeError("itensor_view_from_dense expects float/bfloat16/half/int8/fp8")
        product = (left.float() * left_scale) @ (right.float() * right_scale)
        return product.to(out_dtype)

    return scaled_mm


@pytest.mark.usefixtures("answers")
@pytest.mark.parametrize("refused", [(), FLAVOURS["fnuz"], FP8_NAMES], ids=["none", "fnuz", "all"])
def test_what_torch_refuses_is_stored(monkeypatch: pytest.MonkeyPatch, refused) -> None:
    """CPUs without AMX, those with it, and those with it where oneDNN may not use it."""
    monkeypatch.setattr(torch, "_scaled_mm", multiply_as(refused))
    gpu = suite_harness.open_device(monkeypatch)
    for name in FP8_NAMES:
        expected = Support.STORAGE if name in refused else Support.EMULATED
        assert gpu.precision.support(getattr(torch, name)) is expected, name
        for case in CASES:
            result = suite_harness.run(gpu, f"{case}[{name}]")
            assert result.verdict in (Verdict.PASS, Verdict.SKIP), f"{result.id}: {result.reason}"


@pytest.mark.usefixtures("answers")
@pytest.mark.parametrize("refused", [(), FLAVOURS["fnuz"], FP8_NAMES], ids=["none", "fnuz", "all"])
def test_what_bench_says_of_fp8_is_the_same_on_every_cpu(monkeypatch, refused) -> None:
    monkeypatch.setattr(torch, "_scaled_mm", multiply_as(refused))
    support = _support(suite_harness.open_device(monkeypatch))
    assert support["fp8"] == "storage", "bench measures fp8 of the device's own alone"


@pytest.mark.usefixtures("answers")
def test_a_product_that_is_wrong_is_not_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    good = multiply_as(())
    monkeypatch.setattr(torch, "_scaled_mm", lambda *given, **named: -good(*given, **named))
    assert identity.fp8_support(torch.float8_e5m2) is Support.STORAGE


@pytest.mark.usefixtures("answers")
def test_nothing_is_multiplied_before_fp8_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    good = multiply_as(())
    monkeypatch.setattr(
        torch, "_scaled_mm", lambda *given, **named: asked.append(1) or good(*given, **named)
    )
    gpu = suite_harness.open_device(monkeypatch)
    gpu.precision.training()
    assert gpu.precision.support(torch.float32) is Support.NATIVE
    assert torch.quint4x2 not in gpu.precision.table
    assert not asked, "a product ran before it was needed"
    for _ in range(3):
        gpu.precision.support(torch.float8_e4m3fn)
    assert len(asked) == 1, f"one question ran {len(asked)} products"


@pytest.mark.usefixtures("answers")
def test_an_error_of_another_kind_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: object, **__: object) -> None:
        raise MemoryError("no memory")

    with monkeypatch.context() as broken:
        broken.setattr(torch, "_scaled_mm", exhausted)
        with pytest.raises(MemoryError):
            identity.fp8_support(torch.float8_e5m2)
    monkeypatch.setattr(torch, "_scaled_mm", multiply_as(()))
    assert identity.fp8_support(torch.float8_e5m2) is Support.EMULATED, "the error was remembered"


@pytest.mark.usefixtures("answers")
def test_the_modes_of_the_caller_change_nothing() -> None:
    plain = [identity.fp8_support(dtype) for dtype in identity.FP8]
    for mode in (FakeTensorMode(), torch.device("meta"), torch.inference_mode()):
        identity._works_with.cache_clear()
        with mode:
            assert [identity.fp8_support(dtype) for dtype in identity.FP8] == plain, mode


@pytest.mark.usefixtures("answers")
def test_compiled_code_asks_when_it_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = suite_harness.open_device(monkeypatch)

    def step(x: torch.Tensor) -> torch.Tensor:
        for dtype in refused, taken:
            level = gpu.precision.support(dtype)
            x = x * 3 + (1 if level is Support.EMULATED else 2 if level == "storage" else 0)
        return x

    refused, taken = torch.float8_e4m3fnuz, torch.float8_e4m3fn
    monkeypatch.setattr(torch, "_scaled_mm", multiply_as(FLAVOURS["fnuz"]))
    compiled = torch.compile(step, backend="eager", fullgraph=True)
    assert compiled(torch.zeros(2)).tolist() == [2 * 3 + 1] * 2


def test_a_process_that_asked_can_fork(child: Callable[..., Child]) -> None:
    """OpenMP's threads are not there in a forked process, which waits for them for ever."""
    code = """
        import os, time, torch
        from portagpu_cpu import identity
        before = os.listdir("/proc/self/task")
        asked = [identity.fp8_support(dtype) for dtype in identity.FP8]
        end = time.monotonic() + 20
        while os.listdir("/proc/self/task") != before:
            assert time.monotonic() < end, "the question left threads"
            time.sleep(0.01)
        process = os.fork()
        if not process:
            identity._works_with.cache_clear()
            again = [identity.fp8_support(dtype) for dtype in identity.FP8]
            torch.ones(2048, 2048) @ torch.ones(2048, 2048)
            os._exit(0 if again == asked else 1)
        assert os.waitpid(process, 0)[1] == 0, "the forked process found another answer"
    """
    child("-c", textwrap.dedent(code), limit_s=60).ok()

"""What a training loop should use on devices that are not here, and errors of exhausted memory."""

from __future__ import annotations

import errno
import os

import pytest

torch = pytest.importorskip("torch")

import portagpu as pg
from portagpu.base.errors import Unsupported
from portagpu.devices.precision import Arithmetic, Precision, Recipe, Support, format_of
from portagpu.devices.precision.formats import FP8_NAMES
from portagpu.devices.precision.model import dtype_support, precision_from_facts
from portagpu.facts.targets import load_target

pytestmark = pytest.mark.torch

BF16, FP16 = torch.bfloat16, torch.float16

# target: autocast, scaler, alignment, what tf32 becomes, fp8 (e4m3) and recipes; by hand from the
# vendors' documents
EXPECTED = {
    "nvidia-v100-sxm2": (FP16, True, 16, "ieee", None, ""),
    "nvidia-t4": (FP16, True, 16, "ieee", None, ""),
    "nvidia-a100-sxm-80gb": (BF16, False, 16, "tf32", None, ""),
    "nvidia-l4": (BF16, False, 16, "tf32", "float8_e4m3fn", "row tensor"),
    "nvidia-h200-sxm": (BF16, False, 16, "tf32", "float8_e4m3fn", "row tensor"),
    "nvidia-b200-sxm": (BF16, False, 16, "tf32", "float8_e4m3fn", "mx row tensor"),
    "nvidia-rtx5090": (BF16, False, 16, "tf32", "float8_e4m3fn", "row tensor"),
    "amd-mi50": (FP16, True, None, "ieee", None, ""),
    "amd-mi210": (BF16, False, 32, "ieee", None, ""),
    "amd-mi300x": (BF16, False, 32, "tf32", "float8_e4m3fnuz", "row tensor"),
    "amd-mi355x": (BF16, False, 32, "bf16x3", "float8_e4m3fn", "row tensor"),
    "amd-w7900": (BF16, False, 16, "ieee", None, ""),
    "amd-rx9070xt": (BF16, False, 16, "ieee", "float8_e4m3fn", "tensor"),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_target_s_facts_give_its_precision(name) -> None:
    autocast, scaler, alignment, tf32, e4m3, recipes = EXPECTED[name]
    precision = precision_from_facts(load_target(name))
    choice = precision.training()
    assert (choice.autocast, choice.scaler, choice.alignment) == (autocast, scaler, alignment)
    assert precision.tf32 == tf32, f"tf32 becomes {precision.tf32}"
    found = None if precision.fp8 is None else precision.fp8.e4m3
    assert found is (None if e4m3 is None else getattr(torch, e4m3)), f"fp8 is {found}"
    assert precision.recipes == {Recipe(each) for each in recipes.split()}, f"{precision.recipes}"


def test_only_mi200_takes_subnormal_halves_for_zero() -> None:
    assert precision_from_facts(load_target("amd-mi210")).flushes == {BF16, FP16}
    for name in ("amd-mi300x", "nvidia-h200-sxm"):
        assert precision_from_facts(load_target(name)).flushes == frozenset()


def test_an_unknown_device_gets_float32() -> None:
    precision = precision_from_facts(None, {"SOME_VARIABLE": "1"})
    choice = precision.training()
    assert (choice.autocast, choice.scaler, choice.alignment) == (None, False, None)
    assert choice.deterministic.env == {"SOME_VARIABLE": "1"}
    assert precision.tf32 is Arithmetic.IEEE
    assert precision.recipes == frozenset()


def test_a_dtype_that_is_only_stored_is_unsupported() -> None:
    precision = Precision({FP16: Support.STORAGE, torch.float32: Support.NATIVE})
    with pytest.raises(Unsupported, match=r"does not compute in torch\.float16"):
        precision.training(FP16)
    with pytest.raises(ValueError, match="autocast takes"):
        precision.training(torch.float64)


def test_emulated_halves_are_used_only_when_asked_for() -> None:
    precision = Precision({FP16: Support.EMULATED, torch.float32: Support.NATIVE})
    assert precision.training().autocast is None
    assert precision.training(FP16).scaler is True


@pytest.fixture
def deterministic_off():
    yield
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.benchmark = False


@pytest.mark.usefixtures("deterministic_off")
def test_determinism_is_refused_without_its_variables_and_set_with_them(monkeypatch) -> None:
    env = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    settings = precision_from_facts(None, env).training().deterministic
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    with pytest.raises(RuntimeError, match="CUBLAS_WORKSPACE_CONFIG=:4096:8"):
        settings.enable()
    assert not torch.are_deterministic_algorithms_enabled()
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ, "the environment was written"
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cudnn.benchmark = True
    settings.enable()
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.backends.cudnn.benchmark is False


@pytest.mark.parametrize(
    ("stated", "dtype", "found", "said"),
    [
        (Support.NATIVE, torch.float32, Support.NATIVE, ""),
        (Support.EMULATED, torch.float32, Support.EMULATED, ""),
        (Support.STORAGE, torch.float32, Support.EMULATED, "stated as storage and ran as emulated"),
        (Support.NONE, torch.float32, Support.EMULATED, "stated as none and ran as emulated"),
        (Support.NATIVE, torch.float8_e8m0fnu, Support.STORAGE, "as native and ran as storage"),
        (Support.STORAGE, torch.float8_e8m0fnu, Support.STORAGE, ""),
        (Support.STORAGE, torch.float4_e2m1fn_x2, Support.NONE, "as storage and ran as none"),
    ],
)
def test_running_a_dtype_finds_what_the_facts_have_wrong(stated, dtype, found, said) -> None:
    report = dtype_support(Precision({dtype: stated}), dtype, torch.device("cpu"), probe=True)
    assert report.found is found, f"{dtype} ran as {report.found}: {report.reason}"
    assert said in report.disagreement and bool(said) is bool(report.disagreement)


def of_cublaslt(left, right, scale_left, scale_right, *, out_dtype):
    """What ScaledBlas.cpp checks of two dtypes (torch 2.11 and 2.13, not in a build for ROCm)."""
    if left.dtype is right.dtype is torch.float8_e5m2:
        raise ValueError("Multiplication of two Float8_e5m2 matrices is not supported")
    return (left.float() @ right.float()).to(out_dtype)


@pytest.mark.parametrize("name", FP8_NAMES)
def test_fp8_that_a_library_multiplies_in_pairs_runs(monkeypatch, name) -> None:
    monkeypatch.setattr(torch, "_scaled_mm", of_cublaslt)
    dtype = getattr(torch, name)
    report = dtype_support(
        Precision({dtype: Support.NATIVE}), dtype, torch.device("cpu"), probe=True
    )
    assert not report.disagreement, report.disagreement


def test_a_product_that_is_refused_with_a_value_error_is_storage(monkeypatch) -> None:
    def refuse(*operands, **options):
        raise ValueError("Multiplication of two Float8_e5m2 matrices is not supported")

    monkeypatch.setattr(torch, "_scaled_mm", refuse)
    dtype = torch.float8_e5m2
    report = dtype_support(
        Precision({dtype: Support.NATIVE}), dtype, torch.device("cpu"), probe=True
    )
    assert report.found is Support.STORAGE, "what raises is not arithmetic"
    assert "two Float8_e5m2 matrices" in report.disagreement


OUT_OF_MEMORY = [
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB",
    "HIP out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 191.98 GiB",
    "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
    "HIP error: out of memory",
    "CUDA driver error: out of memory",
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory",
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`",
    "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    "miopenStatusAllocFailed",
    "ncclUnhandledCudaError: Call to CUDA failed.\nLast error:\nCuda failure 2 'out of memory'",
    "Failed to CUDA malloc 4194304 bytes",
    "Failed to CUDA calloc 536870912 bytes",
    "Triton Error [CUDA]: out of memory",
    "Triton Error [HIP]:  Code: 2, Messsage: out of memory",
    "unable to mmap 1073741824 bytes from file </model>: Cannot allocate memory (12)",
]
OTHER_ERRORS = [
    RuntimeError("CUDA error: an illegal memory access was encountered"),
    RuntimeError("HIP error: the operation cannot be performed in the present state"),
    RuntimeError("CUDA error: too many resources requested for launch"),
    RuntimeError("out of resource: shared memory, Required: 131072, Hardware limit: 101376"),
    RuntimeError("Error while creating shared memory segment /dev/shm/nccl-1 (No space left)"),
    RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED."),
    RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"),
    RuntimeError("unable to mmap 8 bytes from file </model>: No such device (19)"),
    RuntimeError("parse error: out of memory address range"),
    OSError(errno.ENOSPC, "No space left on device"),
    ValueError("CUDA out of memory"),
    KeyboardInterrupt(),
]


@pytest.mark.parametrize("text", OUT_OF_MEMORY, ids=lambda text: text[:40])
def test_memory_errors_of_every_vendor_are_known(text) -> None:
    assert pg.is_oom(RuntimeError(text)) is True


@pytest.mark.parametrize("error", OTHER_ERRORS, ids=lambda error: str(error)[:40])
def test_other_errors_are_none(error) -> None:
    assert pg.is_oom(error) is False


def test_typed_memory_errors_are_known_whatever_they_say() -> None:
    assert pg.is_oom(torch.OutOfMemoryError("no text at all")) is True
    assert pg.is_oom(MemoryError()) is True
    assert pg.is_oom(OSError(errno.ENOMEM, "Cannot allocate memory")) is True


def test_the_type_that_gpus_raise_is_torchs_own() -> None:
    assert pg.OutOfMemoryError is torch.OutOfMemoryError
    with pytest.raises(pg.OutOfMemoryError):
        raise torch.OutOfMemoryError


def test_an_error_is_known_by_what_caused_it() -> None:
    step = ValueError("step 7 failed")
    step.__cause__ = RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
    assert pg.is_oom(step) is True
    step.__cause__ = KeyError("loss")
    step.__cause__.__cause__ = step
    assert pg.is_oom(step) is False, "causes in a circle"


def test_an_allocation_that_fails_here_is_known() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 55, dtype=torch.uint8)
    assert pg.is_oom(caught.value) is True, f"the text was {caught.value}"


def test_torch_errs_in_one_eps_and_the_table_does_not() -> None:
    """torch 2.13 gives float8_e5m2fnuz the eps of e4m3; the day it does not, this says so."""
    assert torch.finfo(torch.float8_e5m2fnuz).eps == 0.125
    assert format_of(torch.float8_e5m2fnuz).eps == 0.25

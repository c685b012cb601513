"""Precision: mixed precision, gradients, and what a training loop is to use."""

from __future__ import annotations

import os

import portagpu as pg
from portagpu.devices.contract import Capability
from portagpu.suites.conformance import NotClaimed, case, refused
from portagpu.suites.conformance.closeness import (
    ROUNDOFF,
    arithmetic_of,
    bits_kept,
    check_near,
    claimed_support,
)

AUTOCAST = Capability.AUTOCAST
CALLS = ("method", "function")


def _half_dtype(gpu, torch):
    """The 16-bit dtype for autocast: bfloat16 if the device computes in it, else float16."""
    for dtype in ("bfloat16", "float16"):
        if claimed_support(gpu, dtype) in ("native", "emulated"):
            return getattr(torch, dtype)
    raise NotClaimed(f"{gpu.name} computes in no format of 16 bits")


@case(
    "precision/bf16-support",
    spec="is_bf16_supported() says what the table says, for hardware and with emulation.",
    covers=("Backend.is_bf16_supported", "portagpu.is_bf16_supported"),
    traps=("P14",),
    params={"call": CALLS},
    smoke=True,
)
def test_bf16_support(backend, call):
    ask = (backend if call == "method" else pg).is_bf16_supported
    level = claimed_support(backend, "bfloat16")
    hardware, any_way = ask(including_emulation=False), ask()
    assert hardware is (level == "native"), f"bfloat16 is {level}, hardware support {hardware}"
    assert any_way is (level in ("native", "emulated")), f"bfloat16 is {level}, but {any_way}"


@case(
    "precision/training-follows-float64",
    spec="Twenty steps of training in float32 follow the same steps in float64 on the host.",
    outcome="bounded: 1e-4 relative on the loss",
    smoke=True,
)
def test_training_follows_float64(gpu, torch):
    def losses(dtype, device):
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)
        ).to(device=device, dtype=dtype)
        inputs = torch.randn(64, 8, generator=torch.Generator().manual_seed(1)).to(device, dtype)
        wanted = inputs.sum(1, keepdim=True)
        found = []
        for _ in range(20):
            model.zero_grad()
            loss = torch.nn.functional.mse_loss(model(inputs), wanted)
            loss.backward()
            with torch.no_grad():
                # as SGD does; torch's own imports its compiler, too long for the smoke selection
                for each in model.parameters():
                    each.add_(each.grad, alpha=-0.05)
            found.append(loss.item())
        return found

    reference, here = losses(torch.float64, "cpu"), losses(torch.float32, gpu.device)
    assert reference[-1] < reference[0] / 2, "the reference does not learn"
    bits, step = min(
        (bits_kept(b, a), step) for step, (a, b) in enumerate(zip(reference, here, strict=True))
    )
    assert bits >= 13, (
        f"loss {step} is {here[step]:.6g} in float32 and {reference[step]:.6g} in float64: "
        f"they agree in {bits} bits{arithmetic_of(bits)}; without the switch a float32 product "
        f"runs in {gpu.float32_arithmetic()} here"
    )


@case(
    "precision/autocast-that-is-off",
    spec="Autocast that is not enabled changes nothing, as a block and as a decorator, on every "
    "device.",
)
def test_autocast_that_is_off(gpu, torch):
    left = torch.ones(8, 8, device=gpu.device)
    with gpu.autocast(enabled=False):
        inside = left @ left
    decorated = gpu.autocast(enabled=False)(lambda: left @ left)()
    assert (inside.dtype, decorated.dtype) == (torch.float32,) * 2, "a product changed its dtype"
    found = {*inside.flatten().tolist(), *decorated.flatten().tolist()}
    assert found == {8.0}, f"eight products of ones add up to {sorted(found)}"


@case(
    "precision/autocast-is-accurate",
    spec="A product under autocast in 16 bits is near the product in float64.",
    outcome="bounded: |A||B| * (k * 2^-24 + 2 u) + u |AB|, u of the dtype",
    capability=AUTOCAST,
    covers=("Backend.autocast",),
)
def test_autocast_is_accurate(gpu, torch):
    left, right = torch.randn(64, 128), torch.randn(128, 64)
    with gpu.autocast(_half_dtype(gpu, torch)):
        found = (left.to(gpu.device) @ right.to(gpu.device)).cpu().double()
    exact = left.double() @ right.double()
    unit = ROUNDOFF[str(_half_dtype(gpu, torch)).removeprefix("torch.")]
    magnitude = left.double().abs() @ right.double().abs()
    bound = magnitude * (128 * ROUNDOFF["float32"] + 2.01 * unit) + 1.01 * unit * exact.abs()
    check_near(found, exact, bound, "a product under autocast")


@case(
    "precision/autocast-of-a-bool-is-refused",
    spec="autocast(True), which older torch code writes for enabled, is a TypeError.",
    capability=AUTOCAST,
    outcome="unsupported",
    covers=("Backend.autocast",),
)
def test_autocast_of_a_bool_is_refused(backend):
    backend.autocast()
    refused(lambda: backend.autocast(True), TypeError, "autocast(True)")


@case(
    "precision/scaler-disabled",
    spec="A GradScaler that is disabled scales nothing, on every device.",
)
def test_scaler_disabled(gpu, torch):
    scaler = gpu.GradScaler(enabled=False)
    value = torch.tensor(3.0, device=gpu.device)
    assert float(scaler.scale(value)) == 3.0, "a disabled scaler changed the loss"
    weight = torch.ones(1, device=gpu.device, requires_grad=True)
    optimiser = torch.optim.SGD([weight], lr=0.5)
    scaler.scale((weight * 0.25).sum()).backward()
    scaler.step(optimiser)
    scaler.update()
    assert float(weight.detach()) == 0.875, "a disabled scaler changed the step"


@case(
    "precision/training-choice",
    spec="What a training loop is to use is native here, and only float16 needs a scaler.",
    covers=("Precision.training",),
    traps=("P13", "P14", "C01"),
    smoke=True,
)
def test_training_choice(backend, torch):
    choice = backend.precision.training()
    halves = [
        each for each in ("bfloat16", "float16") if claimed_support(backend, each) == "native"
    ]
    expected = getattr(torch, halves[0]) if halves else None
    assert choice.autocast is expected, f"native are {halves}, autocast is {choice.autocast}"
    assert choice.scaler is (expected is torch.float16), f"a scaler for {expected}"
    assert choice.reduce_dtype is torch.float32, f"gradients are reduced in {choice.reduce_dtype}"


@case(
    "precision/training-of-storage-is-refused",
    spec="Autocast to a dtype that it does not take is a ValueError.",
    outcome="unsupported",
    covers=("Precision.training",),
)
def test_training_of_storage_is_refused(backend, torch):
    refused(lambda: backend.precision.training(torch.float8_e4m3fn), ValueError, "autocast to fp8")
    refused(lambda: backend.precision.training(torch.int8), ValueError, "autocast to int8")


@case(
    "precision/training-learns",
    spec="Twenty steps of training with what a loop is to use at least halve the loss.",
    capability=AUTOCAST,
    covers=("Precision.training", "Backend.autocast", "Backend.GradScaler"),
    params={"dtype": ("bfloat16", "float16")},
)
def test_training_learns(gpu, torch, dtype):
    _check_loss_falls(gpu, torch, dtype)


@case(
    "precision/training-learns-in-float32",
    spec="Twenty steps of training in float32, as a loop is to do it, at least halve the loss.",
    covers=("Precision.training",),
)
def test_training_learns_in_float32(gpu, torch):
    _check_loss_falls(gpu, torch, "float32")


def _check_loss_falls(gpu, torch, dtype):
    if claimed_support(gpu, dtype) not in ("native", "emulated"):
        raise NotClaimed(f"{gpu.name} does not compute in {dtype}")
    choice = gpu.precision.training(getattr(torch, dtype))
    layer = torch.nn.Linear(16, 16, bias=False).to(gpu.device)
    optimiser = torch.optim.SGD(layer.parameters(), lr=0.2)
    scaler = gpu.GradScaler(enabled=choice.scaler)
    inputs = torch.randn(64, 16).to(gpu.device)
    losses = []
    for _ in range(20):
        optimiser.zero_grad()
        with gpu.autocast(choice.autocast, enabled=choice.autocast is not None):
            result = layer(inputs)
        made = choice.autocast or torch.float32
        assert result.dtype is made, f"a layer under autocast to {made} gave {result.dtype}"
        loss = (result.float() - inputs).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimiser)
        scaler.update()
        losses.append(float(loss))
    assert losses[-1] < losses[0] / 2, f"the loss went from {losses[0]} to {losses[-1]}"


@case(
    "precision/alignment",
    spec="The alignment of matrices is a power of two for dtypes that the device computes in.",
    covers=("Precision.alignment",),
    traps=("P06",),
)
def test_alignment(backend):
    if not backend.precision.alignment:
        raise NotClaimed(f"no fact states how {backend.name} wants matrices aligned")
    for dtype, multiple in backend.precision.alignment.items():
        assert multiple.bit_count() == 1, f"{dtype} is aligned to {multiple} elements"
        level = str(backend.precision.support(dtype))
        assert level == "native", f"{dtype} is aligned to {multiple} elements and {level}"
    choice = backend.precision.training()
    assert choice.alignment == backend.precision.alignment.get(choice.autocast), "another alignment"


@case(
    "precision/deterministic-settings",
    spec="Variables that determinism needs are returned, and where one is missing it is refused.",
    covers=("Precision.deterministic_env", "Precision.training"),
    traps=("P18", "P19"),
)
def test_deterministic_settings(backend, torch):
    settings = backend.precision.training().deterministic
    assert dict(settings.env) == dict(backend.precision.deterministic_env), "another environment"
    assert settings.missing({**settings.env}) == {}, "its own environment is not enough"
    assert settings.missing({}) == dict(settings.env), "an empty environment has something"
    before = dict(os.environ)
    was = torch.are_deterministic_algorithms_enabled()
    benchmark = torch.backends.cudnn.benchmark
    try:
        if settings.missing():
            refused(settings.enable, RuntimeError, "determinism without its variables")
            assert torch.are_deterministic_algorithms_enabled() is was, "a refusal set a switch"
        else:
            settings.enable()
            assert torch.are_deterministic_algorithms_enabled(), "determinism is not enabled"
    finally:
        torch.use_deterministic_algorithms(was)
        torch.backends.cudnn.benchmark = benchmark
    # torch itself writes the folder of its compiler's cache when it first loads the compiler
    written = {name for name, value in os.environ.items() if before.get(name) != value}
    written = {name for name in written if not name.startswith("TORCHINDUCTOR_")}
    assert not written, f"the environment was written: {sorted(written)}"

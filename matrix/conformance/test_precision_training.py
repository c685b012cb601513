"""Precision: mixed precision, gradients, and what a training loop is told."""

from __future__ import annotations

import math
import os

import portagpu as pg
from portagpu.contract import Capability
from portagpu.suite import NotClaimed, case, refused
from portagpu.suite.dtypes import FLOATS, ROUNDOFF, claimed_support, float64_values, tensor_on
from portagpu.suite.near import arithmetic_of, bits_kept, check_near

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
    "precision/gradients-are-right",
    spec="The gradient of a sum of squares is twice the value.",
    params={"dtype": FLOATS},
    smoke=True,
)
def test_gradients_are_right(gpu, dtype):
    value = tensor_on(gpu, [1.0, -2.0, 3.5], dtype).requires_grad_()
    (value * value).sum().backward()
    found = float64_values(value.grad)
    assert found == [2.0, -4.0, 7.0], f"the gradient of the sum of squares in {dtype} is {found}"


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
        optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
        found = []
        for _ in range(20):
            optimiser.zero_grad()
            loss = torch.nn.functional.mse_loss(model(inputs), wanted)
            loss.backward()
            optimiser.step()
            found.append(float(loss))
        return found

    reference, here = losses(torch.float64, "cpu"), losses(torch.float32, gpu.device)
    assert reference[-1] < reference[0] / 2, "the reference does not learn"
    bits, step = min(
        (bits_kept(b, a), step) for step, (a, b) in enumerate(zip(reference, here, strict=True))
    )
    assert bits >= 13, (
        f"loss {step} is {here[step]:.6g} in float32 and {reference[step]:.6g} in float64: "
        f"they agree in {bits} bits{arithmetic_of(bits)}"
    )


@case(
    "precision/autocast-changes-products",
    spec="Inside autocast a product of float32 matrices is of autocast's dtype, outside it is not.",
    capability=AUTOCAST,
    covers=("Backend.autocast", "portagpu.autocast"),
    params={"call": CALLS},
    smoke=True,
)
def test_autocast_changes_products(gpu, torch, call):
    left = torch.ones(8, 8, device=gpu.device)
    with (gpu if call == "method" else pg).autocast(_half_dtype(gpu, torch)):
        inside = left @ left
    assert inside.dtype == _half_dtype(gpu, torch), f"inside autocast a product is {inside.dtype}"
    assert (left @ left).dtype == torch.float32, "after autocast a product is not float32"
    assert inside.cpu().double().unique().tolist() == [8.0], "a product inside autocast is wrong"


@case(
    "precision/autocast-disabled",
    spec="enabled=False leaves products in float32, also inside another autocast.",
    capability=AUTOCAST,
    covers=("Backend.autocast",),
)
def test_autocast_disabled(gpu, torch):
    left = torch.ones(8, 8, device=gpu.device)
    with gpu.autocast(_half_dtype(gpu, torch)), gpu.autocast(enabled=False):
        inside = left @ left
    assert inside.dtype == torch.float32, f"a product with autocast disabled is {inside.dtype}"
    found = set(inside.flatten().tolist())
    assert found == {8.0}, f"a product of eight ones with autocast disabled is {sorted(found)}"


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
    "precision/autocast-default",
    spec="Without a dtype autocast uses torch's default for the device's type.",
    capability=AUTOCAST,
    covers=("Backend.autocast",),
)
def test_autocast_default(gpu, torch):
    left = torch.ones(8, 8, device=gpu.device)
    with gpu.autocast():
        inside = left @ left
    expected = torch.get_autocast_dtype(gpu.device.type)
    assert inside.dtype == expected, f"autocast made {inside.dtype}, torch's default is {expected}"
    found = set(inside.flatten().tolist())
    assert found == {8.0}, f"a product of eight ones in torch's default is {sorted(found)}"


@case(
    "precision/autocast-keeps-weights",
    spec="Weights and their gradients stay float32 under autocast, and both passes are right.",
    capability=AUTOCAST,
    covers=("Backend.autocast",),
)
def test_autocast_keeps_weights(gpu, torch):
    layer = torch.nn.Linear(8, 8).to(gpu.device)
    torch.nn.init.constant_(layer.weight, 0.5)
    torch.nn.init.constant_(layer.bias, 3.0)
    with gpu.autocast(_half_dtype(gpu, torch)):
        result = layer(torch.ones(4, 8, device=gpu.device))
    result.float().sum().backward()
    assert result.dtype == _half_dtype(gpu, torch), f"the layer's result is {result.dtype}"
    assert layer.weight.dtype == torch.float32, f"the weight is {layer.weight.dtype}"
    assert layer.weight.grad.dtype == torch.float32, f"the gradient is {layer.weight.grad.dtype}"
    found = [set(each.flatten().tolist()) for each in (result, layer.weight.grad, layer.bias.grad)]
    # 8 * 0.5 + 3, and one for each of the four rows
    assert found == [{7.0}, {4.0}, {4.0}], f"result and gradients are {found}"


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
    "precision/autocast-ends-after-error",
    spec="An exception inside autocast passes through, and autocast is off again.",
    capability=AUTOCAST,
    covers=("Backend.autocast",),
)
def test_autocast_ends_after_error(gpu, torch):
    def body():
        with gpu.autocast(_half_dtype(gpu, torch)):
            raise KeyError("on purpose")

    refused(body, KeyError, "an exception inside autocast")
    left = torch.ones(4, 4, device=gpu.device)
    after = left @ left
    assert after.dtype == torch.float32, "autocast stayed on after an exception"
    found = set(after.flatten().tolist())
    assert found == {4.0}, f"a product of four ones after an exception is {sorted(found)}"


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


def _weight_and_scale_after_step(gpu, torch, scaler, gradient):
    """The weight and the scale after one step of SGD from 1.0 with that gradient."""
    weight = torch.ones(1, device=gpu.device, requires_grad=True)
    optimiser = torch.optim.SGD([weight], lr=0.5)
    scaler.scale((weight * gradient).sum()).backward()
    scaler.step(optimiser)
    scaler.update()
    return float(weight.detach()), scaler.get_scale()


@case(
    "precision/scaler-steps",
    spec="A step through a GradScaler is the step without one.",
    capability=AUTOCAST,
    covers=("Backend.GradScaler", "portagpu.GradScaler"),
    params={"call": CALLS},
    smoke=True,
)
def test_scaler_steps(gpu, torch, call):
    scaler = (gpu if call == "method" else pg).GradScaler(init_scale=1024.0)
    weight, _ = _weight_and_scale_after_step(gpu, torch, scaler, 0.25)
    assert weight == 0.875, f"1 - 0.5 * 0.25 through a GradScaler is {weight}"


@case(
    "precision/scaler-skips-infinity",
    spec="A step whose gradient is infinite is skipped, and the scale halves.",
    capability=AUTOCAST,
    covers=("Backend.GradScaler",),
)
def test_scaler_skips_infinity(gpu, torch):
    scaler = gpu.GradScaler(init_scale=1024.0)
    weight, scale = _weight_and_scale_after_step(gpu, torch, scaler, math.inf)
    assert weight == 1.0, f"an infinite gradient moved the weight to {weight}"
    assert scale == 512.0, f"after an infinite gradient the scale is {scale}, not 512"


@case(
    "precision/scaler-grows",
    spec="After its interval of good steps the scale doubles.",
    capability=AUTOCAST,
    covers=("Backend.GradScaler",),
)
def test_scaler_grows(gpu, torch):
    scaler = gpu.GradScaler(init_scale=8.0, growth_interval=2)
    scales = [_weight_and_scale_after_step(gpu, torch, scaler, 0.25)[1] for _ in range(4)]
    assert scales == [8.0, 16.0, 16.0, 32.0], f"the scale went {scales}"


@case(
    "precision/scaler-disabled",
    spec="A GradScaler that is disabled scales nothing, on every device.",
)
def test_scaler_disabled(gpu, torch):
    scaler = gpu.GradScaler(enabled=False)
    value = torch.tensor(3.0, device=gpu.device)
    assert float(scaler.scale(value)) == 3.0, "a disabled scaler changed the loss"
    assert _weight_and_scale_after_step(gpu, torch, scaler, 0.25)[0] == 0.875, (
        "a disabled scaler changed the step"
    )


@case(
    "precision/scaler-state",
    spec="A GradScaler's state restores its scale.",
    capability=AUTOCAST,
    covers=("Backend.GradScaler",),
)
def test_scaler_state(gpu, torch):
    source = gpu.GradScaler(init_scale=1024.0)
    _weight_and_scale_after_step(gpu, torch, source, math.inf)
    other = gpu.GradScaler()
    other.load_state_dict(source.state_dict())
    assert other.get_scale() == 512.0, f"the restored scale is {other.get_scale()}, not 512"


@case(
    "precision/training-choice",
    spec="What a training loop is told to use is native here, and only float16 needs a scaler.",
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
    spec="Twenty steps of training by what a loop is told at least halve the loss.",
    capability=AUTOCAST,
    covers=("Precision.training", "Backend.autocast", "Backend.GradScaler"),
    params={"dtype": ("bfloat16", "float16")},
)
def test_training_learns(gpu, torch, dtype):
    _check_loss_falls(gpu, torch, dtype)


@case(
    "precision/training-learns-in-float32",
    spec="Twenty steps of training in float32, by what a loop is told, at least halve the loss.",
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

"""The switch for float32 products from every state that torch's can be in, and the probe."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from portagpu.devices.precision import Arithmetic, Float32Switch, Precision
from portagpu.devices.precision.products import measure_arithmetic, product_function

pytestmark = pytest.mark.torch

PLAIN, FAST = Precision({}), Precision({}, tf32=Arithmetic.TF32)
EMULATING = Precision({}, tf32=Arithmetic.BF16X3)
CPU = torch.device("cpu")


def kept(x, bits):
    """float32 ``x`` rounded to nearest even at that many bits of mantissa."""
    codes = x.contiguous().view(torch.int32)
    drop = 23 - bits
    odd = (codes >> drop) & 1
    rounded = (codes + (1 << (drop - 1)) - 1 + odd) >> drop << drop
    return rounded.to(torch.int32).view(torch.float32)


def bf16x3(left, right):
    pieces = []
    for x in (left, right):
        high = kept(x, 7)
        pieces.append((high, kept(x - high, 7)))
    (a, b), (c, d) = pieces
    return a @ c + (a @ d + b @ c)


def tf32x3(left, right):
    pieces = []
    for x in (left, right):
        high = kept(x, 10)
        pieces.append((high, kept(x - high, 10)))
    (a, b), (c, d) = pieces
    return a @ c + (a @ d + b @ c)


MODELS = {
    "ieee": (lambda a, b: a @ b, Arithmetic.IEEE),
    "tf32": (lambda a, b: kept(a, 10) @ kept(b, 10), Arithmetic.TF32),
    "cut tf32": (
        lambda a, b: (a.view(torch.int32) >> 13 << 13).view(torch.float32) @ b,
        Arithmetic.TF32,
    ),
    "bf16x3": (bf16x3, Arithmetic.BF16X3),
    "bf16": (lambda a, b: kept(a, 7) @ kept(b, 7), Arithmetic.BF16),
    "three of tf32": (tf32x3, Arithmetic.IEEE),
    "half scaled": (lambda a, b: (a @ b) / 2, Arithmetic.OTHER),
    "one entry in bf16": (
        lambda a, b: (a @ b).index_put((torch.tensor(3), torch.tensor(4)), torch.tensor(1.0)),
        Arithmetic.OTHER,
    ),
}


@pytest.mark.parametrize("mode", ["medium", "bf16", "", None])
def test_another_mode_is_refused_with_those_there_are(mode: object) -> None:
    with pytest.raises(ValueError, match=f"run in ieee or tf32, not {mode!r}"):
        Float32Switch(Precision({}), mode)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", MODELS)
def test_the_probe_names_the_arithmetic_of_a_model(name) -> None:
    model, expected = MODELS[name]
    assert measure_arithmetic(model, CPU) is expected


def test_the_probe_multiplies_by_convolution_too() -> None:
    generator = torch.Generator().manual_seed(2)
    left, right = torch.randint(-3, 4, (2, 8, 8), generator=generator).float()
    assert torch.equal(product_function("conv")(left, right), left @ right)
    with pytest.raises(ValueError, match="matmul or conv"):
        product_function("rnn")


NEW = ("cuda.matmul", "cudnn.conv", "cudnn.rnn", "mkldnn.matmul", "mkldnn.conv", "mkldnn.rnn")


def owner(path):
    found = torch.backends
    for part in path.split("."):
        found = getattr(found, part)
    return found


def state():
    older = (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32)
    return (*older, torch.backends.cuda.matmul.allow_tf32), {
        path: owner(path).fp32_precision for path in NEW
    }


@pytest.fixture(autouse=True)
def torch_as_it_was():
    """Whatever a test leaves, the switch sets and another restores."""
    (products, convolutions, _), newer = state()
    yield
    torch.backends.fp32_precision = "none"
    torch.backends.cudnn.fp32_precision = "none"
    torch.set_float32_matmul_precision(products)
    torch.backends.cudnn.allow_tf32 = convolutions
    for path, value in newer.items():
        owner(path).fp32_precision = value
    assert state() == ((products, convolutions, False), newer)


def set_generic(value):
    torch.backends.fp32_precision = value


def set_path(path, value):
    owner(path).fp32_precision = value


STATES = {
    "fresh": lambda: None,
    "generic tf32": lambda: set_generic("tf32"),
    "generic bf16": lambda: set_generic("bf16"),
    "cudnn tf32": lambda: set_path("cudnn", "tf32"),
    "matmul tf32, newer": lambda: set_path("cuda.matmul", "tf32"),
    "mkldnn bf16": lambda: set_path("mkldnn.matmul", "bf16"),
    "conv ieee": lambda: set_path("cudnn.conv", "ieee"),
    "medium": lambda: torch.set_float32_matmul_precision("medium"),
    "high": lambda: torch.set_float32_matmul_precision("high"),
    "cudnn off, older": lambda: setattr(torch.backends.cudnn, "allow_tf32", False),
}


@pytest.mark.parametrize("before", STATES)
@pytest.mark.parametrize(
    ("precision", "mode", "tf32"),
    [(FAST, "tf32", True), (FAST, "ieee", False), (PLAIN, "tf32", False), (PLAIN, "ieee", False)],
)
def test_the_switch_sets_both_interfaces_from_any_state(before, precision, mode, tf32) -> None:
    STATES[before]()
    Float32Switch(precision, mode)
    older, newer = state()
    assert older == ("high" if tf32 else "highest", tf32, tf32), f"the older interface is {older}"
    assert set(newer.values()) == {"tf32" if tf32 else "ieee"}, f"the newer one is {newer}"


@pytest.mark.parametrize("before", [name for name in STATES if "generic" not in name])
def test_a_block_restores_what_could_be_read(before) -> None:
    STATES[before]()
    values = {path: owner(path).fp32_precision for path in ("cudnn", *NEW)}
    with Float32Switch(FAST, "tf32"):
        pass
    assert {path: owner(path).fp32_precision for path in ("cudnn", *NEW)} == values


def test_a_block_restores_after_an_error() -> None:
    before = state()
    with pytest.raises(KeyError), Float32Switch(FAST, "tf32"):
        raise KeyError("on purpose")
    assert state() == before


def test_what_is_set_is_what_the_device_has() -> None:
    with Float32Switch(EMULATING, "tf32") as switch:
        assert switch.arithmetic is Arithmetic.BF16X3
        assert "bf16x3" in switch.reason
        assert torch.get_float32_matmul_precision() == "high", "hipBLASLt would not be asked"
    with Float32Switch(PLAIN, "tf32") as switch:
        assert "no tf32" in switch.reason
        assert repr(switch) == "<float32 products in ieee, tf32 was asked for>"


@pytest.mark.parametrize("mode", ["bf16", "high", "medium", ""])
def test_a_mode_that_means_another_thing_elsewhere_is_refused(mode) -> None:
    before = state()
    with pytest.raises(ValueError, match=r"ieee|not a valid"):
        Float32Switch(FAST, mode)
    assert state() == before, "a refusal changed a setting"

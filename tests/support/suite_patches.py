"""Faults next to the device: in torch's operations, in facts, in readers and in vendors' names.

Each is a function that breaks one thing until the test's end, with the case that catches it and a
part of its sentence.
"""

from __future__ import annotations

import os
import re
from contextlib import nullcontext
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch

from portagpu.devices import discovery as candidates
from portagpu.devices import functions
from portagpu.devices.collectives.comm import Comm
from portagpu.devices.collectives.cost import Fit
from portagpu.devices.collectives.tuning import Profile
from portagpu_cpu import identity
from portagpu_cpu.backend import CpuBackend
from portagpu_cpu.identity import CpuProperties
from portagpu_cpu.plugin import CpuPlugin
from portagpu_cuda import cost_model
from tests.support import suite_patches_torch as broken

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest


def _sets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = candidates.plugin("cpu")

    def for_job(self: Any, folder: Any) -> dict[str, str]:
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder))
        return {"TORCHINDUCTOR_CACHE_DIR": os.environ["TORCHINDUCTOR_CACHE_DIR"]}

    setting = type("Sets", (type(plugin.variables),), {"for_job": for_job})
    monkeypatch.setattr(type(plugin), "variables", setting())


def _functions_of_nothing(
    name: str, function: Callable[..., Any]
) -> Callable[[pytest.MonkeyPatch], None]:
    """The module's function does that, and the device's method is right."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(functions, name, function)

    return patch


def _cache_with_a_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    good, trim, made = torch.full, CpuBackend.empty_cache, WeakSet[torch.Tensor]()

    def full(*given: Any, **named: Any) -> torch.Tensor:
        found = good(*given, **named)
        made.add(found)
        return found

    def empty_cache(self: Any) -> None:
        trim(self)
        for each in made:
            each.data.zero_()

    monkeypatch.setattr(torch, "full", full)
    monkeypatch.setattr(CpuBackend, "empty_cache", empty_cache)


def _writes_into_a_copy_of_a_view(monkeypatch: pytest.MonkeyPatch) -> None:
    good = torch.Tensor.fill_

    def fill_(tensor: torch.Tensor, value: Any) -> torch.Tensor:
        whole = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
        return good(tensor if whole else tensor.clone(), value)

    monkeypatch.setattr(torch.Tensor, "fill_", fill_)


def _clock_of_ghz(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = type(candidates.plugin("cpu"))
    monkeypatch.setattr(plugin, "telemetry", lambda self, index: {"clock_mhz": 0.0021})


def _bfloat16_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    good = torch.Tensor.__matmul__

    def matmul(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        if left.dtype != torch.bfloat16 or left.dim() != 2:
            return good(left, right)
        total = torch.zeros(len(left), right.shape[1], dtype=torch.bfloat16)
        for each in range(right.shape[0]):
            total = total + left[:, each, None] * right[None, each]
        return total

    monkeypatch.setattr(torch.Tensor, "__matmul__", matmul)


def _attention(**options: Any) -> Callable[[pytest.MonkeyPatch], None]:
    """Attention with options of its own, whatever is asked for."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        functional = torch.nn.functional
        good = functional.scaled_dot_product_attention

        def attend(*inputs: torch.Tensor, **asked: Any) -> torch.Tensor:
            return good(*inputs, **{**asked, **options})

        monkeypatch.setattr(functional, "scaled_dot_product_attention", attend)

    return patch


def _half_a_ballot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 64 lanes the upper 32 are lost."""
    good = torch.Tensor.masked_select

    def masked_select(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return good(values, mask & (torch.arange(len(mask)) % 64 < 32))

    monkeypatch.setattr(torch.Tensor, "masked_select", masked_select)


def _prefix_of_half_a_warp(monkeypatch: pytest.MonkeyPatch) -> None:
    good = torch.Tensor.cumsum

    def cumsum(values: torch.Tensor, dim: int) -> torch.Tensor:
        return torch.cat([good(part, dim) for part in values.split(32)])

    monkeypatch.setattr(torch.Tensor, "cumsum", cumsum)


def _lower_lanes_only(monkeypatch: pytest.MonkeyPatch) -> None:
    good = torch.Tensor.argmax

    def argmax(values: torch.Tensor, dim: int) -> torch.Tensor:
        return good(values[:, : values.shape[1] // 2], dim)

    monkeypatch.setattr(torch.Tensor, "argmax", argmax)


def _whole_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    good = torch.Tensor.sum

    def summed(values: torch.Tensor, *dims: int) -> torch.Tensor:
        if not dims:
            return good(values)
        rows, n = values.shape
        padded = values.as_strided((rows, -(-n // 64) * 64), values.stride())
        return good(padded, *dims)

    monkeypatch.setattr(torch.Tensor, "sum", summed)


def _copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "from_dlpack", lambda tensor: tensor.clone())


def _as_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "__dlpack_device__", lambda tensor: (2, 0))


def _fp8_on_trust(works: bool, multiply: Any) -> Callable[[pytest.MonkeyPatch], None]:
    """The CPU backend states that fp8 works, or that it does not, where torch does otherwise."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(identity, "_works", lambda dtype: works)
        broken.replaced(torch, "_scaled_mm", multiply)(monkeypatch)

    return patch


def _no_warp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuProperties, "__getattribute__", _warp_of_32)


def _warp_of_32(properties: Any, name: str) -> Any:
    return 32 if name == "warp_size" else object.__getattribute__(properties, name)


def _cost_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuPlugin, "cost_model", lambda self: cost_model.MODEL)


def _half_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    line = Fit.time_us
    monkeypatch.setattr(Fit, "time_us", lambda self, size_bytes: line(self, size_bytes) / 2)


def _any_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Profile, "check", lambda self, machine, stack: None)


class OrderedArch:
    """An architecture that is newer than others by its number."""

    vendor, name, warp_size = "cpu", "x86-64", 1

    def __lt__(self, other: object) -> bool:
        return True

    def __ge__(self, other: object) -> bool:
        return False


TUNED = Comm(
    "gloo", "Gloo", None, "cpu", local_env={"GLOO_SOCKET_IFNAME": "lo", "NCCL_MIN_NCHANNELS": "112"}
)


@dataclass(frozen=True, slots=True)
class Patch:
    """A fault next to the device; ``attributes`` are those of the handle."""

    case: str
    sentence: str | re.Pattern[str]
    apply: Callable[[pytest.MonkeyPatch], None] = lambda _: None
    attributes: tuple[tuple[str, Any], ...] = ()


UNWRITTEN_ATTENTION = broken.replaced(
    broken.FUNCTIONAL, "scaled_dot_product_attention", broken.written_by_nobody(0.0)
)
UNWRITTEN_PRODUCT = broken.replaced(torch.Tensor, "__matmul__", broken.written_by_nobody(0.0))

PATCHES: dict[str, Patch] = {
    "counts one of what it scatters to a place": Patch(
        "precision/scatter-add-is-exact",
        "the counts are [1.0,",
        broken.replaced(torch.Tensor, "scatter_add_", broken.scatter_once),
    ),
    "adds prefixes in 32 bits": Patch(
        "precision/prefix-sums-are-wide[int64]",
        "the prefix sums are [2147483647, -2",
        broken.replaced(torch, "cumsum", broken.narrow_sums),
    ),
    "multiplies int64 in 32 bits": Patch(
        "precision/integer-products-are-wide",
        "3037000499 squared is",
        broken.replaced(torch.Tensor, "__mul__", broken.narrow_products),
    ),
    "casts one bit pattern to the next number": Patch(
        "precision/casts-of-every-pattern[float16]",
        "float16 to float32 gave 0.3332519829273224 for 0.333251953125, not 0.333251953125",
        broken.replaced(torch.Tensor, "to", broken.wrong_pattern),
    ),
    "stays in TF32 after 'ieee'": Patch(
        "precision/float32-switch[ieee-matmul]",
        "with ieee a matmul ran in tf32, not ieee",
        broken.stuck_tf32,
    ),
    "stays in TF32 for convolutions after 'ieee'": Patch(
        "precision/float32-switch[ieee-conv]",
        "with ieee a conv ran in tf32, not ieee",
        broken.stuck_tf32,
    ),
    "is as inaccurate as TF32 after 'ieee'": Patch(
        "precision/float32-products-are-accurate[ieee]",
        "a product after 'ieee', which is ieee here",
        broken.stuck_tf32,
    ),
    "trains in TF32 where nobody asked for it": Patch(
        "precision/training-follows-float64",
        "without the switch a float32 product runs in tf32 here",
        broken.stuck_tf32,
    ),
    "conjugates nothing": Patch(
        "precision/random-programs",
        "the conjugate view was read as it is",
        broken.replaced(torch.Tensor, "conj", broken.unconjugated),
    ),
    "multiplies the first of a batch only": Patch(
        "precision/random-programs",
        "bmm of",
        broken.replaced(torch, "bmm", broken.first_of_a_batch),
    ),
    "takes a variance for a difference of squares": Patch(
        "precision/layer-norm-of-a-large-mean",
        "next to a mean of 4096 is normalised",
        broken.replaced(broken.FUNCTIONAL, "layer_norm", broken.variance_by_squares),
    ),
    "draws the upper end too": Patch(
        "rng/draws-have-their-mean[randint]",
        "the mean of randint is",
        broken.replaced(torch, "randint", broken.last_is_allowed),
    ),
    "draws normal numbers too wide": Patch(
        "rng/draws-have-their-mean[randn]",
        "the variance of randn is",
        broken.replaced(torch, "randn", broken.too_wide),
    ),
    "tosses a biased coin": Patch(
        "rng/draws-have-their-mean[bernoulli]",
        "the mean of bernoulli is",
        broken.replaced(torch, "bernoulli", broken.biased),
    ),
    "drops out without scaling": Patch(
        "rng/draws-have-their-mean[dropout]",
        "the mean of dropout is",
        broken.replaced(broken.FUNCTIONAL, "dropout", broken.unscaled),
    ),
    "halves exponential numbers": Patch(
        "rng/draws-have-their-mean[exponential]",
        "the mean of exponential is",
        broken.replaced(torch.Tensor, "exponential_", broken.halved),
    ),
    "has a function that counts nothing": Patch(
        "memory/random-programs",
        "memory_allocated() is 0.0 MiB and allocated_bytes",
        _functions_of_nothing("memory_allocated", lambda: 0),
    ),
    "empties a tensor with the cache": Patch(
        "memory/random-programs", "a tensor that lives holds 0 where", _cache_with_a_tensor
    ),
    "writes into a copy of a view": Patch(
        "memory/random-programs", "a tensor that lives holds", _writes_into_a_copy_of_a_view
    ),
    "has a function whose block does nothing": Patch(
        "streams/random-programs",
        "inside a block of",
        _functions_of_nothing("stream", lambda stream: nullcontext()),
    ),
    "has a function that waits for nothing and says so": Patch(
        "streams/random-programs",
        "synchronize() of the device returned",
        _functions_of_nothing("synchronize", lambda: False),
    ),
    "repeats a number in a permutation": Patch(
        "rng/random-programs",
        "lacks ",
        broken.replaced(torch, "randperm", broken.with_repeats),
    ),
    "aligns causal masks with the last key": Patch(
        "attention/causal-starts-at-the-first-key",
        "off, the bound is",
        broken.replaced(
            broken.FUNCTIONAL, "scaled_dot_product_attention", broken.from_the_last_key
        ),
    ),
    "reports a product with colours": Patch(
        "identity/unknown-is-none",
        "is not one printable line",
        attributes=(("product", "A \x1b[31mGPU"),),
    ),
    "reports a version as bytes": Patch(
        "identity/versions",
        "text or None",
        attributes=(("versions", {"torch": torch.__version__, "driver": b"580.95"}),),
    ),
    "sums products of bfloat16 in bfloat16": Patch(
        "precision/matmul-is-accurate[bfloat16]", "times the bound", _bfloat16_sums
    ),
    "attends to nothing, the same each time": Patch(
        "attention/repeats[bfloat16]", "off, the bound is", UNWRITTEN_ATTENTION
    ),
    "attends to nothing after nothing": Patch(
        "attention/of-nothing", "after those of nothing is", UNWRITTEN_ATTENTION
    ),
    "gives finite zeros for large scores": Patch(
        "attention/large-scores-are-finite", "of large scores is", UNWRITTEN_ATTENTION
    ),
    "saves the memory by attending to nothing": Patch(
        "attention/fused-kernels-save-memory", "of its norm off", UNWRITTEN_ATTENTION
    ),
    "multiplies nothing, the same each time": Patch(
        "precision/matmul-repeats[float32]", "of its own norm off", UNWRITTEN_PRODUCT
    ),
    "multiplies nothing long, the same each time": Patch(
        "precision/long-matmul-repeats", "of its own norm off", UNWRITTEN_PRODUCT
    ),
    "multiplies nothing under autocast": Patch(
        "precision/autocast-programs", "@ of", UNWRITTEN_PRODUCT
    ),
    "has layers of zeros under autocast": Patch(
        "precision/autocast-programs",
        "linear of",
        broken.replaced(broken.FUNCTIONAL, "linear", broken.written_by_nobody(0.0)),
    ),
    "adds nothing": Patch(
        "precision/random-programs",
        # of add itself, or of a gradient through it, in whichever dtype is drawn first
        re.compile(r"gave (0|0\.0|False|0j|0\.0\+0\.0j) at element"),
        broken.replaced(torch.Tensor, "__add__", broken.written_by_nobody(0.0)),
    ),
    **{
        f"draws one number for ever: {case}": Patch(
            f"rng/{case}",
            "numbers that were drawn are all 0.5",
            broken.replaced(torch, draw, broken.written_by_nobody(0.5)),
        )
        for case, draw in {
            "seed-repeats[rand]": "rand",
            "seed-repeats[bernoulli]": "bernoulli",
            "seed-is-the-devices": "rand",
            "state-restores[before17]": "rand",
            "function-state": "rand",
        }.items()
    },
    "does not scale scores": Patch(
        "attention/matches-float64[float32-causalFalse]", "off, the bound is", _attention(scale=1.0)
    ),
    "looks into the future": Patch(
        "attention/causal-hides-the-future[float32]", "come after it", _attention(is_causal=False)
    ),
    "ignores masks": Patch(
        "attention/boolean-mask[float32]", "off, the bound", _attention(attn_mask=None)
    ),
    "loses the upper half of a ballot": Patch(
        "kernels/every-lane-is-counted[n64]", "masked_select of 64 elements loses", _half_a_ballot
    ),
    "restarts prefix sums at 32 lanes": Patch(
        "kernels/prefix-sums[n33]", "prefix sums of 33 ones", _prefix_of_half_a_warp
    ),
    "reduces the lower lanes only": Patch(
        "kernels/one-among-many[n64]", "said to be another", _lower_lanes_only
    ),
    "reads after the end of a row": Patch(
        "kernels/lane-past-the-block[n33]", "sum to inf", _whole_blocks
    ),
    "takes a CPU for one that multiplies fp8": Patch(
        "precision/support-as-it-runs[float8_e4m3fnuz]",
        "stated as emulated and ran as storage",
        _fp8_on_trust(True, broken.no_fp8),
    ),
    "takes a CPU for one that stores fp8": Patch(
        "precision/support-as-it-runs[float8_e5m2]",
        "stated as storage and ran as emulated",
        _fp8_on_trust(False, broken.any_fp8),
    ),
    "reports a warp of 32": Patch(
        "identity/warp-size-is-the-devices", "warp sizes differ", _no_warp
    ),
    "copies tensors through DLPack": Patch("identity/dlpack-device", "is a copy", _copies),
    "calls every device CUDA in DLPack": Patch("identity/dlpack-device", "DLPack calls", _as_cuda),
    "orders architectures by number": Patch(
        "identity/architectures-have-no-order",
        "was not refused",
        attributes=(("arch", OrderedArch()),),
    ),
    "calls its libraries by CUDA's names": Patch(
        "identity/libraries-are-the-vendors",
        "has the version of cudnn",
        attributes=(("versions", {"torch": torch.__version__, "cudnn": "9.10.2"}),),
    ),
    "tunes ranks for another library": Patch(
        "collectives/no-foreign-tuning", "NCCL_MIN_NCHANNELS", attributes=(("comm", TUNED),)
    ),
    "has the cost model of another library": Patch(
        "collectives/cost-model-is-the-librarys", "the model of NCCL is for Gloo", _cost_model
    ),
    "halves measured times": Patch(
        "collectives/choice-of-measured-times", "on a line where they take 520", _half_the_time
    ),
    "has an engine without words": Patch(
        "collectives/engines-are-named",
        "are named ['']",
        attributes=(("comm", replace(TUNED, engines={"ProcessGroupGloo": ""})),),
    ),
    "has the identity of another device": Patch(
        "collectives/engines-are-named",
        "the device is GPU-1, its handle None",
        attributes=(("comm", replace(TUNED, _gpu=SimpleNamespace(uuid="GPU-1"))),),
    ),
    "takes a profile of another machine": Patch(
        "collectives/profile-is-of-this-device", "was not refused", _any_profile
    ),
    "measures a clock in GHz": Patch(
        "telemetry/readings-are-plausible", "clock_mhz is 0.0", _clock_of_ghz
    ),
    "sets variables by itself": Patch("identity/variables-are-not-set", "was changed", _sets_them),
}

"""Faults beside the device: in torch's operations, in facts, in readers and in vendors' names.

Each is a function that breaks one thing until the test's end, with the case that catches it and a
part of its sentence.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from portagpu import diagnostics as remarks
from portagpu import discovery as candidates
from portagpu import visible
from portagpu.collectives.comm import Comm
from portagpu.kernels import catalogue, plan
from portagpu.sizing import Sizing
from portagpu.torchbuild import read_build
from portagpu_cpu import fp8
from portagpu_cpu.identity import CpuProperties
from portagpu_cuda.formats import nvidia_smi_text
from portagpu_rocm.formats import amd_smi_json
from tests import suite_harness
from tests import suite_patches_torch as broken

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest


def _module(area: str) -> Any:
    """The loaded file of cases."""
    suite_harness.everything()
    return sys.modules[f"portagpu_cases_test_{area}"]


def _variables(**changes: Any) -> Callable[[pytest.MonkeyPatch], None]:
    """Other names in the ROCm plugin."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        plugin = candidates.plugin("rocm")
        monkeypatch.setattr(type(plugin), "variables", replace(plugin.variables, **changes))

    return patch


def _without(**names: tuple[str, ...]) -> Callable[[pytest.MonkeyPatch], None]:
    """The ROCm plugin's names without some."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        known = candidates.plugin("rocm").variables
        kept = {
            field: {k: v for k, v in getattr(known, field).items() if k not in left_out}
            for field, left_out in names.items()
        }
        _variables(**kept)(monkeypatch)

    return patch


def _builds_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = candidates.plugin("rocm")
    everything = type("All", (type(plugin.variables),), {"for_building": _any_list})
    monkeypatch.setattr(type(plugin), "variables", everything(arch_list="PYTORCH_ROCM_ARCH"))


def _any_list(self: Any, archs: Any) -> dict[str, str]:
    return {self.arch_list: ";".join(archs)}


def _sets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = candidates.plugin("cpu")

    def for_job(self: Any, folder: Any) -> dict[str, str]:
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder))
        return {"TORCHINDUCTOR_CACHE_DIR": os.environ["TORCHINDUCTOR_CACHE_DIR"]}

    setting = type("Sets", (type(plugin.variables),), {"for_job": for_job})
    monkeypatch.setattr(type(plugin), "variables", setting())


def _one_index_space(monkeypatch: pytest.MonkeyPatch) -> None:
    """HIP_VISIBLE_DEVICES counts among all devices, as if ROCR_VISIBLE_DEVICES were not there."""
    resolve = visible.resolve

    def wrong(environment: Any, devices: Any, runtime: Any) -> Any:
        kept = {
            k: v
            for k, v in environment.items()
            if not k.startswith("ROCR") or len(environment) == 1
        }
        return resolve(kept, devices, runtime)

    monkeypatch.setattr(visible, "resolve", wrong)


def _empty_mask_shows_all(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve = visible.resolve

    def wrong(environment: Any, devices: Any, runtime: Any) -> Any:
        return resolve({k: v for k, v in environment.items() if v}, devices, runtime)

    monkeypatch.setattr(visible, "resolve", wrong)


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
        behind = values.as_strided((rows, -(-n // 64) * 64), values.stride())
        return good(behind, *dims)

    monkeypatch.setattr(torch.Tensor, "sum", summed)


def _copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "from_dlpack", lambda tensor: tensor.clone())


def _as_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "__dlpack_device__", lambda tensor: (2, 0))


def _checks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sizing, "check", lambda *arguments, **options: None)


def _warps_of_32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Sizing, "max_num_warps", property(lambda limits: limits.max_threads_per_block // 32)
    )


def _shared_memory_of_h100(monkeypatch: pytest.MonkeyPatch) -> None:
    good = plan.Limits.of_target
    monkeypatch.setattr(
        plan.Limits, "of_target", lambda target: replace(good(target), shared_bytes=232448)
    )


def _every_fp8(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue.Variant, "why_not", lambda variant, target: "")


def _fp8_on_trust(works: bool, multiply: Any) -> Callable[[pytest.MonkeyPatch], None]:
    """The CPU backend states that fp8 works, or that it does not, where torch does otherwise."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(fp8, "_works", lambda dtype: works)
        broken.replaced(torch, "_scaled_mm", multiply)(monkeypatch)

    return patch


def _options_of_amd(monkeypatch: pytest.MonkeyPatch) -> None:
    good = plan.constants
    monkeypatch.setattr(
        plan, "constants", lambda *given: {**good(*given), "waves_per_eu": 2, "kpack": 2}
    )


def _tiles_of_8(monkeypatch: pytest.MonkeyPatch) -> None:
    good = plan.candidates

    def thin(kind: str, limits: Any) -> Any:
        return tuple(
            replace(each, blocks=(("BLOCK_M", 8), *each.blocks[1:])) for each in good(kind, limits)
        )

    monkeypatch.setattr(plan, "candidates", thin)


def _limits_of_a_product(**changes: int) -> Callable[[pytest.MonkeyPatch], None]:
    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        module = _module("kernels_limits")
        good = module._sizing
        monkeypatch.setattr(module, "_sizing", lambda product: replace(good(product), **changes))

    return patch


def _one_family_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Facts are looked up by the number, as a capability is compared."""
    module = _module("identity_vendors")
    good = module.identify
    monkeypatch.setattr(
        module, "identify", lambda vendor, arch, product: good("nvidia", "sm_90", product)
    )


def _family_peaks(monkeypatch: pytest.MonkeyPatch) -> None:
    module = _module("identity_vendors")
    known = module.load_target("amd-mi300x")
    monkeypatch.setattr(module, "identify", lambda *arguments: known)


def _placeholder_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Peaks by a clock of 1700 MHz for whatever is of AMD."""
    module = _module("identity_vendors")
    good = module.load_target

    class Guessed:
        def __init__(self, product: str) -> None:
            self.target = good(product)

        def peak(self, dtype: str) -> Any:
            peak = self.target.peak(dtype)
            return replace(peak, value=peak.value * 1700 / 2100)

    monkeypatch.setattr(module, "load_target", Guessed)


def _trusts_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch without a suffix in its version is taken for the vendor's of the machine."""
    module = _module("identity_vendors")

    def guess(folder: Any) -> Any:
        build = read_build(folder)
        return build if "+" in str(build.version) else replace(build, kind="rocm")

    monkeypatch.setattr(module, "read_build", guess)


def _silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remarks, "_VARIABLES", {})


def _states(reader: Any, change: Callable[[Any], Any]) -> Callable[[pytest.MonkeyPatch], None]:
    """A reader whose states are changed."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        good = reader.parse

        def parse(text: str) -> Any:
            found = good(text)
            changed = [replace(each, state=change(each.state)) for each in found.readings]
            return replace(found, readings=tuple(changed))

        monkeypatch.setattr(reader, "parse", parse)

    return patch


def _balancing_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    module = _module("telemetry_sources")
    good = module.read_settings
    monkeypatch.setattr(
        module, "read_settings", lambda tree: replace(good(tree), numa_balancing=False)
    )


def _no_warp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuProperties, "__getattribute__", _warp_of_32)


def _warp_of_32(properties: Any, name: str) -> Any:
    return 32 if name == "warp_size" else object.__getattribute__(properties, name)


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
    """A fault beside the device; ``attributes`` are those of the handle."""

    case: str
    sentence: str
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
    "conjugates nothing": Patch(
        "precision/complex-products[complex64]",
        "a conjugated product is",
        broken.replaced(torch.Tensor, "conj", broken.unconjugated),
    ),
    "multiplies the first of a batch only": Patch(
        "precision/batched-matmul-is-each",
        "[1, 2, 3, 4] are others",
        broken.replaced(torch, "bmm", broken.first_of_a_batch),
    ),
    "takes a variance for a difference of squares": Patch(
        "precision/layer-norm-of-a-large-mean",
        "beside a mean of 4096 is normalised",
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
    "repeats a number in a permutation": Patch(
        "rng/permutation-has-each-once",
        "lacks 1 of them",
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
    "parses a mask in the wrong index space": Patch(
        "visibility/two-index-spaces", "shows", _one_index_space
    ),
    "shows all devices for an empty mask": Patch(
        "visibility/empty-mask-hides-all[cuda]", "shows", _empty_mask_shows_all
    ),
    "sums products of bfloat16 in bfloat16": Patch(
        "precision/matmul-is-accurate[bfloat16]", "times the bound off", _bfloat16_sums
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
    "multiplies nothing under autocast's default": Patch(
        "precision/autocast-default", "a product of eight ones in", UNWRITTEN_PRODUCT
    ),
    "multiplies nothing with autocast disabled": Patch(
        "precision/autocast-disabled", "a product of eight ones with", UNWRITTEN_PRODUCT
    ),
    "multiplies nothing after an error": Patch(
        "precision/autocast-ends-after-error", "after an exception is [0.0]", UNWRITTEN_PRODUCT
    ),
    "has layers of zeros under autocast": Patch(
        "precision/autocast-keeps-weights",
        "result and gradients are",
        broken.replaced(broken.FUNCTIONAL, "linear", broken.written_by_nobody(0.0)),
    ),
    "adds nothing to the largest integer": Patch(
        "precision/integers-wrap[uint8]",
        "255 + 3 in uint8 is 0",
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
            "normal-state-restores": "randn",
            "function-state": "rand",
            "states-are-copies": "rand",
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
    "reads behind the end of a row": Patch(
        "kernels/lane-past-the-block[n33]", "sum to inf", _whole_blocks
    ),
    "launches 2^32 threads": Patch(
        "kernels/threads-of-a-launch", "was not refused", _checks_nothing
    ),
    "launches grids of any height": Patch(
        "kernels/grid-along-y[nvidia-h100-sxm]", "was not refused", _checks_nothing
    ),
    "counts warps of 32 on wave64": Patch(
        "kernels/warps-of-a-block[amd-mi300x]", "has 32 warps", _warps_of_32
    ),
    "plans for 132 units everywhere": Patch(
        "kernels/units-are-the-products[amd-mi300x]",
        "132 units",
        _limits_of_a_product(unit_count=132),
    ),
    "gives every GPU the shared memory of H100": Patch(
        "kernels/tiles-fit-shared-memory[amd-mi300x]", "in 65536 B", _shared_memory_of_h100
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
    "takes every fp8 everywhere": Patch(
        "kernels/fp8-of-the-architecture[amd-mi300x]", "is given ['float8_e4m3fn',", _every_fp8
    ),
    "tunes with AMD's options": Patch(
        "kernels/no-options-of-one-vendor[matmul]", "is given kpack, waves_per_eu", _options_of_amd
    ),
    "cuts products into tiles of 8": Patch(
        "kernels/tiles-fill-the-matrix-unit[nvidia-h100-sxm]", "a side below 16", _tiles_of_8
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
    "takes gfx90a for sm_90": Patch(
        "identity/same-numbers-other-hardware[9.0]", "is said to be of nvidia", _one_family_for_all
    ),
    "gives AMD the instructions of Hopper": Patch(
        "identity/instructions-are-of-one-vendor[gfx942]", "wgmma", _one_family_for_all
    ),
    "gives unknown products a peak": Patch(
        "identity/unknown-product-has-no-peak", "has the peaks", _family_peaks
    ),
    "computes peaks by a placeholder clock": Patch(
        "identity/peaks-are-the-products[amd-mi300x]", "its units make", _placeholder_clock
    ),
    "takes a replaced torch for ROCm's": Patch(
        "identity/build-is-told-from-its-files[replaced]", "not cuda", _trusts_the_name
    ),
    "calls its libraries by CUDA's names": Patch(
        "identity/libraries-are-the-vendors",
        "has the version of cudnn",
        attributes=(("versions", {"torch": torch.__version__, "cudnn": "9.10.2"}),),
    ),
    "says nothing of a disguised architecture": Patch(
        "identity/disguise-is-told", "nothing is said", _silent
    ),
    "tunes ranks for another library": Patch(
        "collectives/no-foreign-tuning", "NCCL_MIN_NCHANNELS", attributes=(("comm", TUNED),)
    ),
    "debugs AMD by CUDA's variable": Patch(
        "identity/debugging-variables[rocm]",
        "AMD_SERIALIZE_KERNEL is None",
        _variables(one_by_one={"CUDA_LAUNCH_BLOCKING": "1"}),
    ),
    "leaves MIOpen's caches at home": Patch(
        "identity/job-caches[rocm]", "home folder", _without(caches=("MIOPEN_USER_DB_PATH",))
    ),
    "keeps two caches in one place": Patch(
        "identity/job-caches[rocm]",
        "share a place",
        _variables(
            caches=dict.fromkeys(("MIOPEN_USER_DB_PATH", "MIOPEN_CUSTOM_CACHE_DIR"), "miopen")
        ),
    ),
    "tunes all devices into one file": Patch(
        "identity/tuning-results-by-device",
        "the same for every device",
        _variables(caches={"PYTORCH_TUNABLEOP_FILENAME": "tunableop.csv"}),
    ),
    "lets faults dump memory": Patch(
        "identity/faults-leave-no-dump[rocm]",
        "faults leave dumps",
        _variables(faults={"HSA_DISABLE_COREDUMP_ON_EXCEPTION": "0"}),
    ),
    "sets one name of the allocator": Patch(
        "identity/allocator-variables[rocm]",
        "PYTORCH_CUDA_ALLOC_CONF",
        _variables(allocator=("PYTORCH_HIP_ALLOC_CONF",)),
    ),
    "gives expandable segments to every stack": Patch(
        "identity/expandable-segments[older-toolkit]",
        "was not refused",
        _variables(expandable_from=None),
    ),
    "builds for another vendor": Patch(
        "identity/build-architectures[rocm]", "was not refused", _builds_for_all
    ),
    "sets variables by itself": Patch("identity/variables-are-not-set", "was changed", _sets_them),
    "reads watts as milliwatts": Patch(
        "telemetry/power-is-in-watts",
        "0.441 W from AMD SMI",
        _states(amd_smi_json, lambda state: replace(state, power_w=(state.power_w or 0) / 1000)),
    ),
    "reads not available as zero": Patch(
        "telemetry/not-available-is-no-zero",
        "are {'AMD SMI': 0.0",
        _states(amd_smi_json, lambda state: replace(state, power_w=state.power_w or 0.0)),
    ),
    "calls a hot spot a die": Patch(
        "telemetry/sensors-are-named",
        "both called",
        _states(
            amd_smi_json,
            lambda state: replace(
                state, temperatures_c={"gpu": 78.0, "edge": 51.0, "memory": 64.0}
            ),
        ),
    ),
    "reads one sensor of many": Patch(
        "telemetry/sensors-are-named",
        "three sensors are",
        _states(amd_smi_json, lambda state: replace(state, temperatures_c={"gpu": 51.0})),
    ),
    "reads a clock where there is none": Patch(
        "telemetry/not-available-is-no-zero",
        "its clock",
        _states(nvidia_smi_text, lambda state: replace(state, clock_mhz=state.clock_mhz or 0.0)),
    ),
    "takes NUMA balancing for off": Patch(
        "telemetry/host-settings[slow]", "NUMA balancing and IOMMU are (False", _balancing_unread
    ),
}

"""Faults in the library's rules and data: each test of them fails with a sentence that fits."""

from __future__ import annotations

import importlib
import inspect
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from portagpu.checks import diagnostics as diagnostics
from portagpu.devices import discovery as candidates
from portagpu.devices.sizing import Sizing
from portagpu.facts import visible
from portagpu.facts.torchbuild import read_build
from portagpu.train.kernels import plan
from portagpu_cuda.formats import nvidia_smi_text
from portagpu_rocm.formats import amd_smi_json
from tests.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def _module(name: str) -> Any:
    """The file of tests, in whichever folder."""
    (path,) = (ROOT / "tests").glob(f"**/test_{name}.py")
    return importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))


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
    monkeypatch.setattr(plan.Variant, "why_not", lambda variant, target: "")


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
        module = _module("launch_limits")
        good = module._sizing
        monkeypatch.setattr(module, "_sizing", lambda product: replace(good(product), **changes))

    return patch


def _one_family_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Facts are looked up by the number, as a capability is compared."""
    module = _module("vendors_apart")
    good = module.identify
    monkeypatch.setattr(
        module, "identify", lambda vendor, arch, product: good("nvidia", "sm_90", product)
    )


def _family_peaks(monkeypatch: pytest.MonkeyPatch) -> None:
    module = _module("vendors_apart")
    known = module.load_target("amd-mi300x")
    monkeypatch.setattr(module, "identify", lambda *arguments: known)


def _placeholder_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Peaks by a clock of 1700 MHz for whatever is of AMD."""
    module = _module("vendors_apart")
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
    module = _module("vendors_apart")

    def guess(folder: Any) -> Any:
        build = read_build(folder)
        return build if "+" in str(build.version) else replace(build, kind="rocm")

    monkeypatch.setattr(module, "read_build", guess)


def _silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnostics, "vendors", dict)


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
    module = _module("telemetry_meaning")
    good = module.read_settings
    monkeypatch.setattr(
        module, "read_settings", lambda tree: replace(good(tree), numa_balancing=False)
    )


PATCHES: dict[str, tuple[str, str, Callable[[pytest.MonkeyPatch], None]]] = {
    # fault: (the test that catches it, what its sentence says, what breaks)
    "parses a mask in the wrong index space": (
        "visible_masks.py::test_two_index_spaces",
        "shows",
        _one_index_space,
    ),
    "shows all devices for an empty mask": (
        "visible_masks.py::test_empty_mask_hides_all[cuda]",
        "shows",
        _empty_mask_shows_all,
    ),
    "launches 2^32 threads": (
        "launch_limits.py::test_threads_of_a_launch",
        "was not refused",
        _checks_nothing,
    ),
    "launches grids of any height": (
        "launch_limits.py::test_grid_along_y[nvidia-h100-sxm]",
        "was not refused",
        _checks_nothing,
    ),
    "counts warps of 32 on wave64": (
        "launch_limits.py::test_warps_of_a_block[amd-mi300x]",
        "has 32 warps",
        _warps_of_32,
    ),
    "plans for 132 units everywhere": (
        "launch_limits.py::test_units_are_the_products[amd-mi300x]",
        "132 units",
        _limits_of_a_product(unit_count=132),
    ),
    "gives every GPU the shared memory of H100": (
        "kernel_plans.py::test_tiles_fit_shared_memory[amd-mi300x]",
        "in 65536 B",
        _shared_memory_of_h100,
    ),
    "takes every fp8 everywhere": (
        "kernel_plans.py::test_fp8_of_the_architecture[amd-mi300x]",
        "is given ['float8_e4m3fn',",
        _every_fp8,
    ),
    "tunes with AMD's options": (
        "kernel_plans.py::test_no_options_of_one_vendor[matmul]",
        "is given kpack, waves_per_eu",
        _options_of_amd,
    ),
    "cuts products into tiles of 8": (
        "kernel_plans.py::test_tiles_fill_the_matrix_unit[nvidia-h100-sxm]",
        "a side below 16",
        _tiles_of_8,
    ),
    "takes gfx90a for sm_90": (
        "vendors_apart.py::test_same_numbers_other_hardware[9.0]",
        "is said to be of nvidia",
        _one_family_for_all,
    ),
    "gives AMD the instructions of Hopper": (
        "vendors_apart.py::test_instructions_are_of_one_vendor[gfx942]",
        "wgmma",
        _one_family_for_all,
    ),
    "gives unknown products a peak": (
        "vendors_apart.py::test_unknown_product_has_no_peak",
        "has the peaks",
        _family_peaks,
    ),
    "computes peaks by a placeholder clock": (
        "vendors_apart.py::test_peaks_are_the_products[amd-mi300x]",
        "its units make",
        _placeholder_clock,
    ),
    "takes a replaced torch for ROCm's": (
        "vendors_apart.py::test_build_is_distinguished_from_its_files[replaced]",
        "not cuda",
        _trusts_the_name,
    ),
    "says nothing of a disguised architecture": (
        "vendors_apart.py::test_disguise_is_reported",
        "nothing is said",
        _silent,
    ),
    "debugs AMD by CUDA's variable": (
        "vendor_variables.py::test_debugging_variables[rocm]",
        "AMD_SERIALIZE_KERNEL is None",
        _variables(one_by_one={"CUDA_LAUNCH_BLOCKING": "1"}),
    ),
    "leaves MIOpen's caches at home": (
        "vendor_variables.py::test_job_caches[rocm]",
        "home folder",
        _without(caches=("MIOPEN_USER_DB_PATH",)),
    ),
    "keeps two caches in one place": (
        "vendor_variables.py::test_job_caches[rocm]",
        "share a place",
        _variables(
            caches=dict.fromkeys(("MIOPEN_USER_DB_PATH", "MIOPEN_CUSTOM_CACHE_DIR"), "miopen")
        ),
    ),
    "tunes all devices into one file": (
        "vendor_variables.py::test_tuning_results_by_device",
        "the same for every device",
        _variables(caches={"PYTORCH_TUNABLEOP_FILENAME": "tunableop.csv"}),
    ),
    "lets faults dump memory": (
        "vendor_variables.py::test_faults_leave_no_dump[rocm]",
        "faults leave dumps",
        _variables(faults={"HSA_DISABLE_COREDUMP_ON_EXCEPTION": "0"}),
    ),
    "sets one name of the allocator": (
        "vendor_variables.py::test_allocator_variables[rocm]",
        "PYTORCH_CUDA_ALLOC_CONF",
        _variables(allocator=("PYTORCH_HIP_ALLOC_CONF",)),
    ),
    "gives expandable segments to every stack": (
        "vendor_variables.py::test_expandable_segments[older-toolkit]",
        "was not refused",
        _variables(expandable_from=None),
    ),
    "builds for another vendor": (
        "vendor_variables.py::test_build_architectures[rocm]",
        "was not refused",
        _builds_for_all,
    ),
    "reads watts as milliwatts": (
        "telemetry_meaning.py::test_power_is_in_watts",
        "0.441 W from AMD SMI",
        _states(amd_smi_json, lambda state: replace(state, power_w=(state.power_w or 0) / 1000)),
    ),
    "reads not available as zero": (
        "telemetry_meaning.py::test_not_available_is_not_a_zero",
        "are {'AMD SMI': 0.0",
        _states(amd_smi_json, lambda state: replace(state, power_w=state.power_w or 0.0)),
    ),
    "calls a hot spot a die": (
        "telemetry_meaning.py::test_sensors_are_named",
        "both called",
        _states(
            amd_smi_json,
            lambda state: replace(
                state, temperatures_c={"gpu": 78.0, "edge": 51.0, "memory": 64.0}
            ),
        ),
    ),
    "reads one sensor of many": (
        "telemetry_meaning.py::test_sensors_are_named",
        "three sensors are",
        _states(amd_smi_json, lambda state: replace(state, temperatures_c={"gpu": 51.0})),
    ),
    "reads a clock where there is none": (
        "telemetry_meaning.py::test_not_available_is_not_a_zero",
        "its clock",
        _states(nvidia_smi_text, lambda state: replace(state, clock_mhz=state.clock_mhz or 0.0)),
    ),
    "takes NUMA balancing for off": (
        "telemetry_meaning.py::test_host_settings[slow]",
        "NUMA balancing and IOMMU are (False",
        _balancing_unread,
    ),
}


@pytest.mark.parametrize("fault", PATCHES)
def test_fault_fails_the_test_for_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fault: str
) -> None:
    named, sentence, apply = PATCHES[fault]
    file, _, rest = named.partition(".py::")
    name, _, value = rest.rstrip("]").partition("[")
    test = getattr(_module(file), name)
    wanted = list(inspect.signature(test).parameters)
    given = {each: tmp_path if each == "tmp_path" else value for each in wanted}
    apply(monkeypatch)
    with pytest.raises(AssertionError, match=re.escape(sentence)):
        test(**given)

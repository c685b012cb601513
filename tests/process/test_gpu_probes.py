"""What the plugins make of NVML and AMD SMI: stand-ins for the modules, asked in real children."""

from __future__ import annotations

import importlib.util
import os
import textwrap
from dataclasses import replace

import pytest

from portagpu.base.patience import LIMITS
from portagpu.base.plugins import install
from portagpu.facts.host.tree import Tree
from portagpu.facts.readings import Findings, GpuPart, Pcie, Reading
from portagpu.facts.readings import stream as asking
from portagpu.facts.readings.model import to_document
from portagpu_cuda.gpus import mig_profile
from portagpu_cuda.plugin import CudaPlugin
from portagpu_rocm.plugin import RocmPlugin
from tests.support.fake_nvml import PYNVML
from tests.support.gpu_trees import amd_gpu, machine, nvidia_gpu
from tests.support.host_trees import build

PLUGINS = {"cuda": CudaPlugin, "rocm": RocmPlugin}
MODULES = {"cuda": "pynvml", "rocm": "amdsmi"}
MIB = 1 << 20
both = pytest.mark.parametrize("kind", ["cuda", "rocm"])


def tree(folder, *gpus):
    return Tree(build(folder / "root", *machine(*gpus)))


def here(folder, kind):
    """A machine with one GPU of that vendor, at the address of the stand-ins'."""
    make = {"cuda": nvidia_gpu, "rocm": amd_gpu}[kind]
    place = {"cuda": "0000:83:00.0", "rocm": "0000:05:00.0"}[kind]
    return tree(folder, make(0, pci=place))


# --- NVML

H200_IDLE = {
    "clock_mhz": 345.0,
    "memory_clock_mhz": 3201.0,
    "temperature_c": 28.0,
    "power_w": 77.67,
}


def nvml_changed(change):
    return f"{textwrap.dedent(PYNVML)}\n{change}\n"


def test_nvml_says_all_that_it_knows_of_a_gpu(stand_in, tmp_path):
    stand_in("pynvml", PYNVML)
    gpus = (nvidia_gpu(0, pci="0000:83:00.0"), nvidia_gpu(1, pci="0000:04:00.0"))
    found = CudaPlugin(tree(tmp_path, *gpus)).probe()
    assert found.problems == ()
    assert found.versions == {"driver": "590.48.01", "nvml": "13.590.48.01", "cuda": "13.1"}
    h200, mig = found.readings
    assert (h200.pci, h200.uuid, h200.name, h200.arch) == (
        "0000:83:00.0",
        "GPU-aa",
        "NVIDIA H200",
        "sm_90",
    )
    assert (h200.device_id, h200.subsystem_id) == (0x2335, 0x18BE)
    assert h200.memory_bytes == 143771 * MIB
    assert h200.pcie == Pcie(generation=1, width=16, max_generation=5, device_width=16, replays=0)
    assert h200.firmware == {"vbios": "96.00.C2.00.02"}
    assert (h200.mig_enabled, h200.parts) == (False, ())
    # (uncorrected is kind 1, the life's is counter 1)
    errors = h200.memory
    assert (errors.corrected, errors.corrected_total) == (0, 1)
    assert (errors.uncorrected, errors.uncorrected_total) == (10, 11)
    assert errors.remapped_rows == {"correctable": 1, "uncorrectable": 2}
    assert (errors.pending, errors.remap_failed, errors.retired_pages) == (False, False, {})
    state = h200.state
    assert state.temperatures_c == {"gpu": 28, "memory": 38}
    assert state.limits_c == {"shutdown": 92, "slowdown": 89}
    assert (state.power_w, state.power_limit_w, state.max_clock_mhz) == (77.67, 700.0, 1980)
    assert state.throttling == ("hw_thermal_slowdown",), "idle is not a reason that slows"
    assert mig.mig_enabled
    assert mig.parts == (
        GpuPart(
            index=0,
            uuid="MIG-slice0",
            profile="3g.20gb",
            memory_bytes=19968 * MIB,
            unit_count=42,
        ),
        GpuPart(
            index=2,
            uuid="MIG-slice2",
            profile="3g.20gb",
            memory_bytes=19968 * MIB,
            unit_count=42,
        ),
    )


def test_a_gpu_that_fell_off_the_bus_is_a_problem_and_the_others_are_read(stand_in, tmp_path):
    lost = """
def nvmlDeviceGetPciInfo(gpu, read=nvmlDeviceGetPciInfo):
    if gpu == "mig":
        raise NVMLError("GPU is lost")
    return read(gpu)
"""
    stand_in("pynvml", nvml_changed(lost))
    found = CudaPlugin(here(tmp_path, "cuda")).probe()
    assert [reading.name for reading in found.readings] == ["NVIDIA H200"]
    assert found.problems == ("NVML cannot read its GPU 1: NVMLError: GPU is lost",)


@pytest.mark.parametrize(
    ("change", "gone"),
    [
        ("def nvmlDeviceGetPowerUsage(gpu): raise NVMLError('Not Supported')", ["power_w"]),
        ("del nvmlDeviceGetClockInfo", ["clock_mhz", "memory_clock_mhz"]),
        ("def nvmlDeviceGetTemperature(gpu, s): return 45000", ["temperature_c"]),
        ("def nvmlDeviceGetPowerUsage(gpu): return 0xFFFFFFFF", ["power_w"]),
        ("def nvmlDeviceGetPowerUsage(gpu): return 'N/A'", ["power_w"]),
    ],
)
def test_a_reading_that_nvml_refuses_or_cannot_be_is_absent_alone(stand_in, tmp_path, change, gone):
    stand_in("pynvml", nvml_changed(change))
    plugin = CudaPlugin(here(tmp_path, "cuda"))
    plugin.remember(0, "0000:83:00.0", None)
    assert plugin.telemetry(0) == {k: v for k, v in H200_IDLE.items() if k not in gone}


@pytest.mark.parametrize(
    ("where", "name"),
    [
        (("0000:83:00.0", None), "NVIDIA H200"),
        ((None, "GPU-aa"), "NVIDIA H200"),
        ((None, "MIG-slice2"), "NVIDIA A100-SXM4-40GB"),
    ],
    ids=["pci", "uuid", "mig"],
)
def test_readings_are_of_the_gpu_at_that_place(stand_in, where, name):
    reported = "def nvmlDeviceGetPowerUsage(gpu): return 77670 if gpu == 'h200' else 55000"
    stand_in("pynvml", nvml_changed(reported))
    plugin = CudaPlugin()
    plugin.remember(3, *where)
    expected = 77.67 if name == "NVIDIA H200" else 55.0
    assert plugin.telemetry(3)["power_w"] == expected


def test_the_newer_call_for_temperature_is_preferred(stand_in):
    stand_in("pynvml", nvml_changed("def nvmlDeviceGetTemperatureV(gpu, sensor): return 29"))
    plugin = CudaPlugin()
    plugin.remember(0, "0000:83:00.0", None)
    assert plugin.telemetry(0)["temperature_c"] == 29.0


def test_an_older_module_has_other_names_for_what_slows(stand_in, tmp_path):
    older = "nvmlDeviceGetCurrentClocksThrottleReasons = lambda gpu: 0x4\n"
    older += "del nvmlDeviceGetCurrentClocksEventReasons"
    stand_in("pynvml", nvml_changed(older))
    reading = CudaPlugin(here(tmp_path, "cuda")).probe().readings[0]
    assert reading.state.throttling == ("sw_power_cap",)


@pytest.mark.parametrize(
    ("name", "profile"),
    [
        ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", "3g.20gb"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb+me", "1g.10gb+me"),
        ("NVIDIA H200", None),
        ("", None),
    ],
)
def test_the_profile_of_a_slice_is_in_its_name(name, profile):
    assert mig_profile(name) == profile


# --- AMD SMI

AMDSMI = """
    class AmdSmiClkType: GFX, MEM = "gfx", "mem"
    class AmdSmiTemperatureType: EDGE, JUNCTION, VRAM = "edge", "junction", "vram"
    class AmdSmiTemperatureMetric: CURRENT, CRITICAL, EMERGENCY = "now", "critical", "emergency"
    class AmdSmiMemoryType: VRAM = "vram"
    def amdsmi_init(): pass
    def amdsmi_get_processor_handles(): return ["far", "near"]
    def amdsmi_get_gpu_device_bdf(gpu):
        return {"far": "0000:C6:00.0", "near": "0000:05:00.0"}[gpu]
    def amdsmi_get_gpu_device_uuid(gpu): return "afff74a1-0000-1000-8054-e92b0a5d57c8"
    def amdsmi_get_gpu_enumeration_info(gpu):
        return {"drm_render": 128, "drm_card": 1, "hip_id": 3, "hip_uuid": "GPU-54e92b0a5d57c8ff"}
    def amdsmi_get_gpu_asic_info(gpu):
        return {"market_name": "AMD Instinct MI300X OAM", "device_id": "0x74a1", "rev_id": "0x00",
                "asic_serial": "0x54E92B0A5D57C8FF", "num_compute_units": 304,
                "target_graphics_version": "gfx942", "subsystem_id": "0x74a1"}
    def amdsmi_get_gpu_memory_total(gpu, kind): return 206141652992
    def amdsmi_get_gpu_memory_usage(gpu, kind): return 297 << 20
    def amdsmi_get_gpu_compute_partition(gpu): return "SPX"
    def amdsmi_get_gpu_memory_partition(gpu): return "NPS1"
    def amdsmi_get_gpu_driver_info(gpu): return {"driver_version": "6.10.5"}
    def amdsmi_get_rocm_version(): return True, "7.0.2"
    def amdsmi_get_lib_version(): return {"major": 26, "minor": 0, "release": 2, "build": "x"}
    def amdsmi_get_xgmi_info(gpu): return {"xgmi_hive_id": 0x9A1E, "xgmi_node_id": 1}
    def amdsmi_get_pcie_info(gpu):
        return {"pcie_static": {"max_pcie_width": 16, "max_pcie_speed": 32000},
                "pcie_metric": {"pcie_width": 16, "pcie_speed": 32000, "pcie_replay_count": 0}}
    def amdsmi_get_gpu_total_ecc_count(gpu):
        return {"correctable_count": 2, "uncorrectable_count": 0, "deferred_count": 0}
    def amdsmi_get_gpu_ecc_enabled(gpu): return 5
    def amdsmi_get_gpu_bad_page_info(gpu): return []
    def amdsmi_get_clock_info(gpu, kind):
        return {"clk": {"gfx": 132, "mem": 900}[kind], "max_clk": 2100}
    def amdsmi_get_temp_metric(gpu, sensor, metric):
        return {"edge": "N/A", "junction": 41, "vram": 35}[sensor] if metric == "now" else 110
    def amdsmi_get_power_cap_info(gpu): return {"power_cap": 750000000}
    def amdsmi_get_gpu_activity(gpu): return {"gfx_activity": 0, "umc_activity": "N/A"}
    def amdsmi_get_gpu_process_list(gpu): return []
    def amdsmi_get_power_info(gpu):
        return {"current_socket_power": 137 if gpu == "near" else 999,
                "average_socket_power": "N/A", "power_limit": 750}
"""
NEAR = {"clock_mhz": 132.0, "memory_clock_mhz": 900.0, "temperature_c": 41.0, "power_w": 137.0}


def amdsmi_changed(change):
    return f"{textwrap.dedent(AMDSMI)}\n{change}\n"


def rocm_readings():
    plugin = RocmPlugin()
    plugin.remember(0, "0000:05:00.0", "GPU-e3aa140f9a5f9e31")
    return plugin.telemetry(0)


def test_amdsmi_says_all_that_it_knows_of_a_gpu(stand_in, tmp_path):
    stand_in("amdsmi", AMDSMI)
    gpus = (amd_gpu(0, pci="0000:c6:00.0"), amd_gpu(1, pci="0000:05:00.0"))
    found = RocmPlugin(tree(tmp_path, *gpus)).probe()
    assert (found.kind, found.problems) == ("amdsmi", ())
    assert found.versions == {"driver": "6.10.5", "rocm": "7.0.2", "amdsmi": "26.0.2"}
    far, near = found.readings
    assert (far.pci, far.index, near.pci, near.index) == ("0000:c6:00.0", 0, "0000:05:00.0", 1)
    assert (near.uuid, near.unique_id) == ("GPU-54e92b0a5d57c8ff", 0x54E92B0A5D57C8FF)
    assert (near.name, near.arch, near.unit_count) == ("AMD Instinct MI300X OAM", "gfx942", 304)
    assert (near.device_id, near.revision_id, near.memory_bytes) == (0x74A1, 0, 206141652992)
    assert (near.compute_partition, near.memory_partition, near.hive) == ("SPX", "NPS1", "0x9a1e")
    assert near.pcie == Pcie(
        generation=5, width=16, device_generation=5, device_width=16, replays=0
    )
    assert (near.memory.ecc_enabled, near.memory.corrected) == (True, 2)
    assert (near.memory.retired_pages, near.memory.pending) == (
        {"retired": 0, "unreservable": 0},
        False,
    )
    assert near.state.temperatures_c == {"hotspot": 41, "mem": 35}, "N/A is absent"
    assert near.state.limits_c == {"slowdown": 110, "shutdown": 110, "memory-slowdown": 110}
    assert (near.state.power_w, near.state.power_limit_w) == (137, 750.0)


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        (
            "{'active_prochot_thrm': False, 'active_ppt_pwr': True, 'active_vr_thrm': 'N/A'}",
            ("ppt",),
        ),
        ("{'active_prochot_thrm': False, 'active_ppt_pwr': False}", ()),
        ("{'active_prochot_thrm': 'N/A', 'acc_ppt_pwr': 5}", None),
        ("{}", None),
    ],
)
def test_what_slows_a_gpu_of_amd_is_stated_or_unknown(stand_in, tmp_path, stated, expected):
    stand_in("amdsmi", amdsmi_changed(f"def amdsmi_get_violation_status(gpu): return {stated}"))
    (found,) = RocmPlugin(here(tmp_path, "rocm")).probe().readings
    assert found.state.throttling == expected


def test_amdsmi_readings_are_of_the_gpu_at_that_address(stand_in):
    stand_in("amdsmi", AMDSMI)
    assert rocm_readings() == NEAR, "not the second of AMD SMI's GPUs, whose address it is"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        # of MI200 and before: the other key; of a second die of MI250: none
        ("{'current_socket_power': 'N/A', 'average_socket_power': 39}", 39.0),
        ("{'current_socket_power': 'N/A', 'average_socket_power': 'N/A'}", None),
        ("{'current_socket_power': 0, 'average_socket_power': 0xFFFF}", None),
        ("{'average_socket_power': 0xFFFFFFFF}", None),
        ("{}", None),
        ("'no power'", None),
    ],
)
def test_not_available_is_absent_and_not_zero(stand_in, change, expected):
    stand_in("amdsmi", amdsmi_changed(f"def amdsmi_get_power_info(gpu): return {change}"))
    assert rocm_readings().get("power_w") == expected


def test_the_clocks_of_older_amdsmi_have_another_key(stand_in):
    older = "def amdsmi_get_clock_info(gpu, kind): return {'cur_clk': 300}"
    stand_in("amdsmi", amdsmi_changed(older))
    assert rocm_readings()["clock_mhz"] == 300.0


def test_a_uuid_of_zeros_is_unknown(stand_in, tmp_path):
    zero = "def amdsmi_get_gpu_enumeration_info(gpu): return {'hip_uuid': 'GPU-0000000000000000'}"
    stand_in("amdsmi", amdsmi_changed(zero))
    assert RocmPlugin(here(tmp_path, "rocm")).probe().readings[0].uuid is None


PYRSMI = """
    import sys
    assert sys.modules["amdsmi"] is None, "pyrsmi would try the broken amdsmi again"
    def smi_initialize(): pass
    def smi_get_device_count(): return 2
    def smi_get_device_pci_id(index): return [0xC600, 0x500][index]
    def smi_get_device_name(index): return "AMD Instinct MI300X"
    def smi_get_device_memory_total(index): return [-1, 206141652992][index]
    def smi_get_device_average_power(index): return [999.0, 137.0][index]
"""


PYRSMI_STATE = """
    class Struct:
        def __init__(self, **values): self.__dict__.update(values)
    # rocml.py: MT/s, counters, and -1 for an error; 255 is the fastest fan
    def smi_get_device_utilization(index): return 97
    def smi_get_device_memory_busy(index): return [65535, 12][index]
    def smi_get_device_memory_used(index): return 5 << 30
    def smi_get_device_fan_speed(index): return [-1, 51][index]
    def smi_get_device_fan_rpms(index): return [-1, 1200][index]
    def smi_get_device_pci_replay_counter(index): return [-1, 3][index]
    def smi_get_device_pcie_bandwidth(index):
        if index == 0: return -1
        return Struct(pcie_static=Struct(max_pcie_width=16, max_pcie_speed=32000),
                      pcie_metric=Struct(pcie_width=8, pcie_speed=16000))
"""


def test_pyrsmi_says_more_than_name_memory_and_power(stand_in, tmp_path):
    stand_in("amdsmi", "raise KeyError('libamd_smi.so')")
    stand_in("pyrsmi.rocml", textwrap.dedent(PYRSMI) + textwrap.dedent(PYRSMI_STATE))
    gpus = (amd_gpu(0, pci="0000:c6:00.0"), amd_gpu(1, pci="0000:05:00.0"))
    far, near = RocmPlugin(tree(tmp_path, *gpus)).probe().readings
    assert (near.state.utilization_percent, near.state.memory_utilization_percent) == (97, 12)
    assert (near.state.memory_used_bytes, near.state.fan_rpm) == (5 << 30, 1200)
    assert near.state.fan_percent == 20
    assert near.pcie == Pcie(generation=4, width=8, device_generation=5, device_width=16, replays=3)
    assert far.state.memory_utilization_percent is None, "65535 is the library's N/A"
    assert (far.state.fan_percent, far.state.fan_rpm, far.pcie) == (None, None, Pcie())


@pytest.mark.parametrize(
    ("place", "pci"), [(0x1_C600, "0001:c6:00.0"), (0x1_0000_C608, "0001:c6:01.0")]
)
def test_a_domain_is_where_either_form_of_pyrsmi_has_it(stand_in, tmp_path, place, pci):
    stand_in("amdsmi", "raise KeyError('libamd_smi.so')")
    source = textwrap.dedent(PYRSMI) + f"\ndef smi_get_device_pci_id(index): return {place}\n"
    stand_in("pyrsmi.rocml", source)
    found = RocmPlugin(tree(tmp_path, amd_gpu(0, pci=pci))).probe()
    assert {reading.pci for reading in found.readings} == {pci}


# --- libraries that do not answer


@both
def test_nothing_is_asked_where_the_machine_has_no_such_gpu(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(asking, "call", lambda *_, **__: pytest.fail("a library was asked"))
    others = {"cuda": amd_gpu(0), "rocm": nvidia_gpu(0)}[kind]
    assert PLUGINS[kind](tree(tmp_path, others)).probe() == Findings(kind=kind)


def test_under_wsl_nvml_is_asked(stand_in, tmp_path):
    stand_in("pynvml", PYNVML)
    root = Tree(build(tmp_path / "root", {"dev/dxg": ""}))
    assert len(CudaPlugin(root).probe().readings) == 2


@both
def test_a_library_that_hangs_is_one_problem(stand_in, tmp_path, monkeypatch, kind):
    monkeypatch.setattr(asking, "LIMITS", replace(LIMITS, library_s=2.0))
    stand_in(MODULES[kind], "import time; time.sleep(600)")
    plugin = PLUGINS[kind](here(tmp_path, kind))
    (problem,) = plugin.probe().problems
    assert "did not answer within 2 s" in problem, problem
    plugin.remember(0, "0000:05:00.0", None)
    assert plugin.telemetry(0) == {}


@both
def test_what_a_library_prints_is_not_an_answer(stand_in, tmp_path, kind):
    source = {"cuda": PYNVML, "rocm": AMDSMI}[kind]
    stand_in(MODULES[kind], "print('noise {')\n" + textwrap.dedent(source))
    found = PLUGINS[kind](here(tmp_path, kind)).probe()
    assert found.readings, found.problems


@both
def test_gpus_that_pci_does_not_show_are_another_versions_structures(stand_in, tmp_path, kind):
    stand_in(MODULES[kind], {"cuda": PYNVML, "rocm": AMDSMI}[kind])
    found = PLUGINS[kind](here(tmp_path, kind)).probe()
    assert len(found.readings) == 1
    (problem,) = found.problems
    assert "shows 1 GPU(s) where PCI shows none" in problem
    assert "another version" in problem


def test_an_answer_in_another_form_is_a_problem(monkeypatch, tmp_path):
    monkeypatch.setattr(asking, "call", lambda *_, **__: ({"kind": "nvml", "readings": 3}, ""))
    found = CudaPlugin(here(tmp_path, "cuda")).probe()
    assert found.problems == ("NVML does not answer: findings.readings: must be a list, not 3",)


def test_values_of_no_device_are_absent(monkeypatch, tmp_path):
    reading = Reading(
        source="nvml",
        vendor="nvidia",
        pci="0000:83:00.0",
        memory_bytes=3,
        pcie=Pcie(generation=9, width=16, max_generation=0, max_width=7),
    )
    document = to_document(Findings(kind="nvml", readings=(reading,)))
    document["readings"][0]["state"] |= {"power_w": float("nan"), "utilization_percent": 4e9}
    monkeypatch.setattr(asking, "call", lambda *_, **__: (document, ""))
    (found,) = CudaPlugin(here(tmp_path, "cuda")).probe().readings
    assert (found.memory_bytes, found.pcie) == (None, Pcie(width=16))
    assert (found.state.power_w, found.state.utilization_percent) == (None, None)


@both
def test_a_device_that_was_not_opened_is_found_by_its_address(monkeypatch, kind):
    asked = []

    def torch_says(module, function, arguments=(), *, limit_s):
        return [["0000:c6:00.0", "GPU-a"], ["0000:05:00.0", "GPU-b"]], ""

    def library_says(module, library, addresses=(), only=None):
        asked.append((module, only))
        return Findings(kind=library)

    monkeypatch.setattr("portagpu.base.subprocesses.call", torch_says)
    monkeypatch.setattr("portagpu.facts.readings.stream.probe", library_says)
    plugin = PLUGINS[kind]()
    assert plugin.telemetry(1) == {}
    assert asked == [(plugin.prober, "0000:05:00.0")], f"{asked}"
    assert plugin.telemetry(2) == {}, "a device that is not there has readings"
    assert len(asked) == 1


# --- the vendors' real packages on a machine without their hardware


@pytest.mark.parametrize(
    ("module", "prober", "reason"),
    [
        ("pynvml", "portagpu_cuda.gpus", "pynvml fails: NVMLError_LibraryNotFound"),
        ("amdsmi", "portagpu_rocm.gpus", "amdsmi fails: KeyError: 'libamd_smi.so'"),
        ("pyrsmi", "portagpu_rocm.gpus", "pyrsmi fails: ROCMLError_LibraryNotFound"),
    ],
)
def test_the_real_package_without_its_library_is_a_reason(module, prober, reason):
    # looked for and not imported: amdsmi without its library fails to import, which is the test
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    if any(os.path.exists(f"/dev/{name}") for name in ("nvidiactl", "kfd")):  # noqa: PTH110
        pytest.skip("this machine has a driver, which may answer")
    found = asking.probe(prober, "library")
    assert found.readings == (), f"{module} read {found} without hardware"
    (problem,) = found.problems
    assert reason in problem, problem
    assert "\n" not in problem, "more than one line"


def test_a_package_that_is_not_installed_says_what_to_install(stand_in, tmp_path):
    for name in ("pynvml", "amdsmi", "pyrsmi"):
        stand_in(name, f"raise ModuleNotFoundError('no', name={name!r})")
    (nvml,) = CudaPlugin(here(tmp_path / "n", "cuda")).probe().problems
    assert nvml.endswith(f"pynvml is not installed: {install('cuda')}")
    (smi,) = RocmPlugin(here(tmp_path / "a", "rocm")).probe().problems
    assert "amdsmi is not installed: install the one of your ROCm" in smi
    assert smi.endswith(f"pyrsmi is not installed: {install('rocm')}")

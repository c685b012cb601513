"""AMD's tools: texts written by hand from their documentation, oldest and newest generation."""

from __future__ import annotations

import json
import random

import pytest

from portagpu.facts.formats.json_xml import json_documents
from portagpu.facts.readings import Findings, FormatError, Link, Node, Reading
from portagpu_rocm.formats import (
    amd_smi_json,
    amd_smi_text,
    amdgpu_top,
    rocm_smi_json,
    rocm_smi_text,
    rocminfo,
)
from portagpu_rocm.formats._amd import gfx_arch, size
from portagpu_rocm.formats._amd_smi import most_bandwidth
from tests.support import format_texts as texts
from tests.support.looped import looped

FORMATS = (amd_smi_json, amd_smi_text, rocm_smi_json, rocm_smi_text, rocminfo, amdgpu_top)
SAMPLES = {
    amd_smi_json: (
        texts.STATIC_JSON_NEW,
        texts.METRIC_JSON_OLD,
        texts.TOPOLOGY_JSON_NEW,
        texts.TOPOLOGY_JSON_OLD,
        texts.PARTITION_JSON,
        texts.XGMI_JSON,
    ),
    amd_smi_text: (
        texts.STATIC_TEXT,
        texts.METRIC_TEXT,
        texts.MONITOR_OLD,
        texts.MONITOR_NEW,
        texts.TOPOLOGY_TEXT,
        texts.XGMI_TEXT,
        texts.PARTITION_TEXT,
        texts.SUMMARY,
        texts.LIST_CSV,
        texts.PROCESS_TEXT,
    ),
    rocm_smi_json: (texts.ROCM_JSON_OLD, texts.ROCM_JSON_NEW),
    rocm_smi_text: (
        texts.CONCISE_OLD,
        texts.CONCISE_NAMED,
        texts.CONCISE_NEW,
        texts.SHOWTOPO,
        texts.SHOWRAS,
    ),
    rocminfo: (texts.ROCMINFO,),
    amdgpu_top: (texts.AMDGPU_TOP, texts.AMDGPU_TOP_DUMP),
}
CASES = [(module, text) for module, sample in SAMPLES.items() for text in sample]


def only(findings: Findings) -> Reading:
    (reading,) = findings.readings
    return reading


def between(findings: Findings, a: int, b: int) -> Link:
    (link,) = (link for link in findings.links if (link.a.index, link.b.index) == (a, b))
    return link


@pytest.mark.parametrize(("module", "text"), CASES)
def test_each_text_is_of_one_format(module: object, text: str) -> None:
    assert [candidate for candidate in FORMATS if candidate.matches(text)] == [module]


@pytest.mark.parametrize("module", FORMATS)
@pytest.mark.parametrize("text", ["", "\n", "hello", "[]", "{}", "[1]", '"x"', "\ufffd\0", "GPU"])
def test_other_texts_are_refused(module: object, text: str) -> None:
    assert not module.matches(text)
    with pytest.raises(FormatError):
        module.parse(text)


# --- amd-smi ---------------------------------------------------------------------------------


def test_static_json_of_the_newest_generation() -> None:
    findings = amd_smi_json.parse(texts.STATIC_JSON_NEW)
    gpu = findings.readings[0]
    assert (gpu.index, gpu.pci, gpu.name, gpu.arch) == (0, "0000:75:00.0", "MI300X test", "gfx942")
    assert (gpu.device_id, gpu.subsystem_id, gpu.unit_count) == (0x74A1, 0x74A1, 304)
    assert gpu.memory_bytes == 196592 << 20
    assert (gpu.unique_id, gpu.uuid) == (0x1234, "GPU-0000000000001234")
    assert (gpu.numa_node, gpu.driver) == (1, "amdgpu")
    assert (gpu.compute_partition, gpu.memory_partition) == ("CPX", "NPS4")
    assert (gpu.pcie.device_generation, gpu.pcie.device_width) == (5, 16)
    assert gpu.pcie.generation is None
    assert gpu.state.power_limit_w == 750
    assert gpu.state.limits_c == {"slowdown": 100, "shutdown": 110, "memory-slowdown": 105}
    assert gpu.firmware == {"VBIOS": "022.040"}
    assert gpu.memory.ecc_enabled is True
    assert findings.versions == {"amdgpu": "6.14.14"}


def test_what_is_not_available_is_unknown_and_not_zero() -> None:
    gpu = amd_smi_json.parse(texts.STATIC_JSON_NEW).readings[1]
    assert (gpu.index, gpu.name, gpu.arch, gpu.unique_id) == (1, None, None, None)
    assert (gpu.memory_bytes, gpu.unit_count, gpu.numa_node) == (None, None, None)
    assert gpu.state.power_limit_w is None
    assert gpu.state.limits_c == {}
    assert gpu.memory.ecc_enabled is None


def test_metric_json_with_plain_strings() -> None:
    gpu = only(amd_smi_json.parse(texts.METRIC_JSON_OLD))
    assert gpu.state.power_w == 117
    assert gpu.state.temperatures_c == {"hotspot": 42, "mem": 40}
    assert (gpu.state.clock_mhz, gpu.state.max_clock_mhz) == (132, 2100)
    assert gpu.state.memory_clock_mhz == 900
    assert gpu.state.utilization_percent == 0
    assert gpu.state.memory_used_bytes == 283 << 20
    assert (gpu.memory.corrected, gpu.memory.uncorrected) == (3, 0)
    assert gpu.memory.by_block == {"UMC": (3, 0), "SDMA": (None, None)}
    assert (gpu.pcie.generation, gpu.pcie.width, gpu.pcie.replays) == (5, 16, 2)
    assert gpu.state.throttling == ()


def test_largest_numbers_of_a_type_are_unknown() -> None:
    text = json.dumps(
        [
            {
                "gpu": 0,
                "power": {"socket_power": 65535},
                "pcie": {"width": 65535, "replay_count": 2**32 - 1},
                "ecc": {"total_correctable_count": 2**64 - 1},
                "asic": {"num_compute_units": 4294967295},
            }
        ]
    )
    gpu = only(amd_smi_json.parse(text))
    assert (gpu.state.power_w, gpu.pcie.width, gpu.pcie.replays) == (None, None, None)
    assert (gpu.memory.corrected, gpu.unit_count) == (None, None)


def test_throttling_of_a_partition_counts_for_the_gpu() -> None:
    text = json.dumps(
        {
            "gpu_data": [
                {
                    "gpu": 0,
                    "throttle": {
                        "ppt_violation_status": [["NOT ACTIVE", "ACTIVE"], "N/A"],
                        "prochot_violation_status": "NOT ACTIVE",
                        "vr_thermal_violation_activity": {"value": 12, "unit": "%"},
                        "hbm_thermal_violation_activity": {"value": 0, "unit": "%"},
                    },
                }
            ]
        }
    )
    assert only(amd_smi_json.parse(text)).state.throttling == ("ppt", "vr_thermal")


@pytest.mark.parametrize("text", [texts.TOPOLOGY_JSON_OLD, texts.TOPOLOGY_JSON_NEW])
def test_topology_json_of_both_forms(text: str) -> None:
    findings = amd_smi_json.parse(text)
    assert len(findings.links) == 2
    link = between(findings, 0, 1)
    assert (link.kind, link.weight, link.hops) == ("xgmi", 15, 1)
    assert link.bandwidth_bytes_s == 100e9
    assert link.peer_access is True
    assert link.a.node is Node.GPU


def test_bandwidth_of_zero_is_not_stated() -> None:
    link = between(amd_smi_json.parse(texts.TOPOLOGY_JSON_NEW), 1, 0)
    assert (link.kind, link.bandwidth_bytes_s, link.peer_access) == ("pcie", None, False)


def test_several_documents_of_partitions_are_one() -> None:
    first, second = amd_smi_json.parse(texts.PARTITION_JSON).readings
    assert (first.compute_partition, first.memory_partition) == ("CPX", "NPS1")
    assert (second.compute_partition, second.memory_partition) == (None, "NPS1")
    assert first.extra["partition_id"] == "0"


@pytest.mark.parametrize("form", ["%s", '{"xgmi_metric": %s}', '{"xgmi_metric": [%s]}'])
def test_xgmi_json_has_the_rate_of_a_lane_and_of_the_link(form: str) -> None:
    text = form % texts.XGMI_JSON
    assert amd_smi_json.matches(text)
    link = between(amd_smi_json.parse(text), 0, 1)
    assert (link.speed_gbit_s, link.width, link.bandwidth_bytes_s) == (32, 16, 64e9)
    assert link.extra == {"read": "7 KB", "write": "9 KB"}


def test_static_text() -> None:
    findings = amd_smi_text.parse(texts.STATIC_TEXT)
    gpu = only(findings)
    assert (gpu.name, gpu.device_id, gpu.pci) == ("MI210 test", 0x740F, "0000:63:00.0")
    assert gpu.arch == "gfx90a"
    assert gpu.memory_bytes == 65520 << 20
    assert gpu.state.limits_c["shutdown"] == 115
    assert gpu.firmware["CP_MEC1"] == "78"
    assert findings.versions == {"amdgpu": "6.8.5"}


def test_metric_text_with_wrapped_arrays() -> None:
    gpu = only(amd_smi_text.parse(texts.METRIC_TEXT))
    assert gpu.state.utilization_percent == 5
    assert gpu.state.power_w == 40
    assert gpu.state.temperatures_c == {"edge": 31}
    assert gpu.memory.retired_pages == {"retired": 2}
    assert gpu.memory.pending is False


def test_the_uuid_of_a_list_is_the_serial_number_of_the_hardware() -> None:
    gpu = amd_smi_text.parse(texts.LIST_CSV).readings[0]
    assert gpu.unique_id == 0xAB01020304050607
    assert gpu.uuid == "GPU-ab01020304050607"
    assert gpu.pci == "0000:05:00.0"
    assert gpu.extra["kfd_id"] == "45412"


def test_a_process_that_is_none_is_zero_processes() -> None:
    first, second = amd_smi_text.parse(texts.PROCESS_TEXT).readings
    assert (first.state.processes, second.state.processes) == (2, 0)


def test_processes_of_a_csv_are_counted_a_gpu() -> None:
    text = "gpu,name,pid,mem_usage\n0,python3,100,1\n0,python3,101,2\n2,N/A,N/A,N/A\n"
    findings = amd_smi_text.parse(text)
    assert [(gpu.index, gpu.state.processes) for gpu in findings.readings] == [(0, 2), (2, 0)]


def test_monitor_of_both_generations() -> None:
    old, _ = amd_smi_text.parse(texts.MONITOR_OLD).readings
    assert (old.state.power_w, old.state.clock_mhz, old.state.utilization_percent) == (182, 1613, 0)
    assert old.state.memory_used_bytes == 283 << 20
    new, blind = amd_smi_text.parse(texts.MONITOR_NEW).readings
    assert (new.state.power_w, new.state.power_limit_w, new.state.clock_mhz) == (49, 750, 43)
    assert new.state.temperatures_c == {"hotspot": 27, "mem": 29}
    assert new.extra["vram_usage"] == "2.9/15.9 GB"
    assert (blind.state.power_w, blind.state.temperatures_c) == (None, {})


def test_topology_tables() -> None:
    findings = amd_smi_text.parse(texts.TOPOLOGY_TEXT)
    assert [gpu.pci for gpu in findings.readings] == ["0000:0c:00.0", "0000:22:00.0"]
    link = between(findings, 1, 0)
    assert (link.kind, link.weight, link.peer_access) == ("xgmi", 15, True)
    assert link.bandwidth_bytes_s == 50e9
    assert link.extra == {"coherent": "NC"}


def test_xgmi_tables_with_a_link_that_is_down_and_a_rate_that_is_none() -> None:
    findings = amd_smi_text.parse(texts.XGMI_TEXT)
    assert between(findings, 0, 1).up is False
    assert between(findings, 1, 0).up is True
    assert between(findings, 0, 1).speed_gbit_s is None
    assert findings.readings[0].extra["xgmi_ports"] == "U D X"


def test_versions_of_the_tool() -> None:
    text = "AMDSMI Tool: 27.0.0+6b | AMDSMI Library version: 27.0.0 | ROCm version: 10.0.0 | "
    findings = amd_smi_text.parse(text + "amdgpu version: N/A | ionic version: N/A\n")
    assert findings.versions == {"amdsmi": "27.0.0", "rocm": "10.0.0"}
    text = '[{"tool": "AMDSMI Tool", "amdsmi_library_version": "24.2", "rocm_version": "6.1.0"}]'
    assert amd_smi_json.matches(text)
    assert amd_smi_json.parse(text).versions == {"amdsmi": "24.2", "rocm": "6.1.0"}


def test_partition_tables() -> None:
    gpu = amd_smi_text.parse(texts.PARTITION_TEXT).readings[0]
    assert (gpu.compute_partition, gpu.memory_partition) == ("SPX", "NPS1")


def test_the_summary_of_rocm_7() -> None:
    findings = amd_smi_text.parse(texts.SUMMARY)
    first, second = findings.readings
    assert findings.versions == {"amdsmi": "26.0.0+abc", "amdgpu": "6.14.14", "rocm": "7.0.0"}
    assert (first.name, first.pci, first.compute_partition) == (
        "AMD Instinct X",
        "0000:83:00.0",
        "SPX",
    )
    assert (first.state.power_w, first.state.power_limit_w) == (135, 750)
    assert first.memory_bytes == 196288 << 20
    assert (second.name, second.state.power_w, second.compute_partition) == (None, None, None)


# --- rocm-smi --------------------------------------------------------------------------------


def test_rocm_smi_json_of_an_old_generation() -> None:
    findings = rocm_smi_json.parse(texts.ROCM_JSON_OLD)
    gpu = findings.readings[0]
    assert (gpu.pci, gpu.device_id, gpu.name) == ("0000:1e:00.0", 0x738C, None)
    assert gpu.subsystem_id == 0x0C34
    assert (gpu.state.clock_mhz, gpu.pcie.generation, gpu.pcie.width) == (300, 3, 16)
    assert gpu.state.power_w is None, "a secondary die measures no power"
    assert gpu.unique_id == 0x2150E7D042A1124
    assert gpu.numa_node is None, "4294967295 is not a node"
    assert between(findings, 1, 0).kind == "pcie"
    assert between(findings, 0, 1).weight == 40
    assert findings.versions == {"amdgpu": "6.2.4"}


def test_rocm_smi_json_of_a_new_generation() -> None:
    gpu = only(rocm_smi_json.parse(texts.ROCM_JSON_NEW))
    assert (gpu.name, gpu.arch) == ("AMD Instinct test", "gfx90a")
    assert (gpu.device_id, gpu.subsystem_id) == (0x740F, 0x0C34)
    assert gpu.state.power_w == 41
    assert (gpu.compute_partition, gpu.memory_partition) == ("SPX", "NPS1")


def test_concise_tables_of_three_generations() -> None:
    old = rocm_smi_text.parse(texts.CONCISE_OLD).readings[0]
    assert old.state.temperatures_c == {"edge": 52}
    assert (old.state.power_w, old.state.power_limit_w, old.state.clock_mhz) == (179, 300, 1700)
    first, second = rocm_smi_text.parse(texts.CONCISE_NAMED).readings
    assert (first.name, first.subsystem_id, first.device_id) == ("Instinct A", 0x0C34, None)
    assert second.name is None, "twenty characters are a name that was cut"
    assert (first.compute_partition, first.memory_partition) == (None, None)
    new = only(rocm_smi_text.parse(texts.CONCISE_NEW))
    assert (new.device_id, new.extra["guid"], new.extra["node id"]) == (0x74A0, "50375", "4")
    assert (new.memory_partition, new.compute_partition) == ("NPS1", "SPX")
    assert new.state.temperatures_c == {"junction": 48}
    assert new.state.utilization_percent == 7


def test_showtopo_has_matrices_and_nodes() -> None:
    findings = rocm_smi_text.parse(texts.SHOWTOPO)
    link = between(findings, 0, 1)
    assert (link.kind, link.weight, link.hops, link.peer_access) == ("xgmi", 15, 1, True)
    assert link.bandwidth_bytes_s == 100e9
    assert [gpu.numa_node for gpu in findings.readings] == [3, None]


def test_ras_and_pages() -> None:
    memory = only(rocm_smi_text.parse(texts.SHOWRAS)).memory
    assert memory.ecc_enabled is True
    assert memory.by_block == {"UMC": (1, 2)}
    assert memory.retired_pages == {"reserved": 1}
    assert memory.pending is True


# --- rocminfo and amdgpu_top -----------------------------------------------------------------


def test_rocminfo_reads_agents_that_are_gpus() -> None:
    findings = rocminfo.parse(texts.ROCMINFO)
    first, second = findings.readings
    assert (first.index, first.arch, first.warp_size, first.unit_count) == (0, "gfx90a", 64, 104)
    assert (first.uuid, first.unique_id) == ("GPU-b1fb27fd8857c0d3", 0xB1FB27FD8857C0D3)
    assert (first.pci, first.memory_bytes) == ("0000:63:00.0", 67092480 * 1024)
    assert first.extra["isa"] == "gfx90a:sramecc+:xnack-"
    assert (second.name, second.uuid, second.arch) == (None, None, "gfx1100")
    assert second.warp_size == 32
    assert findings.versions == {"hsa": "1.1", "amdgpu": "6.10.5"}


def test_an_address_that_two_agents_share_lacks_its_domain() -> None:
    text = texts.ROCMINFO.replace("25344", "256").replace("768", "256")
    assert [gpu.pci for gpu in rocminfo.parse(text).readings] == [None, None]


def test_amdgpu_top_lists_devices_that_are_suspended() -> None:
    findings = amdgpu_top.parse(texts.AMDGPU_TOP)
    gpu, asleep = findings.readings
    assert (gpu.arch, gpu.memory_bytes, gpu.unit_count) == ("gfx1036", 512 << 20, 2)
    assert (gpu.state.power_w, gpu.state.temperatures_c) == (27, {"edge": 43})
    assert (gpu.state.throttling, gpu.state.processes) == ((), 1)
    assert (asleep.index, asleep.pci, asleep.state.power_w) == (None, "0000:03:00.0", None)
    assert findings.versions == {"rocm": "7.12.0", "amdgpu_top": "0.11.5", "drm": "3.64.0"}


def test_amdgpu_top_dump_is_a_list_of_devices() -> None:
    gpu = only(amdgpu_top.parse(texts.AMDGPU_TOP_DUMP))
    assert (gpu.pcie.device_generation, gpu.pcie.max_generation, gpu.pcie.max_width) == (5, 4, 8)
    assert gpu.state.power_limit_w == 164
    assert gpu.state.throttling == ("PPT0",)
    assert gpu.state.limits_c == {"critical": 110, "shutdown": 115}


# --- helpers ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "bandwidth"),
    [("50000-100000", 100e9), ("0-0", None), ("N/A", None), ("100000", None), (None, None)],
)
def test_bandwidths_are_in_millions_of_bytes(text: str | None, bandwidth: float | None) -> None:
    assert most_bandwidth(text) == bandwidth


@pytest.mark.parametrize(
    ("text", "arch"),
    # LLVM's AMDGPU processors; what rsmi_get_gfx_target_version makes of the KFD's versions
    [
        ("gfx90a", "gfx90a"),
        ("gfx942:sramecc+:xnack-", "gfx942"),
        ("gfx9010", "gfx90a"),
        ("gfx9006", "gfx906"),
        ("gfx11000", "gfx1100"),
        ("gfx12001", "gfx1201"),
        ("gfx1030", "gfx1030"),
        ("gfx1151", "gfx1151"),
        ("gfx9999", None),
        ("gfx", None),
        ("N/A", None),
        (None, None),
    ],
)
def test_names_of_architectures(text: str | None, arch: str | None) -> None:
    assert gfx_arch(text) == arch


def test_sizes_are_binary() -> None:
    assert size("2 MB") == size({"value": 2, "unit": "MB"}) == size(2) == 2 << 20
    assert size("10.5 GB") == int(10.5 * (1 << 30))
    assert size("N/A") is size({"value": "N/A", "unit": "MB"}) is size("3 parsecs") is None


def test_json_that_breaks_off_gives_what_is_whole() -> None:
    text = '[{"gpu": 0, "a": [1, 2]}, {"gpu": 1, "name": "x, y'
    assert json_documents(text) == ([[{"gpu": 0, "a": [1, 2]}, {"gpu": 1}]], True)


def test_json_that_breaks_off_says_so() -> None:
    text = texts.STATIC_JSON_NEW
    cut = amd_smi_json.parse(text[: len(text) // 2])
    assert cut.readings[0].name == "MI300X test"
    assert cut.problems == ("the JSON breaks off; what comes before is read",)


@pytest.mark.parametrize("depth", [2_000, 200_000])
def test_deep_json_is_a_format_error(depth: int) -> None:
    for text in ("[" * depth, '[{"gpu": ' + "[" * depth + "]" * depth + "}]"):
        for module in (amd_smi_json, rocm_smi_json, amdgpu_top):
            with pytest.raises(FormatError):
                module.parse(text)


def test_numbers_that_no_machine_has_are_unknown() -> None:
    text = '[{"gpu": 0, "power": {"socket_power": 1e999}, "numa": {"node": %s}}]' % ("9" * 5000)
    gpu = only(amd_smi_json.parse(text))
    assert (gpu.state.power_w, gpu.numa_node) == (None, None)


def test_five_hundred_gpus() -> None:
    names = [f"0000:{n >> 5:02x}:{n & 31:02x}.0" for n in range(500)]
    text = "\n".join(f"GPU: {n}\n    BDF: {name}\n" for n, name in enumerate(names))
    assert [gpu.pci for gpu in amd_smi_text.parse(text).readings] == names
    rows = [f"{name} " + " ".join(["15"] * 100) for name in names[:100]]
    text = "WEIGHT TABLE:\n" + " ".join(names[:100]) + "\n" + "\n".join(rows) + "\n"
    findings = amd_smi_text.parse(text)
    assert (len(findings.readings), len(findings.links)) == (100, 100 * 99)


@looped("seed", range(40))
def test_mutations_are_read_or_refused(seed: int) -> None:
    """Bytes changed, cut out, doubled or moved: Findings or FormatError, nothing else."""
    draw = random.Random(seed)  # noqa: S311 - cases of a test
    for _, text in CASES:
        data = bytearray(text.encode())
        for _ in range(draw.randint(1, 8)):
            at = draw.randrange(len(data))
            kind = draw.randrange(4)
            if kind == 0:
                data[at] = draw.randrange(256)
            elif kind == 1:
                del data[at : at + draw.randint(1, 40)]
            elif kind == 2:
                data[at:at] = data[at : at + draw.randint(1, 80)]
            else:
                data[at:at] = draw.choice(
                    [
                        b"null",
                        b"[]",
                        b"{}",
                        b"-1",
                        b"1e400",
                        b"N/A",
                        b'"',
                        b"\n",
                        b"9" * 30,
                        b"\xff",
                    ]
                )
            if not data:
                break
        broken = bytes(data).decode(errors="replace")
        for module in FORMATS:
            module.matches(broken)
            try:
                assert isinstance(module.parse(broken), Findings)
            except FormatError as error:
                assert str(error)
                assert "\n" not in str(error)

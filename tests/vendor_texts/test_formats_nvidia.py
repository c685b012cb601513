"""Readers of nvidia-smi's outputs over texts of its oldest and newest generations."""

from __future__ import annotations

import json
import tracemalloc
from typing import TYPE_CHECKING

import pytest

from portagpu.facts.formats.cleaning import decode_text
from portagpu.facts.formats.host.kubernetes import RECOMMENDED
from portagpu.facts.formats.reader import readers
from portagpu.facts.readings import FormatError, GpuPart, Node
from portagpu_cuda.formats import (
    nvidia_nvlink,
    nvidia_smi_text,
    nvidia_smi_xml,
    nvidia_topo,
)
from portagpu_cuda.formats._dcgm import row_of
from portagpu_cuda.formats._nvidia import yes_or_no
from tests.support.fuzz_formats import EXPECTED, FIXTURES, format_modules
from tests.support.read_parts import read_all

if TYPE_CHECKING:
    from pathlib import Path

    from portagpu.facts.readings import Findings

MIB = 1 << 20
NVIDIA = [name for name in format_modules() if name.startswith(("nvidia_", "nvml_"))]


def files(module: str) -> list[Path]:
    return [path for path in sorted((FIXTURES / module).iterdir()) if path.name != EXPECTED]


def fixture(name: str) -> str:
    return decode_text((FIXTURES / name).read_bytes())


def found(name: str) -> Findings:
    module = name.split("/", 1)[0]
    reader = readers()[module]
    result: Findings = reader.parse(fixture(name))
    return result


@pytest.mark.parametrize("path", [path for module in NVIDIA for path in files(module)], ids=str)
def test_one_reader_and_no_other_says_that_a_text_is_its_own(path: Path) -> None:
    text = decode_text(path.read_bytes())
    found = [name for name in NVIDIA if readers()[name].matches(text)]
    assert found == [path.parent.name]


# -- XML -----------------------------------------------------------------------------------------


def test_the_xml_of_the_first_generation() -> None:
    log = found("nvidia_smi_xml/v2-fermi.xml")
    tesla, geforce = log.readings
    assert log.versions == {"driver": "285.05.33"}
    assert log.taken == "Mon Mar 5 09:10:11 2012"
    assert log.problems == ()
    assert (tesla.index, tesla.pci, tesla.name) == (0, "0000:05:00.0", "Tesla C2070")
    assert (tesla.device_id, tesla.subsystem_id) == (0x06D1, 0x0772)
    assert tesla.memory_bytes == 5375 * MIB
    assert (tesla.pcie.generation, tesla.pcie.max_generation) == (1, 2)
    assert (tesla.pcie.width, tesla.pcie.device_width) == (8, 16)
    assert tesla.memory.ecc_enabled is True
    assert (tesla.memory.corrected, tesla.memory.uncorrected) == (4, 1)
    assert (tesla.memory.corrected_total, tesla.memory.uncorrected_total) == (40, 2)
    assert tesla.memory.by_block == {"DRAM": (3, 1), "L2 cache": (1, 0)}
    assert tesla.state.temperatures_c == {"gpu": 71.0}
    assert (tesla.state.power_w, tesla.state.power_limit_w) == (183.5, 238.0)
    assert (tesla.state.clock_mhz, tesla.state.memory_clock_mhz) == (1147.0, 1494.0)
    assert (tesla.state.utilization_percent, tesla.state.processes) == (97.0, 1)
    assert tesla.state.throttling is None, "this generation states no reasons"
    assert (geforce.index, geforce.uuid, geforce.state.processes) == (1, None, None)
    assert geforce.state.temperatures_c == {}
    assert geforce.memory_bytes == 1023 * MIB
    assert geforce.state.memory_used_bytes is None


def test_the_xml_of_mig_with_reasons_and_errors() -> None:
    (gpu,) = found("nvidia_smi_xml/v11-mig-throttled.xml").readings
    assert gpu.pci == "0001:c7:00.0"
    assert gpu.device_file == "/dev/nvidia4"
    assert gpu.mig_enabled is True
    assert gpu.parts == (
        GpuPart(index=0, memory_bytes=9856 * MIB, unit_count=28),
        GpuPart(index=1, memory_bytes=4864 * MIB, unit_count=14),
    )
    assert gpu.state.utilization_percent is None, "N/A is not 0"
    assert gpu.state.throttling == ("sw_power_cap", "hw_thermal_slowdown"), "idle slows nothing"
    assert gpu.state.limits_c == {"shutdown": 92.0, "slowdown": 89.0, "max-operating": 85.0}
    assert gpu.state.temperatures_c == {"gpu": 88.0, "memory": 90.0}
    assert gpu.state.power_limit_w == 250.0, "what is enforced, not what was asked for"
    assert gpu.state.processes == 0
    assert (gpu.memory.corrected, gpu.memory.uncorrected) == (31, 6)
    assert gpu.memory.by_block == {"DRAM": (30, 4), "SRAM": (1, 2)}
    assert gpu.memory.corrected_total is None, "a sum of which a part is unknown is unknown"
    assert gpu.memory.uncorrected_total == 12
    assert gpu.memory.remapped_rows == {"correctable": 1, "uncorrectable": 2}
    assert (gpu.memory.pending, gpu.memory.remap_failed) == (True, False)
    assert gpu.pcie.replays == 12


def test_the_newest_xml_and_gpus_that_no_longer_answer() -> None:
    log = found("nvidia_smi_xml/v13-lost.xml")
    first, second, gone = log.readings
    assert log.versions == {"driver": "595.10.02", "cuda": "13.2"}
    assert first.index is None, "with one GPU missing the order is not the index"
    assert first.hive == "c0ffee00-0000-4000-8000-000000000000.3"
    assert (first.state.power_w, first.state.power_limit_w) == (140.5, 1000.0)
    assert first.state.limits_c == {}, "a margin below the limit is not a limit"
    assert first.state.margin_c == 54.0
    assert (first.state.recovery, first.state.error) == ("Reset", None)
    assert first.memory.by_block == {"DRAM": (0, 4), "SRAM": (0, 3)}, "parity and SEC-DED"
    assert first.memory.uncorrected == 7
    assert first.state.throttling == ()
    assert first.state.processes == 2
    assert (first.mig_enabled, first.parts) == (False, ())
    assert (first.pcie.max_generation, first.pcie.device_generation) == (5, 6)
    assert (second.memory_bytes, second.state.memory_used_bytes) == (None, None)
    assert second.state.temperatures_c == {}
    assert second.state.processes is None
    assert (gone.index, gone.pci, gone.name) == (2, "0000:4b:00.0", None)
    assert gone.state.error is not None
    assert gone.state.error.startswith("GPU is lost")
    assert [word in " ".join(log.problems) for word in ("attached", "3a:00.0", "4b:00.0")] == [
        True
    ] * 3


def test_the_dtd_may_be_named_and_embedded_and_may_declare_no_entity() -> None:
    text = fixture("nvidia_smi_xml/v2-fermi.xml")
    line = '<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v2.dtd">'
    embedded = "<!DOCTYPE nvidia_smi_log [<!ELEMENT gpu ANY><!ATTLIST gpu id CDATA #IMPLIED>]>"
    assert nvidia_smi_xml.parse(text.replace(line, embedded)).readings[0].name == "Tesla C2070"
    for entity in (
        '<!ENTITY a "b">',
        '<!ENTITY a SYSTEM "file:///etc/hostname">',
        '<!ENTITY % a "b">',
    ):
        hostile = text.replace(line, f"<!DOCTYPE nvidia_smi_log [{entity}]>")
        with pytest.raises(FormatError, match="entity"):
            nvidia_smi_xml.parse(hostile.replace("Tesla C2070", "&a;"))


def test_xml_that_breaks_off_gives_what_was_read_and_says_so() -> None:
    text = fixture("nvidia_smi_xml/v2-fermi.xml")
    log = nvidia_smi_xml.parse(text[: text.index("<compute_processes>")])
    (gpu,) = log.readings
    assert gpu.name == "Tesla C2070"
    assert gpu.state.clock_mhz == 1147.0
    assert gpu.state.processes is None
    assert any("breaks off" in problem for problem in log.problems)
    assert any("2 GPUs are attached and 1 described" in problem for problem in log.problems)


def test_of_logs_in_a_loop_the_last_complete_one_is_read() -> None:
    text = fixture("nvidia_smi_xml/v2-fermi.xml")
    newer = text.replace("97 %", "98 %")
    log = nvidia_smi_xml.parse(text + newer + newer[:400])
    assert log.readings[0].state.utilization_percent == 98.0
    assert any("3 logs" in problem for problem in log.problems)


# -- text ----------------------------------------------------------------------------------------


def test_the_table_of_driver_285() -> None:
    table = found("nvidia_smi_text/table-285.txt")
    tesla, geforce = table.readings
    assert table.versions == {"driver": "285.05.33"}
    assert (tesla.index, tesla.name, tesla.pci) == (0, "Tesla C2070", "0000:05:00.0")
    assert (tesla.memory.corrected, tesla.memory.uncorrected) == (4, 1)
    assert (tesla.state.power_w, tesla.state.power_limit_w) == (183.0, 238.0)
    assert (tesla.memory_bytes, tesla.state.memory_used_bytes) == (5375 * MIB, 100 * MIB)
    assert (tesla.state.utilization_percent, tesla.state.processes) == (97.0, 1)
    assert (geforce.state.power_w, geforce.state.utilization_percent) == (None, None)
    assert (geforce.memory.uncorrected, geforce.state.processes) == (None, None)


def test_the_table_of_driver_450_with_a_gpu_that_fails() -> None:
    table = found("nvidia_smi_text/table-450-lost.txt")
    healthy, lost = table.readings
    assert table.versions == {"driver": "450.51.06", "cuda": "11.0"}
    assert healthy.name is None, "a name that is cut off is not a name"
    assert healthy.extra == {"name begins with": "Tesla V100-SXM2"}
    assert (healthy.state.power_w, healthy.state.processes) == (55.0, 2)
    assert healthy.memory.uncorrected == 3
    assert (lost.index, lost.pci) == (1, "0000:1c:00.0")
    assert (lost.state.power_w, lost.state.temperatures_c, lost.mig_enabled) == (None, {}, None)
    assert lost.memory.uncorrected is None
    assert table.problems == ("GPU number 1 answers 'ERR!' in the place of 8 values",)


def test_the_table_of_driver_590_with_mig() -> None:
    (gpu,) = found("nvidia_smi_text/table-590-mig.txt").readings
    assert gpu.pci == "0009:01:00.0"
    assert gpu.mig_enabled is True
    assert gpu.parts == (
        GpuPart(index=0, memory_bytes=71424 * MIB, unit_count=60),
        GpuPart(index=1, memory_bytes=17856 * MIB, unit_count=16),
    )
    assert (gpu.state.utilization_percent, gpu.state.processes) == (None, 0)
    assert gpu.memory.uncorrected == 0, "'On' is not a number of errors; its MIG devices have one"


def test_the_outline_of_driver_319() -> None:
    (gpu,) = found("nvidia_smi_text/query-319.txt").readings
    assert (gpu.index, gpu.pci, gpu.name) == (0, "0000:02:00.0", "Tesla K20Xm")
    assert gpu.device_id == 0x1021
    assert gpu.memory_bytes == 5759 * MIB
    assert (gpu.pcie.generation, gpu.pcie.width) == (1, 8)
    assert gpu.state.throttling == ("applications_clocks_setting",)
    assert (gpu.state.power_w, gpu.state.power_limit_w) == (31.2, 225.0)
    assert gpu.state.processes == 1
    assert (gpu.memory.corrected, gpu.memory.corrected_total) == (2, 9)


def test_the_outline_of_driver_590() -> None:
    log = found("nvidia_smi_text/query-590-mig.txt")
    gpu, gone = log.readings
    assert log.versions == {"driver": "590.10.01", "cuda": "13.1"}
    assert [part.unit_count for part in gpu.parts] == [60, 16]
    assert [part.memory_bytes for part in gpu.parts] == [71424 * MIB, 17856 * MIB]
    assert (gpu.device_file, gpu.device_id, gpu.subsystem_id) == ("/dev/nvidia5", 0x2335, 0x18BE)
    assert gpu.state.throttling == ("hw_slowdown", "hw_thermal_slowdown", "display_clocks_setting")
    assert gpu.state.processes == 0
    assert gpu.state.limits_c == {}
    assert gpu.hive is None, "a cluster of zeros is none"
    assert gpu.memory.by_block == {"DRAM": (7, 0), "SRAM": (0, 1)}
    assert (gpu.memory.pending, gpu.memory.remap_failed) == (False, True)
    assert gpu.memory.retired_pages == {}
    assert (gpu.pcie.device_generation, gpu.pcie.replays) == (5, 3)
    assert gpu.state.recovery is None
    assert (gone.pci, gone.state.error) == ("0000:2a:00.0", "Unknown Error")


def test_the_list_with_mig_of_both_spellings() -> None:
    first, second, gone = found("nvidia_smi_text/list-mig.txt").readings
    assert first.uuid == "GPU-11111111-2222-3333-4444-555555555555"
    assert [part.profile for part in first.parts] == ["3g.20gb", "1c.3g.20gb"]
    assert first.parts[1].uuid == "MIG-GPU-11111111-2222-3333-4444-555555555555/2/0"
    assert (second.index, second.mig_enabled) == (1, None)
    assert (gone.index, gone.pci) == (2, "0000:4b:00.0")


def test_the_columns_of_a_query() -> None:
    table = found("nvidia_smi_text/query-gpu.csv")
    gpu, lost = table.readings
    assert table.versions == {"driver": "580.10.01"}
    assert (gpu.index, gpu.arch, gpu.pci) == (0, "sm_89", "0000:03:00.0")
    assert gpu.state.temperatures_c == {"gpu": 84.0}
    assert (gpu.pcie.width, gpu.pcie.device_width, gpu.pcie.device_generation) == (8, 16, 4)
    assert gpu.state.throttling == ("sw_power_cap", "sw_thermal_slowdown"), "from the mask 0x24"
    assert gpu.memory.by_block == {"DRAM": (None, 0)}
    assert (gpu.memory.retired_pages, gpu.memory.pending) == ({}, None)
    assert lost.memory_bytes is None
    assert table.problems == ("GPU 0000:04:00.0 answers 'GPU is lost' in the place of 20 values",)


def test_columns_without_units_and_of_a_loop() -> None:
    text = "index, memory.total [MiB], power.draw [W]\n0, 100, 5.5\n1, 200, 6\n0, 100, 7.5\n"
    table = nvidia_smi_text.parse(text)
    assert [(gpu.index, gpu.memory_bytes) for gpu in table.readings] == [
        (0, 100 * MIB),
        (1, 200 * MIB),
    ]
    assert [gpu.state.power_w for gpu in table.readings] == [7.5, 6.0]
    assert any("3 lines are of 2 GPUs" in problem for problem in table.problems)


@pytest.mark.parametrize(
    "text",
    [
        "TODO list\nindex\nbuy milk\n",
        "uuid\n",
        "name\nbuy milk\n",
        "index\n",
        "name\nindex\nuuid\n",
        "name, index\nbuy, milk\n",
        "count\nthe sheep\n",
        "memory.used\nis what counts\n",
        "timestamp, name\nsome day, somebody\n",
    ],
)
def test_words_that_are_columns_too_make_no_gpu(text: str) -> None:
    with pytest.raises(FormatError):
        nvidia_smi_text.parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "index\n0\n",
        "name\nNVIDIA H100 80GB HBM3\n",
        "name\nTesla T4\n",
        "name\nGraphics Device\n",
        "uuid\nGPU-11111111-2222-3333-4444-555555555555\n",
        "uuid\n[N/A]\n",
        "power.draw [W]\n75.10 W\n",
        "mig.mode.current\nDisabled\n",
        "driver_version\n580.10.01\n",
        "index, name\n0, NVIDIA L4\n",
        "timestamp, pstate\n2025/01/02 03:04:05.678, P0\n",
    ],
)
def test_short_queries_are_read(text: str) -> None:
    (gpu,) = nvidia_smi_text.parse(text).readings
    assert gpu.vendor == "nvidia"


def test_a_query_without_its_line_of_names_is_refused() -> None:
    with pytest.raises(FormatError):
        nvidia_smi_text.parse("0, NVIDIA L4, 23034 MiB\n")


def test_processes_and_retired_pages_are_counted_for_each_gpu() -> None:
    apps = found("nvidia_smi_text/compute-apps.csv").readings
    assert {gpu.pci: gpu.state.processes for gpu in apps} == {"0000:03:00.0": 2, "0000:04:00.0": 1}
    head = "gpu_uuid, retired_pages.address, retired_pages.cause\n"
    row = "GPU-0000abcd-0000-4000-8000-000000000001, {}, {}\n"
    known = row.format("0x00000000005a1234", "Double Bit ECC") * 2
    (gpu,) = nvidia_smi_text.parse(head + known + row.format("[N/A]", "Single Bit ECC")).readings
    assert gpu.memory.retired_pages == {"double-bit": 2}


@pytest.mark.parametrize(
    "text",
    [
        "No devices were found\n",
        "NVIDIA-SMI has failed because it couldn't communicate with the driver. Make sure ...",
        "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.10",
        "Unable to determine the device handle for GPU 0000:05:00.0: GPU is lost.  Reboot ...",
        "Unable to determine the device handle for GPU3: Unknown Error",
    ],
)
def test_an_answer_that_there_is_nothing_to_list_is_a_problem(text: str) -> None:
    assert nvidia_smi_text.matches(text)
    assert len(nvidia_smi_text.parse(text).problems) == 1


@pytest.mark.parametrize(
    ("line", "index", "pci"),
    [
        ("GPU 0000:05:00.0: GPU is lost.  Reboot ...", None, "0000:05:00.0"),
        ("GPU0000:25:00.0: Unknown Error", None, "0000:25:00.0"),
        ("gpu 0000:08:00.0: Unknown Error", None, "0000:08:00.0"),
        ("GPU3: 0000:5F:00.0: Unknown Error", 3, "0000:5f:00.0"),
        ("GPU2: Unknown Error", 2, None),
        ("GPU0", 0, None),
    ],
)
def test_a_gpu_without_a_handle_is_named_as_far_as_it_is(
    line: str, index: int | None, pci: str | None
) -> None:
    (gpu,) = nvidia_smi_text.parse(f"Unable to determine the device handle for {line}\n").readings
    assert (gpu.index, gpu.pci) == (index, pci)


def test_versions_alone() -> None:
    assert found("nvidia_smi_text/version.txt").versions == {
        "nvml": "580.10",
        "driver": "580.10.01",
        "cuda": "13.0",
    }


# -- topology and NVLink -------------------------------------------------------------------------


def test_a_matrix_with_a_legend_of_nics() -> None:
    matrix = found("nvidia_topo/580-nics.txt")
    ways = {(link.a.name, link.b.name): (link.kind, link.path, link.count) for link in matrix.links}
    assert len(ways) == len(matrix.links) == 5 * 4
    assert ways["GPU0", "GPU1"] == ways["GPU1", "GPU0"] == ("nvlink", "NV18", 18)
    assert ways["GPU0", "GPU2"] == ("pcie", "PHB", None)
    assert ways["mlx5_bond_0", "GPU2"] == ("pcie", "PIX", None)
    assert {link.a.node for link in matrix.links if link.a.name == "mlx5_0"} == {Node.NIC}
    assert [gpu.numa_node for gpu in matrix.readings] == [0, None, 1], "0-1 is not one node"
    assert matrix.readings[1].extra == {
        "cpu affinity": "0-31,64-95",
        "numa affinity": "0-1",
        "gpu numa id": "2",
    }
    assert matrix.problems == ()


def test_a_matrix_of_the_first_generation() -> None:
    matrix = found("nvidia_topo/367-mlx.txt")
    ways = {(link.a.name, link.b.name): link.path for link in matrix.links}
    assert ways["GPU0", "GPU1"] == "SOC"
    assert ways["mlx4_0", "GPU0"] == "PHB"
    assert [gpu.extra for gpu in matrix.readings] == [
        {"cpu affinity": "0-9"},
        {"cpu affinity": "10-19"},
    ]


def test_a_matrix_of_access() -> None:
    text = fixture("nvidia_topo/p2p.txt")
    access = {(k.a.name, k.b.name): k.peer_access for k in nvidia_topo.parse(text).links}
    assert (access["GPU0", "GPU1"], access["GPU0", "GPU2"], access["GPU1", "GPU2"]) == (
        True,
        False,
        None,
    )
    atomics = nvidia_topo.parse(text.replace("-p2p r", "-p2p a"))
    assert {link.peer_access for link in atomics.links} == {None}, "atomics are not access"


def test_a_matrix_that_breaks_off_says_which_row() -> None:
    text = fixture("nvidia_topo/580-nics.txt")
    matrix = nvidia_topo.parse(text[: text.index("NODE\t X")])
    assert matrix.problems == ("the row of GPU2 breaks off",)
    assert ("GPU2", "GPU0") in {(link.a.name, link.b.name) for link in matrix.links}


def test_links_are_up_with_their_speed_or_inactive() -> None:
    status = found("nvidia_nvlink/status.txt")
    up, inactive, none_is_up = status.links
    assert (up.up, up.bandwidth_bytes_s, up.count) == (True, 26_562_000_000, 1)
    assert none_is_up.count == 0
    assert (inactive.up, inactive.bandwidth_bytes_s) == (False, None)
    assert up.b.node is Node.UNKNOWN
    assert [problem[:6] for problem in status.problems] == ["GPU 1:", "GPU 3:"]
    assert status.readings[2].extra == {"nvlink": "Device does not have or support Nvlink"}


def test_errors_capabilities_and_remote_ends_are_of_one_link() -> None:
    first, second = found("nvidia_nvlink/errors-remote.txt").links
    assert first.b.pci == second.b.pci == "0000:d5:00.0"
    assert (first.extra["crc errors"], first.extra["recovery errors"]) == ("8814", "2")
    assert (first.extra["remote link"], second.extra["remote link"]) == ("6", "7")
    assert (first.peer_access, second.peer_access) == (True, False)
    assert first.up is None, "counters do not say that a link is up"


def test_links_below_no_gpu_are_kept() -> None:
    (link,) = nvidia_nvlink.parse("Link 0, P2P is supported: true\n").links
    assert (link.a.name, link.a.index, link.peer_access) == ("GPU", None, True)


# -- any text ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "encode",
    [
        lambda text: text.encode("utf-16"),
        lambda text: text.replace("\n", "\r\n").encode(),
        lambda text: text.encode("utf-8-sig"),
        lambda text: text.encode("utf-16-le"),
    ],
    ids=["utf-16", "crlf", "utf-8-sig", "utf-16 without a mark"],
)
@pytest.mark.parametrize(
    "path", [path for module in NVIDIA for path in files(module)], ids=lambda path: path.name
)
def test_what_is_read_does_not_depend_on_the_encoding(path: Path, encode) -> None:
    reader = readers()[path.parent.name]
    text = decode_text(path.read_bytes())
    assert reader.parse(decode_text(encode(text))) == reader.parse(text)


@pytest.mark.parametrize(
    "number", ["9" * 5000, "1e999", "-1e400", "0x" + "f" * 40, "nan", "inf", "²"]
)
def test_numbers_that_no_device_has_are_unknown(number: str) -> None:
    head = "index, memory.total [MiB], power.draw [W], ecc.errors.corrected.volatile.total\n"
    (gpu,) = nvidia_smi_text.parse(
        head + f"{number}, {number} MiB, {number} W, {number}\n"
    ).readings
    assert (gpu.memory_bytes, gpu.state.power_w, gpu.memory.corrected) == (None, None, None)


@pytest.mark.parametrize(
    "reader",
    [nvidia_smi_xml, nvidia_smi_text, nvidia_topo, nvidia_nvlink],
)
@pytest.mark.parametrize(
    "text", ["", "\n", "\0", "hello", "GPU", "<a>" * 5000, "{" * 5000, " " * 10_000]
)
def test_what_is_not_of_the_format_is_refused_in_one_line(reader, text: str) -> None:
    assert reader.matches(text) is False
    with pytest.raises(FormatError) as refused:
        reader.parse(text)
    assert str(refused.value).isprintable()


@pytest.mark.parametrize("above", [0, 1, 37, 38, 39, 40])
def test_a_list_of_column_names_is_not_an_answer_wherever_it_is_cut(above: int) -> None:
    names = [f"inforom.part{n}" for n in range(above)] + [
        "vbios_version",
        "gom.current",
        "gom.mode",
    ]
    assert not nvidia_smi_text.matches("\n".join(names))


def test_each_word_for_yes_and_no_is_read() -> None:
    """As tools of several generations write them, in any case; another word answers nothing."""
    words = {
        True: ("Yes", "Enabled", "Active", "True", "1"),
        False: ("No", "Disabled", "Not Active", "False", "0"),
        None: ("N/A", "Pending", "2", "", None),
    }
    for answer, each in words.items():
        for word in each:
            assert yes_or_no(word) is answer, word
            assert yes_or_no(word and word.lower()) is answer, word


# -- DCGM ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "closed", "cells"),
    [
        ("| GPU 0 | Name: x | y |", True, ("GPU 0", "Name: x | y")),
        ("| GPU 0 | Name", True, None),
        ("| GPU 0 | Name", False, ("GPU 0", "Name")),
        ("GPU 0 | Name |", False, None),
        ("| GPU 0", False, None),
        # a pattern with blanks around both cells takes minutes for it
        (f"|{' ' * 110}|{' ' * 390}x", True, None),
        (f"|{' ' * 110}|{' ' * 390}x", False, ("", "x")),
        (f"|{'x' * 121}| y |", False, None),
    ],
)
def test_rows_of_dcgmis_tables(line: str, closed: bool, cells: tuple[str, str] | None) -> None:
    assert row_of(line, closed=closed) == cells


@pytest.mark.parametrize("action", RECOMMENDED)
def test_a_condition_and_an_event_of_nvsentinel_ask_for_the_same(action: str) -> None:
    kubernetes, events = readers()["kubernetes"], readers()["nvsentinel_json"]
    title = "Conditions:\n  Type             Status  LastHeartbeatTime   Reason   Message\n"
    row = (
        f"  GpuMemWatch      True    GpuMemWatchIsNotHealthy  GPU:0 Recommended Action={action};\n"
    )
    (of_node,) = kubernetes.parse(f"Name:               n1\nRoles: <none>\n{title}{row}").events
    stated = {"checkName": "GpuMemWatch", "isFatal": True, "recommendedAction": action}
    (of_event,) = events.parse(json.dumps({**stated, "isHealthy": False})).events
    assert of_node.todo == of_event.todo == str(RECOMMENDED[action])


def test_a_number_far_beyond_the_others_costs_no_memory() -> None:
    """A list that passes over numbers is reported with the first ones, whatever the last is."""
    rule = f"+{'-' * 41}+{'-' * 24}+{'-' * 22}+\n"
    rows = "".join(
        f"|{n:>8}  NVIDIA L40S                On  |   00000000:C{bus}:00.0 Off |"
        "                  Off |\n"
        "| N/A   33C    P8              34W / 350W |       1MiB /  46068MiB |"
        "      0%      Default |\n"
        f"|{' ' * 41}|{' ' * 24}|                  N/A |\n{rule}"
        for bus, n in enumerate((0, 1, 3_000_000))
    )
    tracemalloc.start()
    try:
        found = read_all(rule + rows)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert any("goes on without GPU 2, 3, " in each for each in found.problems), found.problems
    assert peak < 16 << 20

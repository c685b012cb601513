"""No fault that stands in a text is lost, and a healthy text is a reading without one.

Each text has the form of the source that its line names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from portagpu.checks.bringup import BringupOptions, bringup
from portagpu.checks.recordings.replay import Recording
from portagpu.facts.formats.events import table
from portagpu.facts.formats.reader import read_text
from portagpu.runs.results.run import Verdict

if TYPE_CHECKING:
    from pathlib import Path

    from portagpu.runs.results.run import Result, Run

BOOT = "[    0.000000] Linux version 6.8.0\n[    0.000000] Command line: ro\n"
OSINIT = "open-gpu-kernel-modules, src/nvidia/arch/nvalloc/unix/src/osinit.c"


def replay(folder: Path, text: str, **options: str) -> Run:
    path = folder / "text.txt"
    path.write_text(text, encoding="utf-8")
    return bringup(BringupOptions(replay=Recording(path), **options))  # type: ignore[arg-type]


def judged(run: Run, name: str) -> list[Result]:
    return [result for result in run.results if result.id == name]


def events(folder: Path, *lines: str) -> list[tuple[str, str | None, Verdict]]:
    """What health says of a kernel's log with these lines: (first words, device, verdict)."""
    run = replay(folder, BOOT + "\n".join(lines) + "\n")
    return [(each.reason, each.device, each.verdict) for each in judged(run, "health/events")]


@pytest.mark.parametrize(
    ("lines", "device"),
    [
        # github.com/Bumblebee-Project/Bumblebee/issues/554
        (["[   49.2] NVRM: GPU at 0000:01:00.0 has fallen off the bus."], "0000:01:00.0"),
        # OSINIT
        (["[  349.2] NVRM: GPU 0000:b3:00.0: GPU has fallen off the bus."], "0000:b3:00.0"),
        # github.com/NVIDIA/NVSentinel/issues/155
        (
            [
                "[ 1843.3] NVRM: The NVIDIA GPU 0000:b3:00.0",
                "               NVRM: (PCI ID: 10de:26b5) installed in this system has",
                "               NVRM: fallen off the bus and is not responding to commands.",
            ],
            "0000:b3:00.0",
        ),
        # github.com/Cyridd/cmpunlocker/issues/4
        (["[   21.0] NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x22:0x56:894)"],
         "0000:01:00.0"),
        (["[   21.2] NVRM: osInitNvMapping: *** Cannot attach gpu"], None),
        # kernel-open/nvidia/nv-pci.c and the kernel's driver core
        (["[    4.1] nvidia: probe of 0000:41:00.0 failed with error -1"], "0000:41:00.0"),
        (["[    4.2] NVRM: The NVIDIA probe routine failed for 1 device(s)."], None),
        # amdgpu_kms.c, kfd_device.c
        (["[    8.1] amdgpu 0000:03:00.0: amdgpu: Fatal error during GPU init"], "0000:03:00.0"),
        (["[    8.2] amdgpu: probe of 0000:03:00.0 failed with error -22"], "0000:03:00.0"),
        (["[    3.1] kfd kfd: amdgpu: skipped device 1002:67df, PCI rejects atomics 730<0"], None),
        # aer.c, edac_mc.c
        (["[ 683.1] nvidia 0000:41:00.0: AER: PCIe Bus Error: severity=Uncorrected (Fatal), "],
         "0000:41:00.0"),
        (["[  12.1] EDAC MC1: 1 UE memory read error on CPU_SrcID#0_Ha#0_Chan#1_DIMM#0 (channel)"],
         None),
    ],
)  # fmt: skip
def test_what_ends_a_gpu_or_its_host_fails_without_any_xid(
    tmp_path: Path, lines: list[str], device: str | None
) -> None:
    (found,) = events(tmp_path, *lines)
    assert found[1:] == (device, Verdict.FAIL)


@pytest.mark.parametrize(
    ("line", "device"),
    [
        # github.com/leptonai/gpud/pull/338: the line of data alone
        ("[ 38.1] nvidia-nvswitch1: SXid (PCI:0000:84:00.0): 4711, Data {0x000001c0}",
         "0000:84:00.0"),
        ("[  1.0] NVRM: Xid error: xyz, invalid data", None),
        # open-gpu-kernel-modules, src/nvidia/inc/libraries/utils/nvassert.h
        ("[ 12.0] NVRM: nvAssertOkFailedNoLog: Assertion failed: Generic error", None),
        ("[ 30.0] [drm:psp_v11_0_ring_stop [amdgpu]] *ERROR* Fail to stop psp ring", None),
        ("[  3.5] kfd kfd: amdgpu: PITCAIRN  not supported in kfd", None),
        # any container may bring such a program; a node that has the fault gives no readings
        ("[ 1054.1] NVRM: API mismatch: the client has the version 535.161.07, but", None),
        # mm/oom_kill.c
        ("[ 90.0] Out of memory: Killed process 42 (python3) total-vm:1000kB, UID:1000", None),
        ("[ 90.0] Memory cgroup out of memory: Killed process 42 (python3) total-vm:1kB", None),
        # arch/x86/kernel/cpu/mce/core.c, edac_mc.c, aer.c, pci.c
        ("[ 77.0] mce: [Hardware Error]: Machine check events logged", None),
        ("[ 77.0] mce: [Hardware Error]: CPU 0: Machine Check: 0 Bank 4: a600000000020408", None),
        ("[ 12.1] EDAC MC1: 262 CE memory read error on CPU_SrcID#0 (channel:1 slot:0)", None),
        ("[ 68.6] pcieport 0000:00:03.1: AER: Corrected error received: 0000:41:00.0",
         "0000:41:00.0"),
        ("[ 68.6] nvidia 0000:41:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer,",
         "0000:41:00.0"),
        ("[  0.4] pci 0000:01:00.0: 63.008 Gb/s available PCIe bandwidth, limited by 8.0 GT/s x8",
         "0000:01:00.0"),
        # kernel/watchdog.c, kernel/hung_task.c, kernel/panic.c
        ("[ 50.0] watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python3:4242]", None),
        ("[ 50.0] INFO: task python3:4242 blocked for more than 120 seconds.", None),
        ("[ 50.0] Kernel panic - not syncing: Fatal exception", None),
        # drivers/iommu
        ("[ 50.0] nvidia 0000:41:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0021]",
         "0000:41:00.0"),
        ("[ 50.0] DMAR: [DMA Read NO_PASID] Request device [41:00.0] fault addr 0x0",
         "0000:41:00.0"),
    ],
)  # fmt: skip
def test_what_a_log_says_of_a_driver_or_of_the_host_is_reported(
    tmp_path: Path, line: str, device: str | None
) -> None:
    (found,) = events(tmp_path, line)
    assert found[1:] == (device, Verdict.UNVERIFIED)
    assert "python3" not in found[0]


@pytest.mark.parametrize(
    "text",
    [
        BOOT
        + "[    2.0] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19\n"
        + "[    2.1] nvidia: module verification failed: signature and/or required key missing\n"
        + "[   12.1] mce: CPU supports 7 MCE banks\n[   13.1] EDAC MC: Ver: 3.0.0\n"
        + "[   13.2] pcieport 0000:00:1c.0: AER: enabled with IRQ 122\n",
        BOOT
        + "[    5.1] [drm] amdgpu kernel modesetting enabled.\n"
        + "[    5.4] amdgpu 0000:03:00.0: amdgpu: RAS INFO: ras initialized successfully\n"
        + "[    5.5] amdgpu 0000:03:00.0: amdgpu: 0 uncorrectable hardware errors detected in "
        "total in umc block\n",
        "[Mon Jan  5 10:00:00 2026] Linux version 6.8.0\n",
        "Jan 05 10:00:00 node7 kernel: Linux version 6.8.0-49-generic\n",
        "2026-01-05T10:00:00+0000 node7 kernel: Linux version 6.8.0-49-generic\n",
        # util-linux, dmesg.c: --decode, --raw, --time-format iso
        "kern  :info  : [    0.000000] Linux version 6.8.0\n",
        "<5>[    0.000000] Linux version 6.8.0-49-generic\n",
        "2026-01-05T10:00:00,859532+00:00 Linux version 6.8.0-49-generic\n",
    ],
)
def test_a_healthy_log_is_a_reading_without_an_error(tmp_path: Path, text: str) -> None:
    run = replay(tmp_path, text)
    (found,) = judged(run, "health/events")
    assert found.verdict is Verdict.PASS
    (reading,) = judged(run, "environment/recording")
    assert reading.verdict is Verdict.PASS
    assert run.verdict is Verdict.INCONCLUSIVE


HINT = (
    "Hint: You are currently not seeing messages from other users and the system.\n"
    "      Users in groups 'adm', 'systemd-journal' can see all messages.\n"
    "      Pass -q to turn off this notice.\n"
)
"""systemd, src/shared/journal-util.c."""
ONE_GPU = "GPU 0: NVIDIA H200 (UUID: GPU-00000001-0000-0000-0000-000000000000)\n"


@pytest.mark.parametrize(
    "text",
    [
        "-- No entries --\n",
        HINT + "-- No entries --\n",
        HINT + "No journal files were found.\n-- No entries --\n",
        "No journal files were opened due to insufficient permissions.\n",
        "dmesg: read kernel buffer failed: Operation not permitted\n",
        "-- Boot 0123456789abcdef0123456789abcdef --\n-- Reboot --\n",
        "-- Logs begin at Mon 2026-01-05 10:00:00 UTC, end at Mon 2026-01-05 11:00:00 UTC. --\n",
        "-- Journal begins at Mon 2026-01-05 10:00:00 UTC, ends at Tue 2026-01-06 11:00:00. --\n",
    ],
)
def test_a_log_without_a_line_of_the_kernel_was_not_read(tmp_path: Path, text: str) -> None:
    """A kernel has lines since its start: none of them means that nobody read them."""
    run = replay(tmp_path, text)
    assert run.verdict is Verdict.INCONCLUSIVE
    assert not judged(run, "health/events")
    (reading,) = judged(run, "environment/recording")
    assert reading.verdict is Verdict.INCONCLUSIVE
    assert reading.reason.startswith("the log was not read: ")
    # with a line of the kernel, marks and hints are no more than that
    (read,) = judged(replay(tmp_path, text + BOOT), "environment/recording")
    assert read.verdict is Verdict.PASS
    # next to another output it is named as well
    (mixed,) = judged(
        replay(tmp_path, f"$ nvidia-smi -L\n{ONE_GPU}$ journalctl -k\n{text}"),
        "environment/recording",
    )
    assert mixed.verdict is Verdict.INCONCLUSIVE
    assert "the log was not read" in mixed.reason


def test_an_application_that_writes_dates_has_no_kernel_log() -> None:
    with pytest.raises(ValueError, match="not known"):
        read_text("2026-01-05T10:00:00,859+00:00 INFO worker 3 is ready\n")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        # docs.nvidia.com/deploy/nvidia-smi and nvmlReturn_t
        ("No devices were found\n", "no devices"),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make s",
         "no driver"),
        ("Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 570.1",
         "version mismatch"),
        ("Failed to initialize NVML: Unknown Error\n", "no answer"),
        ("Failed to initialize NVML: Insufficient Permissions\n", "no permission"),
        # ROCm/rocminfo, rocminfo.cc, CheckInitialState
        ("\x1b[31mROCk module is NOT loaded, possibly no GPU devices\x1b[0m\n", "no driver"),
        ("Unable to open /dev/kfd read-write: Permission denied\n", "no access to /dev/kfd"),
        ("hsa api call failure at: /src/rocminfo/rocminfo.cc:1142\n", "HSA failed"),
        # github.com/ROCm/legacy-rocm-build/issues/2767 and 2995, github.com/ROCm/amdsmi/issues/75
        ("ERROR:root:Driver not initialized (amdgpu not found in modules)\n", "no driver"),
        ("=== ROCm System Management Interface ===\nWARNING: No AMD GPUs specified\n",
         "no devices"),
    ],
)  # fmt: skip
def test_a_tool_that_cannot_answer_is_a_failure_with_what_to_do(
    tmp_path: Path, text: str, code: str
) -> None:
    run = replay(tmp_path, text)
    assert run.verdict is Verdict.FAIL
    (found,) = judged(run, "health/events")
    assert found.reason.startswith(f"{code} (")
    assert ": " in found.reason


def test_an_answer_next_to_a_table_is_not_lost(tmp_path: Path) -> None:
    """The words are those of nvidia-smi's warning (docs.nvidia.com/deploy/nvidia-smi)."""
    csv = "index, name, pci.bus_id\n0, NVIDIA A100-SXM4-80GB, 00000000:07:00.0\n"
    run = replay(tmp_path, f"{csv}WARNING: infoROM is corrupted at gpu 0000:07:00.0\n")
    (found,) = judged(run, "health/events")
    assert (found.device, found.verdict) == ("0000:07:00.0", Verdict.UNVERIFIED)


def test_a_runtime_that_lists_the_cpu_alone_has_no_gpu() -> None:
    """rocminfo.cc prints each agent with its type."""
    text = "HSA Agents\n*******\nAgent 1\n*******\n  Name: EPYC\n  Device Type: CPU\n"
    codes = [event.code for each in read_text(text) for event in each.events]
    assert codes == ["no devices"]


ROWS = """\
    Remapped Rows
        Correctable Error                 : 0
        Uncorrectable Error               : 1
        Pending                           : {pending}
        Remapping Failure Occurred        : {failed}
"""


@pytest.mark.parametrize(
    "head",
    [
        "==============NVSMI LOG==============\n\nGPU 00000000:07:00.0\n",
        "GPU 00000000:07:00.0\n",
        "",
    ],
)
def test_rows_that_wait_or_fail_are_judged_with_and_without_a_banner(
    tmp_path: Path, head: str
) -> None:
    """The form of nvidia-smi -q -d ROW_REMAPPER."""
    waits = replay(tmp_path, head + ROWS.format(pending="Yes", failed="No"))
    assert [r.verdict for r in judged(waits, "health/pending-repair")] == [Verdict.FAIL]
    fails = replay(tmp_path, head + ROWS.format(pending="No", failed="Yes"))
    assert [r.verdict for r in judged(fails, "health/row-remapping")] == [Verdict.FAIL]
    well = replay(tmp_path, head + ROWS.format(pending="No", failed="No"))
    assert well.verdict is Verdict.INCONCLUSIVE


def test_a_pending_row_as_a_number_is_pending(tmp_path: Path) -> None:
    """Exporters write 1 for what the tool calls Yes."""
    head = "index, pci.bus_id, remapped_rows.pending\n"
    run = replay(tmp_path, f"{head}0, 00000000:07:00.0, 0\n1, 00000000:0F:00.0, 1\n")
    (found,) = judged(run, "health/pending-repair")
    assert (found.device, found.verdict) == ("0000:0f:00.0", Verdict.FAIL)


def links(**counts: int) -> str:
    """``nvidia-smi nvlink -e`` of an H100 (github.com/NVIDIA/srt-slurm/pull/307)."""
    lines = ["GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-01111111-2222-3333-4444-555555555555)"]
    for link in range(18):
        for name in ("Replay", "Recovery", "CRC"):
            count = counts.get(name, 0) if link == 7 else 0
            lines.append(f"\t Link {link}: {name} Errors: {count}")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("counts", "verdict"),
    [
        ({}, Verdict.PASS),
        ({"CRC": 3}, Verdict.UNVERIFIED),
        ({"Replay": 3}, Verdict.UNVERIFIED),
        ({"Recovery": 1}, Verdict.FAIL),
    ],
)
def test_the_errors_of_a_link_are_judged_by_their_kind(
    tmp_path: Path, counts: dict[str, int], verdict: Verdict
) -> None:
    (found,) = judged(replay(tmp_path, links(**counts)), "links/link-errors")
    assert found.verdict is verdict
    assert ("link 7" in found.reason) == bool(counts)


def test_one_inactive_link_of_a_single_gpu_is_a_failure(tmp_path: Path) -> None:
    gpu = "GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-01111111-2222-3333-4444-555555555555)\n"
    run = replay(tmp_path, f"{gpu}\t Link 0: 25 GB/s\n\t Link 1: <inactive>\n")
    assert [r.verdict for r in judged(run, "links/links-up")] == [Verdict.FAIL]
    # cards that no bridge joins print this of every link
    card = gpu.replace("SXM4", "PCIE")
    bare = replay(tmp_path, f"{card}\t Link 0: <inactive>\n\t Link 1: <inactive>\n")
    assert [r.verdict for r in judged(bare, "links/links-up")] == [Verdict.UNVERIFIED]


TABLE = """\
| NVIDIA-SMI 535.129.03             Driver Version: 535.129.03   CUDA Version: 12.2     |
|-----------------------------------------+----------------------+----------------------+
|   0  NVIDIA A100-SXM4-80GB          On  | 00000000:07:00.0 Off |                    0 |
| {fan}   {heat}    P0         {power} / 400W |      0MiB / 81920MiB |     {busy}     Default |
|                                         |                      |             Disabled |
+-----------------------------------------+----------------------+----------------------+
"""


def test_a_row_of_errors_is_a_gpu_that_does_not_answer(tmp_path: Path) -> None:
    """Tables of lost GPUs have ERR! in every cell; a broken sensor in one."""
    gone = replay(tmp_path, TABLE.format(fan="ERR!", heat="ERR!", power="ERR!", busy="ERR!"))
    (found,) = judged(gone, "health/answers")
    assert (found.device, found.verdict) == ("0000:07:00.0", Verdict.FAIL)
    sensor = replay(tmp_path, TABLE.format(fan="N/A ", heat="33C", power="ERR!", busy="  0%"))
    assert sensor.verdict is Verdict.INCONCLUSIVE
    (reading,) = judged(sensor, "environment/recording")
    assert "ERR!" in str(reading.extra["problems"])


@pytest.mark.parametrize("name", ["kernel_log", "answers"])
def test_a_line_that_matches_a_rule_is_worth_a_look(name: str) -> None:
    """Lines without the word are passed over: no rule may be for one of them."""
    rules = table(name)
    for rule in rules.rules:
        plain = rule.pattern.pattern.replace("\\b", "").replace("\\", "").lower()
        assert any(word in plain for word in rules.keywords[rule.vendor]), plain
    assert all(word == word.lower() for words in rules.keywords.values() for word in words)

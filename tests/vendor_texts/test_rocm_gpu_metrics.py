"""The amdgpu driver's files: tables packed by the C compiler's rules from the header's structures.

No such file of a real machine was at hand. The structures are those of Linux, torvalds/linux
@2be02a7c996a, drivers/gpu/drm/amd/include/kgd_pp_interface.h, laid out by ctypes.
"""

from __future__ import annotations

import ctypes
import random
from ctypes import c_uint8 as u8
from ctypes import c_uint16 as u16
from ctypes import c_uint32 as u32
from ctypes import c_uint64 as u64

import pytest

from portagpu.facts.host import Tree
from portagpu_rocm.kernel_gpus import GpuMetrics, kernel_findings, read_metrics
from tests.support.gpu_trees import amd_gpu, machine, nvidia_gpu
from tests.support.host_trees import PCI, build

HEADER = [("structure_size", u16), ("format_revision", u8), ("content_revision", u8)]
TEMPERATURES = [
    (f"temperature_{name}", u16) for name in ("edge", "hotspot", "mem", "vrgfx", "vrsoc", "vrmem")
]
ACTIVITY = [(f"average_{name}_activity", u16) for name in ("gfx", "umc", "mm")]
CLOCKS = ("gfxclk", "socclk", "uclk", "vclk0", "dclk0", "vclk1", "dclk1")
AVERAGE = [(f"average_{name}_frequency", u16) for name in CLOCKS]
CURRENT = [(f"current_{name}", u16) for name in CLOCKS]
NEWER_TEMPERATURES = [(f"temperature_{name}", u16) for name in ("hotspot", "mem", "vrsoc")]
BEGINNING = [
    *HEADER,
    *NEWER_TEMPERATURES,
    ("curr_socket_power", u16),
    ("average_gfx_activity", u16),
    ("average_umc_activity", u16),
]
RESIDENCIES = [
    ("accumulation_counter", u32),
    *((f"{name}_residency_acc", u32) for name in ("prochot", "ppt", "socket_thm", "vr_thm")),
    ("hbm_thm_residency_acc", u32),
]
LINK = [("pcie_link_width", u16), ("pcie_link_speed", u16)]
XGMI = [("xgmi_link_width", u16), ("xgmi_link_speed", u16)]
BUSY = [("gfx_activity_acc", u32), ("mem_activity_acc", u32)]
PCIE = [
    ("pcie_bandwidth_acc", u64),
    ("pcie_bandwidth_inst", u64),
    ("pcie_l0_to_recov_count_acc", u64),
    ("pcie_replay_count_acc", u64),
    ("pcie_replay_rover_count_acc", u64),
]
NAK = [("pcie_nak_sent_count_acc", u32), ("pcie_nak_rcvd_count_acc", u32)]
MOVED = [("xgmi_read_data_acc", u64 * 8), ("xgmi_write_data_acc", u64 * 8)]
NEWER_CLOCKS = [
    ("current_gfxclk", u16 * 8),
    *((f"current_{name}", u16 * 4) for name in ("socclk", "vclk0", "dclk0")),
    ("current_uclk", u16),
]


class Xcp(ctypes.Structure):
    """amdgpu_xcp_metrics."""

    _fields_ = [
        ("gfx_busy_inst", u32 * 8),
        ("jpeg_busy", u16 * 32),
        ("vcn_busy", u16 * 4),
        ("gfx_busy_acc", u64 * 8),
    ]


class Xcp1(ctypes.Structure):
    """amdgpu_xcp_metrics_v1_1."""

    _fields_ = [*Xcp._fields_, ("gfx_below_host_limit_acc", u64 * 8)]


class Xcp2(ctypes.Structure):
    """amdgpu_xcp_metrics_v1_2."""

    _fields_ = [
        ("gfx_busy_inst", u32 * 8),
        ("jpeg_busy", u16 * 40),
        ("vcn_busy", u16 * 4),
        *((name, u64 * 8) for name in ("busy_acc", "below_ppt", "below_thm", "low_utilization")),
    ]


FIRST = [
    *HEADER,
    *TEMPERATURES,
    *ACTIVITY,
    ("average_socket_power", u16),
    ("energy_accumulator", u64),
    ("system_clock_counter", u64),
    *AVERAGE,
    *CURRENT,
    ("throttle_status", u32),
    ("current_fan_speed", u16),
    *LINK,
    ("padding", u16),
    *BUSY,
    ("temperature_hbm", u16 * 4),
]
SEVENTH = [
    *BEGINNING,
    ("mem_max_bandwidth", u64),
    ("energy_accumulator", u64),
    ("system_clock_counter", u64),
    *RESIDENCIES,
    ("gfxclk_lock_status", u32),
    *LINK,
    *XGMI,
    *BUSY,
    *PCIE,
    *NAK,
    *MOVED,
    ("xgmi_link_status", u16 * 8),
    ("padding", u16),
    ("firmware_timestamp", u64),
    *NEWER_CLOCKS,
    ("num_partition", u16),
]
OTHER_END = ("pcie_lc_perf_other_end_recovery", u32)
FIELDS = {
    0: [
        *HEADER,
        ("system_clock_counter", u64),
        *TEMPERATURES,
        *ACTIVITY,
        ("average_socket_power", u16),
        ("energy_accumulator", u32),
        *AVERAGE,
        *CURRENT,
        ("throttle_status", u32),
        ("current_fan_speed", u16),
        ("pcie_link_width", u8),
        ("pcie_link_speed", u8),
    ],
    1: FIRST,
    2: [*FIRST, ("firmware_timestamp", u64)],
    3: [
        *FIRST,
        ("firmware_timestamp", u64),
        *((f"voltage_{name}", u16) for name in ("soc", "gfx", "mem")),
        ("padding1", u16),
        ("indep_throttle_status", u64),
    ],
    4: [
        *BEGINNING,
        ("vcn_activity", u16 * 4),
        ("energy_accumulator", u64),
        ("system_clock_counter", u64),
        ("throttle_status", u32),
        ("gfxclk_lock_status", u32),
        *LINK,
        *XGMI,
        *BUSY,
        *PCIE,
        *MOVED,
        ("firmware_timestamp", u64),
        *NEWER_CLOCKS,
        ("padding", u16),
    ],
    5: [
        *BEGINNING,
        ("vcn_activity", u16 * 4),
        ("jpeg_activity", u16 * 32),
        ("energy_accumulator", u64),
        ("system_clock_counter", u64),
        ("throttle_status", u32),
        ("gfxclk_lock_status", u32),
        *LINK,
        *XGMI,
        *BUSY,
        *PCIE,
        *NAK,
        *MOVED,
        ("firmware_timestamp", u64),
        *NEWER_CLOCKS,
        ("padding", u16),
    ],
    6: [
        *BEGINNING,
        ("energy_accumulator", u64),
        ("system_clock_counter", u64),
        *RESIDENCIES,
        ("gfxclk_lock_status", u32),
        *LINK,
        *XGMI,
        *BUSY,
        *PCIE,
        *NAK,
        *MOVED,
        ("firmware_timestamp", u64),
        *NEWER_CLOCKS,
        ("num_partition", u16),
        ("xcp_stats", Xcp * 8),
        OTHER_END,
    ],
    7: [*SEVENTH, ("xcp_stats", Xcp1 * 8), OTHER_END],
    8: [*SEVENTH, ("xcp_stats", Xcp2 * 8), OTHER_END],
}
SIZES = {0: 80, 1: 96, 2: 104, 3: 120, 4: 288, 5: 360, 6: 1664, 7: 2208, 8: 3360}
"""sizeof, worked out by hand from the header's structures."""


def table(revision: int, **values: object) -> bytes:
    """A table of that revision; what is not given is all ones, as the driver begins it."""
    kind = type("Metrics", (ctypes.LittleEndianStructure,), {"_fields_": FIELDS[revision]})
    metrics = kind.from_buffer_copy(b"\xff" * ctypes.sizeof(kind))
    metrics.structure_size = ctypes.sizeof(kind)
    metrics.format_revision, metrics.content_revision = 1, revision
    for name, value in values.items():
        if isinstance(value, tuple):
            getattr(metrics, name)[: len(value)] = value
        else:
            setattr(metrics, name, value)
    return bytes(metrics)


@pytest.mark.parametrize("revision", FIELDS)
def test_the_tables_are_as_large_as_the_kernels(revision):
    assert len(table(revision)) == SIZES[revision]


@pytest.mark.parametrize("revision", FIELDS)
def test_a_table_of_ones_states_nothing(revision):
    found = read_metrics(table(revision))
    assert found == GpuMetrics()


@pytest.mark.parametrize("revision", [0, 1, 2, 3])
def test_the_older_tables_are_read(revision):
    given = {
        "temperature_edge": 40,
        "temperature_hotspot": 55,
        "temperature_mem": 48,
        "temperature_vrsoc": 44,
        "average_gfx_activity": 97,
        "average_umc_activity": 0,
        "average_socket_power": 301,
        "current_gfxclk": 1700,
        "current_uclk": 1600,
        "current_fan_speed": 0,
        "pcie_link_width": 16,
        "pcie_link_speed": 160,
        # stated in no unit before revision 4
        "energy_accumulator": 99,
    }
    found = read_metrics(table(revision, **given))
    assert found == GpuMetrics(
        temperatures_c={"edge": 40, "hotspot": 55, "mem": 48, "vrsoc": 44},
        utilization_percent=97,
        memory_utilization_percent=0,
        power_w=301,
        clock_mhz=1700,
        memory_clock_mhz=1600,
        fan_rpm=0,
        link_width=16,
        link_gt_s=16.0,
    )


def test_throttling_is_that_of_the_bits_that_all_products_share():
    # SMU_THROTTLER_PPT0_BIT 0, TDC_GFX_BIT 16, TEMP_HOTSPOT_BIT 36, PROCHOT_GFX_BIT 47, FIT_BIT 57
    status = 1 << 0 | 1 << 16 | 1 << 36 | 1 << 47 | 1 << 57
    found = read_metrics(table(3, indep_throttle_status=status))
    assert found.throttling == ("ppt0", "tdc_gfx", "temp_hotspot", "prochot_gfx", "fit")
    assert read_metrics(table(3, indep_throttle_status=0)).throttling == ()
    assert read_metrics(table(2, throttle_status=1)).throttling is None, (
        "its bits differ by product"
    )


@pytest.mark.parametrize("revision", [4, 5, 6, 7, 8])
def test_the_newer_tables_are_read(revision):
    given = {
        "temperature_hotspot": 55,
        "temperature_mem": 48,
        "curr_socket_power": 750,
        "average_gfx_activity": 100,
        "average_umc_activity": 61,
        "energy_accumulator": 3 << 16,
        "pcie_link_width": 16,
        "pcie_link_speed": 320,
        "pcie_replay_count_acc": 4,
        "pcie_l0_to_recov_count_acc": 5,
        "pcie_replay_rover_count_acc": 0,
        "current_gfxclk": (2100, 2090, 0xFFFF),
        "current_uclk": 1300,
    }
    found = read_metrics(table(revision, **given))
    assert found.temperatures_c == {"hotspot": 55, "mem": 48}
    assert (found.power_w, found.energy_j) == (750, 3.0)
    assert (found.utilization_percent, found.memory_utilization_percent) == (100, 61)
    assert (found.link_width, found.link_gt_s, found.replays) == (16, 32.0, 4)
    assert found.link_errors == {"l0_to_recovery": 5, "replay_roll_over": 0}
    assert (found.clock_mhz, found.memory_clock_mhz) == (2100, 1300)


@pytest.mark.parametrize("revision", [6, 7, 8])
def test_times_of_throttling_are_counted_in_the_firmwares_periods(revision):
    found = read_metrics(
        table(
            revision,
            accumulation_counter=100_000,
            prochot_residency_acc=0,
            ppt_residency_acc=2500,
            hbm_thm_residency_acc=3,
            pcie_nak_sent_count_acc=7,
        )
    )
    assert found.ticks == 100_000
    assert found.throttled_ticks == {"prochot": 0, "ppt": 2500, "hbm_thermal": 3}
    assert found.link_errors == {"nak_sent": 7}


def test_links_are_up_or_down_or_not_there():
    found = read_metrics(table(8, xgmi_link_status=(1, 0, 0xFFFF, 1)))
    assert found.links_up == {0: True, 1: False, 3: True}


def test_every_field_has_its_own_place():
    """A number that is planted in one field of a table is found in that value and in no other."""
    for revision in FIELDS:
        for name, kind in FIELDS[revision][3:]:
            if kind in (u8, u16, u32, u64):
                found = read_metrics(table(revision, **{name: 33}))
                changed = [
                    each
                    for each in GpuMetrics.__dataclass_fields__
                    if getattr(found, each) != getattr(GpuMetrics(), each)
                ]
                assert len(changed) <= 1, f"revision {revision}: {name} changes {changed}"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x50\x00\x01",
        table(8)[:3000],
        table(8, structure_size=2208),
        table(3, format_revision=2),
        table(3, content_revision=9),
        # Linux had another table 1.6, which is shorter, before it was released
        b"\x78\x01\x01\x06" + b"\xff" * 372,
    ],
    ids=["empty", "half a header", "cut", "too small", "2.3", "1.9", "an early 1.6"],
)
def test_what_is_not_a_known_table_is_not_read(data):
    assert read_metrics(data) is None


def test_no_bytes_raise():
    chance = random.Random(18)  # noqa: S311
    for _ in range(300):
        revision = chance.choice(list(FIELDS))
        data = bytearray(table(revision))
        for _ in range(chance.randrange(40)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        read_metrics(bytes(data[: chance.randrange(len(data) + 1)]))


# --- the files around the table

ADDRESS = "0000:05:00.0"


def files(**changed: str) -> dict[str, str]:
    """An MI300X's files as Documentation/gpu/amdgpu describes them; "" takes one away."""
    folder = f"{PCI}/{ADDRESS}"
    values = {
        "gpu_busy_percent": "97",
        "mem_busy_percent": "12",
        "pcie_replay_count": "6",
        "hwmon/hwmon3/name": "amdgpu",
        "hwmon/hwmon3/temp1_input": "40000",
        "hwmon/hwmon3/temp1_label": "edge",
        "hwmon/hwmon3/temp2_input": "55000",
        "hwmon/hwmon3/temp2_label": "junction",
        "hwmon/hwmon3/temp2_crit": "100000",
        "hwmon/hwmon3/temp2_emergency": "105000",
        "hwmon/hwmon3/temp3_input": "48000",
        "hwmon/hwmon3/temp3_label": "mem",
        "hwmon/hwmon3/power1_average": "301000000",
        "hwmon/hwmon3/power1_cap": "750000000",
        "hwmon/hwmon3/freq1_input": "1700000000",
        "hwmon/hwmon3/freq2_input": "900000000",
        "hwmon/hwmon3/fan1_input": "1200",
        "hwmon/hwmon3/pwm1": "51",
        "ras/umc_err_count": "ue: 1\nce: 5",
        "ras/xgmi_wafl_err_count": "ue: 0\nce: 0",
        "ras/gpu_vram_bad_pages": "0x00000001 : 0x00001000 : R\n0x2 : 0x1000 : P\n0x3 : 0x1000 : F",
        **changed,
    }
    return {f"{folder}/{name}": text for name, text in values.items() if text}


def read(folder, data: bytes = b"", **changed: str):
    root = build(folder / "root", *machine(amd_gpu(0, pci=ADDRESS), nvidia_gpu(1)))
    build(root, files(**changed))
    if data:
        (root / PCI / ADDRESS / "gpu_metrics").write_bytes(data)
    return kernel_findings(Tree(root), changing=True)


def test_the_drivers_files_state_a_gpu_alone(tmp_path):
    found = read(tmp_path)
    (gpu,) = found.readings
    assert (gpu.key, gpu.source, gpu.name) == (ADDRESS, "amdgpu", "AMD Instinct MI300X OAM")
    assert gpu.uuid == "GPU-e3aa140f00000000"
    state = gpu.state
    assert state.temperatures_c == {"edge": 40, "hotspot": 55, "mem": 48}
    assert state.limits_c == {"slowdown": 100, "shutdown": 105}
    assert (state.power_w, state.power_limit_w) == (301, 750)
    assert (state.clock_mhz, state.memory_clock_mhz) == (1700, 900)
    assert (state.utilization_percent, state.memory_utilization_percent) == (97, 12)
    assert (state.fan_rpm, state.fan_percent) == (1200, 20)
    assert state.memory_used_bytes == 300 << 20
    assert (state.energy_j, state.throttling, state.ticks) == (None, None, None)
    assert gpu.pcie.replays == 6
    assert gpu.memory.by_block == {"UMC": (5, 1), "XGMI_WAFL": (0, 0)}
    assert gpu.memory.retired_pages == {"retired": 1, "unreservable": 1}
    assert gpu.memory.pending is True


def test_the_table_says_what_the_other_files_do_not(tmp_path):
    data = table(
        8,
        temperature_hotspot=99,
        temperature_vrsoc=61,
        energy_accumulator=1 << 16,
        ppt_residency_acc=4,
        accumulation_counter=8,
        pcie_link_speed=320,
        pcie_link_width=16,
        pcie_replay_count_acc=9,
        xgmi_link_status=(1, 0),
    )
    found = read(tmp_path, data, **{"hwmon/hwmon3/power1_average": ""})
    (gpu,) = found.readings
    state = gpu.state
    assert state.temperatures_c == {"edge": 40, "hotspot": 55, "mem": 48, "vrsoc": 61}
    assert (state.power_w, state.energy_j) == (None, 1.0)
    assert (state.throttled_ticks, state.ticks) == ({"ppt": 4}, 8)
    assert (gpu.pcie.generation, gpu.pcie.width, gpu.pcie.replays) == (5, 16, 9)
    assert [(link.kind, link.count, link.extra["link"], link.up) for link in found.links] == [
        ("xgmi", 1, "0", True),
        ("xgmi", 1, "1", False),
    ]


@pytest.mark.parametrize(
    "changed",
    [
        {"hwmon/hwmon3/temp2_input": "N/A"},
        {"hwmon/hwmon3/temp2_label": "hottest"},
        {"ras/umc_err_count": "ue: many\nce:"},
        {"ras/gpu_vram_bad_pages": "none"},
        {"gpu_busy_percent": "\0\0\0"},
    ],
)
def test_a_damaged_file_is_missing_and_no_other(tmp_path, changed):
    (gpu,) = read(tmp_path, **changed).readings
    whole = {"temperatures_c", "utilization_percent"}
    assert gpu.state.power_w == 301
    for name in whole:
        assert getattr(gpu.state, name) != 0


def test_a_gpu_without_the_driver_states_nothing(tmp_path):
    files, links = amd_gpu(0, pci=ADDRESS)
    bare = {name: text for name, text in files.items() if "mem_info" not in name}
    root = build(tmp_path / "root", bare, links)
    assert kernel_findings(Tree(root)).readings == ()

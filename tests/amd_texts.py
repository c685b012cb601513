"""Outputs of AMD's tools, written by hand from their documentation and sources.

AMD SMI: CHANGELOG of amdsmi 6.0 to 7.14 and ``amdsmi_logger.py``; ROCm SMI: ``rocm_smi.py``;
``rocminfo.cc``; ``crates/amdgpu_top_json``. Values are invented where a test does not need them.
"""

from __future__ import annotations

import json
from typing import Any

DEGREES = "\N{DEGREE SIGN}C"


def _unit(value: float | str, unit: str) -> dict[str, Any]:
    return {"value": value, "unit": unit}


STATIC_JSON_NEW = json.dumps(
    {
        "gpu_data": [
            {
                "gpu": 0,
                "asic": {
                    "market_name": "MI300X test",
                    "vendor_id": "0x1002",
                    "device_id": "0x74a1",
                    "subsystem_id": "0x74a1",
                    "asic_serial": "0x0000000000001234",
                    "oam_id": 3,
                    "num_compute_units": 304,
                    "target_graphics_version": "gfx942",
                },
                "bus": {
                    "bdf": "0000:75:00.0",
                    "max_pcie_width": 16,
                    "max_pcie_speed": _unit(32, "GT/s"),
                    "pcie_interface_version": "Gen 5",
                },
                "vbios": {"name": "X", "version": "022.040"},
                "limit": {
                    "ppt0": {
                        "max_power_limit": _unit(750, "W"),
                        "socket_power_limit": _unit(750, "W"),
                    },
                    "ppt1": {"socket_power_limit": "N/A"},
                    "slowdown_edge_temperature": "N/A",
                    "slowdown_hotspot_temperature": _unit(100, "C"),
                    "slowdown_vram_temperature": _unit(105, "C"),
                    "shutdown_hotspot_temperature": _unit(110, "C"),
                },
                "driver": {"name": "amdgpu", "version": "6.14.14"},
                "ras": {"ecc_block_state": {"UMC": "ENABLED", "SDMA": "DISABLED"}},
                "partition": {"accelerator_partition": "CPX", "memory_partition": "NPS4"},
                "numa": {"node": 1, "affinity": 1},
                "vram": {"type": "HBM3", "size": _unit(196592, "MB")},
            },
            {
                "gpu": 1,
                "asic": {
                    "market_name": "N/A",
                    "asic_serial": "N/A",
                    "num_compute_units": "N/A",
                    "target_graphics_version": "N/A",
                },
                "limit": {"ppt0": {"socket_power_limit": "N/A"}, "slowdown_hotspot_temperature": 0},
                "numa": {"node": 4294967295, "affinity": -1},
                "vram": {"type": "UNKNOWN", "size": _unit("N/A", "MB")},
                "ras": "N/A",
            },
        ]
    },
    indent=4,
)

# ROCm 6.0 writes units into the text
METRIC_JSON_OLD = json.dumps(
    [
        {
            "gpu": 0,
            "usage": {"gfx_activity": "0 %", "mm_activity": "N/A"},
            "power": {"socket_power": "117 W", "throttle_status": "UNTHROTTLED"},
            "clock": {
                "gfx_0": {"clk": "131 MHz", "max_clk": "2100 MHz"},
                "gfx_1": {"clk": "132 MHz", "max_clk": "2100 MHz"},
                "gfx_2": {"clk": "N/A", "max_clk": "N/A"},
                "mem_0": {"clk": "900 MHz", "max_clk": "1300 MHz"},
            },
            "temperature": {"edge": "N/A", "hotspot": "42 \N{DEGREE SIGN}C", "mem": "40 C"},
            "pcie": {"width": 16, "speed": "32 GT/s", "replay_count": 2},
            "ecc": {"total_correctable_count": 3, "total_uncorrectable_count": 0},
            "ecc_blocks": {
                "UMC": {"correctable_count": 3, "uncorrectable_count": 0},
                "SDMA": {"correctable_count": "N/A", "uncorrectable_count": "N/A"},
            },
            "mem_usage": {"total_vram": "196592 MB", "used_vram": "283 MB"},
        }
    ]
)

TOPOLOGY_JSON_OLD = """$ amd-smi topology --json
[
    {"gpu": 0,
     "link_accessibility": {"gpu_0": "ENABLED", "gpu_1": "ENABLED"},
     "weight": {"gpu_0": 0, "gpu_1": 15},
     "hops": {"gpu_0": 0, "gpu_1": 1},
     "link_type": {"gpu_0": "SELF", "gpu_1": "XGMI"},
     "numa_bandwidth": {"gpu_0": "N/A", "gpu_1": "50000-100000"}},
    {"gpu": 1,
     "weight": {"gpu_0": 15, "gpu_1": 0},
     "link_type": {"gpu_0": "XGMI", "gpu_1": "SELF"}}
]
"""

TOPOLOGY_JSON_NEW = """[
    {"gpu": 0, "bdf": "0000:01:00.0", "links": [
        {"gpu": 0, "bdf": "0000:01:00.0", "weight": 0, "link_status": "ENABLED",
         "link_type": "SELF", "num_hops": 0, "bandwidth": "N/A"},
        {"gpu": 1, "bdf": "0001:01:00.0", "weight": 15, "link_status": "ENABLED",
         "link_type": "XGMI", "num_hops": 1, "bandwidth": "50000-100000"}]},
    {"gpu": 1, "bdf": "0001:01:00.0", "links": [
        {"gpu": 0, "bdf": "0000:01:00.0", "weight": 40, "link_status": "DISABLED",
         "link_type": "PCIE", "num_hops": 2, "bandwidth": "0-0"}]}
]
"""

XGMI_JSON = json.dumps(
    [
        {
            "gpu": 0,
            "bdf": "0000:0c:00.0",
            "link_metrics": {
                "bit_rate": _unit(32, "Gb/s"),
                "max_bandwidth": _unit(512, "Gb/s"),
                "link_type": "XGMI",
                "links": [
                    {"gpu": 0, "bdf": "0000:0c:00.0", "read": "N/A", "write": "N/A"},
                    {
                        "gpu": 1,
                        "bdf": "0000:22:00.0",
                        "read": _unit(7, "KB"),
                        "write": _unit(9, "KB"),
                    },
                ],
            },
        }
    ]
)

PARTITION_JSON = """{"current_partition": [
    {"gpu_id": 0, "memory": "NPS1", "accelerator_type": "CPX", "partition_id": "0"},
    {"gpu_id": 1, "memory": "N/A", "accelerator_type": "N/A", "partition_id": "N/A"}]}
{"memory_partition": [{"gpu_id": 1, "memory_partition_caps": "N/A", "current": "NPS1"}]}
"""

STATIC_TEXT = """GPU: 0
    ASIC:
        MARKET_NAME: MI210 test
        VENDOR_ID: 0x1002
        DEVICE_ID: 0x740f
        ASIC_SERIAL: 0xABCD
        TARGET_GRAPHICS_VERSION: gfx9010
    BUS:
        BDF: 0000:63:00.0
        MAX_PCIE_SPEED: 16 GT/s
    LIMIT:
        SOCKET_POWER: 300 W
        SHUTDOWN_HOTSPOT_TEMPERATURE: 115 \N{DEGREE SIGN}C
    DRIVER:
        NAME: amdgpu
        VERSION: 6.8.5
    VRAM:
        TYPE: HBM2E
        SIZE: 65520 MB
    FW_LIST:
        FW 0:
            FW_ID: CP_MEC1
            FW_VERSION: 78
        FW 1:
            FW_ID: SMC
            FW_VERSION: N/A

"""

METRIC_TEXT = """GPU: 0
    USAGE:
        GFX_ACTIVITY: 5 %
        MM_ACTIVITY: N/A
        JPEG_ACTIVITY: [0 %, 0 %, N/A, N/A, N/A,
            N/A, N/A]
        GFX_BUSY_INST:
            XCP_0: [0 %, N/A, N/A]
    POWER:
        SOCKET_POWER: 40 W
        THROTTLE_STATUS: N/A
    TEMPERATURE:
        EDGE: 31 \N{DEGREE SIGN}C
        HOTSPOT: N/A
    RETIRED:
        PAGE_ADDRESS: 0x7f8000
        PAGE_SIZE: 0x1000
        STATUS: RESERVED
        PAGE_ADDRESS: 0x7f9000
        PAGE_SIZE: 0x1000
        STATUS: RESERVED
    PENDING: No bad pages found.

"""

PROCESS_TEXT = """GPU: 0
    PROCESS_INFO:
        NAME: python3
        PID: 100
        MEMORY_USAGE:
            VRAM_MEM: 10.1 GB
    PROCESS_INFO:
        NAME: N/A
        PID: 101

GPU: 1
    PROCESS_INFO: No running processes detected
"""

LIST_CSV = (
    "gpu,gpu_bdf,gpu_uuid,kfd_id,node_id,partition_id\r\n"
    "0,0000:05:00.0,abff74a1-0000-1000-8001-020304050607,45412,2,0\r\n"
    "1,0000:26:00.0,N/A,N/A,N/A,N/A\r\n"
)

MONITOR_OLD = """GPU  POWER  GPU_TEMP  GFX_UTIL  GFX_CLOCK  VRAM_USED  VRAM_TOTAL
  0  182 W     42 \N{DEGREE SIGN}C       0 %   1613 MHz     283 MB   196300 MB
  1    N/A       N/A       N/A        N/A        N/A         N/A
"""

MONITOR_NEW = f"""GPU  XCP  POWER  PWR_CAP   GPU_T   MEM_T   GFX_CLK   GFX%      VRAM_USAGE
  0    0   49 W    750 W   27 {DEGREES}   29 {DEGREES}    43 MHz    2 %    2.9/ 15.9 GB
  1    0    N/A      N/A     N/A     N/A       N/A    N/A             N/A
"""

TOPOLOGY_TEXT = """ACCESS TABLE:
             0000:0c:00.0 0000:22:00.0
0000:0c:00.0 ENABLED      ENABLED
0000:22:00.0 ENABLED      ENABLED

WEIGHT TABLE:
             0000:0c:00.0 0000:22:00.0
0000:0c:00.0 0            15
0000:22:00.0 15           0

LINK TYPE TABLE:
             0000:0c:00.0 0000:22:00.0
0000:0c:00.0 SELF         XGMI
0000:22:00.0 XGMI         SELF

NUMA BW TABLE:
             0000:0c:00.0 0000:22:00.0
0000:0c:00.0 N/A          50000-50000
0000:22:00.0 50000-50000  N/A

CACHE COHERANCY TABLE:
             0000:0c:00.0 0000:22:00.0
0000:0c:00.0 SELF         C
0000:22:00.0 NC           SELF
"""

XGMI_TEXT = """LINK METRIC TABLE:
       bdf           bit_rate  max_bandwidth  link_type  GPU0         GPU1
GPU0   0000:03:00.0  65535 Gb/s4294967295 Gb/sN/A
 Read                                                    N/A          N/A
 Write                                                   N/A          N/A
GPU1   0000:0c:00.0  65535 Gb/s4294967295 Gb/sN/A
 Read                                                    N/A          N/A
 Write                                                   N/A          N/A

GPU LINK PORT STATUS:
       bdf           port_num
GPU0   0000:03:00.0  U  D  X
GPU1   0000:0c:00.0  X  X  X

XGMI LINK STATUS:
       bdf            GPU0          GPU1
GPU0   0000:03:00.0   SELF          D
GPU1   0000:0c:00.0   U             SELF

Legend:
  SELF = Current GPU
"""

PARTITION_TEXT = """CURRENT_PARTITION:
GPU_ID  MEMORY  ACCELERATOR_TYPE  ACCELERATOR_PROFILE_INDEX  PARTITION_ID
0       NPS1    SPX               0                          0
1       N/A     N/A               N/A                        N/A

MEMORY_PARTITION:
GPU_ID  MEMORY_PARTITION_CAPS  CURRENT_MEMORY_PARTITION
0       N/A                    NPS1
"""

SUMMARY = """\
+------------------------------------------------------------------------------+
| AMD-SMI 26.0.0+abc           amdgpu version: 6.14.14  ROCm version: 7.0.0    |
| Platform: Linux Baremetal                                                    |
|-------------------------------------+----------------------------------------|
| BDF                        GPU-Name | Mem-Uti   Temp   UEC       Power-Usage |
| GPU  HIP-ID  OAM-ID  Partition-Mode | GFX-Uti    Fan               Mem-Usage |
|=====================================+========================================|
| 0000:83:00.0         AMD Instinct X | 0 %      37 \N{DEGREE SIGN}C   0           135/750 W |
|   0       0       0        SPX/NPS1 | 0 %        N/A           285/196288 MB |
|-------------------------------------+----------------------------------------|
| 0000:c5:00.0 ...Radeon AI PRO R9700 | N/A        N/A   0             N/A/0 W |
|   1       1     N/A             N/A | N/A        N/A              161/512 MB |
+-------------------------------------+----------------------------------------+
"""

ROCM_JSON_OLD = json.dumps(
    {
        "card0": {
            "GPU ID": "0x738c",
            "Unique ID": "0x2150e7d042a1124",
            "Temperature (Sensor edge) (C)": "31.0",
            "Temperature (Sensor HBM 0) (C)": "N/A",
            "sclk clock speed:": "(300Mhz)",
            "sclk clock level:": "0",
            "pcie clock level": "0 (8.0GT/s x16)",
            "Average Graphics Package Power (W)": "N/A (Secondary die)",
            "0": "8.0GT/s x16 *",
            "PCI Bus": "0000:1E:00.0",
            "Card series": "0x1002",
            "Card model": "0x0c34",
            "(Topology) Numa Node": "0",
            "(Topology) Numa Affinity": "4294967295",
        },
        "card1": {"GPU ID": "0x738c", "PCI Bus": "0000:22:00.0", "Unique ID": "N/A"},
        "system": {
            "Driver version": "6.2.4",
            "PID104225": "python3, 0, 0, 0, 0",
            "(Topology) Weight between DRM devices 0 and 1": "40",
            "(Topology) Hops between DRM devices 0 and 1": "2",
            "(Topology) Link type between DRM devices 0 and 1": "PCIE",
        },
    },
    indent=4,
)

ROCM_JSON_NEW = "WARNING: AMD GPU device(s) is/are in a low-power state.\n" + json.dumps(
    {
        "card0": {
            "Device Name": "AMD Instinct test",
            "Device ID": "0x740f",
            "Device Rev": "0x02",
            "Subsystem ID": "0x0c34",
            "GUID": "47056",
            "Current Socket Graphics Package Power (W)": "41.0",
            "Card Series": "N/A",
            "Card Model": "0x740f",
            "GFX Version": "gfx9010",
            "Compute Partition": "SPX",
            "Memory Partition": "NPS1",
        }
    }
)

CONCISE_OLD = """\
======================= ROCm System Management Interface ====================
=============================== Concise Info ================================
GPU  Temp (DieEdge)  AvgPwr  SCLK     MCLK     Fan  Perf  PwrCap  VRAM%  GPU%
0    52.0c           179.0W  1700Mhz  1600Mhz  0%   auto  300.0W   65%   100%
1    51.0c           N/A     None     1600Mhz  0%   auto  300.0W   66%   100%
=============================================================================
============================ End of ROCm SMI Log ============================
"""

CONCISE_NAMED = f"""\
====================== ROCm System Management Interface ======================
================================ Concise Info ================================
Device  [Model : Revision]    Temp    Power  Partitions      SCLK     MCLK     PwrCap  GPU%
        Name (20 chars)       (Edge)  (Avg)  (Mem, Compute)
==============================================================================
0       [0x0c34 : 0x02]       34.0{DEGREES}  43.0W  N/A, N/A        800Mhz   1600Mhz  300.0W   0%
        Instinct A
1       [0x0c34 : 0x02]       39.0{DEGREES}  42.0W  N/A, N/A        800Mhz   1600Mhz  300.0W   0%
        AMD Instinct Name 20
==============================================================================
============================ End of ROCm SMI Log =============================
"""

CONCISE_NEW = f"""\
====================== ROCm System Management Interface ======================
================================ Concise Info ================================
Device  Node  IDs              Temp        Power     Partitions          SCLK   PwrCap  GPU%
\x1b[3m        (DID,     GUID)  (Junction)  (Socket)  (Mem, Compute, ID)\x1b[0m
==============================================================================
0       4     0x74a0,   50375  48.0{DEGREES}      110.0W    NPS1, SPX, 0        98Mhz  550.0W  7%
==============================================================================
============================ End of ROCm SMI Log =============================
"""

SHOWTOPO = """\
============================ ROCm System Management Interface ============================
================================ Weight between two GPUs =================================
       GPU0         GPU1
GPU0   0            15
GPU1   15           0

================================= Hops between two GPUs ==================================
       GPU0         GPU1
GPU0   0            1
GPU1   1            0

=============================== Link Type between two GPUs ===============================
       GPU0         GPU1
GPU0   0            XGMI
GPU1   XGMI         0

========================== Link accessibility between two GPUs ===========================
       GPU0         GPU1
GPU0   True         True
GPU1   True         True

======================================= Bandwidth ========================================
       GPU0         GPU1
GPU0   N/A          50000-100000
GPU1   50000-100000 N/A
Format: min-max; Units: mps

======================================= Numa Nodes =======================================
GPU[0]\t\t: (Topology) Numa Node: 3
GPU[0]\t\t: (Topology) Numa Affinity: 3
GPU[1]\t\t: (Topology) Numa Node: 0
GPU[1]\t\t: (Topology) Numa Affinity: -1
================================== End of ROCm SMI Log ===================================
"""

SHOWRAS = """\
============================ ROCm System Management Interface ============================
======================================== RAS Info ========================================

GPU[0]: \tRAS INFO
         Block       Status    Correctable Error  Uncorrectable Error
           UMC      ENABLED                    1                    2
          SDMA     DISABLED
__________________________________________________________________________________________
==========================================================================================
======================================= Pages Info =======================================

GPU[0]: \tALL PAGES INFO
    Page address     Page size      Status
        0x7f8000        0x1000    reserved
        0x7f9000        0x1000     pending
==========================================================================================
"""

ROCMINFO = """\
\x1b[37mROCk module version 6.10.5 is loaded\x1b[0m
=====================
HSA System Attributes
=====================
Runtime Version:         1.1
System Timestamp Freq.:  1000.000000MHz

==========
HSA Agents
==========
*******
Agent 1
*******
  Name:                    A Processor
  Uuid:                    CPU-XX
  Marketing Name:          A Processor
  Device Type:             CPU
  BDFID:                   0
  Compute Unit:            64
  Pool Info:
    Pool 1
      Segment:                 GLOBAL; FLAGS: FINE GRAINED
      Size:                    263752032(0xfb88d60) KB
*******
Agent 2
*******
  Name:                    gfx90a
  Uuid:                    GPU-b1fb27fd8857c0d3
  Marketing Name:          An Instinct
  Vendor Name:             AMD
  Node:                    2
  Device Type:             GPU
  Chip ID:                 29711(0x740f)
  Max Clock Freq. (MHz):   1700
  BDFID:                   25344
  Compute Unit:            104
  Wavefront Size:          64(0x40)
  Pool Info:
    Pool 1
      Segment:                 GLOBAL; FLAGS: COARSE GRAINED
      Size:                    67092480(0x3ffc000) KB
    Pool 2
      Segment:                 GROUP
      Size:                    64(0x40) KB
  ISA Info:
    ISA 1
      Name:                    amdgcn-amd-amdhsa--gfx90a:sramecc+:xnack-
*******
Agent 3
*******
  Name:                    gfx1100
  Uuid:                    GPU-XX
  Marketing Name:
  Device Type:             GPU
  BDFID:                   768
  Wavefront Size:          32(0x20)
*** Done ***
"""

_INFO: dict[str, Any] = {
    "DeviceName": "AMD Radeon Graphics",
    "DeviceID": 5056,
    "DevicePath": {"pci": "0000:13:00.0", "render": "/dev/dri/renderD129"},
    "Firmware info": [{"fw_type": "SMC", "version": 7}],
    "GPU Type": "APU",
    "PCI": "0000:13:00.0",
    "PCIe Link": None,
    "Power Cap": None,
    "ROCm Version": "7.12.0",
    "Total Compute Unit": 2,
    "VRAM Size": 536870912,
    "VRAM Usage Size": 482959360,
    "drm_version": {"major": 3, "minor": 64, "patchlevel": 0},
    "gfx_target_version": "gfx1036",
}

AMDGPU_TOP = json.dumps(
    {
        "ROCm version": "7.12.0",
        "amdgpu_top_version": {"major": 0, "minor": 11, "patch": 5},
        "devices": [
            {
                "Info": _INFO,
                "Sensors": {
                    "Average Power": None,
                    "GFX Power": _unit(27, "W"),
                    "Edge Temperature": _unit(43, "C"),
                    "Edge Critical Temperature": {"unit": "C", "value": None},
                    "Junction Temperature": None,
                },
                "fdinfo": {"100": {"name": "python3"}},
                "gpu_activity": {"GFX": _unit(0, "%")},
                "gpu_metrics": {"Throttle Status": []},
            }
        ],
        "suspended_devices": [
            {"DeviceID": 30096, "DeviceName": "AMD Radeon RX", "pci": "0000:03:00.0"}
        ],
        "timestamp": "2026-06-14T10:10:31+00:00",
    }
)

AMDGPU_TOP_DUMP = json.dumps(
    [
        _INFO
        | {
            "PCIe Link": {
                "max_gpu_link": {"gen": 5, "width": 16},
                "max_system_link": {"gen": 4, "width": 8},
            },
            "Power Cap": {"current": 164, "max": 200, "min": 127},
            "Sensors": {
                "Junction Critical Temperature": _unit(110, "C"),
                "Junction Emergency Temperature": _unit(115, "C"),
            },
            "gpu_metrics": {"Throttle Status": ["PPT0"]},
        }
    ]
)

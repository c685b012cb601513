"""Small file trees that stand for machines, written from the kernel's documentation."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

PCI = "sys/bus/pci/devices"
KFD = "sys/class/kfd/kfd/topology/nodes"
GIB = 1 << 30

X86_FLAGS = (
    "fpu cx8 cmov mmx fxsr sse sse2 syscall lm pni ssse3 fma cx16 sse4_1 sse4_2 movbe popcnt xsave "
    "avx f16c lahf_lm abm bmi1 avx2 bmi2 avx512f avx512dq avx512cd avx512bw avx512vl avx512_vnni "
    "avx512_bf16 amx_bf16 amx_tile amx_int8"
)


def build(root: Path, files: Mapping[str, str], links: Mapping[str, str] | None = None) -> Path:
    """Write ``files`` (path -> text) and symbolic ``links`` (path -> what it points to)."""
    for path, text in files.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n", encoding="utf-8")
    for path, target in (links or {}).items():
        link = root / path
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)
    return root


def two_socket_x86() -> dict[str, str]:
    """Two sockets of two cores of two threads: n and n + 4 share a core, even ones socket 0."""
    files = {
        "proc/cpuinfo": "\n\n".join(
            f"processor\t: {cpu}\nvendor_id\t: GenuineIntel\nmodel name\t: Test  CPU  @ 2.00GHz\n"
            f"physical id\t: {cpu % 2}\ncore id\t\t: {cpu % 4 // 2}\n"
            f"cpu MHz\t\t: {2000 + cpu}.500\nflags\t\t: {X86_FLAGS}"
            for cpu in range(8)
        ),
        "proc/sys/kernel/arch": "x86_64",
        "proc/sys/kernel/osrelease": "6.8.0-45-generic",
        "proc/self/status": "Name:\tpython3\nCpus_allowed:\t3f\nCpus_allowed_list:\t0-3,6-7",
        "proc/meminfo": "MemTotal:       16777216 kB\nMemAvailable:    8388608 kB\n"
        "SwapTotal:             0 kB\nSwapFree:              0 kB\n"
        "HugePages_Total:       4\nHugePages_Free:        3\nHugepagesize:       2048 kB",
        "proc/loadavg": "0.50 1.25 2.00 3/456 7890",
        "proc/1/comm": "systemd",
        "proc/self/limits": "Limit                     Soft Limit           Hard Limit           "
        "Units     \n"
        "Max stack size            8388608              unlimited            bytes     \n"
        "Max processes             63000                63000                processes \n"
        "Max open files            1024                 524288               files     \n"
        "Max locked memory         unlimited            unlimited            bytes     ",
        "sys/devices/system/cpu/online": "0-7",
    }
    for cpu in range(8):
        folder = f"sys/devices/system/cpu/cpu{cpu}"
        core, socket = cpu % 4, cpu % 2
        socket_cpus = f"{socket},{socket + 2},{socket + 4},{socket + 6}"
        files |= {
            f"{folder}/topology/physical_package_id": str(socket),
            f"{folder}/topology/thread_siblings_list": f"{core},{core + 4}",
            f"{folder}/cache/index0/level": "1",
            f"{folder}/cache/index0/type": "Data",
            f"{folder}/cache/index0/size": "48K",
            f"{folder}/cache/index0/shared_cpu_list": f"{core},{core + 4}",
            f"{folder}/cache/index3/level": "3",
            f"{folder}/cache/index3/type": "Unified",
            f"{folder}/cache/index3/size": "105M",
            f"{folder}/cache/index3/shared_cpu_list": socket_cpus,
            f"{folder}/cpufreq/scaling_cur_freq": str(1_900_000 + 100_000 * cpu),
            f"{folder}/cpufreq/cpuinfo_max_freq": "3800000",
            f"{folder}/cpufreq/scaling_governor": "performance",
            # both threads of a core and all cores of a package repeat one count
            f"{folder}/thermal_throttle/core_throttle_count": str(core),
            f"{folder}/thermal_throttle/package_throttle_count": str(10 + socket),
        }
    for node in range(2):
        folder = f"sys/devices/system/node/node{node}"
        files |= {
            f"{folder}/cpulist": f"{node},{node + 2},{node + 4},{node + 6}",
            f"{folder}/meminfo": f"Node {node} MemTotal:        8388608 kB\n"
            f"Node {node} MemFree:         1048576 kB",
        }
    return files


def aarch64() -> dict[str, str]:
    """Two Neoverse-V2 cores; the firmware names no package."""
    block = (
        "Features\t: fp asimd asimdhp asimddp sve sve2 svei8mm svebf16 i8mm bf16\n"
        "CPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x0\nCPU part\t: 0xd4f\n"
        "CPU revision\t: 0"
    )
    files = {
        "proc/cpuinfo": "\n\n".join(f"processor\t: {cpu}\n{block}" for cpu in range(2)),
        "proc/sys/abi/sve_default_vector_length": "16",
        "sys/devices/system/cpu/online": "0-1",
    }
    for cpu in range(2):
        folder = f"sys/devices/system/cpu/cpu{cpu}/topology"
        files |= {f"{folder}/physical_package_id": "-1", f"{folder}/thread_siblings_list": str(cpu)}
    return files


def pci_device(address: str, code: str, vendor: str, device: str = "0x0001") -> dict[str, str]:
    """The files of one PCI device."""
    return {
        f"{PCI}/{address}/class": code,
        f"{PCI}/{address}/vendor": vendor,
        f"{PCI}/{address}/device": device,
        f"{PCI}/{address}/numa_node": "1",
    }


def kfd_node(index: int, **properties: int) -> dict[str, str]:
    """One KFD node; ``memory`` is the size of its only bank."""
    memory = properties.pop("memory", None)
    lines = [f"{key} {value}" for key, value in properties.items()]
    files = {f"{KFD}/{index}/properties": "\n".join(lines)}
    if memory is not None:
        bank = f"heap_type 1\nsize_in_bytes {memory}\nflags 0"
        files[f"{KFD}/{index}/mem_banks/0/properties"] = bank
    return files


def gfx942_node(index: int, location: int, **properties: int) -> dict[str, str]:
    """A KFD node of a GPU with 304 units of 4 SIMDs, at ``location``."""
    defaults = {
        "cpu_cores_count": 0,
        "simd_count": 1216,
        "simd_per_cu": 4,
        "gfx_target_version": 90402,
        "vendor_id": 0x1002,
        "device_id": 0x74A1,
        "location_id": location,
        "domain": 0,
        "drm_render_minor": 127 + index,
        "unique_id": 0xABC0 + index,
    }
    return kfd_node(index, **(defaults | properties))

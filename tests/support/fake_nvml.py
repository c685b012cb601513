"""Sources of modules that stand for ``pynvml``: what a driver answers, written from its header."""

from __future__ import annotations

import textwrap

# An idle H200 (nvidia-smi 590.48.01) and, at its own address, a GPU with MIG slices.
PYNVML = """
    class Struct:
        def __init__(self, **values): self.__dict__.update(values)
    class NVMLError(Exception): pass
    GPUS = ["h200", "mig"]
    def nvmlInit(): pass
    def nvmlSystemGetDriverVersion(): return "590.48.01"
    def nvmlSystemGetNVMLVersion(): return "13.590.48.01"
    def nvmlSystemGetCudaDriverVersion(): return 13010
    def nvmlDeviceGetCount(): return len(GPUS)
    def nvmlDeviceGetHandleByIndex(index): return GPUS[index]
    def nvmlDeviceGetPciInfo(gpu):
        bus = {"h200": "00000000:83:00.0", "mig": b"00000000:04:00.0"}[gpu]
        return Struct(busId=bus, pciDeviceId=0x233510DE, pciSubSystemId=0x18BE10DE)
    def nvmlDeviceGetName(gpu):
        return {"h200": "NVIDIA H200", "mig": "NVIDIA A100-SXM4-40GB"}.get(
            gpu, "NVIDIA A100-SXM4-40GB MIG 3g.20gb")
    def nvmlDeviceGetUUID(gpu):
        return {"h200": "GPU-aa", "mig": "GPU-bb"}.get(gpu, f"MIG-{gpu}")
    def nvmlDeviceGetCudaComputeCapability(gpu): return (9, 0) if gpu == "h200" else (8, 0)
    def nvmlDeviceGetMemoryInfo(gpu):
        total = {"h200": 143771, "mig": 40960}.get(gpu, 19968)
        return Struct(total=total << 20, used=3 << 20)
    def nvmlDeviceGetMigMode(gpu): return [1, 1] if gpu == "mig" else [0, 0]
    def nvmlDeviceGetMaxMigDeviceCount(gpu): return 7
    def nvmlDeviceGetMigDeviceHandleByIndex(gpu, index):
        if index not in (0, 2): raise NVMLError("Not Found")
        return f"slice{index}"
    def nvmlDeviceGetAttributes(part): return Struct(multiprocessorCount=42)
    def nvmlDeviceGetVbiosVersion(gpu): return "96.00.C2.00.02"
    def nvmlDeviceGetCurrPcieLinkGeneration(gpu): return 1
    def nvmlDeviceGetCurrPcieLinkWidth(gpu): return 16
    def nvmlDeviceGetMaxPcieLinkGeneration(gpu): return 5
    def nvmlDeviceGetMaxPcieLinkWidth(gpu): return 16
    def nvmlDeviceGetPcieReplayCounter(gpu): return 0
    def nvmlDeviceGetEccMode(gpu): return (1, 1)
    def nvmlDeviceGetTotalEccErrors(gpu, kind, counter): return 10 * kind + counter
    def nvmlDeviceGetRemappedRows(gpu): return (1, 2, 0, 0)
    def nvmlDeviceGetRetiredPages(gpu, cause): raise NVMLError("Not Supported")
    def nvmlDeviceGetTemperature(gpu, sensor): return 28
    def nvmlDeviceGetTemperatureThreshold(gpu, kind): return {0: 92, 1: 89}[kind]
    # nvml.h: the memory's temperature is an unsigned int (1), counters are unsigned long long (3)
    FIELDS = {82: (1, 38), 74: (3, 2_500_000_000), 270: (3, 0)}
    def nvmlDeviceGetFieldValues(gpu, fields):
        def value(field):
            if field not in FIELDS: return Struct(nvmlReturn=3)
            kind, number = FIELDS[field]
            held = {["", "uiVal", "", "ullVal"][kind]: number}
            return Struct(nvmlReturn=0, valueType=kind, value=Struct(**held))
        return [value(field) for field in fields]
    def nvmlDeviceGetTotalEnergyConsumption(gpu): return 1234567
    def nvmlDeviceGetNumFans(gpu): return 0
    def nvmlDeviceGetPowerUsage(gpu): return 77670
    def nvmlDeviceGetEnforcedPowerLimit(gpu): return 700000
    def nvmlDeviceGetClockInfo(gpu, kind): return {1: 345, 2: 3201}[kind]
    def nvmlDeviceGetMaxClockInfo(gpu, kind): return {1: 1980, 2: 3201}[kind]
    def nvmlDeviceGetUtilizationRates(gpu): return Struct(gpu=0, memory=7)
    def nvmlDeviceGetComputeRunningProcesses(gpu):
        return [Struct(pid=4711, usedGpuMemory=5 << 20), Struct(pid=4712, usedGpuMemory=None)]
    def nvmlDeviceGetCurrentClocksEventReasons(gpu): return 0x1 | 0x40
"""

EIGHT_H200 = (
    textwrap.dedent(PYNVML)
    + """
GPUS = list(range(8))
def nvmlDeviceGetPciInfo(gpu):
    bus = f"00000000:{gpu:02X}:00.0"
    return Struct(busId=bus, pciDeviceId=0x233510DE, pciSubSystemId=0x18BE10DE)
def nvmlSystemGetDriverVersion(): return "570.86.15"
def nvmlDeviceGetName(gpu): return "NVIDIA H200"
def nvmlDeviceGetUUID(gpu): return f"GPU-11111111-2222-3333-4444-{gpu:012x}"
def nvmlDeviceGetCudaComputeCapability(gpu): return (9, 0)
def nvmlDeviceGetMemoryInfo(gpu): return Struct(total=143771 << 20, used=3 << 20)
def nvmlDeviceGetMigMode(gpu): return [0, 0]
def nvmlDeviceGetTotalEccErrors(gpu, kind, counter): return 0
def nvmlDeviceGetRemappedRows(gpu): return (0, 0, 0, 0)
def nvmlDeviceGetCurrentClocksEventReasons(gpu): return 0x1
"""
)
"""Eight quiet H200, at the places of ``tests/support/gpu_trees.py``."""

NVLINK_STATUS = "".join(
    f"GPU {number}: NVIDIA H200 (UUID: GPU-11111111-2222-3333-4444-{number:012x})\n"
    + "".join(f"\t Link {link}: 26.562 GB/s\n" for link in range(18))
    for number in range(8)
)
"""What ``nvidia-smi nvlink -s`` prints of them."""

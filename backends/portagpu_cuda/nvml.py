"""Readings of one GPU through NVML's own Python module; runs in a child process, without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def read(pci: str | None, uuid: str | None) -> dict[str, Any]:
    """What NVML says now of the GPU at that PCI address or of that UUID.

    Raises whatever keeps NVML from answering at all; a reading that it refuses is left out. NVML
    states MHz, degrees Celsius and milliwatts (nvml.h).
    """
    import pynvml

    pynvml.nvmlInit()
    handle = _handle(pynvml, pci, uuid)
    asks: dict[str, Callable[[], Any]] = {
        "clock_mhz": lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
        "memory_clock_mhz": lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM),
        "temperature_c": lambda: _temperature(pynvml, handle),
        "power_w": lambda: pynvml.nvmlDeviceGetPowerUsage(handle) / 1000,
    }
    found = {}
    for name, call in asks.items():
        try:
            found[name] = call()
        except (pynvml.NVMLError, AttributeError):
            # not supported by this GPU, driver or version of the module
            continue
    return found


def _handle(pynvml: Any, pci: str | None, uuid: str | None) -> Any:
    """The GPU itself, also for a MIG slice, whose readings are its GPU's."""
    if pci is not None:
        return pynvml.nvmlDeviceGetHandleByPciBusId(pci)
    if uuid is None:
        raise LookupError("neither a PCI address nor a UUID is known of this device")
    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    if uuid.startswith("MIG-"):
        return pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
    return handle


def _temperature(pynvml: Any, handle: Any) -> Any:
    """Of the die. The versioned call is newer, the other one is being withdrawn."""
    sensor = pynvml.NVML_TEMPERATURE_GPU
    try:
        return pynvml.nvmlDeviceGetTemperatureV(handle, sensor)
    except (pynvml.NVMLError, AttributeError):
        return pynvml.nvmlDeviceGetTemperature(handle, sensor)

"""Readings of one GPU through amdsmi, else pyrsmi; runs in a child process, without torch."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

# what the libraries store where a GPU has no such reading: all ones in 16 or 32 bits
_ABSENT: Final = frozenset({0xFFFF, 0xFFFFFFFF})


def read(pci: str | None, uuid: str | None) -> dict[str, Any]:
    """What AMD SMI says now of the GPU at that PCI address.

    Raises what both libraries say where neither answers; a reading that is "N/A" is left out.
    """
    del uuid  # AMD SMI's UUID is another number than ROCr's
    if pci is None:
        raise LookupError("the PCI address of this device is not known")
    problems = []
    for call in (_amdsmi, _pyrsmi):
        try:
            found = call(pci)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a missing symbol is any error
            problems.append(f"{call.__name__[1:]}: {type(error).__name__}: {error}")
            continue
        if found:
            return found
    raise RuntimeError("; ".join(problems) or "no reading")


def _amdsmi(pci: str) -> dict[str, Any]:
    """MHz, degrees Celsius and watts (amdsmi's Python documentation)."""
    import amdsmi

    amdsmi.amdsmi_init()
    handles = amdsmi.amdsmi_get_processor_handles()
    addresses = [str(amdsmi.amdsmi_get_gpu_device_bdf(handle)).lower() for handle in handles]
    handle = handles[addresses.index(pci)]

    def clock(kind: Any) -> Any:
        info = amdsmi.amdsmi_get_clock_info(handle, kind)
        return info.get("clk", info.get("cur_clk"))  # renamed in ROCm 6.2

    def power() -> Any:
        # of the two, a GPU has the one that its generation reports
        info = amdsmi.amdsmi_get_power_info(handle)
        known = (info.get(f"{kind}_socket_power") for kind in ("current", "average"))
        return next((value for value in known if _is_number(value) and value), None)

    return _answered(
        {
            "clock_mhz": lambda: clock(amdsmi.AmdSmiClkType.GFX),
            "memory_clock_mhz": lambda: clock(amdsmi.AmdSmiClkType.MEM),
            "temperature_c": lambda: amdsmi.amdsmi_get_temp_metric(
                handle,
                amdsmi.AmdSmiTemperatureType.JUNCTION,
                amdsmi.AmdSmiTemperatureMetric.CURRENT,
            ),
            "power_w": power,
        }
    )


def _pyrsmi(pci: str) -> dict[str, Any]:
    """Power alone, in watts; pyrsmi has neither clocks nor temperatures, and -1 is an error."""
    # pyrsmi tries amdsmi again and survives only its absence, not its failure
    sys.modules["amdsmi"] = None  # type: ignore[assignment]
    from pyrsmi import rocml

    rocml.smi_initialize()
    domain, bus, rest = pci.split(":")
    device, function = rest.split(".")
    wanted = int(domain, 16) << 32 | int(bus, 16) << 8 | int(device, 16) << 3 | int(function, 16)
    count = rocml.smi_get_device_count()
    index = [rocml.smi_get_device_pci_id(each) for each in range(count)].index(wanted)
    return _answered({"power_w": lambda: rocml.smi_get_device_average_power(index)})


def _answered(asks: dict[str, Callable[[], Any]]) -> dict[str, Any]:
    found = {}
    for name, call in asks.items():
        try:
            value = call()
        except Exception:  # noqa: BLE001, S112 - one reading that fails stops no other
            continue
        if _is_number(value):
            found[name] = value
    return found


def _is_number(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and value not in _ABSENT

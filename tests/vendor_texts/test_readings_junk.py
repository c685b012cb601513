"""Vendors' libraries that answer with anything at all: what is not a value is missing."""

from __future__ import annotations

import random

import pytest

from portagpu.facts.readings.model import GpuState
from portagpu_cuda import gpus as nvml
from portagpu_rocm.gpus import amdsmi_findings, pyrsmi_findings

ADDRESS = "0000:05:00.0"
JUNK = (
    *("N/A", "", b"N/A", b"\xff", "0x", "many", None, [], {}, (), [None] * 4, "N/A" * 50),
    *(-1, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF, 1 << 80, -1e30, float("nan"), float("inf")),
    *(True, object(), {"value": "N/A"}, ["N/A"], ("N/A", "N/A"), "a\nb", "\x1b[31m"),
)


class Anything:
    """An object with every attribute, each of them junk."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        return junk(self._chance)


def junk(chance: random.Random):
    if chance.random() < 0.2:
        return {name: chance.choice(JUNK) for name in KEYS}
    return Anything(chance) if chance.random() < 0.2 else chance.choice(JUNK)


KEYS = (
    *("gfx_activity", "umc_activity", "current_socket_power", "power_cap", "pcie_static"),
    *("pcie_metric", "pcie_width", "correctable_count", "energy_accumulator", "status", "clk"),
    *("counter_resolution", "pid", "memory_usage", "hip_uuid", "asic_serial", "market_name"),
    *("device_id", "target_graphics_version", "xgmi_hive_id", "drm_render", "active_ppt_pwr"),
)


class Library(Anything):
    """Every function of it raises or answers with junk, except those that name the devices."""

    def __init__(self, chance: random.Random, **known: object) -> None:
        super().__init__(chance)
        self.__dict__.update({name: lambda *_, value=value: value for name, value in known.items()})

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        if name[:1].isupper():
            return Anything(self._chance)

        def answer(*_: object):
            if self._chance.random() < 0.1:
                raise RuntimeError(name)
            return junk(self._chance)

        return answer


class Place:
    busId, pciDeviceId, pciSubSystemId = ADDRESS, "N/A", None  # noqa: N815


def nvml_findings(chance, changing):
    names = {"nvmlDeviceGetCount": 1, "nvmlDeviceGetHandleByIndex": 0}
    library = Library(chance, **names, nvmlDeviceGetPciInfo=Place())
    return nvml._findings(library, changing=changing)


def of_amdsmi(chance, changing):
    names = {"amdsmi_get_processor_handles": [0], "amdsmi_get_gpu_device_bdf": ADDRESS}
    return amdsmi_findings(Library(chance, **names), changing=changing)


def of_pyrsmi(chance, changing):
    names = {"smi_get_device_count": 1, "smi_get_device_pci_id": 0x500}
    return pyrsmi_findings(Library(chance, **names))


@pytest.mark.parametrize("read", [nvml_findings, of_amdsmi, of_pyrsmi])
@pytest.mark.parametrize("answer", ["N/A", None, {}, [], "unknown"], ids=repr)
def test_not_available_is_missing_everywhere_and_never_zero(read, answer, monkeypatch):
    monkeypatch.setattr("tests.vendor_texts.test_readings_junk.junk", lambda _: answer)
    monkeypatch.setattr(random.Random, "random", lambda _: 0.9)
    for module in ("portagpu_rocm.gpus._rarely", "portagpu_rocm.gpus._seldom"):
        monkeypatch.setattr(f"{module}._after_s", 0.0)
    (reading,) = read(random.Random(0), True).readings  # noqa: S311
    listed = answer == []
    assert reading.state == GpuState(
        processes=0 if listed and read is not of_pyrsmi else None,
        process_list=() if listed and read is not of_pyrsmi else None,
    )

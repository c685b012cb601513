"""The metrics of dcgm-exporter, as ``curl localhost:9400/metrics`` prints them.

Fields are those of dcgm_fields.h. ``DCGM_FI_DEV_XID_ERRORS`` is the last Xid since the exporter was
started, and stays after the GPU is well again (NVIDIA/dcgm-exporter#500).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from portagpu.facts.formats import Shape, integer, within_device_limit
from portagpu.facts.formats.metrics import SAMPLE, samples
from portagpu.facts.readings.model import Event, Findings, FormatError
from portagpu_cuda.formats._nvidia import VENDOR, reading
from portagpu_cuda.formats._xid import xid_event

if TYPE_CHECKING:
    from collections.abc import Mapping

    from portagpu.facts.readings.model import Reading

KIND: Final = "dcgm-exporter"

_METRIC: Final = r"(?:DCGM_(?:FI|EXP)_[A-Z0-9_]{2,80})"
SHAPES: Final = (
    Shape(
        rf"# (?:HELP|TYPE) {_METRIC} |{_METRIC}\{{",
        re.compile(rf"\s*(?:# (?:HELP|TYPE) |# EOF|{SAMPLE}$|\.\.\.)"),
        last=re.compile(SAMPLE),
    ),
)
_BLANK: Final = 9.2e18
"""Values from here on say that there is none (dcgm_structs.h, DCGM_INT64_BLANK)."""
_COLUMNS: Final = {
    "GPU_TEMP": "temperature.gpu",
    "MEMORY_TEMP": "temperature.memory",
    "POWER_USAGE": "power.draw",
    "SM_CLOCK": "clocks.sm",
    "MEM_CLOCK": "clocks.mem",
    "GPU_UTIL": "utilization.gpu",
    "FB_USED": "memory.used",
    "FB_TOTAL": "memory.total",
    "ECC_SBE_VOL_TOTAL": "ecc.errors.corrected.volatile.total",
    "ECC_DBE_VOL_TOTAL": "ecc.errors.uncorrected.volatile.total",
    "ECC_SBE_AGG_TOTAL": "ecc.errors.corrected.aggregate.total",
    "ECC_DBE_AGG_TOTAL": "ecc.errors.uncorrected.aggregate.total",
    "RETIRED_SBE": "retired_pages.single_bit_ecc.count",
    "RETIRED_DBE": "retired_pages.double_bit.count",
    "RETIRED_PENDING": "retired_pages.pending",
    "CORRECTABLE_REMAPPED_ROWS": "remapped_rows.correctable",
    "UNCORRECTABLE_REMAPPED_ROWS": "remapped_rows.uncorrectable",
    "ROW_REMAP_PENDING": "remapped_rows.pending",
    "ROW_REMAP_FAILURE": "remapped_rows.failure",
    "PCIE_REPLAY_COUNTER": "pci/replays_since_reset",
}
"""DCGM_FI_DEV_... -> the column of nvidia-smi with the same value."""
_YES_OR_NO: Final = frozenset({"RETIRED_PENDING", "ROW_REMAP_PENDING", "ROW_REMAP_FAILURE"})
_HEALTH: Final = {10: (None, "monitor"), 20: (True, "isolate")}
"""Values of DCGM_EXP_GPU_HEALTH_STATUS that are not 0: whether it is a failure, and what to do."""
_SOURCE: Final = "https://github.com/NVIDIA/dcgm-exporter"


@dataclass(frozen=True, slots=True)
class _Gpu:
    name: str
    values: dict[str, str]
    events: list[Event] = field(default_factory=list)
    parts: set[str] = field(default_factory=set)


def matches(text: str) -> bool:
    """Whether a line is a sample of the exporter, or the comment above one."""
    return (
        re.search(rf"^[ \t]*(?:# (?:HELP|TYPE) )?{_METRIC}[ {{]", text[:20_000], re.MULTILINE)
        is not None
    )


def parse(text: str) -> Findings:
    """A reading for each GPU that the samples name, and an event for each Xid and health check."""
    gpus: dict[str, _Gpu] = {}
    versions: dict[str, str] = {}
    for sample in samples(text):
        labels = sample.labels
        key = labels.get("UUID") or labels.get("gpu")
        if not sample.name.startswith("DCGM_") or not key:
            continue
        gpu = gpus.setdefault(key, _Gpu(f"GPU {labels.get('gpu', '?')}", _identity(labels)))
        if "GPU_I_ID" in labels:
            gpu.parts.add(labels["GPU_I_ID"])
        if "DCGM_FI_DRIVER_VERSION" in labels:
            versions["driver"] = labels["DCGM_FI_DRIVER_VERSION"]
        if abs(sample.value) < _BLANK:
            _add(gpu, sample.name.removeprefix("DCGM_FI_DEV_"), labels, sample.value)
    if not gpus:
        raise FormatError(f"{KIND}: no sample of a GPU in it")
    return Findings(
        kind=KIND,
        readings=within_device_limit(map(_reading, gpus.values()), KIND),
        events=tuple(event for gpu in gpus.values() for event in gpu.events),
        versions=versions,
    )


def _identity(labels: Mapping[str, str]) -> dict[str, str]:
    names = {"gpu": "index", "UUID": "uuid", "modelName": "name", "pci_bus_id": "pci.bus_id"}
    return {names[key]: value for key, value in labels.items() if key in names and value}


def _reading(gpu: _Gpu) -> Reading:
    return reading(gpu.values, KIND)


def _add(gpu: _Gpu, name: str, labels: Mapping[str, str], value: float) -> None:
    line = f"{name} {value:g}"
    if name == "XID_ERRORS" or labels.get("xid"):
        number = f"{value:.0f}" if name == "XID_ERRORS" else labels["xid"] if value else ""
        event = xid_event(
            integer(number) or 0,
            KIND,
            pci=labels.get("pci_bus_id"),
            device=labels.get("UUID"),
            line=line,
        )
        if event is not None and event not in gpu.events:
            gpu.events.append(event)
    elif name == "DCGM_EXP_GPU_HEALTH_STATUS":
        if value in _HEALTH:
            fatal, todo = _HEALTH[int(value)]
            watch = labels.get("health_watch", "its health")
            gpu.events.append(
                Event(
                    source=KIND,
                    vendor=VENDOR,
                    code=f"DCGM health {watch}",
                    meaning=labels.get("health_error_code") or "DCGM's watch reports an error",
                    action="see what dcgmi health -c says",
                    todo=todo,
                    fatal=fatal,
                    reference=_SOURCE,
                    line=line,
                    device=labels.get("UUID"),
                )
            )
    elif (column := _COLUMNS.get(name)) is not None:
        stated = f"{value:.15g}"
        if name in _YES_OR_NO:
            stated = "Yes" if value else "No"
        elif name.startswith("FB_"):
            stated += " MiB"
        # of a GPU in slices each has a line of its own
        if not gpu.parts or column not in gpu.values:
            gpu.values[column] = stated

"""The metrics of nvidia_gpu_exporter, as ``curl localhost:9835/metrics`` prints them.

Each metric is a column of ``nvidia-smi --query-gpu`` under another name: "power.draw [W]" is
``nvidia_smi_power_draw_watts``. The exporter documents a whole page of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from portagpu.facts.formats import Shape, integer, within_device_limit
from portagpu.facts.formats.metrics import SAMPLE, samples
from portagpu.facts.readings.model import Findings, FormatError
from portagpu_cuda.formats._nvidia import EXTRA, NAMES, reading
from portagpu_cuda.formats._xid import xid_event

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from portagpu.facts.readings.model import Event, Reading

KIND: Final = "nvidia_gpu_exporter"

_METRIC: Final = r"(?:nvidia_smi_[a-z0-9_]{2,100})"
_MATCHES: Final = re.compile(rf"^[ \t]*(?:# (?:HELP|TYPE) )?{_METRIC}[ {{]", re.MULTILINE)
SHAPES: Final = (
    Shape(
        rf"# (?:HELP|TYPE) {_METRIC} |{_METRIC}\{{",
        re.compile(rf"\s*(?:# (?:HELP|TYPE) |# EOF|{SAMPLE}$|{_METRIC} [\d.e+-]{{1,30}}$|\.\.\.)"),
        last=re.compile(SAMPLE),
    ),
)
_UNITS: Final = {
    "_clock_hz": ("", 1e-6),
    "_bytes": (" MiB", 1 / (1 << 20)),
    "_watts": ("", 1.0),
    "_ratio": ("", 100.0),
}
"""What the exporter appends -> the unit of nvidia-smi's value, and the factor to it."""
_COLUMNS: Final = {
    column.replace(".", "_"): column
    for columns in (*NAMES.values(), *EXTRA.values())
    for column in columns
    if "/" not in column
} | {
    "gpu_reset_status_reset_required": "gpu_reset_status/reset_required",
    "reset_status_reset_required": "gpu_reset_status/reset_required",
    **{
        f"ecc_errors_{kind}_{span}_total": f"ecc.errors.{kind}.{span}.total"
        for kind in ("corrected", "uncorrected")
        for span in ("volatile", "aggregate")
    },
}
_WORDS: Final = {
    "gpu_recovery_action": ("None", "Reset", "Reboot", "Drain P2P", "Drain and Reset"),
    "fabric.state": ("N/A", "Not Started", "In Progress", "Completed"),
}
"""nvml.h, nvmlDeviceGpuRecoveryAction_t and nvmlGpuFabricState_t."""
_MASKS: Final = frozenset(NAMES["reasons_mask"])
_NO_COLUMNS: Final = frozenset({"name", "uuid", "serial", "pstate", "compute_mode"})
"""Of these the number says nothing: the name is a label of ``nvidia_smi_gpu_info``."""


@dataclass(frozen=True, slots=True)
class _Gpu:
    values: dict[str, str]
    xids: dict[int, float] = field(default_factory=dict)
    """How often the exporter saw each of them."""


def matches(text: str) -> bool:
    """Whether a line is a sample of the exporter, or the comment above one."""
    return _MATCHES.search(text[:60_000]) is not None


def parse(text: str) -> Findings:
    """A reading for each GPU that the samples name, and an event for each Xid that is counted."""
    gpus: dict[str, _Gpu] = {}
    versions: dict[str, str] = {}
    for sample in samples(text):
        uuid = sample.labels.get("uuid")
        if not sample.name.startswith("nvidia_smi_") or not uuid or "pid" in sample.labels:
            continue
        gpu = gpus.setdefault(uuid, _Gpu({"uuid": _with_prefix(uuid)}))
        name = sample.name.removeprefix("nvidia_smi_")
        if name == "gpu_info":
            _add_info(gpu, sample.labels, versions)
        elif name == "xid_errors_total":
            gpu.xids[integer(sample.labels.get("xid")) or 0] = sample.value
        else:
            _add(gpu, name, sample.value)
    if not gpus:
        raise FormatError(f"{KIND}: no sample of a GPU in it")
    return Findings(
        kind=KIND,
        readings=within_device_limit(map(_reading, gpus.values()), KIND),
        events=tuple(event for gpu in gpus.values() for event in _events(gpu)),
        versions=versions,
    )


def _with_prefix(uuid: str) -> str:
    return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"


def _reading(gpu: _Gpu) -> Reading:
    return reading(gpu.values, KIND)


def _add_info(gpu: _Gpu, labels: Mapping[str, str], versions: dict[str, str]) -> None:
    names = {"name": "name", "index": "index", "pci_bus_id": "pci.bus_id",
             "vbios_version": "vbios_version", "compute_cap": "compute_cap"}  # fmt: skip
    for label, column in names.items():
        if labels.get(label):
            gpu.values[column] = labels[label]
    if labels.get("driver_version"):
        versions["driver"] = labels["driver_version"]


def _events(gpu: _Gpu) -> Iterator[Event]:
    for number, count in gpu.xids.items():
        event = xid_event(
            number,
            KIND,
            pci=gpu.values.get("pci.bus_id"),
            device=gpu.values["uuid"],
            line=f"xid_errors_total {number}: {count:g}",
        )
        if event is not None and number and count >= 1:
            yield event


def _add(gpu: _Gpu, name: str, value: float) -> None:
    ending = next((each for each in _UNITS if name.endswith(each)), "")
    unit, factor = _UNITS.get(ending, ("", 1.0))
    column = _COLUMNS.get(name.removesuffix(ending))
    if column is None or column in _NO_COLUMNS or value < 0:
        return
    if column in _WORDS:
        words = _WORDS[column]
        stated = words[int(value)] if value < len(words) else f"{value:g}"
    elif column in _MASKS:
        stated = hex(int(value))
    else:
        stated = f"{value * factor:.15g}{unit}"
    gpu.values.setdefault(column, stated)

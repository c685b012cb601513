"""The metrics of AMD's device metrics exporter, as ``curl localhost:5000/metrics`` prints them.

Source: ROCm/device-metrics-exporter, its list of metrics, and
pkg/amdgpu/gpuagent/gpuagent_gpu_metrics.go. A prefix may stand before every name ("amd_").
``gpu_health`` is 1 for a healthy GPU. Sizes of memory are in MB.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from portagpu.facts.actions import Action
from portagpu.facts.formats import Shape, pci_address, stated, within_device_limit
from portagpu.facts.formats.metrics import SAMPLE, samples
from portagpu.facts.readings import Findings, FormatError, GpuState, Memory, Pcie, Reading
from portagpu.facts.readings.model import Event
from portagpu_rocm.formats._amd import VENDOR, generation, product_name

if TYPE_CHECKING:
    from collections.abc import Mapping

KIND: Final = "AMD device metrics exporter"

_NAME: Final = (
    r"(?:[a-z][a-z0-9]{1,20}_)?(?:gpu_(?:nodes_total|health|afid_errors|ecc_(?:un)?correct_\w{2,20}"
    r"|ecc_deferred_\w{2,20}|(?:average_)?package_power|power_usage|energy_consumed"
    r"|(?:edge|junction|memory|hbm)_temperature|(?:gfx|umc|vcn|jpeg|mma)_activity"
    r"|(?:gfx|vcn|jpeg)_busy_instantaneous|(?:total|used|free)_(?:visible_)?(?:vram|gtt)"
    r"|(?:min_|max_)?clock|xgmi_(?:link|nbr)_\w{2,30}|violation_\w{2,80}|prof_\w{2,60}|"
    r"(?:gfx_|memory_)?voltage|vram_max_bandwidth|process_cu_occupancy)"
    r"|pcie_(?:speed|max_speed|bandwidth|bidirectional_bandwidth|replay_count|recovery_count"
    r"|replay_rollover_count|nack_(?:sent|received)_count|rx|tx))"
)
_OWN: Final = re.compile(
    r"^[ \t]*(?:# (?:HELP|TYPE) (?:[a-z][a-z0-9]{1,20}_)?gpu_(?:nodes_total|health|gfx_activity"
    r"|ecc_(?:un)?correct_total|package_power|junction_temperature) "
    r"|(?:[a-z][a-z0-9]{1,20}_)?(?:gpu_[a-z0-9_]{3,60}|pcie_[a-z_]{2,40})\{"
    r"(?=[^\n]{0,2000}\bcard_model=)(?=[^\n]{0,2000}\bgpu_id=)"
    # names that no other exporter has, of which the labels may have been cut
    r"|(?:[a-z][a-z0-9]{1,20}_)?gpu_(?:afid_errors|ecc_(?:(?:un)?correct|deferred)_\w{2,20})\{"
    r"(?=[^\n]{0,2000}\bgpu_id=))",
    re.MULTILINE,
)
SHAPES: Final = (
    Shape(
        rf"# (?:HELP|TYPE) {_NAME} |{_NAME}\{{(?=[^\n]{{0,2000}}\bgpu_id=)",
        re.compile(rf"\s*(?:# (?:HELP|TYPE) |# EOF|{SAMPLE}$|{_NAME} \d{{1,6}}\s*$|\.\.\.)"),
        last=re.compile(SAMPLE),
    ),
)
_NODES: Final = re.compile(
    r"^[ \t]*(?:\w{1,21}_)?gpu_nodes_total(?:\{[^}\n]*\})? (\d{1,6})", re.MULTILINE
)
_SHORT: Final = re.compile(r"(?:^|_)((?:gpu|pcie)_[a-z0-9_]+)$")
_BLANK: Final = frozenset({0xFFFF, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF})
_ECC: Final = re.compile(r"gpu_ecc_(correct|uncorrect|deferred)_(\w+)$")
_MB: Final = 1 << 20
_SOURCE: Final = "https://github.com/ROCm/device-metrics-exporter"


@dataclass(frozen=True, slots=True)
class _Gpu:
    labels: Mapping[str, str]
    values: dict[str, float] = field(default_factory=dict)
    blocks: dict[str, dict[str, int]] = field(default_factory=dict)
    afids: dict[int, str] = field(default_factory=dict)
    """The severity of each error of AMD's list of fields."""

    @property
    def index(self) -> int | None:
        text = self.labels.get("gpu_id", "")
        return int(text) if text.isdigit() and len(text) < 6 else None

    @property
    def pci(self) -> str | None:
        return pci_address(self.labels.get("pcie_bus_id") or self.labels.get("bdf"))


def matches(text: str) -> bool:
    """Whether a line is a sample of the exporter, or the comment above one."""
    return _OWN.search(text[:60_000]) is not None


def parse(text: str) -> Findings:
    """A reading for each GPU that the samples name, and an event for each that is not well."""
    gpus: dict[str, _Gpu] = {}
    for sample in samples(text):
        found = _SHORT.search(sample.name)
        key = sample.labels.get("gpu_id")
        if found is None or not key:
            continue
        gpu = gpus.setdefault(key, _Gpu(sample.labels))
        if sample.value >= 0 and sample.value not in _BLANK:
            _add(gpu, found.group(1), sample.labels, sample.value)
    nodes = _NODES.search(text)
    count = int(nodes.group(1)) if nodes is not None else None
    if not gpus and count is None:
        raise FormatError(f"{KIND}: no sample of a GPU in it")
    short = count is not None and bool(gpus) and len(gpus) < count
    driver = next((v for g in gpus.values() if (v := stated(g.labels.get("driver_version")))), None)
    return Findings(
        kind=KIND,
        readings=within_device_limit(map(_reading, gpus.values()), KIND),
        events=tuple(event for gpu in gpus.values() for event in _events(gpu)),
        versions={} if driver is None else {"amdgpu": driver},
        problems=(f"{count} GPUs are counted and {len(gpus)} described",) if short else (),
        breaks_off=short,
    )


def _add(gpu: _Gpu, name: str, labels: Mapping[str, str], value: float) -> None:
    if (ecc := _ECC.match(name)) is not None:
        gpu.blocks.setdefault(ecc.group(2), {})[ecc.group(1)] = int(value)
    elif name == "gpu_afid_errors" and value:
        gpu.afids[int(value)] = labels.get("severity", "").lower()
    elif name == "gpu_clock":
        gpu.values.setdefault(f"gpu_clock {labels.get('clock_type', '').lower()}", value)
    else:
        gpu.values.setdefault(name, value)


def _reading(gpu: _Gpu) -> Reading:
    labels, values = gpu.labels, gpu.values
    total = gpu.blocks.get("total", {})
    rate = values.get("pcie_max_speed")
    temperatures = {
        sensor: value
        for sensor in ("edge", "junction", "memory")
        if (value := values.get(f"gpu_{sensor}_temperature"))
    }
    used = values.get("gpu_used_vram")
    memory = values.get("gpu_total_vram")
    return Reading(
        source=KIND,
        vendor=VENDOR,
        index=gpu.index,
        pci=gpu.pci,
        name=product_name(labels.get("card_series")) or product_name(labels.get("card_model")),
        memory_bytes=int(memory * _MB) if memory else None,
        compute_partition=(stated(labels.get("gpu_compute_partition_type")) or "").upper() or None,
        memory_partition=(stated(labels.get("gpu_memory_partition_type")) or "").upper() or None,
        pcie=Pcie(
            max_generation=None if rate is None else generation(rate),
            replays=_whole(values.get("pcie_replay_count")),
        ),
        memory=Memory(
            corrected=total.get("correct", _sum(gpu, "correct")),
            uncorrected=total.get("uncorrect", _sum(gpu, "uncorrect")),
            by_block={
                block.upper(): (counts.get("correct"), counts.get("uncorrect"))
                for block, counts in gpu.blocks.items()
                if block != "total"
            },
        ),
        state=GpuState(
            temperatures_c=temperatures,
            power_w=values.get("gpu_package_power") or values.get("gpu_average_package_power"),
            clock_mhz=values.get("gpu_clock system"),
            memory_clock_mhz=values.get("gpu_clock memory"),
            utilization_percent=values.get("gpu_gfx_activity"),
            memory_used_bytes=None if used is None else int(used * _MB),
        ),
    )


def _sum(gpu: _Gpu, kind: str) -> int | None:
    """The errors of the blocks that the text has, where it has no total; None without any."""
    return sum(counts.get(kind, 0) for counts in gpu.blocks.values()) or None


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _events(gpu: _Gpu) -> list[Event]:
    found = []
    if gpu.values.get("gpu_health") == 0:
        found.append(_event(gpu, "exporter health", "the exporter calls the GPU unhealthy", True))
    for number, severity in gpu.afids.items():
        grave = severity in ("fatal", "uncorrected", "uncorrected_nonfatal", "uncorrected_fatal")
        meaning = f"AMD's field {number}, severity {severity or 'not stated'}"
        found.append(_event(gpu, f"AFID {number}", meaning, None, unsettled=grave))
    if deferred := gpu.blocks.get("total", {}).get("deferred"):
        meaning = f"{deferred} deferred errors: data that was wrong and was not used yet"
        found.append(_event(gpu, "RAS deferred", meaning, None))
    return found


def _event(
    gpu: _Gpu, code: str, meaning: str, fatal: bool | None, *, unsettled: bool = False
) -> Event:
    return Event(
        source=KIND,
        vendor=VENDOR,
        code=code,
        pci=gpu.pci,
        meaning=meaning,
        action="see what amd-smi and the kernel's log say of the GPU",
        todo=str(Action.ISOLATE if fatal else Action.MONITOR),
        fatal=fatal,
        reference=_SOURCE,
        line=f"{code}: {meaning}",
        device=None if gpu.pci else f"GPU {gpu.labels.get('gpu_id')}",
        unsettled=unsettled,
    )

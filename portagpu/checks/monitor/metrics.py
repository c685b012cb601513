"""The metrics of the Prometheus endpoint: one naming for every vendor.

Names that begin with ``hw_`` are OpenTelemetry's semantic conventions for hardware (model/hardware
of open-telemetry/semantic-conventions, status Development), written as its Prometheus compatibility
page says: dots become underscores, and the unit follows ("By" is bytes, "1" of a gauge is ratio,
"Cel" is celsius). What the conventions do not name begins with ``portagpu_``.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from portagpu.checks.monitor.sample import Sample

Point = tuple[tuple[str, ...], float | None]
"""Values of a metric's own labels, and the value."""
LABELS: Final = ("uuid", "pci", "vendor", "name", "host")
"""The labels of every metric of a device."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric of a device. ``name`` is without the suffix ``_total`` of a counter.

    ``convention`` is OpenTelemetry's name, None where it has none. ``labels`` are those in
    addition to ``LABELS``. ``points`` gives its values of one sample; None is left out.
    """

    name: str
    about: str
    points: Callable[[Sample], Iterable[Point]]
    unit: str = ""
    convention: str | None = None
    labels: tuple[str, ...] = ()
    kind: Literal["gauge", "counter"] = "gauge"

    @property
    def series(self) -> str:
        """Its name as a query writes it."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


def _value(key: str, of: str = "", factor: float = 1.0, *labels: str) -> Any:
    """Points of the sample's value ``key``, of devices of the kind ``of`` (of all by default)."""

    def points(sample: Sample) -> Iterator[Point]:
        value = getattr(sample, key)
        if value is not None and of in ("", sample.kind):
            yield labels, value * factor

    return points


def _of_kind(key: str) -> Any:
    """Points of the sample's value ``key`` under the label ``hw_type``."""

    def points(sample: Sample) -> Iterator[Point]:
        yield (sample.kind,), getattr(sample, key)

    return points


def _each(key: str) -> Any:
    """Points of the sample's map ``key``: its keys are the label."""

    def points(sample: Sample) -> Iterator[Point]:
        values: Mapping[str, float] = getattr(sample, key)
        for name, value in values.items():
            yield (name,), value

    return points


def _memory_share(sample: Sample) -> Iterator[Point]:
    if sample.kind == "gpu" and sample.memory_total_bytes and sample.memory_used_bytes is not None:
        yield (), sample.memory_used_bytes / sample.memory_total_bytes


def _gpu_clocks(sample: Sample) -> Iterator[Point]:
    if sample.kind == "gpu":
        for name, value in (("core", sample.clock_mhz), ("memory", sample.memory_clock_mhz)):
            yield (name,), None if value is None else value * 1e6


def _gpu_clock_limits(sample: Sample) -> Iterator[Point]:
    limits = (("core", sample.max_clock_mhz), ("memory", sample.max_memory_clock_mhz))
    if sample.kind == "gpu":
        for name, value in limits:
            yield (name,), None if value is None else value * 1e6


def _errors(sample: Sample) -> Iterator[Point]:
    yield (sample.kind, "corrected"), sample.corrected_errors
    yield (sample.kind, "uncorrected"), sample.uncorrected_errors
    yield (sample.kind, "pcie-replay"), sample.pcie_replays
    for name, count in sample.link_errors.items():
        yield (sample.kind, f"link: {name}"), count


def _status(sample: Sample) -> Iterator[Point]:
    yield (sample.kind, "ok"), float(sample.error is None)
    yield (sample.kind, "failed"), float(sample.error is not None)


def _throttling(sample: Sample) -> Iterator[Point]:
    if sample.throttling is not None:
        yield (), float(bool(sample.throttling))


def _throttle_reasons(sample: Sample) -> Iterator[Point]:
    for reason in dict.fromkeys(sample.throttling or ()):
        yield (reason,), 1.0


def _recovery(sample: Sample) -> Iterator[Point]:
    if sample.recovery is not None:
        yield (sample.recovery,), 1.0


def _links(sample: Sample) -> Iterator[Point]:
    yield ("up",), sample.links_up
    yield ("down",), sample.links_down


def _maximum(points: Any) -> Any:
    def with_type(sample: Sample) -> Iterator[Point]:
        for labels, value in points(sample):
            yield (*labels, "max"), value

    return with_type


METRICS: Final = (
    Metric(
        "hw_gpu_utilization_ratio",
        "Share of the time in which at least one kernel ran.",
        _value("utilization_percent", "gpu", 0.01, "general"),
        "ratio",
        "hw.gpu.utilization",
        ("hw_gpu_task",),
    ),
    Metric(
        "hw_gpu_memory_usage_bytes",
        "Memory of the GPU in use.",
        _value("memory_used_bytes", "gpu"),
        "bytes",
        "hw.gpu.memory.usage",
    ),
    Metric(
        "hw_gpu_memory_limit_bytes",
        "Memory of the GPU.",
        _value("memory_total_bytes", "gpu"),
        "bytes",
        "hw.gpu.memory.limit",
    ),
    Metric(
        "hw_gpu_memory_utilization_ratio",
        "Share of the GPU's memory that is in use.",
        _memory_share,
        "ratio",
        "hw.gpu.memory.utilization",
    ),
    Metric(
        "hw_power_watts",
        "Power that the device draws.",
        _of_kind("power_w"),
        "watts",
        "hw.power",
        ("hw_type",),
    ),
    Metric(
        "hw_energy_joules",
        "Energy since the device's counter began.",
        _of_kind("energy_j"),
        "joules",
        "hw.energy",
        ("hw_type",),
        "counter",
    ),
    Metric(
        "hw_temperature_celsius",
        "Temperature by sensor, under the sensor's name in the vendor's tool.",
        _each("temperatures_c"),
        "celsius",
        "hw.temperature",
        ("hw_sensor_location",),
    ),
    Metric(
        "hw_temperature_limit_celsius",
        "Temperature at which something happens; the label says what.",
        _each("limits_c"),
        "celsius",
        "hw.temperature.limit",
        ("hw_limit_type",),
    ),
    Metric(
        "portagpu_temperature_margin_celsius",
        "Degrees until heat slows the clocks, of devices that state no limit.",
        _value("margin_c"),
        "celsius",
    ),
    Metric(
        "hw_errors",
        "Errors since the driver was loaded: of memory, of links, and PCI Express replays.",
        _errors,
        "",
        "hw.errors",
        ("hw_type", "error_type"),
        "counter",
    ),
    Metric(
        "hw_status",
        "1 for the state that the device is in: ok, or failed (it gives an error, not values).",
        _status,
        "",
        "hw.status",
        ("hw_type", "hw_state"),
    ),
    Metric(
        "hw_fan_speed_ratio",
        "Speed of the fans; the fastest of several.",
        _value("fan_percent", "", 0.01),
        "ratio",
        "hw.fan.speed_ratio",
    ),
    Metric(
        "hw_cpu_speed_hertz",
        "Clock of the CPU.",
        _value("clock_mhz", "cpu", 1e6),
        "hertz",
        "hw.cpu.speed",
    ),
    Metric(
        "hw_cpu_speed_limit_hertz",
        "The highest clock of the CPU.",
        _maximum(_value("max_clock_mhz", "cpu", 1e6)),
        "hertz",
        "hw.cpu.speed.limit",
        ("hw_limit_type",),
    ),
    Metric(
        "portagpu_cpu_utilization_ratio",
        "Share of the time in which the processors were busy.",
        _value("utilization_percent", "cpu", 0.01),
        "ratio",
    ),
    Metric(
        "portagpu_host_memory_usage_bytes",
        "Memory of the host in use.",
        _value("memory_used_bytes", "cpu"),
        "bytes",
    ),
    Metric(
        "portagpu_host_memory_limit_bytes",
        "Memory of the host.",
        _value("memory_total_bytes", "cpu"),
        "bytes",
    ),
    Metric(
        "portagpu_gpu_memory_controller_ratio",
        "Share of the time in which the GPU's memory was read or written.",
        _value("memory_controller_percent", "gpu", 0.01),
        "ratio",
    ),
    Metric(
        "portagpu_power_limit_watts",
        "The device's present power limit.",
        _value("power_limit_w"),
        "watts",
    ),
    Metric(
        "portagpu_gpu_clock_hertz",
        "Clock of the GPU's cores or memory.",
        _gpu_clocks,
        "hertz",
        None,
        ("clock",),
    ),
    Metric(
        "portagpu_gpu_clock_limit_hertz",
        "The highest clock of the GPU's cores or memory.",
        _gpu_clock_limits,
        "hertz",
        None,
        ("clock",),
    ),
    Metric(
        "portagpu_throttled",
        "1 while something slows the clocks, 0 if nothing does.",
        _throttling,
    ),
    Metric(
        "portagpu_throttle_reason",
        "1 for each reason that slows the clocks now.",
        _throttle_reasons,
        "",
        None,
        ("reason",),
    ),
    Metric(
        "portagpu_throttled_seconds",
        "Time in which a reason slowed the clocks, since the device's counter began.",
        _each("throttled_s"),
        "seconds",
        None,
        ("reason",),
        "counter",
    ),
    Metric(
        "portagpu_stalled",
        "1 while the device is busy at nearly idle power, as a job that waits for ever.",
        _value("stalled"),
    ),
    Metric(
        "portagpu_retired_pages",
        "Memory pages that were taken out of use, by cause.",
        _each("retired_pages"),
        "",
        None,
        ("cause",),
    ),
    Metric(
        "portagpu_remapped_rows",
        "Memory rows that were replaced by spare ones, by cause.",
        _each("remapped_rows"),
        "",
        None,
        ("cause",),
    ),
    Metric(
        "portagpu_pending_repair",
        "1 while memory waits for a reset of the device to be taken out of use.",
        _value("pending_repair"),
    ),
    Metric(
        "portagpu_recovery",
        "1 for the recovery that the device asks for.",
        _recovery,
        "",
        None,
        ("action",),
    ),
    Metric(
        "portagpu_pcie_generation",
        "Present generation of the PCI Express link; an idle device may lower it.",
        _value("pcie_generation"),
    ),
    Metric("portagpu_pcie_lanes", "Present width of the PCI Express link.", _value("pcie_lanes")),
    Metric(
        "portagpu_links",
        "Links to other devices, by whether they work.",
        _links,
        "",
        None,
        ("state",),
    ),
    Metric("portagpu_processes", "Processes that use the device.", _value("processes")),
)
"""The metrics of devices. A device without a value has no series."""

OWN_METRICS: Final[Mapping[str, tuple[str, str]]] = {
    "portagpu_last_sample_age_seconds": ("gauge", "Time since the devices were last read."),
    "portagpu_samples_total": ("counter", "Looks at all devices."),
    "portagpu_samples_late_total": ("counter", "Looks left out, because one before took too long."),
    "portagpu_samples_dropped_total": ("counter", "Samples that the JSON file did not take."),
    "portagpu_events_total": ("counter", "Events by their kind (stalled, gone, errors ...)."),
    "portagpu_problems": ("gauge", "Sources of readings that do not answer now."),
    "portagpu_devices_missing": ("gauge", "Devices that were there since the start, and are not."),
    "portagpu_build_info": ("info", "The version of portagpu, as a label."),
}
"""Metrics of the monitor itself: name -> type and what it says. Their one label is ``host``."""


def names() -> frozenset[str]:
    """Every name that a query can use."""
    return frozenset(OWN_METRICS) | {each.series for each in METRICS}


def dashboard() -> str:
    """The dashboard as JSON text, in Grafana's classic model, which every Grafana imports."""
    return files(__package__).joinpath("grafana.json").read_text("utf-8")

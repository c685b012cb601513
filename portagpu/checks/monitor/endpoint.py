"""The Prometheus endpoint: serves the last samples over HTTP, and never waits for a device.

prometheus-client chooses between OpenMetrics and the older text format by what the scraper accepts.
Its server answers in threads of its own; a scrape reads what the monitor left there last.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from portagpu._version import __version__
from portagpu.base.errors import MissingDependency, PortagpuError
from portagpu.base.patience import LIMITS
from portagpu.base.plugins import install
from portagpu.checks.monitor.metrics import LABELS, METRICS, OWN_METRICS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Self

    from portagpu.checks.monitor.sample import Round, Sample

LOOPBACK: Final = "127.0.0.1"


class EndpointError(PortagpuError, OSError):
    """The endpoint cannot listen there; the message says why and what to do."""


class Endpoint:
    """Serves what :meth:`write` was given last. ``port`` 0 takes a free one; ``url`` names it.

    A device's series are left out once its last sample is older than ``stale_s``. ``dropped`` says
    how many samples the JSON output has dropped. Raises MissingDependency and EndpointError.
    """

    def __init__(
        self,
        port: int,
        host: str = LOOPBACK,
        *,
        stale_s: float = 5.0,
        dropped: Callable[[], int] = lambda: 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        try:
            from prometheus_client import CollectorRegistry, core, start_http_server
        except ImportError as error:
            raise MissingDependency(
                f"--serve needs prometheus-client: {install('monitor')}"
            ) from error
        self._families: Any = core
        self._stale_s = stale_s
        self._dropped = dropped
        self._clock = clock
        self._shown: tuple[Round | None, dict[str, tuple[float, Sample]]] = (None, {})
        """The last round, and each device's last sample with its time; replaced as one object, so
        that a scrape in another thread sees one round or the next."""
        self._events: Counter[str] = Counter()
        self._rounds = 0
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Collector(self))
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except (OSError, OverflowError, UnicodeError) as error:
            raise EndpointError(_serve_problem(error, host, port)) from error
        self._server.RequestHandlerClass = _quiet(self._server.RequestHandlerClass)
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._server.server_port}/metrics"

    def write(self, each: Round) -> None:
        """Serve the values of this round from now on."""
        seen = {key: past for key, past in self._shown[1].items() if self._is_fresh(past[0])}
        seen |= {sample.key: (each.at_s, sample) for sample in each.samples}
        self._events.update(event.event for event in each.events)
        self._rounds += 1
        self._shown = (each, seen)

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def collect(self) -> Iterator[Any]:
        """The families of metrics, as prometheus-client's collectors give them."""
        last, seen = self._shown
        if last is None:
            return
        host = last.host
        devices = [
            ((*(getattr(sample, name) or "" for name in LABELS[:-1]), host), sample)
            for at_s, sample in seen.values()
            if self._is_fresh(at_s)
        ]
        for metric in METRICS:
            is_counter = metric.kind == "counter"
            family = (
                self._families.CounterMetricFamily
                if is_counter
                else self._families.GaugeMetricFamily
            )(metric.name, metric.about, labels=(*LABELS, *metric.labels), unit=metric.unit)
            for labels, sample in devices:
                for own, value in metric.points(sample):
                    if value is not None:
                        family.add_metric((*labels, *own), float(value))
            if family.samples:
                yield family
        yield from self._own(last)

    def _own(self, last: Round) -> Iterator[Any]:
        values: dict[str, float] = {
            "portagpu_last_sample_age_seconds": max(0.0, self._clock() - last.at_s),
            "portagpu_samples_total": self._rounds,
            "portagpu_samples_late_total": last.number + 1 - self._rounds,
            "portagpu_samples_dropped_total": self._dropped(),
            "portagpu_problems": len(last.problems),
            "portagpu_devices_missing": last.missing,
        }
        for name, (kind, about) in OWN_METRICS.items():
            if name in values:
                yield self._family(name, kind, about, ["host"], [([last.host], values[name])])
        name = "portagpu_events_total"
        events = [([last.host, event], float(n)) for event, n in self._events.copy().items()]
        yield self._family(name, *OWN_METRICS[name], ["host", "event"], events)
        about = OWN_METRICS["portagpu_build_info"][1]
        build = self._families.InfoMetricFamily("portagpu_build", about, labels=["host"])
        build.add_metric([last.host], {"version": __version__})
        yield build

    def _family(
        self,
        name: str,
        kind: str,
        about: str,
        labels: list[str],
        points: list[tuple[list[str], float]],
    ) -> Any:
        make = getattr(self._families, f"{kind.capitalize()}MetricFamily")
        family = make(name.removesuffix("_total"), about, labels=labels)
        for own, value in points:
            family.add_metric(own, value)
        return family

    def _is_fresh(self, at_s: float) -> bool:
        return self._clock() - at_s <= self._stale_s


class _Collector:
    """What prometheus-client's registry asks at every scrape."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def collect(self) -> Iterator[Any]:
        return self._endpoint.collect()


def _quiet(handler: Any) -> Any:
    """``handler`` that gives up a client that is silent or leaves, and prints nothing of it."""

    class Handler(handler):  # type: ignore[misc]
        timeout = LIMITS.client_s

        def handle(self) -> None:
            with contextlib.suppress(OSError):
                super().handle()

    return Handler


def parse_address(text: str) -> tuple[str, int]:
    """("127.0.0.1", 9400) of "9400"; also "HOST:9400" and "[::1]:9400". Raises ValueError."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if colon else LOOPBACK
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{text!r} is neither a port nor HOST:PORT")
    return host, int(port)


def _serve_problem(error: Exception, host: str, port: int) -> str:
    number = getattr(error, "errno", None)
    if isinstance(error, socket.gaierror | UnicodeError):
        return f"cannot serve metrics: unknown host {host!r}"
    if number == errno.EADDRINUSE:
        return f"cannot serve metrics: port {port} is in use: name another, or 0 for a free one"
    if number == errno.EADDRNOTAVAIL:
        return f"cannot serve metrics: {host} is not an address of this machine"
    if number in (errno.EACCES, errno.EPERM):
        return f"cannot serve metrics: you may not use port {port}: name one above 1023"
    return f"cannot serve metrics at {host} port {port}: {error}"

"""JSON lines, the Prometheus endpoint and the dashboard: what others read of the monitor."""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import stat
import struct
import threading
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

from portagpu.base.errors import MissingDependency
from portagpu.base.patience import Limits
from portagpu.checks.monitor import (
    Endpoint,
    EndpointError,
    Event,
    Happening,
    JsonLines,
    parse_address,
)
from portagpu.checks.monitor.metrics import METRICS, OWN_METRICS, dashboard, names
from portagpu.checks.monitor.run import ReaderGone
from portagpu.checks.monitor.sample import described
from tests.conftest import ROOT
from tests.support.monitor_samples import a_round, full, sample
from tests.support.waits import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def written(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


# --- JSON lines


def test_a_sample_is_a_line_with_every_documented_key(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    lines = JsonLines(str(path), pytest.fail)
    lines.write(a_round(full(3)))
    lines.close()
    (document,) = written(path)
    assert list(document) == list(described())
    assert document["schema"] == "portagpu.sample/1"
    assert document["time"] == "2026-01-02T03:04:05.678Z"
    assert (document["uuid"], document["pci"]) == ("GPU-3", "0000:03:00.0")
    assert (document["power_w"], document["throttling"]) == (512.5, ["power cap"])
    assert document["temperatures_c"] == {"gpu": 61.0, "memory": 72.0}


def test_what_is_missing_is_null_and_never_0(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    JsonLines(str(path), pytest.fail).write(a_round(sample()))
    (document,) = written(path)
    values = [v for k, v in document.items() if k not in ("schema", "time", "sequence", "host")]
    assert 0 not in values
    assert document["utilization_percent"] is None
    assert document["throttling"] is None


def test_an_event_is_a_line_of_its_own_schema(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    event = Event(event=Happening.STALLED, text="may be stalled", device=sample(1))
    other = Event(event=Happening.PROBLEM, text="a library\nis gone")
    JsonLines(str(path), pytest.fail).write(a_round(events=(event, other)))
    first, second = written(path)
    assert (first["schema"], first["event"]) == ("portagpu.event/1", "stalled")
    assert (first["uuid"], second["uuid"]) == ("GPU-1", None)


def test_lines_are_appended_also_after_one_that_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text('{"schema":"portagpu.sa')
    JsonLines(str(path), pytest.fail).write(a_round(sample()))
    cut, whole = path.read_text().splitlines()
    assert cut == '{"schema":"portagpu.sa'
    assert json.loads(whole)["sequence"] == 0


def test_a_full_disk_is_said_once_counted_and_survived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, said = tmp_path / "out.jsonl", []
    lines = JsonLines(str(path), said.append)
    lines.write(a_round(sample(0), sample(1)))
    write = os.write

    def full_disk(file: int, data: bytes) -> int:
        # a full disk takes what still fits, and refuses the rest
        if len(data) > 100:
            return write(file, data[:100])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full_disk)
    for number in (1, 2, 3):
        lines.write(a_round(sample(0), sample(1), number=number))
    assert lines.dropped == 6
    assert said == [
        f"cannot write {path}: No space left on device; samples are dropped until it works again"
    ]
    monkeypatch.setattr(os, "write", write)
    lines.write(a_round(sample(0), number=4))
    assert said[1:] == [f"{path} is written again; 6 samples were dropped"]
    assert [each["sequence"] for each in written(path)] == [0, 0, 4], "lines are whole"
    assert lines.dropped == 6


def test_a_line_that_was_cut_on_standard_output_ends_before_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken: list[bytes] = []
    room = [20, 0, 10**6]

    def write(_: int, data: bytes) -> int:
        if not room[0]:
            room.pop(0)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken.append(bytes(data[: room[0]]))
        return len(data[: room.pop(0)])

    monkeypatch.setattr(os, "write", write)
    lines = JsonLines("-", lambda _: None)
    lines.write(a_round(sample()))
    lines.write(a_round(sample(), number=1))
    cut, whole = b"".join(taken).splitlines()
    assert len(cut) == 20
    assert json.loads(whole)["sequence"] == 1


def test_the_kernels_full_device_is_survived_too() -> None:
    said: list[str] = []
    lines = JsonLines("/dev/full", said.append)
    for number in range(3):
        lines.write(a_round(sample(), number=number))
    assert lines.dropped == 3
    assert len(said) == 1
    assert "No space left on device" in said[0]


def test_rotation_keeps_one_older_file(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    lines = JsonLines(str(path), pytest.fail, max_bytes=2000)
    for number in range(9):
        lines.write(a_round(sample(), number=number))
    older = tmp_path / "out.jsonl.1"
    assert path.stat().st_size <= 2000
    assert older.stat().st_size <= 2000
    numbers = [each["sequence"] for file in (older, path) for each in written(file)]
    assert numbers == list(range(9))[-len(numbers) :]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["out.jsonl", "out.jsonl.1"]


def test_a_file_that_logrotate_moved_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    lines = JsonLines(str(path), pytest.fail)
    lines.write(a_round(sample(), number=0))
    path.rename(tmp_path / "moved")
    lines.write(a_round(sample(), number=1))
    assert [each["sequence"] for each in written(path)] == [1]


def test_a_pipe_without_a_reader_stops_nothing(tmp_path: Path) -> None:
    path, said = tmp_path / "pipe", []
    os.mkfifo(path)
    lines = JsonLines(str(path), said.append)
    lines.write(a_round(sample()))
    assert lines.dropped == 1
    assert stat.S_ISFIFO(path.stat().st_mode)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    lines.write(a_round(sample(), number=1))
    assert json.loads(os.read(reader, 65536))["sequence"] == 1
    os.close(reader)


def test_a_reader_of_standard_output_that_leaves_ends_the_monitor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def closed(file: int, data: bytes) -> int:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    lines = JsonLines("-", pytest.fail)
    monkeypatch.setattr(os, "write", closed)
    with pytest.raises(ReaderGone):
        lines.write(a_round(sample()))


# --- the endpoint


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def endpoint(clock: Clock) -> Iterator[Endpoint]:
    pytest.importorskip("prometheus_client", reason="needs the extra 'monitor'")
    with Endpoint(0, clock=clock) as serving:
        yield serving


def scrape(endpoint: Endpoint, accept: str = "") -> tuple[str, str]:
    """(content type, body)."""
    asked = urllib.request.Request(endpoint.url, headers={"Accept": accept})  # noqa: S310
    with urllib.request.urlopen(asked, timeout=60) as answer:  # noqa: S310
        return answer.headers["Content-Type"], answer.read().decode()


def series(endpoint: Endpoint) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Name -> (labels, value), as the reference parser of the text format reads them."""
    from prometheus_client.parser import text_string_to_metric_families

    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(scrape(endpoint)[1]):
        for each in family.samples:
            found.setdefault(each.name, []).append((dict(each.labels), each.value))
    return found


def test_values_arrive_in_base_units_with_the_labels_of_the_device(endpoint: Endpoint) -> None:
    endpoint.write(a_round(full(3)))
    found = series(endpoint)
    device = {
        "uuid": "GPU-3",
        "pci": "0000:03:00.0",
        "vendor": "acme",
        "name": "Accel 9",
        "host": "node-1",
    }
    wanted = {
        "hw_gpu_utilization_ratio": [({"hw_gpu_task": "general"}, 0.97)],
        "hw_gpu_memory_usage_bytes": [({}, 3 * 2**30)],
        "hw_gpu_memory_limit_bytes": [({}, 4 * 2**30)],
        "hw_gpu_memory_utilization_ratio": [({}, 0.75)],
        "hw_power_watts": [({"hw_type": "gpu"}, 512.5)],
        "hw_energy_joules_total": [({"hw_type": "gpu"}, 12345.5)],
        "hw_temperature_celsius": [
            ({"hw_sensor_location": "gpu"}, 61.0),
            ({"hw_sensor_location": "memory"}, 72.0),
        ],
        "hw_temperature_limit_celsius": [({"hw_limit_type": "slowdown"}, 87.0)],
        "hw_errors_total": [
            ({"hw_type": "gpu", "error_type": "corrected"}, 7.0),
            ({"hw_type": "gpu", "error_type": "uncorrected"}, 0.0),
            ({"hw_type": "gpu", "error_type": "pcie-replay"}, 3.0),
            ({"hw_type": "gpu", "error_type": "link: crc errors"}, 4.0),
        ],
        "hw_status": [
            ({"hw_type": "gpu", "hw_state": "ok"}, 1.0),
            ({"hw_type": "gpu", "hw_state": "failed"}, 0.0),
        ],
        "portagpu_gpu_clock_hertz": [
            ({"clock": "core"}, 1.98e9),
            ({"clock": "memory"}, 2.619e9),
        ],
        "portagpu_power_limit_watts": [({}, 700.0)],
        "portagpu_throttled": [({}, 1.0)],
        "portagpu_throttled_seconds_total": [({"reason": "power cap"}, 2.5)],
        "portagpu_links": [({"state": "up"}, 18.0), ({"state": "down"}, 0.0)],
        "hw_fan_speed_ratio": [({}, 0.3)],
        "portagpu_throttle_reason": [({"reason": "power cap"}, 1.0)],
        "portagpu_stalled": [({}, 0.0)],
    }
    for name, points in wanted.items():
        assert found[name] == [({**device, **own}, value) for own, value in points], name


def test_the_scraper_chooses_openmetrics(endpoint: Endpoint) -> None:
    from prometheus_client.openmetrics.parser import text_string_to_metric_families

    endpoint.write(a_round(full(0), full(1, name='odd "name"\\ \n')))
    kind, body = scrape(endpoint, "application/openmetrics-text; version=1.0.0")
    assert kind.startswith("application/openmetrics-text")
    assert body.endswith("# EOF\n")
    families = list(text_string_to_metric_families(body))
    assert {each.name for each in families} >= {"hw_power_watts", "hw_errors", "portagpu_build"}
    for family in families:
        assert not family.unit or family.name.endswith(f"_{family.unit}"), family.name
    kind, _ = scrape(endpoint)
    assert kind.startswith("text/plain")


def test_every_metric_of_the_table_is_served_and_no_other(endpoint: Endpoint) -> None:
    cpu = full(9, kind="cpu", uuid=None, pci=None)
    event = Event(event=Happening.STALLED, text="", device=full(0))
    endpoint.write(a_round(full(0), cpu, events=(event,)))
    assert set(series(endpoint)) == names()


def test_what_is_missing_has_no_series(endpoint: Endpoint) -> None:
    endpoint.write(a_round(sample()))
    of_devices = {name for name, points in series(endpoint).items() if "uuid" in points[0][0]}
    assert of_devices == {"hw_status"}


def test_a_device_that_gives_no_readings_disappears(endpoint: Endpoint, clock: Clock) -> None:
    endpoint.write(a_round(full(0), full(1), at_s=0.0))
    clock.now = 4.0
    endpoint.write(a_round(full(0), at_s=4.0, number=4, missing=1))
    assert {labels["uuid"] for labels, _ in series(endpoint)["hw_power_watts"]} == {
        "GPU-0",
        "GPU-1",
    }
    clock.now = 6.0
    found = series(endpoint)
    assert {labels["uuid"] for labels, _ in found["hw_power_watts"]} == {"GPU-0"}
    assert found["portagpu_devices_missing"] == [({"host": "node-1"}, 1.0)]
    assert found["portagpu_last_sample_age_seconds"] == [({"host": "node-1"}, 2.0)]
    assert found["portagpu_samples_late_total"] == [({"host": "node-1"}, 3.0)]


def test_a_monitor_that_hangs_serves_its_age_and_no_old_values(
    endpoint: Endpoint, clock: Clock
) -> None:
    endpoint.write(a_round(full(0)))
    clock.now = 3600.0
    found = series(endpoint)
    assert "hw_power_watts" not in found
    assert found["portagpu_last_sample_age_seconds"][0][1] == 3600.0


def test_clients_that_are_silent_or_leave_hold_nothing_and_print_nothing(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("prometheus_client", reason="needs the extra 'monitor'")
    monkeypatch.setattr(
        "portagpu.checks.monitor.endpoint.LIMITS", Limits(client_s=0.2)
    )  # allowed: what it limits never ends
    before = threading.active_count()
    with Endpoint(0) as endpoint:
        endpoint.write(a_round(full(0)))
        address = urllib.parse.urlsplit(endpoint.url)
        clients = [socket.create_connection((address.hostname, address.port), 10) for _ in range(8)]
        for number, client in enumerate(clients):
            client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n"[: 7 * number])
            if number % 2:
                # a close that the server sees as a reset
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                client.close()
        assert series(endpoint)
        wait_until(lambda: threading.active_count() <= before + 1, "a client holds a thread")
        for client in clients:
            client.close()
    assert capfd.readouterr().err == ""


def test_a_scrape_before_the_first_sample_is_empty_and_valid(endpoint: Endpoint) -> None:
    assert series(endpoint) == {}


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("9400", ("127.0.0.1", 9400)),
        ("0.0.0.0:9400", ("0.0.0.0", 9400)),  # noqa: S104 - only parsed
        ("[::1]:9400", ("::1", 9400)),
        ("node-1:0", ("node-1", 0)),
    ],
)
def test_an_address_is_a_port_on_loopback_or_names_its_host(
    text: str, address: tuple[str, int]
) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "x", "65536", "-1", ":9400", "host:", "1.5", "٣"])
def test_any_other_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is neither a port"):
        parse_address(text)


def test_a_port_in_use_and_a_bad_host_are_one_line_each() -> None:
    pytest.importorskip("prometheus_client", reason="needs the extra 'monitor'")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(EndpointError, match=f"port {port} is in use: name another"):
            Endpoint(port)
    with pytest.raises(EndpointError, match=r"unknown host 'no\.such\.host\.invalid'"):
        Endpoint(0, "no.such.host.invalid")
    with pytest.raises(EndpointError, match=r"192\.0\.2\.1 is not an address of this machine"):
        Endpoint(0, "192.0.2.1")


def test_without_prometheus_client_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "prometheus_client", None)
    with pytest.raises(MissingDependency, match=r"--serve needs prometheus-client: pip install"):
        Endpoint(0)


# --- names


def test_names_follow_the_conventions_of_both() -> None:
    for metric in METRICS:
        assert re.fullmatch(r"[a-z][a-z0-9_]*", metric.name)
        assert metric.name.startswith("hw_" if metric.convention else "portagpu_"), metric.name
        assert not metric.unit or metric.name.endswith(f"_{metric.unit}"), metric.name
        if metric.convention:
            # the convention's name in words, with the unit after
            stem = metric.convention.replace(".", "_")
            assert metric.name in (stem, f"{stem}_{metric.unit}"), metric.name
    assert all(name.startswith("portagpu_") for name in OWN_METRICS)


def test_the_page_names_only_metrics_that_there_are() -> None:
    page = (ROOT / "docs/monitor.md").read_text("utf-8")
    named = set(re.findall(r"\b(?:hw|portagpu)_[a-z0-9_]+", page))
    labels = {label for metric in METRICS for label in metric.labels}
    assert named - labels - {"hw_", "portagpu_"} <= names()
    for alert in re.findall(r"expr: '?([a-z_]+)", page):
        assert alert in names() | {"increase"}


# --- the dashboard

FUNCTIONS = {"count", "sum", "max", "increase", "ignoring", "label_values"}


def queries(document: dict[str, Any]) -> list[str]:
    found = [target["expr"] for panel in document["panels"] for target in panel.get("targets", ())]
    return [*found, *(each["definition"] for each in document["templating"]["list"][1:])]


def test_every_query_of_the_dashboard_names_what_the_endpoint_has() -> None:
    labels = {"host", "uuid", "hw_state", "hw_type", "clock"}
    for query in queries(json.loads(dashboard())):
        bare = re.sub(r'"[^"]*"|\[[^]]*\]', "", query)
        words = set(re.findall(r"[a-zA-Z_][a-zA-Z0-9_]*", bare))
        assert words - FUNCTIONS - labels <= names(), query
        assert words & names(), query


def test_the_dashboard_follows_grafanas_schema() -> None:
    # the constraints of kinds/dashboard/dashboard_kind.cue in grafana/grafana, lineage 0.0
    document = json.loads(dashboard())
    assert 36 <= document["schemaVersion"] <= 41
    assert 8 <= len(document["uid"]) <= 40
    assert document["graphTooltip"] in (0, 1, 2)
    assert "id" not in document, "Grafana numbers it itself"
    panels = document["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert cells, panel["title"]
        assert max(x for x, _ in cells) < 24, panel["title"]
        assert not cells & taken, f"{panel['title']} covers another panel"
        taken |= cells
        assert panel["type"] in ("row", "stat", "timeseries")
        ids = [target["refId"] for target in panel.get("targets", ())]
        assert len(set(ids)) == len(ids)
        for target in panel.get("targets", ()):
            assert target["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    variables = {each["name"]: each for each in document["templating"]["list"]}
    assert {each["type"] for each in variables.values()} <= {"query", "datasource"}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(document))) - {"__rate_interval"}
    assert used == set(variables)

"""Writes portagpu/checks/monitor/grafana.json: panels are a table here, and their JSON is long.

Grafana's classic model, ``schemaVersion`` 39 (Grafana 11; newer ones migrate it at import).
"""

from __future__ import annotations

import json
from typing import Any, Final

_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_CHOSEN: Final = 'host=~"$host",uuid=~"$uuid"'
_DEVICE: Final = "{{host}} {{pci}} {{name}}"
# title, unit, (query, legend) ...; D stands for the labels that the variables choose
_ROWS: Final[tuple[tuple[str, tuple[tuple[Any, ...], ...]], ...]] = (
    (
        "Now",
        (
            ("Devices", "none", "stat", ('count(hw_status{D,hw_state="ok"} == 1)', "")),
            ("Stalled jobs", "none", "stat", ("sum(portagpu_stalled{D})", "")),
            ("Missing devices", "none", "stat", ("sum(portagpu_devices_missing{H})", "")),
            ("Oldest sample", "s", "stat", ("max(portagpu_last_sample_age_seconds{H})", "")),
        ),
    ),
    (
        "Load",
        (
            ("Utilisation", "percentunit", "timeseries", ("hw_gpu_utilization_ratio{D}", _DEVICE)),
            (
                "Memory in use",
                "percentunit",
                "timeseries",
                ("hw_gpu_memory_utilization_ratio{D}", _DEVICE),
            ),
            (
                "Power",
                "watt",
                "timeseries",
                ("hw_power_watts{D}", _DEVICE),
                ("max(portagpu_power_limit_watts{D})", "highest limit"),
            ),
            (
                "Share of the power limit",
                "percentunit",
                "timeseries",
                ("hw_power_watts{D} / ignoring(hw_type) portagpu_power_limit_watts{D}", _DEVICE),
            ),
        ),
    ),
    (
        "Heat and clocks",
        (
            (
                "Temperature",
                "celsius",
                "timeseries",
                ("hw_temperature_celsius{D}", f"{_DEVICE} {{{{hw_sensor_location}}}}"),
            ),
            (
                "Clock of the cores",
                "hertz",
                "timeseries",
                ('portagpu_gpu_clock_hertz{D,clock="core"}', _DEVICE),
                ("hw_cpu_speed_hertz{D}", _DEVICE),
            ),
            (
                "Throttling",
                "none",
                "timeseries",
                ("portagpu_throttle_reason{D}", f"{_DEVICE} {{{{reason}}}}"),
            ),
            ("Stalled", "none", "timeseries", ("portagpu_stalled{D}", _DEVICE)),
        ),
    ),
    (
        "Errors",
        (
            (
                "New errors",
                "none",
                "timeseries",
                ("increase(hw_errors_total{D}[$__rate_interval])", f"{_DEVICE} {{{{error_type}}}}"),
            ),
            (
                "Retired pages and remapped rows",
                "none",
                "timeseries",
                ("portagpu_retired_pages{D}", f"{_DEVICE} pages {{{{cause}}}}"),
                ("portagpu_remapped_rows{D}", f"{_DEVICE} rows {{{{cause}}}}"),
            ),
            (
                "PCI Express link",
                "none",
                "timeseries",
                ("portagpu_pcie_generation{D}", f"{_DEVICE} generation"),
                ("portagpu_pcie_lanes{D}", f"{_DEVICE} lanes"),
            ),
            (
                "The monitor itself",
                "none",
                "timeseries",
                ("increase(portagpu_events_total{H}[$__rate_interval])", "{{host}} {{event}}"),
                ("portagpu_problems{H}", "{{host}} sources without an answer"),
                (
                    "increase(portagpu_samples_dropped_total{H}[$__rate_interval])",
                    "{{host}} dropped",
                ),
            ),
        ),
    ),
    (
        "Hosts",
        (
            (
                "Processors",
                "percentunit",
                "timeseries",
                ("portagpu_cpu_utilization_ratio{H}", "{{host}}"),
            ),
            (
                "Memory",
                "percentunit",
                "timeseries",
                (
                    "portagpu_host_memory_usage_bytes{H} / portagpu_host_memory_limit_bytes{H}",
                    "{{host}}",
                ),
            ),
        ),
    ),
)


def dashboard_page() -> str:
    """The file's whole text."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in _ROWS:
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": title,
                "collapsed": False,
                "gridPos": {"h": 1, "w": 24, "x": 0, "y": y},
                "panels": [],
            }
        )
        y += 1
        wide, high = (6, 4) if row[0][2] == "stat" else (12, 8)
        for number, (name, unit, kind, *queries) in enumerate(row):
            x = number * wide % 24
            place = {"h": high, "w": wide, "x": x, "y": y + high * (number * wide // 24)}
            panels.append(_panel(len(panels) + 1, name, unit, kind, queries, place))
        y += high * -(-len(row) * wide // 24)
    document = {
        "title": "PortaGPU: devices",
        "uid": "portagpu-monitor",
        "description": "Written by `portagpu monitor --dashboard FILE`.",
        "tags": ["gpu", "portagpu"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "timezone": "browser",
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_datasource(), _variable("host"), _variable("uuid")]},
        "annotations": {"list": []},
        "links": [],
        "panels": panels,
    }
    return json.dumps(document, indent=1) + "\n"


def _panel(
    number: int, title: str, unit: str, kind: str, queries: list[tuple[str, str]], place: Any
) -> dict[str, Any]:
    targets = [
        {
            "refId": chr(ord("A") + index),
            "datasource": _SOURCE,
            "expr": query.replace("{D", f"{{{_CHOSEN}").replace("{H", '{host=~"$host"'),
            "legendFormat": legend or "__auto",
            "instant": kind == "stat",
            "range": kind != "stat",
        }
        for index, (query, legend) in enumerate(queries)
    ]
    panel: dict[str, Any] = {
        "id": number,
        "type": kind,
        "title": title,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
        "targets": targets,
    }
    if kind == "stat":
        panel["options"] = {
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}
        }
    else:
        panel["fieldConfig"]["defaults"]["custom"] = {"spanNulls": False}
        panel["options"] = {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    return panel


def _datasource() -> dict[str, Any]:
    return {
        "name": "datasource",
        "label": "Prometheus",
        "type": "datasource",
        "query": "prometheus",
        "hide": 0,
        "multi": False,
        "includeAll": False,
    }


def _variable(label: str) -> dict[str, Any]:
    query = f"label_values(hw_status, {label})"
    return {
        "name": label,
        "type": "query",
        "datasource": _SOURCE,
        "definition": query,
        "query": {"query": query, "refId": "A"},
        "refresh": 2,
        "sort": 1,
        "hide": 0,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
    }

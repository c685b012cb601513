"""The Grafana dashboard that shows the endpoint's metrics: a file of this package."""

from __future__ import annotations

from importlib.resources import files


def dashboard() -> str:
    """The dashboard as JSON text, in Grafana's classic model, which every Grafana imports."""
    return files(__package__).joinpath("grafana.json").read_text("utf-8")

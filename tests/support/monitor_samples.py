"""Samples and rounds for tests of the monitor, and a vendor's library that obeys a file."""

from __future__ import annotations

import json
import textwrap
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from portagpu.checks.monitor import Round, Sample
from portagpu.facts.readings.stream import Source

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

_BEGIN = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)


def sample(index: int = 0, **values: Any) -> Sample:
    """A GPU that knows nothing but its identity and ``values``."""
    identity = {"uuid": f"GPU-{index}", "pci": f"0000:{index:02x}:00.0", "vendor": "acme"}
    return Sample(**{**identity, "name": "Accel 9", **values})


def full(index: int = 0, **values: Any) -> Sample:
    """A GPU that states everything."""
    known: dict[str, Any] = {
        "utilization_percent": 97.0,
        "memory_controller_percent": 55.0,
        "memory_used_bytes": 3 << 30,
        "memory_total_bytes": 4 << 30,
        "power_w": 512.5,
        "power_limit_w": 700.0,
        "energy_j": 12345.5,
        "temperatures_c": {"gpu": 61.0, "memory": 72.0},
        "limits_c": {"slowdown": 87.0},
        "clock_mhz": 1980.0,
        "max_clock_mhz": 1980.0,
        "memory_clock_mhz": 2619.0,
        "max_memory_clock_mhz": 2619.0,
        "throttling": ("power cap",),
        "throttled_s": {"power cap": 2.5},
        "fan_percent": 30.0,
        "corrected_errors": 7,
        "uncorrected_errors": 0,
        "retired_pages": {"double bit": 1},
        "remapped_rows": {"correctable": 2},
        "margin_c": 24.0,
        "pending_repair": False,
        "recovery": "Reset",
        "pcie_generation": 5,
        "pcie_lanes": 16,
        "pcie_replays": 3,
        "links_up": 18,
        "links_down": 0,
        "link_errors": {"crc errors": 4},
        "processes": 2,
        "errors_since_start": {"corrected": 4},
        "stalled": False,
    }
    return sample(index, **{**known, **values})


def a_round(*samples: Sample, number: int = 0, at_s: float | None = None, **values: Any) -> Round:
    return Round(
        number=number,
        time=_BEGIN + timedelta(seconds=number),
        at_s=float(number) if at_s is None else at_s,
        host="node-1",
        samples=samples,
        **values,
    )


LIBRARY = """
    import json, time
    from pathlib import Path
    ORDERS = Path({orders!r})
    def sample():
        orders = json.loads(ORDERS.read_text())
        time.sleep(orders.get("sleep_s", 0))
        readings = [
            dict(source="fake", vendor="acme", pci=f"0000:{{i:02x}}:00.0", uuid=f"GPU-{{i}}",
                 name="Accel 9", index=n, memory_bytes=1 << 34, state=orders["state"])
            for n, i in enumerate(orders["gpus"])
        ]
        return dict(kind="fake", readings=readings)
"""


class Library:
    """A vendor's library in a module of its own; :meth:`obey` changes what it answers."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self._orders = folder / f"{name}.json"
        text = textwrap.dedent(LIBRARY).format(orders=str(self._orders))
        (folder / f"{name}.py").write_text(text)
        monkeypatch.syspath_prepend(str(folder))
        self.source = Source(name=name, module=name)
        self.obey()

    def obey(self, gpus: tuple[int, ...] = (0, 1), sleep_s: float = 0, **state: Any) -> None:
        orders = {"gpus": gpus, "sleep_s": sleep_s, "state": state}
        new = self._orders.with_suffix(".new")
        new.write_text(json.dumps(orders))
        new.replace(self._orders)

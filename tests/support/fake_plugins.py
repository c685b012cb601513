"""Third parties' backends as they are really installed: a module and its distribution's metadata.

A fake device needs no torch, so that choosing between backends can be tested without it.
"""

from __future__ import annotations

import textwrap
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from portagpu.devices.collectives.comm import Comm
from portagpu.devices.contract import Backend, Description, Plugin, Status
from portagpu.devices.precision import Precision
from portagpu.devices.sizing import Sizing
from portagpu.facts.arch import Arch

if TYPE_CHECKING:
    from pathlib import Path


class FakeBackend(Backend):
    """A handle without primitives."""

    activated = 0

    def activate(self) -> None:
        """Count, instead of telling a driver."""
        type(self).activated += 1


FakeBackend.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]


def handle(plugin: Plugin, name: str, index: int, device_type: str = "fake") -> FakeBackend:
    """A handle of that name on a device of that type."""
    description = Description(
        name=name,
        index=index,
        device=SimpleNamespace(type=device_type, index=index),  # type: ignore[arg-type]
        arch=Arch(device_type, "none", 1),
        product=None,
        target=None,
        capabilities=frozenset(),
        precision=Precision({}),
        comm=Comm("fake", "Fake", None, device_type),
        sizing=Sizing(1, 1, 1, 1, 1),
    )
    return FakeBackend(plugin, description)


class FakePlugin(Plugin):
    """A plugin whose answers are given; ``opened`` lists the indices it was asked to open."""

    contract = (1, 0)

    def __init__(self, name: str = "fake", count: int = 2, **status: Any) -> None:
        self.name = name  # type: ignore[misc]
        self.devices = count
        self.answer = Status(**{"usable": True, "reason": f"{name} is here", **status})
        self.opened: list[int] = []

    def status(self) -> Status:
        return self.answer

    def count(self) -> int:
        return self.devices

    def open(self, index: int) -> Backend:
        self.opened.append(index)
        return handle(self, self.name, index)


def install(
    folder: Path,
    distribution: str,
    entry_points: dict[str, str],
    modules: dict[str, str] | None = None,
    *,
    vendors: dict[str, str] | None = None,
    metadata: bool = True,
    **groups: dict[str, str],
) -> None:
    """Put modules and a distribution into ``folder``; ``groups`` are further entry points."""
    for name, source in (modules or {}).items():
        (folder / f"{name}.py").write_text(textwrap.dedent(source), encoding="utf-8")
    info = folder / f"{distribution.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    if metadata:
        text = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n"
        (info / "METADATA").write_text(text, encoding="utf-8")
    text = ""
    for group, points in {"backends": entry_points, "vendors": vendors or {}, **groups}.items():
        text += f"[portagpu.{group}]\n" + "".join(f"{name} = {at}\n" for name, at in points.items())
    (info / "entry_points.txt").write_text(text, encoding="utf-8")

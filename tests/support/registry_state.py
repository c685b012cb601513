"""A registry as a fresh process has it, and machines that are not this one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import portagpu.facts.host
import portagpu.facts.torchbuild
from portagpu.base import plugins
from portagpu.devices import discovery as candidates
from portagpu.devices import registry
from portagpu.facts.host import PciGpu

if TYPE_CHECKING:
    import pytest

    from portagpu.devices.contract import Plugin


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget every choice until the end of the test."""
    monkeypatch.delenv(registry.VARIABLE, raising=False)
    monkeypatch.setattr(registry, "_handles", {})
    monkeypatch.setattr(registry, "_current", registry._NO_DEVICE)
    monkeypatch.setattr(registry, "_default_handles", {})
    monkeypatch.setattr(registry, "_default_name", None)
    monkeypatch.setattr(plugins, "_packages", {})
    monkeypatch.setattr(candidates, "_candidates", None)
    monkeypatch.setattr(candidates, "_plugins", {})
    monkeypatch.setattr(candidates, "_load_failures", {})


def use_plugins(monkeypatch: pytest.MonkeyPatch, *plugins: Plugin) -> None:
    """Make these the only backends, already loaded."""
    monkeypatch.setattr(candidates, "_plugins", {plugin.name: plugin for plugin in plugins})
    known = {
        plugin.name: candidates.Candidate(plugin.name, "test", None, "not loaded in this test")
        for plugin in plugins
    }
    monkeypatch.setattr(candidates, "_candidates", known)


def machine(
    monkeypatch: pytest.MonkeyPatch,
    kind: str | None,
    gpus: tuple[str, ...] = (),
    *,
    installed: bool = True,
) -> None:
    """A torch build of that kind on a machine with GPUs of these vendors."""
    build = SimpleNamespace(
        kind=kind, version="2.13.0", problem=None if kind else "torch/version.py is broken"
    )
    found = tuple(PciGpu(vendor) for vendor in gpus)
    monkeypatch.setattr(
        portagpu.facts.torchbuild, "torch_build", lambda: build if installed else None
    )
    monkeypatch.setattr(portagpu.facts.host, "gpus_on_machine", lambda root="/": found)

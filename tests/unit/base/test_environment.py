"""The name of a machine in results, and that no bundle has it."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

from portagpu.base.environment import host_name
from portagpu.base.redact.names import machine_names
from portagpu.runs.results.run import new_run

if TYPE_CHECKING:
    import pytest


def test_a_container_takes_the_name_of_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PORTAGPU_NODE", raising=False)
    assert host_name() == new_run().info.host == platform.node()
    monkeypatch.setenv("PORTAGPU_NODE", "rack7-gpu12.example.org")
    assert host_name() == new_run().info.host == "rack7-gpu12.example.org"
    hosts = {name for kind, name in machine_names() if kind == "host"}
    assert {"rack7-gpu12.example.org", "rack7-gpu12"} <= hosts
    monkeypatch.setenv("PORTAGPU_NODE", "")
    assert host_name() == platform.node()

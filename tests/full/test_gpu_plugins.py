"""What the GPU plugins say, count and read without a device and without torch."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json

import pytest

from tests.torch.test_gpu_plugins import PLUGINS
from tests.torch.test_gpu_plugins import _no_masks as _no_masks


@pytest.mark.processes(4, "a wheel is built, installed and run")
@pytest.mark.torch
def test_an_installed_wheel_shows_every_reason_and_stays_on_the_cpu(child, portagpu_installed):
    pytest.importorskip("torch")
    version = importlib.metadata.version("torch")
    if "cpu" not in version:
        pytest.skip(f"torch {version} has a GPU build")
    shown = child("-m", "portagpu", "info", "--json", "-", path=[portagpu_installed])
    backends = {entry["name"]: entry for entry in json.loads(shown.ok())["backends"]}
    for kind in PLUGINS:
        assert backends[kind]["usable"] is False
        assert backends[kind]["reason"].startswith(f"torch {version} is a cpu build")
    code = "import portagpu as pg, sys; print(pg.backend().name)"
    assert child("-c", code, path=[portagpu_installed]).ok().strip() == "cpu"

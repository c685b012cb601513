"""The example of a third-party backend: built as its own wheel, discovered, and used."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from portagpu.facts.torchbuild import torch_build
from tests.conftest import ROOT, build_wheel, install

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Child

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("forked")]
pytest.importorskip("torch")


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the example's wheel is installed."""
    wheel = build_wheel(
        ROOT / "examples" / "third_party_backend", tmp_path_factory.mktemp("demo-wheel")
    )
    return install(wheel, tmp_path_factory.mktemp("demo-installed"))


def test_example_is_not_chosen_unless_asked_for(child: Callable[..., Child], demo: Path) -> None:
    code = """
import portagpu
portagpu.backend("demo")
try:
    print(portagpu.backend().name)
except portagpu.BackendNotFound:  # a GPU that this torch cannot use
    print("none")
"""
    chosen = child("-c", code, path=[demo]).ok().strip()
    build = torch_build()
    assert build is not None, "this test runs where torch is installed"
    assert chosen != "demo", "a backend that is not automatic must not become the default"
    if build.kind == "cpu":
        assert chosen == "cpu", f"a CPU build of torch must run on the CPU, not on {chosen}"


def test_environment_variable_asks_for_the_example(child: Callable[..., Child], demo: Path) -> None:
    ended = child(
        "-c",
        "import portagpu; print(portagpu.backend().name)",
        path=[demo],
        environment={"PORTAGPU_BACKEND": "demo"},
    )
    assert ended.ok().strip() == "demo"


def test_example_says_in_its_status_that_torch_is_missing(
    child: Callable[..., Child], demo: Path
) -> None:
    code = """
import sys
sys.modules["torch"] = None
from importlib import util
found = util.find_spec
util.find_spec = lambda name, *rest: None if name == "torch" else found(name, *rest)
import portagpu.devices.discovery
print(portagpu.devices.discovery.status("demo"))
"""
    assert "usable=False, reason='torch is not installed'" in child("-c", code, path=[demo]).ok()

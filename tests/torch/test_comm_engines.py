"""Which engine torch built for a library's name, in the words of the vendors' tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from portagpu_torch_gpu.device import ENGINE_VARIABLES, ENGINES

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import portagpu

COMM = replace(portagpu.backend("cpu").comm, engines=ENGINES, engine_variables=ENGINE_VARIABLES)


def group_of(name: str, *, wrapped: bool = False) -> Any:
    """A group of torch whose object for the device has a class of that name."""
    engine = type(name, (), {})()
    if wrapped:
        engine = SimpleNamespace(wrapped_pg=engine)
    return SimpleNamespace(_get_backend=lambda device: engine)


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ENGINE_VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ProcessGroupNCCL", "legacy (ProcessGroupNCCL)"),
        ("ProcessGroupNCCL2", "nccl2 (ProcessGroupNCCL2)"),
        ("ProcessGroupNCCLLazy", "nccl-lazy (ProcessGroupNCCLLazy)"),
        ("_BackendWrapper", "torchcomms (_BackendWrapper)"),
        ("ProcessGroupOfTomorrow", "ProcessGroupOfTomorrow"),
    ],
)
def test_the_class_of_the_object_is_the_engine(name: str, words: str) -> None:
    assert COMM._engine_of(group_of(name)) == words
    assert COMM._engine_of(group_of(name, wrapped=True)) == words, "a wrapper hides the engine"


def test_the_variable_that_chose_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_DIST_USE_NCCL2", "1")
    found = COMM._engine_of(group_of("ProcessGroupNCCL2"))
    assert found == "nccl2 (ProcessGroupNCCL2), with TORCH_DIST_USE_NCCL2=1"


def test_torch_has_the_classes_that_the_table_names() -> None:
    from torch.distributed import distributed_c10d as c10d

    text = Path(c10d.__file__).read_text("utf-8")
    assert "ProcessGroupNCCL" in text
    assert "_BackendWrapper" in text


def test_the_benchmark_prints_its_table(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.benchmarks import comm_overhead

    monkeypatch.setattr("sys.argv", ["comm_overhead.py", "--repeats", "3"])
    assert comm_overhead.main() == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[1].split() == ["call", "us", "own", "us", "added", "us", "within"]
    assert len(lines) == 2 + len(comm_overhead.ROWS)
    assert lines[2].startswith("all_reduce ")

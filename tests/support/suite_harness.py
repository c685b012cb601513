"""Cases of the suite run in this process against one handle, for tests that seed faults.

Nothing is isolated here, so it is for cases without ranks, and for faults that neither hang nor
crash; those are tested with real child processes.
"""

from __future__ import annotations

import atexit
import importlib.util
import inspect
import itertools
import math
import sys
import tempfile
import threading
from dataclasses import dataclass
from functools import cache, partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

import torch

import portagpu as pg
from portagpu.base.paths import matrix_dir
from portagpu.devices import training
from portagpu.runs.world import Ranks
from portagpu.suites.conformance.cases import ATTRIBUTE, Case, label
from portagpu.suites.conformance.fixtures import comm_of, outcome_of_error
from portagpu.suites.conformance.judge import judge
from portagpu.suites.conformance.messages import DeviceUnderTest, ListedCase
from portagpu.suites.search import worker as rounds
from portagpu.suites.search.area import load_area
from portagpu_cpu.backend import CpuBackend
from portagpu_cpu.plugin import CpuPlugin
from portagpu_cuda.plugin import PLUGIN as CUDA
from portagpu_rocm.plugin import PLUGIN as ROCM
from tests.conftest import ROOT
from tests.support import owned, registry_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pytest

    from portagpu.devices.contract import Backend
    from portagpu.runs.results.run import Result
    from portagpu.runs.world import WorldOutcome


SHRINKS: Final = 100
"""How many programs a failure is made smaller with."""
WELL: Final = 100
"""How many random programs a device without a fault runs; tests/full runs 800."""


@dataclass(frozen=True, slots=True)
class Runnable:
    """A case with its parameters and the function that judges it."""

    listed: ListedCase
    function: Callable[..., None]
    arguments: dict[str, Any]

    @property
    def needs_ranks(self) -> bool:
        """Whether it runs on ranks, which this harness has none of."""
        return "world" in inspect.signature(self.function).parameters


@cache
def everything() -> dict[str, Runnable]:
    """Every case of the suite, by id."""
    return {each.listed.id: each for path in _files() for each in _of_file(path)}


def _files() -> list[Any]:
    return sorted((matrix_dir() / "conformance").glob("test_*.py"))


def _of_file(path: Any) -> Iterator[Runnable]:
    name = f"portagpu_cases_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    for function in list(vars(module).values()):
        case = getattr(function, ATTRIBUTE, None)
        if isinstance(case, Case):
            yield from _of_function(function, case)


def _of_function(function: Callable[..., None], case: Case) -> Iterator[Runnable]:
    names = [name for name, _ in case.params]
    for values in itertools.product(*(values for _, values in case.params)):
        labels = "-".join(label(name, value) for name, value in zip(names, values, strict=True))
        listed = ListedCase(
            id=f"{case.id}[{labels}]" if labels else case.id,
            area=case.area,
            spec=case.spec,
            capability=tuple(str(each) for each in case.capability),
            outcome=case.outcome,
            covers=case.covers,
            search=case.search.area if case.search else "",
        )
        yield Runnable(listed, function, dict(zip(names, values, strict=True)))


def open_device(
    monkeypatch: pytest.MonkeyPatch, kind: type[CpuBackend] = CpuBackend, **attributes: Any
) -> CpuBackend:
    """A handle of that class, which is also the default of the module's functions.

    No range is open: a fault may have left one.
    """
    training._ranges.open.clear()

    class Opener(CpuPlugin):
        name = "cpu"
        contract = (1, 2)
        shared = True

        def open(self, index: int) -> CpuBackend:
            handle = kind(self, index)
            for name, value in attributes.items():
                setattr(handle, name, value)
            return handle

    registry_state.forget(monkeypatch)
    registry_state.use_plugins(monkeypatch, Opener(), CUDA, ROCM)
    monkeypatch.setenv("PORTAGPU_BACKEND", "cpu")
    handle = pg.backend()
    assert isinstance(handle, CpuBackend)
    return handle


@cache
def _processes() -> Ranks:
    """Processes of their own, until this one ends."""
    server = Ranks()
    atexit.register(server.close)
    with owned.kept():
        server.start()
    return server


def search_there(area: str, table: str, fault: str) -> None:
    """Random programs on a CPU with that fault, of FAULTS or PATCHES, in a process of their own.

    This process frees and takes memory next to a program.
    """
    outcome = _processes().run(
        f"{ROOT / 'tests/support/fault_ranks.py'}:search_as_a_case",
        # some faults are in one program of a hundred
        arguments={"area": area, "table": table, "fault": fault, "most": 400 if fault else 40},
        backend="cpu",
        group=False,
        timeout_s=100.0,
        most_s=600.0,
    )
    assert outcome.ok, outcome.sentence
    difference, _ = outcome.values[0]
    assert not difference, difference


def in_child(gpu: Backend, function: Callable[..., Any], **arguments: Any) -> WorldOutcome:
    """How a function of a case goes in a process of its own, on a right device of that name."""
    return _processes().run(
        f"{function.__code__.co_filename}:{function.__name__}",
        arguments=arguments,
        backend=gpu.name,
        group=False,
        timeout_s=100.0,
    )


def search_here(gpu: Backend, area: str, programs: int = 800, shrinks: int = SHRINKS) -> None:
    """Random programs of an area of one rank, on ``gpu`` and in this process."""
    looks, here = itertools.count(), threading.current_thread()

    def now() -> float:
        # the thread that reports life looks at any time
        return float(next(looks)) if threading.current_thread() is here else 0.0

    clock = SimpleNamespace(monotonic=now)
    with tempfile.TemporaryFile() as journal, mock.patch.object(rounds, "time", clock):
        rank: Any = SimpleNamespace(gpu=gpu, rank=0, world=1)
        # a look at the clock before each program
        budget = rounds.Budget(seconds=math.inf, shrink_s=shrinks, max_programs=programs)
        found = rounds.Round(load_area(area), rank, journal.fileno(), budget).run(0)
    if found.difference:
        raise AssertionError(f"{found.difference}, in: {found.smallest}")


def run(
    gpu: Backend,
    name: str,
    tmp_path: Path | None = None,
    fault: tuple[str, str] = ("", ""),
    programs: int = 800,
    shrinks: int = SHRINKS,
) -> Result:
    """The result of that case on ``gpu``, judged as the suite judges it.

    ``fault`` is the table and the name of the fault that the device has, and ``programs`` how many
    random programs a case runs at most, before a failure and to make it smaller (``shrinks``).
    """
    case = everything()[name]
    observed: list[str] = []
    given = {"gpu": gpu, "backend": gpu, "torch": torch, "target": gpu.target}
    given |= {"record": observed.append, "tmp_path": tmp_path}
    given["in_child"] = partial(in_child, gpu)
    given["installed"] = lambda name: importlib.util.find_spec(name) is not None
    wanted = inspect.signature(case.function).parameters
    torch.manual_seed(0)
    kind, reason = "passed", ""
    try:
        if "search" in wanted:
            area = case.listed.search
            in_child_alone = area == "memory" and (fault[0] or type(gpu) is CpuBackend)
            given["search"] = (
                partial(search_there, area, *fault)
                if in_child_alone
                else partial(search_here, gpu, area, programs, shrinks)
            )
        if "comm" in wanted:
            given["comm"] = comm_of(gpu)
        case.function(**{key: given[key] for key in wanted if key in given}, **case.arguments)
    except Exception as error:  # noqa: BLE001 - whatever a case raises is its outcome
        kind, reason = outcome_of_error("call", error)
    outcome = {"kind": kind, "reason": reason, "duration_s": 0.0, "observed": observed}
    machine = DeviceUnderTest(
        backend=gpu.name,
        name=str(gpu.device),
        product=gpu.product,
        vendor=gpu.vendor,
        arch=str(gpu.arch),
        capabilities=frozenset(str(each) for each in gpu.capabilities),
        target=None,
    )
    return judge(case.listed, outcome, machine)

"""Orders of streams, events and graphs: the model by hand, and missing waits in virtual time."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import TYPE_CHECKING, ClassVar

import pytest

pytest.importorskip("torch")
pytest.importorskip("hypothesis")

from hypothesis import given, seed, settings

import portagpu as pg
from portagpu.suites.search.ordering import Ordering
from portagpu.suites.search.ordering.current import CurrentStreams
from portagpu.suites.search.ordering.model import Kernel, Model, Step, blame, modelled
from portagpu.suites.search.worker import SETTINGS
from tests.support.faults.ordering import TABLES, faults
from tests.support.looped import looped
from tests.support.virtual_device import (
    LENGTHS,
    VirtualDevice,
    VirtualEvent,
    VirtualKernels,
    VirtualStream,
)

if TYPE_CHECKING:
    from tests.support.faults import Fault

pytestmark = pytest.mark.torch

WRITE_5 = Kernel("write", "a", value=5)
COPY = Kernel("copy", "b", "a")
ADD = Kernel("add", "b", "a")


def started() -> Model:
    model = Model()
    model.start({"a": 1, "b": 2, "c": 3})
    return model


def test_what_nobody_waits_for_may_be_old_or_new():
    model = started()
    model.launch(1, WRITE_5)
    assert model.read("a") == {1, 5}, "a read during a write finds both values"
    model.synchronize("stream", 1)
    assert model.read("a") == {5}, "after the wait one value is left"


def test_a_stream_keeps_its_order_and_two_do_not():
    model = started()
    model.launch(1, WRITE_5)
    model.launch(1, COPY)
    model.launch(2, Kernel("write", "a", value=6))
    model.synchronize("device", 0)
    assert model.read("b") == {5, 6}, "a copy finds its stream's write, or the other stream's"
    assert model.read("a") == {5, 6}, "of two writes without order either may be the last"


def test_an_event_stands_for_its_last_record_at_the_wait():
    model = started()
    model.record("e", 1)
    model.launch(1, WRITE_5)
    model.wait_event(2, "e")
    model.launch(2, COPY)
    model.record("e", 1)
    model.wait_event(3, "e")
    model.launch(3, Kernel("copy", "c", "a"))
    model.synchronize("device", 0)
    assert model.read("b") == {1, 5}, "the wait was for the first record"
    assert model.read("c") == {5}, "the wait was for the second record"


def test_a_stream_that_waits_follows_all_earlier_work():
    model = started()
    model.launch(1, WRITE_5)
    model.wait_stream(2, 1)
    model.launch(1, Kernel("write", "a", value=6))
    model.launch(2, ADD)
    model.synchronize("stream", 2)
    assert model.read("b") == {3 * 2 + 5, 3 * 2 + 6}, "only work before the wait is ordered"


def test_a_replay_runs_the_graph_over_what_is_there():
    model = started()
    model.capture("g", [Step(0, ADD), Step(1, WRITE_5), Step(0, after=1), Step(0, COPY)])
    assert model.read("b") == {2}, "a capture runs nothing"
    model.replay("g", 1)
    model.synchronize("stream", 1)
    assert model.read("b") == {5}, "the copy comes after the lane that it waits for"
    model.capture("g", [Step(0, ADD)])
    model.replay("g", 1)
    model.replay("g", 1)
    model.synchronize("stream", 1)
    assert model.read("b") == {3 * (3 * 5 + 5) + 5}, "each replay adds to what the last one left"


def test_a_race_that_feeds_itself_claims_nothing():
    model = started()
    model.launch(1, COPY)
    model.launch(2, Kernel("copy", "a", "b"))
    model.synchronize("device", 0)
    assert model.read("a") is None, "two copies that race have no set of values"


def test_the_missing_wait_is_named():
    log = [
        ("start", ({"a": 1, "b": 2},), {}),
        ("launch", (1, WRITE_5), {}),
        ("record", (1, 1), {}),
        ("wait_event", (2, 1), {}),
        ("launch", (2, COPY), {}),
        ("synchronize", ("device", 0), {}),
    ]
    assert modelled(log).read("b") == {5}, "the order determines the value"
    found = blame(log, "b", frozenset({1}), late=False)
    assert found == "stream 2 went on before event 1 had happened", found


class Differs(Exception):
    """A program differed."""


def first_difference(area: Ordering, gpu: pg.Backend, most: int, shrink: bool = False) -> str:
    """The difference of the first of this many programs that has one, or of its smallest form."""
    rank = SimpleNamespace(gpu=gpu, rank=0, world=1)
    found = {"": 10**9}

    @settings(SETTINGS, max_examples=most, phases=SETTINGS.phases[: 1 + shrink])
    @seed(15)
    @given(area.programs(gpu))
    def each(program) -> None:
        wrong = area.difference(rank, program)
        if wrong:
            found[wrong] = min(found.get(wrong, 10**9), len(str(program)))
            raise Differs

    with contextlib.suppress(Differs):
        each()
    return min(found, key=found.__getitem__)


@looped("kernel_s", LENGTHS)
def test_a_right_device_passes_and_is_judged_at_every_length(kernel_s):
    passes_and_is_judged(kernel_s, 25)


def passes_and_is_judged(kernel_s, programs):
    area = Ordering(VirtualKernels)
    assert first_difference(area, VirtualDevice(kernel_s), programs) == ""
    assert list(area.aside()) == []


ADDED = ("set_stream", "default_stream", "graph_pool_handle", "is_current_stream_capturing")
"""Calls of contract 1.2, by the table in docs/new-vendors.md."""


class OldDevice(VirtualDevice):
    """A device of contract 1.0 with graphs, which has none of the calls that came later."""

    asked: ClassVar[set[str]] = set()

    def __init__(self, kernel_s: float, contract: tuple[int, int]) -> None:
        super().__init__(kernel_s)
        self.plugin = replace_contract(self.plugin, contract)

    def graph(self, cuda_graph, pool=None, stream=None, capture_error_mode="global"):
        if pool is not None:
            self.asked.add("pool")
        return super().graph(cuda_graph, None, stream, capture_error_mode)


def replace_contract(plugin, contract):
    """The plugin, as one that was written for another contract."""
    return type("Old", (type(plugin),), {"contract": contract})()


def _note(name):
    def call(self, *given):
        self.asked.add(name)
        return getattr(VirtualDevice, name)(self, *given)

    return call


for _name in ADDED:
    setattr(OldDevice, _name, _note(_name))


def test_a_program_of_a_newer_backend_needs_no_pool_on_an_older_one():
    gpu = OldDevice(20e-6, (1, 0))
    gpu.asked.clear()
    rank = SimpleNamespace(gpu=gpu, rank=0, world=1)
    calls = [
        (
            "capture",
            {
                "graph": 0,
                "steps": [["write", 0, "a", "b", 0]],
                "pool": True,
                "own": True,
                "fork": "event",
                "thread": False,
            },
        ),
        ("replay", {"graph": 0, "on": None, "times": 2, "thread": False}),
    ]
    assert Ordering(VirtualKernels).difference(rank, calls) == ""
    assert gpu.asked == set()
    assert "replay" in gpu.history, "the graph was not replayed"


def test_the_cpu_passes():
    area = Ordering()
    assert first_difference(area, pg.backend("cpu"), 100) == ""


@pytest.mark.parametrize("functions", [False, True])
def test_a_stream_that_is_set_in_a_block_of_none_stays(functions):
    gpu = pg.backend("cpu")
    streams = {0: gpu.default_stream(), 3: gpu.Stream()}
    with CurrentStreams(gpu, streams, pg if functions else gpu) as current:
        assert not current.enter(None, False)
        assert not current.set(3, False)
        assert not current.leave(False, False)
        assert current.number(False) == 3


def at_every_length(call: str, wrong: str) -> list[Fault]:
    """That fault, everywhere, with kernels of each length."""
    named = [each for each in faults() if each.name.startswith(f"{call}: everywhere, ")]
    return [each for each in named if each.name.endswith(f": {wrong}")]


NAMED = (
    ("device.synchronize", "does nothing", "synchronize()"),
    ("event.synchronize", "does nothing", "synchronize() of event"),
    # a lane that does not join the capture runs at once
    ("stream.wait_stream", "does nothing", "went on before the work of|ran without a replay"),
    ("stream.wait_event", "does nothing", "went on before event"),
    ("event.query", "is always True", "before"),
    ("event.query", "is always False", "not happened"),
    ("block begins", "does nothing", "current stream"),
    ("block ends by an error", "leaks its stream", "after an error"),
    ("replay", "does not run", "was replayed and did not run"),
    ("replay", "loses its order", "the order inside graph"),
    ("capture", "runs what it captures", "the graph ran without a replay"),
    ("elapsed_time", "has the wrong sign", "elapsed_time()"),
    ("elapsed_time", "is in seconds", "elapsed_time()"),
)


FEW = (0, 4)
"""Of ``NAMED``, by number: tests/full has the others."""


@pytest.mark.parametrize("number", FEW)
def test_the_smallest_program_names_the_fault(number):
    smallest_program_names(number)


def smallest_program_names(number):
    call, wrong, words = NAMED[number]
    every = at_every_length(call, wrong)
    fault = every[number % len(every)]
    with fault.apply():
        found = first_difference(Ordering(VirtualKernels), fault.device(), 600, shrink=True)
    assert any(each in found for each in words.split("|")), f"{fault.name}: {found}"


WAITS = {
    "device": (VirtualDevice, "synchronize", 0),
    "stream": (VirtualStream, "synchronize", 1),
    "event": (VirtualEvent, "synchronize", 0),
    "query": (VirtualStream, "query", 1),
}


@pytest.mark.parametrize("name", WAITS)
def test_a_wait_that_ends_early_is_seen_when_it_ends(name, monkeypatch):
    """Nothing comes after it: whoever only looks at the end of a program finds what is right."""
    cls, method, which = WAITS[name]
    asked = {"what": "stream" if name == "query" else name, "which": which, "thread": False}
    calls = [
        ("write", {"buffer": "a", "on": 1, "long": False, "thread": False}),
        ("record", {"event": 0, "stream": 1, "by": "event", "thread": False}),
        (method, asked),
    ]
    assert _difference(calls) == ""
    monkeypatch.setattr(cls, method, lambda self: True if method == "query" else None)
    found = _difference(calls)
    assert "buffer a" in found, found
    assert ("said" if method == "query" else "synchronize()") in found


def _difference(calls):
    rank = SimpleNamespace(gpu=VirtualDevice(1.0), rank=0, world=1)
    return Ordering(VirtualKernels).difference(rank, calls)


def test_the_catalogue_is_made_of_different_faults():
    names = [each.name for each in faults()]
    assert len(names) == len(set(names)) > 500, f"{len(set(names))} of {len(names)} faults differ"
    calls = {table[0] for table in TABLES}
    for fault in faults()[:: len(names) // 5]:
        assert fault.name.split(":")[0] in calls, f"{fault.name} is of no call"
        with fault.apply():
            pass

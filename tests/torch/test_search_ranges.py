"""Ranges: what a profile must show, by hand, and faults that programs find."""

from __future__ import annotations

import contextlib
import threading
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

pytest.importorskip("torch")
pytest.importorskip("hypothesis")

from hypothesis import given, seed, settings

import portagpu as pg
from portagpu.suites.search.ranges import AREA, Event, Node, compared
from portagpu.suites.search.worker import SETTINGS
from portagpu_cpu.backend import CpuBackend
from tests.support.faults.ranges import faults
from tests.support.suite_harness import open_device

pytestmark = pytest.mark.torch

OUTER = Node(("", "outer", ()), None, may_lack=False)
INNER = Node(("mine", "inner", (("step", 3),)), 0, may_lack=False)
MARK = Node(("", "x mark", ()), 0, may_lack=True)


def test_a_block_is_where_it_was_marked():
    events = [Event("outer", 0, 10), Event("mine:inner {'step':3}", 2, 5)]
    assert compared(events, [OUTER, INNER], thread=False) == ""
    apart = [events[0], Event(events[1].name, 11, 15)]
    found = compared(apart, [OUTER, INNER], thread=False)
    assert "is inside no block, and was inside 'outer'" in found, found


def test_a_mark_may_be_shown_or_not():
    events = [Event("outer", 0, 10), Event("x mark", 2, 3)]
    assert compared(events, [OUTER, MARK], thread=False) == ""
    assert compared(events[:1], [OUTER, MARK], thread=False) == ""


def test_a_name_may_be_shown_as_it_is():
    node = Node(("", "portagpu:x", ()), None, may_lack=False)
    assert compared([Event("portagpu:x", 0, 1)], [node], thread=False) == ""
    assert "was marked as" in compared([Event("x", 0, 1)], [node], thread=False)


def test_a_block_in_one_that_is_not_shown_is_in_the_one_around_that():
    unseen = Node(("", "own", ()), 0, may_lack=True)
    within = Node(("", "within", ()), 1, may_lack=False)
    events = [Event("outer", 0, 10), Event("within", 2, 3)]
    assert compared(events, [OUTER, unseen, within], thread=False) == ""
    shown = [events[0], Event("own", 1, 4), events[1]]
    assert compared(shown, [OUTER, unseen, within], thread=False) == ""
    found = compared([events[0], Event("within", 11, 12)], [OUTER, unseen, within], thread=False)
    assert "is inside no block, and was inside 'outer'" in found, found


def test_labels_keep_their_types():
    found = compared([Event("mine:inner {'step':3.0}", 0, 1)], [INNER], thread=False)
    assert "was marked as 'inner' of the domain mine with {'step': 3}" in found, found


def test_a_block_that_is_missing_or_too_many_is_named():
    found = compared([], [OUTER], thread=True)
    assert found == "the block 'outer' of another thread is not in the profile", found
    found = compared([Event("outer", 0, 1)], [], thread=False)
    assert found == "the profile shows a block 'outer' that was not marked", found


class Differs(Exception):
    """A program differed."""


def first_difference(most: int, gpu: Any = None) -> str:
    rank, found = SimpleNamespace(gpu=gpu or pg.backend("cpu"), rank=0, world=1), []

    @settings(SETTINGS, max_examples=most, phases=SETTINGS.phases[:1])
    @seed(15)
    @given(AREA.programs(rank.gpu))
    def each(program) -> None:
        wrong = AREA.difference(rank, program)
        if wrong:
            found.append(wrong)
            raise Differs

    with contextlib.suppress(Differs):
        each()
    return found[0] if found else ""


def test_the_cpu_passes():
    assert first_difference(200) == ""


class OfAVendor(CpuBackend):
    """A device whose own ranges torch's profiler does not show."""

    opened: ClassVar[threading.local] = threading.local()

    def mark(self, msg):
        del msg

    def range_push(self, msg):
        del msg
        self.opened.depth = getattr(self.opened, "depth", 0) + 1
        return self.opened.depth - 1

    def range_pop(self):
        if not getattr(self.opened, "depth", 0):
            raise IndexError("no range is open")
        self.opened.depth -= 1
        return self.opened.depth


class CountsFromOne(OfAVendor):
    def range_push(self, msg):
        return super().range_push(msg) + 1


@pytest.mark.parametrize(
    ("kind", "reported"), [(OfAVendor, ""), (CountsFromOne, "range_push() is 1")]
)
def test_depths_are_judged_on_a_device_of_a_vendor(monkeypatch, kind, reported):
    gpu = open_device(monkeypatch, kind)
    monkeypatch.setattr(type(gpu.plugin), "vendor", "maker", raising=False)
    found = first_difference(200, gpu)
    assert found.startswith(reported) if reported else not found, found


CAUGHT = {
    "name: everywhere: in upper case": "was marked as",
    "name: everywhere: cut to 255 characters": "was marked as",
    "labels: everywhere: are lost": "was marked as",
    "labels: everywhere: have 1 for True": "was marked as",
    "domain: everywhere: is lost": "of the domain",
    "block: everywhere: is not marked": "not in the profile",
    "block: everywhere: swallows errors": "swallowed",
    "range_push: everywhere: counts from 1": "range_push() is",
    "range_pop: in another thread: is None": "range_pop() is None",
    "range_pop: of none: is -1": "no IndexError",
    "decorated function: everywhere: loses its result": "a decorated function",
}


@pytest.mark.parametrize("name", CAUGHT)
def test_a_fault_is_caught(name):
    fault = next(each for each in faults() if each.name == name)
    with fault.apply():
        found = first_difference(400)
    assert found, "no program found it"
    others = ("is not in the profile", "that was not marked")
    assert any(words in found for words in (CAUGHT[name], *others)), found


def test_the_catalogue_is_made_of_different_faults():
    names = [each.name for each in faults()]
    assert len(names) == len(set(names)) > 60, f"{len(set(names))} of {len(names)} faults differ"

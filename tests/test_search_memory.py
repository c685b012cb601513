"""Counters of memory: the model by hand, and faults that programs find."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")
pytest.importorskip("hypothesis")

from hypothesis import given, seed, settings
from hypothesis.errors import HypothesisException

import portagpu as pg
from portagpu.search.memory import AREA
from portagpu.search.memory.model import MIB, SLACK, Bounds, Model
from portagpu.search.rounds import SETTINGS
from tests.faults.memory import faults

pytestmark = pytest.mark.torch


def test_a_tensor_counts_within_the_slack():
    model = Model()
    model.start(100 * MIB)
    model.made("x", [40 * MIB])
    assert model.current() == Bounds(140 * MIB - SLACK, 140 * MIB + SLACK)
    model.keep("y", model.slots["x"])
    model.keep("x", None)
    assert model.current() == Bounds(140 * MIB - SLACK, 140 * MIB + SLACK), "a view holds it"


def test_what_died_may_count_until_it_is_released():
    model = Model()
    model.start(0)
    model.made("x", [40 * MIB])
    model.keep("x", None)
    assert model.current() == Bounds(-2 * SLACK, 40 * MIB + 2 * SLACK)
    assert model.released(35 * MIB) != "", "40 MiB that are gone still count by 35"
    assert model.current() == Bounds(35 * MIB - SLACK, 35 * MIB + SLACK), "it goes on from there"


def test_a_peak_remembers_what_is_gone():
    model = Model()
    model.start(0)
    model.reset()
    model.made("x", [40 * MIB])
    model.keep("x", None)
    model.released(0)
    assert model.highest.low == 40 * MIB - SLACK, "the peak was with the tensor"
    model.reset()
    assert model.highest == Bounds(-SLACK, SLACK), "a reset forgets it"


class Differs(Exception):
    """A program differed."""


def first_difference(most: int) -> str:
    rank, found = SimpleNamespace(gpu=pg.backend("cpu"), rank=0, world=1), []

    @settings(SETTINGS, max_examples=most, phases=SETTINGS.phases[:1])
    @seed(15)
    @given(AREA.programs(rank.gpu))
    def each(program) -> None:
        wrong = AREA.difference(rank, program)
        if wrong:
            found.append(wrong)
            raise Differs

    with contextlib.suppress(Differs, HypothesisException):
        each()
    return found[0] if found else ""


def test_the_cpu_passes():
    assert first_difference(40) == ""


CAUGHT = {
    "memory_stats of allocated_bytes.all.current: always: is 0": "allocated",
    "memory_stats of allocated_bytes.all.current: always: counts half": "allocated",
    "memory_stats of allocated_bytes.all.peak: always: is in KiB": "below its current value",
    "memory_reserved: in another thread: is a float": "no whole number",
    "memory_allocated: in another thread: is 0": "memory_allocated()",
    "mem_get_info, total: at every second call: is half": "",
    "clone: always: keeps its result alive": "",
}


@pytest.mark.parametrize("name", CAUGHT)
def test_a_fault_is_caught(name):
    fault = next(each for each in faults() if each.name == name)
    with fault.apply():
        found = first_difference(120)
    assert found, "no program found it"
    assert CAUGHT[name] in found, found


def test_the_catalogue_is_made_of_different_faults():
    names = [each.name for each in faults()]
    assert len(names) == len(set(names)) > 60, f"{len(set(names))} of {len(names)} faults differ"

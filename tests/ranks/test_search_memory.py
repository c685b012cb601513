"""Counters of memory: the model by hand, and faults that programs find."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

from portagpu.suites.search.memory.model import MIB, SLACK, Bounds, Model, kernel_share
from tests.conftest import ROOT
from tests.support.faults.memory import faults
from tests.support.search_ranks import prepare

if TYPE_CHECKING:
    from portagpu.runs.world import Ranks

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


def test_what_the_kernel_maps_or_takes_back_may_count_and_nothing_else():
    model = Model()
    model.sees(30 * MIB)
    model.start(100 * MIB)
    model.reset()
    model.made("x", [40 * MIB])
    model.sees(50 * MIB)
    assert model.current() == Bounds(140 * MIB - SLACK, 160 * MIB + SLACK), "20 MiB more of files"
    assert model.highest == Bounds(140 * MIB - SLACK, 160 * MIB + SLACK), "before or after the peak"
    model.sees(25 * MIB)
    assert model.current() == Bounds(135 * MIB - SLACK, 140 * MIB + SLACK), "5 MiB less than first"
    model.sees(50 * MIB, 25 * MIB)
    assert model.current() == Bounds(135 * MIB - SLACK, 160 * MIB + SLACK), "it moved in the read"
    assert model.released(160 * MIB + SLACK) == ""
    assert model.current() == Bounds(160 * MIB, 160 * MIB + 2 * SLACK), "it is judged from there"
    model.sees(25 * MIB)
    assert model.current() == Bounds(160 * MIB, 160 * MIB + 2 * SLACK), "the share is the same"


@pytest.mark.parametrize(
    ("device", "text", "share"),
    [
        ("cpu", "VmSwap:\t    2048 kB\nRssAnon:\t 9 kB\nRssFile:\t   40960 kB\n", 38 * MIB),
        ("cpu", "RssFile:\t   40960 kB\n", 40 * MIB),
        ("cpu", "VmRSS:\t   40960 kB\n", 0),
        ("cpu", None, 0),
        ("cuda", "RssFile:\t   40960 kB\n", 0),
    ],
)
def test_the_kernels_share_is_of_files_and_not_of_what_was_swapped_out(
    tmp_path, device, text, share
):
    if text is not None:
        (tmp_path / "status").write_text(text)
    gpu = SimpleNamespace(device=SimpleNamespace(type=device))
    assert kernel_share(gpu, tmp_path / "status") == share


def first_programs(ranks: Ranks, names: list[str], most: int) -> list[tuple[str, int]]:
    """What programs report of each fault, in a process that frees and takes no other memory."""
    outcome = ranks.run(
        f"{ROOT / 'tests/support/fault_ranks.py'}:first_programs",
        arguments={"area": "memory", "faults": names, "number": 15, "most": most},
        backend="cpu",
        group=False,
        most_s=600.0,
    )
    value: list[tuple[str, int]] = outcome.values[0]
    return value


def test_pages_of_files_that_come_and_go_are_not_tensors(search_ranks):
    def make(slot):
        return "make", {"slot": slot, "size": 20 * MIB, "dtype": "float32", "maker": "full"}

    program = [
        *(make("x"), ("read", {"thread": False, "by": "method"})),
        *(("reset", {"by": "method"}), make("y"), ("release", {"by": "method"})),
        *(make("z"), ("free", {"slot": "y"}), ("release", {"by": "method"}), make("y")),
    ]
    outcome = search_ranks.run(
        f"{ROOT / 'tests/support/mapped_ranks.py'}:differences",
        arguments={"program": program},
        backend="cpu",
        group=False,
    )
    assert outcome.values[0] == ["", "", ""]


CAUGHT = {
    "memory_stats of allocated_bytes.all.current: always: is 0": "allocated",
    "memory_stats of allocated_bytes.all.current: always: counts half": "allocated",
    "memory_stats of allocated_bytes.all.peak: always: is in KiB": "is below the current",
    "memory_reserved: in another thread: is a float": "not a whole number",
    "memory_allocated: in another thread: is 0": "memory_allocated()",
    "mem_get_info, total: at every second call: is half": "",
    "clone: always: keeps its result alive": "",
}


@pytest.fixture(scope="module")
def outcome_of(rank_server):
    """What programs report of each fault, which the seventh finds at the latest, as measured."""
    every = first_programs(prepare(rank_server), [*CAUGHT], 200)
    return dict(zip(CAUGHT, (sentence for sentence, _ in every), strict=True))


@pytest.mark.parametrize("name", CAUGHT)
def test_a_fault_is_caught(outcome_of, name):
    assert outcome_of[name], "no program found it"
    assert CAUGHT[name] in outcome_of[name], outcome_of[name]


def test_the_catalogue_is_made_of_different_faults():
    names = [each.name for each in faults()]
    assert len(names) == len(set(names)) > 60, f"{len(set(names))} of {len(names)} faults differ"

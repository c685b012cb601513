"""The suite catches broken collectives; see ``tests/support/broken_collectives.py``."""

from __future__ import annotations

import json
import math
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

pytest.importorskip("torch")

sys.path.insert(0, str(Path(__file__).parents[2]))

from portagpu.suites.search.area import load_area
from portagpu.suites.search.worker import Budget, Round
from tests.conftest import run_child
from tests.support import broken_collectives
from tests.support.broken_collectives import FAULTS, GOOD, SEARCH
from tests.support.fake_plugins import install
from tests.support.search_ranks import prepare

if TYPE_CHECKING:
    from collections.abc import Sequence

    from portagpu.runs.world import Rank, Ranks

pytestmark = pytest.mark.torch

CONFORM = """
import json, sys
from portagpu.suites.conformance import ConformOptions, Selection, conform
selection = Selection(only=tuple(sys.argv[1:]))
results = conform(ConformOptions(backend="broken", selection=selection)).results
print(json.dumps({each.id: [str(each.verdict), each.reason] for each in results}))
"""


DEAR: Final = "gives a rank the gradients of another's shards"
"""Its ranks import torch's compiler, half as much as all others together: tests/full has it."""
JUDGED: Final = [fault for fault, (name, _) in FAULTS.items() if name != SEARCH and fault != DEAR]


def conform(site: Path, folder: Path, names: Sequence[str]) -> dict[str, list[str]]:
    """[verdict, reason] of each case on the broken backend, by id."""
    source = Path(broken_collectives.__file__).read_text(encoding="utf-8")
    modules = {"portagpu_broken": source}
    install(site, "portagpu-broken", {"broken": "portagpu_broken:PLUGIN"}, modules)
    judged: dict[str, list[str]] = json.loads(
        run_child(folder, "-c", CONFORM, *names, path=[site]).ok()
    )
    return judged


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, forked: None) -> dict[str, list[str]]:
    """Of the faults in ``JUDGED``, and of what is good."""
    names = [*(FAULTS[fault][0] for fault in JUDGED), *GOOD]
    return conform(tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("child"), names)


@pytest.mark.parametrize("fault", JUDGED)
def test_library_with_a_fault_fails_the_case_for_it(
    found: dict[str, list[str]], fault: str
) -> None:
    fails(found, fault)


def fails(found: dict[str, list[str]], fault: str) -> None:
    name, sentence = FAULTS[fault]
    verdict, reason = found[name]
    assert verdict == "FAIL", f"a library that {fault} is {verdict} in {name}: {reason}"
    assert sentence in reason, f"the sentence of {name} does not name the fault: {reason}"


SEARCHED: Final = [fault for fault, (name, _) in FAULTS.items() if name == SEARCH]
SEEDS: Final = dict.fromkeys(SEARCHED, 1) | {
    "saturates integers": 8,
    "gathers in reverse": 2,
    "scatters to the next rank": 2,
    "flushes subnormal numbers": 9,
    "does nothing where it must refuse": 21,
    "takes no maximum of int32": 17,
    "refuses a reduce op that is claimed": 21,
    "broadcasts bytes from rank 0": 4,
    "rounds sums of float32 to eight bits": 4,
}
"""Of which an early program finds each fault, as measured: the 19th at the latest."""
PROGRAMS: Final = 400
"""This many run where a fault is not found. ``tests/deep/test_fault_score.py`` draws new seeds."""


def random_programs(
    rank: Rank, faults: list[str], seeds: list[int], unclaimed: str = "", most: int = PROGRAMS
) -> list[tuple[str, int] | None]:
    """What random programs report of each fault, as rank 0 does, and how many ran.

    Of the first faults only, where one breaks the default group.
    """
    import torch.distributed as dist

    comm = rank.gpu.comm
    gpu: Any = rank.gpu
    gpu.comm = replace(comm, reduce_ops=comm.reduce_ops - {unclaimed})
    outcome_of: list[tuple[str, int] | None] = []
    good = dict(vars(dist))
    for fault, seed in zip(faults, seeds, strict=True):
        rank.step(fault)
        broken_collectives.alone(dist, fault)
        area = load_area("collectives-4")
        if rank.rank:
            area.follow(rank)
            outcome_of.append(None)
        else:
            with tempfile.TemporaryFile() as journal:
                # without shrinking, and so without a clock
                budget = Budget(seconds=math.inf, shrink_s=0.0, max_programs=most)
                found = Round(area, rank, journal.fileno(), budget).run(seed)
            area.end(rank)
            outcome_of.append((found.difference, found.programs))
        vars(dist).update(good)
        if rank.broke_group:
            break
    return outcome_of


def run_random_programs(ranks: Ranks, faults: Sequence[str], **options: Any) -> list[Any]:
    """Of each fault what was reported, and how many programs ran."""
    outcome_of: list[Any] = []
    while left := list(faults[len(outcome_of) :]):
        arguments = {"faults": left, "seeds": [SEEDS[each] for each in left], **options}
        outcome_of += ranks.run(
            f"{Path(__file__)}:random_programs",
            4,
            arguments=arguments,
            backend="cpu",
            group=True,
            timeout_s=60.0,
            most_s=600.0,
        ).values[0]
    return outcome_of


@pytest.fixture(scope="module")
def outcome_of(rank_server: Ranks) -> dict[str, str]:
    """What random programs report of each fault."""
    every = run_random_programs(prepare(rank_server), SEARCHED)
    return {fault: difference for fault, (difference, _) in zip(SEARCHED, every, strict=True)}


@pytest.mark.parametrize("name", GOOD)
def test_what_is_not_broken_passes(found: dict[str, list[str]], name: str) -> None:
    assert found[name] == ["PASS", ""], f"{name} is {found[name]}"

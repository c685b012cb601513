"""The suite catches broken collectives; see ``tests/support/broken_collectives.py``."""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

sys.path.insert(0, str(Path(__file__).parents[2]))

from portagpu.search.area import load_area
from portagpu.search.rounds import Round
from portagpu.world import Ranks
from tests.conftest import run_child
from tests.support import broken_collectives
from tests.support.broken_collectives import FAULTS, GOOD, SEARCH
from tests.support.fake_plugins import install

if TYPE_CHECKING:
    from collections.abc import Iterator

    from portagpu.world import Rank

pytestmark = pytest.mark.torch

CONFORM = """
import json, sys
from portagpu.suite import ConformOptions, Selection, conform
selection = Selection(only=tuple(sys.argv[1:]))
results = conform(ConformOptions(backend="broken", selection=selection)).results
print(json.dumps({each.id: [str(each.verdict), each.reason] for each in results}))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """[verdict, reason] of each case on the broken backend, by id."""
    site, folder = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("child")
    source = Path(broken_collectives.__file__).read_text(encoding="utf-8")
    modules = {"portagpu_broken": source}
    install(site, "portagpu-broken", {"broken": "portagpu_broken:PLUGIN"}, modules)
    names = [name for name, _ in FAULTS.values() if name != SEARCH]
    ended = run_child(folder, "-c", CONFORM, *names, *GOOD, path=[site])
    judged: dict[str, list[str]] = json.loads(ended.ok())
    return judged


@pytest.mark.parametrize("fault", [fault for fault, (name, _) in FAULTS.items() if name != SEARCH])
def test_library_with_a_fault_fails_the_case_for_it(
    found: dict[str, list[str]], fault: str
) -> None:
    name, sentence = FAULTS[fault]
    verdict, reason = found[name]
    assert verdict == "FAIL", f"a library that {fault} is {verdict} in {name}: {reason}"
    assert sentence in reason, f"the sentence of {name} does not tell the fault: {reason}"


@pytest.fixture(scope="module")
def server() -> Iterator[Ranks]:
    with Ranks() as ranks:
        yield ranks


def random_programs(
    rank: Rank, fault: str, unclaimed: str = "", most: int = 400
) -> tuple[str, int] | None:
    """What random programs of the seed 0 tell of that fault, as rank 0 does, and how many ran."""
    import torch.distributed as dist

    broken_collectives.alone(dist, fault)
    comm = rank.gpu.comm
    gpu: Any = rank.gpu
    gpu.comm = replace(comm, reduce_ops=comm.reduce_ops - {unclaimed})
    area = load_area("collectives-4")
    if rank.rank:
        area.follow(rank)
        return None
    with tempfile.TemporaryFile() as journal:
        found = Round(area, rank, journal.fileno(), most)
        found.run(0, seconds=40.0, shrink_s=0.5)
    area.end(rank)
    return found.difference, found.programs


@pytest.mark.parametrize("fault", [fault for fault, (name, _) in FAULTS.items() if name == SEARCH])
def test_random_programs_find_the_fault_and_name_it(server: Ranks, fault: str) -> None:
    outcome = server.run(
        f"{Path(__file__)}:random_programs",
        4,
        arguments={"fault": fault},
        backend="cpu",
        group=True,
        timeout_s=90.0,
    )
    told, _ = outcome.values[0]
    assert told, f"400 random programs pass on a library that {fault}"
    assert FAULTS[fault][1] in told, f"the sentence does not tell the fault: {told}"


def test_a_reduce_op_that_is_not_claimed_may_be_refused(server: Ranks) -> None:
    fault = "refuses a reduce op that is claimed"
    outcome = server.run(
        f"{Path(__file__)}:random_programs",
        4,
        arguments={"fault": fault, "unclaimed": "AVG", "most": 60},
        backend="cpu",
        group=True,
        timeout_s=90.0,
    )
    assert outcome.values[0] == ["", 60], outcome.sentence


@pytest.mark.parametrize("name", GOOD)
def test_what_is_not_broken_passes(found: dict[str, list[str]], name: str) -> None:
    assert found[name] == ["PASS", ""], f"{name} is {found[name]}"

"""What a case can earn follows from what it asks for, and agrees with what it does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")


from portagpu.runs.results.run import Evidence, Verdict
from portagpu.suites.conformance import ConformOptions, conform
from tests.support.case_files import by_id, write_cases

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("forked")]

CASES = """
import pytest

@pytest.fixture
def handle(backend): return backend

@case("rng/device", spec="Runs.")
def test_device(gpu): pass

@case("rng/device-and-torch", spec="Runs.")
def test_device_and_torch(gpu, torch): pass

def number(rank, value): return value
def dies(rank): os._exit(3)

@case("rng/ranks", spec="Runs.", capability="collectives")
def test_ranks(world): world(1, number, value=1)

@case("rng/shared", spec="Runs.", capability="collectives", params={"value": (1, 2)})
def test_shared(world, value): assert world(1, number, value=value) == [value]

@case("rng/server", spec="Runs.", capability="collectives")
def test_server(ranks):
    arguments = {"place": "builtins:len", "calls": []}
    assert ranks.run("portagpu.suites.conformance.ranks:run_all", arguments=arguments).ok

@case("rng/lost-rank", spec="Runs.", capability="collectives")
def test_lost_rank(world): world(1, dies)

@case("rng/no-world", spec="Starts none.", capability="collectives")
def test_no_world(world): pass

@case("rng/no-world-fails", spec="Starts none.", capability="collectives")
def test_no_world_fails(world): assert False

@case("rng/no-server", spec="Starts none.", capability="collectives")
def test_no_server(ranks): pass

@case("rng/backend", spec="Asks.")
def test_backend(backend, tmp_path): pass

@case("rng/own-fixture", spec="Asks.")
def test_own_fixture(handle): pass

@case("rng/target", spec="Asks.")
def test_target(target): pass

@case("rng/library", spec="Asks.", capability="collectives")
def test_library(comm): pass

@case("rng/torch", spec="Asks.")
def test_torch(torch): pass

@case("rng/packages", spec="Asks.")
def test_packages(installed): pass

@case("rng/nothing", spec="Is the same everywhere.", params={"n": (1, 2)})
def test_nothing(tmp_path, record, n): pass
"""
EARNED = {
    **dict.fromkeys(
        ("device", "device-and-torch", "ranks", "server", "lost-rank"), (Evidence.EXECUTED,)
    ),
    **dict.fromkeys(("shared[value1]", "shared[value2]"), (Evidence.EXECUTED,)),
    **dict.fromkeys(("no-world", "no-world-fails", "no-server"), ()),
    **dict.fromkeys(("backend", "own-fixture", "target", "library", "torch"), (Evidence.LOADED,)),
    "packages": (),
}


def test_what_a_case_asks_for_is_what_it_earns(tmp_path: Path) -> None:
    found = by_id(
        conform(ConformOptions(backend="cpu", folder=write_cases(tmp_path, CASES))).results
    )
    refused = [found.pop(name) for name in list(found) if name.startswith("suite/")]
    assert {name: each.evidence for name, each in found.items()} == {
        f"rng/{name}": evidence for name, evidence in EARNED.items()
    }
    assert [each.id for each in refused] == [f"suite/test_nothing[n{n}]" for n in (1, 2)]
    for each in refused:
        assert (each.verdict, each.evidence) == (Verdict.ERROR, ())
        assert "test_rng.py::test_nothing takes none of gpu, ranks, backend, torch" in each.reason
        assert "make it a test of the package" in each.reason


HIDING = """
import pytest

@pytest.fixture(name="ranks")
def mine(): return 1

@case("rng/parameter", spec="Hides the device.", params={"gpu": ("a",), "n": (1,)})
def test_parameter(gpu, n): pass

@case("rng/second-parameter", spec="Hides torch.", params={"torch": ("a",)})
def test_next_to(torch, backend): pass

@case("rng/fixture", spec="Hides the ranks.")
def test_fixture(ranks): pass

@case("rng/fine", spec="Hides nothing.", params={"gpus": (1,)})
def test_fine(gpu, gpus): pass
"""


def test_a_name_that_hides_a_fixture_of_evidence_is_refused(tmp_path: Path) -> None:
    found = by_id(
        conform(ConformOptions(backend="cpu", folder=write_cases(tmp_path, HIDING))).results
    )
    assert found.pop("rng/fine[gpus1]").evidence == (Evidence.EXECUTED,)
    hidden = {"test_parameter[a-n1]": "gpu", "test_next_to[a]": "torch", "test_fixture": "ranks"}
    assert set(found) == {f"suite/{name}" for name in hidden}
    for name, fixture in hidden.items():
        refused = found[f"suite/{name}"]
        function = name.partition("[")[0]
        assert (refused.verdict, refused.evidence) == (Verdict.ERROR, ())
        assert refused.reason == (
            f"the suite is broken: test_rng.py::{function} has its own {fixture}, which hides the "
            "suite's fixture: give it another name"
        )


def test_the_id_of_a_retired_case_is_refused(tmp_path: Path) -> None:
    text = """
    @case("telemetry/host-settings", spec="Is back.")
    def test_back(gpu): pass
    @case("telemetry/power-is-in-watts", spec="Is back.", params={"n": (1,)})
    def test_labelled(gpu, n): pass
    @case("telemetry/here", spec="Is new.")
    def test_here(gpu): pass
    """
    folder = write_cases(tmp_path, text, "test_telemetry.py")
    found = by_id(conform(ConformOptions(backend="cpu", folder=folder)).results)
    assert found.pop("telemetry/here").verdict is Verdict.PASS
    assert set(found) == {"suite/test_back", "suite/test_labelled[n1]"}
    assert {each.verdict for each in found.values()} == {Verdict.ERROR}
    assert found["suite/test_back"].reason == (
        "the suite is broken: test_telemetry.py::test_back takes the id of a retired case, "
        "telemetry/host-settings: give it a new one"
    )

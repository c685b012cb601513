"""Running the suite in child processes: crashes, hangs, hostile folders, interruption, ranks."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")

from pathlib import Path
from typing import TYPE_CHECKING

from portagpu.runs.results.run import Result, Verdict
from portagpu.suites.conformance import ConformOptions, Selection, engine
from portagpu.suites.conformance import conform as run_suite
from portagpu.suites.conformance.options import SelectionError
from tests.process.test_suite_run import EXPECTED
from tests.process.test_suite_run import outcomes as outcomes
from tests.support.case_files import by_id, conform, write_cases

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Child

pytestmark = pytest.mark.torch


CALLER = """
import json, sys
from pathlib import Path
from portagpu.suites.conformance import ConformOptions, conform
results = conform(ConformOptions(backend="cpu", folder=Path(sys.argv[1]))).results
print(json.dumps({each.id: [str(each.verdict), each.reason] for each in results}))
"""


HOSTILE = {
    "conftest.py": "raise RuntimeError('the user's own conftest was read')",
    "pytest.ini": "[pytest]\naddopts = -k nothing --strict-config\npython_functions = nope\n",
    "pyproject.toml": "[tool.pytest.ini_options]\naddopts = '--collect-only'\n",
    "tox.ini": "[pytest]\naddopts = --maxfail=1 -x\n",
    "setup.cfg": "[tool:pytest]\naddopts = --co\n",
    "torch.py": "raise RuntimeError('a torch.py in the working folder was imported')",
    "pytest.py": "raise RuntimeError('a pytest.py in the working folder was imported')",
    "sitecustomize.py": "import os; os._exit(99)",
    "usercustomize.py": "import os; os._exit(98)",
}


def test_nothing_in_the_users_folder_changes_a_verdict(
    child: Callable[..., Child], tmp_path: Path
) -> None:
    folder = write_cases(
        tmp_path / "cases",
        """
        @case("rng/passes", spec="Passes.")
        def test_passes(gpu): assert "TRITON_INTERPRET" not in os.environ, "kernels are interpreted"

        @case("rng/fails", spec="Fails.")
        def test_fails(gpu): assert False, "it fails"

        def ranked(rank): assert rank.rank == 0, "rank 1 checks"

        @case("collectives/asserts", spec="Fails.", capability="collectives")
        def test_asserts(world): world(2, ranked)
        """,
    )
    here = tmp_path / "child"
    for name, text in HOSTILE.items():
        (here / name).write_text(text, "utf-8")
    environment = {
        "PYTEST_ADDOPTS": "-k nothing",
        "PYTEST_PLUGINS": "no_such_plugin",
        "PYTHONOPTIMIZE": "1",
        "PYTHONWARNINGS": "error",
        "TRITON_INTERPRET": "1",
    }
    code = here / "caller.txt"
    code.write_text(CALLER, "utf-8")
    ended = child("-c", CALLER, str(folder), environment=environment)
    found = json.loads(ended.ok())
    assert found["rng/passes"] == ["PASS", ""]
    assert found["rng/fails"][0] == "FAIL", f"a failing case is {found['rng/fails']}"
    assert found["collectives/asserts"] == ["FAIL", "rank 1: rank 1 checks"], "ranks do not assert"


@pytest.mark.parametrize("name", EXPECTED)
def test_what_a_case_does_becomes_its_verdict(outcomes: dict[str, Result], name: str) -> None:
    verdict, reason = EXPECTED[name]
    found = outcomes[name]
    if name == "rng/hangs" and "on a busy machine" in found.reason:
        verdict, reason = Verdict.INCONCLUSIVE, "did not finish within 1 s on a busy machine"
    assert found.verdict is verdict, f"{name} is {found.verdict}: {found.reason}"
    assert reason in found.reason, f"{name} says {found.reason!r}"
    assert found.suite == "conformance"
    assert found.area == name.partition("/")[0]


def test_an_unknown_case_is_refused_before_torch_is_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[str] = []
    monkeypatch.setattr(engine, "judge_cases", lambda *given, **more: begun.append("judge"))
    for name in ("rgn", "rng/seed-repeat", "rgn/*"):
        with pytest.raises(SelectionError, match="no case is called"):
            run_suite(ConformOptions(selection=Selection(only=("rng", name))))
    assert not begun
    # a name that the suite writes needs no list of the cases
    monkeypatch.setattr(engine, "Child", lambda *given: begun.append("list"))
    names = ("rng", "rng/seed-*", "rng/seed-repeats", "rng/seed-repeats[x]")
    run_suite(ConformOptions(selection=Selection(only=names)))
    assert begun == ["judge"]


def test_a_broken_file_does_not_keep_what_is_asked_for_next_to_it(tmp_path: Path) -> None:
    write_cases(tmp_path, "import no_such_module\n", "test_graphs.py")
    write_cases(tmp_path, '@case("rng/good", spec="Passes.")\ndef test_good(gpu): pass\n')
    selection = Selection(only=("rng/go*", "graphs"))
    results = conform("cpu", selection=selection, folder=tmp_path)
    assert by_id(results)["rng/good"].verdict is Verdict.PASS
    assert any("no_such_module" in each.reason for each in results)
    (only,) = conform("cpu", selection=Selection(only=("graphs",)), folder=tmp_path)
    assert "no_such_module" in only.reason

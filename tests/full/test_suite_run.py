"""Running the suite in child processes: crashes, hangs, hostile folders, interruption, ranks."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")

from typing import TYPE_CHECKING

from tests.process.test_suite_run import CALLER, HOSTILE
from tests.support.case_files import write_cases

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Child

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("forked")]


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

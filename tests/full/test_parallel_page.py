"""The example of parallel training in docs/planning.md runs, and its words are the code's."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Final

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import portagpu as pg
from portagpu.train.parallel.data import APPLIED_PRECISIONS, APPLIED_SHARDINGS
from portagpu.train.planning.recipe import OFFLOADS, RECOMPUTES, SHARDINGS
from tests.conftest import ROOT
from tests.support.launched import run_on_the_cpu

if TYPE_CHECKING:
    from pathlib import Path

PAGE: Final = (
    (ROOT / "docs" / "planning.md").read_text("utf-8").partition("\n## Parallel training\n")[2]
)


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_example_runs(tmp_path: Path, ranks: int) -> None:
    (example,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    file = tmp_path / "example.py"
    file.write_text(example)
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
    command = [sys.executable, *(launch if ranks > 1 else []), str(file)]
    code, _, err = run_on_the_cpu(command, tmp_path)
    assert code == 0, err
    assert pg.parallel.latest(tmp_path / "kept") == 3


def test_every_function_is_on_the_page() -> None:
    rows = re.findall(r"^\| (`[^|]*`) \| [^|]* \| [^|]* \|$", PAGE, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)\(", row)}
    assert named == {name for name in pg.parallel.__all__ if name != "Loaded"}


def test_the_words_of_plans_are_the_codes() -> None:
    rows = dict(
        re.findall(r"^\| (\w+) \| (.*) \|$", PAGE.partition("| of a plan |")[2], re.MULTILINE)
    )
    words = {name: re.findall(r"`([\w-]+)`", row) for name, row in rows.items()}
    assert set(words["sharding"]) == set(SHARDINGS)
    assert tuple(words["sharding"][:2]) == APPLIED_SHARDINGS
    assert tuple(words["precision"]) == APPLIED_PRECISIONS
    assert tuple(words["recompute"]) == RECOMPUTES
    assert set(words["offload"]) <= set(OFFLOADS)

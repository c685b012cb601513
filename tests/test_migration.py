"""The migration guide names only what exists, on torch's side and on this one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

import portagpu as pg

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

GUIDE: Final = Path(__file__).resolve().parents[1] / "docs" / "migrating.md"
ROWS: Final = re.findall(
    r"^\| (`.*?) \| (.*?) \|$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE
)
SAME: Final = ("the same", "`pg.` and the same name")


def test_every_name_the_guide_offers_exists() -> None:
    gpu = pg.backend("cpu")
    text = GUIDE.read_text(encoding="utf-8")
    offered = sorted(set(re.findall(r"\bpg\.([A-Za-z]\w*)", text)))
    assert len(offered) >= 15, f"the guide offers only {offered}: is its table still there?"
    for name in offered:
        assert name in pg.__all__, f"the guide offers pg.{name}, which portagpu does not have"
    for member, inner in sorted(set(re.findall(r"pg\.backend\(\)\.(\w+)(?:\.(\w+))?", text))):
        assert hasattr(gpu, member), f"the guide offers {member} of a backend, which has none"
        if inner:
            assert hasattr(getattr(gpu, member), inner), f"a backend's {member} has no {inner}"


def test_rows_that_keep_the_name_name_functions_of_both() -> None:
    kept = [names for names, after in ROWS if after in SAME]
    assert len(kept) >= 6, f"only {len(kept)} rows keep torch's name: has the table changed?"
    for row in kept:
        for name in re.findall(r"`(?:torch\.cuda\.)?(\w+)`", row):
            assert hasattr(torch.cuda, name), f"torch.cuda has no {name}, which the guide replaces"
            assert name in pg.__all__, f"the guide keeps the name {name}, which portagpu lacks"

"""The migration guide names only what exists, on torch's side and on this one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

import portagpu as pg
from tests.benchmarks import coverage
from tests.support.registry_state import forget

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

GUIDE: Final = Path(__file__).resolve().parents[2] / "docs" / "migrating.md"
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


def test_public_code_finds_its_names(monkeypatch: pytest.MonkeyPatch) -> None:
    forget(monkeypatch)
    monkeypatch.setenv("PORTAGPU_BACKEND", "cpu")
    uses = coverage.load_uses()
    assert sum(use.uses for use in uses) > 1000, "the table of uses has shrunk"
    covered, literal, refused = coverage.shares()
    assert covered >= 0.95, f"{covered:.1%} of the uses have a name or a row"
    assert literal >= 0.95, f"{literal:.1%} of the uses are written with pg for torch.cuda"
    assert refused <= 0.06, f"a CPU refuses {refused:.1%} of the uses"


def test_a_name_that_is_missing_is_not_covered() -> None:
    gone = coverage.Use("no_such_name", "call", 1, 1)
    assert not coverage.is_covered(gone)
    assert coverage.is_literal(gone).startswith("AttributeError")
    wrong = coverage.Use("current_device", "with", 1, 1)
    assert coverage.is_literal(wrong) not in ("runs", "refused")

"""Outcomes that a backend publishes for cases: judged, listed, and never a way to pass."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from portagpu.runs.results.run import Verdict
from tests.process.test_suite_overrides import QUIRKY
from tests.process.test_suite_overrides import quirky as quirky
from tests.support import registry_state
from tests.support.case_files import by_id, conform, write_cases
from tests.support.fake_plugins import install

if TYPE_CHECKING:
    from pathlib import Path


ENDS = {
    "value": "assert 1 == 2, 'one is two'",
    "rank-value": "world(2, ends, how='value')",
    "runtime-error": "raise RuntimeError('device-side assert triggered')",
    "memory-error": "raise MemoryError('out of memory')",
    "rank-error": "world(2, ends, how='error')",
    "rank-dies": "world(2, ends, how='dies')",
    "rank-hangs": "world(2, ends, how='hangs')",
    "hangs": "threading.Event().wait()",
    "dies": "os.kill(os.getpid(), signal.SIGSEGV)",
}


LIMITS = """
import math, portagpu.base.patience
from portagpu.suites.conformance import fixtures
# a world is given up long before its case, and what hangs has hung on a busy machine too
fixtures._WORLD_SHARE = 0.03
portagpu.base.patience._STARVED = math.inf
"""


ON_RANKS = """
def ends(rank, how):
    if rank.rank == 1:
        if how == "error": raise RuntimeError("device-side assert triggered")
        if how == "dies": os.kill(os.getpid(), signal.SIGKILL)
        if how == "hangs": threading.Event().wait()
        assert how != "value", "one is two"
"""


@pytest.mark.torch
def test_what_is_undefined_hides_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a backend states it, and where the case does: what hangs costs time, so once."""
    pytest.importorskip("torch")
    module = QUIRKY.replace("rng/seed-repeats[rand]", "rng/*")
    install(tmp_path, "portagpu-quirky", {"quirky": "quirky_1:PLUGIN"}, {"quirky_1": module})
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("portagpu.base.patience._STARVED", math.inf)
    registry_state.forget(monkeypatch)
    ends = {"rng": ENDS, "memory": {each: ENDS[each] for each in ENDS if "hangs" not in each}}
    for area, outcome in (("rng", "exact"), ("memory", "undefined")):
        text = "".join(
            f"""
@case("{area}/{name}", spec="It ends.", outcome="{outcome}", capability="collectives",
      timeout_s={3.0 if name == "hangs" else 100.0})
def test_{name.replace("-", "_")}(gpu, world): {body}
"""
            for name, body in ends[area].items()
        )
        write_cases(tmp_path / "cases", LIMITS + ON_RANKS + text, f"test_{area}.py")
    found = by_id(conform("quirky", folder=tmp_path / "cases"))
    for area, recorded in (("rng", Verdict.UNVERIFIED), ("memory", Verdict.SKIP)):
        expected = {**dict.fromkeys(ends[area], Verdict.FAIL), "dies": Verdict.ERROR}
        expected |= dict.fromkeys(("value", "rank-value"), recorded)
        verdicts = {name: found[f"{area}/{name}"].verdict for name in ends[area]}
        assert verdicts == expected, {name: each.reason for name, each in found.items()}
        assert "device-side assert" in found[f"{area}/runtime-error"].reason
        assert "rank 1 died of SIGKILL" in found[f"{area}/rank-dies"].reason
    assert "rank 1 hung" in found["rng/rank-hangs"].reason

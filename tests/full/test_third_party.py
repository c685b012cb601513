"""Third-party backends that are broken, slow or in each other's way: reported, and in nobody's way.

Each test puts distributions (a module and its metadata) on a child process's path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.process.test_third_party import GOOD, distribute
from tests.process.test_third_party import statuses as statuses

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


BROKEN = {
    "raises-at-import": (
        "raise RuntimeError('no driver\\nfor you')",
        "from other raised RuntimeError: no driver for you",
    ),
    "exits-at-import": ("import sys; sys.exit(7)", "from other raised SystemExit: 7"),
    "hangs-at-import": (
        "import threading; threading.Event().wait()",
        "from other did not answer within 0.5 s",
    ),
    "misses-a-package": (
        "import a_package_that_is_not_there",
        "from other raised ModuleNotFoundError: No module named 'a_package_that_is_not_there'",
    ),
    "misses-the-plugin": ("", "module 'other' has no attribute 'PLUGIN'"),
    "not-a-plugin": ("PLUGIN = dict()", "names a dict instead of a portagpu Plugin"),
    "newer-major-contract": (
        GOOD.format(name="other").replace("(1, 0)", "(2, 0)"),
        "was written for contract 2.0, this portagpu has 1.6: upgrade portagpu",
    ),
    "newer-minor-contract": (
        GOOD.format(name="other").replace("(1, 0)", "(1, 99)"),
        "was written for contract 1.99, this portagpu has 1.6: upgrade portagpu",
    ),
    "older-major-contract": (
        GOOD.format(name="other").replace("(1, 0)", "(0, 9)"),
        "was written for contract 0.9, this portagpu has 1.6: upgrade other",
    ),
    "not-a-contract": (
        GOOD.format(name="other").replace("(1, 0)", "'1.0'"),
        "states its contract as '1.0' instead of two numbers",
    ),
    "another-name": (GOOD.format(name="wrong"), "calls itself 'wrong'"),
    "status-raises": (
        GOOD.format(name="other").replace("return Status", "raise OSError('lost') #"),
        "its status raised OSError: lost",
    ),
    "status-hangs": (
        GOOD.format(name="other").replace(
            "return Status", "import threading; threading.Event().wait() #"
        ),
        "its status did not answer within 0.5 s",
    ),
    "status-is-none": (
        GOOD.format(name="other").replace("return Status", "return None #"),
        "its status is None instead of a portagpu Status",
    ),
}


@pytest.mark.parametrize(("code", "reason"), BROKEN.values(), ids=BROKEN)
def test_broken_backend_is_reported_and_stops_nothing(
    statuses: Callable[[], dict[str, Any]], tmp_path: Path, code: str, reason: str
) -> None:
    distribute(tmp_path, "other", "other", code)
    distribute(tmp_path, "zealous", "zealous", GOOD.format(name="zealous"))
    found = statuses()
    usable, reported = found["other"]
    assert not usable, "a broken backend must not count as usable"
    assert reason in reported, f"the reason must say what was wrong, not {reported!r}"
    assert "\n" not in reported, "a reason is one line"
    assert found["zealous"] == [True, "zealous is well"], "what comes after it must still load"
    assert "cpu" in found, "the CPU must still be a candidate"

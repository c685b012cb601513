"""Tuning the portable kernels: what is chosen, what is pruned, what is kept and believed."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from typing import Final

import pytest

from tests.conftest import ROOT

CHECKS: Final = ROOT / "tests/support/kernel_tuning.py"
LIMIT_S: Final = 240
VARIABLES: Final = ("TRITON_PRINT_AUTOTUNING", "TRITON_CACHE_AUTOTUNING")
pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None,
        reason="triton is not installed: pip install 'portagpu[compile]'",
    ),
    pytest.mark.torch,
]


CASES: Final = (
    *(
        "fastest",
        "wrong",
        "unwritten",
        "too-large",
        "too-large-later",
        "only-one-right",
        "none-right",
    ),
    *("one-listed", "kept", "kept-and-wrong", "kept-nonsense", "integers", "untouched"),
    *("as-the-function", "refused", "without-triton-cache", "device"),
)


@pytest.fixture(scope="module", params=["0", "1"], ids=["plain", "with-triton-variables"])
def said(request: pytest.FixtureRequest) -> tuple[bool, str]:
    """Whether Triton's variables for its autotuner are set, and what kernel_tuning.py printed."""
    pytest.importorskip("torch")
    ended = subprocess.run(
        [sys.executable, str(CHECKS)],
        env={**os.environ, "TRITON_INTERPRET": "1", **dict.fromkeys(VARIABLES, request.param)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return request.param == "1", ended.stdout


@pytest.mark.parametrize("case", CASES)
def test_tuning_is_by_what_was_checked(said: tuple[bool, str], case: str) -> None:
    _, printed = said
    found = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    problems = {each["case"]: each["problem"] for each in found}
    assert problems.keys() == {*CASES}
    assert not problems[case], problems[case]


def test_triton_says_what_it_tries_when_it_is_asked_to(said: tuple[bool, str]) -> None:
    asked, printed = said
    assert ("Autotuning kernel softmax_kernel with config" in printed) == asked

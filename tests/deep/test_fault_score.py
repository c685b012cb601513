"""How many faults of a new seed random programs find in the time of the suite."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import pytest

from tests.conftest import ROOT
from tests.support.faults import AREAS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Child

pytest.importorskip("torch")


@pytest.mark.torch
@pytest.mark.parametrize("area", AREAS)
def test_half_of_the_drawn_faults_are_found(
    child: Callable[..., Child], capsys: pytest.CaptureFixture[str], area: str
) -> None:
    seed = secrets.randbelow(2**32)
    words = ["--area", area, "--seed", str(seed), "--faults", "20", "--quiet"]
    with capsys.disabled():
        print(f"\npython -m tests.support.fault_score {' '.join(words)}")
    # a fault that is not found is searched in all worlds, for a minute each
    ended = child("-m", "tests.support.fault_score", *words, path=[ROOT], limit_s=7200)
    print(ended.ok())

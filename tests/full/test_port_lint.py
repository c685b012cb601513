"""``portagpu port lint``: rules, kinds of files, formats."""

from __future__ import annotations

import pytest

pytest.importorskip("libcst")

from tests.benchmarks.port_figures import recall


def test_most_uses_of_public_code_are_found_and_rewritten() -> None:
    figures = recall()
    assert figures.found == 1, "a use of torch.cuda is found by its name"
    assert figures.safe >= 0.9
    assert figures.unsafe >= figures.safe

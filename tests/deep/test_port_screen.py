"""What is left out before libcst reads a file, in many more of torch's modules."""

from __future__ import annotations

from tests.full.test_port_screen import same_uses


def test_public_code_has_the_same_uses() -> None:
    assert same_uses(step=1) > 20

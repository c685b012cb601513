"""Which torch is on this interpreter's path, without importing it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from portagpu.facts.torchbuild import torch_build

if TYPE_CHECKING:
    import pytest


def test_what_the_import_system_cannot_find_is_not_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A finder of another package may raise, and a module without a spec is a ValueError."""
    monkeypatch.setitem(sys.modules, "torch", None)
    for error in (ImportError("a finder is broken"), ValueError("torch.__spec__ is None")):

        def broken(_: str, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr("importlib.util.find_spec", broken)
        assert torch_build() is None

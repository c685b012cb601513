"""Torch's own tests as a library: what ``torch.testing._internal`` has."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any


@cache
def torch_internals(name: str) -> Any:
    """The module ``torch.testing._internal.NAME``. Raises ImportError where a package is missing.

    Importing it forbids assignments to ``torch.backends`` (common_utils does, torch 2.13), which
    other code of this process makes.
    """
    import torch

    forbid = torch.backends.disable_global_flags
    torch.backends.disable_global_flags = lambda: None
    try:
        return import_module(f"torch.testing._internal.{name}")
    finally:
        torch.backends.disable_global_flags = forbid

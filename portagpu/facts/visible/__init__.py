"""Visible-device masks: how a runtime and torch read them, and masks for a child process.

No function here reads the process's environment, writes one, or opens a device.
"""

from __future__ import annotations

from portagpu.facts.vendors import MaskRules
from portagpu.facts.visible.mask import (
    RULES,
    RUNTIMES,
    DeviceId,
    Index,
    Mask,
    Problem,
    ProblemId,
    TorchView,
    Uuid,
    VisibilityError,
    parse,
    quoted,
    relevant_runtimes,
)
from portagpu.facts.visible.resolution import HIDE_ALL, Visible, diagnose, environment_for, resolve

__all__ = [
    "HIDE_ALL",
    "RULES",
    "RUNTIMES",
    "DeviceId",
    "Index",
    "Mask",
    "MaskRules",
    "Problem",
    "ProblemId",
    "TorchView",
    "Uuid",
    "VisibilityError",
    "Visible",
    "diagnose",
    "environment_for",
    "parse",
    "quoted",
    "relevant_runtimes",
    "resolve",
]

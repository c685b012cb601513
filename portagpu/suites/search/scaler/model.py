"""Gradient scaling: scale, growth, skipped steps and errors beside a model in plain Python.

The model is the documentation of ``torch.amp.GradScaler`` and torch/amp/grad_scaler.py of pytorch
v2.13.0: between two calls of ``update`` an optimizer is unscaled once at most and stepped once at
most, in this order; a number that is not finite in any of its gradients skips its step, and any of
them lets the scale back off; after ``growth_interval`` updates without one the scale grows. All
numbers are sums of powers of two, so that every one is exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

from portagpu.suites.search.numbers.formats import rounded

RATES: Final = (1.0, 0.5)
"""The learning rates of the groups."""


@dataclass(slots=True)
class Group:
    """The parameters of one optimizer: what they are, their gradients, and what was done."""

    values: list[list[float]]
    dtypes: list[str]
    gradients: list[list[float] | None]
    stage: str = "ready"
    """"ready", "unscaled" or "stepped" since the last update."""
    infinite: bool = False
    checked: bool = False
    """Whether there were gradients when it was unscaled."""
    steps: int = 0


@dataclass(slots=True)
class Model:
    """The scaler and its optimizers. A method is the call of its name, and says what it raises."""

    enabled: bool = True
    scale: float = 8.0
    growth: float = 2.0
    backoff: float = 0.5
    interval: int = 2
    tracker: int = 0
    used: bool = False
    """Whether anything was scaled: before that the scaler has no tensors."""
    groups: dict[str, Group] = field(default_factory=dict)

    def add(self, name: str, index: int, gradient: list[float]) -> None:
        """Add a scaled gradient of one parameter."""
        group = self.groups[name]
        dtype = group.dtypes[index]
        factor = self.scale if self.enabled else 1.0
        new = [rounded(each * factor, dtype) for each in gradient]
        old = group.gradients[index]
        if old is not None:
            new = [rounded(a + b, dtype) for a, b in zip(old, new, strict=True)]
        group.gradients[index] = new

    def unscale(self, name: str) -> bool:
        """Whether it is allowed."""
        group = self.groups[name]
        if not self.enabled:
            return True
        if not self.used or group.stage != "ready":
            return False
        given = [each for each in group.gradients if each is not None]
        group.infinite = any(not math.isfinite(v) for each in given for v in each)
        group.checked = bool(given)
        for index, each in enumerate(group.gradients):
            if each is not None:
                group.gradients[index] = [
                    rounded(v / self.scale, group.dtypes[index]) for v in each
                ]
        group.stage = "unscaled"
        return True

    def step(self, name: str) -> bool:
        """Whether it is allowed."""
        group = self.groups[name]
        if self.enabled:
            if not self.used or group.stage == "stepped":
                return False
            if group.stage == "ready":
                self.unscale(name)
            if not group.checked:
                return False
            group.stage = "stepped"
            if group.infinite:
                return True
        group.steps += 1
        for index, each in enumerate(group.gradients):
            if each is not None:
                rate, dtype = RATES[min(index, 1)], group.dtypes[index]
                pairs = zip(group.values[index], each, strict=True)
                group.values[index] = [rounded(v - rate * g, dtype) for v, g in pairs]
        return True

    def update(self, new: float | None) -> bool:
        """Whether it is allowed."""
        if not self.enabled:
            return True
        checked = [each for each in self.groups.values() if each.checked]
        if not self.used or (new is None and not checked):
            return False
        if new is not None:
            self.scale = new
        elif any(each.infinite for each in checked):
            self.scale, self.tracker = self.scale * self.backoff, 0
        else:
            self.tracker += 1
            if self.tracker == self.interval:
                self.scale, self.tracker = self.scale * self.growth, 0
        for each in self.groups.values():
            each.stage, each.infinite, each.checked = "ready", False, False
        return True

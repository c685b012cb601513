"""Random programs of gradient scaling: losses, steps and updates on the device and in a model.

The model is the documentation of ``torch.amp.GradScaler`` and torch/amp/grad_scaler.py of pytorch
v2.13.0: between two calls of ``update`` an optimizer is unscaled once at most and stepped once at
most, in this order; a number that is not finite in any of its gradients skips its step, and any of
them lets the scale back off; after ``growth_interval`` updates without one the scale grows. All
numbers are sums of powers of two, so that every one is exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from portagpu.suites.search.area import Area
from portagpu.suites.search.fused import FUSED, fused_step
from portagpu.suites.search.numbers.formats import claimed, rounded
from portagpu.suites.search.numbers.tensors import listed, wrong_elements

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from hypothesis.strategies import SearchStrategy

    from portagpu.devices.contract import Backend
    from portagpu.runs.world import Rank
    from portagpu.suites.search.area import Program, Runners


RATES: Final = (1.0, 0.5)
"""The learning rates of the groups."""
OPTIMIZERS: Final = ("a", "b")
BAD: Final = ("none", "none", "inf", "nan", "-inf")
ERRORS: Final = (RuntimeError, AssertionError, ValueError)
SIZES: Final = {
    "a": (((3,), "float32"), ((2, 2), "float32"), ((5,), "half")),
    "b": (((4,), "float32"),),
}
"""The parameters of each optimizer; the first is a group, and the others are one."""


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


class _Scaler(Area):
    name = "scaler"

    def programs(self, gpu: Backend) -> SearchStrategy[Program]:
        from portagpu.suites.search.strategies import call, programs

        have = gpu.supports("autocast")
        which = call("step", optimizer=OPTIMIZERS)
        train = call(
            "train",
            optimizer=("both", "a", "b"),
            bad=BAD,
            where=(0, 1, 2),
            seed=(0, 1, 2, 3),
            unscale=(False, True),
            cycles=(1, 2, 3),
        )
        loss = call(
            "loss",
            optimizer=("a", "b", "both"),
            bad=BAD,
            where=(0, 1, 2),
            seed=(0, 1, 2, 3),
            skip=(False, False, False, True),
        )
        new = call(
            "new",
            enabled=(True, True, False) if have else (False,),
            scale=(8.0, 1.0, 65536.0, 0.25),
            growth=(2.0, 4.0),
            backoff=(0.5, 0.25),
            interval=(2, 1, 3),
            foreach=(False, True),
            via=("gpu", "function"),
        )
        return programs(
            new,
            new,
            loss,
            loss,
            loss,
            which,
            which,
            which,
            call("unscale", optimizer=OPTIMIZERS),
            call("clip", optimizer=OPTIMIZERS),
            train,
            train,
            call("zero", optimizer=OPTIMIZERS),
            call("update", new=(None, None, None, None, 4.0, 1024.0), tensor=(False, True)),
            call("update", new=(None,), tensor=(False,)),
            call("save"),
            call("load", fresh=(True, False)),
            call("half"),
            call("fused", **FUSED),
            most=24,
        )

    def calls(self) -> Runners:
        return CALLS

    def difference(self, rank: Rank, program: Program) -> str:
        run = _Run(rank.gpu)
        if found := run.new(enabled=rank.gpu.supports("autocast")):
            return found
        for name, given in program:
            found = CALLS[name](run, **given) or run.check(f"after {name}")
            if found:
                return found
        return ""


@dataclass(slots=True, eq=False)
class _Descent:
    """Gradient descent, as a scaler needs it of an optimizer; a step returns how many there were.

    torch's own optimizers import its compiler, which takes seconds.
    """

    param_groups: list[dict[str, Any]]
    foreach: bool = False
    steps: int = 0

    def step(self) -> int:
        import torch

        for group in self.param_groups:
            moved = [each for each in group["params"] if each.grad is not None]
            with torch.no_grad():
                if self.foreach and moved:
                    gradients = [each.grad for each in moved]
                    torch._foreach_add_(moved, gradients, alpha=-group["lr"])
                else:
                    for each in moved:
                        each.add_(each.grad, alpha=-group["lr"])
        self.steps += 1
        return self.steps

    def zero_grad(self) -> None:
        for group in self.param_groups:
            for each in group["params"]:
                each.grad = None


@dataclass(slots=True)
class _Run:
    """One program on the device and in the model."""

    gpu: Backend
    model: Model = field(init=False)
    scaler: Any = None
    parameters: dict[str, list[torch.Tensor]] = field(default_factory=dict)
    optimizers: dict[str, _Descent] = field(default_factory=dict)
    saved: tuple[dict[str, Any], Model] | None = None

    def new(
        self,
        enabled: bool,
        scale: float = 8.0,
        growth: float = 2.0,
        backoff: float = 0.5,
        interval: int = 2,
        foreach: bool = False,
        via: str = "gpu",
    ) -> str:
        """A new scaler and new optimizers."""
        import torch

        from portagpu.devices.functions import GradScaler

        make = self.gpu.GradScaler if via == "gpu" else GradScaler
        self.scaler = make(scale, growth, backoff, interval, enabled)
        self.model = Model(enabled, scale, growth, backoff, interval)
        self.saved = None
        half = "bfloat16" if claimed(self.gpu, ("bfloat16",)) else "float32"
        for name, sizes in SIZES.items():
            dtypes = [half if each[1] == "half" else each[1] for each in sizes]
            tensors = [
                torch.ones(size, dtype=getattr(torch, dtype)).to(self.gpu.device).requires_grad_()
                for (size, _), dtype in zip(sizes, dtypes, strict=True)
            ]
            halves = (tensors[:1], tensors[1:])
            groups = [{"params": e, "lr": lr} for e, lr in zip(halves, RATES, strict=True) if e]
            self.optimizers[name] = _Descent(groups, foreach)
            self.parameters[name] = tensors
            values = [[1.0] * each.numel() for each in tensors]
            self.model.groups[name] = Group(values, dtypes, [None] * len(tensors))
        found = bool(self.scaler.is_enabled())
        return "" if found == enabled else f"a scaler with enabled={enabled} says {found}"

    def loss(self, optimizer: str, bad: str, where: int, seed: int, skip: bool) -> str:
        """Scale the sum of all parameters times small numbers, and go back."""
        import torch

        names = OPTIMIZERS if optimizer == "both" else (optimizer,)
        total: Any = 0
        for each in names:
            for index, leaf in enumerate(self.parameters[each]):
                if skip and index == 1:
                    continue
                factors = [float((seed + index + i) % 4 - 1) for i in range(leaf.numel())]
                if bad != "none" and index == min(where, len(self.parameters[each]) - 1):
                    factors[-1 if seed % 2 else 0] = float(bad)
                self.model.add(each, index, factors)
                weights = torch.tensor(factors).to(self.gpu.device).view(leaf.shape)
                total = total + (leaf.float() * weights).sum()
        scaled = self.scaler.scale(total)
        self.model.used = True
        scaled.backward()
        return ""

    def train(
        self, optimizer: str, bad: str, where: int, seed: int, unscale: bool, cycles: int
    ) -> str:
        """Whole cycles of training; in the last one a gradient may not be finite."""
        names = OPTIMIZERS if optimizer == "both" else (optimizer,)
        for cycle in range(cycles):
            kind = bad if cycle == cycles - 1 else "none"
            when = f"in cycle {cycle + 1} of training"
            for each in OPTIMIZERS:
                self.zero(each)
            found = self.loss(optimizer, kind, where, seed, skip=False) or self.check(when)
            for each in names:
                if unscale:
                    found = found or self.unscale(each) or self.check(when)
                found = found or self.step(each)
            found = found or self.check(when) or self.update(None, False) or self.check(when)
            if found:
                return found
        return ""

    def _allowed(self, what: str, right: bool, call: Callable[[], Any]) -> tuple[str, Any]:
        """(a clause, the result) of a call that may have to raise."""
        try:
            found = call()
        except ERRORS as error:
            return (f"{what} raised {error}" if right else ""), None
        return ("" if right else f"{what} was not refused"), found

    def unscale(self, optimizer: str) -> str:
        stage = self.model.groups[optimizer].stage
        right = self.model.unscale(optimizer)
        what = f"unscale_ of {optimizer}, which was {stage}, with {self._state()}"
        return self._allowed(what, right, lambda: self.scaler.unscale_(self.optimizers[optimizer]))[
            0
        ]

    def step(self, optimizer: str) -> str:
        group = self.model.groups[optimizer]
        before, stage = group.steps, group.stage
        right = self.model.step(optimizer)
        what = f"step of {optimizer}, which was {stage}, with {self._state()}"
        wrong, found = self._allowed(
            what, right, lambda: self.scaler.step(self.optimizers[optimizer])
        )
        if wrong:
            return wrong
        taken = self.optimizers[optimizer].steps
        if taken != group.steps:
            if taken > group.steps:
                return f"{what} was taken, with gradients that are not finite"
            return f"{what} was skipped, with finite gradients"
        wanted = group.steps if group.steps > before else None
        if found != wanted:
            return f"{what} returned {found}, not {wanted}"
        return ""

    def clip(self, optimizer: str) -> None:
        """Halve the gradients, as clipping does after they are unscaled."""
        group = self.model.groups[optimizer]
        for index, (leaf, each) in enumerate(
            zip(self.parameters[optimizer], group.gradients, strict=True)
        ):
            if each is not None and leaf.grad is not None:
                leaf.grad.mul_(0.5)
                group.gradients[index] = [v / 2 for v in each]

    def zero(self, optimizer: str) -> None:
        """No gradients any more."""
        self.optimizers[optimizer].zero_grad()
        group = self.model.groups[optimizer]
        group.gradients = [None] * len(group.gradients)

    def update(self, new: float | None, tensor: bool) -> str:
        import torch

        value: Any = new
        if new is not None and tensor:
            value = torch.tensor(new).to(self.gpu.device)
        state = self._state()
        right = self.model.update(new)
        return self._allowed(
            f"update({new}) with {state}", right, lambda: self.scaler.update(value)
        )[0]

    def _state(self) -> str:
        """The scaler, for people."""
        model = self.model
        if not model.enabled:
            return "a disabled scaler"
        return f"the scale {model.scale:g} and {model.tracker} of {model.interval} updates"

    def save(self) -> None:
        """Keep the state."""
        from dataclasses import replace

        self.saved = (self.scaler.state_dict(), replace(self.model))

    def load(self, fresh: bool) -> str:
        """Restore the state that was kept, in a new scaler or in this one."""
        if self.saved is None:
            return ""
        state, kept = self.saved
        if kept.enabled != self.model.enabled:
            return ""
        if fresh:
            self.scaler = self.gpu.GradScaler(2.0, 8.0, 0.125, 7, self.model.enabled)
            self.model.used = False
            for each in self.model.groups.values():
                each.stage, each.infinite, each.checked = "ready", False, False
        self.scaler.load_state_dict(state)
        model = self.model
        model.scale, model.tracker = kept.scale, kept.tracker
        model.growth, model.backoff, model.interval = kept.growth, kept.backoff, kept.interval
        return ""

    def half(self) -> str:
        """Gradients of float16 parameters are refused, as torch documents."""
        import torch

        if not claimed(self.gpu, ("float16",)) or not self.model.enabled or not self.model.used:
            return ""
        leaf = torch.ones(2, dtype=torch.float16).to(self.gpu.device).requires_grad_()
        leaf.grad = torch.ones_like(leaf)
        one: Any = _Descent([{"params": [leaf], "lr": 1.0}])
        fresh = self.gpu.GradScaler(8.0)
        fresh.scale(torch.ones(1).to(self.gpu.device))
        return self._allowed(
            "unscale_ of gradients of float16 parameters", False, lambda: fresh.unscale_(one)
        )[0]

    def check(self, when: str) -> str:
        """Compare scale, state, gradients and parameters with the model's."""
        model = self.model
        scale = float(self.scaler.get_scale())
        right = model.scale if model.enabled else 1.0
        if scale != right:
            return f"the scale is {scale:g} {when}, not {right:g}"
        state = self.scaler.state_dict()
        wanted = {
            "scale": model.scale,
            "growth_factor": model.growth,
            "backoff_factor": model.backoff,
            "growth_interval": model.interval,
            "_growth_tracker": model.tracker,
        }
        if state != (wanted if model.enabled else {}):
            return f"the state is {state} {when}, not {wanted if model.enabled else {}}"
        for name, group in model.groups.items():
            for index, leaf in enumerate(self.parameters[name]):
                what = f"parameter {index} of {name}"
                wrong = wrong_elements(
                    listed(leaf), group.values[index], group.dtypes[index], signs=False
                )
                if wrong:
                    return f"{what} {wrong} {when}"
                found = self._wrong_gradient(leaf, group.gradients[index], group.dtypes[index])
                if found:
                    return f"the gradient of {what} {found} {when} with {self._state()}"
        return ""

    def _wrong_gradient(self, leaf: torch.Tensor, right: list[float] | None, dtype: str) -> str:
        if right is None or leaf.grad is None:
            same = (right is None) == (leaf.grad is None)
            return "" if same else ("is missing" if leaf.grad is None else "is there")
        return wrong_elements(listed(leaf.grad), right, dtype, signs=False)


CALLS: Final[Runners] = {
    "clip": _Run.clip,
    "fused": fused_step,
    "half": _Run.half,
    "load": _Run.load,
    "loss": _Run.loss,
    "new": _Run.new,
    "save": _Run.save,
    "step": _Run.step,
    "train": _Run.train,
    "unscale": _Run.unscale,
    "update": _Run.update,
    "zero": _Run.zero,
}
"""What runs each call of a program."""


AREA: Final = _Scaler()
"""Gradient scaling."""

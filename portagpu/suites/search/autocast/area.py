"""Programs of blocks, operations and leaves: on the device, and in the model of the state."""

from __future__ import annotations

import threading
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from portagpu.suites.search.area import Area
from portagpu.suites.search.numbers.formats import claimed, rounded
from portagpu.suites.search.numbers.tensors import host_tensor, wrong_result

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from hypothesis.strategies import SearchStrategy

    from portagpu.devices.contract import Backend
    from portagpu.runs.world import Rank
    from portagpu.suites.search.area import Program, Runners

from portagpu.suites.search.autocast.state import (
    DEFAULTS,
    EDGE,
    HALVES,
    PAIRS,
    WEIGHTS,
    State,
    apply,
    dtypes_taken,
    gradient_of_ones,
    operations,
    right_elements,
)


class _Autocast(Area):
    name = "autocast"

    def programs(self, gpu: Backend) -> SearchStrategy[Program]:
        from portagpu.suites.search.strategies import call, programs

        if not gpu.supports("autocast"):
            return programs(
                call("refuse"), call("enter", dtype=(None,), enabled=(False,)), call("leave")
            )
        halves = [None, *claimed(gpu, HALVES)]
        dtypes = claimed(gpu, ("float32", *HALVES, "float64"))
        ops = operations(gpu)
        enter = call(
            "enter",
            dtype=halves,
            enabled=(True, False),
            cached=(None, True, False),
            via=("gpu", "function", "torch"),
        )
        operation = call(
            "run",
            # one operation, or all of them as often
            op=(*ops, *["every"] * len(ops)),
            dtype=dtypes,
            other=dtypes,
            thread=(False, False, False, True),
            block=("none", "enter", "decorate", "own"),
            seed=tuple(range(len(PAIRS))),
        )
        weigh = call(
            "weigh",
            number=(0, 1, 2),
            dtype=dtypes,
            back=("no", "now", "later"),
            block=(False, True, True),
            inner=halves,
            op=("mm", "linear"),
            then=("no", *halves[1:]),
        )
        return programs(
            enter,
            enter,
            call("leave", raising=(False, True)),
            operation,
            operation,
            operation,
            weigh,
            weigh,
            call("change", number=(0, 1, 2), how=("add_", "copy_", "data")),
            call("custom", cast=(False, True), dtype=dtypes, inside=(False, True)),
            call("query", thread=(False, True)),
        )

    def calls(self) -> Runners:
        return CALLS

    def difference(self, rank: Rank, program: Program) -> str:
        import torch

        kind = rank.gpu.device.type
        with ExitStack() as blocks:
            if rank.gpu.supports("autocast"):
                blocks.callback(torch.set_autocast_dtype, kind, torch.get_autocast_dtype(kind))
                blocks.callback(torch.set_autocast_enabled, kind, torch.is_autocast_enabled(kind))
                # the cache ends with the outermost block: there may be none around the program's
                torch.clear_autocast_cache()
            run = _Run(rank.gpu, blocks)
            return run.all(program)


@dataclass(slots=True)
class _Run:
    """One program on the device and in the model."""

    gpu: Backend
    blocks: ExitStack
    state: State = field(init=False)
    open: list[ExitStack] = field(default_factory=list)
    leaves: list[torch.Tensor] = field(default_factory=list)
    weights: list[list[float]] = field(default_factory=list)
    former: list[list[list[float]]] = field(default_factory=list)
    """What each leaf was since the outermost block was entered."""
    cast: dict[int, str] = field(default_factory=dict)
    """The dtype in which each leaf was first used since the outermost block was entered."""
    later: list[tuple[torch.Tensor, int, list[list[float]], str]] = field(default_factory=list)

    def all(self, program: Program) -> str:
        """The first difference."""
        import torch

        kind = self.gpu.device.type
        default = "bfloat16"
        if self.gpu.supports("autocast"):
            default = str(torch.get_autocast_dtype(kind)).removeprefix("torch.")
            wanted = DEFAULTS.get(kind, default)
            if default != wanted:
                return f"a block without a dtype computes in {default}, not {wanted}"
        self.state = State(default)
        self.weights = [list(each) for each in WEIGHTS]
        self.former = [[] for _ in WEIGHTS]
        if program and program[0][0] != "refuse":
            # no views: those are not cached
            self.leaves = [
                self._tensor(each, "float32").clone().requires_grad_() for each in self.weights
            ]
        for name, given in program:
            found: str | None = CALLS[name](self, **given)
            if found:
                return found
        return ""

    def _tensor(self, values: list[float], dtype: str) -> torch.Tensor:
        """A matrix of 2 by 2 on the device."""
        return (
            host_tensor([rounded(v, dtype) for v in values], dtype).to(self.gpu.device).view(2, 2)
        )

    def refuse(self) -> str:
        from portagpu.base.errors import Unsupported

        try:
            self.gpu.autocast()
        except Unsupported:
            return ""
        return "autocast, which is not claimed, was not refused"

    def _block(self, dtype: str | None, enabled: bool, cached: bool | None, via: str) -> Any:
        import torch

        from portagpu.devices.functions import autocast

        kind = None if dtype is None else getattr(torch, dtype)
        if via == "torch":
            return torch.autocast(self.gpu.device.type, kind, enabled, cached)
        if via == "function":
            return autocast(kind, enabled=enabled, cache_enabled=cached)
        return self.gpu.autocast(kind, enabled=enabled, cache_enabled=cached)

    def enter(
        self, dtype: str | None, enabled: bool, cached: bool | None = None, via: str = "gpu"
    ) -> str:
        block = self.blocks.enter_context(ExitStack())
        block.enter_context(self._block(dtype, enabled, cached, via))
        if not self.state.outer:
            self._forget()
        self.open.append(block)
        self.state.enter(dtype, enabled, cached)
        return self.query(thread=False)

    def leave(self, raising: bool = False) -> str:
        if not self.state.leave():
            return ""
        block = self.open.pop()
        if raising:
            error = ValueError("an error inside of the block")
            if block.__exit__(ValueError, error, None):
                return "a block of autocast swallowed the error that was raised inside"
        else:
            block.close()
        if not self.state.outer:
            self._forget()
        return self.query(thread=False)

    def _forget(self) -> None:
        """The outermost block is entered or left: no leaf is cached."""
        self.former = [[] for _ in WEIGHTS]
        self.cast.clear()

    def query(self, thread: bool) -> str:
        import torch

        if not self.gpu.supports("autocast"):
            return ""
        kind = self.gpu.device.type
        state = State(DEFAULTS.get(kind, self.state.dtype)) if thread else self.state
        seen: list[tuple[bool, str]] = []

        def ask() -> None:
            dtype = str(torch.get_autocast_dtype(kind)).removeprefix("torch.")
            seen.append((torch.is_autocast_enabled(kind), dtype))

        _in(thread, ask)
        where = "in another thread" if thread else f"with {len(state.outer)} blocks open"
        enabled, dtype = seen[0]
        if enabled != state.enabled:
            return f"autocast is {_on(enabled)} and not {_on(state.enabled)} {where}"
        if enabled and dtype != state.dtype:
            return f"autocast computes in {dtype} and not in {state.dtype} {where}"
        return ""

    def run(self, op: str, dtype: str, other: str, thread: bool, block: str, seed: int) -> str:
        for each in operations(self.gpu) if op == "every" else (op,):
            found = self._run_one(each, dtype, other, thread, block, seed)
            if found:
                return found
        return ""

    def _run_one(self, op: str, dtype: str, other: str, thread: bool, block: str, seed: int) -> str:
        state = State(self.state.dtype) if thread else self.state
        if thread:
            state = State(DEFAULTS.get(self.gpu.device.type, self.state.dtype))
        half: str | None = None
        if block != "none":
            half = "float16" if block == "own" and "float16" in claimed(self.gpu, HALVES) else None
            state = State(state.dtype, state.enabled, state.cached)
            state.enter(half, True, None)
        dtype, other = dtypes_taken(op, dtype, other, state)
        values, weights = map(list, PAIRS[seed])
        x, w = self._tensor(values, dtype), self._tensor(weights, other)
        kept: list[torch.Tensor] = []

        def work() -> None:
            # made in the thread, whose dtype it takes
            around: Any = nullcontext() if block == "none" else self._block(half, True, None, "gpu")
            if block == "decorate":
                kept.append(around(lambda: apply(op, x, w))())
            else:
                with around:
                    kept.append(apply(op, x, w))

        _in(thread, work)
        what = f"{op} of {dtype} and {other}" + (" in another thread" if thread else "")
        what += f" in {_where(state)}"
        if not kept:
            return f"{what} raised"
        dtypes = (
            [dtype, other] if op not in ("prod", "sum", "cumsum", "exp", "neg", "relu") else [dtype]
        )
        inside = state.runs(op, dtypes, self.gpu.device.type)
        given = [[rounded(v, t) for v in each] for each, t in ((values, dtype), (weights, other))]
        cast = [[rounded(v, inside) for v in each] for each in given]
        wanted = right_elements(op, cast[0], cast[1], inside)
        wrong = wrong_result(kept[0], wanted, tuple(kept[0].shape), inside, signs=False)
        if wrong:
            return f"{what} {wrong}"
        for name, tensor, right, kind in (
            ("first", x, given[0], dtype),
            ("second", w, given[1], other),
        ):
            wrong = wrong_result(tensor, right, (2, 2), kind)
            if wrong:
                return f"the {name} operand of {what} changed: it {wrong}"
        return ""

    def weigh(
        self,
        number: int,
        dtype: str,
        back: str,
        block: bool = False,
        inner: str | None = None,
        op: str = "mm",
        then: str = "no",
    ) -> str:
        """:meth:`_product` in a block of its own, of the dtype ``inner``, or as it is.

        After a block of its own the same leaf is in a second one, of the dtype ``then``.
        """
        if not block:
            return self._product(number, dtype, back, op)
        for half in (inner, *([] if then == "no" else [then])):
            found = self.enter(half, True) or self._product(number, dtype, "no", op)
            found = self.leave() or found
            if found:
                return found
        return ""

    def _product(self, number: int, dtype: str, back: str, op: str) -> str:
        """A product with a leaf, which may be cast once for all of the outermost block."""
        import torch

        state = self.state
        if state.enabled and self.cast.setdefault(number, state.dtype) != state.dtype:
            # the cache knows no dtypes: torch 2.13 hands out the leaf in the outer block's
            # (cached_cast, aten/src/ATen/autocast_mode.cpp), and the product is an error
            return ""
        if not state.enabled or dtype == "float64":
            dtype = "float32"
        values = [EDGE, 2.0, -1.0, 4.0]
        x = self._tensor(values, dtype)
        if op == "linear" and back == "no":
            # the leaf itself, and no view of it: what is cast is kept by leaf
            found = torch.nn.functional.linear(x, self.leaves[number])
            turned = [0, 2, 1, 3]
        else:
            found, turned = apply("mm", x, self.leaves[number]), [0, 1, 2, 3]
        inside = state.runs("mm", [dtype, "float32"], self.gpu.device.type)
        mine = [rounded(rounded(v, dtype), inside) for v in values]
        candidates = [[w[k] for k in turned] for w in (self.weights[number], *self.former[number])]
        right = [
            tuple(each)
            for each in zip(
                *(
                    right_elements("mm", mine, [rounded(v, inside) for v in w], inside)
                    for w in candidates
                ),
                strict=True,
            )
        ]
        what = f"the product with leaf {number} in {_where(state)}"
        wrong = wrong_result(found, right, (2, 2), inside, signs=False)
        if wrong:
            stale = "" if len(candidates) > 1 else self._stale(found, mine, number, inside)
            return f"{what} {wrong}{stale}"
        if back == "now":
            return self._back(found, number, mine, inside)
        if back == "later":
            self.later.append((found, number, [mine], inside))
        elif self.later:
            result, index, kept, kind = self.later.pop()
            return self._back(result, index, kept[0], kind)
        return ""

    def _stale(self, found: torch.Tensor, mine: list[float], number: int, inside: str) -> str:
        """Whether the leaf was used as it was before a change."""
        for old in (WEIGHTS[number], [each - 1 for each in self.weights[number]]):
            right = right_elements("mm", mine, [rounded(v, inside) for v in old], inside)
            if not wrong_result(found, right, (2, 2), inside, signs=False):
                return ": it is that of the leaf before it changed, as a cache has it"
        return ""

    def _back(self, result: torch.Tensor, number: int, mine: list[float], inside: str) -> str:
        """The gradient of the leaf: the transposed operand, cast as in the forward pass."""
        import torch

        leaf = self.leaves[number]
        leaf.grad = None
        result.backward(torch.ones_like(result))
        what = f"the gradient of leaf {number}, whose product ran in {inside},"
        if leaf.grad is None:
            return f"{what} is missing"
        # in an open block two gradients are right: torch does not recommend it, and casts again
        kinds = {inside, self.state.dtype} if self.state.enabled else {inside}
        right = [
            tuple(each)
            for each in zip(*(gradient_of_ones(mine, kind) for kind in kinds), strict=True)
        ]
        wrong = wrong_result(leaf.grad, right, (2, 2), "float32", signs=False)
        return f"{what} {wrong}" if wrong else ""

    def change(self, number: int, how: str) -> None:
        """Add 1 to a leaf, as an optimizer does."""
        import torch

        if not self.leaves:
            return
        leaf, old = self.leaves[number], self.weights[number]
        self.later = [each for each in self.later if each[1] != number]
        self.former[number].append(list(old))
        self.weights[number] = [rounded(each + 1, "float32") for each in old]
        new = self._tensor(self.weights[number], "float32")
        with torch.no_grad():
            if how == "add_":
                leaf.add_(1)
            elif how == "copy_":
                leaf.copy_(new)
            else:
                leaf.data = new
        if not self.state.outer:
            self.former[number] = []

    def custom(self, cast: bool, dtype: str, inside: bool) -> str:
        """A function of one's own, whose backward pass runs as its forward pass did."""
        import torch

        kind, seen = self.gpu.device.type, []
        options: dict[str, Any] = {"cast_inputs": torch.float32} if cast else {}

        def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
            seen.append((torch.is_autocast_enabled(kind), str(x.dtype)))
            return x.clone()

        def backward(context: Any, g: torch.Tensor) -> torch.Tensor:
            seen.append((torch.is_autocast_enabled(kind), str(g.dtype)))
            return g

        own: Any = type(
            "Own",
            (torch.autograd.Function,),
            {
                "forward": staticmethod(torch.amp.custom_fwd(forward, device_type=kind, **options)),
                "backward": staticmethod(torch.amp.custom_bwd(backward, device_type=kind)),
            },
        )
        x = self._tensor([1.0, 2.0, 3.0, 4.0], dtype).requires_grad_()
        result = own.apply(x)
        block: Any = self._block(None, not self.state.enabled, None, "torch")
        with block if inside else nullcontext():
            result.backward(torch.ones_like(result))
        changed = cast and self.state.enabled and dtype != "float64"
        enabled = self.state.enabled and not cast
        given = "float32" if changed else dtype
        for name, (on, kept) in zip(("forward", "backward"), seen, strict=True):
            case = f"{name} of a function with custom_fwd({'cast_inputs' if cast else ''})"
            if on != enabled:
                return f"{case} ran with autocast {_on(on)} and not {_on(enabled)}"
            if kept != f"torch.{given}":
                return f"{case} of {dtype} was given {kept.removeprefix('torch.')}, not {given}"
        return ""


CALLS: Final[Runners] = {
    "change": _Run.change,
    "custom": _Run.custom,
    "enter": _Run.enter,
    "leave": _Run.leave,
    "query": _Run.query,
    "refuse": _Run.refuse,
    "run": _Run.run,
    "weigh": _Run.weigh,
}
"""What runs each call of a program."""


def _on(enabled: bool) -> str:
    return "on" if enabled else "off"


def _where(state: State) -> str:
    return f"a block of {state.dtype}" if state.enabled else "no enabled block"


def _in(thread: bool, work: Callable[[], None]) -> None:
    """Run here, or in a thread of its own."""
    if not thread:
        work()
        return
    raised: list[Exception] = []

    def caught() -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - raised again where it is judged
            raised.append(error)

    other = threading.Thread(target=caught)
    other.start()
    other.join()
    if raised:
        raise raised[0]


AREA: Final = _Autocast()
"""Autocast."""

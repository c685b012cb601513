"""Faults of autocast: of its blocks, its operations, its cache and functions of one's own."""

from __future__ import annotations

import contextlib
import threading
from itertools import product
from typing import TYPE_CHECKING, Any

import torch

from portagpu_cpu.backend import CpuBackend
from tests.support.faults import Fault, replaced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

functional: Any = torch.nn.functional
OTHER = {torch.bfloat16: torch.float16, torch.float16: torch.bfloat16}

BLOCKS: dict[str, Callable[[Any], bool]] = {
    "everywhere": lambda block: True,
    "in bfloat16": lambda block: block.fast_dtype == torch.bfloat16,
    "in float16": lambda block: block.fast_dtype == torch.float16,
    "disabled": lambda block: not block._enabled,
    "enabled": lambda block: bool(block._enabled),
    "inside of another": lambda block: torch.is_autocast_enabled("cpu"),
    "without a cache": lambda block: not block._cache_enabled,
    "in another thread": lambda block: threading.current_thread() is not threading.main_thread(),
}


def _not_entered(good: Any, block: Any) -> Any:
    found = good(block)
    torch.set_autocast_enabled("cpu", block.prev)
    return found


def _other_dtype(good: Any, block: Any) -> Any:
    found = good(block)
    torch.set_autocast_dtype("cpu", OTHER[torch.get_autocast_dtype("cpu")])
    return found


def _inverted(good: Any, block: Any) -> Any:
    found = good(block)
    torch.set_autocast_enabled("cpu", not block._enabled)
    return found


def _former_dtype(good: Any, block: Any) -> Any:
    found = good(block)
    torch.set_autocast_dtype("cpu", block.prev_fastdtype)
    return found


ENTERS = {
    "does nothing": _not_entered,
    "takes the other half format": _other_dtype,
    "is the other way round": _inverted,
    "keeps the dtype that was set": _former_dtype,
}


def _stays(good: Any, block: Any, *error: Any) -> Any:
    enabled, dtype = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
    found = good(block, *error)
    torch.set_autocast_enabled("cpu", enabled)
    torch.set_autocast_dtype("cpu", dtype)
    return found


def _all_off(good: Any, block: Any, *error: Any) -> Any:
    found = good(block, *error)
    torch.set_autocast_enabled("cpu", False)
    return found


def _dtype_stays(good: Any, block: Any, *error: Any) -> Any:
    dtype = torch.get_autocast_dtype("cpu")
    found = good(block, *error)
    torch.set_autocast_dtype("cpu", dtype)
    return found


def _swallows(good: Any, block: Any, *error: Any) -> Any:
    good(block, *error)
    return True


def _keeps_cache(good: Any, block: Any, *error: Any) -> Any:
    with replaced(torch, "clear_autocast_cache", lambda old: None):
        return good(block, *error)


EXITS = {
    "leaves its state": _stays,
    "switches all off": _all_off,
    "leaves its dtype": _dtype_stays,
    "swallows errors": _swallows,
    "keeps the cache": _keeps_cache,
}


def _with_region(change: Any, region: Any) -> Callable[..., Any]:
    def faulty(good: Any, block: Any, *error: Any) -> Any:
        seen = getattr(block, "_hit", None)
        hit = region(block) if seen is None or not error else seen
        return change(good, block, *error) if hit else good(block, *error)

    return faulty


def _exit_region(change: Any, region: Any, errors: bool) -> Callable[..., Any]:
    def faulty(good: Any, block: Any, *error: Any) -> Any:
        hit = region(block) and (not errors or bool(error and error[0]))
        return change(good, block, *error) if hit else good(block, *error)

    return faulty


def _of_blocks() -> list[Fault]:
    found = [
        Fault(
            "autocast",
            f"entering a block: {where}: {wrong}",
            _replacing((torch.autocast, "__enter__", _with_region(change, region))),
        )
        for (where, region), (wrong, change) in product(BLOCKS.items(), ENTERS.items())
        if not _nothing_entered(where, wrong)
    ]
    for (where, region), (wrong, change), errors in product(
        BLOCKS.items(), EXITS.items(), (False, True)
    ):
        if _nothing_left(where, wrong, errors):
            continue
        name = f"leaving a block{' by an error' if errors else ''}: {where}: {wrong}"
        faulty = _exit_region(change, region, errors)
        found.append(Fault("autocast", name, _replacing((torch.autocast, "__exit__", faulty))))
    return found


def _nothing_entered(where: str, wrong: str) -> bool:
    """Whether nothing could show it: a disabled block has no dtype that counts."""
    if where == "disabled":
        return "format" in wrong or "dtype" in wrong
    # a block in the default dtype keeps what is set
    return where == "in another thread" and "dtype" in wrong


def _nothing_left(where: str, wrong: str, errors: bool) -> bool:
    """Whether nothing could show it: a thread ends with its block, and its state with it."""
    if where == "in another thread":
        return True
    if wrong == "swallows errors":
        return not errors or (where == "inside of another" and False)
    # a block that is left leaves the cache to the outermost one, and a disabled one has none
    return wrong == "keeps the cache" and where in (
        "inside of another",
        "disabled",
        "without a cache",
    )


def _replacing(*places: tuple[Any, str, Any]) -> Callable[[], Any]:
    @contextlib.contextmanager
    def block() -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for place in places:
                stack.enter_context(replaced(*place))
            yield

    return block


OPERATIONS = {
    "mm": (torch, "mm"),
    "matmul": (torch, "matmul"),
    "bmm": (torch, "bmm"),
    "addmm": (torch, "addmm"),
    "baddbmm": (torch, "baddbmm"),
    "linear": (functional, "linear"),
    "prod": (torch, "prod"),
    "mse_loss": (functional, "mse_loss"),
    "add": (torch, "add"),
    "mul": (torch, "mul"),
    "cat": (torch, "cat"),
}
LOWER = ("mm", "matmul", "bmm", "addmm", "baddbmm", "linear")


def _flat(given: Any) -> list[torch.Tensor]:
    every = [
        each for part in given for each in (part if isinstance(part, (list, tuple)) else [part])
    ]
    return [each for each in every if isinstance(each, torch.Tensor)]


def _on() -> bool:
    return torch.is_autocast_enabled("cpu")


STATES: dict[str, Callable[[Any], bool]] = {
    "in a block": lambda given: _on(),
    "in a block of float16": lambda given: (
        _on() and torch.get_autocast_dtype("cpu") == torch.float16
    ),
    "in a block of bfloat16": lambda given: (
        _on() and torch.get_autocast_dtype("cpu") == torch.bfloat16
    ),
    "in a block, of float32": lambda given: _on() and _flat(given)[0].dtype == torch.float32,
    "in a block, of bfloat16": lambda given: _on() and _flat(given)[0].dtype == torch.bfloat16,
    "in a block, of float64": lambda given: _on() and _flat(given)[0].dtype == torch.float64,
    "outside of blocks": lambda given: not _on() and _flat(given)[0].dtype == torch.float32,
    "in another thread": lambda given: threading.current_thread() is not threading.main_thread(),
}


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_cast(each, dtype) for each in value)
    return value.to(dtype) if isinstance(value, torch.Tensor) else value


def _off() -> Any:
    return torch.autocast("cpu", enabled=False)


def _as_float32(good: Any, given: Any, named: Any) -> Any:
    """It runs in float32."""
    with _off():
        return good(*_cast(given, torch.float32), **named)


def _not_cast_first(good: Any, given: Any, named: Any) -> Any:
    """It runs in float32 and rounds the result: the operands were not cast."""
    right = good(*given, **named)
    with _off():
        return good(*_cast(given, torch.float32), **named).to(right.dtype)


def _result_wider(good: Any, given: Any, named: Any) -> Any:
    return good(*given, **named).float()


def _result_narrower(good: Any, given: Any, named: Any) -> Any:
    found = good(*given, **named)
    return found.to(torch.float16 if found.dtype != torch.float16 else torch.bfloat16)


def _gradient_lost(good: Any, given: Any, named: Any) -> Any:
    found = good(*given, **named)
    return found.detach().requires_grad_()


def _value_twice(good: Any, given: Any, named: Any) -> Any:
    return good(*given, **named) * 2


RUNS = {
    "runs in float32": _as_float32,
    "does not cast its operands": _not_cast_first,
    "gives float32": _result_wider,
    "gives another half format": _result_narrower,
    "gives twice the number": _value_twice,
}


def _of_operations() -> list[Fault]:
    found = []
    for (op, (place, name)), (where, region), (wrong, change) in product(
        OPERATIONS.items(), STATES.items(), RUNS.items()
    ):
        if _nothing_run(op, where, wrong):
            continue

        def faulty(
            good: Any, *given: Any, region: Any = region, change: Any = change, **named: Any
        ) -> Any:
            return change(good, given, named) if region(given) else good(*given, **named)

        found.append(
            Fault("autocast", f"{op}: {where}: {wrong}", _replacing((place, name, faulty)))
        )
    return found


def _nothing_run(op: str, where: str, wrong: str) -> bool:
    """Whether nothing could show it: what runs in float32 anyway, or in its operands' dtype."""
    wide = wrong in ("runs in float32", "gives float32", "does not cast its operands")
    if not wide:
        return False
    if op in ("prod", "mse_loss"):
        return where != "in a block, of float64" or wrong == "does not cast its operands"
    if wrong == "does not cast its operands":
        plain = where in ("in a block, of bfloat16", "in a block, of float64", "outside of blocks")
        return op not in LOWER or plain or where == "in another thread"
    return where == "outside of blocks" or (op not in LOWER and where == "in a block, of float32")


def _of_threads() -> list[Fault]:
    """Threads that begin with the state of the one that started them."""
    found = []
    for name, dtype in (
        ("its own", None),
        ("float16", torch.float16),
        ("bfloat16", torch.bfloat16),
    ):

        def faulty(good: Any, thread: Any, dtype: Any = dtype) -> Any:
            enabled, kind = _on(), dtype or torch.get_autocast_dtype("cpu")
            if dtype is not None:
                enabled = True
            work = thread.run

            def run() -> None:
                torch.set_autocast_enabled("cpu", enabled)
                torch.set_autocast_dtype("cpu", kind)
                work()

            thread.run = run
            return good(thread)

        place = (threading.Thread, "start", faulty)
        found.append(Fault("autocast", f"threads: in {name}: begin in a block", _replacing(place)))
    return found


def _options(change: Callable[[dict[str, Any]], None]) -> Callable[..., Any]:
    def faulty(good: Any, gpu: Any, dtype: Any = None, **named: Any) -> Any:
        given = {"dtype": dtype, **named}
        change(given)
        return good(gpu, **given)

    return faulty


HANDLES: dict[str, Callable[[dict[str, Any]], None]] = {
    "ignores the dtype": lambda given: given.update(dtype=None),
    "ignores enabled": lambda given: given.update(enabled=True),
    "is never enabled": lambda given: given.update(enabled=False),
    "always computes in bfloat16": lambda given: given.update(dtype=torch.bfloat16),
    "always computes in float16": lambda given: given.update(dtype=torch.float16),
    "takes the other half format": lambda given: given.update(
        dtype=OTHER.get(given["dtype"], given["dtype"])
    ),
}


def _custom_options(good: Any, *given: Any, **named: Any) -> Any:
    named.pop("cast_inputs", None)
    return good(*given, **named)


def _plain(good: Any, function: Any, **named: Any) -> Any:
    return function


def _of_functions() -> list[Fault]:
    table = {
        ("custom_fwd", "ignores cast_inputs"): _custom_options,
        ("custom_fwd", "does nothing"): _forward_plain,
        ("custom_bwd", "does nothing"): _plain,
    }
    return [
        Fault("autocast", f"{name}: everywhere: {wrong}", _replacing((torch.amp, name, change)))
        for (name, wrong), change in table.items()
    ]


def _forward_plain(good: Any, function: Any, **named: Any) -> Any:
    """Neither casts nor keeps the state for the backward pass."""

    def forward(context: Any, *given: Any) -> Any:
        context._dtype = torch.get_autocast_dtype("cpu")
        context._fwd_used_autocast = not torch.is_autocast_enabled("cpu")
        return function(context, *given)

    return forward


@contextlib.contextmanager
def _first_dtype() -> Iterator[None]:
    """Weights of linear layers stay in the dtype in which a block first cast them."""
    kept: dict[tuple[int, int], tuple[Any, Any]] = {}

    def linear(good: Any, x: Any, weight: Any, bias: Any = None) -> Any:
        if not torch.is_autocast_enabled("cpu"):
            return good(x, weight, bias)
        own = (weight, torch.get_autocast_dtype("cpu"))
        return good(x, weight.to(kept.setdefault((id(weight), weight._version), own)[1]), bias)

    with replaced(functional, "linear", linear):
        yield


def _of_cache() -> list[Fault]:
    return [
        Fault(
            "autocast",
            "the cache: everywhere: is never cleared",
            _replacing((torch, "clear_autocast_cache", lambda good: None)),
        ),
        # pytorch#181564
        Fault("autocast", "the cache: of another dtype: is handed on", _first_dtype),
    ]


def faults() -> list[Fault]:
    """All of them."""
    handles = [
        Fault(
            "autocast",
            f"gpu.autocast: everywhere: {wrong}",
            _replacing((CpuBackend, "autocast", _options(change))),
        )
        for wrong, change in HANDLES.items()
    ]
    return [
        *_of_blocks(),
        *_of_operations(),
        *_of_threads(),
        *handles,
        *_of_functions(),
        *_of_cache(),
    ]

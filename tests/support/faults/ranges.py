"""Faults of annotations and ranges: which call, in which block, and which way wrong."""

from __future__ import annotations

import contextlib
import threading
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

from portagpu.devices import training
from portagpu.devices.annotations import annotate
from portagpu.facts.captures import marked_blocks
from portagpu_cpu.backend import CpuBackend
from tests.support.faults import Fault, replaced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MAIN = threading.main_thread()
Annotation = marked_blocks.Annotation

# what the profile gets of a block

NAMES: dict[str, Callable[[str], str]] = {
    "in upper case": str.upper,
    "cut to 16 characters": lambda text: text[:16],
    "cut to 64 characters": lambda text: text[:64],
    "cut to 255 characters": lambda text: text[:255],
    "without its last character": lambda text: text[:-1],
    "without its first character": lambda text: text[1:],
    "without blanks at its ends": str.strip,
    "with blanks as underscores": lambda text: text.replace(" ", "_"),
    "without what is not ASCII": lambda text: text.encode("ascii", "ignore").decode(),
    "with question marks for what is not ASCII": lambda text: text.encode(
        "ascii", "replace"
    ).decode(),
    "up to its first colon": lambda text: text.split(":")[0],
    "up to its first line": lambda text: text.split("\n")[0],
    "up to its first slash": lambda text: text.split("/")[0],
    "as annotation if empty": lambda text: text or "annotation",
    "unquoted": lambda text: text.replace("%20", " "),
    "without apostrophes": lambda text: text.replace("'", ""),
    "without quotes": lambda text: text.replace('"', ""),
    "with slashes for backslashes": lambda text: text.replace("\\", "/"),
}
LABELS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "are lost": lambda labels: {},
    "lose the last": lambda labels: dict(list(labels.items())[:-1]),
    "are in another order": lambda labels: dict(reversed(labels.items())),
    "are texts": lambda labels: {key: str(value) for key, value in labels.items()},
    "have 1 for True": lambda labels: {
        key: int(value) if isinstance(value, bool) else value for key, value in labels.items()
    },
    "have floats for integers": lambda labels: {
        key: float(value) if type(value) is int else value for key, value in labels.items()
    },
    "have 32 bits": lambda labels: {
        key: (value + 2**31) % 2**32 - 2**31 if type(value) is int else value
        for key, value in labels.items()
    },
    "have 64 bits": lambda labels: {
        key: (value + 2**63) % 2**64 - 2**63 if type(value) is int else value
        for key, value in labels.items()
    },
    "have floats of six digits": lambda labels: {
        key: float(f"{value:.6f}") if type(value) is float else value
        for key, value in labels.items()
    },
    "lose empty texts": lambda labels: {key: value for key, value in labels.items() if value != ""},
    "lose False": lambda labels: {
        key: value for key, value in labels.items() if value is not False
    },
    "have keys of ASCII": lambda labels: {
        key.encode("ascii", "replace").decode(): value for key, value in labels.items()
    },
}
DOMAINS: dict[str, Callable[[str], str]] = {
    "is lost": lambda domain: "portagpu",
    "is that of all": lambda domain: "mine",
    "is cut at a dot": lambda domain: domain.split(".")[0],
    "is in upper case": lambda domain: domain if domain == "portagpu" else domain.upper(),
    "loses its dashes": lambda domain: domain.replace("-", ""),
}


def _anywhere(one: Any) -> bool:
    del one
    return True


WHERE: dict[str, Callable[[Any], bool]] = {
    "everywhere": _anywhere,
    "of blocks with labels": lambda one: bool(one._labels),
    "of blocks without labels": lambda one: not one._labels,
    "in a domain of its own": lambda one: one._domain != "portagpu",
    "with a color": lambda one: one._color is not None,
    "in another thread": lambda one: threading.current_thread() is not MAIN,
    "in the main thread": lambda one: threading.current_thread() is MAIN,
}


@contextlib.contextmanager
def _changed(part: str, region: Any, change: Any) -> Iterator[None]:
    """What a block says of itself is changed when it is entered."""

    def enter(good: Any, one: Any) -> Any:
        kept = getattr(one, part)
        if not region(one):
            return good(one)
        setattr(one, part, change(kept))
        try:
            return good(one)
        finally:
            setattr(one, part, kept)

    with replaced(Annotation, "__enter__", enter):
        yield


# blocks


def _no_enter(good: Any, one: Any) -> None:
    del good, one


def _enters_twice(good: Any, one: Any) -> None:
    good(one)
    good(one)


def _ends_at_once(good: Any, one: Any) -> None:
    good(one)
    Annotation.__exit__(one, None, None, None)


def _once_only(good: Any, one: Any) -> None:
    if not one._open:
        good(one)


ENTERS = {
    "is not marked": _no_enter,
    "is marked twice": _enters_twice,
    "ends when it begins": _ends_at_once,
    "is marked once if entered twice": _once_only,
}


def _swallows(good: Any, one: Any, *how: Any) -> bool:
    good(one, *how)
    return True


_KEPT: list[Any] = []
"""What was left open: torch ends a record that nobody holds any more."""


def _stays_open(good: Any, one: Any, *how: Any) -> None:
    del good, how
    _KEPT.extend(one._open)


def _stays_open_after_error(good: Any, one: Any, *how: Any) -> None:
    if how[0] is None:
        good(one, *how)
    else:
        _stays_open(good, one)


EXITS = {
    "swallows errors": _swallows,
    "never ends": _stays_open,
    "does not end by an error": _stays_open_after_error,
}


@contextlib.contextmanager
def _block(place: Any, method: str, region: Any, change: Any) -> Iterator[None]:
    def changed(good: Any, one: Any, *given: Any) -> Any:
        return change(good, one, *given) if region(one) else good(one, *given)

    with replaced(place, method, changed):
        yield


# ranges

DEPTHS: dict[str, Callable[[int], Any]] = {
    "counts from 1": lambda depth: depth + 1,
    "is one less": lambda depth: depth - 1,
    "is 0": lambda depth: 0,
    "is None": lambda depth: None,
    "is at most 1": lambda depth: min(depth, 1),
    "is at most 2": lambda depth: min(depth, 2),
    "is negative": lambda depth: -1 - depth,
}
RANGES: dict[str, Callable[[CpuBackend], bool]] = {
    "everywhere": _anywhere,
    "in another thread": lambda gpu: threading.current_thread() is not MAIN,
    "in the main thread": lambda gpu: threading.current_thread() is MAIN,
    "inside another range": lambda gpu: len(training._ranges.open) > 1,
    "while a profiler listens": lambda gpu: gpu.listens(),
    "while none listens": lambda gpu: not gpu.listens(),
}


@contextlib.contextmanager
def _depth(method: str, region: Any, change: Any) -> Iterator[None]:
    def changed(good: Any, gpu: Any, *given: Any) -> Any:
        there = region(gpu)
        found = good(gpu, *given)
        return change(found) if there or region(gpu) else found

    original = vars(CpuBackend).get(method)
    with replaced(CpuBackend, method, changed):
        yield
    if original is None:
        delattr(CpuBackend, method)


@contextlib.contextmanager
def _of_backend(method: str, changed: Any) -> Iterator[None]:
    original = vars(CpuBackend).get(method)
    with replaced(CpuBackend, method, changed):
        yield
    if original is None:
        delattr(CpuBackend, method)


class _Shared:
    """The open ranges of all threads as one."""

    def __init__(self) -> None:
        self.open: list[Any] = []


def _shared_push(shared: _Shared, good: Any, gpu: Any, *given: Any) -> Any:
    kept, training._ranges = training._ranges, shared
    try:
        return good(gpu, *given)
    finally:
        training._ranges = kept


@contextlib.contextmanager
def _threads_share() -> Iterator[None]:
    shared = _Shared()
    with (
        _of_backend("range_push", partial(_shared_push, shared)),
        _of_backend("range_pop", partial(_shared_push, shared)),
    ):
        yield


def _pop_of_none(answer: Any) -> Any:
    def pop(good: Any, gpu: Any) -> Any:
        if training._ranges.open:
            return good(gpu)
        if isinstance(answer, type):
            raise answer("no range is open")
        return answer

    return pop


def _not_pushed(good: Any, gpu: Any, message: str) -> Any:
    """The range has its depth, and no mark."""
    training._ranges.open.append(contextlib.nullcontext())
    return len(training._ranges.open) - 1


_HELD: list[Any] = []
"""Blocks that were not closed: torch ends the record of one that nobody holds."""


def _not_popped(good: Any, gpu: Any) -> Any:
    """The depth is right, and the block stays open in the profile."""
    if not training._ranges.open:
        return good(gpu)
    _HELD.append(training._ranges.open.pop())
    return len(training._ranges.open)


def _pops_first(good: Any, gpu: Any) -> Any:
    """The outermost range is closed."""
    training._ranges.open.reverse()
    try:
        return good(gpu)
    finally:
        training._ranges.open.reverse()


def _never(good: Any, gpu: Any) -> bool:
    del good, gpu
    return False


OTHERS: dict[str, Callable[[], Any]] = {
    "range_push: in two threads: shares its depth": _threads_share,
    "range_push: everywhere: is not marked": partial(_of_backend, "range_push", _not_pushed),
    "range_pop: everywhere: does not end the mark": partial(_of_backend, "range_pop", _not_popped),
    "range_pop: of two: closes the outer one": partial(_of_backend, "range_pop", _pops_first),
    "range_pop: of none: is -1": partial(_of_backend, "range_pop", _pop_of_none(-1)),
    "range_pop: of none: is None": partial(_of_backend, "range_pop", _pop_of_none(None)),
    "range_pop: of none: is a RuntimeError": partial(
        _of_backend, "range_pop", _pop_of_none(RuntimeError)
    ),
    "listens: everywhere: is False": partial(_of_backend, "listens", _never),
}


def _calls_without(good: Any, one: Any, function: Any) -> Any:
    del good, one
    return function


def _loses_result(good: Any, one: Any, function: Any) -> Any:
    wrapped = good(one, function)

    def annotated(*given: Any, **named: Any) -> None:
        wrapped(*given, **named)

    return annotated


def _swallows_errors(good: Any, one: Any, function: Any) -> Any:
    wrapped = good(one, function)

    def annotated(*given: Any, **named: Any) -> Any:
        with contextlib.suppress(KeyError):
            return wrapped(*given, **named)

    annotated.__name__ = function.__name__
    return annotated


def _twice(good: Any, one: Any, function: Any) -> Any:
    return good(one, good(one, function))


DECORATED = {
    "is not marked": _calls_without,
    "loses its result": _loses_result,
    "is marked twice": _twice,
}


def faults() -> list[Fault]:
    """All of them."""
    tables = (
        ("name", "_name", NAMES),
        ("labels", "_labels", LABELS),
        ("domain", "_domain", DOMAINS),
    )
    found = [
        Fault("ranges", f"{shown}: {where}: {wrong}", partial(_changed, part, region, change))
        for shown, part, changes in tables
        for (where, region), (wrong, change) in product(WHERE.items(), changes.items())
        if not _equivalent(shown, where, wrong)
    ]
    for method, changes in (("__enter__", ENTERS), ("__exit__", EXITS)):
        found += [
            Fault("ranges", f"block: {where}: {wrong}", partial(_block, Annotation, method, at, do))
            for (where, at), (wrong, do) in product(WHERE.items(), changes.items())
            # only an object of pg.annotate is entered twice, and it makes a block for each time
            if wrong != "is marked once if entered twice"
        ]
    found += [
        Fault("ranges", f"{method}: {where}: {wrong}", partial(_depth, method, region, change))
        for method, (where, region), (wrong, change) in product(
            ("range_push", "range_pop"), RANGES.items(), DEPTHS.items()
        )
    ]
    found += [Fault("ranges", name, apply) for name, apply in OTHERS.items()]
    found += [
        Fault(
            "ranges",
            f"decorated function: everywhere: {wrong}",
            partial(_block, annotate, "__call__", _anywhere, change),
        )
        for wrong, change in DECORATED.items()
    ]
    return found


def _equivalent(shown: str, where: str, wrong: str) -> bool:
    """Whether nothing could show it: what has no labels or no domain cannot lose them."""
    return (
        (shown == "labels" and where == "of blocks without labels")
        # the only such block has no mark at all: nothing is annotated with an empty name there
        or (shown == "domain" and where == "of blocks without labels" and wrong == "")
    )

"""Golden files of what the search and the suites judge by: models in random walks, and bounds."""

from __future__ import annotations

import math
import random
from itertools import product
from typing import TYPE_CHECKING, Any, Final

from tests.support.golden import Golden, answer_of, digest_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_STEPS: Final = 240
"""Of a walk; each line has the digest of some of them."""
_SHOWN: Final = 12


def _walked(title: str, said: list[str]) -> Iterator[str]:
    """Every 12th step of a walk, with the digest of those since the last one."""
    yield f"# {title}"
    for at in range(0, len(said), _SHOWN):
        yield f"{said[at][:110]} {digest_of('|'.join(said[at : at + _SHOWN]))}"


def _chance(seed: int) -> random.Random:
    return random.Random(seed)  # noqa: S311 - a walk that can be repeated


def _walks(_: Path) -> Iterator[str]:
    """The models of memory, of the scaler, of generators and of streams after each step."""
    yield from _walked("memory", [*_memory(_chance(1))])
    yield from _walked("scaler", [*_scaler(_chance(2))])
    yield from _walked("generators", [*_generators(_chance(3))])
    for seed in range(4, 9):
        yield from _streams(_chance(seed))


def _memory(chance: random.Random) -> Iterator[str]:
    from portagpu.suites.search.memory.model import MIB, Model

    model = Model()
    for number in range(_STEPS):
        slot, size = chance.choice("abcd"), chance.choice((1, 64, 1000)) * MIB
        what = chance.choice(("made", "made", "keep", "none", "temporary", "sees", "more"))
        said = ""
        if what == "made":
            kept = model.slots.get(chance.choice("abcd"), frozenset())
            model.made(slot, [size] * chance.randint(1, 2), kept)
        elif what == "keep":
            model.keep(slot, model.slots.get(chance.choice("abcd")))
        elif what == "none":
            model.keep(slot, None)
        elif what == "temporary":
            model.temporary(size, 2 * size)
        elif what == "sees":
            model.sees(chance.randrange(8) * MIB, chance.randrange(8) * MIB)
        elif number % 3:
            said = model.released(model.current().low + chance.choice((-1, 0, 40)) * MIB)
        else:
            model.reset()
        now, highest = model.current(), model.highest
        said = said or now.wrong("it", now.high + 1 if number % 2 else now.low - 1)
        shown = [each / MIB for each in (now.low, now.high, highest.low, highest.high, model.live)]
        yield f"{what} {slot}: {shown} {model.changed} {said}"


def _scaler(chance: random.Random) -> Iterator[str]:
    from portagpu.suites.search.scaler import SIZES, Group, Model

    for enabled in (True, True, False):
        groups = {
            name: Group(
                [[1.0] * math.prod(shape) for shape, _ in sizes],
                ["float16" if dtype == "half" else dtype for _, dtype in sizes],
                [None] * len(sizes),
            )
            for name, sizes in SIZES.items()
        }
        model = Model(enabled=enabled, interval=chance.choice((1, 2)), groups=groups)
        for _ in range(_STEPS // 3):
            name = chance.choice("ab")
            what = chance.choice(("add", "add", "unscale", "step", "step", "update", "new"))
            allowed: Any = ""
            if what == "add":
                model.used = True
                index = chance.randrange(len(groups[name].values))
                count = len(groups[name].values[index])
                one = chance.choice((0.5, -0.125, 3.0, 7e4, math.inf))
                model.add(name, index, [one] * count)
            elif what in ("unscale", "step"):
                allowed = getattr(model, what)(name)
            else:
                allowed = model.update(chance.choice((4.0, 32.0)) if what == "new" else None)
            yield f"{what} {name} {allowed}: {model.scale} {model.tracker} {groups[name]}"


def _generators(chance: random.Random) -> Iterator[str]:
    from portagpu.suites.search.generators import Model, differ

    names = ("default", "host", "g0", "g1")
    model = Model(dict.fromkeys(names, (0, ())))
    for _ in range(_STEPS):
        name, other, slot = chance.choice(names), chance.choice(names), chance.choice(("s0", "s1"))
        drawn = (chance.choice(("rand", "randperm")), chance.choice((0, 1, 5)), "float32")
        found: Any = ""
        what = chance.choice(("seed", "draw", "draw", "save", "restore", "rewind", "fork", "join"))
        if what == "seed":
            model.seed(name, chance.choice((0, 2**32, 2**32 + 5, 7)), chance.random() < 0.5)
        elif what in ("draw", "save"):
            found = model.draw(name, drawn) if what == "draw" else model.save(name, slot, drawn)
        elif what in ("restore", "rewind"):
            found = getattr(model, what)(name, slot)
        else:
            found = getattr(model, what)()
        apart = differ(model.states[name], model.states[other])
        yield f"{what} {name} {slot} {found}: {apart} {model.states[name]} {len(model.forks)}"


def _streams(chance: random.Random) -> Iterator[str]:
    """What reads may find after random work on streams, and which fault explains another value."""
    from portagpu.suites.search.ordering import model

    log: list[Any] = [("start", ({"a": 1, "b": 2, "c": 3},), {})]
    for number in range(14):
        stream, other = chance.randrange(3), chance.randrange(3)
        source, target = chance.sample(model.BUFFERS, 2)
        kind = chance.choice(("write", "copy", "add"))
        kernel = model.Kernel(kind, target, "" if kind == "write" else source, 10 + number)
        log.append(
            chance.choice(
                (
                    ("launch", (stream, kernel), {}),
                    ("launch", (stream, kernel), {}),
                    ("launch", (other, kernel), {}),
                    ("record", (number % 2, stream), {}),
                    ("wait_event", (other, number % 2), {}),
                    ("wait_stream", (stream, other), {}),
                    ("synchronize", ("stream", stream), {}),
                )
            )
        )
        if log[-1][0] == "wait_event" and not any(each[0] == "record" for each in log):
            log.pop()
    found = answer_of(model.modelled, log)
    yield f"# {[(name, given) for name, given, _ in log[1:]]}"[:300]
    if isinstance(found, str):
        yield found
        return
    for buffer in model.BUFFERS:
        values = found.read(buffer)
        yield f"{buffer}: {sorted(values) if values is not None else None}"
        for wrong, late in product((1, 2, 3, *range(10, 24)), (True, False)):
            if values is not None and wrong not in values:
                blamed = answer_of(model.blame, log, buffer, frozenset({wrong}), late)
                if blamed:
                    yield f"  {wrong} {late}: {blamed}"


def _bounded(_: Path) -> Iterator[str]:
    """Bounds, and what is said of values on both sides of them."""
    import torch

    import portagpu
    from portagpu.suites.conformance import closeness
    from portagpu.suites.performance import matmul
    from portagpu.suites.search import draws, ranges
    from portagpu.suites.search.operators import compare
    from portagpu.train.exact import products

    for bits in range(30):
        yield f"{bits} bits: {closeness.arithmetic_of(bits)}"
    for found, exact in ((1.0, 1.0), (1.0, 0.0), (math.nan, 1.0), (1.001, 1.0), (1 + 2**-20, 1.0)):
        yield f"{found} of {exact}: {closeness.bits_kept(found, exact)} bits"
    exact = [1.0, -2.0, 0.0, 1000.0]
    for bad in (
        exact,
        [1.0, -2.0, 0.0],
        [0.0] * 4,
        [math.nan] * 4,
        [-1.0, 2.0, 0.0, -1000.0],
        [7.0] * 4,
        [1.0, -2.0, 0.0, 1001.0],
        [1.0, -2.0, 0.5, 1000.0],
        [1.0, -2.0, 0.0, math.inf],
        [1.0, math.nan, 0.0, 1000.0],
    ):
        for bound in ([0.0] * 4, [1e-3] * 4, [1.0, 1.0, 0.25, 1.0]):
            yield f"{bad} within {bound[2]}: {closeness.beyond(bad, exact, bound)}"
    numbers = torch.arange(64, dtype=torch.float64) / 64
    for name, draw in draws.draws().items():
        yield f"{name}: {draw.low} {draw.high} {draw.mean} {draw.bits} {draw.closed}"
        for n in (1, 64, 10**6):
            yield f"  {n}: {draws._mean_bound(draw, n):.6g}"
        for values in (numbers, numbers - 1, numbers * 0, numbers + 0.5, numbers[:0], numbers[1:]):
            yield f"  {answer_of(draws.wrong_numbers, values, draw, 64, 'float32')}"
    for bits, again in product((1.0, 24.0, 53.0), (0, 64, 65, 200)):
        chosen = (torch.arange(4096, dtype=torch.float64) * math.sqrt(5)).frac()
        if again:
            chosen[1000 : 1000 + again] = chosen[232 : 232 + again]
        yield f"{bits} bits, {again} again: {draws.repetition(chosen, bits)}"
    yield draws.repetition(numbers.repeat(2), 24.0)
    values = (1.0, 2, math.nan, "a", None, torch.tensor([1.0, math.nan]), torch.tensor([1.0, 2.0]))
    for one, other in product(values, values):
        if isinstance(one, torch.Tensor) == isinstance(other, torch.Tensor):
            said = (compare.same_values(one, other), compare.equal_results(one, other))
            yield f"{one} and {other}: {said}"
    cpu = portagpu.backend("cpu")
    # whether int8 saturates is the CPU's
    kinds = [kind for kind in products.KINDS if kind.name != "int8"]
    for kind, k, seed in product(kinds, (1, 64, 4096, 1 << 20), range(3)):
        yield f"{kind.name} {k} {seed}: {answer_of(matmul._largest, cpu, kind, k, seed)}"
    yield from _ranges(ranges)


def _ranges(ranges: Any) -> Iterator[str]:
    """What is wrong with the blocks of a profile."""
    names = ("forward", "a b", "layer/3", "a:b")
    nodes = [
        ranges.Node(("", name, ()), None if number == 0 else number - 1, number == 2)
        for number, name in enumerate(names[:3])
    ]
    spans = {"forward": (0, 100), "a b": (10, 90), "layer/3": (20, 80), "a:b": (30, 40)}
    for chosen in (
        ("forward", "a b", "layer/3"),
        ("forward", "a b"),
        ("forward",),
        ("a b", "forward", "layer/3"),
        ("forward", "a b", "layer/3", "a:b"),
        ("forward", "layer/3"),
        (),
    ):
        for after in (False, True):
            events = [
                ranges.Event(name, at * 1000 if after else spans[name][0], spans[name][1]
                             + (at * 1000 if after else 0))
                for at, name in enumerate(chosen)
            ]  # fmt: skip
            yield f"{chosen} {after}: {ranges.compared(events, nodes, after)}"


SEARCHES: Final[dict[str, Golden]] = {
    "walks.txt": Golden("torch", _walks),
    "bounded.txt": Golden("torch", _bounded),
}

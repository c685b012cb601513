"""A CPU that computes wrong: kernels of torch's dispatcher are replaced while a fault is installed.

What a defective device does follows published figures (Tung et al., The Anatomy of Silent Data
Corruption, arXiv 2605.04213): a wrong result is zero in 50.68 %, has flipped bits in 48.31 % and is
NaN in 1.01 % of cases; fewer than 40 % of flips are of one bit; low bits flip more often; wrong
elements repeat within a warp. As a program this file measures what exact work catches::

    python -m tests.support.faulty_device --trials 20
"""

from __future__ import annotations

import argparse
import contextlib
import math
import multiprocessing
import os
import random
import resource
import socket
import warnings
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MATRIX: Final = (
    *("mm", "mm.out", "addmm", "bmm", "baddbmm"),
    *("_int_mm", "_int_mm.out", "_scaled_mm", "_scaled_mm.out"),
    *("convolution", "_scaled_dot_product_flash_attention_for_cpu"),
)
VECTOR: Final = (
    *("add.Tensor", "mul.Tensor", "addcmul", "minimum", "maximum", "exp", "erf", "rsqrt"),
    *("tanh", "sin", "_softmax", "native_layer_norm"),
)
INTEGER: Final = (
    *("remainder.Tensor", "floor_divide", "__lshift__.Tensor", "bitwise_left_shift.Tensor"),
    *("bitwise_right_shift.Tensor", "scatter.src", "gather", "bincount", "index_add"),
    *("sort.stable", "sort", "cumsum"),
)
REDUCTION: Final = ("sum.dim_IntList", "mean.dim", "linalg_vector_norm", "amax")
UNITS: Final = {
    "matrix": MATRIX,
    "vector": VECTOR,
    "integer": INTEGER,
    "reduction": REDUCTION,
    # memory that loses a bit while products run, and what arrives on one rank
    "memory": ("mm",),
    "link": (),
}
"""Operators of each kind of unit. A fault of a unit leaves integers alone, but for "integer"."""
AREAS: Final = {
    "matrix": ("products", "convolution", "attention"),
    "vector": ("vectors",),
    "integer": ("integers",),
    "reduction": ("reductions",),
    "memory": ("memory",),
    "link": ("collectives",),
}
"""Areas of probes that work on a unit."""
_WORDS: Final = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_FRACTION_BITS: Final = {
    torch.float64: 52,
    torch.float32: 23,
    torch.bfloat16: 7,
    torch.float16: 10,
}


def words_of(values: torch.Tensor) -> torch.Tensor:
    """The bits of contiguous values, which share their memory; shape (elements,)."""
    flat = values.view(-1)
    return flat if values.dtype is torch.bool else flat.view(_WORDS[values.element_size()])


@dataclass
class Fault:
    """One way to be wrong.

    ``strike`` is given the contiguous result, the operator's tensors and a random generator, and
    changes the result in place.
    """

    name: str
    unit: str
    strike: Callable[[torch.Tensor, list[torch.Tensor], random.Random], None]
    first_call: int = 0
    """Calls of the unit before it becomes wrong."""


@dataclass
class Installed:
    """A fault that is in place, and what it did."""

    fault: Fault
    generator: random.Random
    calls: int = 0
    corrupted: int = 0
    sound: bool = field(default=False)
    """Whether the fault rests, as while operands are made."""
    held: torch.Tensor | None = None
    """The memory that a fault of memory changes while products run."""

    def call(self, kernel: Any, name: str, keys: Any, *given: Any, **options: Any) -> Any:
        """What the operator gives, corrupted."""
        if name.endswith(".Tensor"):
            # the boxed call takes no Python number for a tensor
            given = tuple(
                each if isinstance(each, torch.Tensor) else torch.tensor(each) for each in given
            )
        # an operator that calls another would be struck twice, which undoes a flip
        rests, self.sound = self.sound, True
        try:
            result = kernel.call_boxed(keys, *given, **options)
        finally:
            self.sound = rests
        self.calls += 1
        if self.sound or self.calls <= self.fault.first_call:
            return result
        if self.fault.unit == "memory":
            if self.held is not None:
                self.struck(self.held, [])
            return result
        value = result[0] if isinstance(result, tuple | list) else result
        integers = not (value.is_floating_point() or value.is_complex())
        if integers != (self.fault.unit == "integer") and not name.startswith("_int_mm"):
            return result
        if value.numel() < 64:  # indices, scalars and the like
            return result
        tensors = [each for each in given if isinstance(each, torch.Tensor)]
        changed = value.contiguous().clone()
        self.struck(changed, tensors)
        value.copy_(changed)
        return result

    def struck(self, changed: torch.Tensor, tensors: list[torch.Tensor]) -> None:
        """Corrupt contiguous values in place, and count what that changed."""
        before = words_of(changed).clone()
        # what strikes uses the same kernels
        self.sound = True
        self.fault.strike(changed, tensors, self.generator)
        self.sound = False
        self.corrupted += int((words_of(changed) != before).sum())


@contextlib.contextmanager
def installed(fault: Fault, seed: int = 0) -> Iterator[Installed]:
    """Replace the kernels of a fault's unit on the CPU."""
    state = Installed(fault, random.Random(seed))  # noqa: S311 - places that can be drawn again
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in UNITS[fault.unit]:
            try:
                kernel = torch.library.get_kernel(f"aten::{name}", "CPU")
            except RuntimeError:
                continue
            replaced = partial(state.call, kernel, name)
            library.impl(name, replaced, "CPU", with_keyset=True, allow_override=True)
    try:
        yield state
    finally:
        library._destroy()


# ---- what goes wrong


def _places(count: int, share: float, generator: random.Random) -> torch.Tensor:
    """Random places, each with the probability ``share``."""
    expected = count * share
    number = int(expected) + (generator.random() < expected - int(expected))
    return torch.tensor([generator.randrange(count) for _ in range(number)], dtype=torch.int64)


def _flip(words: torch.Tensor, places: torch.Tensor, bits: int, generator: random.Random) -> None:
    """Flip that many bits of each place; low ones more often than high ones."""
    size = 8 * words.element_size()
    for place in places.tolist():
        chosen: set[int] = set()
        while len(chosen) < bits:
            chosen.add(min(generator.randrange(size), generator.randrange(size)))
        mask = sum(1 << bit for bit in chosen)
        words[place] ^= mask - (1 << size) if mask >> (size - 1) else mask


def published(share: float) -> Callable[..., None]:
    """Zero, flipped or NaN, by the published shares."""

    def strike(result: torch.Tensor, tensors: list[torch.Tensor], generator: random.Random) -> None:
        words = words_of(result)
        for place in _places(words.numel(), share, generator).tolist():
            kind = generator.random()
            if kind < 0.5068:
                words[place] = 0
            elif kind < 0.9899 or not result.is_floating_point():
                bits = 1 if generator.random() < 0.4 else generator.randrange(2, 9)
                _flip(words, torch.tensor([place]), bits, generator)
            else:
                result.view(-1)[place] = math.nan

    return strike


def flips(bits: int, share: float) -> Callable[..., None]:
    """How many bits flipped."""

    def strike(result: torch.Tensor, tensors: list[torch.Tensor], generator: random.Random) -> None:
        words = words_of(result)
        _flip(words, _places(words.numel(), share, generator), bits, generator)

    return strike


def lanes(warp: int, first: int, period: int) -> Callable[..., None]:
    """Four lanes in a row of each period of a warp lose their lowest bit."""

    def strike(result: torch.Tensor, tensors: list[torch.Tensor], generator: random.Random) -> None:
        words = words_of(result)
        lane = torch.arange(words.numel()) % warp % period
        words[(lane >= first) & (lane < first + 4)] ^= 1

    return strike


def stuck(bit: int) -> Callable[..., None]:
    """One bit of every result is set; counted from the lowest."""

    def strike(result: torch.Tensor, tensors: list[torch.Tensor], generator: random.Random) -> None:
        words = words_of(result)
        words |= 1 << bit % (_FRACTION_BITS.get(result.dtype, 31))

    return strike


def region(rows: slice, columns: slice) -> Callable[..., None]:
    """A row, a column or a tile of a matrix is flipped in its lowest bit."""

    def strike(result: torch.Tensor, tensors: list[torch.Tensor], generator: random.Random) -> None:
        words = words_of(result).view(result.shape)
        if result.dim() == 1:
            words = words.view(-1, 16)
        words[..., rows, columns] ^= 1

    return strike


def triggered(bits: int, pattern: int, operands: int) -> Callable[..., None]:
    """Wrong where the low bits of one operand, or of both, are a pattern.

    Of a matrix product the row of the first operand with such an element, and the column of the
    second one, name the elements.
    """

    def matches(tensor: torch.Tensor) -> torch.Tensor:
        # the lowest bits that the value has, not those that an integer leaves zero
        values = words_of(tensor.contiguous()).view(tensor.shape)
        shift = max(_FRACTION_BITS.get(tensor.dtype, bits) - bits, 0)
        return ((values >> shift) & ((1 << bits) - 1)) == pattern

    def strike(result: torch.Tensor, tensors: list[torch.Tensor], generator: random.Random) -> None:
        words = words_of(result).view(result.shape)
        inputs = [each for each in tensors if each.numel() > 1 and each.dim() == result.dim()]
        inputs = inputs[:operands]
        if not inputs:
            return
        if result.dim() == 2 and inputs[0].shape != result.shape:
            chosen = torch.ones_like(result, dtype=torch.bool)
            chosen &= matches(inputs[0]).any(1)[:, None] if len(inputs[0]) == len(result) else True
            if len(inputs) > 1 and inputs[1].shape[1] == result.shape[1]:
                chosen &= matches(inputs[1]).any(0)
            lane = torch.arange(result.shape[1]) % 32 == 3
            words[chosen & lane] ^= 1
        elif all(each.shape == result.shape for each in inputs):
            chosen = matches(inputs[0])
            for each in inputs[1:]:
                chosen &= matches(each)
            words[chosen] ^= 1

    return strike


def magnitudes(low: int, high: int) -> Callable[..., None]:
    """Results with an exponent of this range lose their lowest bit."""

    def strike(result: torch.Tensor, tensors: list[torch.Tensor], generator: random.Random) -> None:
        if not result.is_floating_point():
            size = result.abs()
            words_of(result)[((size >= 1 << max(low, 1)) & (size < 1 << high)).view(-1)] ^= 1
            return
        exponents = torch.frexp(result.float()).exponent.view(-1)
        words_of(result)[(exponents >= low) & (exponents < high) & (result.view(-1) != 0)] ^= 1

    return strike


def kept_tiles(share: float) -> Callable[..., None]:
    """A tile of a matrix has what the call before it gave, in that share of calls."""
    last: dict[Any, torch.Tensor] = {}

    def strike(result: torch.Tensor, tensors: list[torch.Tensor], generator: random.Random) -> None:
        key = result.shape, result.dtype
        old, last[key] = last.get(key), result.clone()
        if old is not None and result.dim() > 1 and generator.random() < share:
            rows, columns = (16 * generator.randrange(-(-each // 16)) for each in result.shape[-2:])
            tile = ..., slice(rows, rows + 16), slice(columns, columns + 16)
            result[tile] = old[tile]

    return strike


def next_to_zero(
    result: torch.Tensor, tensors: list[torch.Tensor], generator: random.Random
) -> None:
    """Each zero has its lowest bit set."""
    words_of(result)[(result == 0).view(-1)] ^= 1


def models(generator: random.Random) -> dict[str, tuple[Callable[..., None], int]]:
    """Fault models with parameters drawn: what goes wrong, and after how many calls."""
    bits = {p: generator.randrange(1 << p) for p in (8, 10, 12)}
    row = generator.randrange(64)
    tile = 16 * generator.randrange(4)
    low = generator.randrange(2, 14)
    return {
        "zero, flipped, NaN; 1e-3": (published(1e-3), 0),
        "zero, flipped, NaN; 1e-5": (published(1e-5), 0),
        "zero, flipped, NaN; 1e-6": (published(1e-6), 0),
        "1 bit; 1e-4": (flips(1, 1e-4), 0),
        "8 bits; 1e-4": (flips(8, 1e-4), 0),
        "4 of 8 lanes, warp of 32": (lanes(32, generator.randrange(4), 8), 0),
        "4 of 16 lanes, warp of 64": (lanes(64, generator.randrange(12), 16), 0),
        "stuck bit": (stuck(generator.randrange(23)), 0),
        "a row": (region(slice(row, row + 1), slice(None)), 0),
        "a column": (region(slice(None), slice(row, row + 1)), 0),
        "a tile of 16 x 16": (region(slice(tile, tile + 16), slice(tile, tile + 16)), 0),
        "8 bits of one operand": (triggered(8, bits[8], 1), 0),
        "12 bits of one operand": (triggered(12, bits[12], 1), 0),
        "10 bits of one operand": (triggered(10, bits[10], 1), 0),
        "8 bits of both operands": (triggered(8, bits[8], 2), 0),
        "10 bits of both operands": (triggered(10, bits[10], 2), 0),
        "12 bits of both operands": (triggered(12, bits[12], 2), 0),
        "tiles keep an old result; 1 call in 10": (kept_tiles(0.1), 0),
        "zeros become the next number": (next_to_zero, 0),
        "a range of magnitude": (magnitudes(low, low + 2), 0),
        "after 40 calls": (published(1e-3), 40),
    }


def main() -> int:
    """Print, by area of probes and fault model, in how many runs of probes exact work was wrong."""
    import portagpu
    from portagpu.train.exact.probes import PROBES

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--batches", type=int, default=4, help="operands of each probe in a trial")
    areas = [each for of_unit in AREAS.values() for each in of_unit]
    parser.add_argument("--area", choices=areas, action="append", help="only these, in this order")
    names = list(models(random.Random(0)))  # noqa: S311 - the names alone
    parser.add_argument("--fault", choices=names, action="append", help="only these")
    given = parser.parse_args()
    print(f"seed {given.seed}, {given.trials} trials, {given.batches} batches", flush=True)
    print("| area | fault | trials caught, of those that it corrupted | batches | CPU s |")
    gpu = portagpu.backend("cpu")
    unit_of = {each: unit for unit, of_unit in AREAS.items() for each in of_unit}
    for area in given.area or areas:
        unit = unit_of[area]
        probes = [each for each in PROBES if each.area == area]
        if unit != "link":
            probes = [each for each in probes if not each.refuses(gpu)]
        tried = _tried_on_ranks if unit == "link" else _tried
        for name in given.fault or names:
            began = _cpu_s()
            trials: Counter[tuple[bool, bool]] = Counter()
            batches: Counter[tuple[bool, bool]] = Counter()
            for trial in range(given.trials):
                strike, first = models(random.Random(given.seed + trial))[name]  # noqa: S311 - places that can be drawn again
                seen = tried(Fault(name, unit, strike, first), probes, gpu, trial, given.batches)
                batches.update(seen)
                trials[any(struck for struck, _ in seen), any(found for _, found in seen)] += 1
            spent = _cpu_s() - began
            shares = [_share(each) for each in (trials, batches)]
            print(f"| {area} | {name} | {shares[0]} | {shares[1]} | {spent:.1f} |", flush=True)
    return 0


def _cpu_s() -> float:
    """CPU seconds of this process and of its children that ended."""
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


def _tried_on_ranks(
    fault: Fault, probes: list[Any], gpu: Any, trial: int, batches: int
) -> list[tuple[bool, bool]]:
    """The same of collectives of two ranks, on one of which results arrive corrupted.

    Found is what that rank finds and the other does not.
    """
    results = multiprocessing.get_context("fork").SimpleQueue()
    port = socket.create_server(("127.0.0.1", 0))
    store = f"tcp://127.0.0.1:{port.getsockname()[1]}"
    port.close()
    ranks = []
    for rank in (1, 0):
        if child := os.fork():
            ranks.append(child)
            continue
        status = 1
        try:
            torch.distributed.init_process_group("gloo", store, rank=rank, world_size=2)
            with warnings.catch_warnings(action="ignore"):
                judged = _judged_collectives(fault, probes, gpu, trial, batches, rank)
            results.put((rank, judged))
            torch.distributed.barrier()
            status = 0
        finally:
            os._exit(status)
    if any(os.waitpid(child, 0)[1] for child in ranks):
        raise RuntimeError("a rank ended without an answer")
    answers = dict(results.get() for _ in ranks)
    pairs = zip(answers[1], answers[0], strict=True)
    return [(struck, here and not there) for (struck, here), (_, there) in pairs]


def _judged_collectives(
    fault: Fault, probes: list[Any], gpu: Any, trial: int, batches: int, rank: int
) -> list[tuple[bool, bool]]:
    """By batch of a probe: whether its result arrived corrupted, and whether it is found wrong."""
    from portagpu.train.exact.draws import Draws

    state = Installed(fault, random.Random(trial))  # noqa: S311 - places that can be drawn again
    seen = []
    for batch in range(batches):
        for probe in probes:
            work = probe.make(gpu, Draws(1000 * trial + batch), 1)
            before, result = state.corrupted, work.run()
            state.calls += 1
            if rank == 1 and state.calls > fault.first_call:
                state.struck(result, [])
            seen.append((state.corrupted > before, work.judge(result) is not None))
    return seen


def _share(seen: Counter[tuple[bool, bool]]) -> str:
    """How many were caught of those that were corrupted; a false alarm is shown too."""
    caught, corrupted = seen[True, True], seen[True, True] + seen[True, False]
    alarms = f", {seen[False, True]} FALSE ALARMS" if seen[False, True] else ""
    return (f"{caught} of {corrupted}" if corrupted else "corrupted nothing") + alarms


def _tried(
    fault: Fault, probes: list[Any], gpu: Any, trial: int, batches: int
) -> list[tuple[bool, bool]]:
    """By batch of a probe: whether the fault corrupted a result, and whether it was found."""
    from portagpu.train.exact.draws import Draws

    seen = []
    with installed(fault, trial) as state:
        for batch in range(batches):
            for probe in probes:
                state.sound = True
                work = probe.make(gpu, Draws(1000 * trial + batch), 1)
                before = state.corrupted
                state.held = work.held.words if fault.unit == "memory" else None
                state.sound = False
                result = work.run()
                found = work.judge(result) is not None
                seen.append((state.corrupted > before, found))
    return seen


if __name__ == "__main__":
    raise SystemExit(main())

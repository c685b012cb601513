"""The samples of a pair: made on the CPU from a fixed seed, moved, widened, moved by roundings.

A sample's leaves are its tensors, and its Python numbers with a fraction, in the order in which
they are in its arguments.

Some samples that run are torch's own, and some have other sizes. Torch's generators of samples make
nearly all of the sizes 3, 5, 10 and 20, which are constants of its modules: with other constants
they make others. Where sizes are written into a generator, a sample is enlarged: each dimension of
n > 1 becomes 2 n + 1.
"""

from __future__ import annotations

import math
import random
import sys
from contextlib import contextmanager
from functools import cache, partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from portagpu.suites.search.operators.internals import torch_internals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from portagpu.suites.search.operators.database import Operator


_SEED: Final = 1234
"""That of torch's tests (``--seed`` of torch.testing._internal.common_utils), for each sample."""
_LOOKED_AT: Final = 32
"""Some operators have thousands of samples; those that run are spread over this many."""

Sample = Any
"""A ``SampleInput`` of torch, which has no types."""
MAX_SAMPLES: Final = 4
OFFSET: Final = 3
LAYOUTS: Final = ("spread", "last", "offset")
"""How elements lie: apart from each other; channels last with four and five dimensions and else
column by column; contiguous, but not from the start of the memory on, and with the stride 0 where
a dimension has one element."""
FOUR: Final = (2, 3, 5, 4)
"""The shape of one more sample of elementwise operators: torch's have no four dimensions."""
CHANNELS: Final = 4
"""Instead of sizes of 1, which torch's samples of convolutions have."""
ODD: Final[Mapping[str, int]] = {"S": 7, "M": 11, "L": 33}
"""Instead of 5, 10 and 20. Odd sizes leave a rest in every vector and block; the largest, and the
squares of the others, are more than the 32 lanes of a warp."""
MAX_ELEMENTS: Final = 2**12
"""Elements of an enlarged tensor at most: a sample takes milliseconds."""
_OWN_SIZES: Final = frozenset(("_segment_reduce", "histogramdd"))
"""Samples in which written lengths belong to the constants; torch checks no length of the first
where a caller asks it to trust them (``unsafe``)."""


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Torch's and Python's numbers are those of the seed, and afterwards as before."""
    import torch

    state, default = random.getstate(), torch.get_default_dtype()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        try:
            yield
        finally:
            random.setstate(state)
            torch.set_default_dtype(default)


@contextmanager
def reseeded(seed: int, dtype: Any = None) -> Iterator[None]:
    """As :func:`seeded` inside such a block, in a tenth of the time, and with that default dtype.

    The state of the generators is lost.
    """
    import torch

    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    if dtype is None:
        yield
        return
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(default)


def made(operator: Operator, dtype: Any, gradient: bool) -> list[Sample]:
    """The first of the operator's samples, with the numbers that torch's own tests have.

    Its method ``sample_inputs`` makes them ten times as slowly: it looks for a test on the stack,
    and seeds the generators of all devices.
    """
    import torch

    found: list[Sample] = []
    with seeded(_SEED):
        every = iter(operator.sample_inputs_func(operator, "cpu", dtype, gradient))
        for each in islice(every, _LOOKED_AT):
            found.append(each)
            torch.default_generator.manual_seed(_SEED)
    return found


def changed(sample: Sample, change: Callable[[Any], Any]) -> Sample:
    """The sample with ``change`` of each leaf, dtype and device; tensors keep requires_grad."""
    import torch

    def walked(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            found = change(value.detach())
            if value.requires_grad and (found.is_floating_point() or found.is_complex()):
                found.requires_grad_()
            return found
        if isinstance(value, (torch.dtype, torch.device)) or type(value) in (float, complex):
            return change(value)
        if type(value) in (list, tuple):
            return type(value)(map(walked, value))
        return {k: walked(v) for k, v in value.items()} if type(value) is dict else value

    named = {
        key: change(torch.device(value)) if key == "device" and value else walked(value)
        for key, value in sample.kwargs.items()
    }
    return torch_internals("opinfo.core").SampleInput(
        walked(sample.input),
        args=tuple(map(walked, sample.args)),
        kwargs=named,
        output_process_fn_grad=sample.output_process_fn_grad,
    )


def laid(tensor: Any, layout: str) -> Any:
    """A copy of a strided tensor in one of ``LAYOUTS``."""
    import torch

    if layout == "spread":
        return torch_internals("common_utils").noncontiguous_like(tensor).detach()
    if layout == "last":
        form = {4: torch.channels_last, 5: torch.channels_last_3d}.get(tensor.dim())
        if form is not None:
            # with the strides of that format also where sizes of 1 leave them open
            return torch.empty_like(tensor, memory_format=form).copy_(tensor)
        turned = tuple(range(tensor.dim()))[::-1]
        return tensor.permute(turned).clone(memory_format=torch.contiguous_format).permute(turned)
    # numbers before it that are in no sample, at no multiple of 8 elements
    whole = tensor.new_ones(OFFSET + tensor.numel())
    placed = whole[OFFSET:].view(tensor.shape).copy_(tensor)
    # of one element in a dimension no stride is read (pytorch#195066)
    one = [
        0 if size == 1 else step for size, step in zip(placed.shape, placed.stride(), strict=True)
    ]
    return placed.as_strided(placed.shape, one)


def copied(tensor: Any, device: Any) -> Any:
    """A copy on that device; what is broadcast stays so, with the stride 0."""
    import torch

    if tensor.layout != torch.strided or not (tensor.numel() and 0 in tensor.stride()):
        return tensor.clone().to(device)
    once = tuple(slice(None) if step else slice(0, 1) for step in tensor.stride())
    return tensor[once].clone().to(device).expand(tensor.shape)


def moved(sample: Sample, device: Any, layout: str = "") -> Sample:
    """A copy on that device, with every tensor's elements in one of ``LAYOUTS``, if any."""
    import torch

    def change(value: Any) -> Any:
        if isinstance(value, torch.device):
            return torch.device(device)
        if not isinstance(value, torch.Tensor):
            return value
        there = copied(value, device)
        strided = layout and there.layout == torch.strided
        return laid(there, layout) if strided else there

    return changed(sample, change)


def reordered(sample: Sample, dtype: Any) -> Sample:
    """A copy with other numbers of the same shape: the first tensor's backwards, and halved."""
    import torch

    first = True

    def change(value: Any) -> Any:
        nonlocal first
        if not first or not isinstance(value, torch.Tensor):
            return value.clone() if isinstance(value, torch.Tensor) else value
        first = False
        rounded = value.is_floating_point() or value.is_complex()
        if value.layout != torch.strided or not (rounded or value.dtype == dtype):
            return value.clone()
        turned = value.flip(tuple(range(value.dim())))
        return turned / 2 if rounded else turned

    return changed(sample, change)


def widened(sample: Sample, dtype: Any) -> Sample:
    """A copy in float64 or complex128 where it has the dtype; whole numbers stay as they are."""
    import torch

    def change(value: Any) -> Any:
        if isinstance(value, torch.dtype):
            return wide(value) if value == dtype else value
        if not isinstance(value, torch.Tensor):
            return value
        return value.clone().to(wide(value.dtype))

    return changed(sample, change)


def wide(dtype: Any) -> Any:
    """float64 for floating-point dtypes, complex128 for complex ones, others as they are."""
    import torch

    if dtype.is_complex:
        return torch.complex128
    return torch.float64 if dtype.is_floating_point else dtype


def nudged(sample: Sample, dtype: Any, eps: float, which: int, seed: int) -> Sample:
    """The sample with leaf ``which`` times 1 ± ``eps``, with a random sign for each element.

    ``seed`` 0 is plus everywhere, 1 minus everywhere. Whole numbers become float64.
    """
    import torch

    number = -1
    signs = torch.Generator().manual_seed(seed)

    def sign(like: torch.Tensor) -> torch.Tensor:
        if seed < 2:
            return torch.full_like(like, 1.0 - 2.0 * seed)
        bits = torch.randint(0, 2, like.shape, generator=signs)
        return (2 * bits - 1).to(like.dtype)

    def change(value: Any) -> Any:
        nonlocal number
        if not is_leaf(value, dtype):
            return value.clone() if isinstance(value, torch.Tensor) else value
        number += 1
        if number != which:
            return value.clone() if isinstance(value, torch.Tensor) else value
        if not isinstance(value, torch.Tensor):
            return value * (1 + eps * (1 - 2 * (seed % 2)))
        if not value.is_complex():
            value = value.to(wide(value.dtype)) if value.is_floating_point() else value.double()
            return value * (1 + eps * sign(value))
        both = torch.view_as_real(value.resolve_conj())
        return torch.view_as_complex(both * (1 + eps * sign(both)))

    return changed(sample, change)


def is_leaf(value: Any, dtype: Any) -> bool:
    """Whether a value is a tensor or a Python number that roundings can move.

    Whole numbers of the pair's own dtype can: where the result is none, they are rounded to it.
    """
    import torch

    if isinstance(value, torch.Tensor):
        rounded = value.is_floating_point() or value.is_complex() or value.dtype == dtype
        return value.layout == torch.strided and rounded
    return type(value) in (float, complex)


def leaf_count(sample: Sample, dtype: Any) -> int:
    """How many leaves the sample has."""
    found = 0

    def change(value: Any) -> Any:
        nonlocal found
        found += is_leaf(value, dtype)
        return value

    changed(sample, change)
    return found


def tensors(sample: Sample) -> list[Any]:
    """The sample's tensors, in order."""
    import torch

    found: list[Any] = []

    def walk(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif type(value) in (list, tuple):
            for each in value:
                walk(each)
        elif type(value) is dict:
            walk(list(value.values()))

    walk([sample.input, sample.args, sample.kwargs])
    return found


def shown(sample: Sample) -> str:
    """The sample's shapes and arguments in short: "3x4, 5x4, dim=1"."""
    import torch

    def short(value: Any) -> str:
        if isinstance(value, torch.Tensor):
            return "x".join(map(str, value.shape)) or "a number"
        if type(value) in (list, tuple):
            return f"[{', '.join(map(short, value[:4]))}{', ...' if len(value) > 4 else ''}]"
        if isinstance(value, (torch.dtype, torch.device)):
            return str(value).removeprefix("torch.")
        return f"{value:g}" if type(value) is float else str(value)[:20]

    parts = [short(sample.input), *map(short, sample.args)]
    parts += [f"{key}={short(value)}" for key, value in sample.kwargs.items()]
    line = ", ".join(parts)
    return line if len(line) <= 100 else f"{line[:100]}..."


def samples(
    operator: Operator, dtype: Any, gradient: bool, half: int | None = None
) -> list[tuple[int, Sample, bool]]:
    """At most ``MAX_SAMPLES`` of the operator, with their numbers and whether they are torch's.

    Half of them are not, or more where torch has few. Those that the CPU refuses are left out.
    With ``half`` 0 or 1 it is every second of each kind.
    """
    usual = made(operator, dtype, gradient)
    other = _others(operator, dtype, gradient, usual)
    count = min(len(other), max(MAX_SAMPLES // 2, MAX_SAMPLES - len(usual)))
    most = min(len(usual), MAX_SAMPLES - count)
    first = [round(k * (len(usual) - 1) / max(1, most - 1)) for k in range(most)]
    places = [len(other) * (2 * k + 1) // (2 * count) for k in range(count)]
    every: list[tuple[int, Callable[[], Sample], bool]] = [
        *((number, partial(usual.__getitem__, number), True) for number in first),
        *((len(usual) + place, other[place], False) for place in places),
    ]
    found = [(number, make(), own) for number, make, own in every[half :: 1 if half is None else 2]]
    # the more tensors a sample has, the more can be wrong
    most_first = sorted(usual, key=lambda each: -len(tensors(each)))
    further = (
        next(filter(None, (fourfold(each, dtype) for each in most_first)), None),
        next(filter(None, (without_ones(each, dtype) for each in most_first)), None),
    )
    last = len(usual) + len(other)
    return found + [(last + k, each, False) for k, each in enumerate(further) if each is not None]


def without_ones(sample: Sample, dtype: Any) -> Sample | None:
    """The sample with ``CHANNELS`` for each size of 1; None where its tensors have no such sizes.

    Torch's samples of convolutions have one channel.
    """
    every = tensors(sample)
    if len(every) < 2 or every[0].dim() < 3 or not all(1 in each.shape for each in every):
        return None
    fits = all(_may_grow(each, dtype, _not_one) for each in every)
    return enlarged(sample, 0, _not_one) if fits else None


def _not_one(size: int) -> int:
    return CHANNELS if size == 1 else size


def fourfold(sample: Sample, dtype: Any) -> Sample | None:
    """The sample with four dimensions, in numbers of its own; None where it cannot have them.

    Tensors of one shape have the shape ``FOUR``. A tensor of three dimensions next to smaller ones,
    as weights are, has one more at the end: torch refuses it where it has no meaning.
    """
    every = tensors(sample)
    shapes = [tuple(each.shape) for each in every]
    numbers = all(_may_grow(each, dtype) and each.numel() for each in every)
    if not every or not numbers or () in shapes or 4 in map(len, shapes):
        return None
    largest = shapes[0]
    if len({*shapes}) == 1:
        shape = FOUR
    elif len(largest) == 3 and all(len(each) < 3 for each in shapes[1:]):
        shape = (*largest, FOUR[-1])
    else:
        return None

    def change(value: Any) -> Any:
        import torch

        if not isinstance(value, torch.Tensor) or tuple(value.shape) != largest:
            return value
        places = torch.arange(math.prod(shape)) % value.numel()
        return value.flatten()[places].view(shape)

    return changed(sample, change)


def _others(
    operator: Operator, dtype: Any, gradient: bool, usual: list[Sample]
) -> list[Callable[[], Sample]]:
    if operator.name in _OWN_SIZES:
        return []
    try:
        with _sizes(ODD):
            odd = made(operator, dtype, gradient)
    except Exception:  # noqa: BLE001 - torch's own, for a generator with constants of its own
        odd = []
    known = {*map(shown, usual)}
    odd = [each for each in odd if shown(each) not in known]
    if odd:
        return [partial(odd.__getitem__, number) for number in range(len(odd))]
    return [
        partial(enlarged, each, number)
        for number, each in enumerate(usual)
        if all(_may_grow(one, dtype) for one in tensors(each))
        and any(size > 1 for one in tensors(each) for size in one.shape)
    ]


@contextmanager
def _sizes(sizes: Mapping[str, int]) -> Iterator[None]:
    """A block in which torch's generators of samples have these constants."""
    before = [(each, name, getattr(each, name)) for each in _modules() for name in sizes]
    for module, name, _ in before:
        setattr(module, name, sizes[name])
    try:
        yield
    finally:
        for place in before:
            setattr(*place)


@cache
def _modules() -> list[Any]:
    """Those of torch's database that have all of its constants."""
    core = torch_internals("opinfo.core")
    right = {name: getattr(core, name, None) for name in ODD}
    within = [each for name, each in sys.modules.items() if name.startswith("torch.testing.")]
    return [each for each in within if right.items() <= vars(each).items()]


def _larger(size: int) -> int:
    return 2 * size + 1 if size > 1 else size


def _may_grow(tensor: Any, dtype: Any, larger: Callable[[int], int] = _larger) -> bool:
    """Not an index, whose values belong to sizes, and not too large."""
    import torch

    elements = math.prod(map(larger, tensor.shape))
    return tensor.dtype == dtype and tensor.layout == torch.strided and elements <= MAX_ELEMENTS


def enlarged(sample: Sample, seed: int, larger: Callable[[int], int] = _larger) -> Sample:
    """The sample with larger tensors, of numbers between two of its own."""
    import torch

    numbers = torch.Generator().manual_seed(seed)

    def change(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.dim() or not value.numel():
            return value
        shape = [larger(size) for size in value.shape]
        some = [
            value.flatten()[torch.randint(0, value.numel(), shape, generator=numbers)]
            for _ in range(2)
        ]
        if not (value.is_floating_point() or value.is_complex()):
            return some[0]
        wide = torch.complex128 if value.is_complex() else torch.float64
        part = torch.rand(shape, generator=numbers, dtype=torch.float64)
        between = part * some[0].to(wide) + (1 - part) * some[1].to(wide)
        return between.to(value.dtype)

    return changed(sample, change)

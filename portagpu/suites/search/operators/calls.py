"""An operator called on a sample: its results, and the gradients of its inputs, on the CPU."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from portagpu.suites.search.operators.samples import changed, moved, reseeded, tensors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from portagpu.suites.search.operators.database import Operator
    from portagpu.suites.search.operators.samples import Sample

Result = Any
"""A tensor on the CPU, a Python number, a text for what is neither, or None."""
_SEED: Final = 1


def _called(operator: Operator, sample: Sample) -> Any:
    """The value, made unique as torch's own gradient tests do."""
    value = operator.gradcheck_wrapper(operator.op, sample.input, *sample.args, **sample.kwargs)
    return sample.output_process_fn_grad(value)


def _flat(value: Any) -> list[Any]:
    """The tensors and numbers of a value, in order."""
    if isinstance(value, (list, tuple)):
        return [each for part in value for each in _flat(part)]
    return [value]


def _kept(value: Any) -> Result:
    """A result as it is now, whatever is written later into what it is a view of."""
    import torch

    if isinstance(value, torch.Tensor):
        value = value.detach()
        if value.layout != torch.strided:
            value = value.to_dense()
        return value.cpu().resolve_conj().resolve_neg().clone()
    return value if isinstance(value, (bool, int, float, complex)) else repr(value)


@contextmanager
def unseeded() -> Iterator[None]:
    """A block in which operators of the database do not seed torch's numbers themselves.

    Torch's database does so for random ones (``wrapper_set_seed``), so that they repeat.
    """
    import torch

    good = torch.manual_seed
    torch.manual_seed = lambda seed: torch.default_generator
    try:
        yield
    finally:
        torch.manual_seed = good


@contextmanager
def cpu_seeds() -> Iterator[None]:
    """A block in which ``torch.manual_seed`` seeds the CPU alone.

    Where a device is not there it notes the call for later, with the stack as a text.
    """
    import torch

    good = torch.manual_seed
    torch.manual_seed = torch.default_generator.manual_seed
    try:
        yield
    finally:
        torch.manual_seed = good


@contextmanager
def drawing() -> Iterator[list[bool]]:
    """A block that notes at its end, in the list, whether the CPU's random numbers were used.

    Torch's database seeds the numbers of random operators, and restores them.
    """
    import torch

    good, seeds, found = torch.manual_seed, [], [False]

    def noted(seed: int) -> Any:
        seeds.append(seed)
        return torch.default_generator.manual_seed(seed)

    torch.manual_seed = noted
    before = torch.default_generator.get_state()
    try:
        yield found
    finally:
        torch.manual_seed = good
        found[0] = bool(seeds) or not torch.equal(before, torch.default_generator.get_state())


def forward(
    operator: Operator, sample: Sample, seed: int = _SEED, widened: bool = False
) -> list[Result]:
    """The results; the call draws its random numbers from ``seed``, and keeps no other state.

    With ``widened`` what torch makes of whole numbers is float64 where it is float32 else.
    """
    import torch

    with reseeded(seed, torch.float64 if widened else None), torch.no_grad():
        return [_kept(each) for each in _flat(_called(operator, sample))]


def dtypes(operator: Operator, sample: Sample) -> set[Any]:
    """The dtypes of the sample's tensors and arguments, and of its results on the CPU."""
    import torch

    found: set[Any] = set()

    def note(value: Any) -> Any:
        if isinstance(value, torch.dtype):
            found.add(value)
        return value

    changed(sample, note)
    results = forward(operator, moved(sample, "cpu"))
    every = [*tensors(sample), *results]
    return found | {each.dtype for each in every if isinstance(each, torch.Tensor)}


def backward(
    operator: Operator, sample: Sample, dtype: Any, widened: bool = False, nudge: float = 0.0
) -> list[Result]:
    """The gradients of the inputs that have one, None for one that does not matter.

    They are weighted with numbers of ``dtype`` in [-1, 1], the same on every device; ``nudge`` is
    a relative change of each, with random signs. Raises what torch raises.
    """
    import torch

    inputs = [each for each in tensors(sample) if each.requires_grad]
    with reseeded(_SEED, torch.float64 if widened else None), torch.enable_grad():
        results = [
            each
            for each in _flat(_called(operator, sample))
            if isinstance(each, torch.Tensor) and each.requires_grad
        ]
        weights = [_weight(each, dtype, nudge, k) for k, each in enumerate(results)]
        if not results or not inputs:
            return []
        found = torch.autograd.grad(results, inputs, weights, allow_unused=True)
    return [None if each is None else _kept(each) for each in found]


def _weight(result: Any, dtype: Any, nudge: float, number: int) -> Any:
    import torch

    numbers = torch.Generator().manual_seed(number)
    shape = (*result.shape, 2) if result.is_complex() else result.shape
    made = 2 * torch.rand(shape, generator=numbers, dtype=torch.float64) - 1
    real = dtype.to_real() if dtype.is_complex else dtype
    rounded = made.to(real).double() if real.is_floating_point else made
    signs = 2 * torch.randint(0, 2, shape, generator=numbers) - 1
    moved = rounded * (1 + nudge * signs)
    whole = torch.view_as_complex(moved) if result.is_complex() else moved
    return whole.to(result.device, result.dtype)

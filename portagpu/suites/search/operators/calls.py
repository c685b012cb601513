"""An operator called on a sample, and the classes of operators with the bounds of their errors.

The model of arithmetic is ``fl(x op y) = (x op y)(1 + d)``, ``|d| <= u``, u the unit roundoff of
the dtype (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 2.2). A result
on whose way n roundings add up is off by at most ``n u / (1 - n u)`` times what its inputs weigh
(lemma 3.1), and with a chance of at least ``1 - 2 exp(-l^2 / 2)`` by at most ``l sqrt(n) u`` times
that (Higham and Mary, A New Approach to Probabilistic Rounding Error Analysis, SIAM J. Sci.
Comput. 41(5), 2019, theorem 2.4). The smaller of the two is taken.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from portagpu.runs.world.rank import tell_alive
from portagpu.suites.search.operators.internals import torch_internals
from portagpu.suites.search.operators.samples import changed, laid, moved, reseeded, tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from portagpu.suites.search.operators.database import Operator
    from portagpu.suites.search.operators.samples import Sample


Result = Any
"""A tensor on the CPU, a Python number, a text for what is neither, or None."""
_SEED: Final = 1


def _called(operator: Operator, sample: Sample) -> Any:
    """The value, made unique as torch's own gradient tests do.

    A program is many calls, and each shows that its process goes on.
    """
    tell_alive()
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
    operator: Operator,
    sample: Sample,
    dtype: Any,
    widened: bool = False,
    nudge: float = 0.0,
    layout: str = "",
) -> list[Result]:
    """The gradients of the inputs that have one, None for one that does not matter.

    They are weighted with numbers of ``dtype`` in [-1, 1], the same on every device, which lie in
    that layout; ``nudge`` is a relative change of each, with random signs. Raises what torch
    raises.
    """
    import torch

    inputs = [each for each in tensors(sample) if each.requires_grad]
    with reseeded(_SEED, torch.float64 if widened else None), torch.enable_grad():
        every = [
            each for each in _flat(_called(operator, sample)) if isinstance(each, torch.Tensor)
        ]
        # by its place among all: which results have a gradient depends on the inputs that have one
        pairs = [
            (each, _weight(each, dtype, nudge, k))
            for k, each in enumerate(every)
            if each.requires_grad
        ]
        if not pairs or not inputs:
            return []
        results, plain = zip(*pairs, strict=True)
        weights = [laid(each, layout) if layout and each.dim() else each for each in plain]
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


CHANCE: Final = 1e-12
"""The chance that a right device misses a bound that is probabilistic."""
FACTOR: Final = math.sqrt(2 * math.log(2 / CHANCE))
"""Higham and Mary's lambda for that chance: 7.53."""
ELEMENT_TERMS: Final = 24
"""Roundings of one element: 10 ulp, each of them 2 u, are the most that vendors state for a float32
function (CUDA C++ Programming Guide, mathematical functions: tgamma 10, lgamma 6, powf 4; AMD's HIP
math API: the same or fewer), and 4 more for the products and sums around it."""


@dataclass(frozen=True, slots=True)
class OperatorClass:
    """How many roundings may add up in a result, and whether each element has its own bound."""

    terms: Callable[[Operator, Sample, int], int]
    """Of an operator, its sample, and the number of elements of a result."""
    each: bool = False


def _one(operator: Operator, sample: Sample, results: int) -> int:
    """Every element by itself."""
    del operator, sample, results
    return ELEMENT_TERMS


def _none(operator: Operator, sample: Sample, results: int) -> int:
    """Elements that are moved are rounded nowhere."""
    del operator, sample, results
    return 0


def _all(operator: Operator, sample: Sample, results: int) -> int:
    """Every element of the inputs enters at most three times: a mean, squares, and their sum."""
    del operator
    elements = max((each.numel() for each in tensors(sample)), default=1)
    return ELEMENT_TERMS + 3 * max(elements, results)


def _all_or_weights(operator: Operator, sample: Sample, results: int) -> int:
    """Of a sum of products with weights its terms: those of one output."""
    name = operator.name.removeprefix("nn.functional.")
    if name == "linear" or name.startswith("conv"):
        weight = tensors(sample)[1]
        # of a transposed convolution the second dimension is that of the outputs
        outputs = 1 if name.startswith("conv_transpose") else 0
        terms: int = weight.numel() // max(1, (*weight.shape, 1)[outputs])
        return ELEMENT_TERMS + terms
    return _all(operator, sample, results)


def _cubed(operator: Operator, sample: Sample, results: int) -> int:
    """A sum of one dimension for products; its cube for factorisations (Higham, chapters 8-20)."""
    del results
    dimension = max((max(each.shape, default=1) for each in tensors(sample)), default=1)
    return ELEMENT_TERMS + (dimension if operator.name in PRODUCTS else 3 * dimension**3)


CANCELLING: Final = frozenset(("nn.functional.gelu",))
"""Kernels that subtract numbers as large as their inputs where the result is much smaller:
``x (1 + erf(x / sqrt(2))) / 2`` is rounded at the size of x (docs of torch.nn.functional.gelu)."""

WIDER_INSIDE: Final = frozenset(("nn.functional.scaled_dot_product_attention",))
"""Whose products and sums of 16-bit numbers are float32, and no more than an element's terms are
rounded to 16 bits (pytorch v2.13.0, aten/src/ATen/native/transformers/attention.cpp: the math path
converts them, and fused kernels accumulate so)."""

CLASSES: Final[Mapping[str, OperatorClass]] = {
    "elementwise": OperatorClass(_one, each=True),
    "movement": OperatorClass(_none, each=True),
    "reductions": OperatorClass(_all),
    "linalg": OperatorClass(_cubed),
    "nn": OperatorClass(_all_or_weights),
    "other": OperatorClass(_all),
}


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


PRODUCTS: Final = _names(
    """addbmm addmm addmv addr baddbmm bmm dot inner kron linalg.vecdot matmul mm mv outer
    __rmatmul__ vdot linalg.cross cross trace"""
)
"""Sums of products over one dimension."""

_LINALG: Final = PRODUCTS | _names(
    """cdist cholesky cholesky_inverse cholesky_solve corrcoef cov einsum geqrf logdet lu lu_solve
    lu_unpack matrix_exp norm ormqr pca_lowrank pinverse qr sparse.mm sparse.sampled_addmm svd
    svd_lowrank tensordot triangular_solve"""
)
_REDUCTIONS: Final = _names(
    """aminmax bincount count_nonzero cummax cummin cumprod cumsum cumulative_trapezoid dist equal
    allclose hash_tensor histc histogram histogramdd index_add index_put index_reduce kthvalue put
    log_softmax
    logcumsumexp logsumexp max median min mode nanmean nanmedian nanquantile quantile renorm
    scatter_add scatter_reduce _segment_reduce softmax _softmax_backward_data std_mean sum_to_size
    torch.ops.aten._safe_softmax.default trapezoid trapz unique unique_consecutive var_mean"""
)
_MOVEMENT: Final = _names(
    """T H mT mH alias_copy argsort argwhere as_strided as_strided_copy as_strided_scatter
    atleast_1d atleast_2d atleast_3d block_diag broadcast_shapes broadcast_tensors broadcast_to
    bool bfloat16 byte cartesian_prod cat cdouble cfloat chalf char chunk clone column_stack
    combinations complex conj conj_physical constant_pad_nd contiguous diag diag_embed diagflat
    diagonal diagonal_copy diagonal_scatter double dsplit dstack expand expand_as expand_copy eye
    fill flatten flip fliplr flipud float full full_like gather half hsplit hstack imag
    index_copy index_fill index_select int isin item linalg.diagonal long
    masked_fill masked_scatter masked_select meshgrid movedim msort narrow narrow_copy new_full
    new_ones new_zeros nonzero nonzero_static ones ones_like permute permute_copy ravel real
    repeat repeat_interleave reshape reshape_as resolve_conj resolve_neg roll rot90 scalar_tensor
    scatter searchsorted bucketize select select_scatter short slice slice_scatter sort split
    split_with_sizes split_with_sizes_copy squeeze squeeze_copy stack swapaxes t t_copy take
    take_along_dim tensor_split tile to topk transpose transpose_copy tril tril_indices triu
    triu_indices unbind unbind_copy unflatten unfold unfold_copy unravel_index unsafe_chunk
    unsafe_split unsqueeze unsqueeze_copy view view_as view_as_complex view_as_real view_copy
    vsplit vstack where zero_ zeros zeros_like __getitem__ _chunk_cat _unsafe_masked_index
    nn.functional.channel_shuffle nn.functional.embedding nn.functional.one_hot
    nn.functional.pad nn.functional.pixel_shuffle nn.functional.pixel_unshuffle
    nn.functional.unfold nn.functional.upsample_nearest fft.fftshift fft.ifftshift"""
)
_ELEMENTWISE: Final = _names(
    """addcdiv addcmul clamp clamp_max clamp_min deg2rad float_power lerp polar rad2deg special.zeta
    nn.functional.celu nn.functional.elu nn.functional.gelu nn.functional.glu
    nn.functional.hardshrink nn.functional.hardsigmoid nn.functional.hardswish
    nn.functional.hardtanh nn.functional.leaky_relu nn.functional.logsigmoid nn.functional.mish
    nn.functional.prelu nn.functional.relu nn.functional.relu6 nn.functional.selu
    nn.functional.silu nn.functional.softplus nn.functional.softshrink nn.functional.softsign
    nn.functional.tanhshrink nn.functional.threshold"""
)


def class_of(operator: Operator) -> str:
    """The one class of an operator; raises nothing, for what no rule names is "other"."""
    core = torch_internals("opinfo.core")
    name: str = operator.name
    if name in _MOVEMENT:
        return "movement"
    if (name, operator.variant_test_name) in (("max", "binary"), ("min", "binary")):
        return "elementwise"
    if name in _REDUCTIONS or isinstance(operator, core.ReductionOpInfo):
        return "reductions"
    if name in _LINALG or name.startswith("linalg."):
        return "linalg"
    if name in _ELEMENTWISE or isinstance(operator, (core.UnaryUfuncInfo, core.BinaryUfuncInfo)):
        return "elementwise"
    return "nn" if "nn.functional." in name or "norm" in name else "other"


def growth(terms: int, unit: float) -> float:
    """By how much ``terms`` roundings of that unit may be off, relative to what they add."""
    probable = FACTOR * math.sqrt(terms) * unit
    certain = terms * unit
    return min(certain / (1 - certain), probable) if certain < 1 else probable


def unit_roundoff(dtype: Any) -> float:
    """Half the distance from 1 to the next number; 0 for dtypes that round nothing."""
    import torch

    if dtype.is_complex:
        # a product of complex numbers: Higham, lemma 3.5, sqrt(2) gamma_2 of the real dtype
        return 2 * math.sqrt(2) * torch.finfo(dtype).eps / 2
    return torch.finfo(dtype).eps / 2 if dtype.is_floating_point else 0.0


def smallest(dtype: Any) -> float:
    """What underflow may lose: float32 and wider may be flushed to zero, as GPUs' fast modes do."""
    import torch

    if not (dtype.is_floating_point or dtype.is_complex):
        return 0.0
    found = torch.finfo(dtype)
    return found.smallest_normal * (found.eps if found.bits == 16 and found.eps < 2**-9 else 1.0)

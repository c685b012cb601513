"""Matrix products whose results are exact, or rounded once, in each format that a device has.

Operands are integers times a power of two for each row of A and each column of B. The row check
judges results in float32, float64 and int32. Those in 16 bits are the exact sums, rounded once, and
are compared with the float32 product of the same integers on the same device, which it judges.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from portagpu.devices.precision import Arithmetic, Support
from portagpu.train.exact.judge import (
    ACCUMULATOR_BITS,
    SIGNIFICANT_BITS,
    check_operands,
    check_range,
    check_subset,
    powers_of_two,
    subset_bound,
    with_negative_zeros,
)
from portagpu.train.exact.probe import Expected, Probe
from portagpu.train.exact.vectors import lacks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch
    from numpy import int64
    from numpy.typing import NDArray

    from portagpu.devices.contract import Backend
    from portagpu.train.exact.draws import Draws
    from portagpu.train.exact.judge import RowCheck, Wrong
    from portagpu.train.exact.probe import Work

_UNSATURATED: Final = 64
"""The largest integer of B in int8 with which CPUs without VNNI are exact: they add two products in
16 bits that saturate (oneDNN developer guide, Nuances of int8 computations)."""
_TRIED: Final = 32
"""Sides of the product that shows whether torch has it on a device: multiples of 16, as fp8
needs."""


@dataclass(frozen=True, slots=True)
class Form:
    """The operands of a product, A of shape (m, k) and B of shape (k, n).

    :param left: The largest magnitude of an integer of A.
    :param right: That of B.
    :param layout: The index along which A and the one along which B is contiguous.
    :param terms: How many elements of each column of B are not zero; 0 for all.
    :param toggles: Whether all bits of operands change from each term to the next.
    """

    m: int
    n: int
    k: int
    left: int
    right: int
    layout: str = "kn"
    terms: int = 0
    toggles: bool = False

    def times(self, scale: int) -> Form:
        """One with ``scale`` times as many results, as square as that allows."""
        rows = max(each for each in range(1, math.isqrt(scale) + 1) if scale % each == 0)
        return replace(self, m=self.m * rows, n=self.n * (scale // rows))


@dataclass(frozen=True, slots=True)
class Kind:
    """A format of operands, and what its products are written in.

    :param name: As probes have it: "tf32" is an arithmetic of float32.
    :param left: torch's name of A's format.
    :param right: torch's name of B's format.
    :param result: torch's name of the format of the results.
    :param exponents: From which to which power of two rows and columns are scaled.
    """

    name: str
    left: str
    right: str
    result: str
    exponents: tuple[int, int] = (0, 0)

    @property
    def bits(self) -> tuple[int, int]:
        """The significant bits that products keep of A's and of B's elements."""
        by_name = SIGNIFICANT_BITS.get(self.name)
        return by_name or SIGNIFICANT_BITS[self.left], by_name or SIGNIFICANT_BITS[self.right]


@dataclass(frozen=True, slots=True)
class Integers:
    """The integers of A and B, their powers of two, and their check; on the device.

    :param a: int64 of shape (m, k).
    :param b: int64 of shape (k, n).
    :param rows: The exponents of A's rows, int64 of shape (m, 1).
    :param columns: Those of B's columns, int64 of shape (1, n).
    """

    a: torch.Tensor
    b: torch.Tensor
    rows: torch.Tensor
    columns: torch.Tensor
    check: RowCheck

    @property
    def inputs(self) -> int:
        """How many elements the operands have."""
        return self.a.numel() + self.b.numel()

    def exact(self, rows: torch.Tensor) -> NDArray[int64]:
        """Rows of A B, computed on the host; ``rows`` are their indices."""
        # not by torch: its products may be what is broken, where the host is the device
        found: NDArray[int64] = self.a[rows].cpu().numpy() @ self.b.cpu().numpy()
        return found

    def scaled(self, exact: NDArray[int64], rows: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Those rows times their powers of two, as a result has them, on the host."""
        import numpy
        import torch

        found = torch.from_numpy(exact).to(dtype)
        if not dtype.is_floating_point:
            return found
        exponents = self.rows[rows].cpu().numpy() + self.columns.cpu().numpy()
        return torch.from_numpy(numpy.ldexp(found.numpy(), exponents))


@dataclass(frozen=True, slots=True)
class Summed:
    """A product whose every result is an exact integer times a power of two."""

    compute: Callable[[], torch.Tensor]
    of: Integers

    @property
    def results(self) -> int:
        """The number of elements of A B."""
        return self.of.a.shape[0] * self.of.b.shape[1]

    @property
    def inputs(self) -> int:
        """The number of elements of A and B."""
        return self.of.inputs

    def run(self) -> torch.Tensor:
        """Multiply once."""
        return self.compute()

    def judge(self, result: torch.Tensor) -> Wrong | None:
        """The wrong elements; those of at most ``MAX_LOCATED_ROWS`` rows have their places."""
        from portagpu.train.exact.judge import integers_of

        of = self.of
        if result.is_floating_point():
            dtype = str(result.dtype).removeprefix("torch.")
            scales = powers_of_two(of.rows, dtype), powers_of_two(of.columns, dtype)
            whole, bad = integers_of(result, *scales)
            wrong = of.check.wrong(whole).logical_or_(bad.any(1))
        else:
            wrong = of.check.wrong(result)
        if not bool(wrong.any()):
            return None
        return _located(result, of, wrong.nonzero().flatten())


@dataclass(slots=True)
class Rounded:
    """A product whose results are exact sums, rounded once.

    :param reference: The same product in float32, which is exact. It runs before the first
        judgement, and again as long as it is wrong itself.
    :param dtype: What the results are rounded to.
    """

    compute: Callable[[], torch.Tensor]
    reference: Summed
    dtype: torch.dtype
    _expected: torch.Tensor | None = field(default=None, init=False)

    @property
    def results(self) -> int:
        """The number of elements of A B."""
        return self.reference.results

    @property
    def inputs(self) -> int:
        """The number of elements of A and B."""
        return self.reference.inputs

    def run(self) -> torch.Tensor:
        """Multiply once."""
        return self.compute()

    def judge(self, result: torch.Tensor) -> Wrong | None:
        """The elements whose bits are not as expected; of the reference, where it is wrong."""
        from portagpu.train.exact.judge import differences

        if self._expected is None:
            found = self.reference.run()
            wrong = self.reference.judge(found)
            if wrong is not None:
                return wrong
            self._expected = found.to(self.dtype)
        return differences(result, self._expected)


def _located(result: torch.Tensor, of: Integers, rows: torch.Tensor) -> Wrong:
    """The wrong elements of wrong rows, the first of which are computed again on the host."""
    from portagpu.train.exact.judge import MAX_LOCATED_ROWS, differences_of_rows

    chosen = rows[:MAX_LOCATED_ROWS]
    exact = of.scaled(of.exact(chosen), chosen, result.dtype)
    wrong = differences_of_rows(result, chosen.cpu(), exact)
    # each further row has one wrong element or more
    return replace(wrong, count=wrong.count + int(rows.numel() - chosen.numel()))


def integers(draws: Draws, form: Form, exponents: tuple[int, int]) -> Integers:
    """Draw the operands of a product."""
    from portagpu.train.exact.judge import RowCheck

    draw = draws.toggling if form.toggles else draws.signed
    a = draw("a", (form.m, form.k), form.left)
    if form.terms:
        import torch

        block = form.k // form.terms
        values = draws.signed("b", (form.terms, 1, form.n), form.right)
        places = draws.integers("places", (form.terms, 1, form.n), 0, block - 1)
        empty = torch.zeros((form.terms, block, form.n), dtype=torch.int64, device=a.device)
        b = empty.scatter_(1, places, values).flatten(0, 1)
        a = a[:, : b.shape[0]]
    else:
        b = draw("b", (form.k, form.n), form.right)
    rows = draws.integers("rows", (form.m, 1), *exponents)
    columns = draws.integers("columns", (1, form.n), *exponents)
    return Integers(a, b, rows, columns, RowCheck.of(a, b, draws))


def check_sums(kind: Kind, of: Integers, what: str) -> None:
    """Raise NotExactError unless the sums of the product of these integers are exact."""
    operands = (of.a, kind.left, kind.bits[0]), (of.b, kind.right, kind.bits[1])
    bound = subset_bound(of.a, of.b)
    for each, _, bits in operands:
        check_operands(each, bits, what)
    by_name = ACCUMULATOR_BITS.get(kind.name)
    check_subset(bound, by_name or ACCUMULATOR_BITS[kind.left], what)
    if kind.result == "int32":
        return
    for each, dtype, _ in operands:
        check_range(float(each.abs().max()), kind.exponents, dtype, what)
    low, high = kind.exponents
    check_range(bound, (2 * low, 2 * high), kind.result, what)


def operand(values: torch.Tensor, exponents: torch.Tensor, dtype: str) -> torch.Tensor:
    """Integers times powers of two in a format that holds them exactly; half of zeros are -0."""
    import torch

    if not (kind := getattr(torch, dtype)).is_floating_point:
        return values.to(kind)
    # each integer fits the format of the powers
    return with_negative_zeros(powers_of_two(exponents, dtype) * values).to(kind)


def laid_out(matrix: torch.Tensor, along_rows: bool) -> torch.Tensor:
    """The same matrix, contiguous along its rows or along its columns."""
    return matrix.contiguous() if along_rows else matrix.t().contiguous().t()


@contextmanager
def exact_arithmetic(gpu: Backend, mode: str = "ieee") -> Iterator[None]:
    """Inside the block no partial sum is rounded to 16 bits; float32 products are in ``mode``."""
    import torch

    switches = torch.backends.cuda.matmul
    names = (
        "allow_bf16_reduced_precision_reduction",
        "allow_fp16_reduced_precision_reduction",
        "allow_fp16_accumulation",
    )
    before = {each: getattr(switches, each) for each in names}
    with gpu.set_float32_precision(mode):
        try:
            for each in names:
                setattr(switches, each, False)
            yield
        finally:
            for each, value in before.items():
                setattr(switches, each, value)


def multiply(gpu: Backend, kind: Kind, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """A B of operands in these formats, with exact sums."""
    import torch

    out = getattr(torch, kind.result)
    with exact_arithmetic(gpu, "tf32" if kind.name == "tf32" else "ieee"):
        if kind.left == "int8":
            return torch._int_mm(left, right)
        if kind.left.startswith("float8"):
            one = torch.ones((), device=left.device)
            return torch._scaled_mm(left, right, one, one, out_dtype=out)
        if kind.left != kind.result:
            return torch.mm(left, right, out_dtype=out)
        return left @ right


def judged(gpu: Backend, kind: Kind, of: Integers, compute: Callable[[], torch.Tensor]) -> Work:
    """Work whose results are the exact sums, rounded once if the format of the results needs it."""
    import torch

    if kind.result in ("float32", "float64", "int32"):
        return Summed(compute, of)
    # with few bits the matrix unit's own format of float32 is exact, and faster
    fast = gpu.precision.tf32 is Arithmetic.TF32 and max(kind.bits) <= SIGNIFICANT_BITS["tf32"]
    wide = Kind("tf32" if fast else "float32", "float32", "float32", "float32", kind.exponents)
    left, right = operand(of.a, of.rows, "float32"), operand(of.b, of.columns, "float32")
    reference = Summed(partial(multiply, gpu, wide, left, right), of)
    return Rounded(compute, reference, getattr(torch, kind.result))


def operands(kind: Kind, form: Form, draws: Draws) -> tuple[Integers, torch.Tensor, torch.Tensor]:
    """Integers, and A and B of them; raises NotExactError where sums of A B may not be exact."""
    of = integers(draws, form, kind.exponents)
    check_sums(kind, of, f"a product in {kind.name}")
    left = laid_out(operand(of.a, of.rows, kind.left), form.layout[0] == "k")
    return of, left, laid_out(operand(of.b, of.columns, kind.right), form.layout[1] == "n")


def make(kind: Kind, form: Form, gpu: Backend, draws: Draws, scale: int) -> Work:
    """A product of that kind; raises NotExactError where its sums may not be exact."""
    of, left, right = operands(kind, form.times(scale), draws)
    return judged(gpu, kind, of, partial(multiply, gpu, kind, left, right))


def make_single(kind: Kind, form: Form, gpu: Backend, draws: Draws, scale: int) -> Work:
    """A product with one term in each sum: two numbers of all bits, multiplied and rounded once."""
    form = form.times(scale)
    a = draws.signed("a", (form.m, form.k), form.left)
    values = draws.signed("b", (1, form.n), form.right)
    what = f"a product of one term in {kind.name}"
    for each, bits in zip((a, values), kind.bits, strict=True):
        check_operands(each, bits, what)
        check_range(float(1 << bits), kind.exponents, kind.left, what)
    low, high = kind.exponents
    check_range(2.0 ** sum(kind.bits), (2 * low, 2 * high), kind.result, what)
    places = draws.integers("places", (1, form.n), 0, form.k - 1)
    rows = draws.integers("rows", (form.m, 1), low, high)
    columns = draws.integers("columns", (1, form.n), low, high)
    left, terms = operand(a, rows, kind.left), operand(values, columns, kind.right)
    right = terms.new_zeros((form.k, form.n)).scatter_(0, places, terms)
    expected = left[:, places[0]] * terms
    left, right = laid_out(left, form.layout[0] == "k"), laid_out(right, form.layout[1] == "n")
    return Expected(partial(multiply, gpu, kind, left, right), expected, a.numel() + right.numel())


def refusal(kind: Kind, form: Form, gpu: Backend) -> str:
    """Why a device has no such product, in one line; empty where it has."""
    import torch

    if kind.name == "int8" and form.right > _UNSATURATED and torch.int8 in gpu.precision.saturates:
        return f"sums of two int8 products saturate on the {gpu.name} backend"
    if kind.name == "tf32" and gpu.precision.tf32 is not Arithmetic.TF32:
        return f"the {gpu.name} backend multiplies float32 in {gpu.precision.tf32}, not in tf32"
    fp8 = kind.left.startswith("float8")
    if fp8 and gpu.precision.support(getattr(torch, kind.left)) is not Support.NATIVE:
        return f"the {gpu.name} backend has no instructions for {kind.left}"
    for dtype in dict.fromkeys((kind.left, kind.right, kind.result)):
        if reason := lacks(dtype, gpu):
            return reason
    if kind.left == kind.right == kind.result:
        return ""
    # no list says which of these products torch has for a device
    ones = [
        torch.ones((_TRIED, _TRIED), device=gpu.device).to(getattr(torch, each))
        for each in (kind.left, kind.right)
    ]
    try:
        multiply(gpu, kind, ones[0], ones[1].t())
    except (torch.OutOfMemoryError, torch.AcceleratorError):
        raise
    except (RuntimeError, TypeError, ValueError) as error:
        first = str(error).partition("\n")[0].partition(". ")[0]
        return f"torch has no product of {kind.left} with results in {kind.result} here: {first}"
    return ""


_SCALED: Final = (-30, 30)
_HALF: Final = (-7, -5)
"""Rows and columns of float16: results of 1 and of 24 bits are normal numbers."""
_FP8: Final = (-6, 3)
_FP8_NAMES: Final = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
KINDS: Final = (
    Kind("float64", "float64", "float64", "float64", (-100, 100)),
    Kind("float32", "float32", "float32", "float32", _SCALED),
    Kind("tf32", "float32", "float32", "float32", _SCALED),
    Kind("bfloat16", "bfloat16", "bfloat16", "bfloat16", _SCALED),
    Kind("float16", "float16", "float16", "float16", _HALF),
    # products of two matrices of e5m2 exist nowhere
    *(
        Kind(left, left, right, "bfloat16", _FP8)
        for left, right in (
            ("float8_e4m3fn", "float8_e4m3fn"),
            ("float8_e5m2", "float8_e4m3fn"),
            ("float8_e4m3fnuz", "float8_e4m3fnuz"),
            ("float8_e5m2fnuz", "float8_e4m3fnuz"),
        )
    ),
    Kind("int8", "int8", "int8", "int32"),
)
_ELEVEN_BITS: Final = {
    "square": (255, 255),
    "square,kk": (2047, 31),
    "square,mn": (31, 2047),
    "deep": (63, 63),
}
_EIGHT_BITS: Final = {"square": (255, 255), "deep": (63, 63)}
_FOUR_BITS: Final = {"square": (7, 7), "deep": (3, 1)}
_INTEGERS: Final = {
    "float64": {
        "square": (1 << 22, 1 << 22),
        "square,kk": (1 << 26, 1 << 18),
        "square,mn": (1 << 18, 1 << 26),
        "deep": (1 << 20, 1 << 20),
    },
    "float32": _ELEVEN_BITS,
    "tf32": _ELEVEN_BITS,
    "bfloat16": _EIGHT_BITS,
    "float16": _ELEVEN_BITS,
    **dict.fromkeys(_FP8_NAMES, _FOUR_BITS),
    "int8": {"square": (127, _UNSATURATED)},
}
"""The largest integers by variant, else those of "square": sums reach two thirds of W."""
_TOGGLING: Final = {
    "float64": ((1 << 22) - 1, (1 << 22) - 1),
    "int8": (127, 63),
    **dict.fromkeys(("float32", "tf32", "bfloat16", "float16"), (255, 255)),
    **dict.fromkeys(_FP8_NAMES, (7, 7)),
}
_FULL: Final = {
    "float64": Form(256, 256, 64, (1 << 53) - 1, (1 << 53) - 1, terms=1),
    "float32": Form(256, 256, 64, (1 << 24) - 1, (1 << 24) - 1, terms=1),
    "tf32": Form(256, 256, 64, 2047, 2047, terms=4),
    "float16": Form(256, 256, 64, 2047, 2047, terms=4),
    **dict.fromkeys(("float8_e4m3fn", "float8_e4m3fnuz"), Form(256, 256, 128, 15, 15, "kk")),
    "int8": Form(256, 256, 512, 127, 127, "kk"),
}
"""Every significant bit of both operands is random. Other integers of bfloat16 have them all."""


def _forms(kind: Kind) -> Iterator[tuple[str, Form]]:
    """The operands of the probes of a kind, each with its variant's name."""
    largest = _INTEGERS[kind.name]
    # libraries take int8 and fp8 in this layout and in multiples of 16 alone
    aligned = kind.left.startswith(("int8", "float8"))
    square, usual = (256, 256, 512), "kk" if aligned else "kn"
    shapes = {
        "square": (*square, usual),
        **({} if aligned else {f"square,{layout}": (*square, layout) for layout in ("kk", "mn")}),
        "thin": (32 if aligned else 8, 1024, 512, usual),
        "odd": (*((144, 272, 400) if aligned else (131, 257, 383)), usual),
        # sums that libraries split
        "deep": (64, 64, 4096 if aligned else 8192, usual),
    }
    for variant, (m, n, k, layout) in shapes.items():
        yield variant, Form(m, n, k, *largest.get(variant, largest["square"]), layout)
    yield "toggling", Form(*square, *_TOGGLING[kind.name], usual, toggles=True)
    if kind.name in _FULL:
        yield "full", _FULL[kind.name]


def _probes() -> Iterator[Probe]:
    for kind in KINDS:
        forms = dict(_forms(kind))
        for variant, form in forms.items():
            yield _probe(kind, variant, form)
        if kind.result in ("bfloat16", "float16"):
            # all bits of the sums
            yield _probe(replace(kind, result="float32"), "square,float32", forms["square"])


def _probe(kind: Kind, variant: str, form: Form) -> Probe:
    by = make_single if form.terms == 1 else make
    name = f"products/{kind.name}[{variant}]"
    return Probe(name, kind.left, partial(by, kind, form), partial(refusal, kind, form))


PROBES: Final = tuple(_probes())

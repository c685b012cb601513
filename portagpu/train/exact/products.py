"""Matrix products of integers times powers of two; every element is judged in exact integers.

Results of 32 and 64 bits are judged by rows, modulo 2**64: no reference product is needed. Results
of 16 bits are the exact sum rounded once, and are compared with the float32 product of the same
operands, which is judged by rows too.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from portagpu.base.text import error_line
from portagpu.train.exact import judge
from portagpu.train.exact.probe import Expected, Probe
from portagpu.train.exact.rule import (
    ACCUMULATOR_BITS,
    SIGNIFICANT_BITS,
    check_operands,
    check_subset,
    powers_of_two,
    subset_bound,
)
from portagpu.train.exact.vectors import lacks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

    from portagpu.devices.contract import Backend
    from portagpu.train.exact.draws import Draws
    from portagpu.train.exact.judge import Wrong
    from portagpu.train.exact.probe import Work

_FP8: Final = ("float8_e4m3fn", "float8_e4m3fnuz")
_SHAPES: Final = {"square": (256, 256, 256), "thin": (1024, 16, 512), "odd": (257, 131, 255)}
"""(m, n, k); ``scale`` multiplies m. Products of 8 bits take multiples of 16 alone."""
_LAYOUTS: Final = {"square": "kn", "square,kk": "kk", "square,mn": "mn"}
"""The index along which A and the one along which B is contiguous."""
_VALUES: Final = {
    "float64": 1 << 21,
    "float32": 255,
    "tf32": 255,
    "bfloat16": 255,
    "float16": 255,
    **dict.fromkeys(_FP8, 7),
    "int8": 64,
}
"""The largest integer of both operands. int8 on x86 CPUs without VNNI adds pairs of products in
16 bits, which saturate where one operand is beyond 64 (oneDNN developer guide, Nuances of int8
computations)."""
_EXPONENTS: Final = {"float64": 60, "float32": 30, "tf32": 30, "bfloat16": 30}
"""Of the powers of two of scaled rows and columns, at most: products stay in the normal range."""
_HALF_EXPONENTS: Final = (-5, -4)
"""Of all rows and columns in float16, whose largest number is 65,504: sums below 2**24 fit."""
_SWITCHES: Final = (
    "allow_bf16_reduced_precision_reduction",
    "allow_fp16_reduced_precision_reduction",
    "allow_fp16_accumulation",
)
"""torch's switches under which partial sums may be rounded to 16 bits."""
_SPARSE: Final = {"float64": 1, "float32": 1, "float16": 4}
"""Terms of each element of a product of full mantissas: a single one is rounded once (IEEE 754),
and four of 22 bits are exact in 24."""


@dataclass(frozen=True, slots=True)
class Operands:
    """A of shape (m, k) and B of (k, n) as integers, and the powers of two of rows and columns."""

    a: torch.Tensor
    b: torch.Tensor
    rows: torch.Tensor
    columns: torch.Tensor
    dtype: str

    def left(self, kind: torch.dtype, layout: str = "k") -> torch.Tensor:
        """A in a dtype, contiguous along that index."""
        found = (self.a.to(self.rows.dtype) * self.rows).to(kind)
        return found if layout == "k" else found.t().contiguous().t()

    def right(self, kind: torch.dtype, layout: str = "n") -> torch.Tensor:
        """B in a dtype, contiguous along that index."""
        found = (self.b.to(self.columns.dtype) * self.columns).to(kind)
        return found if layout == "n" else found.t().contiguous().t()


@dataclass(frozen=True, slots=True)
class Rows:
    """A product whose exact sums fit its result: judged by rows."""

    compute: Callable[[], torch.Tensor]
    operands: Operands
    draws: Draws

    @property
    def results(self) -> int:
        """m n."""
        return self.operands.a.shape[0] * self.operands.b.shape[1]

    @property
    def inputs(self) -> int:
        """m k + k n."""
        return self.operands.a.numel() + self.operands.b.numel()

    def run(self) -> torch.Tensor:
        """Compute once."""
        return self.compute()

    def judge(self, result: torch.Tensor) -> Wrong | None:
        """The wrong elements, of the first rows that have any."""
        import torch

        given = self.operands
        if result.is_floating_point():
            whole, bad = judge.integers_of(result, given.rows, given.columns)
            wrong = judge.wrong_rows(whole, given.a, given.b, self.draws)
            rows = torch.unique(torch.cat([wrong, bad.any(1).nonzero().flatten()]))
        else:
            rows = judge.wrong_rows(result.to(torch.int64), given.a, given.b, self.draws)
        if not rows.numel():
            return None
        chosen = rows[: judge.MAX_LOCATED_ROWS].cpu()
        # on the host, in integers: torch multiplies int64 there
        exact = given.a.cpu()[chosen] @ given.b.cpu()
        if result.is_floating_point():
            wide = exact.to(given.rows.dtype) * given.rows.cpu()[chosen] * given.columns.cpu()
            exact = wide.to(result.dtype)
        return judge.differences_of_rows(result, chosen, exact.to(result.dtype))


@dataclass(slots=True)
class Rounded:
    """A product with a result of 16 bits: the float32 product of the same operands, rounded."""

    compute: Callable[[], torch.Tensor]
    wide: Rows
    _expected: torch.Tensor | None = field(default=None, init=False)

    @property
    def results(self) -> int:
        """m n."""
        return self.wide.results

    @property
    def inputs(self) -> int:
        """m k + k n."""
        return self.wide.inputs

    def run(self) -> torch.Tensor:
        """Compute once."""
        return self.compute()

    def judge(self, result: torch.Tensor) -> Wrong | None:
        """The wrong elements; of the float32 product, where that is wrong."""
        if self._expected is None:
            wide = self.wide.run()
            wrong = self.wide.judge(wide)
            if wrong is not None:
                return wrong
            self._expected = wide.to(result.dtype)
        return judge.differences(result, self._expected)


@contextmanager
def exact_arithmetic(gpu: Backend, dtype: str) -> Iterator[None]:
    """float32 as it is meant, and no partial sums in 16 bits; as before at the end."""
    import torch

    switches = torch.backends.cuda.matmul
    before = {name: getattr(switches, name) for name in _SWITCHES if hasattr(switches, name)}
    try:
        for name in before:
            setattr(switches, name, False)
        with gpu.set_float32_precision("tf32" if dtype == "tf32" else "ieee"):
            yield
    finally:
        for name, value in before.items():
            setattr(switches, name, value)


def _random_operands(dtype: str, draws: Draws, m: int, n: int, k: int, scaled: bool) -> Operands:
    """Integers of the whole range that the rule allows, and powers of two where they are scaled."""
    largest = _VALUES[dtype]
    bits = ACCUMULATOR_BITS[dtype]
    # the mean square of uniform integers from -v to v is v (v + 1) / 3
    while largest > 1 and k * largest * (largest + 1) / 3 > 2**bits / 1.1:
        largest //= 2
    a = draws.integers("a", (m, k), -largest, largest)
    b = draws.integers("b", (k, n), -largest, largest)
    check_operands(a, SIGNIFICANT_BITS[dtype], f"a product in {dtype}")
    check_subset(subset_bound(a, b), bits, f"a product in {dtype}")
    return _with_powers(dtype, draws, a, b, scaled)


def _with_powers(
    dtype: str, draws: Draws, a: torch.Tensor, b: torch.Tensor, scaled: bool
) -> Operands:
    most = _EXPONENTS.get(dtype, 0) if scaled else 0
    rows = draws.integers("row powers", (a.shape[0], 1), -most, most)
    columns = draws.integers("column powers", (1, b.shape[1]), -most, most)
    if dtype == "float16":
        rows, columns = rows + _HALF_EXPONENTS[0], columns + _HALF_EXPONENTS[1]
    return Operands(a, b, powers_of_two(rows, dtype), powers_of_two(columns, dtype), dtype)


def _multiply(gpu: Backend, dtype: str, given: Operands, layout: str) -> Callable[[], torch.Tensor]:
    """A B by torch's product for that dtype."""
    import torch

    if dtype == "int8":
        left, right = given.a.to(torch.int8), given.b.to(torch.int8).t().contiguous().t()
        return lambda: torch._int_mm(left, right)
    kind = torch.float32 if dtype == "tf32" else getattr(torch, dtype)
    if dtype in _FP8:
        left, right = given.left(kind), given.right(kind, "k")
        one = torch.ones((), device=left.device)
        return lambda: torch._scaled_mm(left, right, one, one, out_dtype=torch.bfloat16)
    left, right = given.left(kind, layout[0]), given.right(kind, layout[1])

    def multiplied() -> torch.Tensor:
        with exact_arithmetic(gpu, dtype):
            return left @ right

    return multiplied


def _work(gpu: Backend, draws: Draws, dtype: str, given: Operands, layout: str) -> Work:
    """The product, with who judges it."""
    compute = _multiply(gpu, dtype, given, layout)
    if dtype in ("float64", "float32", "tf32", "int8"):
        return Rows(compute, given, draws)
    return Rounded(compute, Rows(_multiply(gpu, "float32", given, "kn"), given, draws))


def _make(variant: str, dtype: str, gpu: Backend, draws: Draws, scale: int) -> Work:
    shape, _, along = variant.partition(",")
    m, n, k = _SHAPES[shape]
    layout = along if along in _LAYOUTS.values() else "kn"
    given = _random_operands(dtype, draws, m * scale, n, k, along == "scaled")
    return _work(gpu, draws, dtype, given, layout)


def _make_full(dtype: str, gpu: Backend, draws: Draws, scale: int) -> Work:
    """All bits of the fraction in both operands; few terms, so that no sum is rounded twice."""
    import torch

    m, n, k = _SHAPES["square"]
    m *= scale
    bits, terms = SIGNIFICANT_BITS[dtype], _SPARSE[dtype]
    a = _full(draws.bits("a", (m, k)), bits)
    # each column of B has that many terms, one in each part of k
    part = k // terms
    places = draws.integers("places", (terms, n), 0, part - 1)
    places = places + torch.arange(terms, device=places.device)[:, None] * part
    chosen = _full(draws.bits("b", (terms, n)), bits)
    b = torch.zeros((k, n), dtype=torch.int64, device=a.device).scatter(0, places, chosen)
    if terms > 1:
        check_subset(terms * 4.0**bits, ACCUMULATOR_BITS[dtype], f"a product in {dtype}")
        return _work(gpu, draws, dtype, _with_powers(dtype, draws, a, b, scaled=False), "kn")
    given = _with_powers(dtype, draws, a, b, scaled=True)
    kind = getattr(torch, dtype)
    left, right = given.left(kind), given.right(kind)
    # one term: each element is one product, rounded once
    expected = left[:, places[0]] * right.gather(0, places[:1])
    return Expected(_multiply(gpu, dtype, given, "kn"), expected, a.numel() + terms * n)


def _full(random: torch.Tensor, bits: int) -> torch.Tensor:
    """Odd integers of that many bits, of either sign."""
    return (random >> 63 | 1) * (random & ((1 << bits) - 1) | 1)


def _refuses(dtype: str, gpu: Backend) -> str:
    import torch

    if dtype == "int8":
        return _refused(lambda: torch._int_mm(*_ones(gpu, torch.int8)), "int8")
    if dtype in _FP8:
        fp8, kind = gpu.precision.fp8, getattr(torch, dtype)
        if fp8 is None or kind != fp8.e4m3:
            return f"the {gpu.name} backend does not multiply {dtype} by itself"
        one = torch.ones((), device=gpu.device)
        given = (*_ones(gpu, kind), one, one)
        return _refused(lambda: torch._scaled_mm(*given, out_dtype=torch.bfloat16), dtype)
    return lacks("float32" if dtype == "tf32" else dtype, gpu)


def _ones(gpu: Backend, kind: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    import torch

    ones = torch.ones((32, 32), device=gpu.device).to(kind)
    return ones, ones.t()


def _refused(product: Callable[[], object], dtype: str) -> str:
    """Why torch refuses a product; empty if it runs."""
    try:
        product()
    except (RuntimeError, TypeError, ValueError) as error:
        return f"torch has no product in {dtype} here: {error_line(error)}"
    return ""


def _probe(dtype: str, variant: str, make: Callable[[Backend, Draws, int], Work]) -> Probe:
    return Probe(f"products/{dtype}[{variant}]", dtype, make, partial(_refuses, dtype))


def _probes() -> Iterator[Probe]:
    wide = ("float64", "float32", "tf32", "bfloat16", "float16")
    for dtype in wide:
        for variant in (*_LAYOUTS, "thin", "odd"):
            yield _probe(dtype, variant, partial(_make, variant, dtype))
        if dtype in _EXPONENTS:
            yield _probe(dtype, "square,scaled", partial(_make, "square,scaled", dtype))
        if dtype in _SPARSE:
            yield _probe(dtype, "full", partial(_make_full, dtype))
    for dtype in (*_FP8, "int8"):
        for variant in ("square", "thin"):
            yield _probe(dtype, variant, partial(_make, variant, dtype))


PROBES: Final = tuple(_probes())

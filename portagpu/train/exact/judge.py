"""When a result has the same bits in any order of its sums, and the judge of its elements: every
one, and without a threshold. Torch is needed where the judge is called.

Each operand is an integer times a power of two, one power for each row of A and each column of B.
An output is then an integer sum times a power of two. Its **subset** is the larger of the sum of
its positive products and minus the sum of its negative ones, in units of that power. Every partial
sum, in any order, tree or split, lies between minus and plus subset. So the result is exact if
subset <= 2**W, every operand fits its format, and nothing leaves the normal range. W is the number
of bits that the narrowest accumulator keeps.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from portagpu.train.exact.draws import Draws


SIGNIFICANT_BITS: Final = {
    "float64": 53,
    "float32": 24,
    "tf32": 11,
    "bfloat16": 8,
    "float16": 11,
    "float8_e4m3fn": 4,
    "float8_e4m3fnuz": 4,
    "float8_e5m2": 3,
    "float8_e5m2fnuz": 3,
    "int8": 8,
    "int16": 16,
    "int32": 32,
    "int64": 64,
}
"""The bits of the largest n of which a format holds every integer of n bits and a sign (IEEE 754;
OCP 8-bit floating point specification 1.0)."""
EXPONENTS: Final = {
    "float64": (-1022, 1023),
    "float32": (-126, 127),
    "tf32": (-126, 127),
    "bfloat16": (-126, 127),
    "float16": (-14, 15),
    "float8_e4m3fn": (-6, 8),
    "float8_e4m3fnuz": (-7, 7),
    "float8_e5m2": (-14, 15),
    "float8_e5m2fnuz": (-15, 15),
}
"""The exponents of the smallest and largest normal numbers of a format. Subnormal ones may be
flushed to zero (16 bits on CDNA 2)."""
ACCUMULATOR_BITS: Final = {
    "float64": 53,
    "float32": 24,
    "tf32": 24,
    "bfloat16": 24,
    "float16": 24,
    "int8": 31,
    **dict.fromkeys(("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"), 14),
}
"""W of products by the format of their operands, where partial sums are not rounded to 16 bits: 14
in fp8 on Ada and Hopper (DeepSeek-V3 technical report, arXiv 2412.19437, section 3.3.2), else that
of binary32, binary64 and int32 (matrix units from Volta to Blackwell and of CDNA 1 to 3: MMA-Sim,
arXiv 2511.10909)."""


class NotExactError(ValueError):
    """The operands do not keep the rule, so that a result may depend on the order of its sums."""


def subset_bound(a: torch.Tensor, b: torch.Tensor) -> float:
    """An upper bound of the subset of every output of A B.

    A subset is not above the sum of ``|a b|``, which is not above the product of the norms of a row
    and a column (Cauchy and Schwarz), nor the largest of one times the sum of the other.

    :param a: Integers of shape (m, k).
    :param b: Integers of shape (k, n).
    """
    if not a.numel() or not b.numel():
        return 0.0
    left, right = a.abs(), b.abs()
    by_row = int(left.sum(1).max()) * int(right.max())
    by_column = int(right.sum(0).max()) * int(left.max())
    # squares of 53 bits do not fit int64, and not every device has float64
    squares = left.float().square().sum(1).max(), right.float().square().sum(0).max()
    rounded = 1 + (a.shape[1] + 2) * 2.0**-23
    return min(math.sqrt(math.prod(map(float, squares))) * rounded, by_row, by_column)


def fullest(terms: int, bits: int, most: tuple[int, int]) -> tuple[int, int]:
    """The largest v and w of which random integers of -v to v and of -w to w have exact sums.

    They are as equal as ``most`` allows. The squares of such integers are v (v + 1) / 3 on average,
    and the norm of a row or a column is above that of the average by 6 deviations at most, of
    0.9 / sqrt(terms) each. What is drawn has to be checked all the same (``subset_bound``).

    :param terms: How many products a sum has.
    :param bits: W, the bits that the narrowest accumulator keeps.
    :param most: The largest integers that the formats of the operands hold.
    :returns: v and w; zeros where not even integers of -1 to 1 are exact.
    """
    above = 1 + 6 * 0.9 / math.sqrt(terms)

    def fits(v: int, w: int) -> bool:
        average = math.sqrt(v * (v + 1) * w * (w + 1)) / 3
        return terms * min(average * above, v * w) <= 2.0**bits

    v = min(_largest(lambda each: fits(each, each), max(most)), most[0])
    w = _largest(lambda each: fits(v, each), most[1]) if v else 0
    return (_largest(lambda each: fits(each, w), most[0]), w) if w else (0, 0)


def _largest(fits: Callable[[int], bool], most: int) -> int:
    """The largest integer of up to ``most`` that fits, where all smaller ones do; else 0."""
    low = 0
    while low < most:
        middle = (low + most + 1) // 2
        low, most = (middle, most) if fits(middle) else (low, middle - 1)
    return low


def check_subset(bound: float, bits: int, what: str) -> None:
    """Raise NotExactError where a subset may be above 2**bits."""
    if bound > 2.0**bits:
        raise NotExactError(
            f"{what} would not be exact: partial sums reach {bound:.4g}, and {bits} bits hold "
            f"{2**bits}"
        )


def check_operands(integers: torch.Tensor, bits: int, what: str) -> None:
    """Raise NotExactError where an integer may not fit ``bits`` significant bits."""
    largest = int(integers.abs().max()) if integers.numel() else 0
    if largest > 1 << bits:
        raise NotExactError(f"{what} would not be exact: {largest} has more than {bits} bits")


def check_range(largest: float, exponents: tuple[int, int], dtype: str, what: str) -> None:
    """Raise NotExactError where numbers may leave the normal range of a format.

    :param largest: The largest magnitude of the integers; the smallest that is not zero is 1.
    :param exponents: The smallest and the largest power of two that multiplies them.
    :param dtype: torch's name of the format.
    """
    low, high = EXPONENTS[dtype]
    smallest, greatest = exponents
    if smallest < low or largest > 2.0 ** (high - greatest):
        raise NotExactError(
            f"{what} would not be exact: from 2^{smallest} to {largest:.4g} * 2^{greatest} is not "
            f"in the normal range of {dtype}, 2^{low} to 2^{high}"
        )


def powers_of_two(exponents: torch.Tensor, dtype: str) -> torch.Tensor:
    """2**e of each exponent, exactly, made of bits: a device's ``exp2`` may round.

    :param exponents: int64, within the normal range of ``dtype``.
    :param dtype: "float64", or any other format, whose powers are given in float32.
    """
    import torch

    if dtype == "float64":
        return ((exponents + 1023) << 52).view(torch.float64)
    return ((exponents + 127) << 23).to(torch.int32).view(torch.float32)


def with_negative_zeros(values: torch.Tensor) -> torch.Tensor:
    """Floating-point values in place, zeros of every second row negative: sums stay the same."""
    odd = values[1::2]
    odd.masked_fill_(odd == 0, -0.0)
    return values


_INTEGER_OF: Final = {1: "int8", 2: "int16", 4: "int32", 8: "int64"}
MAX_LOCATED_ROWS: Final = 256
"""Rows that are computed again on the host, to name the wrong elements."""


@dataclass(frozen=True, slots=True)
class Wrong:
    """The wrong elements of one result, on the host.

    :param count: How many are wrong; at least this many where not all rows were computed again.
    :param shape: The shape of the result.
    :param places: Their indices in the flattened result, int64, in order; shape (located,).
    :param found: Their bits, as integers of the result's size; shape (located,).
    :param expected: The bits that they should have; shape (located,).
    """

    count: int
    shape: tuple[int, ...]
    places: torch.Tensor
    found: torch.Tensor
    expected: torch.Tensor
    dtype: str

    def digest(self) -> str:
        """The first 16 hexadecimal digits of the SHA-256 of places and bits.

        Two devices with the same digest are wrong in the same bits.
        """
        parts = (self.places, self.found)
        return hashlib.sha256(b"".join(each.numpy().tobytes() for each in parts)).hexdigest()[:16]


def bit_patterns(values: torch.Tensor) -> torch.Tensor:
    """The bits of each element as an integer of its size; both zeros of a format count as +0."""
    import torch

    if values.dtype is torch.bool:
        return values.to(torch.int8)
    if not (values.is_floating_point() or values.is_complex()):
        return values
    if values.is_complex():
        values = torch.view_as_real(values)
    kind = getattr(torch, _INTEGER_OF[values.element_size()])
    bits = values.contiguous().view(kind)
    lowest = torch.iinfo(kind).min
    # formats without a negative zero have NaN there
    zero_is_nan = str(values.dtype).endswith("fnuz")
    return bits if zero_is_nan else bits.masked_fill(bits == lowest, 0)


def complement(values: torch.Tensor) -> None:
    """Invert each bit in place: what keeps an old result, or judges nothing, is then seen."""
    import torch

    if values.is_floating_point():
        # not of a copy: the memory itself
        values = values.view(getattr(torch, _INTEGER_OF[values.element_size()]))
    values.bitwise_not_()


def digest(values: torch.Tensor) -> str:
    """The SHA-256 of a result's bits, row by row and little-endian, in hexadecimal digits."""
    return hashlib.sha256(bit_patterns(values).cpu().contiguous().numpy().tobytes()).hexdigest()


def differences(found: torch.Tensor, expected: torch.Tensor) -> Wrong | None:
    """The elements whose bits differ from those of ``expected``; None where all are the same.

    :param found: A result on a device.
    :param expected: What it should be: the same shape and dtype, on the same device.
    """
    ours, theirs = bit_patterns(found), bit_patterns(expected)
    wrong = ours != theirs
    if not bool(wrong.any()):
        return None
    places = wrong.flatten().nonzero().flatten()
    return Wrong(
        int(places.numel()),
        tuple(found.shape),
        places.cpu(),
        ours.flatten()[places].cpu(),
        theirs.flatten()[places].cpu(),
        str(found.dtype).removeprefix("torch."),
    )


def differences_of_rows(result: torch.Tensor, rows: torch.Tensor, expected: torch.Tensor) -> Wrong:
    """The wrong elements of rows of which some element is wrong.

    :param result: A result on a device, shape (m, n).
    :param rows: The indices of the wrong rows, int64, on the host.
    :param expected: What these rows should be, of the same dtype, on the host.
    :returns: What is wrong; no places where the rows are right after all, so that the arithmetic of
        the check itself went wrong: then ``count`` is the number of rows.
    """
    columns = result.shape[1]
    found = differences(result[rows.to(result.device)].cpu(), expected)
    if found is None:
        none = rows[:0]
        kind = str(result.dtype).removeprefix("torch.")
        return Wrong(int(rows.numel()), tuple(result.shape), none, none, none, kind)
    places = rows[found.places // columns] * columns + found.places % columns
    return replace(found, shape=tuple(result.shape), places=places)


def multiply_modulo(matrix: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
    """A matrix of int64, shape (m, n), times a vector, shape (n,), modulo 2**64; shape (m,).

    Elementwise, because torch's matrix products take int64 on no GPU.
    """
    return (matrix * vector).sum(1)


def integers_of(
    found: torch.Tensor, row_scale: torch.Tensor, column_scale: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """A result in units of its row's and column's power of two, and which elements are not whole.

    :param found: Floating-point results, shape (m, n).
    :param row_scale: The powers of two of the rows, of the same dtype; shape (m, 1).
    :param column_scale: Those of the columns; shape (1, n). A product of one of each is normal.
    :returns: int64 of shape (m, n), which means nothing where an element is not an integer in units
        of its powers of two; bool of shape (m, n).
    """
    import torch

    power = row_scale * column_scale
    whole = (found / power).to(torch.int64)
    # converted back: NaN, infinity, fractions and what the division flushed to zero all differ
    return whole, whole.to(found.dtype).mul_(power) != found


@dataclass(frozen=True, slots=True)
class RowCheck:
    """Checks each row of C = A B: C r and A (B r) have to be the same, modulo 2**64.

    ``r`` is a vector of random odd integers, so that a row with one wrong element always differs;
    several wrong ones, whose errors have no common factor above 2**40, cancel with a probability of
    at most 2**-23.

    :param vector: r, int64 of shape (n,).
    :param wanted: A (B r), int64 of shape (m,).
    """

    vector: torch.Tensor
    wanted: torch.Tensor

    @classmethod
    def of(cls, a: torch.Tensor, b: torch.Tensor, draws: Draws) -> RowCheck:
        """The check of the product of two matrices of int64, shapes (m, k) and (k, n).

        :param draws: Random integers on the device of the matrices.
        """
        vector = draws.odd("row check", (b.shape[1],))
        return cls(vector, multiply_modulo(a, multiply_modulo(b, vector)))

    def wrong(self, result: torch.Tensor) -> torch.Tensor:
        """The wrong rows of C, int64 of shape (m, n); bool of shape (m,)."""
        return multiply_modulo(result, self.vector) != self.wanted


def wrong_rows(
    result: torch.Tensor, a: torch.Tensor, b: torch.Tensor, draws: Draws
) -> torch.Tensor:
    """The indices of the rows of C = A B that are wrong (``RowCheck``), int64.

    :param result: C, int64 of shape (m, n).
    :param a: int64 of shape (m, k).
    :param b: int64 of shape (k, n).
    :param draws: Random integers on the device of the result.
    """
    return RowCheck.of(a, b, draws).wrong(result).nonzero().flatten()

"""Judges every element of a result, without a threshold; needs torch where it is called."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import torch

    from portagpu.train.exact.draws import Draws

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

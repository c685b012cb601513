"""Where wrong elements are: made patterns, with what they have in common worked out by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from portagpu.suites.screen.tally import Where, few_residues, locate, period

if TYPE_CHECKING:
    from collections.abc import Sequence


def found_at(
    places: Sequence[int],
    shape: Sequence[int],
    *,
    found: int = 0b0001,
    expected: int = 0b0101,
    dtype: str = "int32",
    bits: int = 32,
    lanes: int | None = None,
) -> Where:
    """Where ``places`` are, if all of them have the same bits."""
    many = len(places)
    return locate(places, shape, [found] * many, [expected] * many, dtype, bits, lanes)


def test_one_element() -> None:
    where = found_at([13], (4, 8))
    assert (where.form, where.rows, where.columns) == ("one element", (1, 1), (5, 5))
    assert where.bits == {2: 1}
    assert where.one_bit == 1
    assert where.sentence.endswith("consistent with one unit")


def test_one_column() -> None:
    where = found_at([3, 11, 19, 27], (4, 8))
    assert (where.form, where.rows, where.columns) == ("one column", (0, 3), (3, 3))
    assert (where.distinct_rows, where.distinct_columns) == (4, 1)
    assert where.row_period is None, "neighbours do not repeat"
    assert where.bits == {2: 4}


def test_one_row() -> None:
    where = found_at(range(16, 24), (4, 8))
    assert (where.form, where.rows, where.columns) == ("one row", (2, 2), (0, 7))


def test_a_tile() -> None:
    tile = [64 * row + column for row in range(16, 32) for column in range(32, 48)]
    where = found_at(tile, (64, 64))
    assert (where.form, where.rows, where.columns) == ("a rectangle", (16, 31), (32, 47))
    assert where.row_period is where.column_period is None
    assert where.residues == {}, "every residue modulo 16 occurs"
    assert where.has_pattern


def test_four_neighbours_every_sixteen_columns_of_every_fourth_row() -> None:
    columns = [16 * group + own for group in range(8) for own in range(4)]
    where = found_at(
        [128 * row + column for row in range(0, 64, 4) for column in columns], (64, 128)
    )
    assert where.form == "scattered"
    assert (where.row_period, where.column_period) == (4, 16)
    assert where.residues["columns modulo 16"] == (0, 1, 2, 3)
    assert where.residues["columns modulo 32"] == (0, 1, 2, 3, 16, 17, 18, 19)
    assert where.residues["rows modulo 16"] == (0, 4, 8, 12)
    assert "columns repeat every 16" in where.sentence
    assert where.sentence.endswith("consistent with one unit")


def test_one_lane_of_a_warp() -> None:
    where = found_at(range(7, 1024, 32), (1024,), lanes=32)
    assert where.form == "scattered"
    assert where.lanes == (7,)
    assert where.column_period == 32
    assert "lanes 7" in where.sentence


def test_a_device_without_warps_has_no_lanes() -> None:
    for lanes in (None, 1):
        assert found_at(range(7, 1024, 32), (1024,), lanes=lanes).lanes == ()


def test_neighbours_of_a_vector_are_no_row() -> None:
    assert found_at(range(40, 56), (1024,)).form == "neighbours"
    assert found_at(range(64), (64,)).form == "all elements"


def test_places_without_a_pattern_say_nothing_of_a_unit() -> None:
    # quadratic residues have no period, and fill too many residues of every modulus
    places = sorted({each * each % 4093 for each in range(1, 400)})
    where = found_at(places, (64, 64))
    assert where.form == "scattered"
    assert where.row_period is where.column_period is None
    assert not where.has_pattern
    assert "unit" not in where.sentence


def test_more_dimensions_are_rows_of_the_last_one() -> None:
    where = found_at([2 * 32 + 5], (2, 2, 32))
    assert (where.rows, where.columns) == ((2, 2), (5, 5))


def test_what_became_of_elements() -> None:
    nan, infinite, zero, minus_zero = 0x7FC00000, 0x7F800000, 0, -0x80000000
    good = 0x3F800000
    flipped = good ^ 0x81
    found = [nan, infinite, zero, minus_zero, flipped]
    where = locate(range(5), (5, 1), found, [good] * 5, "float32", 32)
    assert where.kinds == {"not a number": 2, "zeroed": 2, "flipped": 1}
    assert where.one_bit == 1, "infinity is one bit from 1.0"
    # of 0x3f800000 and 0x7f800000 bit 30 differs, and of nan bit 22 too
    assert where.bits[30] == 2
    assert where.bits[22] == 1
    assert where.bits[0] == where.bits[7] == 1


def test_a_negative_integer_has_the_bits_of_its_size() -> None:
    where = found_at([0], (4,), found=-1, expected=0, dtype="int8", bits=8)
    assert where.bits == dict.fromkeys(range(8), 1)
    assert where.kinds == {"flipped": 1}


def test_the_full_exponent_of_e4m3_has_numbers() -> None:
    assert found_at([0], (4,), found=0x78, dtype="float8_e4m3fn", bits=8).kinds == {"flipped": 1}
    assert found_at([0], (4,), found=0x7F, dtype="float8_e4m3fn", bits=8).kinds == {
        "not a number": 1
    }


def test_periods() -> None:
    for places, expected in (
        ([0, 8, 16, 24], 8),
        ([3, 4, 11, 12, 19, 20], 8),
        ([1, 2, 3, 4, 5], None),
        ([0, 8], None),
        ([0, 5, 7, 20, 33], None),
        # one of twenty is right by chance
        ([each for each in range(0, 160, 8) if each != 72], 8),
    ):
        assert period(places) == expected, places


def test_residues_are_few_or_none() -> None:
    assert few_residues([5, 21, 37], 16) == (5,)
    assert few_residues([5, 9], 16) == (), "one period was not seen twice"
    assert few_residues(range(64), 16) == ()
    assert few_residues([], 16) == ()


def test_few_places_have_few_residues_by_chance() -> None:
    # eleven places have at most eleven residues of 64, wherever they are
    places = [4, 27, 37, 96, 129, 158, 220, 293, 352, 391, 487]
    assert few_residues(places, 64) == ()
    assert few_residues([5, 21], 16) == (), "in one case of sixteen"
    assert few_residues([64 * each + 7 for each in range(11)], 64) == (7,)

"""What was judged of one probe on one device up to now, as ranks report it batch by batch; what a
number of right results says, in words too; and where the wrong elements of a result are: rows,
columns, periods, lanes and bits.

Places are found by pure functions on lists of integers. What they find may be consistent with one
unit of a device, and never proves one: other faults leave the same pattern.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.units import count, number

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from portagpu.runs.results.advice import Separation


RULE_OF_THREE: Final = 3.0
"""Where none of n is wrong, a rate of 3/n would have shown one with a probability of 95 %: exp(-3)
is 0.0498 (Hanley and Lippman-Hand, JAMA 249, 1983)."""
REPEATS: Final = 100
"""How often the operands of a wrong result are run again."""


def excluded_rate(results: int) -> float | None:
    """The rate of wrong results that this many right ones exclude at 95 %; None below three."""
    return RULE_OF_THREE / results if results >= RULE_OF_THREE else None


def judged_in_words(results: int, inputs: int) -> str:
    """ "65,536 results of 131,072 inputs, none wrong: a rate above 4.6e-05 ... is excluded"."""
    said = f"{number(results, 12)} results of {number(inputs, 12)} inputs, none wrong"
    rate = excluded_rate(results)
    if rate is None:
        return said
    return f"{said}: a rate above {rate:.2g} on such inputs is excluded at 95 %"


def recurrence(wrong: int, runs: int) -> str:
    """ "permanent", "intermittent" or "gone": whether the same operands go wrong again."""
    if not runs:
        return "not repeated"
    if not wrong:
        return "gone"
    return "permanent" if wrong == runs else "intermittent"


def recurrence_in_words(wrong: int, runs: int, outcomes: int = 0) -> str:
    """ "intermittent: wrong in 7 of 100 repetitions of the same operands, in 7 ways".

    :param outcomes: In how many different bits and places; 0 where it is not known.
    """
    kind = recurrence(wrong, runs)
    if not runs:
        return "the operands were not run again"
    said = f"{kind}: wrong in {wrong} of {count(runs, 'repetition')} of the same operands"
    if wrong < 2 or not outcomes:
        return said
    return f"{said}, {'in the same bits' if outcomes == 1 else f'in {outcomes} ways'}"


AGAIN: Final = " again"
"""What follows the name of a probe in the step of a rank that runs another's operands."""
BY_UNIT: Final = " by unit"
"""The same of a rank that asks on which unit a wrong product is computed."""
_MAX_READINGS: Final = 512
"""Of one probe on one device."""


@dataclass(slots=True)
class Tally:
    """Counts of one probe on one device, and why there are no more.

    Times are in seconds. ``batches`` are those of the campaign, without the one whose digest is
    published.
    """

    results: int = 0
    inputs: int = 0
    batches: int = 0
    seconds: float = 0.0
    judging_s: float = 0.0
    scale: int = 0
    """The largest that a batch had."""
    refused: str = ""
    """Why the device cannot run it."""
    stopped: str = ""
    """Why it ended early, where nothing was wrong."""
    broke: str = ""
    """The error that it raised."""
    blind: bool = False
    """Whether the device saw nothing wrong in a result with one wrong element."""
    digest: str = ""
    """Of the published seed, in hexadecimal digits."""
    failure: dict[str, Any] | None = None
    """The wrong result: batch, seed, scale, how many, where, and what repetitions gave."""
    separation: Separation | None = None
    """What computed wrong, where its peers were asked."""
    ended: dict[str, Any] | None = None
    """Fields of a result, where the rank died or hung in it."""
    unreadable: str = ""
    """Why clocks, power and temperature cannot be read."""
    readings: list[Mapping[str, float]] = field(default_factory=list)
    """Clocks, power and temperature next to batches."""

    def add(self, record: Mapping[str, Any]) -> None:
        """Count what a rank reports of a batch."""
        self.results += record.get("results", 0)
        self.inputs += record.get("inputs", 0)
        self.batches += record.get("batches", 0)
        self.seconds += record.get("seconds", 0.0)
        self.judging_s += record.get("judging_s", 0.0)
        self.scale = max(self.scale, record.get("scale", 0))
        for key in ("refused", "stopped", "broke", "blind", "digest", "failure", "unreadable"):
            setattr(self, key, record.get(key) or getattr(self, key))
        if record.get("telemetry"):
            self.readings.append(record["telemetry"])
            if len(self.readings) > _MAX_READINGS:
                # a long screen keeps every second one, over all of its time
                del self.readings[::2]

    @property
    def open(self) -> bool:
        """Whether further batches may run."""
        reasons = (self.refused, self.stopped, self.broke, self.blind, self.failure, self.ended)
        return not any(reasons)


MODULI: Final = (16, 32, 64, 128)
"""Sizes of tiles, warps and vector instructions."""
MAX_PLACES: Final = 1 << 16
"""Wrong elements that are looked at; the first ones of a result."""
_FRACTION_BITS: Final = {
    "float64": (52, 11),
    "float32": (23, 8),
    "float16": (10, 5),
    "bfloat16": (7, 8),
    "float8_e5m2": (2, 5),
    "float8_e4m3fn": (3, 4),
}
"""(bits of the fraction, bits of the exponent) of formats in which a full exponent is not a number
(IEEE 754; OCP 8-bit floating point specification 1.0). In e4m3 only the full fraction is NaN."""
_REPEATS: Final = 0.9
"""The share of places that a period has to map to places: some elements may be right by chance."""
_CONCENTRATED: Final = 4
"""Residues are worth naming where at most every fourth occurs."""
_BY_CHANCE: Final = 1e-2
"""The chance from which on residues are not worth it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """What the places and bits of wrong elements have in common.

    :param form: "one element", "one row", "one column", "a rectangle", "all elements",
        "neighbours" of a result with one dimension, or "scattered".
    :param rows: The first and last row with a wrong element.
    :param columns: The first and last column.
    :param distinct_rows: How many rows have one.
    :param distinct_columns: How many columns have one.
    :param row_period: After how many rows the wrong rows repeat; None where they do not.
    :param column_period: The same of columns.
    :param residues: "rows modulo 16" and the like: the few residues that occur.
    :param lanes: The places modulo the size of a warp, where few occur; empty without warps.
    :param bits: How many elements differ in each bit, by the number of the bit; 0 is the lowest.
    :param one_bit: How many elements differ in one bit alone.
    :param kinds: How many elements are "zeroed", "flipped", or "not a number" (infinity too).
    """

    form: str
    rows: tuple[int, int]
    columns: tuple[int, int]
    distinct_rows: int
    distinct_columns: int
    row_period: int | None
    column_period: int | None
    residues: Mapping[str, tuple[int, ...]]
    lanes: tuple[int, ...]
    bits: Mapping[int, int]
    one_bit: int
    kinds: Mapping[str, int]

    def to_json(self) -> dict[str, Any]:
        """As an object; bits have text as keys."""
        return {
            **asdict(self),
            "bits": {str(bit): number for bit, number in self.bits.items()},
            "sentence": self.sentence,
        }

    @property
    def has_pattern(self) -> bool:
        """Whether the places are what one faulty unit would leave too."""
        whole = self.form in ("all elements", "scattered")
        return not whole or bool(self.row_period or self.column_period or self.residues)

    @property
    def sentence(self) -> str:
        """All of it in one line."""
        parts = [f"{self.form}: {_span('row', self.rows)}, {_span('column', self.columns)}"]
        for axis, period in (("rows", self.row_period), ("columns", self.column_period)):
            if period:
                parts.append(f"{axis} repeat every {period}")
        parts += [f"{name}: {_listed(found)}" for name, found in self.residues.items()]
        if self.lanes:
            parts.append(f"lanes {_listed(self.lanes)}")
        parts.append(", ".join(f"{number} {kind}" for kind, number in self.kinds.items()))
        most = sorted(self.bits.items(), key=lambda each: (-each[1], each[0]))[:4]
        listed = ", ".join(f"{bit} ({number})" for bit, number in most)
        more = f" and {len(self.bits) - len(most)} more" if len(self.bits) > len(most) else ""
        parts.append(f"bits {listed}{more}")
        if self.has_pattern:
            parts.append("consistent with one unit")
        return "; ".join(parts)


def locate(
    places: Sequence[int],
    shape: Sequence[int],
    found: Sequence[int],
    expected: Sequence[int],
    dtype: str,
    bits: int,
    lanes: int | None = None,
) -> Where:
    """What wrong elements have in common.

    :param places: Their indices in the flattened result; at least one.
    :param shape: The shape of the result. The last dimension is that of columns.
    :param found: Their bits, as integers of either sign.
    :param expected: The bits that they should have.
    :param dtype: torch's name of the format of the result.
    :param bits: The size of an element in bits.
    :param lanes: The size of a warp; None where the device has none.
    """
    columns_of_all = max(1, shape[-1] if shape else 1)
    rows = [place // columns_of_all for place in places]
    columns = [place % columns_of_all for place in places]
    distinct_rows, distinct_columns = sorted(set(rows)), sorted(set(columns))
    mask = (1 << bits) - 1
    flips = [(one ^ other) & mask for one, other in zip(found, expected, strict=True)]
    return Where(
        form=_form(len(set(places)), distinct_rows, distinct_columns, shape),
        rows=(distinct_rows[0], distinct_rows[-1]),
        columns=(distinct_columns[0], distinct_columns[-1]),
        distinct_rows=len(distinct_rows),
        distinct_columns=len(distinct_columns),
        row_period=period(distinct_rows),
        column_period=period(distinct_columns),
        residues={
            f"{axis} modulo {size}": residues
            for axis, given in (("rows", distinct_rows), ("columns", distinct_columns))
            for size in MODULI
            if (residues := few_residues(given, size))
        },
        lanes=few_residues(sorted(set(places)), lanes or 0),
        bits=dict(sorted(Counter(bit for each in flips for bit in _set_bits(each)).items())),
        one_bit=sum(each.bit_count() == 1 for each in flips),
        kinds=dict(Counter(_kind(each & mask, dtype) for each in found)),
    )


def period(places: Sequence[int]) -> int | None:
    """After how many places a set of places repeats; None where it does not.

    It is the smallest shift that maps nine of ten places to places, among those that stay inside,
    in both directions. Neighbours alone have none, nor have fewer than three places.

    :param places: Distinct, in order.
    """
    if len(places) < 3:
        return None
    known, low, high = set(places), places[0], places[-1]
    # a period has to be seen twice
    for shift in range(1, (high - low) // 2 + 1):
        up = [each + shift in known for each in places if each + shift <= high]
        down = [each - shift in known for each in places if each - shift >= low]
        if min(sum(up) / len(up), sum(down) / len(down)) >= _REPEATS:
            return None if shift == 1 else shift
    return None


def few_residues(places: Sequence[int], size: int) -> tuple[int, ...]:
    """The residues of places modulo ``size``; empty where they say nothing.

    They say something where at most every fourth residue occurs, places lie further apart than
    ``size``, and random places would hardly have no other residues.
    """
    if size < 2 or not places or places[-1] - places[0] < size:
        return ()
    found = sorted({each % size for each in places})
    few = len(found)
    # a bound of the chance: any choice of residues, and each place in it
    chance = math.comb(size, few) * (few / size) ** len(places)
    return tuple(found) if few * _CONCENTRATED <= size and chance < _BY_CHANCE else ()


def _form(number: int, rows: Sequence[int], columns: Sequence[int], shape: Sequence[int]) -> str:
    if number == 1:
        return "one element"
    if number == math.prod(shape):
        return "all elements"
    if len(shape) < 2:
        return "neighbours" if number == columns[-1] - columns[0] + 1 else "scattered"
    if len(rows) == 1 and len(columns) > 1:
        return "one row"
    if len(columns) == 1:
        return "one column"
    area = (rows[-1] - rows[0] + 1) * (columns[-1] - columns[0] + 1)
    return "a rectangle" if number == area else "scattered"


def _kind(found: int, dtype: str) -> str:
    """What became of an element with these bits."""
    fraction, exponent = _FRACTION_BITS.get(dtype, (0, 0))
    # a negative zero is none of the product's, and zeroed all the same
    if not found or (exponent and found == 1 << (fraction + exponent)):
        return "zeroed"
    if exponent:
        full = (1 << exponent) - 1
        ends = found >> fraction & full == full
        if dtype == "float8_e4m3fn":
            ends = ends and found & 7 == 7
        if ends:
            return "not a number"
    return "flipped"


def _set_bits(value: int) -> Iterable[int]:
    return (bit for bit in range(value.bit_length()) if value >> bit & 1)


def _span(what: str, ends: tuple[int, int]) -> str:
    return f"{what} {ends[0]}" if ends[0] == ends[1] else f"{what}s {ends[0]} to {ends[1]}"


def _listed(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:8]))
    more = len(numbers) - 8
    return f"{shown} and {count(more, 'more', 'more')}" if more > 0 else shown

"""On which hardware unit wrong tiles of a matrix product were computed.

A product whose result was wrong is computed again, by a kernel of our own that records the unit of
each tile. One run has several copies, so that each unit of the device has tiles, and each tile is
computed by several units. What is found is consistent with one unit or not, and never proves one:
another kernel may not show the fault, and other faults may follow a unit.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from portagpu.base.text import MAX_NAMED, error_line
from portagpu.base.units import count
from portagpu.train.exact.probe import Expected
from portagpu.train.exact.products import Rounded, Summed, multiply
from portagpu.train.kernels.plan import BY_UNIT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import torch

    from portagpu.devices.contract import Backend
    from portagpu.devices.machine_code import UnitReading
    from portagpu.train.exact.judge import Wrong
    from portagpu.train.exact.probe import Work
    from portagpu.train.kernels.by_unit import ByUnit

RUNS: Final = 40
"""How often the operands are run."""
_TILES_A_UNIT: Final = 4
"""How many tiles there are for each unit of the device, at least, where memory allows it."""
_MAX_BYTES: Final = 64 << 20
"""Of all copies of a result."""
_CHANCE: Final = 0.01
"""Below which wrong tiles are not all on one unit by chance."""


class Product(Protocol):
    """Computes a product several times and records units, as ``kernels.by_unit`` does."""

    def __call__(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        reading: UnitReading | None,
        *,
        copies: int = 1,
        shift: int = 0,
    ) -> ByUnit:
        """The copies, and the units of their tiles."""


@dataclass(frozen=True, slots=True)
class Tile:
    """One tile of one copy: its place in the product, the unit that computed it, and how."""

    place: int
    unit: str
    wrong: bool


@dataclass(slots=True)
class Found:
    """What runs of a product by unit showed so far, for each unit by name."""

    runs: int = 0
    wrong_runs: int = 0
    tiles: Counter[str] = field(default_factory=Counter)
    """How many tiles each unit computed."""
    wrong_tiles: Counter[str] = field(default_factory=Counter)
    runs_of: Counter[str] = field(default_factory=Counter)
    """In how many runs a tile of the unit was wrong."""
    wrong_places: set[int] = field(default_factory=set)
    right: dict[int, set[str]] = field(default_factory=dict)
    """The units that computed the tile of a place right, in some run."""
    problem: str = ""
    """Why there are no further runs."""

    def add(self, tiles: Sequence[Tile]) -> None:
        """Count one run."""
        wrong = [each for each in tiles if each.wrong]
        self.runs += 1
        self.wrong_runs += bool(wrong)
        self.tiles.update(each.unit for each in tiles)
        self.wrong_tiles.update(each.unit for each in wrong)
        self.runs_of.update({each.unit for each in wrong})
        self.wrong_places |= {each.place for each in wrong}
        for each in tiles:
            if not each.wrong:
                self.right.setdefault(each.place, set()).add(each.unit)

    @property
    def is_consistent(self) -> bool:
        """Whether one faulty unit would leave this.

        All wrong tiles ran on one unit, the tiles of each of these places were right on another
        one, and chance alone would hardly have had them all on one.
        """
        if len(self.wrong_tiles) != 1:
            return False
        (unit,) = self.wrong_tiles
        elsewhere = all(self.right.get(place, set()) - {unit} for place in self.wrong_places)
        share = self.tiles[unit] / self.tiles.total()
        # the first wrong tile chooses the unit, the others would have to fall on the same one
        return bool(elsewhere) and share ** (self.wrong_tiles[unit] - 1) < _CHANCE

    @property
    def sentence(self) -> str:
        """What was found, in one line."""
        ended = f"; {self.problem}" if self.problem else ""
        if not self.runs:
            return f"the unit is not known{ended}"
        runs = count(self.runs, "run")
        if not self.wrong_runs:
            return (
                f"a Triton product of the same operands that records units was right in {runs}: "
                f"this kernel does not show it{ended}"
            )
        ranked = sorted(self.runs_of.items(), key=lambda each: (-each[1], each[0]))
        if len(ranked) == 1:
            (unit, times), said = ranked[0], "; consistent with one unit"
            if not self.is_consistent:
                said = f" ({count(self.wrong_tiles.total(), 'tile')}); that names no unit"
            return f"wrong tiles ran on {unit} in {times} of {runs}{said}{ended}"
        listed = ", ".join(f"{unit} in {times}" for unit, times in ranked[:MAX_NAMED])
        of = count(len(self.tiles), "unit")
        return f"wrong tiles ran on {len(ranked)} of {of} ({listed} of {runs}); not one unit{ended}"

    def to_json(self) -> dict[str, Any]:
        """As an object, with what was counted of each unit that had a wrong tile."""
        return {
            "sentence": self.sentence,
            "runs": self.runs,
            "wrong_runs": self.wrong_runs,
            "units_used": len(self.tiles),
            "consistent_with_one_unit": self.is_consistent,
            "units": {
                unit: {
                    "wrong_runs": times,
                    "wrong_tiles": self.wrong_tiles[unit],
                    "tiles": self.tiles[unit],
                }
                for unit, times in sorted(self.runs_of.items())
            },
        }


def tiles_of(
    wrong: Sequence[int],
    shape: tuple[int, int],
    tile: tuple[int, int],
    units: Sequence[int],
    name: Callable[[int], str],
) -> list[Tile]:
    """The tiles of one run.

    :param wrong: The indices of wrong elements in the flattened copies.
    :param shape: The rows and columns of one copy.
    :param tile: Those of a tile.
    :param units: The words of each tile: copy by copy, from left to right and then down.
    :param name: The unit that such words name.
    """
    rows, columns = (-(-size // side) for size, side in zip(shape, tile, strict=True))
    bad = set()
    for index in wrong:
        copy, element = divmod(index, shape[0] * shape[1])
        row, column = divmod(element, shape[1])
        bad.add((copy * rows + row // tile[0]) * columns + column // tile[1])
    return [
        Tile(number % (rows * columns), name(words), number in bad)
        for number, words in enumerate(units)
    ]


def can_ask(gpu: Backend, work: Work) -> bool:
    """Whether this is a matrix product, on a device whose vendor builds code of ours.

    :param gpu: The device.
    :param work: What was wrong on it.
    """
    if not isinstance(work, Summed | Rounded | Expected) or gpu.plugin.toolchain() is None:
        return False
    return isinstance(work.compute, partial) and work.compute.func is multiply


def find_units(
    gpu: Backend, work: Work, going_on: Callable[[], bool], product: Product | None = None
) -> Found | None:
    """Run the operands of a matrix product again, by a kernel that records units.

    :param gpu: The device on which its result was wrong.
    :param work: The product.
    :param going_on: Is called after each run; they end where it is false.
    :param product: What computes instead of the kernel in Triton.
    :returns: What was found, with the reason where nothing could be; None where the work is not a
        product, and on a device whose vendor builds no code of ours.
    """
    toolchain = gpu.plugin.toolchain()
    if toolchain is None or not can_ask(gpu, work):
        return None
    assert isinstance(work, Summed | Rounded | Expected)  # noqa: S101 - can_ask has seen it
    assert isinstance(work.compute, partial)  # noqa: S101
    _, kind, left, right = work.compute.args[:4]
    found = Found()
    if kind.name not in BY_UNIT:
        found.problem = f"no kernel that records it computes in {kind.name}"
        return found
    reading = toolchain.unit_reading(gpu.arch.name)
    if reading is None:
        found.problem = f"no document says how code reads it on {gpu.arch}"
        return found
    # the sums of 16 bits are judged before they are rounded
    judge = work.reference.judge if isinstance(work, Rounded) else work.judge
    try:
        for tiles in _runs(gpu, _Operands(left, right, judge), reading, product):
            found.add(tiles)
            if not going_on():
                break
    except Exception as error:  # noqa: BLE001 - whatever a compiler or driver raises
        found.problem = error_line(error)
    return found


@dataclass(frozen=True, slots=True)
class _Operands:
    """A product's operands, and who judges a result in 32 bits of them."""

    left: torch.Tensor
    right: torch.Tensor
    judge: Callable[[torch.Tensor], Wrong | None]


def _runs(
    gpu: Backend, of: _Operands, reading: UnitReading, product: Product | None
) -> Iterator[list[Tile]]:
    from portagpu.train.kernels.by_unit import copies_for, product_by_unit

    multiplied = product or product_by_unit
    shape = of.left.shape[0], of.right.shape[1]
    wanted = _TILES_A_UNIT * gpu.sizing.unit_count
    copies = copies_for(of.left, of.right, wanted, max_bytes=_MAX_BYTES)
    known, name = _Known(of.judge), cache(reading.name)
    for run in range(RUNS):
        # another shift each time, so that a unit has other tiles
        made = multiplied(of.left, of.right, reading, copies=copies, shift=run)
        gpu.synchronize()
        words = made.units.flatten().tolist()
        yield tiles_of(known.wrong(made.results), shape, made.tile, words, name)


@dataclass(slots=True)
class _Known:
    """The right result, once a copy was: the others are compared with its bits."""

    judge: Callable[[torch.Tensor], Wrong | None]
    expected: torch.Tensor | None = None

    def wrong(self, copies: torch.Tensor) -> list[int]:
        """The indices of wrong elements in the flattened copies.

        Of a copy that is judged without a right one, those of at most ``MAX_LOCATED_ROWS`` rows.
        """
        from portagpu.train.exact.judge import differences

        each = copies[0].numel()
        places: list[int] = []
        for number, copy in enumerate(copies):
            if self.expected is not None:
                found = differences(copy, self.expected)
            elif (found := self.judge(copy)) is None:
                self.expected = copy.clone()
            if found is not None:
                places += [number * each + place for place in found.places.tolist()]
        return places

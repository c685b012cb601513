"""Buffers on the device, and the calls that have none.

A buffer lies between guard elements, and is compared with the model's content bit by bit. Calls
without buffers are barriers, Python objects, what a group says of itself, and refusals.
"""

from __future__ import annotations

import hashlib
import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.distributed as dist

from portagpu.suites.search.collectives.model import STALE, Content, Part
from portagpu.suites.search.collectives.values import bits

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from portagpu.runs.world import Rank


GUARD: Final = 99
_BEHIND: Final = 5
"""Guard elements after a buffer."""
_INTEGERS: Final = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_COLUMNS: Final = (2, 3, 5, 7)


@dataclass(slots=True)
class Buffer:
    """One content on the device. ``moved`` contents are bits, others are numbers of ``dtype``.

    ``offset`` guard elements stand before it. ``shape`` is "flat", "rows", "transposed", "scalar"
    or "apart": rows with guard elements between their elements, at other places on the next
    ``position``. ``unit`` is how many elements a rank's part has, which rows divide.
    """

    content: Content
    dtype: str
    device: torch.device
    moved: bool
    offset: int = 4
    shape: str = "flat"
    unit: int = 0
    position: int = 0
    storage: torch.Tensor = field(init=False)
    tensor: torch.Tensor = field(init=False)
    _sizes: torch.Size = field(init=False)
    _places: torch.Tensor | None = field(init=False, default=None)
    """Where in the storage each guard and element is, where they do not follow each other."""

    def __post_init__(self) -> None:
        host = self._host(self.content.before)
        flat = host[self.offset : len(host) - _BEHIND]
        if self.shape != "apart":
            self.storage = host.to(self.device)
            flat = self.storage[self.offset : len(host) - _BEHIND].view(self._torch_dtype)
            self.tensor = shaped(flat, self.shape, self.unit)
        else:
            sizes = shaped(flat, "rows", self.unit).shape
            strides, length = apart(sizes, self.position)
            whole = torch.arange(self.offset + length + _BEHIND)
            inner = whole.as_strided(sizes, strides, self.offset)
            ends = whole[: self.offset], inner.flatten(), whole[len(whole) - _BEHIND :]
            self._places = torch.cat(ends)
            # as integers: not every format can be indexed
            spread = self._guard_bits().repeat(len(whole))
            spread[self._places] = _bits(host)
            self.storage = spread.view(host.dtype).to(self.device)
            self.tensor = self.storage.view(self._torch_dtype).as_strided(
                sizes, strides, self.offset
            )
        self._sizes = self.tensor.shape

    @property
    def _torch_dtype(self) -> torch.dtype:
        found: torch.dtype = getattr(torch, self.dtype)
        return found

    @property
    def _host_dtype(self) -> torch.dtype:
        return _INTEGERS[self._torch_dtype.itemsize] if self.moved else self._torch_dtype

    def _guard_bits(self) -> torch.Tensor:
        return _bits(torch.full((1,), self._plain(GUARD), dtype=self._host_dtype))

    def _host(self, parts: Sequence[Part]) -> torch.Tensor:
        """The whole storage with those parts."""
        return torch.cat([self._filled(each) for each in self._segments(parts)])

    def _segments(self, parts: Sequence[Part]) -> list[Part]:
        guard = self._plain(GUARD)
        return [Part([guard], self.offset), *parts, Part([guard], _BEHIND)]

    def _plain(self, number: int) -> int:
        """The number, or 1 in a buffer of booleans."""
        return min(number, 1) if self.dtype == "bool" else number

    def _filled(self, part: Part) -> torch.Tensor:
        pattern = part.pattern or [0]
        if self.dtype == "bool" and pattern == [STALE]:
            pattern = [1]
        if len(pattern) == 1:
            return torch.full((part.count,), pattern[0], dtype=self._host_dtype)
        values = torch.tensor(pattern, dtype=self._host_dtype)
        if len(values) == part.count:
            return values
        return values.repeat(part.count // len(values) + 1)[: part.count]

    def difference(self) -> str:
        """The first difference as a clause: "7 at element 3 of 8 of the result, not 9"."""
        if self.tensor.shape != self._sizes:
            return f"got {list(self.tensor.shape)} as the shape of {self.content.what}"
        found = self.storage.cpu()
        if self._places is not None:
            between = torch.ones(len(found), dtype=torch.bool)
            between[self._places] = False
            if bool((_bits(found)[between] != self._guard_bits()).any()):
                return f"wrote between the elements of {self.content.what}"
            found = _bits(found)[self._places].view(found.dtype)
        if not any(part.pattern is None or part.bounds for part in self.content.after):
            wanted = self._host(self.content.after)
            if torch.equal(_bits(found), _bits(wanted)):
                return ""
        start = 0
        segments = self._segments(self.content.after)
        for number, part in enumerate(segments):
            got = found[start : start + part.count]
            start += part.count
            wrong = self._first_wrong(got, part)
            if wrong is not None:
                return self._clause(got, part, wrong, number, len(segments))
        return ""

    def digest(self) -> str:
        """A text that is the same for the same bits, whatever the bits of a NaN are."""
        found = self.storage.cpu()
        if self._places is not None:
            found = _bits(found)[self._places].view(found.dtype)
        wide = found.to(torch.float64)
        numbers = _bits(found).masked_fill(wide.isnan(), 0)
        return hashlib.blake2b(numbers.numpy().tobytes(), digest_size=8).hexdigest()

    def _first_wrong(self, got: torch.Tensor, part: Part) -> int | None:
        """The place of the first wrong element; None without one."""
        if part.pattern is None or not part.count:
            return None
        wanted = self._filled(part)
        same = _bits(got) == _bits(wanted)
        if self._torch_dtype.is_complex and not self.moved:
            same = got == wanted
        elif got.is_floating_point():
            same |= _both_nan(got, wanted)
            if part.bounds:
                # both are compared as float64 on the host, where a difference is rounded once
                exact = _repeated(part.pattern, part.count)
                same |= (got.double() - exact).abs() <= _repeated(part.bounds, part.count)
        wrong = (~same).nonzero()
        return int(wrong[0, 0]) if len(wrong) else None

    def _clause(self, got: torch.Tensor, part: Part, place: int, number: int, segments: int) -> str:
        if number in (0, segments - 1):
            where = "before" if number == 0 else "after"
            return f"wrote {self._shown(got[place])} {where} {self.content.what}"
        within = ""
        if part.bounds:
            within = f" within {part.bounds[place % len(part.bounds)]:.3g}"
        wanted = self._filled(part)[place]
        right = f"{part.at(place):.9g}" if part.bounds else self._shown(wanted)
        several = f" of part {number - 1}" if segments > 3 else ""
        clause = (
            f"got {self._shown(got[place])} at element {place} of {part.count}{several} in "
            f"{self.content.what}, not {right}{within}"
        )
        if self.content.before is self.content.after:
            return f"{clause}: what the call only reads was changed"
        return clause + self._nature(got, part, number - 1)

    def _shown(self, element: torch.Tensor) -> str:
        if not self.moved:
            value = element.item()
            return repr(value) if not isinstance(value, float) else f"{value:.9g}"
        value = element.reshape(1).view(self._torch_dtype)[0].item()
        bits = int(element.item()) % 2 ** (8 * element.element_size())
        if isinstance(value, (int, bool)):
            return repr(value)
        return f"{value:.9g} (bits {bits:#x})"

    def _nature(self, got: torch.Tensor, part: Part, number: int) -> str:
        """What the wrong elements are, where that has a name; begins with a comma."""
        wanted = self._filled(part)
        if len(got) > 1 and _same(got[1:], wanted[:-1]):
            return ", which belongs one element further left"
        if len(got) > 1 and _same(got[:-1], wanted[1:]):
            return ", which belongs one element further right"
        wrong = ~((_bits(got) == _bits(wanted)) | _both_nan(got, wanted))
        count = int(wrong.sum())
        before = self.content.before[number]
        clues = {"what was there before the call: nothing was written": before.pattern or [0]}
        for text, pattern in (clues | self.content.clues()).items():
            if not pattern:
                continue
            other = self._other(pattern, part.count)
            if other is not None and _same(got[wrong], other[wrong]):
                return f", which is {text}" + _how_many(count, part.count)
        return _how_many(count, part.count)

    def _other(self, pattern: Sequence[Any], count: int) -> torch.Tensor | None:
        try:
            return self._filled(Part(list(pattern), count))
        except (RuntimeError, OverflowError, TypeError):
            # a number that the format does not have
            return None


def _how_many(count: int, of: int) -> str:
    return f" ({count} of {of} elements are wrong)" if 0 < count < of else ""


def _bits(values: torch.Tensor) -> torch.Tensor:
    return values.view(_INTEGERS[values.element_size()])


def _both_nan(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    # formats of one byte have no isnan, and unsigned integers no comparison of their own
    wide = torch.complex128 if one.is_complex() else torch.float64
    return one.to(wide).isnan() & other.to(wide).isnan()


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether all are equal, bit by bit or NaN."""
    return bool(((_bits(one) == _bits(other)) | _both_nan(one, other)).all())


def _repeated(pattern: Sequence[Any], count: int) -> torch.Tensor:
    values = torch.tensor(pattern, dtype=torch.float64)
    return values.repeat(count // len(values) + 1)[:count]


def shaped(flat: torch.Tensor, shape: str, unit: int) -> torch.Tensor:
    """The elements in that shape: rows of 2, 3, 5 or 7, if that divides a rank's part."""
    if shape == "scalar":
        return flat[0] if len(flat) == 1 else flat
    if shape == "flat":
        return flat
    columns = next((each for each in _COLUMNS if unit % each == 0), 1) if unit else 3
    if shape == "deep":
        return flat.view(math.prod(flat.shape) // columns, 1, columns)
    rows = flat.view(-1, columns) if len(flat) else flat.view(0, columns)
    return rows.t() if shape == "transposed" else rows


def apart(sizes: Sequence[int], position: int) -> tuple[tuple[int, int], int]:
    """The strides of rows with gaps, another one on each of three ranks, and the last place + 1.

    Every second element, three elements between rows, or column by column with one between. One row
    or column has gaps of another length. None of these is contiguous, so that a library which
    refuses a call does so on all ranks.
    """
    rows, columns = sizes
    strides = ((2 * columns, 2), (columns + 3, 1), (1, rows + 1))[position % 3]
    if 1 in (rows, columns):
        step = 2 + position % 3
        strides = step * columns, step
    last = sum(max(0, size - 1) * step for size, step in zip(sizes, strides, strict=True))
    return strides, last + 1


_LATE_S = 0.003


def barrier(
    rank: Rank, group: Any, ranks: Sequence[int], late: int, how: str
) -> tuple[float, float]:
    """When this rank came and when it left; the rank at position ``late`` comes last."""
    if late % len(ranks) == ranks.index(rank.rank):
        time.sleep(_LATE_S)
    came = time.monotonic()
    work = dist.barrier(group=group, async_op=how != "sync", device_ids=rank.gpu.comm.device_ids)
    if work is not None:
        work.wait()
    return came, time.monotonic()


def thing(rank: int, seed: int) -> dict[str, Any]:
    """A Python object of that rank, as long as its number says."""
    return {"rank": rank, "seed": seed, "text": "ü" * (rank * (seed % 7)), "none": None}


def objects(rank: Rank, group: Any, ranks: Sequence[int], kind: str, root: int, seed: int) -> str:
    """Objects are gathered, broadcast and scattered as they are."""
    me, n = rank.rank, len(ranks)
    root_rank = ranks[root % n]
    everyone = [thing(each, seed) for each in ranks]
    found: Any = [None] * n
    wanted: Any = everyone
    device = rank.gpu.device
    if kind == "all_gather_object":
        dist.all_gather_object(found, thing(me, seed), group=group)
    elif kind == "gather_object":
        found = found if me == root_rank else None
        wanted = everyone if me == root_rank else None
        dist.gather_object(thing(me, seed), found, dst=root_rank, group=group)
    elif kind == "broadcast_object_list":
        wanted = [thing(root_rank, seed), [seed, "x"]]
        found = wanted.copy() if me == root_rank else [None, thing(me, seed)]
        dist.broadcast_object_list(found, src=root_rank, group=group, device=device)
    else:
        found, wanted = [None], [thing(me, seed)]
        given = everyone if me == root_rank else None
        dist.scatter_object_list(found, given, src=root_rank, group=group)
    return _difference_of_objects(found or [], wanted or [])


def _difference_of_objects(found: list[Any], wanted: list[Any]) -> str:
    """The first object that is another one: whose it is, where it has a rank."""
    if len(found) != len(wanted):
        return f"got {len(found)} objects, not {len(wanted)}"
    for place, (got, right) in enumerate(zip(found, wanted, strict=True)):
        if got != right:
            names = [
                f"the object of rank {each['rank']}" if isinstance(each, dict) else f"{each!r:.60}"
                for each in (got, right)
            ]
            if names[0] == names[1]:
                names = [f"{got!r:.120}", f"{right!r:.120}"]
            return f"got {names[0]} at place {place}, not {names[1]}"
    return ""


def all_gather_uneven(
    rank: Rank, group: Any, ranks: Sequence[int], dtype: str, columns: int, seed: int
) -> str:
    """portagpu's gather of tensors with different numbers of rows, of none too."""
    from portagpu.devices.collectives import helpers

    of = getattr(torch, dtype)
    whole = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[of.itemsize]
    rows = [(seed >> 2 * each) % 4 for each in range(len(ranks))]
    patterns = bits(dtype, seed, len(ranks), 1, 4 * columns)

    def host(position: int) -> torch.Tensor:
        numbers = patterns[position][0][: rows[position] * columns]
        return torch.tensor(numbers, dtype=whole).reshape(rows[position], columns)

    mine = host(ranks.index(rank.rank)).to(rank.gpu.device)
    found = helpers.all_gather_uneven(mine.view(of), group)
    for position, each in enumerate(found):
        wanted = host(position)
        if tuple(each.shape) != tuple(wanted.shape):
            return f"got {list(each.shape)} from rank {ranks[position]}, not {list(wanted.shape)}"
        if not torch.equal(each.cpu().contiguous().view(whole), wanted):
            return f"got other elements of {dtype} than rank {ranks[position]} sent"
    return "" if len(found) == len(ranks) else f"got tensors of {len(found)} ranks"


def describe(rank: Rank, group: Any, ranks: Sequence[int]) -> str:
    """A group knows its size, its ranks, and each by both its numbers."""
    me = ranks.index(rank.rank)
    handle = group if group is not None else dist.group.WORLD
    found = {
        "this rank's position": (dist.get_rank(group), me),
        "the number of ranks": (dist.get_world_size(group), len(ranks)),
        "the ranks": (dist.get_process_group_ranks(handle), list(ranks)),
        "the positions of all": (
            [dist.get_group_rank(handle, each) for each in ranks] if handle else [],
            list(range(len(ranks))),
        ),
        "the ranks of all positions": (
            [dist.get_global_rank(handle, each) for each in range(len(ranks))] if handle else [],
            list(ranks),
        ),
    }
    for what, (got, wanted) in found.items():
        if got != wanted:
            return f"got {got} for {what}, not {wanted}"
    return ""


def refuse(rank: Rank, group: Any, ranks: Sequence[int], kind: str) -> str:
    """Calls that every library refuses with an error on every rank; the next one works."""
    n = len(ranks)

    def zeros(count: int) -> torch.Tensor:
        return torch.zeros(count, device=rank.gpu.device)

    every: dict[str, Callable[[], Any]] = {
        "BAND of floats": lambda: dist.all_reduce(zeros(4), op=dist.ReduceOp.BAND, group=group),
        "BOR of floats": lambda: dist.all_reduce(zeros(4), op=dist.ReduceOp.BOR, group=group),
        "BXOR of floats": lambda: dist.all_reduce(zeros(4), op=dist.ReduceOp.BXOR, group=group),
        "an output of one element more": lambda: dist.all_gather_into_tensor(
            zeros(n + 1), zeros(1), group=group
        ),
        "splits that do not add up": lambda: dist.all_to_all_single(
            zeros(n + 1), zeros(n + 1), [1] * n, [1] * n, group=group
        ),
        "a message to itself": lambda: dist.send(zeros(1), rank.rank, group=group),
    }
    try:
        every[kind]()
    except (RuntimeError, ValueError, TypeError):
        return ""
    return f"took {kind} without an error"


CALLS: dict[str, Callable[..., Any]] = {
    "barrier": barrier,
    "objects": objects,
    "all_gather_uneven": all_gather_uneven,
    "describe": describe,
    "refuse": refuse,
}
"""By a call's name in programs."""
REFUSED = (
    "BAND of floats",
    "BOR of floats",
    "BXOR of floats",
    "an output of one element more",
    "splits that do not add up",
    "a message to itself",
)

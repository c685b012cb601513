"""Sets of time against an oracle that counts every nanosecond."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyarrow")
np: Any = pytest.importorskip("numpy")

from portagpu.traces.analysis import arrays
from portagpu.traces.analysis.arrays import Pieces, percentiles, squares_by
from tests.support.looped import looped

if TYPE_CHECKING:
    from collections.abc import Iterable

SEEDS = range(40)


def some(seed: int, most: int = 12, far: int = 40) -> tuple[Any, Any]:
    """A few intervals, also empty ones, of which many touch, overlap or are equal."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(0, most))
    starts = rng.integers(-far, far, count)
    return starts, starts + rng.integers(0, 9, count)


def covered(starts: Iterable[int], ends: Iterable[int]) -> set[int]:
    """The nanoseconds that the intervals cover."""
    return {ns for start, end in zip(starts, ends, strict=True) for ns in range(start, end)}


def pieces_of(found: set[int]) -> list[tuple[int, int]]:
    """The maximal runs of the set."""
    starts = sorted(ns for ns in found if ns - 1 not in found)
    return [(s, next(e for e in range(s + 1, s + 10_000) if e not in found)) for s in starts]


def listed(pieces: Pieces) -> list[tuple[int, int]]:
    return list(zip(pieces.starts.tolist(), pieces.ends.tolist(), strict=True))


@looped("seed", SEEDS)
def test_a_union_is_what_any_interval_covers(seed: int) -> None:
    starts, ends = some(seed)
    found = arrays.union(starts, ends)
    wanted = covered(starts.tolist(), ends.tolist())
    assert listed(found) == pieces_of(wanted)
    assert found.total == len(wanted)
    runs = pieces_of(wanted)
    between = [b[0] - a[1] for a, b in pairwise(runs)]
    assert arrays.gaps(found).tolist() == between


@looped("seed", SEEDS)
def test_intersection_and_subtraction_are_those_of_sets(seed: int) -> None:
    sets, wanted = [], []
    for part in range(4):
        starts, ends = some(100 * seed + part)
        sets.append(arrays.union(starts, ends))
        wanted.append(covered(starts.tolist(), ends.tolist()))
    one, other = sets[:2]
    assert listed(arrays.intersection(one, other)) == pieces_of(wanted[0] & wanted[1])
    assert listed(arrays.subtraction(one, other)) == pieces_of(wanted[0] - wanted[1])
    for count in (1, 2, 3):
        every = {ns for each in wanted for ns in each}
        often = {ns for ns in every if sum(ns in each for each in wanted) >= count}
        assert listed(arrays.at_least(sets, count)) == pieces_of(often)
    times = np.arange(-60, 60)
    before = [sum(ns < time for ns in wanted[0]) for time in times.tolist()]
    assert arrays.covered_before(one, times).tolist() == before


@looped("seed", SEEDS)
@looped("block", [1, 3, 1 << 17])
def test_unions_by_code_are_those_of_each_code(
    seed: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrays, "_BLOCK", block)
    starts, ends = some(seed, 30)
    codes = np.random.default_rng(seed).integers(0, 4, len(starts)).astype(np.int32)
    order = np.argsort(starts, kind="stable")
    codes, starts, ends = codes[order], starts[order], ends[order]
    wanted = [
        covered(starts[codes == code].tolist(), ends[codes == code].tolist()) for code in range(4)
    ]
    of, pieces = arrays.union_by(codes, starts, ends)
    for code in range(4):
        rows = of == code
        assert listed(Pieces(pieces.starts[rows], pieces.ends[rows])) == pieces_of(wanted[code])
    totals = arrays.union_ns_by(codes, starts, ends, 4)
    assert totals.tolist() == [len(each) for each in wanted]
    stretches = [arrays.union(s, e) for _, s, e in arrays.blocks(codes, starts, ends)]
    assert sum(each.total for each in stretches) == len(covered(starts.tolist(), ends.tolist()))


def test_groups_that_do_not_fit_on_one_line_are_done_in_batches() -> None:
    far = arrays.LIMIT // 3
    codes = np.array([0, 1, 7, 7, 90], np.int32)
    starts = np.array([-far, -5, 0, 1, far - 4])
    ends = np.array([-far + 9, far, 1, 4, far])
    of, pieces = arrays.union_by(codes, starts, ends)
    assert of.tolist() == [0, 1, 7, 90]
    assert listed(pieces) == [(-far, -far + 9), (-5, far), (0, 4), (far - 4, far)]


def test_the_largest_times_do_not_overflow() -> None:
    last = arrays.LIMIT - 1
    one = arrays.union(np.array([-last, last - 5]), np.array([-last + 3, last]))
    other = arrays.union(np.array([-last]), np.array([last]))
    assert listed(arrays.intersection(one, other)) == listed(one)
    assert arrays.subtraction(other, one).total == 2 * last - 8


@looped("seed", range(20))
def test_percentiles_and_deviations_are_those_of_numpy(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("portagpu.traces.analysis.arrays._FEW", 8)
    monkeypatch.setattr("portagpu.traces.analysis.arrays.BLOCK", 16)
    rng = np.random.default_rng(seed)
    groups = [rng.integers(0, 50, rng.integers(1, 20)) for _ in range(9)]
    calls = np.array([len(each) for each in groups])
    starts = np.cumsum(calls) - calls
    values = np.concatenate(groups)
    mean = np.array([each.mean() for each in groups])
    deviations = np.sqrt(squares_by(values, starts, calls, mean) / calls)
    assert deviations == pytest.approx([each.std() for each in groups], abs=1e-9)
    middle, high = percentiles(values, starts, calls)
    assert middle.tolist() == [round(float(np.percentile(each, 50)), 3) for each in groups]
    assert high.tolist() == [round(float(np.percentile(each, 95)), 3) for each in groups]


@pytest.mark.parametrize("far", [0, 3, 40, 61])
def test_the_order_of_times_is_stable(far: int) -> None:
    from portagpu.traces.analysis.arrays import order_of

    rng = np.random.default_rng(far)
    times = rng.integers(-(1 << far), 1 << far, 500)
    assert order_of(times).tolist() == np.argsort(times, kind="stable").tolist()
    assert order_of(np.sort(times)) is None

"""Compares devices or ranks that should be the same with each other, without reference values."""

from __future__ import annotations

import math
import operator
from collections import Counter
from dataclasses import dataclass
from statistics import NormalDist, median
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from portagpu.base.stats import mad
from portagpu.runs.results.judgement import Judgement
from portagpu.runs.results.verdicts import Verdict
from portagpu.runs.results.wording import exactly, within

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

    from portagpu.machine.inventory.gpu import Gpu

MIN_PEERS: Final = 4
"""With three values the median absolute deviation follows any pair that happens to agree."""
NORMAL: Final = 1.4826
"""The MAD times this estimates the standard deviation of a normal distribution: 1 / 0.6745."""
DEVIATIONS: Final = 3.5
"""Iglewicz and Hoaglin, "How to Detect and Handle Outliers" (1993): the modified z-score of 3.5."""
RELATIVE: Final = 0.05
"""Smaller differences are ignored, however well the others agree."""
FALSE_ALARMS: Final = 0.05
"""The chance that any of many comparisons blames a value that normal noise made."""
_EFFICIENCY: Final = 0.37
"""Of the MAD as an estimate of the standard deviation of normal values."""


def deviations_for(comparisons: int, peers: int | None = None) -> float:
    """How many standard deviations make an outlier where this many values are compared.

    With 3.5 one normal value in 2,149 is an outlier, which is hundreds in a fleet. So it is the
    limit that the largest of all values exceeds with a chance of ``FALSE_ALARMS`` (Bonferroni), and
    never less than ``DEVIATIONS``: 4.4 for 5,000 values, 5.5 for a million.

    The MAD of a few ``peers`` is itself uncertain, as the standard deviation of 0.37 times as many
    would be (Rousseeuw and Croux, 1993). The limit is then that of Student's t, by the first term
    of its expansion (Abramowitz and Stegun, 26.7.5): 6.2 for 40 peers in 10,000 comparisons.
    """
    if comparisons < 1:
        return DEVIATIONS
    normal = -NormalDist().inv_cdf(FALSE_ALARMS / 2 / comparisons)
    freedom = math.inf if peers is None else _EFFICIENCY * max(peers, MIN_PEERS)
    return max(DEVIATIONS, normal + (normal**3 + normal) / (4 * freedom))


class Majority(NamedTuple):
    """The value that most peers have, and how many ``votes`` it has.

    Where it is not ``decided``, nothing is an outlier: any of those that differ may be wrong.
    """

    usual: Any
    votes: int
    decided: bool


_PRODUCT: Final = "product"


def majority(
    values: Sequence[Hashable], same: Callable[[Any, Any], bool] = operator.eq
) -> Majority:
    """The most frequent of one or more ``values``; ``same`` compares two of them.

    It is decided by more than half of at least three values.
    """
    counts = Counter(values)
    votes_of = counts
    if same is not operator.eq:
        votes_of = Counter(
            {
                value: sum(count for other, count in counts.items() if same(value, other))
                for value in counts
            }
        )
    usual = max(votes_of, key=lambda value: votes_of[value])
    return Majority(usual, votes_of[usual], len(values) > 2 and 2 * votes_of[usual] > len(values))


@dataclass(frozen=True, slots=True)
class Outlier:
    """A value unlike its peers; ``relative`` is its signed distance from their median."""

    name: str
    value: float
    relative: float


@dataclass(frozen=True, slots=True)
class Peers:
    """The comparison; ``median`` and ``mad`` are in the unit of the values.

    ``judged`` is False where there were too few values to compare; ``reason`` then says so.
    """

    median: float | None
    mad: float | None
    outliers: tuple[Outlier, ...]
    judged: bool
    reason: str = ""

    @property
    def sentence(self) -> str:
        """The outliers, worst first, in one sentence; the reason where nothing was judged."""
        if not self.judged or not self.outliers:
            return self.reason
        return ", ".join(self._outlier_sentence(each) for each in self.outliers)

    def _outlier_sentence(self, outlier: Outlier) -> str:
        if not math.isfinite(outlier.value):
            return f"{outlier.name} gave no number"
        side = "below" if outlier.relative < 0 else "above"
        share = f"{abs(outlier.relative):.0%}" if math.isfinite(outlier.relative) else "far"
        return f"{outlier.name} is {share} {side} the median of its peers"


def compare_peers(
    values: Mapping[str, float],
    *,
    deviations: float = DEVIATIONS,
    relative: float = RELATIVE,
) -> Peers:
    """Find the values that differ from the median of all, worst first.

    An outlier differs by more than both limits. Where more than half of the values are equal the
    MAD is 0, and ``relative`` decides alone. A value that is not finite is an outlier.

    :param values: The value of each device or rank by its name, all in one unit.
    :param deviations: The limit in standard deviations, estimated as 1.4826 MAD.
    :param relative: The limit as a fraction of the median.
    :returns: The median, the MAD and the outliers; fewer than four values are not judged.
    """
    numbers = [value for value in values.values() if math.isfinite(value)]
    if len(values) < MIN_PEERS:
        reason = f"too few values to compare: {len(values)}; {MIN_PEERS} are needed"
        return Peers(median(numbers) if numbers else None, None, (), False, reason)
    if len(numbers) < MIN_PEERS:
        return Peers(median(numbers) if numbers else None, None, _without_number(values), True)
    middle, spread = median(numbers), mad(numbers)
    far = [
        Outlier(name, value, _relative_distance(value - middle, middle))
        for name, value in values.items()
        if math.isfinite(value)
        and abs(value - middle) > deviations * NORMAL * spread
        and abs(value - middle) > relative * abs(middle)
    ]
    far.sort(key=lambda each: abs(each.relative), reverse=True)
    return Peers(middle, spread, (*_without_number(values), *far), True)


def peer_expectation(
    compared: Peers, unit: str, relative: float = RELATIVE
) -> dict[str, Any] | None:
    """The median of the peers as an expectation; None where they were not judged, or it is none."""
    middle = compared.median
    if not compared.judged or middle is None or middle < 0 or not math.isfinite(middle):
        return None
    return within(middle, relative, "the median of its peers", unit)


def _without_number(values: Mapping[str, float]) -> tuple[Outlier, ...]:
    lost = [(name, value) for name, value in values.items() if not math.isfinite(value)]
    return tuple(Outlier(name, value, math.nan) for name, value in lost)


def _relative_distance(distance: float, middle: float) -> float:
    return distance / abs(middle) if middle else math.copysign(math.inf, distance)


_MEMORY: Final = 0.02
"""Tolerance: sources state memory with or without the driver's share (``inventory/merge.py``)."""


@dataclass(frozen=True, slots=True)
class _Trait:
    """One property to compare. ``verdict`` is the outlier's: UNVERIFIED where it may be intended.

    Numbers agree if they differ by no more than ``tolerance`` of the larger one.
    """

    what: str
    value: Callable[[Gpu], Any]
    verdict: Verdict
    shown: Callable[[Any], str] = str
    tolerance: float = 0.0

    def agrees(self, one: Any, two: Any) -> bool:
        if not self.tolerance:
            return bool(one == two)
        return bool(abs(one - two) <= self.tolerance * max(abs(one), abs(two)))


def _on_or_off(flag: bool) -> str:
    return "on" if flag else "off"


def _whole_memory(gpu: Gpu) -> int | None:
    return None if gpu.mig_enabled or gpu.parts else gpu.memory_bytes


_TRAITS: Final = (
    _Trait("memory", _whole_memory, Verdict.FAIL, lambda size: f"{size / 2**30:.1f} GiB", _MEMORY),
    _Trait("driver's version", lambda gpu: gpu.driver_version, Verdict.FAIL),
    _Trait("ECC", lambda gpu: gpu.memory.ecc_enabled, Verdict.FAIL, _on_or_off),
    # a die that shares its package's limit states 0
    _Trait(
        "power limit",
        lambda gpu: gpu.state.power_limit_w or None,
        Verdict.FAIL,
        lambda watts: f"{watts:g} W",
    ),
    _Trait(
        "highest clock", lambda gpu: gpu.state.max_clock_mhz, Verdict.FAIL, lambda f: f"{f:g} MHz"
    ),
    _Trait(
        "highest memory clock",
        lambda gpu: gpu.state.max_memory_clock_mhz,
        Verdict.FAIL,
        lambda f: f"{f:g} MHz",
    ),
    _Trait("number of PCIe lanes", lambda gpu: gpu.pcie.width, Verdict.FAIL),
    _Trait("MIG mode", lambda gpu: gpu.mig_enabled, Verdict.UNVERIFIED, _on_or_off),
    _Trait("compute partitioning", lambda gpu: gpu.compute_partition, Verdict.UNVERIFIED),
    _Trait("memory partitioning", lambda gpu: gpu.memory_partition, Verdict.UNVERIFIED),
)


def gpu_key(gpu: Gpu) -> str:
    """The GPU's name in results: its address, else its UUID, else its number in a source."""
    if gpu.pci or gpu.uuid:
        return gpu.pci or gpu.uuid or ""
    source, index = next(iter(gpu.indices.items()), (gpu.vendor, None))
    return f"{source} GPU" if index is None else f"{source} GPU {index}"


def product_key(gpu: Gpu) -> Hashable:
    """A key that GPUs of one product share; what no source names may be several products."""
    return gpu.vendor, gpu.device_id or gpu.name or gpu.arch or gpu.memory_bytes


def judge_peer_consistency(gpus: Sequence[Gpu]) -> Iterator[Judgement]:
    """One judgement for each difference from the majority, for two or more GPUs of a product.

    Different products of a vendor may be intended, and are UNVERIFIED. So is a difference without a
    majority, which blames no GPU.
    """
    found: list[Judgement] = []
    compared: list[str] = []
    vendors: dict[str, list[Gpu]] = {}
    products: dict[Hashable, list[Gpu]] = {}
    for gpu in gpus:
        vendors.setdefault(gpu.vendor, []).append(gpu)
        products.setdefault(product_key(gpu), []).append(gpu)
    name = _Trait(_PRODUCT, lambda gpu: gpu.name, Verdict.UNVERIFIED)
    for group in vendors.values():
        found += _differences(name, group, compared)
    for group in products.values():
        kinds = dict.fromkeys(kind for gpu in group for kind in gpu.firmware)
        firmware = [
            _Trait(
                f"firmware ({kind})",
                lambda gpu, kind=kind: gpu.firmware.get(kind),  # type: ignore[misc]
                Verdict.UNVERIFIED,
            )
            for kind in kinds
        ]
        for trait in (*_TRAITS, *firmware):
            found += _differences(trait, group, compared)
    yield from found
    if compared and not found:
        what = ", ".join(dict.fromkeys(compared))
        reason, none = f"{len(gpus)} GPUs agree: {what}", exactly(0, "differences of peers")
        yield Judgement(Verdict.PASS, reason, 0, "1", none, name="peers")


def _differences(trait: _Trait, gpus: Sequence[Gpu], compared: list[str]) -> Iterator[Judgement]:
    stated = [(gpu, value) for gpu in gpus if (value := trait.value(gpu)) is not None]
    if len(stated) < 2:
        return
    compared.append(trait.what)
    usual, count, decided = majority([value for _, value in stated], trait.agrees)
    if count == len(stated):
        return
    if not decided:
        if trait.what == _PRODUCT:
            # two cards in one desktop are not a fault: nobody said that they have to be one product
            return
        (one, has), (other, differs) = (
            stated[0],
            next(each for each in stated if not trait.agrees(stated[0][1], each[1])),
        )
        yield Judgement(
            Verdict.UNVERIFIED,
            f"the {trait.what} of {gpu_key(one)} is {trait.shown(has)} and that of "
            f"{gpu_key(other)} {trait.shown(differs)}; without a majority nobody can say which is "
            "wrong",
            name="peers",
        )
        return
    for gpu, value in stated:
        if not trait.agrees(usual, value):
            reason = f"{gpu_key(gpu)}: {trait.what} {trait.shown(value)}"
            reason += f", {count} peers {trait.shown(usual)}"
            yield Judgement(
                trait.verdict,
                reason,
                f"{trait.what} {trait.shown(value)}",
                expected=exactly(f"{trait.what} {trait.shown(usual)}", "what most peers have"),
                name="peers",
                device=gpu_key(gpu),
            )

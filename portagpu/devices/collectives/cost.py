"""What a cost model is asked and what it answers: numbers, how far they may be off, and no call of
what asks.

A vendor's plugin names its model (:class:`CostModel`). Bandwidths are in GB/s, 1e9 bytes a second.

An interval has the errors of the nearest published tables. Nearest is what differs least in
hardware, operation, nodes and size. What was compared with another operation, another GPU or
another size says less, and the interval is wider by ``_PER_STEP`` for each step of distance.
``tests/benchmarks/cost_models.py`` measures how often intervals hold that come from all tables but
the one that is asked for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import geometric_mean
from typing import TYPE_CHECKING, Final, Protocol

from portagpu.base.text import one_line
from portagpu.base.units import number, size
from portagpu.facts.nccl_tests.model import OPERATIONS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from portagpu.facts.targets import Target


_WRONG_BY: Final = 2.0
"""A model that is off by more than this factor in a range of sizes is called wrong there."""
_MAX_RANKS: Final = 1 << 20
_MAX_BYTES: Final = 1 << 60
MIN_GBS, MAX_GBS = 1e-3, 1e6
"""Outside of this, a bandwidth is a mistake in its unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """One GPU and its links, as the facts of its target state them; None is not known."""

    target: str
    arch: str
    link_kind: str | None = None
    switched: bool = False
    """Whether every link ends in a switch, so that all of them reach any one GPU."""
    links: int | None = None
    link_gbs: float | None = None
    """Of one link in one direction."""
    all_links_gbs: float | None = None
    """Of all links of a GPU in one direction."""
    pcie_generation: int | None = None
    pcie_lanes: int | None = None

    @classmethod
    def of_target(cls, target: Target) -> Hardware:
        """The hardware that the target describes."""
        value = target.value
        return cls(
            target=target.id,
            arch=target.arch.name,
            link_kind=value("link.kind"),
            switched=value("link.topology") == "switched",
            links=value("link.count"),
            link_gbs=value("link.per_link_per_direction"),
            all_links_gbs=value("link.total_per_direction"),
            pcie_generation=value("host_link.pcie_generation"),
            pcie_lanes=value("host_link.pcie_lanes"),
        )


@dataclass(frozen=True, slots=True)
class Graph:
    """The channels that a library's search found, each of that bandwidth within and between nodes.

    ``how`` says where the numbers are from: "given", or how they were estimated.
    """

    channels: int
    intra_gbs: float
    inter_gbs: float
    how: str = "given"

    @property
    def speeds(self) -> tuple[float, float]:
        """GB/s of a channel within and between nodes."""
        return self.intra_gbs, self.inter_gbs

    def __str__(self) -> str:
        inter = "" if self.inter_gbs == self.intra_gbs else f"/{self.inter_gbs:g}"
        return f"{self.channels} x {self.intra_gbs:g}{inter} GB/s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One collective. ``size_bytes`` is S of :mod:`portagpu.facts.nccl_tests.model`.

    ``ranks`` are spread evenly over ``nodes``, one on each GPU. ``nics`` is the number of network
    ports of a node, each of ``nic_gbs`` in one direction. ``graphs`` replaces what the model would
    estimate for an algorithm. ``algorithms`` allows only these; empty allows all. ``options`` has
    settings of the model by name. Raises ValueError for what makes no sense.
    """

    operation: str
    size_bytes: int
    ranks: int
    nodes: int = 1
    hardware: Hardware | None = None
    nics: int | None = None
    nic_gbs: float | None = None
    graphs: Mapping[str, Graph] = field(default_factory=dict)
    algorithms: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    dtype: str = ""
    """torch's name, for a profile of several dtypes. A model's times do not depend on it."""

    def __post_init__(self) -> None:
        if self.operation not in OPERATIONS:
            names = ", ".join(OPERATIONS)
            raise ValueError(f"unknown collective {self.operation!r}; choose one of {names}")
        if self.size_bytes < 1:
            raise ValueError(f"a collective moves at least 1 byte, not {self.size_bytes}")
        if self.size_bytes > _MAX_BYTES:
            raise ValueError("a collective of more than 1 EiB has no answer: give fewer bytes")
        if self.ranks < 2:
            raise ValueError(f"a choice needs at least 2 ranks, not {self.ranks}")
        if self.ranks > _MAX_RANKS:
            raise ValueError(f"a choice is for at most {_MAX_RANKS} ranks")
        if self.nodes < 1 or self.ranks % self.nodes:
            raise ValueError(
                f"{self.ranks} ranks cannot be spread evenly over {self.nodes} nodes: give a "
                "number of nodes that divides the ranks"
            )
        if self.nics is not None and not 1 <= self.nics <= _MAX_RANKS:
            raise ValueError(f"a node has 1 to {_MAX_RANKS} network ports")
        speeds = [each for graph in self.graphs.values() for each in graph.speeds]
        for each in [*speeds, *([] if self.nic_gbs is None else [self.nic_gbs])]:
            if not MIN_GBS <= each <= MAX_GBS:
                raise ValueError(
                    f"a bandwidth is from {MIN_GBS:g} to {MAX_GBS:,.0f} GB/s, not {each:g}"
                )

    @property
    def local_ranks(self) -> int:
        """The ranks of one node."""
        return self.ranks // self.nodes


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to do it. ``algorithm`` and ``protocol`` are the library's names, "" for none."""

    algorithm: str
    protocol: str
    time_us: float
    busbw_gbs: float

    def __str__(self) -> str:
        return " ".join(part for part in (self.algorithm, self.protocol) if part)


@dataclass(frozen=True, slots=True)
class Input:
    """A number that the prediction rests on: its name, its value in words, and where it is from."""

    name: str
    value: str
    how: str

    @property
    def estimated(self) -> bool:
        """Whether neither the user nor a target's facts state it."""
        return self.how.startswith("estimated")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shots:
    """Whether every rank reduces everything ("one-shot") or its share ("two-shot").

    It applies where the library runs its ``kernel`` on buffers that all ranks map: ``condition``.
    """

    name: str
    kernel: str
    time_us: float
    condition: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What a model predicts: everything that is enabled, in any order, and what it rests on.

    ``counts_network`` is False where the times leave the bandwidth of the network out.
    """

    candidates: tuple[Candidate, ...]
    inputs: tuple[Input, ...] = ()
    shots: Shots | None = None
    counts_network: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownError:
    """How far a model was from published tables in one range of sizes of one hardware.

    ``low_bytes`` is outside and ``high_bytes`` (None: no end) inside the range. ``nodes`` is 1, 2,
    or 3 for more. ``factor_p50`` and ``factor_p95`` are of ``max(predicted / measured, measured /
    predicted)`` over ``points`` sizes; ``ratio_p50``, ``ratio_low`` and ``ratio_high`` are the
    median, the smallest and the largest ``predicted / measured`` time (a model of contract 1.4 and
    older lacks the last two, and ``arch``, the architecture of ``target``). ``sources`` are
    addresses of the tables.
    """

    target: str
    operation: str
    nodes: int
    low_bytes: int
    high_bytes: int | None
    points: int
    ratio_p50: float
    factor_p50: float
    factor_p95: float
    sources: tuple[str, ...]
    ratio_low: float | None = None
    ratio_high: float | None = None
    arch: str | None = None

    @property
    def wrong(self) -> bool:
        """Whether the model is wrong there: by more than a factor of 2 in the median."""
        return self.factor_p50 > _WRONG_BY

    def __str__(self) -> str:
        way = "short" if self.ratio_p50 < 1 else "long"
        tables = "a published table" if len(self.sources) == 1 else "published tables"
        said = f"{self.points} sizes of {tables} of {self.target}"
        if self.wrong:
            return (
                f"the model is wrong here: its times are {self.factor_p50:.1f} times too {way} in "
                f"the median of {said}"
            )
        return (
            f"against {said} the model is off by {self.factor_p50:.2f} times in the median, "
            f"{self.factor_p95:.2f} times at p95"
        )


class CostModel(Protocol):
    """A vendor's model of its library, without a device. ``version`` is that of its constants."""

    library: str
    version: str
    source: str

    def predict(self, question: Question) -> Prediction:
        """Everything that is enabled for the question.

        Raises Unsupported for an operation or hardware that it does not cover, and ValueError for
        an input that is missing or wrong.
        """

    def known_errors(self) -> tuple[KnownError, ...]:
        """How far it was from published tables."""


FEWEST_POINTS: Final = 4
FEWEST_SIZES: Final = 3
_MIN_US, _MAX_US = 1e-6, 1e15


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The line of one operation on this many ranks, and how far its points are from it.

    ``error_p50`` and ``error_p95`` are relative errors of the ``points`` times. The line was
    measured from ``low_bytes`` to ``high_bytes``.
    """

    operation: str
    ranks: int
    alpha_us: float
    beta_us_per_byte: float
    points: int
    low_bytes: int
    high_bytes: int
    error_p50: float
    error_p95: float

    def __post_init__(self) -> None:
        if min(self.alpha_us, self.beta_us_per_byte, self.error_p50, self.error_p95) < 0:
            raise ValueError("a line's alpha, beta and errors are at least 0")
        if not 0 < self.time_us(1 << 62) < math.inf:
            raise ValueError("the times on a line are above 0")
        if not (self.points > 0 and 0 < self.low_bytes <= self.high_bytes):
            raise ValueError("a line has points, from a size above 0 on")

    def time_us(self, size_bytes: int) -> float:
        """The time of that size on the line, in microseconds."""
        return self.alpha_us + size_bytes * self.beta_us_per_byte

    def remarks(self, size_bytes: int) -> tuple[str, ...]:
        """What to know of the time of that size: whether it is outside of what was measured."""
        if self.low_bytes <= size_bytes <= self.high_bytes:
            return ()
        measured = f"{size(self.low_bytes)} to {size(self.high_bytes)}"
        return (f"{size(size_bytes)} is outside of the measured sizes, {measured}",)

    def __str__(self) -> str:
        return (
            f"measured on {self.points} points, error p50 {self.error_p50:.0%}, "
            f"p95 {self.error_p95:.0%}"
        )


def fit_line(operation: str, ranks: int, points: Iterable[tuple[int, float]]) -> Fit:
    """The line through ``points``, pairs of bytes and microseconds; a size may come often.

    Raises ValueError for fewer than 4 points or 3 different sizes, for sizes without a distance
    between them, and for a point that is not above 0 or no time at all.
    """
    measured = sorted(points)
    if wrong := next((each for each in measured if not _is_point(*each)), None):
        raise ValueError(one_line(f"{wrong} is not a pair of bytes and microseconds above 0"))
    sizes = {x for x, _ in measured}
    if wrong := next((each for each in measured if not _MIN_US <= each[1] <= _MAX_US), None):
        raise ValueError(f"a time of {wrong[1]:g} us is none that was measured")
    if len(measured) < FEWEST_POINTS or len(sizes) < FEWEST_SIZES:
        raise ValueError(
            f"{len(measured)} times of {len(sizes)} sizes of {operation} on {ranks} ranks are too "
            f"few: a fit needs {FEWEST_POINTS} times of {FEWEST_SIZES} sizes"
        )
    alpha, beta = _least_squares(measured)
    errors = sorted(abs(alpha + x * beta - y) / y for x, y in measured)
    return Fit(
        operation=operation,
        ranks=ranks,
        alpha_us=alpha,
        beta_us_per_byte=beta,
        points=len(measured),
        low_bytes=measured[0][0],
        high_bytes=measured[-1][0],
        error_p50=percentile(errors, 0.50),
        error_p95=percentile(errors, 0.95),
    )


def percentile(ordered: list[float], share: float) -> float:
    """The least of the ``ordered`` values that is not below that share of them (nearest rank)."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _is_point(size_bytes: int, time_us: float) -> bool:
    return size_bytes > 0 and math.isfinite(time_us) and time_us > 0


def _least_squares(points: list[tuple[int, float]]) -> tuple[float, float]:
    """Alpha and beta, both at least 0, with the least sum of ``((alpha + x * beta - y) / y)**2``.

    The sum is convex: its least value is where both slopes are 0, or else on an edge, where one of
    the two is 0.
    """
    # in units of the largest size, so that sums of squares are of like magnitude
    unit = max(x for x, _ in points)
    a = [1 / y for _, y in points]
    b = [x / unit / y for x, y in points]
    aa, ab, bb = (sum(map(float.__mul__, p, q)) for p, q in ((a, a), (a, b), (b, b)))
    ta, tb = sum(a), sum(b)
    determinant = aa * bb - ab * ab
    if not determinant > 0:
        raise ValueError("the measured sizes are too close to each other for a line")
    alpha, beta = (ta * bb - tb * ab) / determinant, (tb * aa - ta * ab) / determinant
    if alpha < 0:
        alpha, beta = 0.0, tb / bb
    elif beta < 0:
        alpha, beta = ta / aa, 0.0
    return alpha, beta / unit


_UNKNOWN_FACTOR: Final = 4.0
"""Of what nothing was compared with: models were off by as much where they know least."""
_PER_STEP: Final = 1.5
_SPREAD: Final = 1.3
"""Of the errors of one table, another machine has others."""
_FARTHEST: Final = 4.0
_LIKE: Final = ({"all_gather", "reduce_scatter"}, {"broadcast", "reduce"})
"""Operations that move the same bytes along the same ways."""
_OTHER_ARCHITECTURE, _OTHER_PRODUCT = 1.0, 0.5
_OTHER_NETWORK: Final = 2.5
"""The networks of two clusters differ in more than their GPUs."""
_OTHER_CLUSTER: Final = 1.0
"""They differ with the same GPUs too: EFA, RoCE, Slingshot and InfiniBand have other latencies."""
_OTHER_OPERATION, _LIKE_OPERATION = 1.0, 0.5
_OTHER_NODES, _BETWEEN_NODES = 1.0, 3.0
_OTHER_SIZE: Final = 1.0
"""For a factor of 16 between the sizes."""


@dataclass(frozen=True, slots=True)
class Interval:
    """From when to when the measured time is expected, in microseconds.

    ``likely_us`` is the predicted time, mended by the median error of the nearest tables.
    ``compared`` is False where no published table is near enough, and the interval is a factor of
    four to both sides. ``words`` say what it rests on.
    """

    low_us: float
    high_us: float
    compared: bool
    words: str
    likely_us: float

    def __str__(self) -> str:
        likely = f"about {number(self.likely_us)} µs, " if self.compared else ""
        return f"{likely}{number(self.low_us)} to {number(self.high_us)} µs, {self.words}"


def interval_of(
    question: Question, time_us: float, errors: Iterable[KnownError]
) -> tuple[Interval, KnownError | None]:
    """The interval of a predicted time, and the nearest table's errors.

    :param question: what was asked, with its hardware.
    :param time_us: the predicted time.
    :param errors: all known errors of the model.
    """
    near = [
        (away, each)
        for each in errors
        if each.ratio_low and (away := _distance(question, each)) <= _FARTHEST
    ]
    distance, nearest = min(near, key=lambda each: each[0], default=(0.0, None))
    used = [each for away, each in near if away == distance]
    wider = _SPREAD * _PER_STEP**distance
    highest = max((each.ratio_high or each.ratio_p50 for each in used), default=1.0) * wider
    lowest = min((each.ratio_low or each.ratio_p50 for each in used), default=1.0) / wider
    if nearest is None or highest / lowest > _UNKNOWN_FACTOR**2:
        words = "UNVERIFIED: no published table compares, so a factor of four to both sides"
        low, high = time_us / _UNKNOWN_FACTOR, time_us * _UNKNOWN_FACTOR
        return Interval(low, high, compared=False, words=words, likely_us=time_us), nearest
    words = (
        "by the errors in the nearest published tables, of " if distance else "by the errors in "
    )
    words += _of(used) if distance else f"published tables of {_of(used)}"
    # how far a network is from the model says less of another network than launches of other ones
    weight = 1 / (1 + distance) if question.nodes > 1 else 1.0
    found = Interval(
        time_us / highest,
        time_us / lowest,
        compared=True,
        words=words,
        likely_us=time_us / geometric_mean(each.ratio_p50 for each in used) ** weight,
    )
    return found, nearest


def _of(errors: list[KnownError]) -> str:
    first = errors[0]
    upto = "more" if first.high_bytes is None else size(first.high_bytes)
    nodes = {1: "one node", 2: "two nodes"}.get(first.nodes, "more nodes")
    targets = ", ".join(dict.fromkeys(each.target for each in errors))
    operations = " and ".join(dict.fromkeys(each.operation for each in errors))
    return f"{operations} on {targets}, {nodes}, {size(first.low_bytes)} to {upto}"


def _distance(question: Question, error: KnownError) -> float:
    assert question.hardware is not None  # noqa: S101 - a model has answered
    away = 0.0
    if error.target != question.hardware.target:
        same = error.arch == question.hardware.arch
        away += _OTHER_PRODUCT if same else _OTHER_ARCHITECTURE
        away += _OTHER_NETWORK if error.nodes > 1 else 0.0
    elif error.nodes > 1:
        away += _OTHER_CLUSTER
    if error.operation != question.operation:
        moves_the_same = any({error.operation, question.operation} <= each for each in _LIKE)
        away += _LIKE_OPERATION if moves_the_same else _OTHER_OPERATION
    nodes = min(question.nodes, 3)
    if nodes != error.nodes:
        away += _BETWEEN_NODES if 1 in (nodes, error.nodes) else _OTHER_NODES
    low, high = max(error.low_bytes, 1), error.high_bytes or math.inf
    if question.size_bytes <= error.low_bytes:
        away += _OTHER_SIZE * max(math.log(low / question.size_bytes, 16), 0.25)
    elif question.size_bytes > high:
        away += _OTHER_SIZE * max(math.log(question.size_bytes / high, 16), 0.25)
    return away

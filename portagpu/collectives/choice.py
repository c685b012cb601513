"""What a library would choose for a collective, and how long it takes: types, and one function.

A vendor's cost model (:class:`CostModel`, which its plugin names) or a fit of measured times
answers a :class:`Question`. Every :class:`Choice` says what it is based on. Bandwidths are in GB/s,
1e9 bytes a second.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Protocol

from portagpu.collectives.bandwidth import OPERATIONS, bus_factor
from portagpu.errors import Unsupported
from portagpu.units import number

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from portagpu.collectives.alpha_beta import Fit
    from portagpu.collectives.tuning import Profile
    from portagpu.target import Target

_WRONG_BY: Final = 2.0
"""A model that is off by more than this factor in a range of sizes is called wrong there."""
_MOST_RANKS: Final = 1 << 20
_MOST_BYTES: Final = 1 << 60
LEAST_GBS, MOST_GBS = 1e-3, 1e6
"""Outside of this, a bandwidth is a mistake in its unit."""
_ONE_MACHINE: Final = 16
"""Beyond so many ranks on one node an answer says that it takes them for one machine."""


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
    """One collective. ``size_bytes`` is S of :mod:`portagpu.collectives.bandwidth`.

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
            raise ValueError(f"there is no collective {self.operation!r}: there are {names}")
        if self.size_bytes < 1:
            raise ValueError(f"a collective moves at least 1 byte, not {self.size_bytes}")
        if self.size_bytes > _MOST_BYTES:
            raise ValueError("a collective of more than 1 EiB has no answer: give fewer bytes")
        if self.ranks < 2:
            raise ValueError(f"a choice needs at least 2 ranks, not {self.ranks}")
        if self.ranks > _MOST_RANKS:
            raise ValueError(f"a choice is for at most {_MOST_RANKS} ranks")
        if self.nodes < 1 or self.ranks % self.nodes:
            raise ValueError(
                f"{self.ranks} ranks cannot be spread evenly over {self.nodes} nodes: give a "
                "number of nodes that divides the ranks"
            )
        if self.nics is not None and not 1 <= self.nics <= _MOST_RANKS:
            raise ValueError(f"a node has 1 to {_MOST_RANKS} network ports")
        speeds = [each for graph in self.graphs.values() for each in graph.speeds]
        for each in [*speeds, *([] if self.nic_gbs is None else [self.nic_gbs])]:
            if not LEAST_GBS <= each <= MOST_GBS:
                raise ValueError(
                    f"a bandwidth is from {LEAST_GBS:g} to {MOST_GBS:,.0f} GB/s, not {each:g}"
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
    predicted)`` over ``points`` sizes; ``ratio_p50`` is the median of ``predicted / measured``
    time. ``sources`` are addresses of the tables.
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


class BasisKind(StrEnum):
    """What an answer rests on."""

    MODEL = "model"
    OTHER_MODEL = "model of another version"
    MEASURED = "measured"
    LIBRARY = "library's own answer"


@dataclass(frozen=True, slots=True)
class Basis:
    """``kind``, and the whole of it in words."""

    kind: BasisKind
    words: str

    def __str__(self) -> str:
        return self.words


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The answer: ``best`` is the fastest candidate.

    ``alternatives`` are the others, in order; a measured time has none. ``shots`` is None where it
    does not apply. ``own_answer`` says whether the library itself was asked. ``remarks`` are
    sentences about how far to trust it.
    """

    question: Question
    best: Candidate
    alternatives: tuple[Candidate, ...]
    basis: Basis
    inputs: tuple[Input, ...] = ()
    shots: Shots | None = None
    known_error: KnownError | None = None
    own_answer: str = "not available: it needs a process group on the library's devices"
    remarks: tuple[str, ...] = ()


def choose(
    question: Question,
    model: CostModel | None = None,
    *,
    fit: Fit | None = None,
    library_version: str | None = None,
) -> Choice:
    """The fastest way by ``model``; with ``fit``, its time comes from measurements.

    ``library_version`` is that of the library that will run; None takes that of the constants.
    Raises Unsupported without a model or a fit and as the model does, and ValueError as
    :class:`Question` and the model do.
    """
    if model is None and fit is None:
        raise Unsupported(
            "there is no cost model for this device's library: give a table of measured times"
        )
    if fit is not None and (fit.operation, fit.ranks) != (question.operation, question.ranks):
        raise ValueError(
            f"the times are of {fit.operation} on {fit.ranks} ranks, not of {question.operation} "
            f"on {question.ranks}"
        )
    predicted: Prediction | None = None
    remarks: tuple[str, ...] = ()
    error = None
    if model is not None and (fit is None or question.hardware is not None):
        predicted = model.predict(question)
        error = _known_error(question, model)
    ranked = sorted(predicted.candidates, key=lambda each: each.time_us) if predicted else []
    if fit is not None:
        algorithm = (ranked[0].algorithm, ranked[0].protocol) if ranked else ("", "")
        best = candidate(question, *algorithm, fit.time_us(question.size_bytes))
        basis = Basis(BasisKind.MEASURED, str(fit))
        # the model's own errors say nothing of a measured time
        error, remarks = None, fit.remarks(question.size_bytes)
        if ranked:
            assert model is not None  # noqa: S101 - a prediction comes from a model
            remarks += (f"algorithm and protocol: {_basis(model, library_version)}",)
            # the model's times do not stand beside measured ones
            ranked = ranked[:1]
    else:
        assert model is not None  # noqa: S101 - for the type checker
        assert predicted is not None  # noqa: S101
        if not ranked:
            raise Unsupported(
                f"{model.library} has nothing enabled for {question.operation} on "
                f"{question.ranks} ranks with {', '.join(question.algorithms) or 'these inputs'}"
            )
        best, basis = ranked[0], _basis(model, library_version)
        remarks = _remarks(question, model, error, predicted)
    return Choice(
        question=question,
        best=best,
        alternatives=tuple(ranked[1:]),
        basis=basis,
        inputs=predicted.inputs if predicted else (),
        shots=predicted.shots if predicted else None,
        known_error=error,
        remarks=remarks,
    )


def candidate(question: Question, algorithm: str, protocol: str, time_us: float) -> Candidate:
    """The candidate of that time, with its bus bandwidth."""
    factor = bus_factor(question.operation, question.ranks)
    busbw = question.size_bytes / time_us / 1e3 * (factor or 0.0) if time_us > 0 else math.inf
    return Candidate(algorithm, protocol, time_us, busbw)


def library_s_choice(
    question: Question, time_us: float, library: str, by_model: Choice | None
) -> Choice:
    """The choice whose time the library itself estimated.

    It tells neither algorithm nor protocol: they are those of ``by_model``, empty without one.
    """
    way = (by_model.best.algorithm, by_model.best.protocol) if by_model else ("", "")
    words = f"library's own answer: {library} estimated the time"
    return Choice(
        question=question,
        best=candidate(question, *way, time_us),
        alternatives=(),
        basis=Basis(BasisKind.LIBRARY, words),
        inputs=by_model.inputs if by_model else (),
        shots=by_model.shots if by_model else None,
        own_answer="asked",
        remarks=(f"algorithm and protocol: {by_model.basis}",) if by_model else (),
    )


def tuned_choice(question: Question, profile: Profile) -> Choice:
    """The choice of a profile, which was measured; the library's own call is the alternative.

    ``best.algorithm`` names the candidate, or the library's algorithm where its settings chose one.
    A size that was measured has its measured time, another one that of the fitted line. Raises
    ValueError where the profile has no times of the operation on so many ranks and nodes, or has
    them for several dtypes and the question names none.
    """
    profile.check_ranks(question.ranks, question.nodes)
    entry = profile.find(question.operation, question.ranks, question.nodes, question.dtype)
    if entry is None or entry.fit is None:
        raise ValueError(
            f"the profile has too few times of {question.operation} on {question.ranks} ranks"
        )
    within = entry.range_of(question.size_bytes)
    chosen = within.candidate if within is not None else None
    name = chosen.algorithm or chosen.name if chosen is not None else "call"
    fit = entry.fit if chosen is not None else entry.default_fit or entry.fit
    size_bytes = question.size_bytes
    point = next((each for each in entry.points if each.size_bytes == size_bytes), None)
    time_us = fit.time_us(size_bytes) if point is None else point.chosen_us
    best = candidate(question, name, chosen.protocol if chosen else "", time_us)
    plain_us = None
    if point is not None:
        plain_us = point.default_us
    elif entry.default_fit is not None:
        plain_us = entry.default_fit.time_us(size_bytes)
    said = (
        f"times of {entry.dtype} on the line between measured sizes"
        if point is None
        else f"times of {entry.dtype} as they were measured at this size; the error is the line's"
    )
    return Choice(
        question=question,
        best=best,
        alternatives=(candidate(question, "call", "", plain_us),)
        if plain_us is not None and name != "call"
        else (),
        basis=Basis(BasisKind.MEASURED, f"{fit}, {profile.basis}"),
        remarks=(*fit.remarks(size_bytes), said),
    )


def _basis(model: CostModel, library_version: str | None) -> Basis:
    constants = f"{model.library} {model.version}"
    if library_version is None or _minor(library_version) == _minor(model.version):
        return Basis(BasisKind.MODEL, f"model, constants of version {model.version}")
    return Basis(
        BasisKind.OTHER_MODEL,
        f"model of another version: constants of {constants}, library {library_version}",
    )


def _minor(version: str) -> tuple[str, ...]:
    return tuple(version.split(".")[:2])


def _known_error(question: Question, model: CostModel) -> KnownError | None:
    assert question.hardware is not None  # noqa: S101 - the model has answered
    nodes = min(question.nodes, 3)
    wanted = question.hardware.target, question.operation, nodes
    for each in model.known_errors():
        inside = each.low_bytes < question.size_bytes <= (each.high_bytes or math.inf)
        if inside and (each.target, each.operation, each.nodes) == wanted:
            return each
    return None


def network_floor_us(question: Question) -> float | None:
    """The least time in which a node's network ports carry their share; None if not known.

    Of S bytes all_reduce moves 2 (N - 1) / N through each of N nodes, all_gather and reduce_scatter
    (N - 1) / N, broadcast and reduce all. A network that reduces by itself may be faster.
    """
    if question.nodes < 2 or question.nic_gbs is None:
        return None
    share = bus_factor(question.operation, question.nodes) or 0.0
    return share * question.size_bytes / (1e3 * _ports(question) * question.nic_gbs)


def _ports(question: Question) -> int:
    return question.nics or question.local_ranks


def _doubts(question: Question, model: CostModel, predicted: Prediction) -> tuple[str, ...]:
    """What an answer of the model cannot be taken for."""
    found = []
    fastest = min(each.time_us for each in predicted.candidates)
    floor = None if predicted.counts_network else network_floor_us(question)
    if floor is not None and fastest < floor:
        found.append(
            f"too fast: {_ports(question)} x {question.nic_gbs:g} GB/s of a node need "
            f"{number(floor)} µs, and the model of {model.library} leaves the network out here"
        )
    if question.local_ranks > _ONE_MACHINE:
        found.append(
            f"all {question.local_ranks} ranks of a node are taken to share its links: give "
            "--nodes if they are on several machines"
        )
    return tuple(found)


def _remarks(
    question: Question, model: CostModel, error: KnownError | None, predicted: Prediction
) -> tuple[str, ...]:
    found = _doubts(question, model, predicted)
    if error is not None:
        return (str(error), *found)
    assert question.hardware is not None  # noqa: S101 - the model has answered
    said = (
        f"no published table of {question.hardware.target} on so many nodes and of this size was "
        f"compared with the model of {model.library} {model.version}"
    )
    return (said, *found)


def known_errors_of(rows: Sequence[Mapping[str, Any]]) -> tuple[KnownError, ...]:
    """The rows of a table of known errors, as ``tests/support/pages.py`` writes it."""
    return tuple(
        KnownError(**{"high_bytes": None, **row, "sources": tuple(row["sources"])}) for row in rows
    )

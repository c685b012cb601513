"""What a library would choose for a collective, and how long it takes.

A vendor's cost model or a fit of measured times answers a question
(:mod:`portagpu.devices.collectives.cost`), or the library itself does. torch 2.13 asks NCCL 2.22
and newer with ``ncclGroupSimulateEnd`` (``_time_estimator`` of torch's ``distributed_c10d.py``):
nothing is sent, and the library gives the time but neither the algorithm nor the protocol. Every
:class:`Choice` says what it is based on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from portagpu.base.errors import Unsupported
from portagpu.base.units import number

# plugins of contract 1.3 import these from here
from portagpu.devices.collectives.cost import Candidate as Candidate
from portagpu.devices.collectives.cost import CostModel as CostModel
from portagpu.devices.collectives.cost import Graph as Graph
from portagpu.devices.collectives.cost import Hardware as Hardware
from portagpu.devices.collectives.cost import Input as Input
from portagpu.devices.collectives.cost import Interval, interval_of
from portagpu.devices.collectives.cost import KnownError as KnownError
from portagpu.devices.collectives.cost import Prediction as Prediction
from portagpu.devices.collectives.cost import Question as Question
from portagpu.devices.collectives.cost import Shots as Shots
from portagpu.facts.nccl_tests.model import bus_factor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import torch
    import torch.distributed as dist

    from portagpu.devices.collectives.cost import Fit
    from portagpu.devices.collectives.other_ways import OtherWay
    from portagpu.devices.collectives.tuning import Profile

_ONE_MACHINE: Final = 16
"""With more ranks on one node than this, an answer says that it takes them for one machine."""


class BasisKind(StrEnum):
    """What an answer rests on."""

    MODEL = "model"
    OTHER_MODEL = "model of another version"
    MEASURED = "measured"
    LIBRARY = "library's own answer"


@dataclass(frozen=True, slots=True)
class Basis:
    """``kind``, and the whole of it in words.

    Of a model, ``library``, ``version`` and ``source`` are those of its constants.
    """

    kind: BasisKind
    words: str
    library: str = ""
    version: str = ""
    source: str = ""

    def __str__(self) -> str:
        return self.words


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The answer: ``best`` is the fastest candidate.

    ``alternatives`` are the others, in order; a measured time has none. ``shots`` is None where it
    does not apply. ``known_error`` is of the tables that the model was compared with, in this range
    or the nearest to it, and ``interval`` is the time that their errors allow; a measured time has
    neither. ``own_answer`` says whether the library itself was asked. ``remarks`` are
    sentences about how far to trust it. ``other_ways`` are those of the library for which its model
    has no times: each may run instead, or says why it does not.
    """

    question: Question
    best: Candidate
    alternatives: tuple[Candidate, ...]
    basis: Basis
    inputs: tuple[Input, ...] = ()
    shots: Shots | None = None
    known_error: KnownError | None = None
    interval: Interval | None = None
    own_answer: str = "not available: it needs a process group on the library's devices"
    remarks: tuple[str, ...] = ()
    other_ways: tuple[OtherWay, ...] = ()

    @property
    def expected_us(self) -> float:
        """The likeliest time: the predicted one, mended by the errors of published tables."""
        return self.best.time_us if self.interval is None else self.interval.likely_us


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
    error, interval = None, None
    if model is not None and (fit is None or question.hardware is not None):
        if hasattr(model, "refuse"):
            model.refuse(question, library_version or model.version)
        predicted = model.predict(question)
    ranked = sorted(predicted.candidates, key=lambda each: each.time_us) if predicted else []
    if fit is not None:
        algorithm = (ranked[0].algorithm, ranked[0].protocol) if ranked else ("", "")
        best = candidate(question, *algorithm, fit.time_us(question.size_bytes))
        basis = Basis(BasisKind.MEASURED, str(fit))
        # the model's own errors say nothing of a measured time
        remarks = fit.remarks(question.size_bytes)
        if ranked:
            assert model is not None  # noqa: S101 - a prediction comes from a model
            remarks += (f"algorithm and protocol: {_basis(model, library_version)}",)
            # times of the model are not mixed with measured ones
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
        errors = model.known_errors()
        error = _known_error(question, errors)
        interval, nearest = interval_of(question, best.time_us, errors)
        remarks = _remarks(question, model, error, interval, predicted)
        error = error or (nearest if interval.compared else None)
    ways: tuple[OtherWay, ...] = ()
    # a model that was written before them does not name them
    if model is not None and question.hardware is not None and hasattr(model, "other_ways"):
        ways = model.other_ways(question, library_version or model.version)
    return Choice(
        question=question,
        best=best,
        alternatives=tuple(ranked[1:]),
        basis=basis,
        inputs=predicted.inputs if predicted else (),
        shots=predicted.shots if predicted else None,
        known_error=error,
        interval=interval,
        remarks=remarks,
        other_ways=ways,
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

    It gives neither algorithm nor protocol: they are those of ``by_model``, empty without one.
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
    ValueError where the profile has no times of the operation on this many ranks and nodes, or has
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
    stated = (model.library, model.version, model.source)
    if library_version is None or _minor(library_version) == _minor(model.version):
        return Basis(BasisKind.MODEL, f"model, constants of version {model.version}", *stated)
    return Basis(
        BasisKind.OTHER_MODEL,
        f"model of another version: constants of {constants}, library {library_version}",
        *stated,
    )


def _minor(version: str) -> tuple[str, ...]:
    return tuple(version.split(".")[:2])


def _known_error(question: Question, errors: Iterable[KnownError]) -> KnownError | None:
    assert question.hardware is not None  # noqa: S101 - the model has answered
    nodes = min(question.nodes, 3)
    wanted = question.hardware.target, question.operation, nodes
    for each in errors:
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
    question: Question,
    model: CostModel,
    error: KnownError | None,
    interval: Interval,
    predicted: Prediction,
) -> tuple[str, ...]:
    found = (f"expected: {interval}", *_doubts(question, model, predicted))
    if error is not None:
        return (str(error), *found)
    assert question.hardware is not None  # noqa: S101 - the model has answered
    said = (
        f"no published table of {question.hardware.target} on this many nodes and of this size was "
        f"compared with the model of {model.library} {model.version}"
    )
    return (said, *found)


_ITEM_BYTES = 2


def estimated_time_us(
    operation: str,
    size_bytes: int,
    device: torch.device | None,
    group: dist.ProcessGroup | None = None,
) -> float:
    """The library's estimate in microseconds, for bfloat16 tensors that are not read or written.

    Raises Unsupported, with the reason, where there is no group or its library does not estimate.
    """
    import torch
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        raise Unsupported("the library's own answer needs a process group: initialise one first")
    from torch.distributed import distributed_c10d as c10d

    place = device or torch.device("cpu")
    whose = group if group is not None else c10d._get_default_group()
    library = whose._get_backend(place)
    if not getattr(library, "supports_time_estimate", False):
        raise Unsupported(
            f"the library's own answer is not available: {dist.get_backend(group)} estimates no "
            "times through this torch"
        )
    call = _call_to_estimate(operation, size_bytes, place, group)
    with c10d._time_estimator(group, place) as estimate:
        call()
    found = estimate.estimated_time
    if not found or found <= 0:
        raise Unsupported(f"the library estimated no time for {operation}")
    return float(found)


def _call_to_estimate(
    operation: str, size_bytes: int, place: torch.device, group: dist.ProcessGroup | None
) -> Callable[[], object]:
    import torch
    import torch.distributed as dist

    from portagpu.devices.collectives.helpers import all_gather_single, reduce_scatter_single

    ranks = dist.get_world_size(group)
    whole = max(ranks, size_bytes // _ITEM_BYTES // ranks * ranks)
    tensor = torch.empty(whole, dtype=torch.bfloat16, device=place)
    part = tensor[: whole // ranks]
    calls: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: dist.all_reduce(tensor, group=group),
        "all_gather": lambda: all_gather_single(tensor, part.clone(), group=group),
        "reduce_scatter": lambda: reduce_scatter_single(part.clone(), tensor, group=group),
        "broadcast": lambda: dist.broadcast(tensor, group=group, group_src=0),
        "reduce": lambda: dist.reduce(tensor, group=group, group_dst=0),
    }
    if operation not in calls:
        raise Unsupported(f"the library's own answer covers {', '.join(calls)}, not {operation}")
    return calls[operation]

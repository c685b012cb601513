"""Sizes of buckets for DDP and of groups for FSDP, from parameter sizes and a backward time.

DDP's rules are those of torch 2.13: ``_BucketCapacityConfig`` of
``torch/nn/parallel/distributed.py``, and ``compute_bucket_assignment_by_size`` and
``Reducer::rebuild_buckets`` of ``torch/csrc/distributed/c10d/reducer.cpp``. After the first step
the reducer fills buckets in the order in which gradients became ready. A parameter that reaches the
cap ends its bucket and is inside it. The first bucket has a cap of 1 MiB, but only if
``bucket_cap_mb`` is not given: a given cap holds for it too.

The model of overlap is simple, and every answer rests on it:

- the backward pass computes without a pause, from the last parameter to the first, and a parameter
  takes a share of its time in proportion to its bytes;
- a bucket's collective begins when its last gradient is ready and the one before has ended: they
  run one after another, on one stream, and slow the computation down by nothing;
- the step ends with the last of both.

Where ranks share the cores that compute, collectives take them away: without ``overlap`` a step is
the computation and then all collectives.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Time = Callable[[str, int], float]
    """Microseconds of an operation of that many bytes."""

MIB: Final = 1024 * 1024
FIRST_BUCKET_BYTES: Final = MIB
DEFAULT_CAP_MIB: Final = 25
_CAPS_MIB: Final = (
    *(1, 2, 4, 8, 12, 16, 20, 25, 32, 40, 50, 64, 80, 100, 128, 200, 256, 400, 512, 1024),
)
_MAX_BYTES: Final = 1 << 60
_MAX_US: Final = 1e15
_WORTH: Final = 0.01
"""A cap is preferred to the default only if the step is shorter by more than this share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Buckets of one cap, in the order in which they are sent, and the predicted times.

    ``cap_mib`` is None for torch's default of DDP. ``step_us`` is the backward pass with its
    communication, ``exposed_us`` what is left of it after the computation.
    """

    cap_mib: int | None
    buckets: tuple[int, ...]
    """Their bytes."""
    step_us: float
    exposed_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketChoice:
    """The plan with the shortest step, and the one of 25 MiB that it is compared with.

    ``kind`` is "ddp" or "fsdp". ``plans`` has every cap that was compared.
    """

    kind: str
    best: Plan
    default: Plan
    plans: tuple[Plan, ...]

    @property
    def speedup(self) -> float:
        """The step of 25 MiB over the best one."""
        return self.default.step_us / self.best.step_us


def ddp_buckets(sizes: Sequence[int], cap_mib: int | None = None) -> tuple[int, ...]:
    """The bytes of DDP's buckets in the order in which they are reduced.

    ``sizes`` has the bytes of the parameters as ``model.parameters()`` lists them, of one dtype and
    device. ``cap_mib`` is ``bucket_cap_mb``; None is the default, with a first bucket of 1 MiB.
    """
    cap = (DEFAULT_CAP_MIB if cap_mib is None else cap_mib) * MIB
    first = FIRST_BUCKET_BYTES if cap_mib is None else cap
    return _fill(list(reversed(_checked(sizes))), first, cap)


def choose_ddp(
    sizes: Sequence[int], backward_us: float, time: Time, *, overlap: bool = True
) -> BucketChoice:
    """The ``bucket_cap_mb`` with the shortest step, for gradients that an all-reduce sums.

    ``overlap`` says that collectives run at the same time as the computation, as on a GPU. Raises
    ValueError for sizes or a time that are not above 0.
    """
    _check_time(backward_us)
    plans = []
    for cap in (None, *_caps(sizes)):
        buckets = ddp_buckets(sizes, cap)
        times = [time("all_reduce", each) for each in buckets]
        step = _step(buckets, times, backward_us) if overlap else backward_us + sum(times)
        plans.append(_plan(cap, buckets, backward_us, step))
    return _best("ddp", plans, None)


def choose_fsdp(
    sizes: Sequence[int], backward_us: float, time: Time, *, overlap: bool = True
) -> BucketChoice:
    """The size of the groups of parameters (``fully_shard`` calls) with the shortest backward pass.

    FSDP has no cap: each group is gathered before its backward pass and reduced and scattered after
    it. The next group is gathered while one computes. The plans differ in the size up to which
    neighbouring parameters are in one group. Two groups are in memory at a time. ``overlap`` and
    errors are as for :func:`choose_ddp`.
    """
    _check_time(backward_us)
    plans = []
    for cap in sorted({*_caps(sizes), DEFAULT_CAP_MIB}):
        groups = _fill(list(reversed(_checked(sizes))), cap * MIB, cap * MIB)
        gathers = [time("all_gather", each) for each in groups]
        scatters = [time("reduce_scatter", each) for each in groups]
        step = backward_us + sum(gathers) + sum(scatters)
        if overlap:
            step = _sharded_step(groups, gathers, scatters, backward_us)
        plans.append(_plan(cap, groups, backward_us, step))
    return _best("fsdp", plans, DEFAULT_CAP_MIB)


def _checked(sizes: Sequence[int]) -> Sequence[int]:
    if not sizes or min(sizes) < 1:
        raise ValueError("buckets need the bytes of at least one parameter, each above 0")
    if sum(sizes) > _MAX_BYTES:
        raise ValueError("parameters of more than 1 EiB have no buckets: give their bytes")
    return sizes


def _check_time(backward_us: float) -> None:
    if not 0 < backward_us < float("inf"):
        raise ValueError(f"a backward pass takes more than 0 us, not {backward_us:g}")
    if backward_us > _MAX_US:
        raise ValueError(f"no backward pass takes {backward_us:g} us: give its time")


def _fill(sizes: Sequence[int], first: int, cap: int) -> tuple[int, ...]:
    found, filling, limit = [], 0, first
    for each in sizes:
        filling += each
        if filling >= limit:
            found.append(filling)
            filling, limit = 0, cap
    return tuple([*found, filling] if filling else found)


def _caps(sizes: Sequence[int]) -> list[int]:
    """The caps to compare: none beyond the first that holds every parameter."""
    total = sum(_checked(sizes))
    needed = next((cap for cap in _CAPS_MIB if cap * MIB >= total), _CAPS_MIB[-1])
    return [cap for cap in _CAPS_MIB if cap <= needed]


def _step(buckets: Sequence[int], times: Sequence[float], backward_us: float) -> float:
    """When the last bucket has been reduced, in microseconds from the start of the backward."""
    total, free = sum(buckets), 0.0
    for ready, taken in zip(accumulate(buckets), times, strict=True):
        free = max(free, backward_us * ready / total) + taken
    return max(free, backward_us)


def _sharded_step(
    groups: Sequence[int], gathers: Sequence[float], scatters: Sequence[float], backward_us: float
) -> float:
    """When the last group has been reduced and scattered: gathers and scatters share one link."""
    total, link, computed = sum(groups), gathers[0], 0.0
    gathered = link
    for at, each in enumerate(groups):
        begun = max(computed, gathered)
        if at + 1 < len(groups):
            link = max(link, begun) + gathers[at + 1]
            gathered = link
        computed = begun + backward_us * each / total
        link = max(link, computed) + scatters[at]
    return link


def _plan(cap: int | None, buckets: tuple[int, ...], backward_us: float, step_us: float) -> Plan:
    return Plan(cap_mib=cap, buckets=buckets, step_us=step_us, exposed_us=step_us - backward_us)


def _best(kind: str, plans: list[Plan], default_cap: int | None) -> BucketChoice:
    default = next(plan for plan in plans if plan.cap_mib == default_cap)
    fastest = min(plans, key=lambda plan: plan.step_us)
    if fastest.step_us > default.step_us * (1 - _WORTH):
        fastest = default
    return BucketChoice(kind=kind, best=fastest, default=default, plans=tuple(plans))

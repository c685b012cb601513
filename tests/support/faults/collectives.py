"""Faults of collectives: which call of ``torch.distributed``, of which kind, and which way wrong.

A fault is installed on every rank. It sees a call with its arguments by name, whatever the call is
called, lets the good one run, and spoils what that wrote; or it changes the arguments before.
"""

from __future__ import annotations

import contextlib
import inspect
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional

from tests.support.faults import Fault, replaced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CALLS: dict[str, tuple[str, str]] = {
    # what is written, what is read
    "all_reduce": ("tensor", ""),
    "reduce": ("tensor", ""),
    "broadcast": ("tensor", ""),
    "all_gather": ("tensor_list", "tensor"),
    "all_gather_into_tensor": ("output_tensor", "input_tensor"),
    "all_gather_single": ("output_tensor", "input_tensor"),
    "gather": ("gather_list", "tensor"),
    "scatter": ("tensor", "scatter_list"),
    "reduce_scatter": ("output", "input_list"),
    "reduce_scatter_tensor": ("output", "input"),
    "reduce_scatter_single": ("output", "input"),
    "all_to_all_single": ("output", "input"),
    "send": ("", "tensor"),
    "isend": ("", "tensor"),
    "recv": ("tensor", ""),
    "irecv": ("tensor", ""),
}
REDUCES = tuple(name for name in CALLS if "reduce" in name)
ROOTED = {"reduce": "dst", "broadcast": "src", "gather": "dst", "scatter": "src"}
MESSAGES = ("send", "isend", "recv", "irecv")


@dataclass
class Seen:
    """One call: its arguments by name, and what they say."""

    name: str
    given: dict[str, Any]
    number: int
    """How many calls of that name there were before."""
    last_group: Any
    stale: dict[Any, torch.Tensor] = field(default_factory=dict)

    @property
    def outputs(self) -> list[torch.Tensor]:
        return self._tensors(CALLS[self.name][0])

    @property
    def inputs(self) -> list[torch.Tensor]:
        return self._tensors(CALLS[self.name][1])

    def _tensors(self, argument: str) -> list[torch.Tensor]:
        found = self.given.get(argument) if argument else None
        if found is None:
            return []
        return [found] if isinstance(found, torch.Tensor) else list(found)

    @property
    def first(self) -> torch.Tensor:
        return [*self.outputs, *self.inputs][0]

    @property
    def group(self) -> Any:
        return self.given.get("group") or dist.group.WORLD

    @property
    def ranks(self) -> list[int]:
        return dist.get_process_group_ranks(self.group)

    @property
    def op(self) -> str:
        found = self.given.get("op")
        return str(getattr(found, "name", found)).rpartition(".")[2]

    @property
    def asynchronous(self) -> bool:
        return bool(self.given.get("async_op")) or self.name in ("isend", "irecv")

    @property
    def root(self) -> int:
        """The root's position, 0 without one."""
        for name in ("src", "dst"):
            if self.given.get(f"group_{name}") is not None:
                return int(self.given[f"group_{name}"])
            if self.given.get(name) is not None:
                return self.ranks.index(self.given[name])
        return 0


REGIONS: dict[str, Callable[[Seen], bool]] = {
    # after Aluminum#74
    "of the root's own part in place": lambda c: (
        c.name == "gather"
        and c.root != 0
        and any(each.data_ptr() == c.inputs[0].data_ptr() for each in c.outputs)
    ),
    "everywhere": lambda c: True,
    "of int8": lambda c: c.first.dtype == torch.int8,
    "of int64": lambda c: c.first.dtype == torch.int64,
    "of bfloat16": lambda c: c.first.dtype == torch.bfloat16,
    "of float16": lambda c: c.first.dtype == torch.float16,
    "of float64": lambda c: c.first.dtype == torch.float64,
    "of booleans": lambda c: c.first.dtype == torch.bool,
    "with another root than the first": lambda c: c.root != 0,
    "with the last root": lambda c: c.root == len(c.ranks) - 1,
    "in a group of some ranks": lambda c: len(c.ranks) < dist.get_world_size(),
    "in a group of two": lambda c: len(c.ranks) == 2,
    "in a group without rank 0": lambda c: 0 not in c.ranks,
    "in the default group": lambda c: c.given.get("group") is None,
    "in a group of one": lambda c: len(c.ranks) == 1,
    "in another group than the call before": lambda c: (
        c.last_group not in (None, c.group.group_name)
    ),
    "asynchronous": lambda c: c.asynchronous,
    "not asynchronous": lambda c: not c.asynchronous,
    "on rank 2": lambda c: dist.get_rank() == 2,
    "on the last rank of a group": lambda c: dist.get_rank() == c.ranks[-1],
    "of an odd number of elements": lambda c: c.first.numel() % 2 == 1,
    "of one element": lambda c: c.first.numel() == 1,
    "of more than 64 KiB": lambda c: c.first.nbytes > 65536,
    "of more than 16 elements": lambda c: c.first.numel() > 16,
    "of fewer elements than ranks": lambda c: c.first.numel() < len(c.ranks),
    "of several dimensions": lambda c: c.first.dim() > 1,
    "at an odd offset": lambda c: c.first.storage_offset() % 2 == 1,
    "the second time": lambda c: c.number % 2 == 1,
    "of averages": lambda c: c.op == "AVG",
    "of products": lambda c: c.op == "PRODUCT",
    "of maxima": lambda c: c.op == "MAX",
    "of minima": lambda c: c.op == "MIN",
    "of bitwise ops": lambda c: c.op in ("BAND", "BOR", "BXOR"),
    "of parts of different sizes": lambda c: c.given.get("input_split_sizes") is not None,
    "with NaN": lambda c: any(_has(each, torch.isnan) for each in [*c.outputs, *c.inputs]),
    "with infinities": lambda c: any(_has(each, torch.isinf) for each in [*c.outputs, *c.inputs]),
}


def _has(tensor: torch.Tensor, what: Callable[[torch.Tensor], torch.Tensor]) -> bool:
    return tensor.dtype.is_floating_point and tensor.dtype.itemsize > 1 and bool(what(tensor).any())


# a way wrong is given the call and its outputs as they were before, after the good call was done


def _last_element(call: Seen, before: list[torch.Tensor]) -> None:
    """The last element of each output is not written."""
    for each, old in zip(call.outputs, before, strict=True):
        if each.numel():
            _flat(each)[-1] = _flat(old)[-1]


def _first_element(call: Seen, before: list[torch.Tensor]) -> None:
    for each, old in zip(call.outputs, before, strict=True):
        if each.numel():
            _flat(each)[0] = _flat(old)[0]


def _nothing_written(call: Seen, before: list[torch.Tensor]) -> None:
    for each, old in zip(call.outputs, before, strict=True):
        each.copy_(old)


def _rolled(call: Seen, before: list[torch.Tensor]) -> None:
    del before
    for each in call.outputs:
        flat = _flat(each)
        flat.copy_(flat.clone().roll(1))


def _zero_in_the_middle(call: Seen, before: list[torch.Tensor]) -> None:
    del before
    for each in call.outputs:
        if each.numel():
            _flat(each)[each.numel() // 2] = 0


def _stale(call: Seen, before: list[torch.Tensor]) -> None:
    """The result of an earlier call of the same size and format."""
    del before
    for number, each in enumerate(call.outputs):
        key = call.name, each.dtype, each.shape, number
        good = each.clone()
        if key in call.stale:
            each.copy_(call.stale[key])
        call.stale[key] = good


def _swapped(call: Seen, before: list[torch.Tensor]) -> None:
    """The parts of the first two ranks are swapped."""
    del before
    if len(call.outputs) > 1:
        one, two = call.outputs[:2]
        kept = one.clone()
        one.copy_(two)
        two.copy_(kept)
    elif call.outputs:
        n, flat = len(call.ranks), _flat(call.outputs[0])
        size = len(flat) // n
        if n > 1 and size:
            kept = flat[:size].clone()
            flat[:size] = flat[size : 2 * size].clone()
            flat[size : 2 * size] = kept


def _rounded(call: Seen, before: list[torch.Tensor]) -> None:
    """Four bits of the significand are lost."""
    del before
    for each in call.outputs:
        whole = {8: torch.int64, 4: torch.int32, 2: torch.int16}.get(each.dtype.itemsize)
        if each.dtype.is_floating_point and whole is not None:
            bits = _flat(each).view(whole)
            bits.bitwise_and_(~15)


def _writes_input(call: Seen, before: list[torch.Tensor]) -> None:
    del before
    for each in call.inputs:
        if each.numel():
            _flat(each)[0] = 0


def _writes_after(call: Seen, before: list[torch.Tensor]) -> None:
    """One element after the last output."""
    del before
    for each in [*call.outputs, *call.inputs][-1:]:
        end = each.storage_offset() + each.numel()
        if (end + 1) * each.dtype.itemsize <= each.untyped_storage().nbytes():
            torch.as_strided(each, (1,), (1,), end).zero_()


def _writes_before(call: Seen, before: list[torch.Tensor]) -> None:
    """One element before the first output."""
    del before
    for each in [*call.outputs, *call.inputs][:1]:
        if each.storage_offset():
            torch.as_strided(each, (1,), (1,), each.storage_offset() - 1).zero_()


def _no_nan(call: Seen, before: list[torch.Tensor]) -> None:
    del before
    for each in call.outputs:
        if each.dtype.is_floating_point and each.dtype.itemsize > 1:
            each.nan_to_num_(nan=0.0)


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """The elements in the order of memory; every tensor of a call is dense."""
    return torch.as_strided(tensor, (tensor.numel(),), (1,), tensor.storage_offset())


AFTER = {
    "leaves the last element": _last_element,
    "leaves the first element": _first_element,
    "writes nothing": _nothing_written,
    "is off by one element": _rolled,
    "has a zero in the middle": _zero_in_the_middle,
    "gives the result of an earlier call": _stale,
    "swaps the parts of the first two ranks": _swapped,
    "loses four bits": _rounded,
    "drops NaN and infinities": _no_nan,
    "changes its input": _writes_input,
    "writes after the end": _writes_after,
    "writes before the start": _writes_before,
}

# a way wrong before: the arguments are other ones


def _next_root(call: Seen) -> None:
    for name in ("src", "dst"):
        if call.given.get(f"group_{name}") is not None:
            call.given[f"group_{name}"] = (call.root + 1) % len(call.ranks)
        elif call.given.get(name) is not None:
            call.given[name] = call.ranks[(call.root + 1) % len(call.ranks)]


def _other_op(call: Seen) -> None:
    call.given["op"] = dist.ReduceOp.MAX if call.op == "SUM" else dist.ReduceOp.SUM


def _without_last(call: Seen) -> None:
    """What the last rank has counts as the first one of a sum: zeros."""
    if dist.get_rank() == call.ranks[-1]:
        for each in call.inputs or call.outputs:
            each.zero_()


BEFORE = {
    "takes the next root": _next_root,
    "takes another op": _other_op,
    "takes zeros of the last rank": _without_last,
}


class _Late:
    """A work whose outputs are spoilt when it was waited for."""

    def __init__(self, work: Any, after: Callable[[], None]) -> None:
        self.work, self.after = work, after

    def wait(self, *given: Any) -> Any:
        found = self.work.wait(*given)
        self.after()
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self.work, name)


class _NotWaited:
    """A work for which nobody waits."""

    def __init__(self, work: Any) -> None:
        self.work = work

    def wait(self, *given: Any) -> bool:
        del given
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(self.work, name)


@contextlib.contextmanager
def installed(name: str, region: Callable[[Seen], bool], wrong: str) -> Iterator[None]:
    """``torch.distributed``'s function of that name has the fault inside the block."""
    good = getattr(dist, name)
    # a batch takes no other functions than those that its own module has under these names
    places = [dist, dist.distributed_c10d] if name in ("isend", "irecv") else [dist]
    signature = inspect.signature(good)
    stale: dict[Any, torch.Tensor] = {}
    state: dict[str, Any] = {"number": 0, "group": None}

    def faulty(*given: Any, **named: Any) -> Any:
        bound = signature.bind(*given, **named)
        bound.apply_defaults()
        call = Seen(name, dict(bound.arguments), state["number"], state["group"], stale)
        if call.group == dist.GroupMember.NON_GROUP_MEMBER:
            return good(*given, **named)
        applies = region(call)
        state["number"] += 1
        state["group"] = call.group.group_name
        if not applies:
            return good(*given, **named)
        return _spoilt(good, call, wrong)

    for place in places:
        setattr(place, name, faulty)
    try:
        yield
    finally:
        for place in places:
            setattr(place, name, good)


def _spoilt(good: Any, call: Seen, wrong: str) -> Any:
    if wrong == "raises":
        raise RuntimeError("no such algorithm")
    if wrong in BEFORE:
        BEFORE[wrong](call)
        return good(**call.given)
    if wrong == "is not waited for":
        if "async_op" not in call.given:
            return _NotWaited(good(**call.given))
        asynchronous = call.asynchronous
        work = good(**(call.given | {"async_op": True}))
        return _NotWaited(work) if asynchronous else None
    before = [each.clone() for each in call.outputs]
    found = good(**call.given)
    if call.asynchronous and found is not None:
        return _Late(found, lambda: AFTER[wrong](call, before))
    AFTER[wrong](call, before)
    return found


def _equivalent(call: str, region: str, wrong: str) -> bool:
    """Whether nothing could show it, or the call has no such region."""
    written, read = CALLS[call]
    op_region = region.startswith(
        ("of averages", "of products", "of maxima", "of minima", "of bit")
    )
    value_region = region.startswith(("with NaN", "with infinities"))
    one_rank = region.startswith(("on rank", "on the last"))
    return (
        (op_region and call not in REDUCES)
        or ("root" in region and call not in ROOTED)
        or (region.endswith("in place") and (call != "gather" or wrong == "is not waited for"))
        or (region.startswith("of parts of") and call != "all_to_all_single")
        or (region == "asynchronous" and call in ("send", "recv"))
        or (region == "not asynchronous" and call in ("isend", "irecv"))
        # a group of one: no messages, no other root and op, and in place there is nothing to do
        or (region == "in a group of one" and (call in MESSAGES or wrong in BEFORE))
        or (region == "in a group of one" and not read and wrong.startswith(("leaves", "writes n")))
        or (region == "in a group of one" and wrong == "is not waited for")
        or (wrong == "takes the next root" and call not in ROOTED)
        or (wrong == "takes another op" and call not in REDUCES)
        or (wrong == "takes zeros of the last rank" and call not in REDUCES)
        or (wrong in BEFORE and one_rank)
        # a product, a maximum or a bitwise op of zeros may be what it was
        or (wrong == "takes zeros of the last rank" and op_region)
        or (wrong == "changes its input" and not read)
        or (
            wrong not in (*BEFORE, "raises", "is not waited for")
            and not written
            and not wrong.startswith(("changes", "writes be"))
        )
        or (wrong.startswith("swaps") and call not in _PARTS)
        # an output with a part of each rank has fewer elements only where it has none
        or (
            region == "of fewer elements than ranks" and call in _WHOLE_OUTPUT and wrong != "raises"
        )
        or (wrong.startswith("swaps") and region in ("of one element", "in a group of one"))
        # one element rolled is itself, and the first of one is the last
        or (wrong == "is off by one element" and region == "of one element")
        or (wrong in ("loses four bits", "drops NaN and infinities") and region in _WHOLE)
        # what is not waited for has no effect before a message is sent
        or (wrong == "is not waited for" and call in ("send", "isend", "recv"))
        or (wrong == "is not waited for" and region == "of one element" and call == "irecv")
        # an error on some ranks alone keeps the others waiting, which is a hang and no new kind;
        # a format, an op or a number that the library may refuse is refused
        or (wrong == "raises" and (one_rank or region in _MAY_REFUSE or call in MESSAGES))
        or (value_region and wrong not in _OF_VALUES)
        or (wrong == "drops NaN and infinities" and not value_region)
        # it is not zero but NaN that a boolean has no room for
        or (region == "of booleans" and wrong == "loses four bits")
    )


# calls without tensors, and batches


def _holds_nobody(good: Any, call: dict[str, Any]) -> Any:
    """The barrier does nothing."""
    del good
    return _Done() if call["async_op"] else None


def _lets_first_through(good: Any, call: dict[str, Any]) -> Any:
    """The first rank of the group does not wait; the others do not wait for it."""
    ranks = dist.get_process_group_ranks(call["group"] or dist.group.WORLD)
    found = good(**(call | {"async_op": True}))
    if dist.get_rank() != ranks[0]:
        found.wait()
    return _Done() if call["async_op"] else None


class _Done:
    def wait(self, *given: Any) -> bool:
        del given
        return True


def _list_of(call: dict[str, Any]) -> list[Any] | None:
    names = ("object_list", "object_gather_list", "scatter_object_output_list")
    return next((call[name] for name in names if call.get(name) is not None), None)


def _reversed_objects(good: Any, call: dict[str, Any]) -> Any:
    found = good(**call)
    (_list_of(call) or []).reverse()
    return found


def _first_object_alone(good: Any, call: dict[str, Any]) -> Any:
    found = good(**call)
    every = _list_of(call)
    if every:
        every[:] = [every[0]] * len(every)
    return found


def _no_object(good: Any, call: dict[str, Any]) -> Any:
    before = list(_list_of(call) or [])
    found = good(**call)
    every = _list_of(call)
    if every:
        every[:] = before
    return found


def _next_root_of_objects(good: Any, call: dict[str, Any]) -> Any:
    name = "dst" if "dst" in call else "src"
    ranks = dist.get_process_group_ranks(call["group"] or dist.group.WORLD)
    call[name] = ranks[(ranks.index(call[name]) + 1) % len(ranks)]
    return good(**call)


def _one_less(good: Any, call: dict[str, Any]) -> Any:
    return good(**call) - 1


def _backwards(good: Any, call: dict[str, Any]) -> Any:
    return good(**call)[::-1]


def _spoilt_batch(spoil: Callable[[torch.Tensor], Any]) -> Any:
    def change(good: Any, call: dict[str, Any]) -> Any:
        works = good(**call)
        received = [each.tensor for each in call["p2p_op_list"] if each.op is dist.irecv]

        def after() -> None:
            for each in received:
                if each.numel():
                    spoil(_flat(each))

        return [*works[:-1], _Late(works[-1], after)] if works else works

    return change


def _last_zeroed(flat: torch.Tensor) -> None:
    flat[-1] = 0


FUNCTIONS: dict[str, dict[str, Any]] = {
    "barrier": {"holds nobody": _holds_nobody, "does not hold the first rank": _lets_first_through},
    "all_gather_object": {
        "reverses them": _reversed_objects,
        "gives the first alone": _first_object_alone,
        "gives none": _no_object,
    },
    "gather_object": {
        "reverses them": _reversed_objects,
        "gives the first alone": _first_object_alone,
        "gives none": _no_object,
    },
    "broadcast_object_list": {
        "takes the next root": _next_root_of_objects,
        "reverses them": _reversed_objects,
        "gives the first alone": _first_object_alone,
        "gives none": _no_object,
    },
    "scatter_object_list": {"gives none": _no_object},
    "get_world_size": {"is one less": _one_less},
    "get_group_rank": {"is one less": _one_less},
    "get_process_group_ranks": {"has them backwards": _backwards},
    "batch_isend_irecv": {
        "loses the last element": _spoilt_batch(_last_zeroed),
        "is off by one element": _spoilt_batch(lambda flat: flat.copy_(flat.clone().roll(1))),
        "receives nothing": _spoilt_batch(lambda flat: flat.fill_(77)),
    },
}
FUNCTION_REGIONS: dict[str, Callable[[list[int], dict[str, Any]], bool]] = {
    "everywhere": lambda ranks, call: True,
    "in a group of two": lambda ranks, call: len(ranks) == 2,
    "in a group of some ranks": lambda ranks, call: 1 < len(ranks) < 4,
    "in the default group": lambda ranks, call: call.get("group") is None,
    "with another root than the first": lambda ranks, call: (
        call.get("src", call.get("dst")) not in (None, ranks[0])
    ),
    "asynchronous": lambda ranks, call: bool(call.get("async_op")),
}


@contextlib.contextmanager
def faulty_function(name: str, region: Callable[..., bool], change: Any) -> Iterator[None]:
    """``torch.distributed``'s function of that name has the fault inside the block."""
    good = getattr(dist, name)
    ranks_of = dist.get_process_group_ranks
    signature = inspect.signature(good)

    def faulty(*given: Any, **named: Any) -> Any:
        bound = signature.bind(*given, **named)
        bound.apply_defaults()
        call = dict(bound.arguments)
        group = call.get("group")
        if name == "batch_isend_irecv":
            group = call["p2p_op_list"][0].group
        ranks = ranks_of(group if group is not None else dist.group.WORLD)
        return change(good, call) if region(ranks, call) else good(*given, **named)

    setattr(dist, name, faulty)
    try:
        yield
    finally:
        setattr(dist, name, good)


def _faults_in_functions() -> list[Fault]:
    found = []
    for name, wrongs in FUNCTIONS.items():
        for (where, region), (wrong, change) in product(FUNCTION_REGIONS.items(), wrongs.items()):
            rooted = name in ("gather_object", "broadcast_object_list", "scatter_object_list")
            none = (where.startswith("with another") and not rooted) or (
                where == "asynchronous" and name != "barrier"
            )
            # the default group of torch's functions has a handle
            named = name.startswith("get_group") or name == "get_process_group_ranks"
            batch = name == "batch_isend_irecv"
            if none or ((named or batch) and where == "in the default group"):
                continue

            def apply(name: str = name, region: Any = region, change: Any = change) -> Any:
                return faulty_function(name, region, change)

            found.append(Fault("collectives-4", f"{name}: {where}: {wrong}", apply))
    return found


def _as_contiguous(good: Any, given: torch.Tensor, *rest: Any) -> Any:
    """The first elements of the memory, whatever the strides are."""
    return good(given.as_strided(given.shape, torch.empty(given.shape).stride()), *rest)


FUNCTIONAL = Fault(
    "collectives-4",
    "functional.reduce_scatter_tensor: of several dimensions: takes it for contiguous",
    lambda: replaced(functional, "reduce_scatter_tensor", _as_contiguous),
)
"""After pytorch#130251."""
_PARTS = (
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_single",
    "gather",
    "all_to_all_single",
)
_WHOLE = ("of int8", "of int64", "of booleans")
_WHOLE_OUTPUT = ("all_gather_into_tensor", "all_gather_single")
_MAY_REFUSE = ("of int8", "of booleans", "of bitwise ops")
_OF_VALUES = ("drops NaN and infinities", "has a zero in the middle", "leaves the last element")


def faults() -> list[Fault]:
    """All of them."""
    wrongs = (*AFTER, *BEFORE, "is not waited for", "raises")
    found = []
    for call, (where, region), wrong in product(CALLS, REGIONS.items(), wrongs):
        if not hasattr(dist, call) or _equivalent(call, where, wrong):
            continue

        def apply(call: str = call, region: Any = region, wrong: str = wrong) -> Any:
            return installed(call, region, wrong)

        found.append(Fault("collectives-4", f"{call}: {where}: {wrong}", apply))
    return [*found, *_faults_in_functions(), FUNCTIONAL]

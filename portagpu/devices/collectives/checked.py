"""Collectives that are compared between the ranks before they run.

Libraries do not compare the calls of the ranks. Over Gloo a float32 and an int32 in one
``all_reduce`` give wrong numbers on every rank and no error. A rank with another collective, root
or shape hangs or corrupts its peers. A :class:`CheckedGroup` first sends each call to all ranks,
through the store of the group. It raises on every rank where calls differ or one is missing.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from portagpu.base.documents import decode, encode
from portagpu.base.errors import CollectiveError, CollectiveMismatch, RankLost
from portagpu.base.text import ranks_in_words
from portagpu.devices.collectives.calls import Call, call_of_hook, call_of_tensor, disagreement
from portagpu.devices.collectives.helpers import all_gather_single, reduce_scatter_single
from portagpu.devices.collectives.rendezvous import Problem, raise_together
from portagpu.devices.collectives.stores import Overrun, port_of, shut_down, watched

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from portagpu.devices.collectives.annotated import CollectiveMarks

_GRACE_S: Final = 1.0
"""How long a rank with an error waits for those of the others. A rank without one is lost."""
_LATE_S: Final = 0.7
"""After the time of a question to the store, until a store that does not answer is cut off: the
rank that holds it waits as long for the others to read who is lost."""
_CHECK_FAILURES_S: Final = 0.1
"""How often a rank in a collective checks whether another rank failed in it."""
_HOOK_ID: Final = 0x706F727461
"""A number of our own: another hook of the group has another."""
_FIRST_POLL_S: Final = 1e-4
_POLL_S: Final = 5e-3


class CheckedGroup:
    """The collectives of a process group under ``torch.distributed``'s names, each compared first.

    Create it on every rank of ``group``, in the same order. Tensors, shapes and meanings are
    torch's. A call costs a round trip through the store, so this is for finding errors, for first
    steps and for tests; the fast path of training stays torch's own functions. The errors below are
    those of every method, on every rank that still runs. After RankLost the library may still wait
    for the lost rank, also in ``destroy_process_group``: end the process.

    :param group: the process group; by default all ranks.
    :param timeout_s: seconds that a rank waits for the others to call, and for a collective to end.
    :param marks: what annotates the collectives for profilers; None for nothing.
    :raises CollectiveMismatch: when the ranks call different collectives, dtypes, shapes, reduce
        ops, roots or splits. Nothing is communicated then.
    :raises RankLost: when a rank does not call or does not come back, within ``timeout_s`` plus
        two seconds. It names the rank and the collective.
    :raises CollectiveError: when a rank's tensor is a view with gaps (``x[:, ::2]``) or shared
        memory (``expand``) into which the result would be written, when the library fails although
        every rank is there, and for every call after a failure: the ranks are out of step.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        timeout_s: float = 60.0,
        marks: CollectiveMarks | None = None,
    ) -> None:
        if not 0 < timeout_s < float("inf"):
            raise ValueError(f"a time limit is a number of seconds above 0, not {timeout_s}")
        if not dist.is_initialized():
            raise CollectiveError("there is no process group yet: call init_process_group first")
        group = group if group is not None else dist.group.WORLD
        rank = dist.get_rank(group)
        if group is None or rank < 0:
            raise CollectiveError("this rank is not a member of the group that is to be checked")
        self.group: Final = group
        self.timeout_s: Final = timeout_s
        self._marks: Final = marks
        self.ranks: Final = tuple(dist.get_process_group_ranks(group))
        """The global ranks of the members."""
        self._me: Final = self.ranks[rank]
        self._store: Final = group.get_group_store()
        self._port: Final = port_of(self._store)
        self._failure = ""
        base = f"portagpu/checked/{group.group_name}"
        made = self._ask(
            "making it", timeout_s, lambda: self._store.add(f"{base}/made/{self._me}", 1)
        )
        self._prefix: Final = f"{base}/{made}"
        self._number = 0
        self._starting = False
        """Whether a call of this object, which was compared, is on its way to torch's hooks."""

    def all_reduce(
        self, tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM, async_op: bool = False
    ) -> PendingCall | None:
        """As :func:`torch.distributed.all_reduce`; also in the methods below."""
        call = call_of_tensor("all_reduce", tensor, op=op)
        return self._run(
            call, lambda: dist.all_reduce(tensor, op, self.group, True), async_op, tensor
        )

    def broadcast(
        self, tensor: torch.Tensor, src: int = 0, async_op: bool = False
    ) -> PendingCall | None:
        call = call_of_tensor("broadcast", tensor, root=src)
        return self._run(
            call, lambda: dist.broadcast(tensor, src, self.group, True), async_op, tensor
        )

    def reduce(
        self,
        tensor: torch.Tensor,
        dst: int = 0,
        op: Any = dist.ReduceOp.SUM,
        async_op: bool = False,
    ) -> PendingCall | None:
        call = call_of_tensor("reduce", tensor, op=op, root=dst)
        return self._run(
            call, lambda: dist.reduce(tensor, dst, op, self.group, True), async_op, tensor
        )

    def all_gather(
        self, tensor_list: list[torch.Tensor], tensor: torch.Tensor, async_op: bool = False
    ) -> PendingCall | None:
        call = call_of_tensor("all_gather", tensor)
        return self._run(
            call, lambda: dist.all_gather(tensor_list, tensor, self.group, True), async_op, tensor
        )

    def all_gather_into_tensor(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        async_op: bool = False,
    ) -> PendingCall | None:
        call = call_of_tensor("all_gather_into_tensor", input_tensor)
        return self._run(
            call,
            lambda: all_gather_single(output_tensor, input_tensor, self.group, True),
            async_op,
            input_tensor,
        )

    all_gather_single = all_gather_into_tensor
    """torch's name since 2.13."""

    def reduce_scatter(
        self,
        output: torch.Tensor,
        input_list: list[torch.Tensor],
        op: Any = dist.ReduceOp.SUM,
        async_op: bool = False,
    ) -> PendingCall | None:
        call = replace(
            call_of_tensor("reduce_scatter", output, op=op),
            shape=tuple(part.numel() for part in input_list),
        )
        return self._run(
            call,
            lambda: dist.reduce_scatter(output, input_list, op, self.group, True),
            async_op,
            *input_list,
        )

    def reduce_scatter_tensor(
        self,
        output: torch.Tensor,
        input: torch.Tensor,  # noqa: A002
        op: Any = dist.ReduceOp.SUM,
        async_op: bool = False,
    ) -> PendingCall | None:
        call = call_of_tensor("reduce_scatter_tensor", input, op=op)
        return self._run(
            call,
            lambda: reduce_scatter_single(output, input, op, self.group, True),
            async_op,
            input,
        )

    reduce_scatter_single = reduce_scatter_tensor
    """torch's name since 2.13."""

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,  # noqa: A002
        output_split_sizes: list[int] | None = None,
        input_split_sizes: list[int] | None = None,
        async_op: bool = False,
    ) -> PendingCall | None:
        size = len(self.ranks)
        call = replace(
            call_of_tensor("all_to_all_single", input),
            # the first dimension is what is split, and may differ between ranks
            shape=tuple(input.shape[1:]),
            sends=tuple(input_split_sizes or [len(input) // size] * size),
            receives=tuple(output_split_sizes or [len(output) // size] * size),
        )
        return self._run(
            call,
            lambda: dist.all_to_all_single(
                output, input, output_split_sizes, input_split_sizes, self.group, True
            ),
            async_op,
            input,
        )

    def gather(
        self,
        tensor: torch.Tensor,
        gather_list: list[torch.Tensor] | None = None,
        dst: int = 0,
        async_op: bool = False,
    ) -> PendingCall | None:
        call = call_of_tensor("gather", tensor, root=dst)
        return self._run(
            call, lambda: dist.gather(tensor, gather_list, dst, self.group, True), async_op, tensor
        )

    def scatter(
        self,
        tensor: torch.Tensor,
        scatter_list: list[torch.Tensor] | None = None,
        src: int = 0,
        async_op: bool = False,
    ) -> PendingCall | None:
        call = call_of_tensor("scatter", tensor, root=src)
        return self._run(
            call,
            lambda: dist.scatter(tensor, scatter_list, src, self.group, True),
            async_op,
            tensor,
        )

    def barrier(self, async_op: bool = False) -> PendingCall | None:
        return self._run(Call(name="barrier"), lambda: dist.barrier(self.group, True), async_op)

    def compare_plain_call(self, call: Call) -> None:
        """Compare a call of torch's own functions, from a hook of the group."""
        if self._starting:
            return
        number, deadline = self._agree(call)
        if self._other_rank_failed(call, number, deadline):
            self._failure = (
                f"another rank waited {self.timeout_s:g} s for this one and left: {call}"
            )
            raise CollectiveError(self._failure)

    def _agree(self, call: Call) -> tuple[int, float]:
        """The call's number and its deadline, when all ranks have stated the same one."""
        if self._failure:
            raise CollectiveError(
                f"this group can no longer be used, because {self._failure}: destroy it and "
                "initialise a new one"
            )
        number, self._number = self._number, self._number + 1
        deadline = time.monotonic() + self.timeout_s
        self._compare_calls(call, number, deadline)
        return number, deadline

    def _run(
        self,
        call: Call,
        start: Callable[[], Any],
        async_op: bool,
        *inputs: torch.Tensor,
    ) -> PendingCall | None:
        number, deadline = self._agree(call)
        self._starting = True
        try:
            with self._annotated(call, inputs):
                work = start()
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            self._raise_failure(call, number, error)
        finally:
            self._starting = False
        pending = PendingCall(self, call, number, deadline, work)
        if async_op:
            return pending
        pending.wait()
        return None

    def _annotated(
        self, call: Call, inputs: Sequence[torch.Tensor]
    ) -> contextlib.AbstractContextManager[Any]:
        """A block for the profilers that listen, around the call itself."""
        if self._marks is None:
            return contextlib.nullcontext()
        more = {"reduce_op": call.reduce_op, "root": call.root}
        stated = {key: value for key, value in more.items() if value is not None}
        return self._marks.around(call.name, inputs, **stated)

    def _compare_calls(self, call: Call, number: int, deadline: float) -> None:
        """Publish this rank's call and compare it with the others. Raises CollectiveMismatch."""
        calls = self._ask(
            call, deadline - time.monotonic(), lambda: self._exchange_calls(call, number, deadline)
        )
        problem = disagreement(calls)
        if problem:
            self._failure = problem
            raise CollectiveMismatch(problem)
        if gaps := [rank for rank, each in calls.items() if each.gaps]:
            self._failure = (
                f"the tensor of rank {gaps[0]} in {calls[gaps[0]]} has gaps, or elements that "
                "share memory: give tensor.contiguous(), and copy the result back"
            )
            raise CollectiveError(self._failure)

    def _exchange_calls(self, call: Call, number: int, deadline: float) -> dict[int, Call]:
        """The calls of all ranks. Raises RankLost with those that do not call in time."""
        self._store.set(self._key(number, "call", self._me), json.dumps(encode(call)))
        keys = {rank: self._key(number, "call", rank) for rank in self.ranks}
        problem = self._key(number, "problem")
        if not self._wait_for_keys([*keys.values()], deadline - time.monotonic(), problem):
            missing = [rank for rank, key in keys.items() if not self._store.check([key])]
            if missing:
                # who comes late must not go on alone
                self._store.set(self._key(number, "alarm"), "")
                self._raise_lost(call, number, missing, f"did not call it in {self.timeout_s:g} s")
        stated = {rank: json.loads(self._store.get(key)) for rank, key in keys.items()}
        # whoever states this call has read all that was stated two calls ago
        for kind in ("call", "failed"):
            self._delete_key(self._key(number - 2, kind, self._me))
        return {rank: decode(Call, each, "call") for rank, each in stated.items()}

    def _raise_failure(self, call: Call, number: int, error: BaseException) -> None:
        """Alarm the other ranks, find the lost ones, and raise RankLost or CollectiveError."""
        self._ask(call, _GRACE_S, lambda: self._find_lost(call, number))
        first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
        self._failure = f"{call} (call {number} of this group) failed: {first}"
        raise CollectiveError(self._failure) from error

    def _find_lost(self, call: Call, number: int) -> None:
        self._store.set(self._key(number, "alarm"), "")
        self._store.set(self._key(number, "failed", self._me), "")
        keys = {rank: self._key(number, "failed", rank) for rank in self.ranks}
        self._wait_for_keys([*keys.values()], _GRACE_S, self._key(number, "problem"))
        lost = [rank for rank, key in keys.items() if not self._store.check([key])]
        if lost:
            self._raise_lost(call, number, lost, "did not come back from it")

    def _raise_lost(self, call: Call, number: int, lost: Sequence[int], how: str) -> None:
        message = f"{ranks_in_words(lost)} {how}: {call} (call {number} of this group)"
        store = PrefixStore(f"{self._prefix}/{number}", self._store)
        problem, everyone = Problem(message, tuple(lost)), len(self.ranks)
        # the store ends with rank 0 where no launcher holds it
        raise_together(store, problem, everyone, time.monotonic(), holds=self._me == 0)

    def _ask(self, call: Call | str, seconds: float, action: Callable[[], Any]) -> Any:
        """What ``action`` returns or raises, which asks the store for up to ``seconds``.

        Raises RankLost where the store has ended, or does not answer then.
        """
        try:
            if not self._port:
                return action()
            return watched(seconds + _LATE_S, action, partial(shut_down, self._port))
        except CollectiveError as error:
            self._failure = str(error)
            raise
        except (Overrun, RuntimeError) as error:
            problem = error.__cause__
            if isinstance(problem, CollectiveError):
                # found before the store was cut off
                self._failure = str(problem)
                raise problem from None
            how = "does not answer" if isinstance(error, Overrun) else "has ended"
            self._failure = (
                f"the store of the group cannot be reached in {call}: the process that holds it, "
                f"which is rank 0 unless a launcher holds it, {how}"
            )
            raise RankLost(self._failure, ranks=(0,)) from error

    def _other_rank_failed(self, call: Call, number: int, deadline: float) -> bool:
        key = self._key(number, "alarm")
        left = deadline - time.monotonic()
        return bool(self._ask(call, left, lambda: self._store.check([key])))

    def _wait_for_keys(self, keys: list[str], seconds: float, problem: str) -> bool:
        """Whether the keys appear within ``seconds``, and before another rank wrote a problem.

        The store's own ``wait`` is not used: FileStore rounds up to whole seconds.
        """
        until, pause = time.monotonic() + seconds, _FIRST_POLL_S
        while not self._store.check(keys):
            if time.monotonic() > until or self._store.check([problem]):
                return False
            time.sleep(pause)
            pause = min(2 * pause, _POLL_S)
        return True

    def _delete_key(self, key: str) -> None:
        with contextlib.suppress(RuntimeError):
            self._store.delete_key(key)

    def _key(self, number: int, kind: str, rank: int | None = None) -> str:
        return f"{self._prefix}/{number}/{kind}" + ("" if rank is None else f"/{rank}")


class PendingCall:
    """A collective that was started with ``async_op``: wait for it before its tensors are used."""

    def __init__(
        self, checked: CheckedGroup, call: Call, number: int, deadline: float, work: Any
    ) -> None:
        self._group = checked
        self._on_host = call.device in (None, "cpu")
        self._call = call
        self._number = number
        self._deadline = deadline
        self._work = work

    def is_completed(self) -> bool:
        """Whether the library has finished it, with or without an error."""
        return bool(self._work.is_completed())

    def wait(self) -> None:
        """Wait until the tensors hold the result; raises what :class:`CheckedGroup` says."""
        error = self._outcome()
        if error is not None:
            self._group._raise_failure(self._call, self._number, error)

    def _outcome(self) -> BaseException | None:
        """The failure, or None. A host that waits is watched from outside: some of Gloo's
        works know that they are done only in their ``wait``."""
        done = threading.Event()
        errors: list[BaseException] = []
        if self._on_host:
            arguments = (self._work, done, errors)
            threading.Thread(target=_wait_for_work, args=arguments, daemon=True).start()
        look = time.monotonic() + _CHECK_FAILURES_S
        while not (done.wait(_CHECK_FAILURES_S) if self._on_host else self._work.is_completed()):
            now = time.monotonic()
            if now > self._deadline:
                return TimeoutError(f"it did not end within {self._group.timeout_s:g} s")
            if now > look:
                if self._group._other_rank_failed(self._call, self._number, self._deadline):
                    return ConnectionError("another rank failed in it")
                look = now + _CHECK_FAILURES_S
            if not self._on_host:
                time.sleep(_POLL_S)
        if not self._on_host:
            # the stream of this thread waits for the collective
            _wait_for_work(self._work, done, errors)
        return errors[0] if errors else None


def _wait_for_work(work: Any, done: threading.Event, errors: list[BaseException]) -> None:
    try:
        work.wait()
    except RuntimeError as error:
        errors.append(error)
    done.set()


def check_plain_calls(checked: CheckedGroup) -> Callable[[], None] | None:
    """Compare every collective of the group before it runs; call the result to end that.

    Call it on every rank at the same point. None where torch's groups have no hooks. A pre-hook
    runs before each collective of a group, below the dispatcher, also for functional collectives
    and under torch.compile. What it raises reaches the caller, and nothing is sent. Sources:
    pytorch pull requests 186300 and 189363, and torch 2.15's ``c10d/Hooks.hpp``. torch 2.13 has no
    hooks.
    """
    group: Any = checked.group
    if not hasattr(group, "register_pre_hook"):
        return None

    def compare(arguments: Any) -> None:
        call = call_of_hook(arguments, checked.ranks)
        if call is not None:
            checked.compare_plain_call(call)

    group.register_pre_hook(_HOOK_ID, compare)
    return lambda: group.unregister_pre_hook(_HOOK_ID)

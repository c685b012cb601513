"""Joins the ranks of a run to one process group, and leaves it without a trace."""

from __future__ import annotations

import contextlib
import gc
import logging
import math
import os
import socket
import sys
import threading
import time
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed import distributed_c10d as c10d
from torch.distributed.constants import default_pg_timeout

from portagpu.base.documents import decode
from portagpu.base.errors import CollectiveError, PortagpuError
from portagpu.base.text import error_line
from portagpu.devices.collectives.launcher import place_of_rank
from portagpu.devices.collectives.rendezvous import (
    Member,
    Problem,
    alarmed,
    go_on,
    judged,
    leave,
    live_run,
    meet,
    own_process,
    raise_broken,
    slow,
)
from portagpu.devices.collectives.stores import (
    POLL_S,
    Meeting,
    Overrun,
    bounded,
    given_store,
    in_time,
    meeting_of,
    open_sockets,
    open_store,
    say_farewell,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType
    from typing import Self

    from portagpu.devices.collectives.annotated import CollectiveMarks
    from portagpu.devices.collectives.checked import CheckedGroup
    from portagpu.devices.collectives.launcher import Place

_log = logging.getLogger("portagpu")

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_DESTROY_S: Final = 2.0
"""How long torch may take to destroy the groups before their connections are cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """This rank in its run. As a context manager it shuts down at the end of the block.

    That raises RankLost as :meth:`shutdown` does, where the block itself raises nothing: with ranks
    that have ended or are stopped. Of ranks that are only slow it warns.
    """

    rank: int
    world_size: int
    local_rank: int
    """Among the ranks of this machine."""
    local_world_size: int
    launcher: str
    """Who says so: "torchrun", "Slurm", "Open MPI", "MVAPICH", "MPI", "alone" or "arguments"."""
    where: str
    """Where the ranks met: host and port, a file, or "the given store"."""
    engine: str
    """What moves the tensors: of the engines that torch has for one name, the one that it built."""
    members: tuple[Member, ...]
    """Host, process and device of every rank, in order of rank."""
    checked: CheckedGroup | None
    """With ``checked=True`` the collectives that are compared between the ranks first."""
    checks_plain_calls: bool
    """Whether ``torch.distributed``'s own functions are compared too, over the group of all ranks:
    with ``checked=True`` where torch's groups have hooks (2.14 and newer)."""

    def shutdown(self, timeout_s: float = 10.0) -> None:
        """What :meth:`portagpu.devices.collectives.comm.Comm.shutdown` does."""
        shutdown(timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # the others may be waiting for this rank inside a collective
        self.shutdown(10.0 if error is None else 0.0)


class _Device(Protocol):
    """What joining asks of the communication library of a device: see :class:`portagpu.Comm`."""

    @property
    def device_type(self) -> str: ...
    @property
    def device_ids(self) -> Sequence[int] | None: ...
    @property
    def device_id(self) -> torch.device | None: ...
    @property
    def device_identity(self) -> str | None: ...
    @property
    def init_string(self) -> str: ...
    def checked(self, *, timeout_s: float) -> CheckedGroup: ...
    def _marks(self) -> CollectiveMarks | None: ...
    def _engine_of(self, group: Any) -> str: ...


@dataclass(slots=True)
class _Run:
    """The run that this process is in: its process groups and what they hold."""

    meeting: Meeting
    store: Store
    device: torch.device | None
    rank: int
    members: tuple[Member, ...]
    pid: int
    """Of the process that joined: a fork of it has copies of its connections."""
    undo: list[Callable[[], None]] = field(default_factory=list)


_run: _Run | None = None
_generation = 0
"""How many runs this process has begun: the same on all ranks. A store may outlive a run."""
_lock = threading.RLock()


def init(
    comm: _Device,
    *,
    rank: int | None = None,
    world_size: int | None = None,
    store: Store | None = None,
    init_method: str | None = None,
    timeout_s: float = 300.0,
    collective_timeout_s: float | None = None,
    checked: bool = False,
) -> Membership:
    """What :meth:`portagpu.devices.collectives.comm.Comm.init` does, for the device of ``comm``."""
    for name, seconds in (
        ("timeout_s", timeout_s),
        ("collective_timeout_s", collective_timeout_s),
    ):
        if seconds is not None and not 0 < seconds < math.inf:
            raise ValueError(f"{name} is a number of seconds above 0, not {seconds!r}")
    if store is not None and init_method is not None:
        raise ValueError("give a store or an init_method, not both")
    global _run, _generation
    with _lock:
        if _run is not None and _run.pid != os.getpid():
            raise CollectiveError(
                "this process was forked from a rank, and cannot use its process group or make "
                "another: start it with multiprocessing's spawn"
            )
        if _run is not None or dist.is_initialized():
            raise CollectiveError(
                "a process group is there already: call gpu.comm.shutdown() before another init"
            )
        place = place_of_rank(os.environ, rank, world_size)
        meeting = given_store(store) if store is not None else meeting_of(place, init_method)
        _generation += 1
        joining = _Joining(comm, place, meeting, _generation, timeout_s, collective_timeout_s)
        try:
            members = in_time(meeting, place.rank, timeout_s, joining.join)
        except BaseException:
            _abandon(joining)
            raise
        meeting.joined = True
        _run = _Run(meeting, joining.run_store, comm.device_id, place.rank, members, os.getpid())
        try:
            return _membership(comm, place, meeting, members, checked, timeout_s)
        except BaseException:
            shutdown(0.0)
            raise


class _Joining:
    """One rank on its way into a process group."""

    def __init__(
        self,
        comm: _Device,
        place: Place,
        meeting: Meeting,
        generation: int,
        timeout_s: float,
        collective_timeout_s: float | None,
    ) -> None:
        self.comm = comm
        self.place = place
        self.meeting = meeting
        self.generation = generation
        self.timeout_s = timeout_s
        self.collective_timeout_s = collective_timeout_s
        self.deadline = time.monotonic() + timeout_s
        self.run_store: Any = None

    def join(self) -> tuple[Member, ...]:
        """Meet the other ranks and form the group."""
        pause = self.meeting.pause
        store = open_store(self.meeting, self.place, self.generation, self.deadline)
        me = _me(self.comm, self.place, self.meeting)
        name = str(self.generation)
        if self.place.agent_holds_store and self.meeting.port == self.place.port:
            name = live_run(store, self.generation, me.rank, self.timeout_s, self.deadline, pause)
        self.run_store = PrefixStore(f"portagpu/{name}", store)
        members = meet(
            self.run_store,
            me,
            self.timeout_s,
            self.deadline,
            hint=self.place.hint,
            holds=self.meeting.holds,
            pause=pause,
        )
        self._form_group(me, members)
        return members

    def _form_group(self, me: Member, members: Sequence[Member]) -> None:
        limit = self.collective_timeout_s
        # the group keeps its limit for connecting as the one of its messages (Gloo), so it is the
        # one that the caller wants, and this thread watches the time
        # a connection of its own: one that waits lets no other call pass
        store = self.run_store.clone()
        if not self.meeting.given:
            # as torch's own rendezvous does: a group waits here for what a late rank writes
            seconds = default_pg_timeout if limit is None else timedelta(seconds=limit)
            store.set_timeout(seconds)
        action = partial(
            dist.init_process_group,
            self.comm.init_string,
            store=store,
            rank=me.rank,
            world_size=me.world_size,
            timeout=None if limit is None else timedelta(seconds=limit),
            device_id=self.comm.device_id,
        )
        before = open_sockets()
        try:
            try:
                bounded(
                    self.deadline - time.monotonic(),
                    _on_device(self.comm.device_id, action),
                    None,
                    lambda: self.meeting.given_up or alarmed(self.run_store),
                )
            finally:
                self.meeting.sockets = open_sockets() - before
            self.run_store.set(f"joined/{me.rank}", "")
        except (Overrun, RuntimeError, ValueError) as error:
            if isinstance(error, PortagpuError):
                raise
            late = f"no answer within {self.timeout_s:g} s"
            said = late if isinstance(error, Overrun) else error_line(error)
            raise_broken(self.run_store, me, members, said, holds=self.meeting.holds)


def _me(comm: _Device, place: Place, meeting: Meeting) -> Member:
    host = socket.gethostname()
    machine, namespace, started = host, "", 0
    with contextlib.suppress(OSError):
        machine = _BOOT_ID.read_text("ascii").strip()
        namespace, started = own_process()
    return Member(
        rank=place.rank,
        world_size=place.world_size,
        host=host,
        machine=machine,
        pid=os.getpid(),
        device=comm.device_identity if comm.device_ids else None,
        device_name=str(comm.device_id or comm.device_type),
        local_rank=place.local_rank,
        pid_namespace=namespace,
        started=started,
        farewell=meeting.farewell_end,
    )


def _membership(
    comm: _Device,
    place: Place,
    meeting: Meeting,
    members: tuple[Member, ...],
    checked: bool,
    timeout_s: float,
) -> Membership:
    here = [each.rank for each in members if each.machine == members[place.rank].machine]
    compared: CheckedGroup | None = None
    plain = False
    if checked:
        from portagpu.devices.collectives.checked import check_plain_calls

        compared = comm.checked(timeout_s=timeout_s)
        stop = check_plain_calls(compared)
        plain = stop is not None
        if stop is not None and _run is not None:
            _run.undo.append(stop)
    marks = comm._marks()
    if marks is not None and marks.listens():
        from portagpu.devices.collectives.annotated import annotate_plain_calls

        stop = annotate_plain_calls(marks)
        if stop is not None and _run is not None:
            _run.undo.append(stop)
    local_rank, among = place.local_rank, place.local_world_size
    return Membership(
        rank=place.rank,
        world_size=place.world_size,
        local_rank=here.index(place.rank) if local_rank is None else local_rank,
        local_world_size=len(here) if among is None else among,
        launcher=place.launcher,
        where=meeting.where,
        engine=comm._engine_of(dist.group.WORLD),
        members=members,
        checked=compared,
        checks_plain_calls=plain,
    )


def _abandon(joining: _Joining) -> None:
    """Close what a failed init has opened."""
    joining.meeting.given_up = True
    joining.meeting.cut()
    with contextlib.suppress(Exception):
        if dist.is_initialized():
            c10d._abort_process_group()
    joining.run_store = None
    _close(joining.meeting)


def shutdown(timeout_s: float = 10.0, device: torch.device | None = None) -> None:
    """Leave the group, as ``Comm.shutdown`` does; ``device`` is this rank's."""
    if not 0 <= timeout_s < math.inf:
        raise ValueError(f"timeout_s is a number of seconds from 0, not {timeout_s!r}")
    global _run
    with _lock:
        if _run is not None and _run.pid != os.getpid():
            # the connections are the ones of the process that forked this one
            return
        run, _run = _run, None
        if run is None:
            if dist.is_initialized():
                # a group of the program's own
                with contextlib.suppress(Overrun):
                    action = _on_device(device, dist.destroy_process_group)
                    bounded(timeout_s + _DESTROY_S, action, None)
            return
        for stop in run.undo:
            with contextlib.suppress(RuntimeError):
                stop()
        everyone, lost = False, None
        try:
            # groups are destroyed together: their threads still use what other ranks hold
            everyone = in_time(run.meeting, run.rank, timeout_s, partial(_leave, run, timeout_s))
        except CollectiveError as error:
            lost = error
            me, first = run.members[run.rank], run.members[0]
            silent = run.meeting.of_rank_0 and isinstance(error.__cause__, Overrun)
            if silent and timeout_s and judged(me, first) is False:
                # it is at work, so that even its store has no time to answer
                lost = None
                go_on(run.rank, slow([0], timeout_s))
        finally:
            # also after Ctrl-C
            if dist.is_initialized():
                _destroy(run, everyone)
            if everyone or (timeout_s == 0 and lost is None):
                # who is lost after all have said that they leave has done its work
                with contextlib.suppress(CollectiveError):
                    in_time(run.meeting, run.rank, timeout_s, partial(_end_last, run, timeout_s))
            del run.store
            _close(run.meeting)
    if lost is None or timeout_s == 0:
        return
    if sys.exception() is None:
        raise lost
    # what the program raises comes first, also from a ``finally``
    _log.warning("%s", lost)


def _leave(run: _Run, timeout_s: float) -> bool:
    meeting, store = run.meeting, run.store
    try:
        said = meeting.farewell_said()
        if said is None:
            return _leave_over_store(run, timeout_s)
    except PortagpuError:
        raise
    except RuntimeError:
        said = meeting.farewell_said()
        if said is None:
            raise
    finally:
        with contextlib.suppress(RuntimeError):
            if meeting.server is not None and store.check(["problem"]):
                agreed, ends = store.get("problem"), {each.farewell for each in run.members}
                say_farewell(meeting.port, agreed, ends)
    return go_on(run.rank, decode(Problem, said, "farewell"))


def _leave_over_store(run: _Run, timeout_s: float) -> bool:
    meeting, store = run.meeting, run.store
    together = leave(store, run.rank, run.members, timeout_s, holds=meeting.ends_last)
    if meeting.file is not None and timeout_s and not together:
        # the last one that comes removes it
        meeting.holds = store.check([f"left/{each.rank}" for each in run.members])
    return together


def _end_last(run: _Run, timeout_s: float) -> None:
    """Say that this rank needs the store no more; whoever holds it waits for all others."""
    meeting, until = run.meeting, time.monotonic() + timeout_s
    run.store.add("gone", 1)
    while meeting.ends_last and run.store.add("gone", 0) < len(run.members):
        if time.monotonic() > until:
            return
        time.sleep(POLL_S / 10)
    if meeting.file is None:
        return
    if meeting.holds:
        meeting.file.unlink(missing_ok=True)
    # torch's FileStore writes to its file when it ends, perhaps with a model that has its group:
    # one that found the file before rank 0 removes it would make it again
    while meeting.file.exists() and time.monotonic() < until:
        time.sleep(POLL_S / 10)


def _destroy(run: _Run, everyone: bool) -> None:
    """Destroy all groups; with a lost rank, which torch would wait for, cut their connections."""
    action = dist.destroy_process_group if everyone else c10d._abort_process_group
    seconds = _DESTROY_S if everyone else POLL_S
    with contextlib.suppress(Overrun, RuntimeError, ValueError):
        bounded(seconds, _on_device(run.device, action), run.meeting.cut)


def _on_device(device: torch.device | None, action: Callable[[], Any]) -> Callable[[], Any]:
    """``action`` for another thread, which begins on the first device instead of this one."""

    def act() -> Any:
        if device is not None:
            torch.accelerator.set_device_index(device)
        return action()

    return act


def _close(meeting: Meeting) -> None:
    """Close the store: the process that holds it frees its port."""
    meeting.store = meeting.server = None
    if meeting.farewell is not None:
        meeting.farewell.close()
    # torch's groups hold it in cycles
    gc.collect()
    if meeting.file is not None and meeting.holds:
        meeting.file.unlink(missing_ok=True)

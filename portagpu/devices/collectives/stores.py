"""The store at which the ranks of a run meet, and calls to it that end in time.

A call to torch's TCPStore waits without a limit when the process that holds it is stopped (torch
2.13 and 2.15, TCPStore.cpp: neither ``check`` nor the handshake of a new client has one). So calls
run in a thread; after their time the connections are shut down, which ends the call.
"""

from __future__ import annotations

import _thread
import contextlib
import gc
import json
import os
import socket
import threading
import time
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from torch._C._distributed_c10d import FileStore, PrefixStore, Store, TCPStore

from portagpu.base.errors import CollectiveError, PortagpuError, RankLost
from portagpu.base.text import error_line

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from portagpu.devices.collectives.launcher import Place

_OWNER_KEY: Final = "portagpu/store"
_FIRST_POLL_S: Final = 1e-3
POLL_S: Final = 0.05
_CONNECT_S: Final = 2.0
_MAX_CONNECT_S: Final = 10.0
_HANDSHAKE_S: Final = 0.3
"""After the limit, until torch's client is left alone: where the store ends after it answered, it
tries again for more than twice its own limit (torch 2.13), and has no connection to cut."""
_CUT_S: Final = 0.1
"""How often connections are shut down while a call does not end."""
_FAREWELL_BYTES: Final = 1 << 16
_LATE_S: Final = 1.4
"""After the limit of init or shutdown, until calls that still wait for the store are cut off: the
ranks that answer agree until then on who is lost
(:mod:`portagpu.devices.collectives.rendezvous`)."""
CUTS_END_S: Final = 0.6
"""How long a call may take to end after its connections are gone."""


@dataclass(slots=True)
class Meeting:
    """A store, where it is, and what to remove at the end."""

    store: Store | None
    where: str
    """For messages: "127.0.0.1:29500", a file, or "the given store"."""
    given: bool = False
    """Whether the store is the caller's own."""
    address: str = ""
    port: int = 0
    """Of the process that holds the store; 0 for a store without one."""
    server: Store | None = None
    """What holds the others' store, in the process of rank 0. Groups get a connection to it, so
    that a group that lives on, in a model perhaps, keeps neither its port nor its thread."""
    holds: bool = False
    """Whether this process holds the others' store, or removes its file, so that it ends last."""
    of_rank_0: bool = False
    """Whether the process of rank 0 holds it."""
    file: Path | None = None
    farewell: socket.socket | None = None
    """A connection to the store of rank 0, which is silent until rank 0 leaves without this rank:
    what the ranks agreed on would end with the store."""
    sockets: set[str] = field(default_factory=set)
    """The connections of the process group, as /proc names them."""
    given_up: bool = False
    """Whether nobody waits any more for what the threads of this meeting do."""
    joined: bool = False
    """Whether this process is through init."""

    @property
    def ends_last(self) -> bool:
        """Whether the store may end with this process: a given one is perhaps the one's own."""
        return self.holds or self.given

    @property
    def farewell_end(self) -> str:
        """This rank's end of the farewell connection, as both ends write it; empty without one."""
        return "" if self.farewell is None else _end(self.farewell.getsockname())

    def farewell_said(self) -> Any:
        """What rank 0 said before its store ended, parsed; None if nothing."""
        if self.farewell is None:
            return None
        try:
            return json.loads(self.farewell.recv(_FAREWELL_BYTES))
        except (OSError, ValueError):
            return None

    def pause(self, seconds: float) -> None:
        """Sleep. Raises CollectiveError where the meeting was given up, as by Ctrl-C."""
        time.sleep(seconds)
        if self.given_up:
            raise CollectiveError("init was interrupted")

    def cut(self) -> None:
        """Shut down the connections to the store and of the process group."""
        shut_down(self.port, self.sockets)


class Overrun(Exception):
    """A call did not end in its time."""


def bounded(
    seconds: float,
    action: Callable[[], Any],
    cut: Callable[[], None] | None,
    stop: Callable[[], bool] | None = None,
) -> Any:
    """What ``action`` returns or raises, within ``seconds`` plus :data:`CUTS_END_S`.

    After ``seconds``, or when ``stop`` says so, ``cut`` ends what it waits for. Raises Overrun,
    from what ``action`` raised then; one that does not end is left to a daemon thread.
    """
    outcome: list[Any] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(action())
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            errors.append(error)

    thread = threading.Thread(target=run, name="portagpu-comm", daemon=True)
    thread.start()
    until = time.monotonic() + max(0.0, seconds)
    while thread.is_alive() and (left := until - time.monotonic()) > 0:
        thread.join(left if stop is None else min(left, POLL_S))
        if stop is not None and thread.is_alive() and stop():
            break
    late = thread.is_alive()
    until = time.monotonic() + CUTS_END_S
    while cut is not None and thread.is_alive() and time.monotonic() < until:
        cut()
        thread.join(_CUT_S)
    if outcome:
        return outcome[0]
    if late:
        raise Overrun(f"it did not end within {seconds:g} s") from (errors[0] if errors else None)
    raise errors[0]


def watched(seconds: float, action: Callable[[], Any], cut: Callable[[], None]) -> Any:
    """What ``action`` returns or raises, in this thread, where ``cut`` is sure to end it.

    It costs less than :func:`bounded`. Raises Overrun, from what ``action`` raised after
    ``seconds``.
    """
    done, late = threading.Event(), threading.Event()

    def watch() -> None:
        if not done.wait(max(0.0, seconds)):
            late.set()
            while not done.is_set():
                cut()
                done.wait(_CUT_S)

    # Thread.start would wait until it runs
    _thread.start_new_thread(watch, ())
    try:
        return action()
    except RuntimeError as error:
        if not late.is_set():
            raise
        raise Overrun(f"it did not end within {seconds:g} s") from error
    finally:
        done.set()


def given_store(store: Store) -> Meeting:
    """The caller's own store."""
    return Meeting(store, "the given store", given=True, port=port_of(store))


def port_of(store: Store) -> int:
    """Of the process that holds the store; 0 for a store without one."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store.port if isinstance(store, TCPStore) else 0


def meeting_of(place: Place, init_method: str | None) -> Meeting:
    """Where the ranks will meet; :func:`open_store` goes there. Raises what to set, if nothing."""
    if init_method is not None and init_method != "env://":
        return _meeting_of_url(init_method)
    if place.world_size == 1 and not place.agent_holds_store:
        return Meeting(None, "127.0.0.1", address="127.0.0.1", of_rank_0=True)
    if place.address is None:
        raise CollectiveError(
            f"the address of rank 0 is not known ({place.launcher} does not say it): set "
            "MASTER_ADDR to the host of rank 0, and MASTER_PORT to a port that is free there"
        )
    return Meeting(
        None,
        f"{place.address}:{place.port}",
        address=place.address,
        port=place.port,
        of_rank_0=not place.agent_holds_store,
    )


def _meeting_of_url(init_method: str) -> Meeting:
    try:
        url = urlsplit(init_method)
        if url.scheme == "tcp" and url.hostname and url.port and url.path in ("", "/"):
            return Meeting(
                None,
                f"{url.hostname}:{url.port}",
                address=url.hostname,
                port=url.port,
                of_rank_0=True,
            )
        if url.scheme == "file" and not url.netloc and url.path.startswith("/"):
            return Meeting(None, url.path, file=Path(url.path))
    except ValueError:
        pass
    raise ValueError(f"init_method is tcp://HOST:PORT, file:///PATH or env://, not {init_method!r}")


def open_store(meeting: Meeting, place: Place, generation: int, deadline: float) -> Store:
    """Open the meeting's store: this process holds it as rank 0, or is connected to it.

    Raises RankLost where rank 0 does not come until ``deadline``, and CollectiveError where its
    port cannot be had.
    """
    if meeting.store is None and meeting.file is not None:
        if generation > 1:
            # rank 0 may still have to remove the file of the run before
            meeting.file = meeting.file.with_name(f"{meeting.file.name}-{generation}")
        try:
            meeting.file.touch()
        except OSError as error:
            raise CollectiveError(
                f"the store {meeting.file} cannot be written ({error.strerror}): give a path that "
                "every rank can write"
            ) from None
        meeting.store = FileStore(str(meeting.file), place.world_size)
        meeting.holds = place.rank == 0
    elif meeting.store is None:
        owner = f"{generation} {place.job}"
        if meeting.of_rank_0 and place.rank == 0:
            _hold_store(meeting, owner, deadline)
        meeting.store = _connect(meeting, owner if meeting.of_rank_0 else None, deadline)
    return meeting.store


def _hold_store(meeting: Meeting, owner: str, deadline: float) -> None:
    address, port = meeting.address, meeting.port
    # for a rank 0 that does not reach itself, under a wrong address
    limit = timedelta(seconds=min(10.0, max(0.1, deadline - time.monotonic())))
    try:
        store = TCPStore(address, port, None, True, limit, wait_for_workers=False)
    except RuntimeError as error:
        if "EADDRINUSE" not in str(error) and "address already in use" not in str(error):
            raise unreachable_by_itself(meeting, error_line(error)) from error
        raise CollectiveError(
            f"rank 0 cannot hold the store at {meeting.where}: port {port} is in use there, by "
            "another program or a second rank 0; set MASTER_PORT (or the port of init_method) to a "
            "free port of rank 0's machine, the same on all ranks"
        ) from error
    store.set(_OWNER_KEY, owner)
    meeting.server, meeting.holds = store, True
    meeting.port = store.port
    meeting.where = f"{address}:{store.port}"


def _connect(meeting: Meeting, owner: str | None, deadline: float) -> Store:
    """A client of the store, which is the one of this run if ``owner`` is what it must state."""
    address, port = meeting.address, meeting.port
    problem, pause = "nothing answers there", _FIRST_POLL_S
    while (left := deadline - time.monotonic()) > 0:
        try:
            # torch's client logs every attempt
            with socket.create_connection((address, port), min(left, _CONNECT_S)) as probe:
                if probe.getsockname() == probe.getpeername():
                    raise ConnectionRefusedError("nothing answers there")
            # it answered just now; on a busy machine torch's own handshake takes longer
            limit = timedelta(seconds=min(max(left, _CONNECT_S), _MAX_CONNECT_S))
            connect = partial(TCPStore, address, port, None, False, limit, wait_for_workers=False)
            store: Store = bounded(deadline - time.monotonic() + _HANDSHAKE_S, connect, None)
            if owner is None:
                return store
            problem = "what answers there is not a store of this run"
            # rank 0 states it at once; another run's, or the one of a run before, never does
            until = min(deadline, time.monotonic() + 1.0)
            while not store.check([_OWNER_KEY]) and time.monotonic() < until:
                meeting.pause(POLL_S)
            if store.check([_OWNER_KEY]) and store.get(_OWNER_KEY).decode() == owner:
                if not meeting.holds:
                    meeting.farewell = socket.create_connection((address, port), _CONNECT_S)
                    meeting.farewell.setblocking(False)
                return store
            del store
        except (TimeoutError, Overrun):
            problem = "it does not answer"
        except OSError as error:
            problem = error.strerror or str(error)
        except RuntimeError:
            # the store of the run before, which is being closed
            problem = "what answered there closed the connection"
        meeting.pause(min(pause, max(0.0, deadline - time.monotonic())))
        pause = min(2 * pause, 4 * POLL_S)
    raise lost_store(meeting, problem)


def unreachable_by_itself(meeting: Meeting, problem: str) -> CollectiveError:
    """The error of rank 0 where the address of its store does not lead to it."""
    return CollectiveError(
        f"rank 0 does not reach its own store at {meeting.where}: {problem}; set MASTER_ADDR (or "
        "the host of init_method) to an address of rank 0's machine, and MASTER_PORT to a port "
        "that it may use, the same on all ranks"
    )


def lost_store(meeting: Meeting, problem: str, rank: int | None = None) -> CollectiveError:
    """The error, on ``rank``, for a store that cannot be reached.

    Rank 0 is lost, if it holds the store.
    """
    if meeting.of_rank_0 and rank == 0 and not meeting.holds:
        return unreachable_by_itself(meeting, problem)
    if meeting.of_rank_0:
        lost = "is gone" if meeting.joined else "did not come or is gone"
        more = "" if meeting.joined else ", and at MASTER_ADDR and MASTER_PORT"
        return RankLost(
            f"rank 0, which holds the store at {meeting.where}, {lost}: {problem}; look at the "
            f"output of rank 0{more}",
            ranks=(0,),
        )
    return CollectiveError(
        f"the store at {meeting.where} cannot be reached: {problem}; look at the launcher, or the "
        "process that holds the store"
    )


def open_sockets() -> set[str]:
    """The sockets of this process, as /proc names them."""
    return {name for name, _ in _sockets()}


def say_farewell(port: int, text: bytes, ends: Collection[str]) -> None:
    """Send ``text`` to those ``ends`` of connections that this process holds at ``port``."""
    for _, descriptor in _sockets():
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
            if connection.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            here, there = connection.getsockname(), connection.getpeername()
            if here[1] == port and _end(there) in ends:
                connection.send(text[:_FAREWELL_BYTES], socket.MSG_DONTWAIT)


def _end(address: tuple[Any, ...]) -> str:
    # a server of both families names one of IPv4 so
    return f"{str(address[0]).removeprefix('::ffff:')}:{address[1]}"


def _sockets() -> Iterator[tuple[str, int]]:
    """(name, descriptor) of each open socket."""
    with contextlib.suppress(OSError):
        for link in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError, ValueError):
                name = str(link.readlink())
                if name.startswith("socket:"):
                    yield name, int(link.name)


def shut_down(port: int, names: Collection[str] = ()) -> None:
    """Shut down this process's connections to that port, and those of ``names``.

    What a socket object of Python holds is the program's own: torch's connections have none.
    """
    own: set[int] | None = None
    for name, descriptor in _sockets():
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
            if connection.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            # one that listens has no peer; Gloo would end the process over it
            peer = connection.getpeername()
            if name not in names and not (port and peer[1] == port):
                continue
            if own is None:
                # 40 ms of a process with torch, so not where all are shut down already
                own = {
                    each.fileno()
                    for each in gc.get_objects()
                    if issubclass(type(each), socket.socket)
                }
            if descriptor not in own:
                connection.shutdown(socket.SHUT_RDWR)


def in_time(meeting: Meeting, rank: int, timeout_s: float, action: Callable[[], Any]) -> Any:
    """What ``action`` returns, which asks the store. Raises what it raises.

    Raises the error of a lost store where the store ends, or does not answer in time.
    """
    try:
        return bounded(timeout_s + _LATE_S, action, meeting.cut)
    except PortagpuError:
        raise
    except Overrun as error:
        if isinstance(error.__cause__, PortagpuError):
            # what was found before the store was cut off
            raise error.__cause__ from None
        problem = f"it did not answer within {timeout_s:g} s"
        raise lost_store(meeting, problem, rank) from error
    except RuntimeError as error:
        raise lost_store(meeting, f"it ended ({error_line(error)})", rank) from error

"""Children that a running process forks: what it has imported, they need not import.

Such a process runs nothing else and has one thread. It forks for its parent, or for itself. In the
child ``fork`` raises :class:`Become`, which leaves what the stack holds, and :func:`run_main` at
the bottom of the stack runs the program. The child leads a session of its own, has a mark of its
own, and ends with the process that forked it.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import select
import subprocess
import sys
import threading
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol

from portagpu.base.subprocesses.start import MARK, die_with_parent, mark_place, write_mark

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

OPTION: Final = "--portagpu-channel"
"""The last argument of a child: the descriptors of its pipes, ``OPTION=READER,WRITER``."""
_DONE: Final = b"1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What a child runs: a Python module, with descriptors of the process that asks for it."""

    module: str
    words: tuple[str, ...]
    variables: Mapping[str, str]
    """The environment, without the following ones."""
    further: Mapping[str, str]
    """Variables of this child alone. A forked child gets them after what it need not import."""
    folder: str | None
    """Where it works; None is where the process works that asks."""
    reader: int
    writer: int
    output: int
    """What it prints goes there; without ``prints`` only what it writes as errors does."""
    prints: bool


class Process(Protocol):
    """A child that was started: ``subprocess.Popen`` and more."""

    pid: int
    returncode: int | None

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def has_ended(self) -> bool:
        """Whether it has ended, whether or not its status was taken."""

    def has_number(self) -> bool:
        """Whether its process id is its own until its status is taken."""


class Forker(Protocol):
    """What can fork a child for a program."""

    def fork(self, program: Program) -> Process | None:
        """The child; None where the program has to be started instead."""


class Become(BaseException):
    """Raised in a forked child: it is to leave the stack of its parent, and to run a program.

    ``channel`` are the descriptors of the child's pipes.
    """

    def __init__(self, program: Callable[[], object], channel: tuple[int, int]) -> None:
        super().__init__()
        self.program = program
        self.channel = channel


def run_main(main: Callable[[], object]) -> NoReturn:
    """Run a main function, or what a forked child becomes meanwhile, and exit with its value."""
    while True:
        try:
            sys.exit(main())  # type: ignore[arg-type]
        except Become as become:
            main = become.program


class Forked:
    """A child that was forked. ``take()`` gives its status and frees its process id.

    The id is its own as long as ``parent_lives()``. Raises OSError where Linux gives no handle.
    """

    def __init__(self, pid: int, take: Callable[[], int], parent_lives: Callable[[], bool]) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._take = take
        self._parent_lives = parent_lives
        # a number may be used again, where its parent ends first
        self._handle = os.pidfd_open(pid)

    def has_ended(self) -> bool:
        return self._handle < 0 or self._ends_within(0.0)

    def has_number(self) -> bool:
        return self._parent_lives()

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0.0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not self._ends_within(timeout):
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            self.returncode = self._take()
            os.close(self._handle)
            self._handle = -1
        return self.returncode

    def _ends_within(self, seconds: float | None) -> bool:
        poll = select.poll()
        poll.register(self._handle, select.POLLIN)
        return bool(poll.poll(None if seconds is None else seconds * 1000))


class ForkHere:
    """Forks children of this process, which has one thread and runs nothing else.

    ``apart`` are descriptors that they must not hold.
    """

    def __init__(self, apart: tuple[int, ...]) -> None:
        self._apart = apart

    def fork(self, program: Program) -> Process | None:
        """The child; None where the program has to be started instead."""
        pid = fork(request_of(program), self._apart) if can_watch_forks() else None
        return None if pid is None else Forked(pid, partial(take_status, pid), lambda: True)


def can_watch_forks() -> bool:
    """Whether Linux gives a handle of a process that is not this one's own child."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True


def request_of(program: Program) -> dict[str, Any]:
    """The program as a message to the process that forks it for this one."""
    opened = {"reader": program.reader, "writer": program.writer, "output": program.output}
    return {
        "module": program.module,
        "words": list(program.words),
        "variables": dict(program.further),
        "folder": program.folder,
        "prints": program.prints,
        "asks": os.getpid(),
        **opened,
    }


def fork(request: Mapping[str, Any], apart: tuple[int, ...]) -> int | None:
    """Fork a child for a program; returns its process id, and raises :class:`Become` in the child.

    The child closes ``apart``. None where no child can be forked: the program has to be started.
    """
    place = mark_place()
    if place is None or threading.active_count() > 1:
        return None
    files: list[int] = []
    try:
        files += _files(request)
        began, begins = os.pipe()
        files += (began, begins)
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            _enter(request, files, apart, parent, place)
        os.close(files.pop())
        # until it has a session and a mark, nobody could end it with what it starts
        if os.read(began, 1) == _DONE:
            return pid
        os.waitpid(pid, 0)
    except OSError:
        return None
    finally:
        for each in files:
            os.close(each)
    return None


def take_status(pid: int) -> int:
    """The status of an ended child, as ``Popen.returncode`` has it: 0 if it was taken before."""
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:
        return 0


def _files(request: Mapping[str, Any]) -> list[int]:
    """The files of the process that asks, opened here: reader, writer, standard output, errors."""
    opened = Path(f"/proc/{request['asks']}/fd")
    printed = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
    found: list[int] = []
    try:
        found.append(os.open(opened / str(request["reader"]), os.O_RDONLY | os.O_CLOEXEC))
        found.append(os.open(opened / str(request["writer"]), os.O_WRONLY | os.O_CLOEXEC))
        errors = opened / str(request["output"])
        found.append(os.open(errors if request["prints"] else os.devnull, printed))
        found.append(os.open(errors, printed))
    except BaseException:
        for each in found:
            os.close(each)
        raise
    return found


def _enter(
    request: Mapping[str, Any], files: list[int], apart: tuple[int, ...], parent: int, place: int
) -> NoReturn:
    """Set this child up, and have it become the program."""
    try:
        os.setsid()
        die_with_parent()
        if os.getppid() != parent:
            os._exit(1)
        reader, writer, printed, errors, began, begins = files
        # the caller closes what is left in it
        files.clear()
        write_mark(place, request["variables"][MARK])
        os.chdir(request["folder"] or f"/proc/{request['asks']}/cwd")
        os.dup2(printed, 1)
        os.dup2(errors, 2)
        for each in (printed, errors, began, *apart):
            os.close(each)
        os.environ.update(request["variables"])
        os.write(begins, _DONE)
        os.close(begins)
    except BaseException:  # noqa: BLE001 - the parent learns that there is no child
        os._exit(1)
    words = [*request["words"], f"{OPTION}={reader},{writer}"]
    raise Become(partial(_run_module, request["module"], words), (reader, writer))


def _run_module(module: str, words: list[str]) -> None:
    """Run a module as ``python -m`` does."""
    sys.argv = [module, *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)

"""Starting child processes, and ending them with what they left.

Children run and load nothing from the working folder, which may hold untrusted files, such as an
unpacked recording. ``python -m``, an interactive Python, and empty or relative entries put it on a
search path of modules, programs or libraries (``LD_LIBRARY_PATH=/cuda/lib64:`` has an empty entry).
Sources of the ending: Linux ``prctl(2)``, ``waitid(2)``, ``proc(5)``.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from portagpu.base.errors import PortagpuError
from portagpu.base.paths import working_folder
from portagpu.base.patience import LIMITS, PATIENCE, processes, stat_fields

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence


_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
MARK: Final = "PORTAGPU_PROCESS"
"""The variable by which what a child started is found after it left the child's session."""
_MARK_BYTES: Final = 32
_SELF: Final = Path("/proc/self")
_PASSES: Final = 50
_PASS_S: Final = 0.01
_EMPTY_PASSES: Final = 3
"""Further ones where a process shows no environment, which it may get."""


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that forked it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def wake_at_parents_end() -> None:
    """Have the kernel continue this process, if stopped, when the thread that forked it ends.

    It then sees the end of its input. A running process does not notice.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def has_ended(pid: int) -> bool:
    """Whether that child is a zombie, which it stays."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def signal_process(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process that may be gone, or another user's."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def end_strays(kept: Collection[int] = (), limit_s: float = LIMITS.stray_s) -> None:
    """End the children of this process but ``kept``: what ranks left, whose subreaper it is."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        strays = [pid for pid in children_of(os.getpid(), ended=True) if pid not in kept]
        if not strays:
            return
        for stray in strays:
            signal_process(stray, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(stray, os.WNOHANG)
        time.sleep(0.01)


def new_mark() -> str:
    """The value of ``MARK`` for a child: what it starts inherits it, in whatever session."""
    return os.urandom(_MARK_BYTES // 2).hex()


def end_marked(mark: str, session: int | None = None) -> None:
    """End every process with that mark in its environment, and those of a session.

    One that is blocked in the kernel, or that emptied its environment and left the session, stays.
    """
    again = _EMPTY_PASSES
    for _ in range(_PASSES):
        found, empty = [], False
        # what it starts meanwhile has the mark as well
        for pid, _, its in processes():
            environment = _environment_of(pid)
            if its == session or mark in (environment or ""):
                found.append(pid)
            empty = empty or environment is None
        if not found:
            if not (empty and again):
                return
            again -= 1
        for pid in found:
            signal_process(pid, signal.SIGKILL)
        time.sleep(_PASS_S)


def _environment_of(pid: int) -> str | None:
    """The environment with which a process of this user began; empty for any other.

    None of a process without one: a process that begins to execute a program shows none for a
    moment, also after its parent was notified.
    """
    process = Path(f"/proc/{pid}")
    try:
        environment = (process / "environ").read_text("latin-1")
        if not environment:
            # neither a thread of the kernel nor a process that has ended has a program
            (process / "exe").readlink()
            return None
    except OSError:
        return ""
    return environment


def mark_place() -> int | None:
    """Where this process's memory holds its mark, as others read it; None where that is unknown.

    It is among the variables with which the process began: a forked one has those of its parent.
    """
    name = f"{MARK}=".encode()
    try:
        # the address of the first variable (proc_pid_stat(5): env_start)
        start = int(stat_fields(_SELF)[47])
        before, found, rest = (_SELF / "environ").read_bytes().partition(name)
        place = start + len(before) + len(name)
        with (_SELF / "mem").open("rb", buffering=0) as memory:
            held = os.pread(memory.fileno(), _MARK_BYTES, place)
    except (OSError, ValueError, IndexError, OverflowError):
        return None
    mark = rest.partition(b"\0")[0]
    return place if found and len(mark) == _MARK_BYTES and held == mark else None


def write_mark(place: int, mark: str) -> None:
    """Give this process another mark. Raises OSError where its memory cannot be written."""
    with (_SELF / "mem").open("r+b", buffering=0) as memory:
        os.pwrite(memory.fileno(), mark.encode(), place)


def children_of(process: int, *, ended: bool = False) -> list[int]:
    """The visible processes with that parent; those that have ``ended`` only if asked for."""
    return [pid for pid, parent, _ in processes(ended=ended) if parent == process]


NEUTRAL_FOLDER: Final = "/"
"""The working folder of a child that needs none."""
_PATH_VARIABLES: Final = {
    "PATH": ":",
    "PYTHONPATH": ":",
    "LD_LIBRARY_PATH": "[:;]",
    "LD_PRELOAD": "[: ]",
    "LD_AUDIT": ":",
}
"""Variables that list paths, and their separators (``environ(7)``, ``ld.so(8)``)."""
_PRELOAD_VARIABLES: Final = frozenset({"LD_PRELOAD", "LD_AUDIT"})
"""Those in which a name without a slash is searched in the paths of the others."""


def import_path() -> list[str]:
    """Where a Python child finds this process's packages: ``sys.path`` without the working folder.

    The folder stays if this package was imported from it.
    """
    here = os.path.realpath(working_folder())
    at_home = here == os.path.realpath(Path(__file__).parents[3])
    found = []
    for entry in sys.path:
        place = os.path.join(here, entry)  # noqa: PTH118 - an entry may be empty
        if at_home or (place == entry and os.path.realpath(place) != here):
            found.append(os.path.normpath(place))
    return [place for place in found if os.pathsep not in place]


def python_command(name: str, *words: str) -> list[str]:
    """The command line of a Python child that runs a module.

    Raises PortagpuError where this Python does not know its own program (it is embedded).
    """
    if not sys.executable:
        raise PortagpuError(
            "this Python does not say which program it is, so that no child can be started"
        )
    return [sys.executable, "-P", "-m", name, *words]


def python_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a Python child that sees this process's packages, plus ``extra``."""
    return {
        **_environment(),
        "PYTHONPATH": os.pathsep.join(import_path()),
        **(extra or {}),
    }


def find_program(name: str) -> str | None:
    """The program of that name in an absolute folder of ``PATH``; None where there is none."""
    return shutil.which(name, path=os.pathsep.join(program_folders()))


def program_folders() -> Iterator[str]:
    """The absolute folders of ``PATH``."""
    yield from filter(os.path.isabs, os.get_exec_path())


def program_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a vendor's program, plus ``extra``.

    ``PYTHONSAFEPATH`` is left out: amd-smi is a Python script that imports what lies next to it.
    """
    kept = {name: value for name, value in _environment().items() if name != "PYTHONSAFEPATH"}
    return {**kept, **(extra or {})}


def run_program(
    *command: str,
    limit_s: float | None = None,
    environment: Mapping[str, str] | None = None,
    leave_out: Collection[str] = (),
) -> subprocess.CompletedProcess[bytes]:
    """Run a vendor's program to its end, without input and without a shell.

    :param command: the program, which is looked up in ``PATH``, and its arguments.
    :param limit_s: seconds after which it is ended with what it started; None leaves that to the
        parent of this process.
    :param environment: variables to add to this process's own.
    :param leave_out: names of variables that it must not see.
    :returns: its exit code and what it printed, as bytes.
    :raises TimeoutError: the limit is over.
    :raises OSError: it cannot be started; FileNotFoundError where it is not installed.
    """
    mark = new_mark()
    # next to the one of this process, which ends it where this process is ended
    marks = f"{os.environ.get(MARK, '')}{mark}"
    given = {**program_environment(), **(environment or {}), MARK: marks}
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # looked up in the PATH of this environment
        env={name: value for name, value in given.items() if name not in leave_out},
        cwd=NEUTRAL_FOLDER,
        # a group of its own in this session, which ends it where this process is ended
        process_group=0,
    )
    with process:
        try:
            out, err = _communicate(process, limit_s)
        except BaseException:
            kill_group(process.pid)
            end_marked(mark)
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def _communicate(process: subprocess.Popen[bytes], limit_s: float | None) -> tuple[bytes, bytes]:
    """What a program prints until its end; raises TimeoutError at the limit."""
    if limit_s is None:
        return process.communicate()
    watch = PATIENCE.watch(limit_s, process.pid)
    while True:
        pause_s = watch.pause_s
        try:
            return process.communicate(timeout=pause_s)
        except subprocess.TimeoutExpired:
            # nothing that it printed is lost, and the next call goes on
            if pause_s <= 0:
                raise TimeoutError(watch.problem) from None


def run_attached(
    *command: str,
    environment: Mapping[str, str | None] | None = None,
    stdout: int | None = None,
    grace_s: float = LIMITS.interrupt_s,
) -> int:
    """Run a user's command to its end with this process's working folder, input and outputs.

    Returns its exit code, negative for a signal. Its environment is this process's as it is, with
    the changes of ``environment``; None takes a variable away. ``stdout`` is a descriptor that
    replaces its standard output. A terminal is not given as input. On Ctrl-C it gets SIGINT and
    ``grace_s`` seconds; then it is ended with all that it started, and KeyboardInterrupt is raised
    again. Raises OSError where it cannot be started.
    """
    mark = new_mark()
    given: dict[str, str | None] = {**os.environ, **(environment or {})}
    given[MARK] = f"{os.environ.get(MARK, '')}{mark}"
    with _sigint_taken():
        process = subprocess.Popen(
            command,
            # a group in the background may not read from the terminal
            stdin=subprocess.DEVNULL if os.isatty(0) else None,
            stdout=stdout,
            env={name: value for name, value in given.items() if value is not None},
            # so that Ctrl-C reaches it once, and through this process
            process_group=0,
        )
    try:
        return process.wait()
    except BaseException:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            process.wait(grace_s)
        kill_group(process.pid)
        end_marked(mark)
        process.wait()
        raise


class Background:
    """A program in a session of its own, whose input stays open until it is asked to end."""

    def __init__(self, command: Sequence[str], stdout: IO[bytes], stderr: IO[bytes]) -> None:
        """Start it with the environment of :func:`program_environment`; raises OSError."""
        self._mark = new_mark()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=stdout,
            stderr=stderr,
            env=program_environment({MARK: f"{os.environ.get(MARK, '')}{self._mark}"}),
            # Ctrl-C ends it through this process, once
            start_new_session=True,
        )
        self.ended = os.pidfd_open(self._process.pid)
        """A descriptor that can be read when it has ended."""

    def code(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        return self._process.poll()

    def end_input(self) -> None:
        """Close its input, which asks it to end."""
        assert self._process.stdin is not None  # noqa: S101 - for the type checker
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def end(self, limit_s: float) -> None:
        """Wait at most ``limit_s`` seconds for its end, and kill its group then."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(limit_s)
        if self._process.poll() is None:
            kill_group(self._process.pid)
            self._process.wait()

    def close(self, *, strays: bool) -> None:
        """Close its input and :attr:`ended`; with ``strays`` also end what it left anywhere."""
        self.end_input()
        with contextlib.suppress(OSError):
            os.close(self.ended)
        if strays:
            end_marked(self._mark)


@contextlib.contextmanager
def _sigint_taken() -> Iterator[None]:
    """Let a child that begins now take SIGINT: shells have what they start with "&" ignore it.

    A signal with a handler is one without in the child (``execve(2)``).
    """
    ours = threading.current_thread() is threading.main_thread()
    ignored = ours and signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    if ignored:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        if ignored:
            signal.signal(signal.SIGINT, signal.SIG_IGN)


def _environment() -> dict[str, str]:
    """This process's environment, with absolute paths only."""
    found = dict(os.environ)
    for name, separator in _PATH_VARIABLES.items():
        if name not in found:
            continue
        kept = [each for each in re.split(separator, found.pop(name)) if _is_fixed(name, each)]
        if kept:
            found[name] = os.pathsep.join(kept)
    return found


def _is_fixed(name: str, entry: str) -> bool:
    """Whether an entry does not depend on the working folder; ``$ORIGIN`` is the program's."""
    if name in _PRELOAD_VARIABLES and entry and "/" not in entry:
        return True
    return entry.startswith(("/", "$"))

"""Python children that are forked from a prepared process, which has imported torch for them.

Within :func:`forking`, what ``subprocess`` starts is forked where that makes no difference to it: a
``python -c``, a ``python -m`` of ``MODULES`` and a ``python FILE.py``. The child is one of the
process that starts it. Its words, variables (also in ``/proc/PID/environ``), folder, descriptors
and paths of modules are those it would have, it has run nothing else, and can have children of this
kind. All else is started as ever: other programs and options, variables that are read when Python
or a library starts (``READ_AT_START``), and paths that have another module of a name that is
imported already.

What a test is to prove of the start itself (what is imported, and when) it proves with
:func:`starting`. As a program this file is the prepared process.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib.machinery
import io
import multiprocessing.process
import os
import pickle
import runpy
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import types
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

MODULES: Final = ("portagpu", "portagpu.runs.world.server", "pytest", "torch.distributed.run")
READ_AT_START: Final = (
    *("PYTHON", "LD_", "LC_", "LANG", "MALLOC_", "GLIBC_", "OMP_", "GOMP_", "KMP_", "MKL_"),
    *("OPENBLAS_", "ONEDNN_", "DNNL_", "TORCH_", "PYTORCH_", "NPY_", "NUMPY_"),
)
"""Beginnings of names; all but ``_SET_LATER`` have to be as the prepared process has them."""
_SET_LATER: Final = (
    *("PYTHONPATH", "PYTHONSAFEPATH", "ONEDNN_MAX_CPU_ISA", "ONEDNN_VERBOSE"),
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
)
"""oneDNN reads its variables when it is first used, and torch's NCCL, which torchrun sets its own
for, when a group begins."""
_IMPORTED: Final = (
    *("torch.distributed", "torch._dynamo", "numpy", "pytest", "hypothesis", "pdb", "rich.table"),
    *(f"_pytest.{name}" for name in ("faulthandler", "skipping", "unittest", "warnings")),
    *("portagpu.cli.bringup", "portagpu.cli.conform", "portagpu.cli._run_output"),
    *(
        "portagpu.checks.bringup",
        "portagpu.suites.conformance.runner",
        "portagpu.suites.search.numbers",
        "portagpu.train.kernels",
    ),
    *(
        "portagpu.checks.diagnostics",
        "portagpu.checks.info",
        "torch.distributed.launcher.api",
        "portagpu.runs.world.rank",
        "portagpu_cpu.backend",
    ),
)
"""Imported before the first child. pytest itself imports what it loads as a plugin of the suite."""
_ROOM: Final = "FORKED_ROOM"
"""A variable of the prepared process, in whose memory its children have theirs."""
_ROOM_BYTES: Final = 100_000
_SUFFIXES: Final = frozenset(Path(f"x{each}").suffix for each in importlib.machinery.all_suffixes())
_PYTHON: Final = os.fsencode(sys.executable)
_LENGTH: Final = struct.Struct("!Q")
_LIMIT_S: Final = 60.0
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_PR_GET_CHILD_SUBREAPER: Final = 37

_start: Callable[..., int] = subprocess._fork_exec  # type: ignore[attr-defined]
_libc: Final = ctypes.CDLL(None)


@dataclass(frozen=True)
class _Program:
    """What a child runs; its descriptors are sent with it, the last of which is its folder."""

    parent: int
    words: tuple[str, ...]
    variables: tuple[bytes, ...]
    numbers: tuple[int, ...]
    """Those of the other descriptors, in the child."""
    new_session: bool
    process_group: int
    ignores_interrupts: bool


@dataclass(frozen=True)
class _Imported:
    """What the prepared process has: its variables, its paths of modules, and packages by name."""

    fixed: dict[str, str]
    paths: tuple[str, ...]
    """Without those of ``PYTHONPATH``."""
    places: dict[str, Path | None]


@dataclass(frozen=True)
class _Command:
    """What a command line of Python says, after the word for Python."""

    safe_path: bool
    unbuffered: bool
    kind: str
    """``-c``, ``-m``, or nothing for a file."""
    what: str
    arguments: tuple[str, ...]

    @classmethod
    def read(cls, words: Sequence[str]) -> _Command | None:
        """Nothing where it is not one of those that can be forked."""
        options = set()
        while words and words[0] in ("-P", "-u"):
            options.add(words[0])
            words = words[1:]
        kind = words[0] if words and words[0] in ("-c", "-m") else ""
        what, *arguments = words[bool(kind) :] or ("",)
        if (kind == "-m" and what not in MODULES) or (not kind and not what.endswith(".py")):
            return None
        return cls("-P" in options, "-u" in options, kind, what, tuple(arguments))


class Prepared:
    """The prepared process, as those see it whose children are forked from it."""

    def __init__(self, connection: socket.socket, imported: _Imported) -> None:
        self._connection = connection
        self._connection.settimeout(_LIMIT_S)
        self._imported = imported
        self._lock = threading.Lock()

    def fork_exec(self, *given: Any) -> int:
        """``_posixsubprocess.fork_exec``, which starts a child and returns its process id."""
        words, programs, close_fds, kept, folder, variables = given[:6]
        (read_in, _, _, write_out, _, write_err, _, report, restores, session, group) = given[6:17]
        if variables is None:
            variables = [name + b"=" + value for name, value in os.environb.items()]
        words, variables = tuple(map(os.fsdecode, words)), tuple(variables)
        others = [number for number in kept if number != report]
        if (
            list(programs) != [_PYTHON]
            or not (close_fds and restores)
            # user, groups, umask, and a function to call in the child
            or given[17:22] != (None, None, None, -1, None)
            or min(others, default=3) < 3
            or not self._is_same(words[1:], variables, os.fsdecode(folder or b"."))
        ):
            return _start(*given)
        program = _Program(
            os.getpid(),
            words,
            variables,
            (0, 1, 2, *others),
            bool(session),
            group,
            signal.getsignal(signal.SIGINT) is signal.SIG_IGN,
        )
        standard = [
            each if each >= 0 else ours for ours, each in enumerate((read_in, write_out, write_err))
        ]
        try:
            place = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            return _start(*given)
        try:
            return self._fork(program, [*standard, *others, place])
        except (OSError, EOFError):
            # a closed descriptor, or nobody who answers: no later answer is for another child
            self._connection.close()
            return _start(*given)
        finally:
            os.close(place)

    def _is_same(self, options: Sequence[str], variables: Sequence[bytes], folder: str) -> bool:
        """Whether a forked child does what a started one does."""
        command = _Command.read(options)
        if command is None or not (command.kind or Path(folder, command.what).is_file()):
            return False
        environment = dict(os.fsdecode(each).split("=", 1) for each in variables)
        if sum(map(len, variables)) + len(variables) > _ROOM_BYTES:
            return False
        if _read_at_start(environment) != self._imported.fixed:
            return False
        paths = environment.get("PYTHONPATH", "").split(os.pathsep)
        if not (command.safe_path or environment.get("PYTHONSAFEPATH")):
            file = Path(folder, command.what).resolve()
            paths.append(folder if command.kind else str(file.parent))
        return not any(
            self._has_others(Path(each))
            for each in paths
            if each and each not in self._imported.paths
        )

    def _has_others(self, folder: Path) -> bool:
        """Whether a folder has another module of a name that is imported already."""
        places = self._imported.places
        for each in folder.iterdir() if folder.is_dir() else ():
            if each.suffix not in _SUFFIXES and not each.is_dir():
                continue
            name = each.name.partition(".")[0]
            if name in ("sitecustomize", "usercustomize"):
                return True
            if name in places and places[name] != each.resolve():
                return True
        return False

    def _fork(self, program: _Program, descriptors: list[int]) -> int:
        message = pickle.dumps(astuple(program))
        before = ctypes.c_int()
        _libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before))
        with self._lock:
            # a process between the two ends at once, and this one becomes the child's parent
            _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
            try:
                socket.send_fds(self._connection, [_LENGTH.pack(len(message))], descriptors)
                self._connection.sendall(message)
                (pid,) = _LENGTH.unpack(_read(self._connection, _LENGTH.size))
            finally:
                _libc.prctl(_PR_SET_CHILD_SUBREAPER, before.value)
        return int(pid)


@contextlib.contextmanager
def prepared_process() -> Iterator[Prepared]:
    """A prepared process, which ends with the context."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", __file__, str(theirs.fileno()), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            cwd="/",
            env={**os.environ, _ROOM: "x" * _ROOM_BYTES},
            pass_fds=(theirs.fileno(),),
        )
    try:
        yield Prepared(ours, _Imported(*_receive(ours)))
    finally:
        ours.close()
        try:
            process.wait(_LIMIT_S)
        finally:
            process.kill()
            process.wait()


@contextlib.contextmanager
def forking(prepared: Prepared) -> Iterator[None]:
    """Fork what ``subprocess`` starts meanwhile, where that makes no difference to it."""
    yield from _using(prepared.fork_exec)


@contextlib.contextmanager
def starting() -> Iterator[None]:
    """Start what ``subprocess`` starts meanwhile, also within :func:`forking`."""
    yield from _using(_start)


def _using(start: Callable[..., int]) -> Iterator[None]:
    before = subprocess._fork_exec  # type: ignore[attr-defined]
    subprocess._fork_exec = start  # type: ignore[attr-defined]
    try:
        yield
    finally:
        subprocess._fork_exec = before  # type: ignore[attr-defined]


def _read_at_start(environment: dict[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(READ_AT_START) and name not in _SET_LATER
    }


def _read(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        more = connection.recv(size - len(found))
        if not more:
            raise EOFError
        found += more
    return found


def _receive(connection: socket.socket) -> Any:
    (size,) = _LENGTH.unpack(_read(connection, _LENGTH.size))
    return pickle.loads(_read(connection, size))  # noqa: S301


def _send(connection: socket.socket, message: object) -> None:
    text = pickle.dumps(message)
    connection.sendall(_LENGTH.pack(len(text)) + text)


# ---- the prepared process


def _die_with(parent: int) -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _main(number: str, parent: str) -> None:
    _die_with(int(parent))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in _IMPORTED:
        importlib.import_module(name)
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    places = {name: _place(module) for name, module in list(sys.modules.items()) if "." not in name}
    paths = tuple(each for each in sys.path if each not in given)
    imported = _Imported(_read_at_start(dict(os.environ)), paths, places)
    connection = socket.socket(fileno=int(number))
    _send(connection, (imported.fixed, imported.paths, imported.places))
    gc.collect()
    # a collection in a child would write to every object, and each page be copied
    gc.freeze()
    _serve(connection, imported)


def _place(module: types.ModuleType) -> Path | None:
    """The file of a module, or the folder of a package."""
    file = getattr(module, "__file__", None)
    if file is None:
        return None
    path = Path(file).resolve()
    return path.parent if path.name == "__init__.py" else path


def _serve(connection: socket.socket, imported: _Imported) -> None:
    """Fork children until the other end is closed."""
    while True:
        header, descriptors, _, _ = socket.recv_fds(connection, _LENGTH.size, 250)
        if not header:
            return
        header += _read(connection, _LENGTH.size - len(header))
        program = _Program(*pickle.loads(_read(connection, *_LENGTH.unpack(header))))  # noqa: S301
        between = os.fork()
        if between == 0:
            if os.fork():
                os._exit(0)
            # allowed: its limit is a minute, and ends what would never go on
            deadline = time.monotonic() + _LIMIT_S
            while os.getppid() != program.parent:
                time.sleep(0.0002)  # allowed: the same
                # allowed: the same
                if time.monotonic() > deadline:
                    os._exit(1)
            _become(program, descriptors, connection, imported)
        os.waitpid(between, 0)
        for each in descriptors:
            os.close(each)


def _become(
    program: _Program, descriptors: list[int], connection: socket.socket, imported: _Imported
) -> NoReturn:
    """Run the program, in a child that was just forked."""
    if program.new_session:
        os.setsid()
    elif program.process_group >= 0:
        os.setpgid(0, program.process_group)
    _set_variables(program.variables)
    spare = None if "portagpu.runs.world.server" in program.words else _fork_spare(imported)
    # from now on it may be ended, and is found by its session and its variables
    connection.sendall(_LENGTH.pack(os.getpid()))
    *opened, folder = descriptors
    os.fchdir(folder)
    multiprocessing.process.ORIGINAL_DIR = os.getcwd()  # noqa: PTH109 - as at its import
    kept = [*opened, *([spare] if spare is not None else [])]
    above = max(*kept, *program.numbers) + 1
    moved = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, above) for each in kept]
    for each, number in zip(moved, program.numbers, strict=False):
        os.dup2(each, number)
    stays = {*program.numbers, *(moved[-1:] if spare is not None else [])}
    for each in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208
        if each not in stays:
            with contextlib.suppress(OSError):
                os.close(each)
    connection.detach()
    if spare is not None:
        prepared = Prepared(socket.socket(fileno=moved[-1]), imported)
        subprocess._fork_exec = prepared.fork_exec  # type: ignore[attr-defined]
    signal.signal(
        signal.SIGINT,
        signal.SIG_IGN if program.ignores_interrupts else signal.default_int_handler,
    )
    command = _Command.read(program.words[1:])
    assert command is not None
    _open_standard_streams(
        unbuffered=command.unbuffered or bool(os.environ.get("PYTHONUNBUFFERED"))
    )
    tempfile.tempdir = None
    importlib.invalidate_caches()
    sys.orig_argv = list(program.words)
    _run(command, imported.paths)


def _set_variables(variables: Sequence[bytes]) -> None:
    """Give this process these variables, also where the kernel shows them (``proc(5)``)."""
    os.environb.clear()
    os.environb.update(each.split(b"=", 1) for each in variables)
    fields = Path("/proc/self/stat").read_text("utf-8").rpartition(")")[2].split()
    # env_start and env_end
    start, end = int(fields[47]), int(fields[48])
    text = b"".join(each + b"\0" for each in variables)
    ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)


def _fork_spare(imported: _Imported) -> int:
    """Fork the prepared process of this one, which has not run anything; its descriptor."""
    ours, theirs = socket.socketpair()
    parent = os.getpid()
    if os.fork() == 0:
        _die_with(parent)
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(nothing, number)
        for each in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208
            if each > 2 and each != theirs.fileno():
                with contextlib.suppress(OSError):
                    os.close(each)
        _serve(theirs, imported)
        os._exit(0)
    theirs.close()
    return ours.detach()


def _open_standard_streams(*, unbuffered: bool) -> None:
    """As CPython's ``create_stdio`` opens them."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        before = getattr(sys, f"__{name}__")
        mode, size = ("wb", 0 if unbuffered else -1) if number else ("rb", -1)
        file = open(number, mode, size, closefd=False)  # noqa: SIM115
        getattr(file, "raw", file).name = f"<{name}>"
        stream = io.TextIOWrapper(
            file,
            encoding=before.encoding,
            errors=before.errors,
            newline="\n",
            line_buffering=not unbuffered and (number == 2 or os.isatty(number)),
            write_through=unbuffered,
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _run(command: _Command, paths: Sequence[str]) -> NoReturn:
    """Run what a command line of Python says, and end as Python does."""
    kind, what = command.kind, command.what
    given = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    here = [] if command.safe_path or os.environ.get("PYTHONSAFEPATH") else [""]
    if here and kind == "-m":
        # as Python does, and portagpu takes it away
        here = [] if what == "portagpu" else [str(Path.cwd())]
    elif here and not kind:
        here = [str(Path(what).resolve().parent)]
    sys.path[:] = dict.fromkeys([*here, *given, *paths])
    sys.argv = [kind or what, *command.arguments]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    vars(main)["__builtins__"] = __builtins__
    code, interrupted = 0, False
    try:
        if kind == "-c":
            exec(compile(what, "<string>", "exec"), vars(main))
        elif not kind:
            path = str(Path(what).absolute())
            loader = importlib.machinery.SourceFileLoader("__main__", path)
            vars(main).update(__file__=path, __loader__=loader, __cached__=None, __annotations__={})
            exec(compile(Path(what).read_bytes(), path, "exec"), vars(main))
        else:
            runpy._run_module_as_main(what)  # type: ignore[attr-defined]
    except SystemExit as exit_:
        code = _status(exit_.code)
    except BaseException as error:  # noqa: BLE001 - as Python does
        code, interrupted = 1, isinstance(error, KeyboardInterrupt)
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        traceback.print_exception(type(error), error, trace)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except OSError as error:
        code = 120
        print(f"Exception ignored in: {sys.stdout!r}\nOSError: {error}", file=sys.stderr)
    if interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    # without freeing every object, whose pages it shares
    os._exit(code)


def _status(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)
    return 1


if __name__ == "__main__":
    _main(*sys.argv[1:])

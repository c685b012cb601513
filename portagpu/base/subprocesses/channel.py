"""Messages between a parent and its child process: one JSON object a line, each way.

The two pipes are not the standard streams, so that no printed text is read as an answer. A child
leads a session of its own, which ends with it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.errors import PortagpuError
from portagpu.base.patience import LIMITS, PATIENCE
from portagpu.base.subprocesses.fork import OPTION, Become, Program
from portagpu.base.subprocesses.start import (
    MARK,
    NEUTRAL_FOLDER,
    children_of,
    die_with_parent,
    end_marked,
    has_ended,
    kill_group,
    new_mark,
    python_command,
    python_environment,
    signal_name,
    signal_process,
)
from portagpu.base.text import excerpt

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Self

    from portagpu.base.patience import Meter, Watch
    from portagpu.base.subprocesses.fork import Forker, Process

_CHUNK: Final = 1 << 20
_TRACE_S: Final = 0.3
_MAX_PRINTED: Final = 1 << 20
"""Bytes of output that are kept of a child that answers and goes on."""
_FATAL: Final = "Fatal Python error: "


class BrokenMessage(PortagpuError, ValueError):
    """What arrived is not a message; the text is the rest of a sentence about the sender."""

    def __init__(self, what: object) -> None:
        shown = excerpt(str(what), 80) or "an empty line"
        super().__init__(f"sent what is not a message: {shown}")


class Channel:
    """JSON objects as messages over the ends of two pipes; a closed end is -1."""

    def __init__(self, reader: int, writer: int) -> None:
        self.reader: int = reader
        self.writer: int = writer
        self._partial: list[bytes] = []
        self._lines: deque[bytes] = deque()

    def send(self, message: Mapping[str, Any], limit: float | Watch | None = None) -> None:
        """Write a message. Raises BrokenPipeError without a reader, TimeoutError at the limit."""
        data = memoryview(json.dumps(message).encode() + b"\n")
        deadline = _deadline(limit)
        while data:
            _wait(self.writer, select.POLLOUT, deadline)
            # a pipe that is ready takes this much, and waits for nobody
            data = data[os.write(self.writer, data[: select.PIPE_BUF]) :]

    def receive(self, limit: float | Watch | None = None) -> dict[str, Any] | None:
        """The next message, or None at the end.

        Seconds are wall time. Raises TimeoutError at the limit, and BrokenMessage for what is not
        a JSON object.
        """
        deadline = _deadline(limit)
        while (message := self.next_buffered()) is None:
            _wait(self.reader, select.POLLIN, deadline)
            if not self.fill():
                return None
        return message

    def fill(self) -> bool:
        """Read what is there, or wait for it; False at the end.

        Raises BlockingIOError where the pipe does not block and holds nothing.
        """
        chunk = os.read(self.reader, _CHUNK)
        *lines, rest = chunk.split(b"\n")
        if lines:
            self._lines += [b"".join([*self._partial, lines[0]]), *lines[1:]]
            self._partial.clear()
        self._partial.append(rest)
        return bool(chunk)

    def next_buffered(self) -> dict[str, Any] | None:
        """The next complete message that :meth:`fill` has read; None without one.

        Raises BrokenMessage for a line that is not a JSON object.
        """
        if not self._lines:
            return None
        line = self._lines.popleft()
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            raise BrokenMessage(line.decode(errors="replace"))
        return message

    def close(self) -> None:
        """Close both ends; a second time does nothing."""
        ends, self.reader, self.writer = (self.reader, self.writer), -1, -1
        for descriptor in ends:
            if descriptor >= 0:
                os.close(descriptor)


def _deadline(limit: float | Watch | None) -> float | Watch | None:
    """The limit with seconds as a time of the monotonic clock."""
    return time.monotonic() + limit if isinstance(limit, (int, float)) else limit


def _wait(descriptor: int, event: int, deadline: float | Watch | None) -> None:
    """Wait until a pipe is ready or broken; raises TimeoutError at the deadline."""
    poll = select.poll()
    poll.register(descriptor, event)

    def is_ready(seconds: float) -> bool:
        # rounded up: a poll that ends too early is one more turn
        return bool(poll.poll(math.ceil(seconds * 1000)))

    if deadline is None:
        poll.poll()
    elif isinstance(deadline, float):
        if not is_ready(max(0.0, deadline - time.monotonic())):
            raise TimeoutError
    elif not deadline.wait(is_ready):
        raise TimeoutError


def parent_channel(numbers: str | None = None) -> Channel:
    """In a child: the channel to the parent. This process ends with the parent.

    ``numbers`` are the value of ``OPTION``, by default from this process's command line. Children
    of this process do not inherit the channel.
    """
    die_with_parent()
    stated = sys.argv[-1].removeprefix(f"{OPTION}=") if numbers is None else numbers
    reader, writer = map(int, stated.split(","))
    for descriptor in (reader, writer):
        os.set_inheritable(descriptor, False)
    return Channel(reader, writer)


class _Started(subprocess.Popen[bytes]):
    """A child that was started."""

    def __init__(self, program: Program) -> None:
        channel = f"{OPTION}={program.reader},{program.writer}"
        try:
            super().__init__(
                [*python_command(program.module, *program.words), channel],
                stdin=subprocess.DEVNULL,
                stdout=program.output if program.prints else subprocess.DEVNULL,
                stderr=program.output,
                env={**program.variables, **program.further},
                cwd=program.folder,
                pass_fds=(program.reader, program.writer),
                start_new_session=True,
            )
        except BaseException:
            # a signal came when the process had begun: nobody else knows it
            if pid := getattr(self, "pid", None):
                signal_process(pid, signal.SIGKILL)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.wait(LIMITS.exit_s)
            raise

    def has_ended(self) -> bool:
        return has_ended(self.pid)

    def has_number(self) -> bool:
        return True


class Subprocess:
    """A Python child that runs a module, with a channel to it; the context manager ends it.

    ``leave_out`` are prefixes of variables that the child must not see, ``environment`` those to
    add. It works in ``folder``; None is this process's. With ``prints=False`` its standard output
    is discarded. A ``forker`` forks it, if that can; ``environment`` must then not matter to what
    the forker has imported. Raises PortagpuError and OSError where it cannot be started.
    """

    def __init__(
        self,
        module: str,
        *words: str,
        environment: Mapping[str, str] | None = None,
        leave_out: tuple[str, ...] = (),
        folder: str | None = NEUTRAL_FOLDER,
        prints: bool = True,
        forker: Forker | None = None,
    ) -> None:
        given = python_environment()
        given = {name: value for name, value in given.items() if not name.startswith(leave_out)}
        self.environment: dict[str, str] = {**given, **(environment or {})}
        """The variables that it has, without the mark."""
        # in memory, because a disk may be full
        self._output = os.memfd_create("portagpu-printed")
        # so that it begins again at the beginning where its output was thrown away
        fcntl.fcntl(self._output, fcntl.F_SETFL, os.O_APPEND)
        self._mark = new_mark()
        theirs, ours = Channel(*os.pipe()), Channel(*os.pipe())
        theirs.writer, ours.writer = ours.writer, theirs.writer
        self.channel = ours
        try:
            program = Program(
                module=module,
                words=words,
                variables=given,
                further={**(environment or {}), MARK: self._mark},
                folder=folder,
                reader=theirs.reader,
                writer=theirs.writer,
                output=self._output,
                prints=prints,
            )
            forked = None if forker is None else forker.fork(program)
            self._process: Process = forked or _Started(program)
        except Become:
            # in the forked child, which has the mark
            self._close_files()
            raise
        except BaseException:
            end_marked(self._mark)
            self._close_files()
            raise
        finally:
            theirs.close()
        self.pid: int = self._process.pid
        self._meter: Meter | None = None
        self._killed = False
        self._broke = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message. :meth:`receive` notices that a child is gone."""
        with contextlib.suppress(BrokenPipeError):
            self.channel.send(message)

    def watch(self, limit_s: float) -> Watch:
        """A limit that begins now and counts what the child and all that it started do."""
        if self._meter is None:
            self._meter = PATIENCE.meter(self.pid)
        return self._meter.watch(limit_s)

    def receive(self, limit: float | Watch) -> dict[str, Any] | None:
        """The next message, or None at the end of the child; raises TimeoutError at the limit.

        Seconds are wall time; :meth:`watch` has limits that distinguish a slow child from a blocked
        one. A child that sends what is not a message is ended.
        """
        try:
            return self.channel.receive(limit)
        except BrokenMessage as error:
            self.end_broken(error)
            return None

    def end_broken(self, error: PortagpuError) -> None:
        """End a child whose message nobody can read; :meth:`how_it_ended` gives the error."""
        self._broke = self._broke or f"broke: {error}"
        self.kill()

    def ask(self, message: Mapping[str, Any], limit_s: float) -> tuple[dict[str, Any] | None, str]:
        """The answer to a message, as (answer, ""), else (None, what happened to the child).

        The text is the rest of a sentence: "did not answer within 5 s", "died of SIGSEGV: the last
        line that it printed". A child without an answer is ended.
        """
        watch = self.watch(limit_s)
        try:
            with contextlib.suppress(BrokenPipeError):
                self.channel.send(message, watch)
            answer = self.receive(watch)
        except TimeoutError:
            problem = watch.problem
            self.kill()
            return None, problem
        return (None, self.why_no_answer()) if answer is None else (answer, "")

    def why_no_answer(self) -> str:
        """What happened to a child whose channel ended, as the rest of a sentence; it is ended."""
        how = self.how_it_ended()
        if self._broke:
            return how
        if self._process.returncode == 0:
            return "gave no answer"
        return f"{how}: {excerpt(self.last_line()) or 'it said nothing'}"

    def forget_output(self) -> None:
        """Throw away what the child printed, where that has become much."""
        if os.fstat(self._output).st_size > _MAX_PRINTED:
            os.ftruncate(self._output, 0)

    @property
    def running(self) -> bool:
        return self._process.returncode is None and not self._process.has_ended()

    def _has_ended(self, pause_s: float) -> bool:
        """Whether it has ended after a moment, which is ``pause_s`` at most."""
        if self.running:
            time.sleep(min(pause_s, 0.005))
        return not self.running

    def how_it_ended(self) -> str:
        """ "died of SIGSEGV", "ended with status 3" or "broke: sent what is not a message: ...".

        A child that has not yet ended is killed.
        """
        if self._broke:
            return self._broke
        self.watch(LIMITS.exit_s).wait(self._has_ended)
        self.kill()
        code = self._process.returncode
        if code is None:
            return "does not end"
        return f"died of {signal_name(-code)}" if code < 0 else f"ended with status {code}"

    def last_line(self) -> str:
        """The last line that the child printed before Python's own report of a fatal error."""
        said, fatal, report = self._text().partition(_FATAL)
        lines = [line.strip() for line in said.split("\n") if line.strip()]
        return lines[-1] if lines else f"{fatal}{report}".partition("\n")[0].strip()

    def current_frame(self) -> str:
        """The frame of the main thread: " in FUNCTION (FILE:LINE)", or nothing.

        The child must have registered faulthandler for SIGUSR1.
        """
        before = os.fstat(self._output).st_size
        if self.running:
            signal_process(self.pid, signal.SIGUSR1)
            self.watch(_TRACE_S).sleep()
        stack = frames(self._text(before))
        return f" in {frame_text(stack[0])}" if stack else ""

    def _text(self, start: int = 0) -> str:
        size = os.fstat(self._output).st_size
        return os.pread(self._output, size - start, start).decode(errors="replace")

    def kill(self, limit_s: float = LIMITS.exit_s) -> None:
        """End the child and what it started; one blocked in the kernel is left after ``limit_s``.

        Its own children of this class end with their channels. They are woken to notice that.
        """
        if self._killed:
            return
        self._killed = True
        others = children_of(self.pid) if self.running else []
        # the group keeps its number while the child is not yet reaped
        has_number = self._process.has_number()
        if has_number:
            kill_group(self.pid)
        for pid in others:
            signal_process(pid, signal.SIGCONT)
        # so does the session, of which a child that ended by itself may have left processes
        end_marked(self._mark, self.pid if has_number else None)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(limit_s)

    def has_left(self) -> bool:
        """Whether the child has ended; after :meth:`kill` it may be blocked in the kernel."""
        return self._process.poll() is not None

    def abandon(self, limit_s: float) -> None:
        """End the child and what it started, and wait ``limit_s`` at most for that.

        Finding what it started reads the memory of processes, which may block where one of them
        waits in a driver: a process of its own does it. Only for a process of one thread.
        """
        kill_group(self.pid)
        helper = os.fork()
        if helper == 0:
            try:
                end_marked(self._mark, self.pid)
            finally:
                os._exit(0)
        self._killed = True
        deadline = time.monotonic() + limit_s
        ended = False
        while not (ended and self._process.poll() is not None) and time.monotonic() < deadline:
            ended = ended or os.waitpid(helper, os.WNOHANG)[0] != 0
            time.sleep(0.005)
        self._close_files()

    def close(self, limit_s: float = 0.0) -> None:
        """Close the channel, so that the child ends, and kill it after ``limit_s``."""
        self.channel.close()
        if limit_s and self.running:
            # one that is stopped would not see that
            signal_process(self.pid, signal.SIGCONT)
        deadline = time.monotonic() + limit_s
        while self.running and time.monotonic() < deadline:
            time.sleep(0.005)
        self.kill()
        self._close_files()

    def _close_files(self) -> None:
        self.channel.close()
        printed, self._output = self._output, -1
        if printed >= 0:
            os.close(printed)


def frames(text: str) -> list[tuple[str, str, str]]:
    """(file, line, function) of each frame that faulthandler wrote, the innermost first."""
    return re.findall(r'File "([^"]*)", line (\d+) in (\S+)', text)


def frame_text(frame: tuple[str, str, str]) -> str:
    """ "FUNCTION (FILE:LINE)"."""
    path, line, name = frame
    return f"{name} ({Path(path).name}:{line})"

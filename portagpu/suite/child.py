"""The child process that runs pytest: started with nothing of the user's, read line by line."""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from portagpu.children import python_environment, python_module
from portagpu.errors import PortagpuError
from portagpu.processes import children_of, signal_name
from portagpu.scratch import Scratch

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

_INI: Final = Path(__file__).with_name("suite.ini")
_TRACE_S: Final = 0.3
_FATAL: Final = "Fatal Python error: "
_LEFT_OUT: Final = (
    "PYTEST_ADDOPTS",
    "PYTEST_PLUGINS",
    "PYTHONOPTIMIZE",
    "PYTHONWARNINGS",
    "TRITON_INTERPRET",
)
"""Variables that change what pytest runs, what an assertion means, or where a kernel runs."""


class SuiteError(PortagpuError, RuntimeError):
    """The suite itself could not run; the message says why."""


class Child:
    """One pytest process over the files of a folder; as a context manager it leaves nothing."""

    def __init__(self, folder: Path) -> None:
        self._buffer = b""
        request_reader, self._request = os.pipe()
        self._events, event_writer = os.pipe()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the child
        self._scratch = Scratch("suite")
        try:
            self._process = subprocess.Popen(
                _command(folder, request_reader, event_writer, self._scratch.path),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                env=_environment(self._scratch.path),
                pass_fds=(request_reader, event_writer),
                start_new_session=True,
            )
        except BaseException:
            self._leave()
            raise
        finally:
            os.close(request_reader)
            os.close(event_writer)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
        self._leave()

    def _leave(self) -> None:
        for descriptor in (self._request, self._events):
            os.close(descriptor)
        self._errors.close()
        self._scratch.remove()

    def ask(self, request: dict[str, Any]) -> None:
        """Send a request; a child that is gone is noticed when its next event is read."""
        with contextlib.suppress(BrokenPipeError):
            data = json.dumps(request).encode() + b"\n"
            while data:
                data = data[os.write(self._request, data) :]

    def event(self, limit_s: float) -> dict[str, Any] | None:
        """The next event, or None at the end of the child; raises TimeoutError at the limit."""
        deadline = time.monotonic() + limit_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._events, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise TimeoutError
                chunk = os.read(self._events, 65536)
                if not chunk:
                    return None
                self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\n", 1)
        message: dict[str, Any] = json.loads(line)
        return message

    def where(self) -> str:
        """Where the main thread stands: " in FUNCTION (FILE:LINE)", or nothing."""
        before = self._errors.seek(0, os.SEEK_END)
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGUSR1)
            time.sleep(_TRACE_S)
        self._errors.seek(before)
        text = self._errors.read().decode(errors="replace")
        frame = re.search(r'File "([^"]*)", line (\d+) in (\S+)', text)
        if frame is None:
            return ""
        path, line, name = frame.groups()
        return f" in {name} ({Path(path).name}:{line})"

    def end(self) -> str:
        """How the child ended, as the rest of a sentence that begins with "the process"."""
        code = self._process.wait()
        if code < 0:
            return f"died of {signal_name(-code)}"
        return f"ended with status {code}"

    def complaint(self) -> str:
        """The last line that the child wrote to standard error before Python's own report."""
        self._errors.seek(0)
        said, fatal, report = self._errors.read().decode(errors="replace").partition(_FATAL)
        lines = [line.strip() for line in said.split("\n") if line.strip()]
        return lines[-1] if lines else f"{fatal}{report}".partition("\n")[0].strip()

    def kill(self) -> None:
        """End the child and its group; the ranks' server ends with its standard input."""
        if self._process.poll() is None:
            servers = children_of(self._process.pid)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            for pid in servers:
                # one that was stopped while it started has not asked the kernel to wake it
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGCONT)
        self._process.wait()


def _command(folder: Path, reader: int, writer: int, scratch: Path) -> list[str]:
    options = ("-p", "portagpu.suite.plugin", "-p", "no:cacheprovider", "-p", "no:junitxml")
    return [
        *python_module("pytest", str(folder)),
        *("-c", str(_INI), "--rootdir", str(folder), "--noconftest"),
        f"--basetemp={scratch / 'pytest'}",
        *("--import-mode=importlib", "--capture=no", "-qq", *options),
        *("--continue-on-collection-errors", f"--portagpu-channel={reader},{writer}"),
    ]


def _environment(scratch: Path) -> dict[str, str]:
    kept = {key: value for key, value in python_environment().items() if key not in _LEFT_OUT}
    return {
        **kept,
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        # by default a name in /tmp that every user can guess, and make first
        "TORCHINDUCTOR_CACHE_DIR": str(scratch / "inductor"),
    }

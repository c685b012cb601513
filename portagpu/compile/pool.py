"""Worker processes that may hang or die without harm: each job has a time limit and an answer."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import signal
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from portagpu.children import NEUTRAL, python_environment, python_module
from portagpu.scratch import Scratch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

WORKERS: Final = 2
LIMIT_S: Final = 120.0
"""A kernel takes 0.3 to 3 s on one core; one that takes this long hangs."""
_CHANGE_CODE: Final = (
    "ALLOW_LHS_TMEM_LAYOUT_CONVERSION",
    "AMDGCN_",
    "DISABLE_LLVM_OPT",
    "DISABLE_MMA_",
    "DISABLE_PTXAS_OPT",
    "LLVM_",
    "MLIR_",
    "NVPTX_",
    "PTXAS_OPTIONS",
    "TRITON_",
    "USE_IR_LOC",
)
"""How variables begin that Triton and its compilers read (knobs.py, GetEnv.hpp of Triton 3.9)."""
_MODULE: Final = "portagpu.compile.worker"


class Worker:
    """One process, started for its first job and again after one that it did not survive."""

    def __init__(self, module: str = _MODULE) -> None:
        self._module = module
        self._process: subprocess.Popen[bytes] | None = None
        self._scratch = Scratch("compile")
        self._said = self._scratch.path / "stderr"
        self._closed = False

    def ask(self, job: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        """The answer to a job, or ``{"problem": ..., "unread": True}`` where there is none."""
        process = self._running()
        assert process.stdin is not None and process.stdout is not None  # noqa: S101 - pipes
        try:
            process.stdin.write(json.dumps(job).encode() + b"\n")
            process.stdin.flush()
            line = _read_line(process.stdout.fileno(), time.monotonic() + limit_s)
        except BrokenPipeError:
            line = b""
        except TimeoutError:
            self._end()
            return {"problem": f"the compiler was ended after {limit_s:g} s", "unread": True}
        if not line.endswith(b"\n"):
            return {"problem": self._why_dead(), "unread": True}
        answer = json.loads(line)
        assert isinstance(answer, dict)  # noqa: S101 - our own worker wrote it
        return answer

    def close(self) -> None:
        """End the process and remove its folder."""
        self._closed = True
        self._end()
        self._scratch.remove()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._closed:
            raise ChildProcessError("the worker was closed")
        if self._process is None:
            with self._said.open("wb") as said:
                self._process = subprocess.Popen(
                    python_module(self._module),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=said,
                    env=_environment(self._scratch.path),
                    cwd=NEUTRAL,
                    # a group of its own: its end is that of the assemblers it started
                    start_new_session=True,
                )
        return self._process

    def _why_dead(self) -> str:
        process = self._process
        if process is None:
            return "the compiler's process was ended"
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
        code = process.returncode
        self._end()
        ended = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        lines = self._said.read_text("utf-8", "replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
        return f"the compiler's process ended with {ended}: {last[:200]}"

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


def _read_line(descriptor: int, deadline: float) -> bytes:
    """Bytes up to a line's end, or up to the end of the stream; raises TimeoutError."""
    read = b""
    while not read.endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([descriptor], [], [], left)[0]:
            raise TimeoutError
        chunk = os.read(descriptor, 65536)
        if not chunk:
            break
        read += chunk
    return read


def _environment(folder: Path) -> dict[str, str]:
    """This process's environment without what changes the code, and with a cache of its own."""
    given = python_environment()
    return {
        **{name: value for name, value in given.items() if not name.startswith(_CHANGE_CODE)},
        "TRITON_CACHE_DIR": str(folder / "triton"),
        # what a compiler that is ended leaves behind goes with the folder
        "TMPDIR": str(folder),
        "TRITON_DEFAULT_FP_FUSION": "1",
    }


def ask_all(
    jobs: Sequence[Mapping[str, Any]],
    on_answer: Callable[[int, dict[str, Any]], None],
    *,
    on_start: Callable[[int], None] | None = None,
    workers: int = WORKERS,
    limit_s: float = LIMIT_S,
    module: str = _MODULE,
) -> None:
    """Have ``workers`` processes answer the jobs; ``on_answer(index, answer)`` in this thread.

    An interruption, or an error of ``on_answer``, ends every process before it is raised.
    """
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    answered: queue.SimpleQueue[tuple[int, dict[str, Any] | BaseException | None]] = (
        queue.SimpleQueue()
    )
    for index in range(len(jobs)):
        waiting.put(index)
    pool = [Worker(module) for _ in range(min(workers, len(jobs)))]
    stopped = threading.Event()

    def work(worker: Worker) -> None:
        try:
            while not stopped.is_set():
                index = waiting.get_nowait()
                answered.put((index, None))
                answered.put((index, worker.ask(jobs[index], limit_s)))
        except queue.Empty:
            return
        except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
            answered.put((-1, error))

    threads = [threading.Thread(target=work, args=(worker,), daemon=True) for worker in pool]
    try:
        for thread in threads:
            thread.start()
        left = len(jobs)
        while left:
            index, answer = answered.get()
            if isinstance(answer, BaseException):
                raise answer
            if answer is None:
                if on_start is not None:
                    on_start(index)
                continue
            on_answer(index, answer)
            left -= 1
    finally:
        stopped.set()
        for worker in pool:
            worker.close()
        for thread in threads:
            thread.join(5)

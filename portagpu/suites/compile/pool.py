"""A pool of worker processes that may hang or die: each job has a time limit and an answer."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.files import Scratch
from portagpu.base.patience import LIMITS
from portagpu.base.subprocesses import Subprocess

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

WORKERS: Final = 2
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
_MODULE: Final = "portagpu.suites.compile.worker"


class Worker:
    """One process, started for its first job, and restarted after a job that ended it."""

    def __init__(self, module: str = _MODULE) -> None:
        self._module = module
        self._child: Subprocess | None = None
        self._scratch = Scratch("compile")
        self._stopped = False

    def ask(self, job: Any, limit_s: float) -> dict[str, Any]:
        """The answer to a job, or ``{"problem": ..., "unread": True}`` without one."""
        if self._child is None:
            self._child = Subprocess(
                self._module, leave_out=_CHANGE_CODE, environment=_environment(self._scratch.path)
            )
        if self._stopped:  # while it was started
            raise ChildProcessError("the worker was stopped")
        answer, problem = self._child.ask(job, limit_s)
        if answer is not None:
            return answer
        child, self._child = self._child, None
        child.close()
        return {"problem": f"the compiler's process {problem}", "unread": True}

    def stop(self) -> None:
        """End the process; a thread that waits for its answer learns that it ended."""
        self._stopped = True
        if (child := self._child) is not None:
            child.kill()

    def close(self) -> None:
        """End the process and remove its folder."""
        self.stop()
        if self._child is not None:
            self._child.close()
        self._scratch.remove()


def _environment(folder: Path) -> dict[str, str]:
    return {
        "TRITON_CACHE_DIR": str(folder / "triton"),
        # what a compiler that is ended leaves behind goes with the folder
        "TMPDIR": str(folder),
        "TRITON_DEFAULT_FP_FUSION": "1",
    }


def ask_all(
    jobs: Sequence[Any],
    on_answer: Callable[[int, dict[str, Any]], None],
    *,
    on_start: Callable[[int], None] | None = None,
    workers: int = WORKERS,
    limit_s: float = LIMITS.compile_s,
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
            worker.stop()
        for thread in threads:
            if thread.ident is not None:
                thread.join()
        for worker in pool:
            worker.close()

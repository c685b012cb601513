"""Builds the kernels for each architecture in a pool of workers, and judges them.

Workers may hang or die: each job has a time limit and an answer. Results have a stable order.
"""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.errors import PortagpuError
from portagpu.base.files import Scratch
from portagpu.base.installation import check_installation
from portagpu.base.patience import LIMITS
from portagpu.base.subprocesses import Subprocess
from portagpu.base.text import did_you_mean, excerpt, fits
from portagpu.devices.discovery import toolchain_for
from portagpu.facts.targets import architecture_names, load_architecture
from portagpu.runs.engine import Progress, RunOptions, add_result, complete
from portagpu.runs.results.verdicts import Verdict
from portagpu.suites.compile import kernel_jobs
from portagpu.suites.compile.judge import Job, unjudged_result
from portagpu.train.kernels.cache import Cache

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from portagpu.facts.targets import Target
    from portagpu.runs.results.run import Result, Run


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
_AREA: Final = "kernels/"
_MODULE: Final = "portagpu.suites.compile.worker"
_ROUTE: Final = "route"


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
        # what a compiler leaves when it is ended is removed with the folder
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


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileOptions(RunOptions):
    """The options of a run of the compilers.

    :param only: Build these kernels alone: ids, or patterns with * and ?.

    :param target: Build for this target's architecture alone.
    :param archs: The architectures to build for, by default all of the matrix.
    :param cache: Where earlier builds are kept.
    :param limit_s: The limit of one kernel in seconds.
    """

    only: Sequence[str] = ()
    archs: Sequence[str] = ()
    cache: Cache = field(default_factory=lambda: Cache(None))
    limit_s: float = LIMITS.compile_s

    def targets(self) -> tuple[Target, ...]:
        """The architectures to build for.

        Raises TargetNotFound, with the closest names, for an unknown name.
        """
        if self.target is not None:
            return tuple(filter(None, (self.load_target(),)))
        found = dict.fromkeys(
            load_architecture(name) for name in self.archs or architecture_names()
        )
        return tuple(sorted(found, key=lambda each: (each.vendor, _arch_order(each.arch.name))))


def _arch_order(name: str) -> tuple[str, int, str]:
    """sm_90 before sm_100."""
    stem = name.rstrip("0123456789abcdef")
    digits = name.removeprefix(stem)
    return stem, len(digits), digits


class UnknownKernel(PortagpuError, LookupError):
    """No result of the run has that id; the message suggests the closest one."""


def compile_kernels(options: CompileOptions, progress: Progress | None = None) -> Run:
    """Build and judge every kernel, and return the finished run.

    On Ctrl-C the returned run is marked as interrupted. Raises TargetNotFound and UnknownKernel.
    """
    progress = progress or Progress()
    work = partial(_build, targets=options.targets(), options=options, progress=progress)
    return complete(options.new_run(), progress, work)


def _build(
    run: Run, targets: Sequence[Target], options: CompileOptions, progress: Progress
) -> None:
    """Add every result to ``run`` in the order of ``targets``; after Ctrl-C, those so far."""
    check_installation()
    # by place, so that the order does not depend on which compiler is faster
    results: dict[int, list[Result]] = {}
    todo: list[tuple[int, Job]] = []

    def start(index: int) -> None:
        job = todo[index][1]
        progress.item_begins(f"{job.target.arch} {job.name}", index + 1, len(todo))

    def answer(index: int, given: dict[str, Any]) -> None:
        at, job = todo[index]
        results[at] = job.results(given, cached=False)
        if job.codes(given) is not None:
            options.cache.put(job.key, given)

    try:
        for place, entry in enumerate(_chosen(_entries(targets), options.only)):
            if not isinstance(entry, Job):
                results[place] = [entry]
                continue
            known = options.cache.get(entry.key)
            if known is not None and entry.codes(known) is not None:
                results[place] = entry.results(known, cached=True)
            else:
                todo.append((place, entry))
        if todo:
            jobs = [dict(job.request) for _, job in todo]
            ask_all(jobs, answer, on_start=start, limit_s=options.limit_s)
    finally:
        for _, found in sorted(results.items()):
            for result in found:
                if _is_chosen(result.id, options.only):
                    add_result(run, progress, result)
        versions = {**run.info.versions, **_compilers(run.results)}
        run.info = replace(run.info, versions=versions)


def _compilers(results: Sequence[Result]) -> dict[str, str]:
    """The versions of the compilers that built something: {"nvrtc": "12.9, 13.5"}."""
    found: dict[str, list[str]] = {}
    for each in sorted({r.extra["compiler"] for r in results if "compiler" in r.extra}):
        name, version = each.split(" ", 1)
        found.setdefault(name.lower(), []).append(version)
    return {name: ", ".join(versions) for name, versions in found.items()}


def _entries(targets: Sequence[Target]) -> list[Job | Result]:
    """The jobs, and the results that need no build, in the order of ``targets``."""
    triton = kernel_jobs.installed_compiler()
    vendors = {target.vendor: toolchain_for(target.vendor) for target in targets}
    entries: dict[Target, list[Job | Result]] = {}
    for vendor, found in vendors.items():
        theirs = [target for target in targets if target.vendor == vendor]
        if found is None:
            entries |= {target: [_no_compiler_result(target)] for target in theirs}
            continue
        backend, toolchain = found
        compilers = kernel_jobs.find_compilers(backend, theirs)
        for target in theirs:
            entries[target] = [
                *kernel_jobs.triton_entries(target, backend, toolchain, triton),
                *kernel_jobs.cpp_entries(target, backend, toolchain, compilers[target.arch.name]),
            ]
    return [entry for target in targets for entry in entries[target]]


def _chosen(entries: Sequence[Job | Result], only: Sequence[str]) -> list[Job | Result]:
    """The entries with a result that one of ``only`` fits, or all; raises UnknownKernel."""
    ids = [[*entry.ids.values()] if isinstance(entry, Job) else [entry.id] for entry in entries]
    names = list(dict.fromkeys(each.removeprefix(_AREA) for each in chain(*ids)))
    for wanted in only:
        if not any(_is_chosen(name, [wanted]) for name in names):
            hint = did_you_mean(wanted, names, f"kernels are such as {names[0]}")
            raise UnknownKernel(f"there is no kernel {excerpt(wanted)!r}: {hint}")
    return [
        entry
        for entry, own in zip(entries, ids, strict=True)
        if any(_is_chosen(each, only) for each in own)
    ]


def _is_chosen(name: str, only: Sequence[str]) -> bool:
    """Whether a result with that id is wanted: all are, if nothing was chosen."""
    return not only or any(
        fits(each.removeprefix(_AREA), name.removeprefix(_AREA)) for each in only
    )


def _no_compiler_result(target: Target) -> Result:
    if target.vendor == "cpu":
        return unjudged_result(
            _ROUTE, target, Verdict.SKIP, "a CPU: kernels are built for GPUs only"
        )
    reason = f"no installed backend knows machine code of {target.vendor}"
    return unjudged_result(_ROUTE, target, Verdict.INCONCLUSIVE, reason)

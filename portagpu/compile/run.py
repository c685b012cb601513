"""Which kernels are built for which architectures, and their results in a stable order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from portagpu.compile import cpp_jobs, triton_jobs
from portagpu.compile.job import Job
from portagpu.compile.judge import unjudged
from portagpu.compile.pool import LIMIT_S, WORKERS, ask_all
from portagpu.contents import check_installation
from portagpu.discovery import toolchain_of
from portagpu.results.verdicts import Verdict
from portagpu.target import architecture_names, load_architecture, load_target

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from portagpu.kernels.cache import Cache
    from portagpu.results.run import Result
    from portagpu.target import Target

_ROUTE: Final = "route"


@dataclass(frozen=True, slots=True)
class Plan:
    """The architectures to build for."""

    targets: tuple[Target, ...]


def plan_for(target: str | None = None, archs: Sequence[str] = ()) -> Plan:
    """The architecture of a target, those named, or all of the matrix.

    Raises TargetNotFound that offers the closest for a name that is not there.
    """
    if target is not None:
        return Plan((load_target(target),))
    found = dict.fromkeys(load_architecture(name) for name in archs or architecture_names())
    return Plan(tuple(sorted(found, key=lambda each: (each.vendor, _order(each.arch.name)))))


def _order(name: str) -> tuple[str, int, str]:
    """sm_90 before sm_100."""
    stem = name.rstrip("0123456789abcdef")
    digits = name.removeprefix(stem)
    return stem, len(digits), digits


def compile_all(
    plan: Plan,
    *,
    cache: Cache,
    on_start: Callable[[str, int, int], None] | None = None,
    on_results: Callable[[Sequence[Result]], None],
    workers: int = WORKERS,
    limit_s: float = LIMIT_S,
) -> None:
    """Build and judge every kernel of ``plan``; ``on_results`` gets all of them once, in order.

    Interrupted, it gets those that are there before KeyboardInterrupt goes on. ``on_start`` gets
    the name, number and total of what is built.
    """
    check_installation()
    # by place, so that the order does not depend on which compiler is faster
    results: dict[int, list[Result]] = {}
    todo: list[tuple[int, Job]] = []

    def start(index: int) -> None:
        if on_start is not None:
            job = todo[index][1]
            on_start(f"{job.target.arch} {job.name}", index + 1, len(todo))

    def answer(index: int, given: dict[str, Any]) -> None:
        at, job = todo[index]
        results[at] = job.results(given, cached=False)
        if job.codes(given) is not None:
            cache.put(job.key, given)

    try:
        for place, entry in enumerate(_entries(plan.targets)):
            if not isinstance(entry, Job):
                results[place] = [entry]
                continue
            known = cache.get(entry.key)
            if known is not None and entry.codes(known) is not None:
                results[place] = entry.results(known, cached=True)
            else:
                todo.append((place, entry))
        if todo:
            jobs = [dict(job.request) for _, job in todo]
            ask_all(jobs, answer, on_start=start, workers=workers, limit_s=limit_s)
    finally:
        on_results([result for _, found in sorted(results.items()) for result in found])


def _entries(targets: Sequence[Target]) -> list[Job | Result]:
    """What is to be built, and what is known without building, in the order of ``targets``."""
    triton = triton_jobs.installed()
    vendors = {target.vendor: toolchain_of(target.vendor) for target in targets}
    entries: dict[Target, list[Job | Result]] = {}
    for vendor, found in vendors.items():
        theirs = [target for target in targets if target.vendor == vendor]
        if found is None:
            entries |= {target: [_nothing(target)] for target in theirs}
            continue
        backend, toolchain = found
        compilers = cpp_jobs.find_compilers(backend, theirs)
        for target in theirs:
            entries[target] = [
                *triton_jobs.entries(target, backend, toolchain, triton),
                *cpp_jobs.entries(target, backend, toolchain, compilers[target.arch.name]),
            ]
    return [entry for target in targets for entry in entries[target]]


def _nothing(target: Target) -> Result:
    if target.vendor == "cpu":
        return unjudged(_ROUTE, target, Verdict.SKIP, "a CPU: kernels are built for GPUs only")
    reason = f"no installed backend knows machine code of {target.vendor}"
    return unjudged(_ROUTE, target, Verdict.INCONCLUSIVE, reason)

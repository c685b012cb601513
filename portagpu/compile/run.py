"""Which kernels are built for which architectures, and their results in a stable order."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from portagpu.compile.judge import judged, unjudged
from portagpu.compile.pool import LIMIT_S, WORKERS, ask_all
from portagpu.compile.toolchain import MachineCode
from portagpu.errors import BackendNotFound, MissingDependency
from portagpu.kernels.cache import Cache, key_of
from portagpu.kernels.catalogue import VARIANTS, Variant
from portagpu.kernels.compiler import Compiler, find_compiler
from portagpu.kernels.plan import Config, Limits, candidates
from portagpu.target import architecture_names, load_architecture, load_target
from portagpu.verdicts import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from portagpu.compile.toolchain import Toolchain
    from portagpu.results import Result
    from portagpu.target import Target

_FORMAT: Final = 1
"""Of what the cache holds."""
_ROUTE: Final = "route"
_NUMBERS: Final = ("wave_size", "registers", "spill_bytes", "shared_bytes")


@dataclass(frozen=True, slots=True)
class Plan:
    """The architectures to build for."""

    targets: tuple[Target, ...]


@dataclass(frozen=True, slots=True)
class Job:
    """One kernel for one architecture."""

    variant: Variant
    target: Target
    config: Config
    plugin: str
    key: str

    def to_json(self) -> dict[str, Any]:
        """The job as the worker reads it."""
        return {
            "plugin": self.plugin,
            "arch": self.target.arch.name,
            "warp_size": self.target.arch.warp_size,
            "variant": self.variant.id,
            "blocks": self.config.blocks,
            "threads": self.config.threads,
            "stages": self.config.stages,
        }


@dataclass(slots=True)
class _Session:
    """Results by place, so that their order does not depend on which compiler is faster."""

    compiler: Compiler
    cache: Cache
    results: dict[int, Result] = field(default_factory=dict)


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
    try:
        compiler = find_compiler()
    except MissingDependency as error:
        on_results([_without_compiler(target, str(error)) for target in plan.targets])
        return
    session = _Session(compiler, cache)
    todo: list[tuple[int, Job]] = []
    place = 0
    for target in plan.targets:
        for entry in _entries(target, compiler):
            if isinstance(entry, Job):
                known = _kept(cache.get(entry.key))
                if known is None:
                    todo.append((place, entry))
                else:
                    session.results[place] = _result(session, entry, known, cached=True)
            else:
                session.results[place] = entry
            place += 1

    def start(index: int) -> None:
        if on_start is not None:
            job = todo[index][1]
            on_start(f"{job.target.arch} {job.variant.id}", index + 1, len(todo))

    def answer(index: int, given: dict[str, Any]) -> None:
        at, job = todo[index]
        session.results[at] = _result(session, job, given, cached=False)
        if "problem" not in given:
            cache.put(job.key, given)

    try:
        if todo:
            jobs = [job.to_json() for _, job in todo]
            ask_all(jobs, answer, on_start=start, workers=workers, limit_s=limit_s)
    finally:
        on_results([result for _, result in sorted(session.results.items())])


def _without_compiler(target: Target, reason: str) -> Result:
    if target.vendor == "cpu":
        return _no_gpu(target)
    return unjudged(_ROUTE, target, Verdict.INCONCLUSIVE, reason)


def _no_gpu(target: Target) -> Result:
    return unjudged(_ROUTE, target, Verdict.SKIP, "a CPU: Triton builds for GPUs only")


def _entries(target: Target, compiler: Compiler) -> list[Job | Result]:
    """What is to be built for one architecture, and what is known without building."""
    if target.vendor == "cpu":
        return [_no_gpu(target)]
    if target.value("compile.route") != "triton":
        reason = target.value("compile.without") or "the target states no route to machine code"
        return [unjudged(_ROUTE, target, Verdict.INCONCLUSIVE, str(reason))]
    found = toolchain_of(target.vendor)
    if found is None:
        reason = f"no installed backend reads machine code of {target.vendor}"
        return [unjudged(_ROUTE, target, Verdict.INCONCLUSIVE, reason)]
    plugin, toolchain = found
    limits = Limits.of_target(target)
    entries: list[Job | Result] = []
    for variant in VARIANTS:
        why = variant.why_not(target)
        if why:
            entries.append(unjudged(variant.id, target, Verdict.SKIP, why))
            continue
        config = candidates(variant.kind, limits)[0]
        key = _key(variant, target, config, toolchain, compiler)
        entries.append(Job(variant, target, config, plugin, key))
    return entries


def toolchain_of(vendor: str) -> tuple[str, Toolchain] | None:
    """The backend that reads a vendor's machine code, by name, and what it reads it with."""
    from portagpu.candidates import candidates as backends
    from portagpu.candidates import plugin

    for name in backends():
        try:
            found = plugin(name).toolchain()
        except BackendNotFound:
            continue
        if found is not None and found.vendor == vendor:
            return name, found
    return None


def _key(
    variant: Variant, target: Target, config: Config, toolchain: Toolchain, compiler: Compiler
) -> str:
    """Everything that the answer depends on; the facts that judge it are not part of it."""
    reader = sys.modules[type(toolchain).__module__].__file__
    sources = [_source(f"portagpu.kernels.source.{variant.module}"), _source(_WORKER)]
    return key_of(
        _FORMAT,
        [compiler.version, compiler.stamp],
        [*sources, "" if reader is None else Path(reader).read_text("utf-8")],
        repr(variant),
        repr(config),
        [target.arch.name, target.arch.warp_size],
    )


_WORKER: Final = "portagpu.compile.worker"


def _source(module: str) -> str:
    """The text of a module, which is not imported: that of a kernel would import triton."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        return ""
    return Path(spec.origin).read_text("utf-8", "replace")


def _kept(found: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """What the cache holds, where it has the form of an answer."""
    if found is None or not all(type(found.get(name)) is int for name in _NUMBERS):
        return None
    scalar, matrix = found.get("scalar_spills"), found.get("matrix")
    if scalar is not None and type(scalar) is not int:
        return None
    if not isinstance(matrix, dict) or not all(type(count) is int for count in matrix.values()):
        return None
    return found


def _result(session: _Session, job: Job, given: Mapping[str, Any], *, cached: bool) -> Result:
    seconds = given.get("seconds")
    duration_s = float(seconds) if isinstance(seconds, int | float) and not cached else 0.0
    name = f"Triton {session.compiler.version}"
    if "problem" in given:
        # the kernel is at fault for what does not compile, nobody's kernel for a dead compiler
        verdict = Verdict.ERROR if given["unread"] else Verdict.FAIL
        said = "" if given["unread"] else f"{name} did not compile it: "
        reason = f"{said}{given['problem']}"
        return unjudged(job.variant.id, job.target, verdict, reason, duration_s=duration_s)
    code = MachineCode(
        given["wave_size"],
        given["registers"],
        given["spill_bytes"],
        given["scalar_spills"],
        given["matrix"],
    )
    extra = {
        "cached": cached,
        "threads": job.config.threads,
        "stages": job.config.stages,
        "blocks": dict(job.config.blocks),
    }
    return judged(
        job.variant,
        job.target,
        code,
        given["shared_bytes"],
        compiler=name,
        duration_s=duration_s,
        extra=extra,
    )

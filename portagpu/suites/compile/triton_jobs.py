"""The kernels in Triton as jobs: a variant for an architecture, with the config that fits it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from portagpu.base.errors import MissingDependency
from portagpu.devices.machine_code import Compiler, find_compiler
from portagpu.runs.results.verdicts import Verdict
from portagpu.suites.compile.judge import Job, module_source, reader_sources, unjudged_result
from portagpu.train.kernels.cache import cache_key
from portagpu.train.kernels.plan import VARIANTS, Config, Limits, Variant, candidates

if TYPE_CHECKING:
    from portagpu.devices.machine_code import Toolchain, UnitReading
    from portagpu.facts.targets import Target
    from portagpu.runs.results.run import Result

ROUTE: Final = "triton"
"""In ``compile.routes``; the id of the one result where nothing is built by it."""
_FORMAT: Final = 3
"""Of what the cache holds."""


def installed_compiler() -> Compiler | str:
    """The installed Triton, or what to install."""
    try:
        return find_compiler()
    except MissingDependency as error:
        return str(error)


def entries(
    target: Target, backend: str, toolchain: Toolchain, compiler: Compiler | str
) -> list[Job | Result]:
    """The jobs of one architecture, and the results that need no build."""
    if ROUTE not in (target.value("compile.routes") or ()):
        reason = target.value("compile.without") or "compile.routes has no triton"
        return [unjudged_result(ROUTE, target, Verdict.SKIP, str(reason))]
    if isinstance(compiler, str):
        return [unjudged_result(ROUTE, target, Verdict.INCONCLUSIVE, compiler)]
    limits = Limits.of_target(target)
    return [_entry(variant, target, limits, backend, toolchain, compiler) for variant in VARIANTS]


def skip_reason(variant: Variant, target: Target, toolchain: Toolchain) -> str:
    """Why a variant is not built for an architecture; empty where it is."""
    if variant.reads_unit and toolchain.unit_reading(target.arch.name) is None:
        return f"no document says how code reads its hardware unit on {target.arch}"
    return variant.why_not(target)


def unit_reading_of(variant: Variant, target: Target, toolchain: Toolchain) -> UnitReading | None:
    """How a variant reads its hardware unit there; None for variants that do not."""
    return toolchain.unit_reading(target.arch.name) if variant.reads_unit else None


def _entry(
    variant: Variant,
    target: Target,
    limits: Limits,
    backend: str,
    toolchain: Toolchain,
    compiler: Compiler,
) -> Job | Result:
    if why := skip_reason(variant, target, toolchain):
        return unjudged_result(variant.id, target, Verdict.SKIP, why)
    config = candidates(variant.kind, limits)[0]
    return Job(
        name=variant.id,
        target=target,
        compiler=compiler,
        request={
            "kind": ROUTE,
            "plugin": backend,
            "arch": target.arch.name,
            "warp_size": target.arch.warp_size,
            "variant": variant.id,
            "blocks": config.blocks,
            "threads": config.threads,
            "stages": config.stages,
        },
        key=_key(variant, target, config, toolchain, compiler),
        ids={variant.function: variant.id},
        matrix=variant.matrix,
        reading=unit_reading_of(variant, target, toolchain),
        extra={
            "threads": config.threads,
            "stages": config.stages,
            "blocks": dict(config.blocks),
        },
    )


def _key(
    variant: Variant, target: Target, config: Config, toolchain: Toolchain, compiler: Compiler
) -> str:
    """The cache key: all that the machine code depends on, without the facts that judge it."""
    return cache_key(
        _FORMAT,
        [compiler.version, compiler.stamp],
        [
            module_source(f"portagpu.train.kernels.source.{variant.module}"),
            module_source("portagpu.suites.compile.worker"),
            *reader_sources(toolchain),
        ],
        repr(variant),
        repr(config),
        repr(unit_reading_of(variant, target, toolchain)),
        [target.arch.name, target.arch.warp_size],
    )

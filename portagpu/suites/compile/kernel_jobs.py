"""The kernels as jobs of a compiler: in Triton a variant for an architecture with the config that
fits it, in CUDA and HIP C++ a source for an architecture, with a result for each function.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from portagpu.base.documents import decode, encode
from portagpu.base.errors import MissingDependency, Unsupported
from portagpu.base.patience import LIMITS
from portagpu.base.subprocesses import call
from portagpu.devices.machine_code import Compiler, check_readers, find_compiler
from portagpu.runs.results.verdicts import Verdict
from portagpu.suites.compile.judge import Job, module_source, reader_sources, unjudged_result
from portagpu.train.kernels.cache import cache_key
from portagpu.train.kernels.cpp.sources import KERNELS, read_source
from portagpu.train.kernels.plan import VARIANTS, Config, Limits, Variant, candidates

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from portagpu.devices.machine_code import Toolchain, UnitReading
    from portagpu.facts.targets import Target
    from portagpu.runs.results.run import Result


TRITON: Final = "triton"
"""In ``compile.routes``; the id of the one result where nothing is built by it."""
_TRITON_FORMAT: Final = 3
"""Of what the cache holds."""


def installed_compiler() -> Compiler | str:
    """The installed Triton, or what to install."""
    try:
        return find_compiler()
    except MissingDependency as error:
        return str(error)


def triton_entries(
    target: Target, backend: str, toolchain: Toolchain, compiler: Compiler | str
) -> list[Job | Result]:
    """The jobs of one architecture, and the results that need no build."""
    if TRITON not in (target.value("compile.routes") or ()):
        reason = target.value("compile.without") or "compile.routes has no triton"
        return [unjudged_result(TRITON, target, Verdict.SKIP, str(reason))]
    if isinstance(compiler, str):
        return [unjudged_result(TRITON, target, Verdict.INCONCLUSIVE, compiler)]
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
            "kind": TRITON,
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
        _TRITON_FORMAT,
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


CPP: Final = "cpp"
"""In ``compile.routes``; the id of the one result where nothing is built by it."""
_CPP_FORMAT: Final = 1
"""Of what the cache holds."""


def find_compilers(backend: str, targets: Sequence[Target]) -> dict[str, Compiler | Result]:
    """The compiler for each architecture of one vendor, or the result if there is none.

    One child process finds them, because a vendor's library or program may hang.
    """
    archs = [target.arch.name for target in targets if _claims(target)]
    given, problem = (
        call(__name__, "survey", (backend, archs), limit_s=LIMITS.survey_s) if archs else ({}, "")
    )
    return {target.arch.name: _compiler_or_result(target, given, problem) for target in targets}


def _claims(target: Target) -> bool:
    return CPP in (target.value("compile.routes") or ())


def _compiler_or_result(
    target: Target, given: Mapping[str, Any] | None, problem: str
) -> Compiler | Result:
    if not _claims(target):
        return unjudged_result(
            CPP, target, Verdict.SKIP, f"compile.routes of {target.arch} has no cpp"
        )
    if given is None:
        reason = f"which compilers are here could not be asked: {problem}"
        return unjudged_result(CPP, target, Verdict.ERROR, reason)
    stated = given[target.arch.name]
    if isinstance(stated, str):
        return unjudged_result(CPP, target, Verdict.INCONCLUSIVE, stated)
    return decode(Compiler, stated, "compiler")


def survey(backend: str, archs: Sequence[str]) -> dict[str, Any]:
    """In the child: each architecture's compiler as JSON, or why there is none."""
    from portagpu.devices.discovery import plugin

    toolchain = plugin(backend).toolchain()
    assert toolchain is not None  # noqa: S101 - the parent chose it for having one
    try:
        check_readers()
        found = toolchain.cpp_compilers(archs)
    except (MissingDependency, Unsupported) as error:
        return dict.fromkeys(archs, str(error))
    survey: dict[str, Any] = encode(found)
    return survey


def cpp_entries(
    target: Target, backend: str, toolchain: Toolchain, compiler: Compiler | Result
) -> list[Job | Result]:
    """A job for each source of the package, or one result with the reason if there is none."""
    if not isinstance(compiler, Compiler):
        return [compiler]
    readers = _readers(toolchain)
    return [
        Job(
            name=name,
            target=target,
            compiler=compiler,
            request={"kind": CPP, "plugin": backend, "arch": target.arch.name, "source": name},
            key=cache_key(
                CPP,
                _CPP_FORMAT,
                [compiler.name, compiler.version, compiler.stamp],
                [read_source(name), *readers],
                [target.arch.name, target.arch.warp_size],
            ),
            ids={function: result_id(name, function) for function in functions},
            extra={"source": f"{name}.cpp"},
        )
        for name, functions in KERNELS.items()
    ]


def result_id(name: str, function: str) -> str:
    """ "warp_reduce[f32]" of ``row_sum_f32``; the source's name alone where it has one function."""
    if len(KERNELS[name]) == 1:
        return name
    return f"{name}[{function.rpartition('_')[2]}]"


def _readers(toolchain: Toolchain) -> list[str]:
    """The source texts of the worker, the vendor's compiler and readers, and the ELF reader."""
    own = map(module_source, ("portagpu.suites.compile.worker", "portagpu.devices.machine_code"))
    return [*own, *reader_sources(toolchain)]

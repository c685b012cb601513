"""The worker process: it compiles the jobs of its parent, :mod:`portagpu.suites.compile.run`."""

from __future__ import annotations

import importlib
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.documents import encode
from portagpu.base.errors import MissingDependency
from portagpu.base.subprocesses import parent_channel
from portagpu.devices.machine_code import CodeError, CompileError, CompilerEnded, MachineCode
from portagpu.suites.compile import kernel_jobs
from portagpu.train.kernels.cpp.sources import read_source
from portagpu.train.kernels.plan import Config, Variant, constants, variants_by_id

if TYPE_CHECKING:
    from collections.abc import Mapping

    from portagpu.devices.machine_code import CompiledKernel, Toolchain

_MAX_MESSAGE: Final = 300


def main() -> None:
    """Answer jobs until there are no more."""
    channel = parent_channel()
    while (job := channel.receive()) is not None:
        started = time.monotonic()
        answer = _answer(job)
        answer["seconds"] = round(time.monotonic() - started, 3)
        channel.send(answer)


def _answer(job: Mapping[str, Any]) -> dict[str, Any]:
    from portagpu.devices.discovery import plugin

    toolchain = plugin(job["plugin"]).toolchain()
    assert toolchain is not None  # noqa: S101 - the parent chose it for having one
    try:
        codes = _KINDS[job["kind"]](job, toolchain)
    except (CodeError, CompilerEnded) as error:
        return {"problem": _last_line(str(error)), "unread": True}
    except (OSError, MemoryError, MissingDependency) as error:
        # a full disk or memory, or a program that is not there: no fault of the kernel's
        return {"problem": f"{type(error).__name__}: {_last_line(str(error))}", "unread": True}
    except CompileError as error:
        return {"problem": _first_error(str(error)), "unread": False}
    except Exception as error:  # noqa: BLE001 - whatever a compiler raises is its answer
        return {"problem": f"{type(error).__name__}: {_last_line(str(error))}", "unread": False}
    return {"codes": encode(codes)}


def _triton(job: Mapping[str, Any], toolchain: Toolchain) -> dict[str, MachineCode]:
    config = Config(
        tuple((name, size) for name, size in job["blocks"]), job["threads"], job["stages"]
    )
    variant = variants_by_id()[job["variant"]]
    code = build(variant, config, toolchain, job["arch"], job["warp_size"])
    return {variant.function: code}


def _cpp(job: Mapping[str, Any], toolchain: Toolchain) -> dict[str, MachineCode]:
    try:
        kernels = toolchain.compile_cpp(read_source(job["source"]), job["arch"])
    except ValueError as error:
        raise CodeError(f"the machine code cannot be read: {error}") from error
    return {kernel.name: _machine_code(kernel) for kernel in kernels}


def _machine_code(kernel: CompiledKernel) -> MachineCode:
    return MachineCode(
        wave_size=kernel.wave_size,
        threads=kernel.max_threads,
        registers=kernel.registers,
        accumulators=kernel.accumulators,
        scalar_registers=kernel.scalar_registers,
        spills=kernel.spills,
        spill_unit="B" if kernel.spill_unit == "bytes" else kernel.spill_unit,
        # a vendor without scalar registers spills none
        scalar_spills=None if kernel.scalar_registers is None else kernel.scalar_spills,
        stack_bytes=kernel.stack,
        shared_bytes=kernel.shared_memory,
        matrix={},
    )


_KINDS: Final = {kernel_jobs.TRITON: _triton, kernel_jobs.CPP: _cpp}


def build(
    variant: Variant, config: Config, toolchain: Toolchain, arch: str, warp_size: int
) -> MachineCode:
    """The machine code of one kernel in Triton, with the shared memory that a launch asks for.

    Raises what the compiler raises, and CodeError where its code cannot be read.
    """
    triton = importlib.import_module("triton")
    language = importlib.import_module("triton.language")
    compiler = importlib.import_module("triton.compiler")
    targets = importlib.import_module("triton.backends.compiler")
    source = importlib.import_module(f"portagpu.train.kernels.source.{variant.module}")
    function = getattr(source, variant.function)
    fixed: dict[str, Any] = {
        name: getattr(language, value) if isinstance(value, str) else value
        for name, value in variant.constants
    }
    fixed |= constants(config, variant.element_bytes)
    if variant.reads_unit:
        reading = toolchain.unit_reading(arch)
        assert reading is not None  # noqa: S101 - the parent builds it for no other architecture
        fixed |= {"READS": reading.assembly, "CONSTRAINT": reading.constraint}
    types = dict(variant.arguments)
    names = [parameter.name for parameter in function.params]
    signature = {name: "constexpr" if name in fixed else types[name] for name in names}
    # as a launch on ordinary tensors is specialised: all but fp32 numbers are multiples of 16
    divisible = [
        (at,) for at, name in enumerate(names) if signature[name] not in ("constexpr", "fp32")
    ]
    backend, chip = toolchain.triton_target(arch)
    warps = config.warps(warp_size)
    built = triton.compile(
        compiler.ASTSource(
            fn=function,
            signature=signature,
            constexprs=fixed,
            attrs={at: [["tt.divisibility", 16]] for at in divisible},
        ),
        target=targets.GPUTarget(backend, chip, warp_size),
        options={
            "num_warps": warps,
            "num_stages": config.stages,
            # the default differs between 3.9 and 3.10
            "enable_fp_fusion": True,
        },
    )
    looks = variant.matrix is not None or variant.reads_unit
    code = toolchain.inspect(built.asm, warps * warp_size, warps, matrix=looks)
    return replace(code, shared_bytes=int(built.metadata.shared))


def _last_line(text: str) -> str:
    """The last line with text; a compiler's message begins with the source."""
    lines = [line.strip() for line in text.splitlines() if line.strip(" ^\t")]
    return (lines[-1] if lines else "no message")[:_MAX_MESSAGE]


def _first_error(text: str) -> str:
    """The first line with an error in it; a C++ compiler's message ends with a count of them."""
    lines = [line.strip() for line in text.splitlines() if "error" in line]
    return (lines[0] if lines else _last_line(text))[:_MAX_MESSAGE]


if __name__ == "__main__":
    main()

"""A process that compiles: one job a line on standard input, one answer a line on standard output.

Started as ``python -m portagpu.compile.worker``. Compilers write what they like to standard output
and may end the process; answers have a descriptor of their own, and the parent
(:mod:`portagpu.compile.pool`) has a time limit.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from portagpu.compile.toolchain import CodeError, MachineCode
from portagpu.kernels.catalogue import Variant, by_id
from portagpu.kernels.plan import Config, constants

if TYPE_CHECKING:
    from collections.abc import Mapping

    from portagpu.compile.toolchain import Toolchain


def main() -> None:
    """Answer jobs until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        started = time.monotonic()
        answer = _answer(json.loads(line))
        answer["seconds"] = round(time.monotonic() - started, 3)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _answer(job: Mapping[str, Any]) -> dict[str, Any]:
    from portagpu.candidates import plugin

    toolchain = plugin(job["plugin"]).toolchain()
    assert toolchain is not None  # noqa: S101 - the parent chose it for having one
    config = Config(
        tuple((name, size) for name, size in job["blocks"]), job["threads"], job["stages"]
    )
    try:
        code, shared = build(
            by_id()[job["variant"]], config, toolchain, job["arch"], job["warp_size"]
        )
    except CodeError as error:
        return {"problem": str(error), "unread": True}
    except (OSError, MemoryError) as error:
        # a full disk or memory, or a program that is not there: no fault of the kernel's
        return {"problem": _one_line(error), "unread": True}
    except Exception as error:  # noqa: BLE001 - whatever a compiler raises is its answer
        return {"problem": _one_line(error), "unread": False}
    return {
        "wave_size": code.wave_size,
        "registers": code.registers,
        "spill_bytes": code.spill_bytes,
        "scalar_spills": code.scalar_spills,
        "matrix": dict(code.matrix),
        "shared_bytes": shared,
    }


def build(
    variant: Variant, config: Config, toolchain: Toolchain, arch: str, warp_size: int
) -> tuple[MachineCode, int]:
    """The machine code of one kernel, and the shared memory that a launch asks for, B.

    Raises what the compiler raises, and CodeError where its code cannot be read.
    """
    triton = importlib.import_module("triton")
    language = importlib.import_module("triton.language")
    compiler = importlib.import_module("triton.compiler")
    targets = importlib.import_module("triton.backends.compiler")
    source = importlib.import_module(f"portagpu.kernels.source.{variant.module}")
    function = getattr(source, variant.function)
    fixed: dict[str, Any] = {
        name: getattr(language, value) if isinstance(value, str) else value
        for name, value in variant.constants
    }
    fixed |= constants(config, variant.element_bytes)
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
    code = toolchain.inspect(built.asm, warps * warp_size, warps, matrix=variant.matrix is not None)
    return code, int(built.metadata.shared)


def _one_line(error: Exception) -> str:
    """The last line that says something; a compiler's message begins with the source."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" ^\t")]
    return f"{type(error).__name__}: {lines[-1] if lines else 'no message'}"[:300]


if __name__ == "__main__":
    main()

"""What the process that compiles answers: figures, or the line of a compiler's text that says why.

The texts have the form that clang and a Python program give theirs: source and marks around.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from portagpu.base.errors import MissingDependency
from portagpu.devices import discovery
from portagpu.devices.machine_code import CodeError, CompiledKernel, CompileError, CompilerEnded
from portagpu.suites.compile import worker
from portagpu.train.kernels.cpp.sources import KERNELS

CLANG = (
    "a.cpp:7:5: warning: unused variable 'x'\n"
    "    7 | int x;\n      |     ^\n"
    "a.cpp:9:1: error: expected ';'\n"
    "    9 | }\n      | ^\n"
    "a.cpp:11:1: error: unknown type name 'half'\n"
    "2 errors generated.\n"
)
PYTHON = "at 5:8:\n    y = x + 'a'\n            ^\nunsupported operand types\n\t^ \n"


def answer(monkeypatch: pytest.MonkeyPatch, made: Any) -> dict[str, Any]:
    """Of one job in C++, for which the toolchain returns or raises ``made``."""

    def compile_cpp(source: str, arch: str) -> Any:
        assert arch == "gfx942"
        if isinstance(made, Exception):
            raise made
        return made

    toolchain = SimpleNamespace(compile_cpp=compile_cpp)
    plugin = SimpleNamespace(toolchain=lambda: toolchain)
    monkeypatch.setattr(discovery, "plugin", {"rocm": plugin}.__getitem__)
    job = {"plugin": "rocm", "kind": "cpp", "source": next(iter(KERNELS)), "arch": "gfx942"}
    return worker._answer(job)


@pytest.mark.parametrize(
    ("error", "problem", "unread"),
    [
        # the source is wrong: the first error, and not the count of them at the end
        (CompileError(CLANG), "a.cpp:9:1: error: expected ';'", False),
        (CompileError(PYTHON), "unsupported operand types", False),
        (CompileError(""), "no message", False),
        (CompileError("error " + 400 * "x"), "error " + 294 * "x", False),
        (RuntimeError(PYTHON), "RuntimeError: unsupported operand types", False),
        # the source may be right: nothing is known of it
        (CompilerEnded(f"{CLANG}clang ended by signal 11\n"), "clang ended by signal 11", True),
        (CodeError("there are no notes"), "there are no notes", True),
        (ValueError("it is too short"), "the machine code cannot be read: it is too short", True),
        (MissingDependency("install clang"), "MissingDependency: install clang", True),
        (OSError(28, "full"), "OSError: [Errno 28] full", True),
        (MemoryError(), "MemoryError: no message", True),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, Exception) else "",
)
def test_a_failure_is_one_line(
    monkeypatch: pytest.MonkeyPatch, error: Exception, problem: str, unread: bool
) -> None:
    assert answer(monkeypatch, error) == {"problem": problem, "unread": unread}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            {"spill_unit": "bytes"},
            {"spill_unit": "B", "scalar_registers": None, "scalar_spills": None},
        ),
        (
            {"spill_unit": "registers", "scalar_registers": 40, "scalar_spills": 6},
            {"spill_unit": "registers", "scalar_registers": 40, "scalar_spills": 6},
        ),
    ],
    ids=["no scalar registers", "scalar registers"],
)
def test_the_figures_of_a_kernel_are_answered(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], expected: dict[str, Any]
) -> None:
    kernel = CompiledKernel(
        name="add",
        arch="gfx942",
        compiler="clang",
        seconds=1.0,
        registers=21,
        accumulators=4,
        spills=3,
        stack=16,
        shared_memory=512,
        wave_size=64,
        max_threads=256,
        code=b"",
        **given,
    )
    assert answer(monkeypatch, [kernel])["codes"]["add"] == {
        "wave_size": 64,
        "threads": 256,
        "registers": 21,
        "accumulators": 4,
        "spills": 3,
        "stack_bytes": 16,
        "shared_bytes": 512,
        "matrix": {},
        "unit_reads": {},
        **expected,
    }

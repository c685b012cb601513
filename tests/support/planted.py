"""An untrusted folder: whatever of it is executed leaves a mark. And what may be run in it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

import pytest

from portagpu.base.subprocesses.start import python_environment
from tests.conftest import Child

if TYPE_CHECKING:
    from pathlib import Path

# main() on a machine that shows a GPU of each vendor, so that their branches run
WITH_GPUS: Final = """
import sys
import portagpu.facts.host
from portagpu.facts.host import PciGpu
gpus = (PciGpu("nvidia", pci="0000:01:00.0"), PciGpu("amd", pci="0000:02:00.0"))
portagpu.facts.host.gpus_on_machine = lambda root="/": gpus
from portagpu.cli import main
sys.exit(main(sys.argv[1:]))
"""
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
DEAR_VERBS: Final = (
    *(
        pytest.param(
            ("compile", "--arch", arch, "--no-cache", "--only", "copy*"), marks=needs_triton
        )
        for arch in ("sm_90", "gfx942")
    ),
    pytest.param(
        ("conform", "--backend", "cpu", "--only", "rng/seed-repeats"), marks=pytest.mark.torch
    ),
    pytest.param(("bench", "--backend", "cpu", "launch"), marks=pytest.mark.torch),
)
CHEAP_VERBS: Final = (
    ("--version",),
    ("info",),
    ("info", "--topology"),
    ("info", "--replay", "."),
    ("record", "OUT"),
    ("bringup", "--replay", "."),
    ("health", "--gate", "npd", "--log", "dmesg"),
    ("conform", "--list"),
    ("occupancy", "--arch", "gfx942", "--threads", "256", "--regs", "100"),
)
VERBS: Final = (*CHEAP_VERBS, *DEAR_VERBS)
MODULES: Final = (
    *("ast", "base64", "collections", "copy", "csv", "ctypes", "dataclasses", "datetime", "enum"),
    *("fcntl", "hashlib", "importlib", "inspect", "json", "logging", "pathlib", "pickle"),
    *("platform", "queue", "random", "re", "secrets", "select", "selectors", "shutil", "signal"),
    *("socket", "statistics", "string", "struct", "subprocess", "tempfile", "textwrap"),
    *("threading", "tomllib", "traceback", "typing", "uuid", "warnings", "zipfile"),
    *("click", "rich", "pytest", "pluggy", "packaging", "numpy", "torch", "triton", "msgpack"),
    *("elftools", "pynvml", "amdsmi", "pyrsmi", "cupy", "nvidia", "sitecustomize"),
    *("usercustomize", "conftest", "portagpu_cpu", "portagpu_cuda", "portagpu_rocm"),
    *("portagpu_torch_gpu", "portagpu_cuda_build", "portagpu_rocm_build"),
)
PROGRAMS: Final = (
    *("nvidia-smi", "amd-smi", "rocm-smi", "rocminfo", "dmesg", "clang", "clang-99", "clang++"),
    *("amdclang++", "cuobjdump", "nvdisasm", "ptxas", "ld.lld", "gcc", "cc", "ccache", "python3"),
)
LIBRARIES: Final = ("libnvidia-ml.so.1", "libnvrtc.so.13", "libcuda.so.1", "libamd_smi.so")


def plant(folder: Path, marks: Path, without: frozenset[str] = frozenset()) -> None:
    """Fill ``folder``; a mark is a file in ``marks`` that is named after what was executed."""
    folder.mkdir()
    marks.mkdir()
    for name in set(MODULES) - without:
        marking = f"import posix\nposix.close(posix.open({str(marks / name)!r}, 0o1101, 0o600))\n"
        (folder / f"{name}.py").write_text(f"{marking}raise ImportError('planted')\n", "utf-8")
    for name in PROGRAMS:
        program = folder / name
        program.write_text(f"#!/bin/sh\n: > '{marks}/{name}'\nexit 1\n", "utf-8")
        program.chmod(0o755)
    (folder / "pytest.ini").write_text("[pytest]\naddopts = -p planted_plugin\n", "utf-8")
    for name in ("planted_plugin", "planted_backend"):
        (folder / f"{name}.py").write_text(f"open({str(marks / name)!r}, 'w')\n", "utf-8")
    described = folder / "planted-1.0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: planted\nVersion: 1.0\n")
    (described / "entry_points.txt").write_text(
        "[portagpu.backends]\nplanted = planted_backend:X\n[pytest11]\nplanted = planted_plugin\n"
    )
    _plant_libraries(folder, marks)


def _plant_libraries(folder: Path, marks: Path) -> None:
    """Libraries that mark when they are loaded, where there is a C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return
    source, built = folder / "planted.c", folder / "planted.so"
    source.write_text(
        "#include <fcntl.h>\n__attribute__((constructor)) static void mark(void) "
        f'{{ open("{marks}/library", O_CREAT | O_WRONLY, 0600); }}\n'
    )
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(built), str(source)], check=True)
    wheel = folder / "nvidia" / "cuda_nvrtc" / "lib"
    toolkit = folder / "lib64"
    for place in (folder, wheel, toolkit):
        place.mkdir(parents=True, exist_ok=True)
        for name in LIBRARIES:
            shutil.copy(built, place / name)


def marks(folder: Path) -> list[str]:
    """What of an untrusted folder was executed."""
    return sorted(mark.name for mark in (folder.parent / "marks").iterdir())


def environment_outside(folder: Path, **variables: str) -> dict[str, str]:
    """The environment of a Python in ``folder`` that finds portagpu from outside of it."""
    given = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    return given | {
        "PYTHONPATH": python_environment()["PYTHONPATH"],
        "XDG_CACHE_HOME": str(folder.parent / "cache"),
        **variables,
    }


def run(folder: Path, *words: str, **variables: str) -> Child:
    """Run this Python in ``folder``, finding portagpu from outside of it."""
    words = tuple(str(folder.parent / "out") if word == "OUT" else word for word in words)
    ended = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=environment_outside(folder, **variables),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return Child(ended.returncode, ended.stdout, ended.stderr)


def modules_of_a_start(folder: Path) -> frozenset[str]:
    """What ``python -m`` imports before it looks for the module: against that only ``-P`` helps."""
    (folder / "starting.py").write_text("import sys\nprint(*sys.modules)\n")
    said = run(folder, "-P", "-m", "starting", PYTHONPATH=str(folder)).ok()
    return frozenset(name.partition(".")[0] for name in said.split())

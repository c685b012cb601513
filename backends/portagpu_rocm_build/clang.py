"""HIP C++ to code objects with clang and lld: ROCm's own or a distribution's, without a device.

The compiler is given neither HIP's headers nor its device libraries, so that no ROCm needs to be
here: a source uses ``portagpu.h`` or the compiler's own words. This module imports neither torch
nor a vendor's package.
"""

from __future__ import annotations

import base64
import os
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from portagpu.arch import base_name
from portagpu.asking import ask
from portagpu.errors import MissingDependency
from portagpu.kernels.cpp.compiled import CompiledKernel, CompileError
from portagpu.kernels.cpp.formats.code_object import read_code_object
from portagpu.target import load_architecture

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMIT_S: Final = 120.0
"""A compilation that takes longer is ended, with what it started."""

_TOOLKITS: Final = ("ROCM_PATH", "ROCM_HOME", "HIP_PATH")
_TOOLKIT: Final = "/opt/rocm"
_IN_TOOLKIT: Final = ("llvm/bin/clang++", "lib/llvm/bin/clang++")
_VERSIONED: Final = re.compile(r"clang(?:\+\+)?-(\d+)")
_VERSION: Final = re.compile(r"clang version (\d+(?:\.\d+)*)")
_INSTALL: Final = (
    "install ROCm, or clang, lld and llvm of one version, 19 or later "
    "(Debian: apt-get install clang-22 lld-22)"
)
_WORDS: Final = (
    "-x",
    "hip",
    "-std=c++17",
    "-O3",
    "--offload-device-only",
    "--no-gpu-bundle-output",
    "-nogpulib",
    "-nogpuinc",
    "-c",
)


def compile(source: str, arch: str) -> tuple[CompiledKernel, ...]:  # noqa: A001 - what it is
    """The kernels of a source, built for ``arch`` ("gfx942"), in the order of the source.

    Raises MissingDependency where no clang that is here builds for that architecture, and
    CompileError where it refuses the source, or builds another wave size than the architecture's.
    """
    found, problem = ask(__name__, "build", (source, arch), limit_s=LIMIT_S)
    if found is None:
        raise CompileError(f"clang did not build for {arch}: {problem}")
    if "missing" in found:
        raise MissingDependency(found["missing"])
    if "error" in found:
        raise CompileError(f"{found['compiler']} refuses the source for {arch}: {found['error']}")
    kernels = read_code_object(
        base64.b64decode(found["code"]), compiler=found["compiler"], seconds=found["seconds"]
    )
    wave_size = load_architecture(arch).arch.warp_size
    for kernel in kernels:
        if (kernel.arch, kernel.wave_size) != (base_name(arch), wave_size):
            raise CompileError(
                f"{kernel.name} was built for {kernel.arch} with waves of {kernel.wave_size} "
                f"threads; {arch} has waves of {wave_size}"
            )
    return kernels


def build(source: str, arch: str) -> dict[str, Any]:
    """Compile here, in the child process: the code object in base 64, or what is wrong."""
    seen = []
    for clang in compilers():
        if base_name(arch) not in _processors(clang):
            seen.append(clang)
            continue
        if not Path(_said(clang, "-print-prog-name=ld.lld").strip()).is_absolute():
            return {"missing": f"{clang} has no linker ld.lld: {_INSTALL}"}
        return _build(clang, source, arch)
    if not seen:
        return {"missing": f"no clang is installed: {_INSTALL}"}
    return {"missing": f"{' and '.join(seen)} cannot build for {arch}: {_INSTALL}"}


def compilers() -> Iterator[str]:
    """Programs that may be clang: ROCm's, then those on the path, the newest version first."""
    roots = [os.environ[name] for name in _TOOLKITS if os.environ.get(name)]
    for root in dict.fromkeys([*roots, _TOOLKIT]):
        for inside in _IN_TOOLKIT:
            if os.access(Path(root) / inside, os.X_OK):
                yield str(Path(root) / inside)
                break
    if amd := shutil.which("amdclang++"):
        yield amd
    versions: dict[int, str] = {}
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        for path in sorted(Path(folder or ".").glob("clang*")):
            if match := _VERSIONED.fullmatch(path.name):
                versions.setdefault(int(match[1]), str(path))
    yield from (versions[number] for number in sorted(versions, reverse=True))
    if plain := shutil.which("clang"):
        yield plain


def _build(clang: str, source: str, arch: str) -> dict[str, Any]:
    version = _VERSION.search(_said(clang, "--version"))
    compiler = f"clang {version[1] if version else 'of unknown version'}"
    with tempfile.TemporaryDirectory(prefix="portagpu-") as folder:
        path, code = Path(folder) / "kernel.cpp", Path(folder) / "kernel.co"
        path.write_text(source, "utf-8")
        started = time.perf_counter()
        done = _run(clang, *_WORDS, f"--offload-arch={arch}", str(path), "-o", str(code))
        seconds = time.perf_counter() - started
        if done.returncode:
            said = done.stderr.replace(f"{folder}{os.sep}", "").strip()
            return {"compiler": compiler, "error": said or f"exit code {done.returncode}"}
        return {
            "compiler": compiler,
            "code": base64.b64encode(code.read_bytes()).decode(),
            "seconds": seconds,
        }


def _processors(clang: str) -> frozenset[str]:
    """The AMD processors that it builds for; none where it was built without them."""
    return frozenset(_said(clang, "--target=amdgcn-amd-amdhsa", "--print-supported-cpus").split())


def _said(clang: str, *words: str) -> str:
    done = _run(clang, *words)
    return f"{done.stdout}\n{done.stderr}"


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    """The parent's limit ends this process's whole group, so that none is set here."""
    return subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)

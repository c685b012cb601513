"""The C++ kernels on the host: built with g++ or clang++ over ``tests/support/kernels_cpp``.

The shim runs the threads of a block as lanes of warps of 32 or 64. What runs here are the kernels'
own sources; it says that their logic is right at both warp sizes, and nothing of a GPU.
"""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

from portagpu.train.kernels.cpp import KERNELS, read_source
from portagpu.train.kernels.cpp.sources import inline_header
from tests.conftest import ROOT

SOURCES = ROOT / "tests/support/kernels_cpp"
COMPILER = shutil.which("g++") or shutil.which("clang++")
WARP_SIZES = (32, 64)
_LIMIT_S = 180
_FLAGS = ("-std=c++17", "-O1", "-shared", "-fPIC", "-fsanitize=bounds", "-w")
_folders: list[tempfile.TemporaryDirectory[str]] = []


class Module:
    """A shared library of kernels for one warp size."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))

    def launch(self, name: str, grid: int, block: int, arguments, *, backward=False) -> None:
        """Run a kernel; raises RuntimeError with the sentence of what it did wrong."""
        function = getattr(self._library, f"launch_{name}")
        function.restype = ctypes.c_char_p
        function.argtypes = (ctypes.c_longlong, ctypes.c_int, ctypes.c_int, ctypes.c_void_p)
        values = [ctypes.c_longlong(int(value)) for value in arguments]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        failure = function(grid, block, int(backward), pointers)
        if failure:
            raise RuntimeError(failure.decode())


@functools.cache
def kernels(warp_size: int) -> Module:
    """All kernels of the package."""
    parts = [read_source(name) for name in KERNELS]
    names = [name for names in KERNELS.values() for name in names]
    return build(
        "\n".join([*parts, *(f"PORTAGPU_SHIM_EXPORT({name})" for name in names)]), warp_size
    )


@functools.cache
def broken(warp_size: int) -> Module:
    """The kernels with seeded mistakes."""
    return build(inline_header((SOURCES / "broken.cpp").read_text()), warp_size)


def build(source: str, warp_size: int) -> Module:
    """A library of that source, which exports what it launches."""
    folder = tempfile.TemporaryDirectory(prefix="portagpu-shim-")
    _folders.append(folder)
    path, library = Path(folder.name) / "kernels.cpp", Path(folder.name) / "kernels.so"
    path.write_text(source)
    ended = subprocess.run(
        [
            COMPILER,
            *_FLAGS,
            f"-DPORTAGPU_SHIM_WARP_SIZE={warp_size}",
            f"-I{SOURCES}",
            str(path),
            "-o",
            str(library),
        ],
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return Module(library)

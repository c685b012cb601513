"""The device ``strict``, built from ``strict.cpp`` against the torch that is installed."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).with_name("strict.cpp")
PACKAGE: Final = Path(__file__).with_name("portagpu_strict")
LIMIT_S: Final = 600
ENTRY_POINTS: Final = {"strict": "portagpu_strict:PLUGIN"}
VENDORS: Final = {"strictmaker": "portagpu_strict.vendor:VENDOR"}


def compiler() -> str | None:
    """The C++ compiler; None where there is none."""
    return shutil.which("g++") or shutil.which("clang++")


def library(folder: Path) -> Path:
    """The device's shared library, built once in ``folder``, whichever process comes first.

    Raises CalledProcessError, with what the compiler said, where it does not compile.
    """
    import torch

    home = Path(torch.__file__).parent
    made_of = SOURCE.read_bytes() + str(torch.__version__).encode()
    built = folder / f"strict-{hashlib.sha256(made_of).hexdigest()[:16]}.so"
    with (folder / "strict.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.exists():
            words = [str(compiler()), "-std=c++20", "-O1", "-shared", "-fPIC", str(SOURCE)]
            for include in ("include", "include/torch/csrc/api/include"):
                words += ["-isystem", str(home / include)]
            abi = int(torch.compiled_with_cxx11_abi())
            words += [f"-D_GLIBCXX_USE_CXX11_ABI={abi}", f"-L{home / 'lib'}"]
            words += ["-ltorch", "-ltorch_cpu", "-lc10", "-o", str(built.with_suffix(".part"))]
            subprocess.run(words, check=True, capture_output=True, text=True, timeout=LIMIT_S)
            built.with_suffix(".part").rename(built)
    return built


def put_into(folder: Path, built: Path) -> None:
    """Put the device's package and its library into ``folder``, as an installer does."""
    package = folder / PACKAGE.name
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(built, package / "strict.so")

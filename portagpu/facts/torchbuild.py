"""The installed torch and other libraries, from their files. None is imported."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from portagpu.facts.vendors import vendors

_CONSTANTS: Final = ("__version__", "cuda", "hip", "xpu", "git_version", "debug")
_LIBRARIES: Final = (
    "portagpu",
    "torch",
    "numpy",
    r"(pytorch-)?triton(-.+)?",
    "pytest",
    "tox",
    "click",
    "rich",
)


@dataclass(frozen=True, slots=True)
class TorchBuild:
    """A torch that ``import torch`` would find.

    ``kind`` is "cuda", "rocm", "xpu" or "cpu", decided from ``torch/version.py`` (``hip`` and
    ``cuda`` are the toolkits it was built with), None when that file cannot be read: then
    ``problem`` says why.
    """

    location: str
    version: str | None = None
    kind: str | None = None
    cuda: str | None = None
    hip: str | None = None
    xpu: str | None = None
    git_version: str | None = None
    debug: bool | None = None
    problem: str | None = None


def torch_build() -> TorchBuild | None:
    """The torch on this interpreter's path, or None where there is none."""
    loaded = sys.modules.get("torch")
    if loaded is not None and getattr(loaded, "__file__", None):
        return read_build(Path(str(loaded.__file__)).parent)
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if spec.origin is None:
        folder = next(iter(spec.submodule_search_locations or ()), "torch")
        return TorchBuild(folder, problem=f"{folder} is a folder without __init__.py, not torch")
    return read_build(Path(spec.origin).parent)


def read_build(folder: Path) -> TorchBuild:
    """The build in torch's package folder; ``problem`` is set where its version file is broken."""
    file = folder / "version.py"
    try:
        values = _constants(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, SyntaxError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        return _broken_build(folder, f"cannot read {file}: {reason}")
    version = values.get("__version__")
    if not isinstance(version, str):
        return _broken_build(folder, f"{file} does not state __version__")
    cuda, hip, xpu = (_text(values.get(name)) for name in ("cuda", "hip", "xpu"))
    debug = values.get("debug")
    return TorchBuild(
        location=str(folder),
        version=version,
        kind="rocm" if hip else "cuda" if cuda else "xpu" if xpu else "cpu",
        cuda=cuda,
        hip=hip,
        xpu=xpu,
        git_version=_text(values.get("git_version")),
        debug=debug if isinstance(debug, bool) else None,
    )


def _constants(source: str) -> dict[str, object]:
    found: dict[str, object] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            targets, value = [node.target], node.value
        else:
            continue
        for target in targets:
            if isinstance(target, ast.Name) and target.id in _CONSTANTS:
                found[target.id] = ast.literal_eval(value)
    return found


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _broken_build(folder: Path, problem: str) -> TorchBuild:
    return TorchBuild(str(folder), problem=f"{problem}; reinstall torch")


def library_versions() -> dict[str, str]:
    """Versions of the installed distributions that matter here, by distribution name.

    Read from their metadata; nothing is imported. One that is not installed is left out.
    """
    from importlib import metadata

    of_vendors = (name for each in vendors().values() for name in each.libraries)
    wanted = re.compile("|".join((*_LIBRARIES, *of_vendors)))
    found: dict[str, str] = {}
    for name in sorted(_distributions()):
        if wanted.fullmatch(name):
            try:
                version: str | None = metadata.version(name)
            except (metadata.PackageNotFoundError, KeyError):
                continue
            # up to Python 3.13 a folder without METADATA has the version None
            if version:
                found[name] = version
    return found


def _distributions() -> set[str]:
    """Normalised names of the distributions on the path, from the names of their folders alone."""
    names: set[str] = set()
    for entry in sys.path:
        try:
            files = os.listdir(entry or ".")  # noqa: PTH208 - half the time of Path.iterdir
        except OSError:
            continue
        for file in files:
            stem, _, suffix = file.rpartition(".")
            if suffix in {"dist-info", "egg-info"}:
                names.add(re.sub(r"[-_.]+", "-", stem.split("-", 1)[0]).lower())
    return names

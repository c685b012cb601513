"""torch's build and library versions, read without importing anything."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from portagpu.facts.torchbuild import library_versions, read_build

ROOT = Path(__file__).resolve().parents[2]
CUDA = """from typing import Optional
__all__ = ['__version__', 'debug', 'cuda', 'git_version', 'hip']
__version__ = '2.9.1+cu128'
debug = False
cuda: Optional[str] = '12.8'
git_version = 'abc123'
hip: Optional[str] = None
xpu: Optional[str] = None
"""


def _package(folder: Path, version: str | None, init: str | None = "") -> Path:
    package = folder / "torch"
    package.mkdir(parents=True)
    if init is not None:
        (package / "__init__.py").write_text(init, encoding="utf-8")
    if version is not None:
        (package / "version.py").write_text(version, encoding="utf-8")
    return package


def _child(program: str, *path: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        env={"PYTHONPATH": ":".join(map(str, (ROOT, *path)))},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("edit", "kind"),
    [
        (("", ""), "cuda"),
        (("'12.8'", "None"), "cpu"),
        (("cuda: Optional[str] = '12.8'", "cuda = None\nhip2 = 1"), "cpu"),
        (("hip: Optional[str] = None", "hip: Optional[str] = '6.4.43482'"), "rocm"),
        (
            ("'12.8'\ngit_version = 'abc123'\nhip: Optional[str] = None", "None\nhip = '7.0'"),
            "rocm",
        ),
        (("'12.8'", "None\nxpu = '20250101'\nunused = None"), "cpu"),
    ],
    ids=["cuda", "cpu", "cpu-plain", "rocm-and-cuda", "rocm", "last-assignment-counts"],
)
def test_kind_is_decided_by_the_toolkits(tmp_path: Path, edit: tuple[str, str], kind: str) -> None:
    build = read_build(_package(tmp_path, CUDA.replace(*edit)))
    assert (build.kind, build.problem) == (kind, None)
    assert build.version == "2.9.1+cu128"


def test_a_build_for_xpu_is_named(tmp_path: Path) -> None:
    text = "__version__ = '2.9.1+xpu'\ncuda = None\nhip = None\nxpu = '20250301'\n"
    assert read_build(_package(tmp_path, text)).kind == "xpu"


def test_every_constant_is_read(tmp_path: Path) -> None:
    build = read_build(_package(tmp_path, CUDA))
    assert (build.cuda, build.hip, build.xpu) == ("12.8", None, None)
    assert (build.git_version, build.debug) == ("abc123", False)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (None, "No such file"),
        ("__version__ = ", "invalid syntax"),
        ("debug = False", "does not state __version__"),
        ("__version__ = open('x').read()", "malformed"),
        ("\x00", "null bytes"),
    ],
    ids=["missing", "syntax", "no-version", "code", "binary"],
)
def test_a_broken_version_file_has_a_reason(tmp_path: Path, text: str | None, word: str) -> None:
    build = read_build(_package(tmp_path, text))
    assert build.kind is None, "a kind must not be guessed"
    assert build.problem is not None
    assert word in build.problem
    assert "reinstall torch" in build.problem
    assert "\n" not in build.problem


def test_torch_is_found_and_not_imported(tmp_path: Path) -> None:
    _package(tmp_path, CUDA, init="raise SystemExit('torch was imported')")
    program = (
        "import sys\nfrom portagpu.facts.torchbuild import torch_build\n"
        "build = torch_build()\nassert 'torch' not in sys.modules\nprint(build.version, build.kind)"
    )
    assert _child(program, tmp_path) == "2.9.1+cu128 cuda"


def test_no_torch_is_none() -> None:
    program = "from portagpu.facts.torchbuild import torch_build\nprint(torch_build())"
    assert _child(program) == "None"


def test_a_folder_called_torch_is_not_torch(tmp_path: Path) -> None:
    _package(tmp_path, None, init=None)
    program = "from portagpu.facts.torchbuild import torch_build\nprint(torch_build().problem)"
    assert "without __init__.py" in _child(program, tmp_path)


def test_library_versions_come_from_metadata(tmp_path: Path) -> None:
    for name, version in (("nvidia_nccl_cu12", "2.27.5"), ("cupy_rocm_7_0", "14.0"), ("x", "1")):
        folder = tmp_path / f"{name}-{version}.dist-info"
        folder.mkdir()
        text = f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n"
        (folder / "METADATA").write_text(text, encoding="utf-8")
    (tmp_path / "numpy-1.0.dist-info").mkdir()
    # those of vendors are known from entry points, which -S hides with all that is installed
    ours = tmp_path / "portagpu-0.dist-info"
    ours.mkdir()
    (ours / "entry_points.txt").write_text(
        "[portagpu.vendors]\ncuda = portagpu_cuda.vendor:VENDOR\n", encoding="utf-8"
    )
    program = "from portagpu.facts.torchbuild import library_versions\nprint(library_versions())"
    found = _child(program, tmp_path, ROOT / "backends")
    assert found == str({"cupy-rocm-7-0": "14.0", "nvidia-nccl-cu12": "2.27.5"})


def test_pytest_is_among_the_libraries_here() -> None:
    assert library_versions()["pytest"] == pytest.__version__

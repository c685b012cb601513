"""The wheel: what is in it, and that it works in any folder without the checkout."""

from __future__ import annotations

import configparser
import email.parser
import json
import shutil
import subprocess
import sys
import zipfile
from typing import TYPE_CHECKING, Final

import pytest

import portagpu
from portagpu.cli._verbs import VERBS
from tests.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from email.message import Message
    from pathlib import Path

    from tests.conftest import Child

BACKENDS: Final = (
    "portagpu_cpu",
    "portagpu_cuda",
    "portagpu_cuda_build",
    "portagpu_rocm",
    "portagpu_rocm_build",
    "portagpu_torch_gpu",
)
TOP: Final = {"portagpu", *BACKENDS, f"portagpu-{portagpu.__version__}.dist-info"}


@pytest.fixture(scope="module")
def names(portagpu_wheel: Path) -> set[str]:
    """The paths in the wheel."""
    with zipfile.ZipFile(portagpu_wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="module")
def metadata(portagpu_wheel: Path) -> Message:
    """The wheel's core metadata."""
    with zipfile.ZipFile(portagpu_wheel) as archive:
        path = f"portagpu-{portagpu.__version__}.dist-info/METADATA"
        return email.parser.Parser().parsestr(archive.read(path).decode("utf-8"))


def checkout(folder: str, pattern: str) -> set[str]:
    """Paths below ``folder`` of the checkout, relative to it, without caches."""
    root = ROOT / folder
    return {
        path.relative_to(root).as_posix()
        for path in root.rglob(pattern)
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_wheel_holds_these_packages_and_nothing_else(names: set[str]) -> None:
    assert {name.split("/")[0] for name in names} == TOP


@pytest.mark.parametrize(
    ("folder", "inside"),
    [("portagpu", "portagpu"), *((f"backends/{name}", name) for name in BACKENDS)],
)
def test_every_file_is_in_the_wheel_and_typed(names: set[str], folder: str, inside: str) -> None:
    missing = {f"{inside}/{path}" for path in checkout(folder, "*")} - names
    assert not missing, f"the wheel lacks {sorted(missing)}"
    assert f"{inside}/py.typed" in names, "type checkers ignore a package without py.typed"


def test_wheel_carries_the_pages_that_errors_name(names: set[str]) -> None:
    pages = {path for path in checkout("docs", "*.md") if not path.startswith("book/")}
    assert {f"portagpu/_docs/{path}" for path in pages} <= names
    assert "portagpu/_docs/book/cases.md" in names


@pytest.mark.parametrize("part", ["targets", "conformance", "performance", "bringup", "results"])
def test_wheel_carries_the_matrix(names: set[str], part: str) -> None:
    expected = {f"portagpu/_matrix/{part}/{path}" for path in checkout(f"matrix/{part}", "*")}
    assert expected, f"the checkout's matrix/{part} is empty"
    assert expected == {name for name in names if name.startswith(f"portagpu/_matrix/{part}/")}


def test_wheel_has_no_tests_or_caches(names: set[str]) -> None:
    unwanted = [
        name
        for name in names
        if {"tests", "examples", "__pycache__"} & set(name.split("/")[:-1])
        or name.endswith((".pyc", ".orig", "~"))
    ]
    assert not unwanted, f"the wheel holds {unwanted}"


def test_wheel_runs_on_any_linux_python_3(names: set[str], portagpu_wheel: Path) -> None:
    assert portagpu_wheel.name.endswith("-py3-none-any.whl"), portagpu_wheel.name
    assert not [name for name in names if name.endswith(".so")]


def test_metadata_states_licence_and_python(names: set[str], metadata: Message) -> None:
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_core_needs_no_torch_and_extras_name_no_build_of_it(metadata: Message) -> None:
    requires = metadata.get_all("Requires-Dist") or []
    core = {entry.split(">=")[0] for entry in requires if "extra ==" not in entry}
    assert core == {"click", "rich"}, "a training script's environment gets small packages only"
    torch = [entry for entry in requires if entry.startswith("torch")]
    assert torch == [f"torch>=2.9; extra == '{extra}'" for extra in ("all", "torch")], (
        "torch is an extra with a floor and no build, so that a vendor's wheel is never replaced"
    )


def test_entry_points_are_the_command_and_the_backends(portagpu_wheel: Path) -> None:
    with zipfile.ZipFile(portagpu_wheel) as archive:
        path = f"portagpu-{portagpu.__version__}.dist-info/entry_points.txt"
        parser = configparser.ConfigParser()
        parser.read_string(archive.read(path).decode("utf-8"))
    assert dict(parser["console_scripts"]) == {"portagpu": "portagpu.cli:main"}
    assert set(parser.sections()) == {"console_scripts", "portagpu.packages"}, (
        "an entry point of pytest would be in every test run of the environment"
    )
    assert dict(parser["portagpu.packages"]) == {
        "cpu": "portagpu_cpu:PACKAGE",
        "cuda": "portagpu_cuda:PACKAGE",
        "rocm": "portagpu_rocm:PACKAGE",
    }


def test_installed_wheel_is_the_one_that_runs(
    installed: Callable[..., Child], portagpu_installed: Path
) -> None:
    code = """
import sys, portagpu, portagpu_cpu
from portagpu.base.paths import matrix_dir
print(portagpu.__file__, portagpu_cpu.__file__, matrix_dir(), *sys.path, sep="\\n")
"""
    package, backend, matrix, *path = installed("-c", code).ok().splitlines()
    assert package == str(portagpu_installed / "portagpu" / "__init__.py")
    assert backend == str(portagpu_installed / "portagpu_cpu" / "__init__.py")
    assert matrix == str(portagpu_installed / "portagpu" / "_matrix")
    assert not {str(ROOT), str(ROOT / "backends")} & set(path), "the checkout is on the path"


def test_installed_wheel_states_its_version(installed: Callable[..., Child]) -> None:
    said = installed("-m", "portagpu", "--version").ok()
    assert said.strip() == f"portagpu {portagpu.__version__}"


def test_installed_wheel_knows_the_checkouts_targets(installed: Callable[..., Child]) -> None:
    code = "from portagpu.facts.targets import load_targets; print(*load_targets())"
    expected = checkout("matrix/targets", "*.toml")
    ids = {path.removesuffix(".toml") for path in expected if "/" not in path} - {"sources"}
    assert set(installed("-c", code).ok().split()) == ids


def test_a_wheel_that_is_not_unpacked_has_its_targets(
    child: Callable[..., Child], portagpu_wheel: Path
) -> None:
    code = """
import portagpu.facts.targets as targets
found = targets.load_target("nvidia-h200-sxm")
print(targets.__file__, found.peak("bf16").value, targets.identify("amd", "gfx942", None).id)
"""
    file, peak, family = child("-O", "-c", code, path=[portagpu_wheel]).ok().split(maxsplit=2)
    assert file.startswith(f"{portagpu_wheel}/"), "it is not the wheel's"
    assert (peak, family) == ("989.4", "gfx942 family\n")


def test_a_wheel_with_a_wrong_target_is_not_built(tmp_path: Path) -> None:
    project = tmp_path / "project"
    skipped = shutil.ignore_patterns(".*", "__pycache__", "tests", "docs")
    shutil.copytree(ROOT, project, ignore=skipped)
    twin = (project / "matrix/targets/nvidia-l4.toml").read_text(encoding="utf-8")
    path = project / "matrix/targets/nvidia-l5.toml"
    path.write_text(twin.replace("nvidia-l4", "nvidia-l5"), encoding="utf-8")
    words = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    ended = subprocess.run(words, cwd=project, capture_output=True, text=True, check=False)
    assert ended.returncode
    last = (ended.stdout + ended.stderr).strip().splitlines()[-1]
    assert "nvidia-l5.toml: match.names: a device can be nvidia-l5 and nvidia-l4" in last
    assert not list(tmp_path.glob("*.whl"))


def test_without_the_packages_of_the_suite_a_line_says_what_to_install(
    installed: Callable[..., Child],
) -> None:
    code = """
import sys
sys.modules["pytest"] = sys.modules["hypothesis"] = None
from portagpu.cli import main
assert main(["info"]) == 0
raise SystemExit(main(["conform", "--list"]))
"""
    ended = installed("-c", code)
    assert ended.code == 3
    (line,) = ended.err.splitlines()
    assert "the conformance suite needs pytest and hypothesis: pip install " in line
    assert "[conform]'" in line


def test_installed_wheel_describes_the_machine(installed: Callable[..., Child]) -> None:
    found = json.loads(installed("-m", "portagpu", "info", "--json", "-").ok())
    assert found["schema"] == "portagpu.info/1"
    assert {"cpu", "cuda", "rocm"} <= {entry["name"] for entry in found["backends"]}


def test_every_verb_of_the_installed_wheel_explains_itself(
    installed: Callable[..., Child],
) -> None:
    code = """
import sys
from portagpu.cli import main
from portagpu.cli._verbs import VERBS
for verb in VERBS:
    assert main([verb, "--help"]) == 0, verb
"""
    said = installed("-c", code).ok()
    for verb in VERBS:
        assert f"Usage: portagpu {verb} " in said


def test_installed_wheel_has_its_gates_and_cases(installed: Callable[..., Child]) -> None:
    """tests/full runs them."""
    code = """
import sys
from portagpu.cli import main
assert main(["bringup", "--list"]) == main(["bench", "--list"]) == 0
"""
    said = installed("-c", code).ok()
    assert "sustained" in said
    assert "launch/issue" in said

"""The tox environments that are generated from the targets, and the Python that they run in."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from typing import TYPE_CHECKING, Final

import pytest

from tests.conftest import ROOT, Child, run_child
from tests.support.forked_verbs import ForkedVerbs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytest.importorskip("tox")

TOX: Final = "import tox.run\nsys.exit(tox.run.run(sys.argv[1:]))"

SUITES: Final = {
    "conformance": "conform",
    "performance": "bench",
    "bringup": "bringup",
    "compile": "compile",
}
TARGETS: Final = sorted(
    {path.stem for path in (ROOT / "matrix" / "targets").glob("*.toml")} - {"sources"}
)


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkedVerbs]:
    """A process that has tox imported."""
    names = ("tox.run", "tox.session.cmd.run.common", "virtualenv")
    with ForkedVerbs(tmp_path_factory.mktemp("tox"), imports=names) as started:
        yield started


@pytest.fixture
def tox(tmp_path: Path, forks: ForkedVerbs) -> Callable[..., Child]:
    """Run tox with a work folder of its own, and with PORTAGPU_PYTHON as given."""

    def run(*words: str, python: str | None = None, root: Path = ROOT, real: bool = False) -> Child:
        passed = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("TOX_", "PORTAGPU_", "VIRTUALENV_"))
        }
        if python is not None:
            passed["PORTAGPU_PYTHON"] = python
        verb, *rest = words
        place = ["--workdir", str(tmp_path / "work"), "-c", str(root / "tox.ini")]
        words = (verb, "--colored", "no", *place, *rest)
        if real:
            return run_child(root, "-m", "tox", *words, environment=passed)
        return forks(*words, folder=root, environment=passed, body=TOX)

    return run


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A copy of tox's files next to the real targets, which a test may change."""
    root = tmp_path / "small"
    for name in ("tox.ini", "toxfile.py", "constraints.txt"):
        (root / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    shutil.copytree(ROOT / "matrix" / "targets", root / "matrix" / "targets")
    return root


@pytest.fixture
def vendor(tmp_path: Path) -> tuple[str, Path]:
    """A stand-in for a vendor's Python that has all: it records its words and exits with 3."""
    record = tmp_path / "words"
    program = tmp_path / "vendor" / "python"
    program.parent.mkdir()
    program.write_text(
        "#!/bin/sh\n"
        f'case " $* " in *" -m "*) printf "%s\\n" "$@" > {str(record)!r}; exit 3 ;; esac\n',
        "utf-8",
    )
    program.chmod(0o755)
    return str(program), record


def listed(output: str) -> dict[str, str]:
    """Environment name -> description, from what ``tox list`` prints."""
    pairs = (line.split("->", 1) for line in output.splitlines() if "->" in line)
    return {name.strip(): description.strip() for name, description in pairs}


def test_every_target_has_every_suite(tox: Callable[..., Child]) -> None:
    found = listed(tox("list").ok())
    for target in TARGETS:
        for suite in SUITES:
            assert found.get(f"{target}-{suite}"), f"no {target}-{suite}, or no description of it"
    plain = {"lint", "docs", "cpu", "cuda-build", "py311", "py312", "py313"}
    assert len(found) == len(plain) + len(TARGETS) * len(SUITES), sorted(found)


def test_new_target_file_is_all_that_new_environments_need(
    tox: Callable[..., Child], small: Path
) -> None:
    text = (small / "matrix" / "targets" / "cpu-x86-64.toml").read_text("utf-8")
    (small / "matrix" / "targets" / "cpu-new.toml").write_text(text, "utf-8")
    found = listed(tox("list", root=small).ok())
    assert {f"cpu-new-{suite}" for suite in SUITES} <= set(found)


def test_malformed_target_file_stops_no_other_environment(
    tox: Callable[..., Child], small: Path
) -> None:
    (small / "matrix" / "targets" / "broken.toml").write_text("[", "utf-8")
    found = listed(tox("list", root=small).ok())
    assert "cannot be read" in found["broken-conformance"]
    assert "lint" in found


def test_generated_environment_installs_nothing(tox: Callable[..., Child]) -> None:
    keys = ["skip_install", "deps", "commands_pre", "extras"]
    said = tox("config", "-e", "cpu-x86-64-bringup", "-k", *keys).ok()
    settings = dict(line.split("=", 1) for line in said.splitlines() if "=" in line)
    assert {key.strip(): value.strip() for key, value in settings.items()} == {
        "skip_install": "True",
        "deps": "",
        "commands_pre": "",
        "extras": "",
    }


def test_compile_environment_installs_nothing_next_to_a_named_python(
    tox: Callable[..., Child], vendor: tuple[str, Path]
) -> None:
    keys = ["skip_install", "deps", "extras"]
    said = tox("config", "-e", "nvidia-v100-sxm2-compile", "-k", *keys, python=vendor[0]).ok()
    assert "skip_install = True" in said
    assert "nvrtc" not in said


def test_python_that_does_not_exist_is_an_error_line(tox: Callable[..., Child]) -> None:
    ended = tox("run", "-e", "amd-mi300x-bringup", python="no-such-python")
    assert ended.code == 1
    assert "PORTAGPU_PYTHON=no-such-python is not a program" in ended.out


def test_program_that_is_not_python_is_an_error_line(tox: Callable[..., Child]) -> None:
    ended = tox("run", "-e", "amd-mi300x-bringup", python=shutil.which("false"))
    assert ended.code == 1
    assert "is not a Python of version 3.11 or later" in ended.out


def test_python_without_torch_is_an_error_line(tox: Callable[..., Child], tmp_path: Path) -> None:
    venv.create(tmp_path / "bare", symlinks=True)
    ended = tox("run", "-e", "amd-mi300x-bringup", python=str(tmp_path / "bare" / "bin" / "python"))
    assert ended.code == 1
    assert "has no torch; set PORTAGPU_PYTHON to the Python that has your vendor's" in ended.out


def test_python_without_portagpu_says_how_to_get_it(
    tox: Callable[..., Child], tmp_path: Path
) -> None:
    venv.create(tmp_path / "bare", symlinks=True)
    program = tmp_path / "bare" / "bin" / "python"
    (library,) = (tmp_path / "bare").glob("lib/python3*/site-packages")
    (library / "torch.py").write_text("", "utf-8")
    ended = tox("run", "-e", "amd-mi300x-bringup", python=str(program))
    assert ended.code == 1
    assert f"{program} -m pip install -e {ROOT}" in ended.out


def test_without_any_torch_the_error_says_what_to_do(
    tox: Callable[..., Child], small: Path
) -> None:
    path = small / "toxfile.py"
    text = path.read_text("utf-8")
    # whatever this interpreter has: the case is one of an interpreter without torch
    assert 'find_spec("torch")' in text
    path.write_text(text.replace('find_spec("torch")', 'find_spec("no_torch")'), "utf-8")
    ended = tox("run", "-e", "amd-mi300x-bringup", root=small)
    assert ended.code == 1
    assert "there is no Python with torch: set PORTAGPU_PYTHON" in ended.out
    assert "tox run -e cpu --notest" in ended.out


def test_the_jobs_of_the_hardware_workflow_are_the_environments_with_their_vendors_label() -> None:
    words = [sys.executable, str(ROOT / "toxfile.py"), "*", ",".join(SUITES)]
    printed = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    jobs = json.loads(printed)
    assert sorted(each["environment"] for each in jobs) == sorted(
        f"{target}-{suite}" for target in TARGETS for suite in SUITES
    )
    for each in jobs:
        facts = tomllib.loads((ROOT / f"matrix/targets/{each['target']}.toml").read_text("utf-8"))
        assert each["vendor"] == facts["vendor"]
        assert each["environment"].startswith(f"{each['target']}-")


@pytest.mark.parametrize(
    ("words", "said"), [(("nothing*", "bringup"), "no target fits"), (("*", "speed"), "no suite")]
)
def test_a_hardware_workflow_without_jobs_is_one_line(words: tuple[str, str], said: str) -> None:
    ended = subprocess.run(
        [sys.executable, str(ROOT / "toxfile.py"), *words],
        check=False,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert said in line


def test_each_commit_is_linted_with_the_versions_of_the_checks() -> None:
    hooks = (ROOT / ".pre-commit-config.yaml").read_text("utf-8")
    pinned = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    named = re.findall(r'additional_dependencies: \["([^"]+)"\]', hooks)
    assert named
    assert set(named) <= set(pinned)


def test_pip_finds_the_constraints_in_a_folder_with_a_blank(
    tox: Callable[..., Child], small: Path
) -> None:
    """pip splits PIP_CONSTRAINT at blanks, and tox starts it in the folder of tox.ini."""
    folder = small.rename(small.with_name("with a blank"))
    found = tox("config", "-e", "cpu,lint,mi300x-compile", "-k", "set_env", root=folder).out
    given = re.findall(r"PIP_CONSTRAINT=(.*)", found)
    assert len(given) == 3
    assert all((folder / file).is_file() for text in given for file in text.split()), given

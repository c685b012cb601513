"""Running the matrix: what can run here, in which order, and what is run again."""

from __future__ import annotations

import contextlib
import functools
import json
import os
from pathlib import Path

import pytest

from portagpu.base.installation import stated_gates
from portagpu.base.paths import matrix_dir
from portagpu.cli import main
from portagpu.facts.targets import load_target
from portagpu.reports.bundles.check import stated_areas, stated_names
from portagpu.reports.proofs import run as matrix_run
from portagpu.reports.proofs.run import (
    CannotRun,
    Environment,
    Here,
    UnknownMachine,
    reachable,
    run_environments,
    why_again,
)
from portagpu.runs.results.run import Result, Verdict, new_run
from portagpu.train.kernels.cpp.sources import KERNELS
from tests.conftest import ROOT
from tests.support.forked_verbs import VERB, ForkedVerbs

pytest.importorskip("tox")
if matrix_dir() != ROOT / "matrix":
    pytest.skip("the matrix runs from a checkout", allow_module_level=True)

STAND_IN = """\
#!/bin/sh
case " $* " in
*" info "*) cat '{info}'; exit 0 ;;
*" -m "*) ;;
*) exit 0 ;;
esac
while [ "$1" != portagpu ]; do shift; done
verb=$2 command='"portagpu"' place= target=
shift
while [ $# -gt 0 ]; do
    case "$1" in
    --target) target=$2 ;;
    --json) place=$2 ;;
    esac
    command="$command, \\"$1\\""
    shift
done
name="$target $verb"
echo "begin $name" >> '{log}'
echo "said by $name"
case "$STUCK" in *"$name"*) exec sleep 600 ;; esac
sleep 0.3
case "$BROKEN" in
*"$name"*) ;;
*)
    mkdir -p "${{place%/*}}"
    sed -e "s|@COMMAND@|$command|" -e "s|@TARGET@|$target|" '{results}'/"$verb".json > "$place"
    ;;
esac
echo "end $name" >> '{log}'
"""
"""A Python with everything, which stands for the verbs: it writes a run that passed."""

TOX = """\
#!/bin/sh
while [ "$1" != -e ]; do shift; done
name=$2
case " $* " in *" --notest "*) exit 0 ;; esac
while [ "$1" != -- ]; do shift; done
shift
case "$name" in
*-conformance) verb=conform; set -- --seed 0 "$@" ;;
*-performance) verb=bench ;;
*) verb=${name##*-} ;;
esac
exec "$PORTAGPU_PYTHON" -P -m portagpu $verb --target "${name%-*}" "$@"
"""
"""A tox that only starts what the environment runs: the real one takes half a second of a CPU."""


def names_of(suite: str) -> list[str]:
    return [name for area in stated_areas(suite) for name in stated_names(suite, area)]


@functools.cache
def whole() -> dict[str, tuple[str, list[str]]]:
    """Verb -> its suite, and results of all that the suite has."""
    # a child process lists the cases
    return {
        "compile": ("compile", [f"kernels/{name}" for name in KERNELS]),
        "conform": ("conformance", names_of("conformance")),
        "bench": ("performance", names_of("performance")),
        "bringup": ("bringup", [f"{gate}/x" for gate in stated_gates()]),
    }


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the stand-in did: a line when an environment begins, and one when it ends."""
    for verb, (suite, ids) in whole().items():
        run = new_run(target="cpu-x86-64", backend="cpu", versions={"torch": "2.9", "driver": None})
        for name in sorted(ids):
            area = name.partition("/")[0]
            run.add(Result(id=name, suite=suite, area=area, verdict=Verdict.PASS))
        document = run.finish().to_json()
        document["run"] |= {"command": ["@COMMAND@"], "target": "@TARGET@"}
        template = tmp_path / "passed" / f"{verb}.json"
        template.parent.mkdir(exist_ok=True)
        template.write_text(json.dumps(document).replace('"@COMMAND@"', "@COMMAND@"))
    info = {
        "devices": [{"name": "CPU", "uuid": None, "driver_version": None}],
        "torch": {"version": "2.9"},
    }
    (tmp_path / "info.json").write_text(json.dumps(info))
    place = tmp_path / "log"
    program = tmp_path / "bin" / "python"
    program.parent.mkdir()
    program.write_text(
        STAND_IN.format(
            log=str(place),
            results=str(tmp_path / "passed"),
            info=str(tmp_path / "info.json"),
        )
    )
    program.chmod(0o755)
    monkeypatch.setenv("PORTAGPU_PYTHON", str(program))
    monkeypatch.setenv("TOX_WORK_DIR", str(tmp_path / "tox"))
    return place


@pytest.fixture
def without_tox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The program that stands for tox."""
    program = tmp_path / "tox.sh"
    program.write_text(TOX)
    program.chmod(0o755)
    monkeypatch.setattr(matrix_run, "python_command", lambda *words: [str(program), *words])
    return str(program)


def run(folder: Path, *names: str, jobs: int = 2, again: bool = False) -> dict[str, str]:
    """The verdict of each environment, and "kept" after those of an earlier call."""
    environments = [
        Environment(load_target(t), s) for t, _, s in (n.rpartition("-") for n in names)
    ]
    reported: list[str] = []
    outcomes = run_environments(
        environments,
        folder,
        jobs=jobs,
        again=again,
        on_outcome=lambda each: reported.append(each.environment.name),
    )
    assert reported == [each.environment.name for each in outcomes]
    return {e.environment.name: f"{e.verdict}{' kept' if e.kept else ''}" for e in outcomes}


def test_this_machine_reaches_machine_code_of_gpus_and_its_own_devices() -> None:
    names = [
        each.name
        for each in reachable(
            [load_target("nvidia-t4"), load_target("cpu-aarch64"), load_target("cpu-x86-64")],
            matrix_run.SUITES,
        )
    ]
    here = {"x86_64": "cpu-x86-64", "aarch64": "cpu-aarch64"}[os.uname().machine]
    suites = ("conformance", "performance", "bringup")
    assert names == ["nvidia-t4-compile", *(f"{here}-{suite}" for suite in suites)]


@pytest.mark.usefixtures("without_tox")
def test_measures_run_alone(log: Path, tmp_path: Path) -> None:
    run(
        tmp_path / "out",
        "cpu-x86-64-performance",
        "nvidia-t4-compile",
        "cpu-x86-64-conformance",
        "cpu-x86-64-bringup",
        jobs=4,
    )
    lines = log.read_text().splitlines()
    for name in ("cpu-x86-64 bench", "cpu-x86-64 bringup"):
        began = lines.index(f"begin {name}")
        assert lines[began + 1] == f"end {name}", lines
        before = lines[:began]
        assert sum(each.startswith("begin") for each in before) == len(before) / 2


@pytest.mark.processes(9, "each environment is one")
@pytest.mark.usefixtures("without_tox")
def test_what_ended_is_kept_and_the_rest_goes_on(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "out"
    monkeypatch.setenv("BROKEN", "nvidia-t4 compile")
    first = run(folder, "nvidia-t4-compile", "cpu-x86-64-conformance")
    assert first == {"nvidia-t4-compile": "ERROR", "cpu-x86-64-conformance": "PASS"}
    monkeypatch.delenv("BROKEN")
    second = run(folder, "nvidia-t4-compile", "cpu-x86-64-conformance")
    assert second == {"nvidia-t4-compile": "PASS", "cpu-x86-64-conformance": "PASS kept"}
    third = run(folder, "nvidia-t4-compile", "cpu-x86-64-conformance", again=True)
    assert third == {"nvidia-t4-compile": "PASS", "cpu-x86-64-conformance": "PASS"}


def test_another_driver_is_not_kept_and_an_unknown_machine_neither() -> None:
    made = new_run(
        ["portagpu", "bringup", "--target", "t"], target="t", versions={"driver": "550.1"}
    )
    for gate in stated_gates():
        made.add(Result(id=f"{gate}/x", suite="bringup", area=gate, verdict=Verdict.PASS))

    def reason(drivers: frozenset[str]) -> str:
        return why_again(made, "t", "bringup", (), lambda: Here("h", (), (), None, drivers))

    assert reason(frozenset({"550.1"})) == ""
    assert reason(frozenset({"560"})) == "it is of the driver 550.1, and 560 is here"

    def unknown() -> Here:
        raise UnknownMachine("no Python with torch was found")

    assert why_again(made, "t", "bringup", (), unknown) == "no Python with torch was found"


@pytest.mark.usefixtures("without_tox")
@pytest.mark.parametrize("change", ["interrupted", "cut"])
def test_what_did_not_end_runs_again(
    change: str, log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    words = ["--target", "cpu-x86-64", "--suite", "conformance", "--out", str(folder)]
    if os.uname().machine != "x86_64":
        pytest.skip("the target is an x86-64")
    assert main(["matrix", "run", *words]) == 0
    assert main(["matrix", "run", *words]) == 0
    assert "kept" in capsys.readouterr().out
    place = folder / "cpu-x86-64-conformance.json"
    document = json.loads(place.read_text())
    if change == "interrupted":
        document["run"]["interrupted"] = True
        document["verdict"] = "INCONCLUSIVE"
    text = json.dumps(document)
    place.write_text(text[:-20] if change == "cut" else text)
    assert main(["matrix", "run", *words]) == 0
    out = capsys.readouterr().out
    reason = "it was interrupted" if change == "interrupted" else "its file cannot be used: is not"
    assert f"cpu-x86-64-conformance runs again: {reason}" in out
    assert "kept" not in out


def words_of_two(out: Path, jobs: int) -> list[str]:
    """Those of the verb with two environments."""
    targets = ["--target", "nvidia-t4", "--target", "nvidia-l4"]
    return [
        "matrix", "run", *targets, "--suite", "compile", "--jobs", str(jobs), "--out", str(out)
    ]  # fmt: skip


def check_nothing_left(folder: Path) -> None:
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            assert str(folder / "bin").encode() not in each.read_bytes(), "a process is left"


def test_a_log_that_cannot_be_written_ends_what_runs(
    log: Path, without_tox: str, tmp_path: Path, verbs: ForkedVerbs
) -> None:
    (tmp_path / "out" / "nvidia-l4-compile.log").mkdir(parents=True)
    patch = f"""
import portagpu.reports.proofs.run
portagpu.reports.proofs.run.python_command = lambda *words: [{without_tox!r}, *words]
"""
    ended = verbs(
        *words_of_two(tmp_path / "out", 2),
        folder=ROOT,
        environment={**os.environ, "STUCK": "nvidia-t4 compile"},
        body=f"{patch}{VERB}",
    )
    assert (ended.code, ended.err.count("\n")) == (1, 1)
    assert "nvidia-l4-compile.log: Is a directory" in ended.err
    assert "begin nvidia-t4" in log.read_text()
    check_nothing_left(tmp_path)


@pytest.mark.parametrize("folder", ["/proc/none", "out"])
def test_a_folder_that_cannot_be_written_is_reported_before_anything_runs(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], folder: str
) -> None:
    (tmp_path / "out" / "nvidia-t4-compile.json").mkdir(parents=True)
    words = ["--target", "nvidia-t4", "--suite", "compile", "--out", str(tmp_path / folder)]
    assert main(["matrix", "run", *words]) == 2
    said = capsys.readouterr().err
    assert (said.count("\n"), "cannot write" in said) == (1, True)
    assert not log.exists()


def test_a_target_that_is_named_twice_runs_once(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--target", "nvidia-t4", "--target", "nvidia-t4", "--suite", "compile", "--list"]
    assert main(["matrix", "run", *words]) == 0
    assert capsys.readouterr().out == "nvidia-t4-compile\n"


def test_an_installed_wheel_cannot_run_the_matrix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matrix_run, "matrix_dir", lambda: tmp_path / "_matrix")
    with pytest.raises(CannotRun, match="runs from a checkout"):
        run(tmp_path / "out", "nvidia-t4-compile")


def test_nothing_to_run_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["matrix", "run", "--target", "nvidia-t4", "--suite", "bringup"]) == 2
    assert "this machine can run none of these" in capsys.readouterr().err

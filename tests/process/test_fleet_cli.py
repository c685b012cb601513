"""``portagpu fleet run``, ``status``, ``resume`` and ``scripts`` without a cluster.

Small programs stand for Slurm's clients, so that it can be missing, old, slow, or answer anything.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from portagpu import cli
from portagpu.base.patience import Limits
from portagpu.reports.fleet import run as fleet_run
from portagpu.reports.fleet import slurm
from portagpu.reports.fleet.record import FleetRecord, Step, StepState, read_record, write_record
from portagpu.reports.fleet.request import (
    FleetOptions,
    came_to_its_end,
    collected,
    joint_steps,
    last_line,
    pair_rounds,
)
from portagpu.reports.fleet.run import FleetProgress
from tests.support.result_samples import passing

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Writes a client of Slurm in shell; there are no others."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    for name in ("sinfo", "squeue", "sbatch", "scontrol", "scancel"):
        path = folder / name
        path.write_text("#!/bin/sh\necho 'no such question' >&2\nexit 1\n")
        path.chmod(0o755)

    def write(name: str, script: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")

    return write


SINFO = """case "$*" in
*-V*) echo "slurm 23.11.4" ;;
*%R) echo main; echo spare ;;
*%P) echo "main*"; echo spare ;;
*) printf 'n1|idle|main|gpu:x:8(S:0-1)|none\\nn1|idle|spare|gpu:x:8|none\\n'
   printf 'n2|drained|main|gpu:x:8|disk a|b\\n' ;;
esac"""


def portagpu(*words: object, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = cli.main([str(word) for word in words])
    said = capsys.readouterr()
    return code, said.out, said.err


def fleet(*words: object, out: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    return portagpu("fleet", "run", "bringup", "--nodes", "n1", "--out", out, *words, capsys=capsys)


def test_no_slurm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    code, out, err = fleet(out=tmp_path / "f", capsys=capsys)
    assert (code, out) == (3, "")
    assert err.startswith(
        "portagpu: sinfo is not installed here: run this on a machine with Slurm's cl"
    )
    assert err.endswith("for nodes without Slurm name them with --ssh, or try --local 2 here\n")
    assert err.count("\n") == 1
    assert not (tmp_path / "f").exists()


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("echo slurm 17.11.2", "this is Slurm 17.11.2, and portagpu fleet needs 20.02 or newer"),
        ("echo hello", "sinfo does not report its version: hello"),
        ("exit 0", "sinfo does not report its version: nothing"),
        (
            "echo 'sinfo: error: Unable to contact slurm controller' >&2; exit 1",
            "sinfo: Unable to contact slurm controller",
        ),
        ("printf 'sinfo: error: \\033[31mbad\\n' >&2; exit 1", "sinfo: [31mbad"),
        ("kill -9 $$", "sinfo: status -9"),
    ],
)
def test_a_slurm_that_cannot_be_used(
    said: str,
    message: str,
    client: Callable[[str, str], None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    client("sinfo", said)
    code, out, err = fleet(out=tmp_path / "f", capsys=capsys)
    # as with every verb: what was not looked at is not judged
    otherwise = "for nodes without Slurm name them with --ssh, or try --local 2 here"
    assert (code, out, err) == (3, "", f"portagpu: {message}; {otherwise}\n")
    assert not (tmp_path / "f").exists()


def test_a_client_that_hangs_is_ended(
    client: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    client("sinfo", "sleep 60")
    monkeypatch.setattr(
        slurm, "LIMITS", Limits(scheduler_s=0.2)
    )  # allowed: what it limits never ends
    with pytest.raises(
        slurm.SlurmError, match=r"sinfo did not answer within 0.2 s.*: is slurmctld"
    ):
        slurm.version()


def test_nodes_as_sinfo_prints_them(client: Callable[[str, str], None]) -> None:
    client("sinfo", SINFO)
    nodes = slurm.nodes()
    assert nodes["n1"].partitions == {"main", "spare"}
    assert nodes["n1"].gpus == "gpu:x:8"
    assert nodes["n1"].usable
    assert (nodes["n2"].usable, nodes["n2"].reason) == (False, "disk a|b")
    assert slurm.version() == "23.11.4"
    assert slurm.default_partition() == "main"


@pytest.mark.parametrize("answer", ["n1|idle", "", "slurm_load_node error|||"])
def test_an_answer_in_another_form_is_an_error(
    answer: str, client: Callable[[str, str], None]
) -> None:
    client("sinfo", f"echo '{answer}'")
    with pytest.raises(slurm.SlurmError, match=r"unknown form"):
        slurm.nodes()


def test_variables_that_would_change_the_question_are_left_out(
    client: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SQUEUE_PARTITION", "SINFO_FORMAT", "SLURM_JOB_ID", "SBATCH_ARRAY_INX"):
        monkeypatch.setenv(name, "other")
    monkeypatch.setenv("SLURM_CONF", "/ours")
    monkeypatch.setenv("SBATCH_ACCOUNT", "kept")
    client(
        "squeue", "env | grep -E 'SLURM|SQUEUE|SBATCH|SINFO|PORTAGPU_PROCESS' | sort >&2; exit 1"
    )
    with pytest.raises(slurm.SlurmError, match=r"squeue: SLURM_CONF=/ours$"):
        slurm.jobs("x")
    client("squeue", "env | grep -c -E 'SQUEUE|SINFO|SLURM_JOB|ARRAY|PORTAGPU_PROCESS' >&2; exit 1")
    with pytest.raises(slurm.SlurmError, match=r"squeue: 0$"):
        slurm.jobs("x")


@pytest.mark.parametrize(
    "names", ["", "a b", "$(x)", "-w", "a;b", "a/b", "../x", "a\nb", "a'b", 'a"b', "ä", "[1-2]x"]
)
def test_names_that_are_not_nodes(names: str, client: Callable[[str, str], None]) -> None:
    client("scontrol", 'for each; do :; done; echo "$each"')
    with pytest.raises(slurm.UnknownNodes, match=r"is not a list of nodes"):
        slurm.expand(names)


def test_a_full_folder_is_one_line(
    client: Callable[[str, str], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    client("sinfo", SINFO)
    client("scontrol", "echo n1")
    client("squeue", "exit 0")
    (tmp_path / "file").touch()
    code, _, err = fleet(out=tmp_path / "file/f", capsys=capsys)
    assert code == 1
    assert err.startswith(f"portagpu: cannot write into {tmp_path}/file/f: Not a directory")
    assert err.count("\n") == 1


def test_sbatch_that_refuses_is_one_line_and_leaves_a_record(
    client: Callable[[str, str], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    client("sinfo", SINFO)
    client("scontrol", "echo n1")
    client("squeue", "exit 0")
    client(
        "sbatch",
        "echo 'sbatch: error: Batch job submission failed: I/O error writing script/environment "
        "to file' >&2; exit 1",
    )
    code, _, err = fleet(out=tmp_path / "f", capsys=capsys)
    assert code == 1
    assert err == (
        "portagpu: sbatch: Batch job submission failed: I/O error writing script/environment to "
        "file\n"
    )
    assert [step.state for step in read_record(tmp_path / "f").steps] == [StepState.WAITING]


@pytest.mark.processes(60, "the verb runs for each damage")
def test_a_damaged_record_is_one_line(
    client: Callable[[str, str], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    client("sinfo", SINFO)
    client("scontrol", "echo n1")
    good = {"state": "done", "verdict": "PASS", "result": "n1/result.json"}
    steps = [
        [good, good],
        [good | {"nodes": ["n2"]}],
        [good | {"nodes": []}],
        [good | {"verdict": "BANANA"}],
        [good | {"verdict": None}],
        [good | {"result": None}],
        [good | {"result": "a\0b"}],
        [good | {"action": "explode"}],
    ]
    damaged = [
        json.dumps(
            {
                "schema": "portagpu.fleet/1", "id": "x", "what": "bringup", "nodes": ["n1"],
                "started": "2026-11-24T02:00:00Z",
                "steps": [{"id": "n1", "nodes": ["n1"], **step} for step in each],
            }
        )
        for each in steps
    ]  # fmt: skip
    for text in ("", "[]", "{", '{"schema": "portagpu.fleet/9"}', *damaged):
        (tmp_path / "fleet.json").write_text(text)
        for words in (
            ("run", "bringup", "--nodes", "n1", "--out", tmp_path),
            ("status", tmp_path),
            ("resume", tmp_path),
        ):
            code, out, err = portagpu("fleet", *words, capsys=capsys)
            assert (code, out) == (1, "")
            assert str(tmp_path / "fleet.json") in err
            assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--program", "'"], '--program "\'" is not a command: No closing quotation'),
        (["--program", " "], "--program is empty"),
        (["--at-once", "0"], "0 is not in the range"),
        (["--poll", "nan"], "nan is not a finite number"),
        (["--partition", "nope"], "no partition 'nope'; there are: main, spare"),
    ],
)
def test_wrong_options(
    words: list[str],
    message: str,
    client: Callable[[str, str], None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    client("sinfo", SINFO)
    client("scontrol", "echo n1")
    code, _, err = fleet(*words, out=tmp_path / "f", capsys=capsys)
    assert code == 2
    assert message in err


def options(folder: Path, **others: object) -> FleetOptions:
    fields = {
        "what": "bringup", "nodes": "n1", "folder": folder, "program": ["portagpu"],
        "settle_s": 5.0, "poll_s": 0.01, **others,
    }  # fmt: skip
    return FleetOptions(**fields)  # type: ignore[arg-type]


@pytest.mark.processes(16, "each command of Slurm is one")
def test_a_result_that_appears_late_is_waited_for(
    client: Callable[[str, str], None], tmp_path: Path
) -> None:
    """The folder's own copy of what the node wrote comes seconds after the job's end."""
    client("sinfo", SINFO)
    client("scontrol", "echo n1")
    client("sbatch", "echo 7")
    asked, folder = tmp_path / "asked", tmp_path / "f"
    client(
        "squeue",
        f"echo x >> {asked}; echo '7|COMPLETED|n1|None'; "
        f"[ $(wc -l < {asked}) -lt 6 ] || echo 7 0 > {folder}/n1/ended",
    )

    class Late(FleetProgress):
        def changed(self, step: Step, record: FleetRecord) -> None:
            if step.state is StepState.SUBMITTED:
                # an older job's end and result are not this job's
                (folder / "n1/ended").write_text("6 0\n")
                passing().write_json(folder / "n1/result.json")

    record = fleet_run.run(options(folder), Late()).record
    assert record.steps[0].verdict == "PASS"
    assert len(asked.read_text().split()) == 6


@pytest.mark.processes(16, "each command of Slurm is one")
def test_slurm_that_is_away_is_waited_for(
    client: Callable[[str, str], None], tmp_path: Path
) -> None:
    client("sinfo", SINFO)
    client("scontrol", "echo n1")
    client("sbatch", "echo 7")
    times = tmp_path / "times"
    client(
        "squeue",
        f"echo x >> {times}; [ $(wc -l < {times}) -gt 4 ] || [ $(wc -l < {times}) -lt 2 ] || "
        "{ echo 'squeue: error: Unable to contact slurm controller' >&2; exit 1; }; "
        f"[ $(wc -l < {times}) -lt 2 ] || echo '7|CANCELLED|n1|None'",
    )
    notes: list[str] = []

    class Heard(FleetProgress):
        def note(self, text: str) -> None:
            notes.append(text)

    record = fleet_run.run(options(tmp_path / "f"), Heard()).record
    assert notes == ["squeue: Unable to contact slurm controller; waiting for Slurm"]
    assert record.steps[0].reason == "Slurm ended the job: CANCELLED"
    # and given up at the limit, with the record as it was
    client("squeue", "echo 'squeue: error: away' >&2; exit 1")
    with pytest.raises(slurm.SlurmError, match="away"):
        fleet_run.run(options(tmp_path / "f", answer_limit_s=0.1))


@pytest.mark.processes(9, "each command of Slurm is one")
def test_nodes_of_several_targets_and_versions_are_reported(
    client: Callable[[str, str], None], tmp_path: Path
) -> None:
    """Slurm says "gpu:8" of both, so that only the results show that the nodes differ."""
    client("sinfo", SINFO.replace("n2|drained", "n2|idle"))
    client("scontrol", "echo n1; echo n2")
    for name, target, version in (("n1", "cpu-x86-64", "0.1.0"), ("n2", "cpu-aarch64", "0.2.0")):
        run = passing()
        run.info = replace(
            run.info, id=name, target=target, versions={**run.info.versions, "portagpu": version}
        )
        run.write_json(tmp_path / f"{name}.json")
    client(
        "sbatch",
        "for word; do case $word in --comment=*) node=${word#*=} ;; esac; done; "
        f"cp {tmp_path}/$node.json {tmp_path}/f/$node/result.json; "
        f"echo ${{node#n}} 0 > {tmp_path}/f/$node/ended; echo ${{node#n}}",
    )
    client("squeue", "echo '1|COMPLETED|n1|None'; echo '2|COMPLETED|n2|None'")
    notes: list[str] = []

    class Heard(FleetProgress):
        def note(self, text: str) -> None:
            notes.append(text)

    record = fleet_run.run(options(tmp_path / "f", nodes="n1,n2"), Heard()).record
    assert [step.verdict for step in record.steps] == ["PASS", "PASS"]
    assert notes == [
        "n2 has target cpu-aarch64, and n1 cpu-x86-64: compare them with care",
        "n2 has portagpu 0.2.0, and n1 0.1.0: compare them with care",
    ]


def a_record(folder: Path, *steps: Step) -> None:
    nodes = tuple(name for step in steps for name in step.nodes)
    record = FleetRecord(
        id="x", what="bringup", arguments=("--quick",), started="2026-11-24T02:00:00Z",
        nodes=nodes, steps=steps, drained={"b": "portagpu fleet x: isolate: links"},
    )  # fmt: skip
    write_record(folder, record)


def test_status_states_the_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a_record(
        tmp_path,
        Step(
            id="a", nodes=("a",), state=StepState.DONE, verdict="PASS", result="a/result.json"
        ),
        Step(
            id="b", nodes=("b",), state=StepState.DONE, verdict="FAIL", gate="links",
            reason="links/active on gpu:3: 17 of 18 links are up", action="isolate",
            result="b/result.json",
        ),
        Step(id="c", nodes=("c",), state=StepState.LOST, reason="Slurm ended the job: NODE_FAIL"),
        Step(id="d", nodes=("d",), state=StepState.RUNNING),
    )  # fmt: skip
    target = tmp_path / "status.json"
    code, out, _ = portagpu("fleet", "status", tmp_path, "--json", target, capsys=capsys)
    assert code == 1
    counts = "2 of 4 steps done (1 PASS, 1 FAIL), 1 running, 1 lost"
    assert out.splitlines() == [
        "bringup --quick on 4 nodes, begun 2026-11-24T02:00:00Z",
        "",
        "b  FAIL  gate links: links/active on gpu:3: 17 of 18 links are up; action: isolate",
        "c  LOST  Slurm ended the job: NODE_FAIL",
        "",
        f"FAIL: {counts}; results are in {tmp_path}; repeat the command to go on with the others",
    ]
    assert json.loads(target.read_text())["steps"][1]["action"] == "isolate"


def test_too_few_nodes_to_find_a_slow_one_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for count, reported in ((4, True), (5, False)):
        names = tuple(f"n{number}" for number in range(count))
        record = FleetRecord(
            id="x", what="collectives", started="2026-11-24T02:00:00Z", nodes=names,
            steps=joint_steps(names, 4),
        )  # fmt: skip
        write_record(tmp_path, record)
        _, out, _ = portagpu("fleet", "status", tmp_path, capsys=capsys)
        assert ("4 nodes: too few to find a slow node or link" in out) is reported


def test_resume_without_slurm_leaves_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    a_record(tmp_path, Step(id="b", nodes=("b",)))
    monkeypatch.setenv("PATH", "/nowhere")
    assert portagpu("fleet", "resume", tmp_path, capsys=capsys)[0] == 3
    assert read_record(tmp_path).drained


@pytest.mark.parametrize("state", ["down", "down*", "idle", "drained*", "maint"])
def test_resume_leaves_a_node_that_is_not_just_drained(
    state: str,
    client: Callable[[str, str], None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    a_record(tmp_path, Step(id="b", nodes=("b",)))
    reason = read_record(tmp_path).drained["b"]
    client(
        "sinfo", f'case "$*" in *-V*) echo slurm 23.02.1 ;; *) echo "b|{state}|m||{reason}" ;; esac'
    )
    client("scontrol", "touch " + str(tmp_path / "called"))
    code, out, _ = portagpu("fleet", "resume", tmp_path, capsys=capsys)
    assert code == 1
    assert out.startswith("b  left alone: ")
    assert not (tmp_path / "called").exists()


@pytest.mark.parametrize(
    "text",
    [
        "links: 3 of 8",
        "a\nb\tc",
        "\x1b[31mred",
        "say \"no\" 'now' `x` a|b\\c",
        "ä€",
        "x" * 4000,
        "x " * 4000,
    ],
)
def test_a_reason_is_one_that_slurm_gives_back(text: str) -> None:
    made = slurm.reason_text(text)
    assert made.isascii()
    assert made.isprintable()
    assert made == made.strip()
    assert not set(made) & set("\"'`|\\")
    assert len(made) <= 180


@pytest.mark.parametrize("count", range(2, 18))
def test_in_all_rounds_every_two_nodes_meet_once(count: int) -> None:
    names = [f"n{number:02}" for number in range(count)]
    rounds = pair_rounds(names)
    met = [frozenset(pair) for pairs in rounds for pair in pairs]
    assert len(met) == len(set(met)) == count * (count - 1) // 2
    for pairs in rounds:
        together = [name for pair in pairs for name in pair]
        assert len(together) == len(set(together)) == count - count % 2
    steps = joint_steps(names, 3, 4)
    assert len({step.id for step in steps}) == len(steps)
    assert all(len(step.nodes) in (2, 4) for step in steps)


def test_a_command_that_was_killed_after_its_result_is_not_a_pass(tmp_path: Path) -> None:
    (tmp_path / "n1").mkdir()
    step = Step(id="n1", nodes=("n1",), job="7")
    passing().write_json(tmp_path / "n1" / "result.json")
    for code, state in ((0, StepState.DONE), (139, StepState.LOST)):
        (tmp_path / "n1" / "ended").write_text(f"7 {code}\n")
        found, _ = collected(tmp_path / "n1", step)
        assert found.state is state
    assert found.reason == "signal 11 ended the command after it wrote a result without a failure"


@pytest.mark.parametrize(("code", "reported"), [(1, True), (130, False)])
def test_a_result_that_was_cut_short_is_reported_with_the_end_of_the_log(
    code: int, reported: bool, tmp_path: Path
) -> None:
    """A full disk stops the command in the middle: the result alone does not say so."""
    step = Step(id="n1", nodes=("n1",), job="7")
    passing().finish(interrupted=True).write_json(tmp_path / "result.json")
    (tmp_path / "ended").write_text(f"7 {code}\n")
    (tmp_path / "job.log").write_text("portagpu: cannot write x: No space left on device\n")
    found, _ = collected(tmp_path, step)
    assert found.state is StepState.LOST
    assert found.reason.startswith("the command was stopped before its end: ")
    assert ("the log ends: cannot write x: No space left on device" in found.reason) is reported


def test_an_end_of_another_job_is_none(tmp_path: Path) -> None:
    for text, job, ended in (("7 0\n", "7", True), ("6 0\n", "7", False), ("", "7", False)):
        (tmp_path / "ended").write_text(text)
        assert came_to_its_end(tmp_path, job) is ended
    assert not came_to_its_end(tmp_path / "nowhere", "7")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ""),
        ("\n\n", ""),
        ("one\ntwo\n\n", "two"),
        ("portagpu: rank 1 did not come\nsrun: error: n1: task 0: Exited\n", "rank 1 did not come"),
        ("x" * 9000 + "\nportagpu: \x1b[31mlast\n", "[31mlast"),
    ],
)
def test_the_reason_in_a_log(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(text)
    assert last_line(tmp_path / "job.log") == said
    assert last_line(tmp_path / "nowhere") == ""


@pytest.mark.processes(13, "each command of Slurm is one")
def test_the_history_has_the_results(
    client: Callable[[str, str], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("alembic", "numpy", "sqlalchemy"):
        pytest.importorskip(name)
    client("sinfo", SINFO)
    client("scontrol", "echo n1")
    folder = tmp_path / "f"
    passing().write_json(tmp_path / "made.json")
    client(
        "sbatch",
        f"cp {tmp_path}/made.json {folder}/n1/result.json; echo 7 0 > {folder}/n1/ended; echo 7",
    )
    client("squeue", "[ -e " + str(folder / "n1/ended") + " ] && echo '7|COMPLETED|n1|None'; :")
    words = ("--poll", "0.1", "--history", tmp_path / "h.db")
    for _ in range(2):
        code, out, err = fleet(*words, out=folder, capsys=capsys)
        assert (code, err) == (0, "")
    assert out.splitlines()[-2].startswith("PASS: 1 of 1 step done (1 PASS)")
    code, out, _ = portagpu(
        "matrix", "history", "runs", "--store", tmp_path / "h.db", capsys=capsys
    )
    assert code == 0
    assert out.count(passing().info.id) == 1


def test_scripts_are_written_with_their_instructions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "s p"
    words = ("--out", folder, "--program", "'/opt/a b/portagpu'", "--expect-devices", 8)
    code, out, _ = portagpu("fleet", "scripts", *words, capsys=capsys)
    assert code == 0
    names = ["prolog.sh", "epilog.sh", "healthcheck.sh", "README.txt"]
    assert out.splitlines() == [f"wrote {folder}/{name}" for name in names]
    text = (folder / "prolog.sh").read_text()
    assert "'/opt/a b/portagpu' health --gate prolog --expect-devices 8" in text
    assert os.access(folder / "epilog.sh", os.X_OK)
    code, _, err = portagpu(
        "fleet", "scripts", "--out", folder, "--target", "nvidia-h10", capsys=capsys
    )
    assert code == 2
    assert "nvidia-h100" in err

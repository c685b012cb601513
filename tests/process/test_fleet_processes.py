"""``portagpu fleet run --ssh``, ``--local`` and ``--kubernetes``: fleets without Slurm.

A program in sh stands for ssh. It answers as OpenSSH's client does for nodes that are away, that
refuse, or whose key is another one; ``tests/full/test_fleet_processes.py`` has a real sshd.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from portagpu import cli
from portagpu.base.errors import MissingDependency
from portagpu.cli._fleet_text import closing_lines, step_line
from portagpu.reports.fleet import run as fleet_run
from portagpu.reports.fleet.processes import ON_NODE, nodes_of
from portagpu.reports.fleet.record import FleetRecord, Step, StepState, read_record
from portagpu.reports.fleet.request import FleetOptions
from portagpu.reports.fleet.run import FleetProgress
from portagpu.reports.fleet.slurm import UnknownNodes
from tests.support.history_samples import run
from tests.support.result_samples import gate, passing
from tests.support.waits import wait_until

if TYPE_CHECKING:
    from pathlib import Path


SSH = r"""#!/bin/sh
while [ "$1" != -- ]; do shift; done
NODE=$2; export NODE
case $NODE in
gone*) echo "ssh: connect to host $NODE port 22: Connection timed out" >&2; exit 255 ;;
other*) echo "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @" >&2
  echo "Host key for $NODE has changed and you have requested strict checking." >&2
  echo "Host key verification failed." >&2; exit 255 ;;
jump[12]) echo "ssh: the jump host" >&2
  case $NODE in
  jump1) echo "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @
Host key for [10.0.0.1]:2222 has changed and you have requested strict checking." ;;
  jump2) echo "me@10.0.0.1: Permission denied (publickey)." ;;
  esac >&2
  echo "kex_exchange_identification: Connection closed by remote host
Connection closed by UNKNOWN port 65535" >&2; exit 255 ;;
jump3) echo "channel 0: open failed: administratively prohibited: open failed
stdio forwarding failed
kex_exchange_identification: Connection closed by remote host
Connection closed by UNKNOWN port 65535" >&2; exit 255 ;;
jump4) echo "channel 0: open failed: connect failed: Connection refused
stdio forwarding failed
Connection closed by UNKNOWN port 65535" >&2; exit 255 ;;
jump5) echo "Connection timed out during banner exchange
Connection to UNKNOWN port 65535 timed out" >&2; exit 255 ;;
cut*) echo "Connection to 10.0.0.9 closed by remote host." >&2; exit 255 ;;
silent*) echo "Connection timed out during banner exchange
Connection to 10.0.0.9 port 22 timed out" >&2; exit 255 ;;
full*) echo "kex_exchange_identification: read: Connection reset by peer
Connection reset by 10.0.0.9 port 22" >&2; exit 255 ;;
closed*) echo "me@$NODE: Permission denied (publickey)." >&2; exit 255 ;;
nobody*) echo "ssh: Could not resolve hostname $NODE: Name or service not known" >&2; exit 255 ;;
deaf*) echo "ssh: connect to host $NODE port 22: Connection refused" >&2; exit 255 ;;
esac
exec sh -c "$3"
"""
NODE = r"""#!/bin/sh
# stands for portagpu on a node: bringup [WORD...] --json -, or --out FOLDER
echo "$@" > "$PLACE/words-$NODE$$"
for each in "$@"; do out=$each; done
case $* in *wait*)
  echo $$ > "$PLACE/pid-$NODE.new" && mv "$PLACE/pid-$NODE.new" "$PLACE/pid-$NODE"
  while :; do read line < "$PLACE/never"; done ;;
esac
echo "a line for people" >&2
[ "$out" = - ] && exec cat "$PLACE/result.json"
sed "s/a-result/$(basename "$out")/" "$PLACE/result.json" > "$out/result.json"
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the two programs, and with the result of each node."""
    for name, text in (("ssh", SSH), ("node", NODE)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    os.mkfifo(tmp_path / "never")
    run = passing()
    run.info = replace(run.info, id="a-result")
    (tmp_path / "result.json").write_text(run.to_text())
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("PLACE", str(tmp_path))
    monkeypatch.setenv("NODE", "here")
    return tmp_path


def options(place: Path, **others: Any) -> FleetOptions:
    asked: dict[str, Any] = {
        "what": "bringup",
        "folder": place / "fleet",
        "program": [str(place / "node")],
        "poll_s": 0.5,
        "settle_s": 0.0,
    }
    return FleetOptions(**{**asked, **others})


def steps(place: Path) -> dict[str, Step]:
    return {step.id: step for step in read_record(place / "fleet").steps}


def test_results_of_nodes_come_through_ssh_into_one_folder(place: Path) -> None:
    fleet_run.run(options(place, ssh="n1,n2", arguments=("--target", "a b'c")))
    for name, step in steps(place).items():
        assert (step.state, step.verdict) == (StepState.DONE, "PASS")
        assert (place / "fleet" / name / "job.log").read_text() == "a line for people\n"
    (words,) = (path.read_text() for path in place.glob("words-n1*"))
    assert words == "bringup --target a b'c --json -\n", "a shell read a word"
    assert read_record(place / "fleet").scheduler == {"executor": "ssh"}


@pytest.mark.parametrize(
    ("node", "why"),
    [
        ("gone1", "ssh: it does not answer"),
        (
            "other1",
            "ssh: its host key changed; where it was installed again, ssh-keygen -R other1 helps",
        ),
        ("closed1", "ssh: it refuses this user: give ssh a key that it takes"),
        ("nobody1", "ssh: this machine knows no address of it: check its name"),
        ("deaf1", "ssh: no server answers there: start sshd, or name its port"),
        ("silent1", "ssh: it does not answer"),
        ("cut1", "ssh: the connection was cut: look whether the node is up, and repeat"),
        (
            "full1",
            "ssh: it ends connections before they begin: try --at-once 8, or raise its MaxStartups",
        ),
        (
            "jump1",
            (
                "ssh: its jump host's host key changed; where it was installed again, "
                "ssh-keygen -R '[10.0.0.1]:2222' helps"
            ),
        ),
        ("jump2", "ssh: its jump host refuses this user: give ssh a key that it takes"),
        (
            "jump3",
            "ssh: its jump host cannot reach it: check what that host forwards, and the name there",
        ),
        ("jump4", "ssh: no server answers there: start sshd, or name its port"),
        ("jump5", "ssh: it or its jump host does not answer"),
    ],
)
def test_a_node_that_cannot_be_reached_says_why_and_stops_no_other(
    place: Path, node: str, why: str
) -> None:
    fleet_run.run(options(place, ssh=f"n1,{node}"))
    found = steps(place)
    assert found["n1"].state is StepState.DONE
    assert found[node].state is StepState.LOST
    assert found[node].reason == why


def test_a_node_without_portagpu_says_what_names_it(place: Path) -> None:
    (place / "folder").mkdir()
    for program in ("no-such-portagpu", str(place / "folder")):
        fleet_run.run(options(place, ssh="n1", program=[program, "-x"]))
        said = steps(place)["n1"].reason
        assert said == (
            f"ssh: it cannot run {program}: install portagpu there, or name it with --program"
        )


def test_a_list_that_was_just_printed_is_not_printed_again() -> None:
    names = ("a", "b", "c")
    states = [Step(id=n, nodes=(n,), state=StepState.LOST, reason="why") for n in names]
    record = FleetRecord(id="x", what="bringup", started="now", nodes=names, steps=tuple(states))
    lines = [step_line(step) for step in states]
    assert closing_lines(record, "f", said=lines)[:-1] == [""]
    # in another order, or with others between them, the list says something more
    for said in (lines[::-1], [*lines, "d  PASS"], []):
        assert closing_lines(record, "f", said=said)[1:4] == lines


def test_health_runs_on_every_node_as_it_is(place: Path) -> None:
    fleet_run.run(options(place, what="health", ssh="n1", arguments=("--expect-devices", "8")))
    (words,) = (path.read_text() for path in place.glob("words-n1*"))
    assert words == "health --expect-devices 8 --json -\n"
    assert steps(place)["n1"].verdict == "PASS"


def test_repeating_the_command_runs_only_what_is_left(place: Path) -> None:
    asked = options(place, ssh="n1,gone1")
    fleet_run.run(asked)
    (place / "ssh").write_text(SSH.replace("gone*)", "never*)"))
    fleet_run.run(asked)
    found = steps(place)
    assert [step.state for step in found.values()] == [StepState.DONE] * 2
    assert {name: step.attempts for name, step in found.items()} == {"n1": 1, "gone1": 2}


class _Interrupt(FleetProgress):
    """Ctrl-C, as soon as all commands run."""

    def __init__(self, pids: list[Path]) -> None:
        self.pids = pids

    def changed(self, step: Step, record: FleetRecord) -> None:
        if all(each.state is StepState.RUNNING for each in record.steps):
            wait_until(lambda: all(each.exists() for each in self.pids), "no command began")
            raise KeyboardInterrupt


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("where", [{"ssh": "n1,n2"}, {"local": 1}])
def test_after_ctrl_c_nothing_is_left_and_the_same_command_goes_on(
    place: Path, where: dict[str, Any]
) -> None:
    names = ["n1", "n2"] if "ssh" in where else ["here"]
    pids = [place / f"pid-{name}" for name in names]
    asked = options(place, **where, arguments=("wait",))
    assert fleet_run.run(asked, _Interrupt(pids)).interrupted
    for path in pids:
        pid = int(path.read_text())
        wait_until(lambda pid=pid: not is_there(pid), f"{path.name} is left running")
    assert {step.state for step in steps(place).values()} == {StepState.WAITING}
    (place / "node").write_text(NODE.replace("*wait*", "*never*"))
    fleet_run.run(asked)
    assert {step.state for step in steps(place).values()} == {StepState.DONE}


@pytest.mark.parametrize("wrapped", [False, True], ids=["itself", "by a shell that waits"])
def test_a_node_ends_its_command_when_the_connection_is_gone(place: Path, wrapped: bool) -> None:
    """The one who follows it was killed: nobody is there to end anything."""
    command = [str(place / "node"), "wait"]
    if wrapped:
        command = ["sh", "-c", '"$@"; echo not "$?"', "sh", *command]
    process = subprocess.Popen(
        ["sh", "-c", ON_NODE, "sh", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    path = place / "pid-here"
    wait_until(path.exists, "it did not begin")
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait() == 128 + signal.SIGTERM
    assert not is_there(int(path.read_text()))
    assert process.stdout is not None
    with process.stdout as output:
        assert output.read() == b""


@pytest.mark.parametrize("code", [0, 3])
def test_a_command_that_ends_by_itself_gives_its_exit_code(code: int) -> None:
    process = subprocess.Popen(
        ["sh", "-c", ON_NODE, "sh", "sh", "-c", f"exit {code}"],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.wait() == code
    assert process.stdin is not None
    process.stdin.close()


def test_a_step_that_takes_too_long_is_ended(place: Path) -> None:
    asked = options(place, local=1, arguments=("wait",), minutes=0)
    fleet_run.run(asked)
    (step,) = steps(place).values()
    assert "portagpu ended the job: TIMEOUT (it ran for 0 min)" in step.reason


def test_several_steps_on_this_machine(place: Path) -> None:
    fleet_run.run(options(place, local=3))
    assert sorted(steps(place)) == ["local-0", "local-1", "local-2"]
    assert {step.verdict for step in steps(place).values()} == {"PASS"}


def test_drained_nodes_come_back_by_the_command_that_took_them(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads((place / "result.json").read_text())
    document["results"][0] |= {"verdict": "FAIL", "reason": "it is broken"}
    document["results"][0]["extra"] = {"action": "replace"}
    counts = document["counts"]
    document |= {
        "verdict": "FAIL",
        "first_failed": document["results"][0]["id"],
        "counts": {**counts, "PASS": counts["PASS"] - 1, "FAIL": 1},
    }
    (place / "result.json").write_text(json.dumps(document))
    (place / "hook").write_text(f'#!/bin/sh\necho "$@" >> {place}/hooked\n')
    (place / "hook").chmod(0o755)
    fleet_run.run(options(place, ssh="n1", drain=True, drain_with=str(place / "hook")))
    assert cli.main(["fleet", "resume", str(place / "fleet")]) == 0
    assert capsys.readouterr().out == "n1  resumed\n"
    drained, resumed = (place / "hooked").read_text().splitlines()
    assert drained.startswith("drain n1 portagpu fleet ")
    assert "replace: " in drained
    assert resumed == "resume n1"


def test_a_file_of_nodes_may_come_from_windows(tmp_path: Path) -> None:
    path = tmp_path / "nodes.txt"
    path.write_bytes("\ufeff# the rack\r\nn1,n2\r\n\r\nn3  # new\r\nn1\r\n".encode())
    assert nodes_of(str(path)) == ("n1", "n2", "n3")


def test_a_file_of_nodes_may_be_utf_16(tmp_path: Path) -> None:
    """As PowerShell's ``>`` writes it."""
    path = tmp_path / "nodes.txt"
    for codec in ("utf-16-le", "utf-16-be"):
        path.write_bytes("\ufeffn1\r\nn2\r\n".encode(codec))
        assert nodes_of(str(path)) == ("n1", "n2")


def test_a_misspelt_file_is_not_taken_for_a_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nodes.txt").write_text("n1\n")
    (tmp_path / "n7").mkdir()
    for wrong in ("node.txt", f"{tmp_path}/node.txt"):
        with pytest.raises(UnknownNodes, match=r"there is no file .*node.txt.*mean 'nodes.txt'"):
            nodes_of(wrong)
    with pytest.raises(UnknownNodes, match=r"there is no file .*: give a file, or names such as"):
        nodes_of("elsewhere/nodes")
    with pytest.raises(UnknownNodes, match="is a folder; name a file"):
        nodes_of(f"{tmp_path}/n7")
    assert nodes_of("n7") == ("n7",), "a folder of results may have the name of a node"
    assert nodes_of("gpu1.example.com,n2") == ("gpu1.example.com", "n2")


def test_sets_of_nodes_are_clustershells() -> None:
    pytest.importorskip("ClusterShell")
    assert nodes_of("gpu[01-03,07],login") == ("gpu01", "gpu02", "gpu03", "gpu07", "login")
    with pytest.raises(UnknownNodes, match="is not a set of nodes"):
        nodes_of("gpu[3-")


@pytest.mark.parametrize("text", ["-oProxyCommand=x", "a;b", "", " , ", "n1,$(x)"])
def test_what_is_no_node_is_refused(text: str) -> None:
    with pytest.raises(UnknownNodes):
        nodes_of(text)


@pytest.mark.parametrize("what", ["health", "collectives"])
def test_what_has_no_levels_says_so_before_any_node_is_asked(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["fleet", "run", what, "--ssh", "n1,n2", "--out", str(tmp_path / "f")]
    assert cli.main([*words, "--level", "full"]) == 2
    assert f"{what} runs as a whole: leave out --level" in capsys.readouterr().err
    assert not (tmp_path / "f").exists()


def test_a_set_without_clustershell_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ClusterShell.NodeSet", None)
    with pytest.raises(MissingDependency, match=r"need ClusterShell: pip install .*ssh.*commas"):
        nodes_of("gpu[01-03]")
    assert nodes_of("gpu01,gpu02") == ("gpu01", "gpu02")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "give one of --nodes, --ssh, --local and --kubernetes"),
        (["--ssh", "n1", "--local", "2"], "give one of"),
        (["--ssh", "n1"], "give --out"),
        (["--ssh", "a;b", "--out", "x"], "is not a set of nodes"),
        (["--ssh", "n1", "--drain", "--out", "x"], "--drain needs --drain-with"),
        (["--kubernetes", "4"], "--kubernetes needs --image, --claim and --gres"),
        (
            ["--kubernetes", "4", "--image", "i", "--claim", "c", "--gres", "gpu:8"],
            "such as --gres",
        ),
    ],
)
def test_wrong_words_are_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["fleet", "run", "bringup", *words]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("version", ["1.33", "1.37"])
def test_the_manifest_is_one_that_kubernetes_takes(
    version: str, capsys: pytest.CaptureFixture[str]
) -> None:
    validator = pytest.importorskip("kubernetes_validate")
    words = ["--image", "r/portagpu:1", "--claim", "results", "--gres", "example.com/gpu:8"]
    asked = ["fleet", "run", "bringup", "--kubernetes", "12", "--level", "full", *words]
    assert cli.main([*asked, "--", "--target", "x y"]) == 0
    document = json.loads(capsys.readouterr().out)
    validator.validate(document, version, strict=True)
    assert document["spec"]["completions"] == 12
    (container,) = document["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["example.com/gpu"] == "8"
    assert container["command"][-1] == (
        "exec portagpu bringup --level full --target 'x y' --out \"/results/$PORTAGPU_NODE\""
    )


def test_a_repeated_job_leaves_out_the_nodes_with_a_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    validator = pytest.importorskip("kubernetes_validate")
    for number in range(2):
        (tmp_path / f"node-{number}").mkdir()
        run(number, [gate("links", "a")], host=f"pod-{number}").write_json(
            tmp_path / f"node-{number}" / "result.json"
        )
    (tmp_path / "node-2").mkdir()
    (tmp_path / "node-2" / "result.json").write_text("{")
    words = ["--image", "i", "--claim", "c", "--gres", "example.com/gpu:8", "--out", str(tmp_path)]
    assert cli.main(["fleet", "run", "bringup", "--kubernetes", "4", *words]) == 0
    document = json.loads(capsys.readouterr().out)
    validator.validate(document, "1.33", strict=True)
    assert document["spec"]["completions"] == document["spec"]["parallelism"] == 2
    affinity = document["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [each["values"] for each in term["matchFields"]] == [["node-0"], ["node-1"]]
    assert {each["operator"] for each in term["matchFields"]} == {"NotIn"}
    assert cli.main(["fleet", "run", "bringup", "--kubernetes", "2", *words]) == 2
    assert "2 nodes of 2 have a result: nothing is left to run" in capsys.readouterr().err
    # without a record the results name the nodes
    assert cli.main(["fleet", "report", str(tmp_path), "--json", "-"]) == 3
    found = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in found["nodes"]] == ["pod-0", "pod-1"]

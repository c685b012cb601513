"""Child processes: messages, time limits, how a child ended, and that nothing is left of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

import portagpu
from portagpu.base.errors import PortagpuError
from portagpu.base.patience import BusyMachine, Patience
from portagpu.base.subprocesses import Channel, Subprocess, call, run_program, start_caller
from portagpu.base.subprocesses.start import python_environment
from tests.support.processes import descendants
from tests.support.waits import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

CHILD: Final = """
import faulthandler, os, signal, subprocess, sys, time
from portagpu.base.subprocesses import parent_channel
channel = parent_channel()
while (message := channel.receive()) is not None:
    {act}
"""


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Subprocess]:
    """A child that does something with every message."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def start(act: str, **options: Any) -> Subprocess:
        (tmp_path / "acts.py").write_text(CHILD.format(act=act), "utf-8")
        return Subprocess("acts", **options)

    return start


def open_files() -> list[str]:
    return sorted(each.name for each in Path("/proc/self/fd").iterdir())


def is_gone(pid: int) -> bool:
    """Whether a process ended, also one that nobody has reaped yet."""

    def has_ended() -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
        except OSError:
            return True

    return wait_until(has_ended, f"{pid} still runs")


def test_messages_arrive_in_order_whatever_is_printed(child: Callable[..., Subprocess]) -> None:
    act = "print('{\"noise\": 1}', flush=True); os.write(2, b'x'); channel.send({'got': message})"
    with child(act) as process:
        for number in range(3):
            process.send({"number": number})
        got = [process.receive(60) for _ in range(3)]
    assert got == [{"got": {"number": number}} for number in range(3)]


def test_a_large_message_is_whole_and_bounded_in_time(child: Callable[..., Subprocess]) -> None:
    text = "x" * 3_000_000
    with child("channel.send(message)") as process:
        assert process.ask({"text": text}, 60) == ({"text": text}, "")
    with child("time.sleep(600)") as process:
        process.send({})
        answer, problem = process.ask({"text": text}, 1)
        assert answer is None
        assert problem.startswith("did not answer within 1 s")


@pytest.mark.parametrize(
    ("act", "said"),
    [
        ("os.kill(os.getpid(), 9)", "died of SIGKILL: it said nothing"),
        ("print('no \\x1b driver'); sys.stdout.flush(); os._exit(3)", "ended with status 3: no"),
        ("raise ValueError('bad')", "ended with status 1: ValueError: bad"),
        ("os.write(channel.writer, b'{\"half'); os._exit(0)", "gave no answer"),
        ("faulthandler.enable(); print('x', flush=True); os.abort()", "died of SIGABRT: x"),
        ("time.sleep(600)", "did not answer within 2 s"),
    ],
    ids=["killed", "exits", "raises", "half", "fatal", "hangs"],
)
def test_what_became_of_a_child_is_one_line(
    child: Callable[..., Subprocess], act: str, said: str
) -> None:
    with child(act) as process:
        answer, problem = process.ask({}, 2 if "600" in act else 60)
    assert answer is None
    assert problem.startswith(said)
    assert problem.isprintable()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"noise \x1b[2J of a library", "noise  [2J of a library"),
        (b"\xff\xfe{", "\ufffd\ufffd{"),
        (b"", "an empty line"),
        (b"[1]", "[1]"),
        (b"null", "null"),
        (b"7" * 5000, "7" * 80),
        (b"[" * 100_000, "[" * 80),
    ],
    ids=["text", "bytes", "empty", "list", "null", "digits", "deep"],
)
def test_a_child_that_sends_what_is_not_a_message_is_ended(
    child: Callable[..., Subprocess], line: bytes, said: str
) -> None:
    with child(f"os.write(channel.writer, {line!r} + b'\\n{{}}\\n'); time.sleep(600)") as process:
        answer, problem = process.ask({}, 60)
        assert (answer, problem) == (None, f"broke: sent what is not a message: {said}")
        assert process.how_it_ended() == problem
        assert is_gone(process.pid)


def test_nothing_is_left_of_a_child_that_is_killed(child: Callable[..., Subprocess]) -> None:
    act = (
        "start = lambda **how: subprocess.Popen([sys.executable, '-c', 'import time; "
        "time.sleep(600)'], **how).pid; channel.send({'pids': [start(), start(process_group=0)]})"
    )
    with child(act) as process:
        answer, _ = process.ask({}, 60)
        assert answer is not None
        assert set(answer["pids"]) <= set(descendants(process.pid))
    assert all(map(is_gone, [process.pid, *answer["pids"]]))


def test_a_child_ends_with_its_channel_and_with_its_parent(
    child: Callable[..., Subprocess], tmp_path: Path
) -> None:
    process = child("pass")
    process.close(60)
    process.close()
    assert process.how_it_ended() == "ended with status 0"
    reader, writer = os.pipe()
    parent = os.fork()
    if parent == 0:
        started = child("time.sleep(600)")
        os.write(writer, str(started.pid).encode())
        os.kill(os.getpid(), 9)
    os.close(writer)
    with os.fdopen(reader) as stream:
        pid = int(stream.read())
    os.waitpid(parent, 0)
    assert is_gone(pid)


def test_where_a_child_stands_is_reported(child: Callable[..., Subprocess]) -> None:
    act = (
        "faulthandler.register(signal.SIGUSR1, file=2, all_threads=False);"
        "channel.send({}); time.sleep(600)"
    )
    with child(act) as process:
        assert process.ask({}, 60) == ({}, "")
        # it may still be on its way from send to sleep
        stands = [process.current_frame() for _ in range(3)]
        assert process.running
    assert stands[-1].startswith(" in <module> (acts.py:"), stands


def test_variables_are_added_and_left_out(
    child: Callable[..., Subprocess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINE_A", "1")
    monkeypatch.setenv("OTHER", "1")
    options = {"leave_out": ("MINE_",), "environment": {"ADDED": "2"}}
    with child("channel.send(dict(os.environ))", **options) as process:
        seen, _ = process.ask({}, 60)
    assert seen is not None
    assert (seen["OTHER"], seen["ADDED"]) == ("1", "2")
    assert "MINE_A" not in seen


def test_a_child_that_cannot_be_started_leaves_no_descriptor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = open_files()
    monkeypatch.setattr(sys, "executable", "/proc/none")
    with pytest.raises(OSError, match="/proc/none"):
        Subprocess("acts")
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(PortagpuError, match="which program it is"):
        Subprocess("acts")
    assert open_files() == before


@pytest.mark.parametrize("begun", ["program", "Python"])
def test_a_signal_that_comes_while_a_child_begins_leaves_none(
    begun: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interpreter of the child hangs, so that it never sees that its channel is closed."""
    (tmp_path / "sitecustomize.py").write_text(
        f"import os, pathlib, time\npathlib.Path({str(tmp_path / 'pid')!r}).write_text("
        "str(os.getpid()))\ntime.sleep(600)  # allowed: it hangs\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    execute, pids = subprocess.Popen._execute_child, []  # type: ignore[attr-defined]

    def interrupted(self: Any, *given: Any) -> None:
        execute(self, *given)
        pids.append(self.pid)
        if begun == "Python":
            wait_until((tmp_path / "pid").exists, "no child began")
        raise KeyboardInterrupt

    before = open_files()
    with monkeypatch.context() as patched:
        patched.setattr(subprocess.Popen, "_execute_child", interrupted)
        with pytest.raises(KeyboardInterrupt):
            Subprocess("acts")
    assert is_gone(pids[0])
    assert open_files() == before


def test_a_channel_without_a_reader_or_writer_ends() -> None:
    reader, writer = os.pipe()
    channel = Channel(reader, -1)
    os.write(writer, b'{"a": 1}\n{"b": 2}\n{"c')
    os.close(writer)
    assert [channel.receive(5), channel.receive(5), channel.receive(5)] == [
        {"a": 1},
        {"b": 2},
        None,
    ]
    channel.close()
    channel.close()
    reader, writer = os.pipe()
    os.close(reader)
    channel = Channel(-1, writer)
    with pytest.raises(BrokenPipeError):
        channel.send({"x": 1}, 5)
    channel.close()


def test_a_call_returns_raises_or_hangs() -> None:
    assert call("os.path", "basename", ("a/b",), limit_s=60) == ("b", "")
    value, problem = call("os", "listdir", ("/nowhere",), limit_s=60)
    assert value is None
    assert problem.startswith("os failed: FileNotFoundError: ")
    assert call("os", "_exit", (3,), limit_s=60) == (
        None,
        "os ended with status 3: it said nothing",
    )
    value, problem = call("time", "sleep", (600,), limit_s=1)  # allowed: what it limits never ends
    assert value is None
    assert problem.startswith("time did not answer within 1 s")


def test_the_limit_of_a_call_begins_when_the_child_is_ready(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import time; time.sleep(3)", "utf-8")
    slow = {"PYTHONPATH": f"{tmp_path}:{python_environment()['PYTHONPATH']}"}
    found, problem = call(
        "sys", "getrecursionlimit", limit_s=1, environment=slow
    )  # allowed: time without a CPU does not count
    assert (type(found), problem) == (int, "")
    value, problem = call(
        "time", "sleep", (600,), limit_s=1, environment=slow
    )  # allowed: what it limits never ends
    assert value is None
    assert problem.startswith("time did not answer within 1 s")


@pytest.mark.parametrize(("load", "said"), [(1.0, ""), (4.0, " on a busy machine (load 4.0 on 2 ")])
def test_a_child_that_is_late_on_a_busy_machine_says_so(
    child: Callable[..., Subprocess],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    load: float,
    said: str,
) -> None:
    """A Linux that does not report which processes wait: the load stands in for it."""
    patience = Patience(proc=tmp_path, load=lambda: load, cpus=lambda: 2)
    for module in ("channel", "start"):
        monkeypatch.setattr(f"portagpu.base.subprocesses.{module}.PATIENCE", patience)
    late = f"did not answer within 0.2 s{said}"
    with child("time.sleep(600)") as late_child:
        answer, problem = late_child.ask({}, 0.2)
        assert answer is None
        assert problem.startswith(late)
        assert bool(said) is isinstance(problem, BusyMachine)
    with pytest.raises(TimeoutError) as caught:
        run_program("sleep", "600", limit_s=0.2)  # allowed: what it limits never ends
    assert str(caught.value).startswith(late)


def test_what_a_program_prints_between_two_looks_at_its_limit_is_whole() -> None:
    done = run_program("sh", "-c", "printf one; sleep 1.2; printf two; printf 3 >&2", limit_s=60)
    assert (done.stdout, done.stderr, done.returncode) == (b"onetwo", b"3", 0)


def test_a_caller_keeps_what_it_loaded_from_call_to_call() -> None:
    caller, problem = start_caller()
    assert caller is not None, problem
    for number in (1, 2):
        caller.begin("os", "getpid")
        pid, problem = caller.wait(60)
        assert (problem, caller.waits) == ("", False)
        assert pid in descendants(os.getpid()), f"call {number} was in another process"
    caller.begin("os", "listdir", ("/nowhere",))
    assert "No such file" in caller.wait(60)[1]
    caller.begin("time", "sleep", (0.2,))
    with pytest.raises(TimeoutError):
        caller.wait(0.0)
    assert caller.waits
    assert caller.wait(60) == (None, ""), "a call that was waited for in vain is lost"
    caller.begin("os", "_exit", (3,))
    assert caller.wait(60) == (None, "os ended with status 3: it said nothing")
    caller.close()
    assert caller.has_left()


def test_a_call_whose_answer_is_none_of_its_own_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    text = "import os, sys\ndef forge():\n"
    text += "    os.write(int(sys.argv[-1].rpartition(',')[2]), b'{\"other\": 1}\\n')\n"
    (tmp_path / "forger.py").write_text(text, "utf-8")
    said = "forger broke: sent what is not a message: {'other': 1}"
    assert call("forger", "forge", limit_s=60) == (None, said)


def test_a_program_is_ended_with_what_it_started(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    with pytest.raises(TimeoutError, match="did not answer within 1 s"):
        run_program(
            "/bin/sh", "-c", f"sleep 600 & echo $! > {pids}; sleep 600", limit_s=1
        )  # allowed: what it limits never ends
    assert is_gone(int(pids.read_text()))
    done = run_program("/bin/sh", "-c", "echo out; echo err >&2; pwd; exit 3", limit_s=60)
    assert (done.returncode, done.stdout, done.stderr) == (3, b"out\n/\n", b"err\n")
    with pytest.raises(FileNotFoundError):
        run_program("no-such-program")


def test_every_child_is_started_in_one_package() -> None:
    home = Path(portagpu.__file__).parents[1]
    starts = re.compile(r"\bimport subprocess\b|\bos\.(popen|system|exec|spawn)")
    found = [
        path
        for path in [*(home / "portagpu").rglob("*.py"), *(home / "backends").rglob("*.py")]
        if not {"_matrix", "subprocesses"} & set(path.parts)
        and starts.search(path.read_text("utf-8"))
    ]
    assert found == []


LEAVING: Final = """
import os, sys, time
for _ in range(int(sys.argv[1])):
    os.setsid() if os.getpgrp() != os.getpid() else None
    if os.fork(): os._exit(0)
os.setsid()
print(os.getpid(), flush=True)
os.close(1)
time.sleep(600)
"""
"""A process that leaves its session as daemons do, and says who it is."""


@pytest.mark.parametrize("forks", [1, 2])
@pytest.mark.parametrize("end", ["time.sleep(600)", "sys.exit(0)", "os.kill(os.getpid(), 9)"])
def test_nothing_is_left_that_began_a_session_of_its_own(
    child: Callable[..., Subprocess], tmp_path: Path, forks: int, end: str
) -> None:
    (tmp_path / "leaving.py").write_text(LEAVING, "utf-8")
    start = f"[sys.executable, {str(tmp_path / 'leaving.py')!r}, '{forks}']"
    act = f"channel.send({{'pid': int(subprocess.check_output({start}))}}); {end}"
    with child(act) as process:
        answer, _ = process.ask({}, 60)
        assert answer is not None
        assert os.getsid(answer["pid"]) != process.pid
    assert is_gone(answer["pid"])


def test_a_fork_that_began_a_session_of_its_own_is_ended(child: Callable[..., Subprocess]) -> None:
    """It runs no other program, and has the command line of the child."""
    act = "pid = os.fork(); pid or (os.setsid(), time.sleep(600)); channel.send({'pid': pid})"
    with child(act) as process:
        answer, _ = process.ask({}, 60)
        assert answer is not None
    assert is_gone(answer["pid"])


def test_a_child_of_a_child_ends_by_itself(
    child: Callable[..., Subprocess], tmp_path: Path
) -> None:
    """It has work to finish, such as to end its ranks and remove their folder."""
    mark = tmp_path / "mark"
    (tmp_path / "inner.py").write_text(
        "from pathlib import Path\nfrom portagpu.base.subprocesses import parent_channel\n"
        "from portagpu.base.subprocesses.start import wake_at_parents_end\n"
        "channel = parent_channel()\nwake_at_parents_end()\nchannel.send({})\n"
        f"channel.receive()\nPath({str(mark)!r}).touch()\n",
        "utf-8",
    )
    act = (
        "from portagpu.base.subprocesses import Subprocess; inner = Subprocess('inner'); "
        "inner.receive(60); channel.send({'pid': inner.pid})"
    )
    with child(act) as process:
        answer, _ = process.ask({}, 60)
        assert answer is not None
        process.kill()
        assert is_gone(answer["pid"])
    assert mark.exists(), "it was killed"


def test_a_program_is_ended_with_what_left_its_group(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    started = f"setsid sh -c 'echo $$ > {pids}; sleep 600' & sleep 600"
    with pytest.raises(TimeoutError):
        run_program("/bin/sh", "-c", started, limit_s=1)  # allowed: what it limits never ends
    assert is_gone(int(pids.read_text()))


def test_nothing_is_left_of_a_child_that_ended_by_itself(child: Callable[..., Subprocess]) -> None:
    act = (
        "pid = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], "
        "process_group=0).pid; channel.send({'pid': pid}); sys.exit(0)"
    )
    with child(act) as process:
        answer, _ = process.ask({}, 60)
        assert answer is not None
        wait_until(lambda: not process.running, "the child does not end")
    assert is_gone(answer["pid"])


def test_what_only_begins_to_execute_is_ended_too(
    child: Callable[..., Subprocess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux shows an empty environment between ``execve`` and the first instruction."""
    act = "channel.send({'pid': subprocess.Popen(['sleep', '600'], start_new_session=True).pid})"
    process = child(act)
    process.send({})
    answer = process.receive(60.0)
    assert answer is not None
    read, hidden = Path.read_text, 2

    def begins(self: Path, *given: Any, **named: Any) -> str:
        nonlocal hidden
        if self == Path(f"/proc/{answer['pid']}/environ") and hidden:
            hidden -= 1
            return ""
        return read(self, *given, **named)

    monkeypatch.setattr(Path, "read_text", begins)
    process.close()
    assert is_gone(answer["pid"])
    assert hidden == 0

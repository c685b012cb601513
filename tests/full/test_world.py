"""Worlds of ranks: every way to end is reported, names the rank, and leaves no process."""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytest.importorskip("torch")

from portagpu.base.errors import PortagpuError
from portagpu.base.patience import Limits
from portagpu.base.subprocesses.start import python_environment
from portagpu.runs.world import Ranks, RankState, client
from tests.conftest import ROOT
from tests.support.waits import wait_until

pytestmark = pytest.mark.torch

RANKS = str(ROOT / "tests/support/ranks.py")


def at(name: str) -> str:
    return f"{RANKS}:{name}"


def of_session(session: int) -> dict[int, str]:
    """Process id -> command of every process of a session that is not a zombie."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            command = (folder / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] not in "ZX":
            found[int(folder.name)] = command
    return found


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


@pytest.fixture(autouse=True)
def limit():
    """No test waits for the limits of the code it tests."""

    def too_long(number, frame):
        raise TimeoutError("the test took longer than 100 s")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(100)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def server():
    with Ranks() as ranks:
        yield ranks


@pytest.fixture
def ranks(server):
    """The shared server, which after each test has nothing left but itself."""
    yield server
    process = server._child
    if process is not None:
        left = {
            pid: command for pid, command in of_session(process.pid).items() if pid != process.pid
        }
        assert not left, f"processes were left: {left}"


@pytest.mark.parametrize("world", [1, 2, 4, 8])
def test_every_rank_returns_its_value_in_order(ranks, world):
    outcome = ranks.run(at("value"), world, timeout_s=60)
    assert outcome.ok, outcome.sentence
    assert outcome.values == [
        {"rank": rank, "world": world, "device": "cpu"} for rank in range(world)
    ]
    assert outcome.sentence == ""
    assert outcome.culprit is None


@pytest.mark.parametrize("world", [1, 2, 4])
def test_ranks_reduce_over_their_group(ranks, world):
    outcome = ranks.run(at("reduce"), world, timeout_s=60)
    assert outcome.values == [world * (world + 1) / 2] * world, outcome.sentence


@pytest.mark.parametrize("world", [1, 2])
def test_ranks_have_no_more_threads_than_they_may(world):
    with Ranks(environment={"OMP_NUM_THREADS": "1"}) as ranks:
        outcome = ranks.run(at("threads"), world, group=False)
    assert outcome.values == [1] * world, outcome.sentence


@pytest.mark.usefixtures("started")
def test_what_ranks_imported_the_next_ones_have():
    with Ranks() as ranks:
        found = [ranks.run(at("begins_with_the_compiler"), 2, backend="cpu") for _ in range(2)]
    assert [each.values for each in found] == [[False, False], [True, True]]


@pytest.mark.parametrize(("backend", "value"), [("cpu", "loaded"), ("cuda", None)])
def test_what_is_prepared_reaches_ranks_that_share_a_device(backend, value):
    with Ranks() as ranks:
        ranks.prepare("no.such.module:function", backend="cpu")
        ranks.prepare(at("remember"), backend=backend, name="MY_VARIABLE", value="loaded")
        outcome = ranks.run(at("environment"), 2, arguments={"name": "MY_VARIABLE"}, group=False)
    assert [each.get("MY_VARIABLE") for each in outcome.values] == [value] * 2


@pytest.mark.parametrize("function", ["end_process", "sleep_long"])
def test_ranks_go_without_what_cannot_be_prepared(tmp_path, monkeypatch, function):
    monkeypatch.setattr(
        client, "LIMITS", Limits(prepare_s=3.0)
    )  # allowed: what it limits never ends
    with Ranks() as ranks:
        ranks.prepare(at(function), backend="cpu", begun=str(tmp_path / "begun"))
        assert ranks.run(at("value"), 2, group=False).ok


def test_a_server_that_prepares_ends_with_its_client(tmp_path):
    begun = tmp_path / "begun"
    code = f"""
import time
from portagpu.runs.world import Ranks
ranks = Ranks()
ranks.prepare({at("sleep_long")!r}, backend="cpu", begun={str(begun)!r})
print(ranks._child.pid, flush=True)
time.sleep(300)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as owner:
        server = int(owner.stdout.readline())
        wait_until(begun.exists, "no rank began")
        owner.kill()
    wait_until(lambda: not is_running(server), "the server runs")


def test_ranks_get_arguments_and_environment():
    with Ranks(environment={"MY_VARIABLE": "mine"}) as ranks:
        outcome = ranks.run(at("environment"), 2, arguments={"name": "MY_VARIABLE"}, group=False)
    assert outcome.values == [
        {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MY_VARIABLE": "mine"}
        for rank in range(2)
    ]


def test_steps_arrive_in_order_with_their_data(ranks):
    seen = []
    outcome = ranks.run(
        at("steps"),
        2,
        arguments={"count": 500},
        group=False,
        on_step=lambda rank, name, data: seen.append((rank, name, data)),
    )
    assert outcome.values == [500, 500]
    for rank in range(2):
        mine = [(name, data) for who, name, data in seen if who == rank]
        assert mine == [(f"step {n}", {"number": n}) for n in range(500)], "steps were lost"
    assert [entry.step for entry in outcome.ranks] == ["step 499"] * 2


@pytest.mark.parametrize("what", ["none", "deep", "large"])
def test_values_arrive_whole(ranks, what):
    expected = {"none": None, "deep": {"a": [1, 2.5, "ü", {"b": True}]}, "large": "x" * 10_000_000}
    outcome = ranks.run(at("give"), 2, arguments={"what": what}, group=False, timeout_s=60)
    assert outcome.ok, outcome.sentence
    assert all(value == expected[what] for value in outcome.values), "the value changed"


def test_numbers_that_json_does_not_have_arrive(ranks):
    (value,) = ranks.run(at("give"), 1, arguments={"what": "nan"}, group=False).values
    assert math.isnan(value[0])
    assert value[1:] == [math.inf, -math.inf]


@pytest.mark.parametrize(
    ("function", "arguments", "reason"),
    [
        ("give", {"what": "tensor"}, "Tensor is not JSON"),
        ("give", {"what": "set"}, "set is not JSON"),
        ("give", {"what": "bytes"}, "bytes is not JSON"),
        ("circle", {}, "Circular reference"),
    ],
)
def test_a_value_that_json_cannot_hold_is_a_clear_sentence(ranks, function, arguments, reason):
    outcome = ranks.run(at(function), 1, arguments=arguments, group=False)
    assert not outcome.ok
    assert reason in outcome.sentence
    assert f"{function} returned what JSON cannot hold" in outcome.sentence
    assert "return numbers, strings, lists and dicts" in outcome.sentence


def test_what_ranks_print_does_not_disturb(ranks):
    outcome = ranks.run(at("prints"), 2, arguments={"size": 100_000}, group=False, timeout_s=60)
    assert outcome.values == ["", ""], f"standard input of a rank is empty: {outcome.sentence}"


@pytest.mark.parametrize("culprit", [0, 1])
@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("ValueError", "raised ValueError: wrong number"),
        ("exit", "raised SystemExit: 0"),
        ("interrupt", "raised KeyboardInterrupt"),
        ("unprintable", "raised Unprintable"),
    ],
)
def test_a_rank_that_raises_is_named(ranks, culprit, kind, reason):
    outcome = ranks.run(at("raises"), 2, arguments={"culprit": culprit, "kind": kind}, timeout_s=60)
    assert not outcome.ok
    assert outcome.culprit == culprit, outcome.sentence
    assert outcome.sentence == f"rank {culprit} {reason} after before the error"
    with pytest.raises(PortagpuError, match=f"rank {culprit} raised"):
        _ = outcome.values
    if kind == "ValueError":
        assert "Traceback" in outcome.ranks[culprit].output, "the traceback is not kept"


@pytest.mark.parametrize("line", ["\xff noise", "[1]", "{}", '{"other": 1}'])
def test_a_rank_that_sends_what_is_not_a_message_is_named(ranks, line):
    outcome = ranks.run(at("sends"), 2, arguments={"line": line}, group=False, timeout_s=60)
    assert outcome.culprit == 1
    assert outcome.sentence.startswith("rank 1 broke: sent what is not a message: ")
    assert ranks.run(at("value"), 1, group=False).ok


@pytest.mark.parametrize("line", ['{"step": 7}', '{"step": "x", "ranks": [], "data": 3}'])
def test_a_step_of_another_shape_is_not_an_outcome(ranks, line):
    outcome = ranks.run(
        at("sends"), 2, arguments={"line": line}, group=False, timeout_s=2
    )  # allowed: what it limits never ends
    assert [each.state for each in outcome.ranks] == [RankState.HUNG] * 2
    assert outcome.ranks[1].step in ("7", "x")


def test_the_others_do_not_wait_for_their_limit_when_one_raised(ranks):
    # an hour: the test's own time limit would end it first
    outcome = ranks.run(
        at("raises_while_others_sleep"), 3, arguments={"culprit": 1}, group=False, timeout_s=3600
    )
    assert outcome.culprit == 1
    states = [entry.state for entry in outcome.ranks]
    assert states == [RankState.STOPPED, RankState.RAISED, RankState.STOPPED]
    assert "another rank had failed" in outcome.ranks[0].error


@pytest.mark.parametrize("culprit", [0, 1])
@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("SIGKILL", "died of SIGKILL"),
        ("SIGSEGV", "died of SIGSEGV in string_at"),
        ("SIGABRT", "died of SIGABRT in dies"),
        ("exit", "ended with status 0 before it returned"),
    ],
)
def test_a_rank_that_dies_is_named(ranks, culprit, how, reason):
    outcome = ranks.run(at("dies"), 2, arguments={"culprit": culprit, "how": how}, timeout_s=60)
    assert outcome.culprit == culprit, outcome.sentence
    assert outcome.ranks[culprit].state is RankState.DIED
    assert outcome.sentence.startswith(f"rank {culprit} {reason}")
    assert "last words" in outcome.ranks[culprit].output, "what it printed last was lost"


@pytest.mark.parametrize("culprit", [0, 1, 2])
@pytest.mark.usefixtures("quiet_machine")
def test_a_rank_that_hangs_outside_the_collective_is_the_culprit(ranks, culprit):
    outcome = ranks.run(
        at("hangs"), 3, arguments={"culprit": culprit}, timeout_s=4
    )  # allowed: what it limits never ends
    assert outcome.culprit == culprit, outcome.sentence
    assert re.fullmatch(
        rf"rank {culprit} hung after all the same in sleeps_in_place_of_the_collective "
        r"\(ranks\.py:\d+\)( on a busy machine \(load .*\))?",
        outcome.sentence,
    ), outcome.sentence
    others = [entry for entry in outcome.ranks if entry.rank != culprit]
    assert all("all_reduce" in entry.where for entry in others), "their collective is not named"
    assert "about to hang" in outcome.ranks[culprit].output, "what it printed was lost"


def test_a_rank_that_announced_fewer_steps_is_the_culprit(ranks):
    outcome = ranks.run(
        at("takes_fewer_steps"), 3, arguments={"culprit": 2}, group=False, timeout_s=3
    )  # allowed: what it limits never ends
    assert outcome.culprit == 2, outcome.sentence
    assert outcome.ranks[2].step == "step 1"


def test_a_stopped_rank_is_the_culprit(ranks):
    outcome = ranks.run(
        at("stops"), 2, arguments={"culprit": 1}, timeout_s=4
    )  # allowed: what it limits never ends
    assert outcome.culprit == 1, outcome.sentence
    assert outcome.sentence.startswith("rank 1 hung")


@pytest.mark.usefixtures("quiet_machine")
def test_when_all_hang_in_the_same_way_nobody_is_blamed(ranks):
    outcome = ranks.run(
        at("all_hang"), 2, group=False, timeout_s=2
    )  # allowed: what it limits never ends
    assert outcome.culprit is None
    assert outcome.sentence.startswith("ranks 0, 1 hung in all_hang (ranks.py:")


@pytest.mark.parametrize("how", ["step", "tell_alive"])
def test_the_limit_begins_again_at_each_sign_of_life(ranks, how):
    arguments = {"how": how, "times": 16, "then": "returns"}
    outcome = ranks.run(
        at("goes_on"), 2, arguments=arguments, group=False, timeout_s=4, most_s=600
    )  # allowed: time without a CPU does not count
    assert outcome.values == [16, 16]


def test_a_rank_that_falls_silent_is_ended_long_before_the_limit_in_all(ranks):
    arguments = {"how": "step", "times": 2, "then": "hangs"}
    outcome = ranks.run(
        at("goes_on"), 1, arguments=arguments, timeout_s=2, most_s=86_400
    )  # allowed: time without a CPU does not count
    assert outcome.ranks[0].state is RankState.HUNG
    assert outcome.ranks[0].error == (
        "did not finish within 2 s of its last sign of life, or 86400 s in all"
    )
    starved = outcome.ranks[0].starved
    assert starved is not None and 0 <= starved.waited_s < starved.wall_s


def test_signs_of_life_end_with_the_limit_in_all(ranks):
    arguments = {"how": "step", "times": 10**6, "then": "returns"}
    outcome = ranks.run(
        at("goes_on"), 1, arguments=arguments, timeout_s=3, most_s=4
    )  # allowed: time without a CPU does not count
    assert outcome.ranks[0].state is RankState.HUNG


def test_without_a_limit_in_all_signs_of_life_change_nothing(ranks):
    arguments = {"how": "step", "times": 10**6, "then": "returns"}
    outcome = ranks.run(
        at("goes_on"), 1, arguments=arguments, timeout_s=2
    )  # allowed: time without a CPU does not count
    assert outcome.ranks[0].error == "did not finish within 2 s"


def test_ranks_that_ignore_signals_are_ended(ranks):
    outcome = ranks.run(
        at("ignores_signals"), 2, group=False, timeout_s=2
    )  # allowed: what it limits never ends
    assert [entry.state for entry in outcome.ranks] == [RankState.HUNG, RankState.HUNG]


def test_a_rank_that_closes_its_pipe_and_stays_is_ended_at_the_limit(ranks):
    outcome = ranks.run(
        at("closes_every_file"), 1, group=False, timeout_s=2
    )  # allowed: what it limits never ends
    assert outcome.ranks[0].state is RankState.HUNG, outcome.sentence


@pytest.mark.parametrize("how", ["return", "raise", "die", "hang"])
def test_children_of_ranks_are_ended(ranks, tmp_path, how):
    outcome = ranks.run(
        at("children"),
        2,
        arguments={"folder": str(tmp_path), "how": how},
        group=False,
        timeout_s=4 if how == "hang" else 3600,
    )
    expected = {
        "return": RankState.DONE,
        "raise": RankState.RAISED,
        "die": RankState.DIED,
        "hang": RankState.HUNG,
    }[how]
    assert [entry.state for entry in outcome.ranks] == [expected] * 2, outcome.sentence
    pids = [int(pid) for file in tmp_path.iterdir() for pid in file.read_text().split()]
    assert len(pids) == 8, "the ranks did not start their children"
    left = [pid for pid in pids if is_running(pid)]
    assert not left, f"children of ranks still run: {left}"


@pytest.mark.parametrize(
    ("how", "state"),
    [
        ("return", RankState.DONE),
        ("raise", RankState.RAISED),
        ("die", RankState.DIED),
        ("hang", RankState.HUNG),
    ],
)
def test_a_rank_that_returns_early_is_done_however_the_last_one_ends(ranks, how, state):
    outcome = ranks.run(
        at("early"), 3, arguments={"culprit": 1, "how": how}, timeout_s=4 if how == "hang" else 3600
    )
    assert [entry.state for entry in outcome.ranks] == [RankState.DONE, state, RankState.DONE]
    assert [entry.value for entry in outcome.ranks] == [
        "early",
        "late" if how == "return" else None,
        "early",
    ]
    assert outcome.culprit == (None if how == "return" else 1)


def test_the_server_serves_again_after_every_failure(ranks):
    first = ranks.run(at("dies"), 2, arguments={"culprit": 0, "how": "SIGKILL"}, timeout_s=60)
    server = ranks._child
    again = ranks.run(at("reduce"), 2, timeout_s=60)
    assert not first.ok
    assert again.values == [3.0, 3.0]
    assert ranks._child is server, "the server was started again"


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (at("no_such_function"), "no_such_function"),
        (at("NOT_A_FUNCTION"), "not callable"),
        ("/no/such/file.py:main", "/no/such/file.py"),
        ("no_such_module:main", "No module named 'no_such_module'"),
        ("nothing", "'nothing' names no function"),
        (":main", "names no function"),
        (f"{RANKS}:", "names no function"),
        ("", "'' names no function"),
    ],
)
def test_a_function_that_does_not_exist_is_a_clear_sentence(ranks, function, reason):
    outcome = ranks.run(function, 1, group=False, timeout_s=60)
    assert outcome.ranks[0].state is RankState.RAISED
    assert reason in outcome.sentence


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"world": 0}, "at least one rank"),
        ({"world": 2, "indices": [0]}, "1 indices for 2 ranks"),
        ({"timeout_s": 0.0}, "time limit above 0"),
        ({"timeout_s": math.nan}, "time limit above 0"),
        ({"timeout_s": math.inf}, "time limit above 0"),
        ({"timeout_s": 9.0, "most_s": 8.0}, "must be at least timeout_s .9.0 s., not 8.0 s"),
        ({"timeout_s": 9.0, "most_s": math.inf}, "not inf s"),
    ],
)
def test_a_world_that_makes_no_sense_is_refused(ranks, options, message):
    with pytest.raises(ValueError, match=message):
        ranks.run(at("value"), **options)


def test_a_backend_that_does_not_exist_is_a_clear_sentence(ranks):
    outcome = ranks.run(at("value"), 1, backend="cpuu", group=False)
    assert "did you mean 'cpu'" in outcome.sentence


def test_a_write_to_a_rank_that_is_gone_is_an_error_and_no_death(ranks):
    assert ranks.run(at("writes_to_nobody"), 2, group=False).values == ["an error", "an error"]


def test_a_callback_that_raises_ends_the_world():
    def callback(rank, name, data):
        raise RuntimeError("stop here")

    with Ranks() as ranks:
        ranks.start()
        session = ranks._child.pid
        with pytest.raises(RuntimeError, match="stop here"):
            ranks.run(at("hangs"), 2, arguments={"culprit": 0}, timeout_s=60, on_step=callback)
        assert not of_session(session), "the world outlived its caller"
        assert ranks.run(at("value"), 1, group=False).ok, "the next world does not start"


def test_an_interrupt_ends_the_world():
    def interrupt(rank, name, data):
        os.kill(os.getpid(), signal.SIGINT)

    with Ranks() as ranks:
        ranks.start()
        session = ranks._child.pid
        with pytest.raises(KeyboardInterrupt):
            ranks.run(at("hangs"), 2, arguments={"culprit": 0}, timeout_s=60, on_step=interrupt)
        assert not of_session(session), "the world outlived Ctrl-C"


def test_closing_twice_and_before_the_start_is_harmless():
    ranks = Ranks()
    ranks.close()
    ranks.start()
    ranks.start()
    session = ranks._child.pid
    ranks.close()
    ranks.close()
    assert not of_session(session)


def test_a_server_that_is_killed_is_an_error_and_leaves_nothing(tmp_path):
    def kill(rank, name, data):
        os.kill(ranks._child.pid, signal.SIGKILL)

    with Ranks() as ranks:
        ranks.start()
        session = ranks._child.pid
        with pytest.raises(PortagpuError, match="rank server died of SIGKILL"):
            ranks.run(at("hangs"), 2, arguments={"culprit": 0}, timeout_s=60, on_step=kill)
        wait_until(lambda: not of_session(session), lambda: str(of_session(session)))
        assert ranks.run(at("value"), 2, group=False).ok, "the next world does not start"
        os.kill(ranks._child.pid, signal.SIGKILL)
        ranks._child._process.wait()
        assert ranks.run(at("value"), 2, group=False).ok, "a server that died idle is not replaced"


CLIENT = """
import sys
from portagpu.runs.world import Ranks

with Ranks() as ranks:
    ranks.start()
    print(ranks._child.pid, flush=True)
    ranks.run({function!r}, 2, arguments={arguments!r}, group=False, timeout_s=600,
              on_step=lambda *step: print("step", flush=True))
"""


@pytest.mark.parametrize("keeps_its_input", [False, True])
def test_a_client_that_is_killed_takes_its_world_along(keeps_its_input):
    code = CLIENT.format(function=at("hangs"), arguments={"culprit": 0})
    if keeps_its_input:  # a process that keeps the client's end of the server's input open
        code = code.replace(
            "    ranks.run",
            "    import os, time\n    if os.fork() == 0:\n"
            "        time.sleep(60)\n        os._exit(0)\n    ranks.run",
        )
    client = subprocess.Popen(
        [sys.executable, "-P", "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        text=True,
        env=python_environment(),
        start_new_session=True,
    )
    try:
        assert client.stdout is not None
        session = int(client.stdout.readline())
        assert client.stdout.readline() == "step\n", "the world did not start"
        os.kill(client.pid, signal.SIGKILL)
        client.wait(60)
        wait_until(lambda: not of_session(session), lambda: str(of_session(session)))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(client.pid, signal.SIGKILL)
        client.wait(60)
        client.stdout.close()


def test_an_idle_server_ends_with_its_client():
    code = """
        import os, time
        from portagpu.runs.world import Ranks
        ranks = Ranks()
        ranks.run({function!r}, 1, group=False)
        if os.fork() == 0:  # keeps the client's end of the server's input open
            os.close(1)
            time.sleep(60)
            os._exit(0)
        print(ranks._child.pid, flush=True)
        os.kill(os.getpid(), 9)
    """
    client = subprocess.Popen(
        [sys.executable, "-P", "-c", textwrap.dedent(code).format(function=at("value"))],
        stdout=subprocess.PIPE,
        text=True,
        env=python_environment(),
        start_new_session=True,
    )
    try:
        assert client.stdout is not None
        session = int(client.stdout.readline())
        client.wait(60)
        wait_until(lambda: not of_session(session), lambda: str(of_session(session)))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(client.pid, signal.SIGKILL)
        client.stdout.close()


@pytest.mark.parametrize("how", ["killed", "leaves", "closes"])
@pytest.mark.parametrize("busy", [False, True])
def test_a_stopped_server_does_not_outlive_its_client(how, busy, tmp_path):
    code = """
        import os, signal, sys
        from portagpu.runs.world import Ranks
        ranks = Ranks()
        ranks.run({function!r}, 1, group=False)
        server = ranks._child.pid
        print(server, flush=True)
        ready = []
        def end(*step):
            ready.append(step)
            if len(ready) < {ranks}:
                return
            os.kill(server, signal.SIGSTOP)
            if {how!r} == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if {how!r} == "leaves":
                os._exit(0)
            raise KeyboardInterrupt
        try:
            if not {busy!r}:
                end()
            arguments = dict(folder={folder!r}, how="hang")
            ranks.run({children!r}, 2, arguments=arguments, group=False, on_step=end)
        except KeyboardInterrupt:
            ranks.close()
    """
    names = {"function": at("value"), "children": at("children"), "folder": str(tmp_path)}
    names |= {"how": how, "busy": busy, "ranks": 2 if busy else 1}
    client = subprocess.Popen(
        [sys.executable, "-P", "-c", textwrap.dedent(code).format(**names)],
        stdout=subprocess.PIPE,
        text=True,
        env=python_environment(),
        start_new_session=True,
    )
    try:
        assert client.stdout is not None
        session = int(client.stdout.readline())
        client.wait(60)
        wait_until(lambda: not of_session(session), lambda: str(of_session(session)))
        pids = [int(pid) for file in tmp_path.iterdir() for pid in file.read_text().split()]
        assert bool(pids) == busy, "the ranks did not start their children"
        wait_until(lambda: not any(map(is_running, pids)), "what ranks started still runs")
    finally:
        for each in of_session(session):
            os.kill(each, signal.SIGKILL)
        client.stdout.close()


def test_no_folder_is_left_over(tmp_path):
    with Ranks(environment={"TMPDIR": str(tmp_path)}) as ranks:
        assert ranks.run(at("value"), 2, timeout_s=60).ok
        ranks.run(at("dies"), 2, arguments={"culprit": 1, "how": "SIGKILL"}, timeout_s=60)
    left = [entry.name for entry in tmp_path.iterdir() if entry.name.startswith("portagpu")]
    assert not left, f"folders were left: {left}"


def test_a_world_that_cannot_be_set_up_is_one_line(tmp_path):
    with Ranks(environment={"TMPDIR": str(tmp_path)}) as ranks:
        assert ranks.run(at("value"), 1, group=False).ok
        for entry in tmp_path.iterdir():
            entry.unlink()
        tmp_path.rmdir()
        with pytest.raises(PortagpuError, match="cannot run: there is no folder for temp"):
            ranks.run(at("value"), 1, group=False)

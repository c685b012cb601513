"""``gpu.comm.init`` and ``shutdown``: every launcher, and every way to fail, on real processes."""

from __future__ import annotations

import os
import socket
import tempfile
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import torch.distributed as dist

import portagpu
from portagpu.base.errors import CollectiveError, RankLost, Unsupported
from portagpu.devices.collectives import init as init_module
from portagpu.devices.collectives import rendezvous as meeting
from portagpu.devices.collectives import stores
from portagpu.devices.collectives.rendezvous import (
    Member,
    Problem,
    is_lost,
    leave,
    own_process,
    raise_broken,
    raise_together,
)
from portagpu.devices.collectives.stores import Meeting, Overrun, watched
from tests.support.processes import descendants
from tests.support.waits import LOST_S, wait_until

if TYPE_CHECKING:
    from portagpu.runs.world import Ranks

RANKS = "tests.support.comm_ranks"
LIMIT_S = 60.0


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No launcher started the tests."""
    starts = ("SLURM_", "OMPI_", "PMI", "MV2_", "MPI_", "MASTER_", "TORCHELASTIC_")
    names = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}
    for name in [name for name in os.environ if name in names or name.startswith(starts)]:
        monkeypatch.delenv(name)


# below the ports of outgoing connections, where another test's may be; each is used once
PORTS = iter(range(12000 + os.getpid() % 70 * 100, 20000))


def free_port() -> int:
    for port in PORTS:
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise AssertionError("no port is free")


def values(ranks: Ranks, function: str, world: int, **arguments: Any) -> list[Any]:
    lost = arguments.pop("lost", ())
    found = ranks.run(
        f"{RANKS}:{function}",
        world,
        arguments=arguments,
        lost=lost,
        backend="cpu",
        group=False,
        timeout_s=LIMIT_S,
    ).values
    assert ranks._child is not None
    assert not descendants(ranks._child.pid), "a process of the world is left"
    return found


def launcher_variables(name: str, rank: int, port: int) -> dict[str, str]:
    """As two ranks of one machine have them."""
    here = {"MASTER_PORT": str(port)}
    sets = {
        "torchrun": {
            "RANK": f"{rank}",
            "WORLD_SIZE": "2",
            "LOCAL_RANK": f"{rank}",
            "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
        },
        "Slurm": {
            "SLURM_PROCID": f"{rank}",
            "SLURM_NTASKS": "2",
            "SLURM_LOCALID": f"{rank}",
            "SLURM_JOB_NODELIST": "localhost",
            "SLURM_JOB_ID": "7",
            "SLURM_STEP_ID": "0",
        },
        "Open MPI": {
            "OMPI_COMM_WORLD_RANK": f"{rank}",
            "OMPI_COMM_WORLD_SIZE": "2",
            "OMPI_COMM_WORLD_LOCAL_RANK": f"{rank}",
            "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
        },
        "MPI": {"PMI_RANK": f"{rank}", "PMI_SIZE": "2", "MASTER_ADDR": "localhost"},
    }
    return here | sets[name]


@pytest.mark.parametrize("name", ["torchrun", "Slurm", "Open MPI", "MPI"])
def test_ranks_of_every_launcher_join_leave_and_join_again(ranks: Ranks, name: str) -> None:
    port = free_port()
    environment = [launcher_variables(name, rank, port) for rank in range(2)]
    for rank, found in enumerate(values(ranks, "join", 2, environment=environment)):
        for seen in found["seen"]:
            assert seen["sum"] == 2 * (1.0 + 2.0)
            assert (seen["rank"], seen["world"], seen["local"]) == (rank, 2, [rank, 2])
            assert (seen["launcher"], seen["engine"]) == (name, "Gloo")
            assert seen["members"] == [0, 1]
            assert seen["pid"]
        assert not found["changed"], "the second run left other things than the first"
        assert found["left"] == [["MainThread"], False]


@pytest.mark.parametrize("how", ["tcp", "file"])
def test_arguments_need_no_variable(ranks: Ranks, how: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "store"
        method = f"tcp://127.0.0.1:{free_port()}" if how == "tcp" else f"file://{file}"
        reported = values(ranks, "join", 2, numbers=[0, 1], world_size=2, init_method=method)
        assert not list(Path(folder).iterdir()), "the store's file is left"
    assert [seen["sum"] for found in reported for seen in found["seen"]] == [6.0] * 4
    assert {seen["launcher"] for found in reported for seen in found["seen"]} == {"arguments"}
    assert not any(found["changed"] for found in reported)


def test_a_rank_goes_on_when_the_stores_file_is_removed(ranks: Ranks, tmp_path: Path) -> None:
    """torch's store writes to a file that it finds when it ends, which may be after that."""
    options = {"method": f"file://{tmp_path}/store", "note": str(tmp_path)}
    assert values(ranks, "keeps_its_group", 2, **options) == [[False, False]] * 2


def test_alone_without_any_variable(ranks: Ranks) -> None:
    (found,) = values(ranks, "join", 1)
    seen = found["seen"][1]
    assert (seen["launcher"], seen["rank"], seen["world"]) == ("alone", 0, 1)
    assert seen["local"] == [0, 1]
    assert not found["changed"]


def check_afterwards(found: dict[str, Any]) -> None:
    """The process has no group and no thread, and can begin again."""
    assert found["alone"] == 1
    assert found["threads"] == ["MainThread"]
    assert not found["group"]


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_rank_that_never_comes_is_named(ranks: Ranks, victim: int) -> None:
    reported = values(ranks, "fail", 3, victim=victim, port=free_port(), world_size=[3] * 3)
    for rank, found in enumerate(reported):
        if rank == victim:
            continue
        name, message, lost = found["first"]
        assert (name, lost) == ("RankLost", [victim])
        assert "\n" not in message
        assert f"rank {victim}" in message
        if victim:
            others = " and ".join(str(each) for each in range(3) if each != victim)
            assert f"did not come within 4 s, ranks {others} did" in message
        check_afterwards(found)


def test_ranks_that_disagree_on_the_world_size_name_both(ranks: Ranks) -> None:
    for found in values(ranks, "fail", 3, port=free_port(), world_size=[3, 3, 4]):
        name, message, _ = found["first"]
        assert name == "CollectiveError"
        assert "says that there are" in message
        assert "3" in message
        assert "4" in message
        assert "rank 2" in message
        check_afterwards(found)


def test_two_processes_with_one_rank_are_named(ranks: Ranks) -> None:
    options = {"world_size": [3] * 3, "numbers": [0, 1, 1]}
    for found in values(ranks, "fail", 3, port=free_port(), **options):
        name, message, _ = found["first"]
        assert name == "CollectiveError"
        assert message.startswith("two processes have rank 1: ")
        check_afterwards(found)


def test_a_port_in_use_says_what_to_set(ranks: Ranks) -> None:
    with socket.create_server(("", free_port())) as other:
        port = other.getsockname()[1]
        first, second = values(ranks, "fail", 2, port=port, world_size=[2] * 2)
    assert first["first"][0] == "CollectiveError"
    assert f"port {port} is in use" in first["first"][1]
    assert "set MASTER_PORT" in first["first"][1]
    assert second["first"][0] == "RankLost"
    assert second["first"][2] == [0]
    for found in (first, second):
        assert "\n" not in found["first"][1]
        check_afterwards(found)


@pytest.mark.parametrize("timeout_s", [0.5, 4.0])
def test_a_rank_0_under_a_foreign_address_says_what_to_set(timeout_s: float) -> None:
    with pytest.raises(CollectiveError) as caught:
        portagpu.backend("cpu").comm.init(
            rank=0,
            world_size=2,
            init_method=f"tcp://no-such-host.invalid:{free_port()}",
            timeout_s=timeout_s,
        )
    said = str(caught.value)
    assert said.startswith("rank 0 does not reach its own store at no-such-host.invalid:")
    assert "set MASTER_ADDR" in said
    assert "\n" not in said


def test_a_store_that_ends_after_it_answered_is_not_waited_for(ranks: Ranks) -> None:
    """torch's client tries again for at least 2 s, and cannot be cut off meanwhile."""
    ((name, message, lost),) = values(ranks, "joins_what_ends", 1)
    assert (name, lost) == ("RankLost", [0])
    assert "did not come or is gone: it does not answer; look at" in message


def test_the_store_of_another_run_is_not_joined(ranks: Ranks) -> None:
    store = dist.TCPStore(  # type: ignore[attr-defined]
        "127.0.0.1", free_port(), None, True, wait_for_workers=False
    )
    (_, found) = values(ranks, "fail", 2, victim=0, port=store.port, world_size=[2] * 2)
    assert found["first"][0] == "RankLost"
    assert "what answers there is not a store of this run" in found["first"][1]
    check_afterwards(found)


def test_two_ranks_on_one_device_are_named(ranks: Ranks) -> None:
    for found in values(ranks, "one_device", 3, port=free_port(), devices=["a", "b", "a"]):
        name, message, _ = found
        assert name == "CollectiveError"
        assert "have one device" in message
        assert "portagpu.backend()" in message
        assert {"0", "2"} <= {*message.replace(",", " ").split()}


@pytest.mark.parametrize(("victim", "how"), [(1, "killed"), (1, "stopped"), (0, "stopped")])
def test_shutdown_does_not_wait_for_a_lost_rank(ranks: Ranks, victim: int, how: str) -> None:
    reported = values(ranks, "lose", 2, port=free_port(), victim=victim, how=how, lost=[victim])
    found = reported[1 - victim]
    name, _, lost = found.pop("first")
    assert (name, lost) == ("RankLost", [victim])
    assert found == {"threads": ["MainThread"], "alone": 1, "long": False}


@pytest.mark.parametrize(("slow", "world"), [([0], 3), ([1, 3], 4)])
def test_ranks_that_hang_are_warned_of_by_all_others(
    ranks: Ranks, slow: list[int], world: int
) -> None:
    options = {"victims": slow, "how": "hangs", "after": "groups", "lost": slow}
    reported = values(ranks, "lost_before_shutdown", world, port=free_port(), **options)
    words, them = ("ranks 1 and 3", "them") if len(slow) > 1 else ("rank 0", "it")
    after = f"within {LOST_S:g} s and may still be at work; going on without {them}"
    said = f"{words} did not shut down {after}"
    rest = {"first": None, "again": None, "alone": 1, "threads": ["MainThread"]}
    survivors = [found for rank, found in enumerate(reported) if rank not in slow]
    assert survivors == [{**rest, "said": f"{said}\n"}] * (world - len(slow))


def test_all_wait_for_the_last_rank(ranks: Ranks) -> None:
    assert values(ranks, "waits_for_the_last", 3, port=free_port()) == [None] * 3


@pytest.mark.parametrize("error", ["none", "block", "finally"])
def test_the_programs_own_error_comes_before_a_lost_rank(ranks: Ranks, error: str) -> None:
    options = {"error": error, "lost": [0]}
    reported = values(ranks, "rank_0_is_lost_and_block_ends", 2, port=free_port(), **options)
    (name, message, lost), said, group = reported[1]
    assert not group
    if error == "none":
        assert (name, lost, said) == ("RankLost", [0], [])
    else:
        assert (name, message) == ("ValueError", "the program's own")
        warned = [[level, line.split(",")[0]] for level, line in said]
        assert warned == ([["WARNING", "rank 0"]] if error == "finally" else [])


def members(seen: list[bool | None], monkeypatch: pytest.MonkeyPatch) -> list[Member]:
    """Members whose processes all ranks see so; None is one of another machine."""
    monkeypatch.setattr(meeting, "is_lost", lambda pid, started: seen[pid])
    kernels = ["here" if each is not None else "there" for each in seen]
    return [
        Member(
            rank=rank,
            world_size=len(seen),
            host="a",
            machine=kernel,
            pid=rank,
            device=None,
            pid_namespace="pid:[1]",
        )
        for rank, kernel in enumerate(kernels)
    ]


def test_ranks_that_wait_to_leave_read_who_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one that gives up looks at all, and the others say the same before their limit."""
    store = dist.HashStore()  # type: ignore[attr-defined]
    four = members([False, False, True, False], monkeypatch)
    assert not leave(store, 1, four, 0.0, holds=False), "without a limit nobody is lost"
    store.set("left/1", "")
    for rank, limit in ((0, 0.01), (1, 300.0)):
        with pytest.raises(RankLost) as caught:
            leave(store, rank, four, limit, holds=False)
        assert caught.value.ranks == (2,), "rank 3 is only slow"
        said = "rank 2 did not shut down within 0.01 s, ranks 0 and 1 did: it has ended or is "
        assert str(caught.value) == f"{said}stopped; look at the output of rank 2"
    with pytest.raises(RankLost, match="rank 2 did not"):
        leave(store, 2, four, 300.0, holds=False)
    assert not leave(store, 2, four, 0.0, holds=False)


def test_ranks_that_are_only_slow_are_not_lost(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = dist.HashStore()  # type: ignore[attr-defined]
    four = members([False, False, None, False], monkeypatch)
    store.set("left/1", "")
    for rank, limit in ((0, 0.01), (1, 300.0), (2, 300.0), (3, 300.0)):
        assert not leave(store, rank, four, limit, holds=True)
    said = "ranks 2 and 3 did not shut down within 0.01 s and may still be at work; going on "
    assert caplog.messages == [f"{said}without them"] * 2


@pytest.mark.parametrize(
    ("ended", "lost", "words"),
    [(True, (2,), "rank 2 came"), (False, (1, 2), "ranks 1 and 2 came")],
)
def test_who_is_late_in_forming_the_group_is_not_lost_where_another_has_ended(
    monkeypatch: pytest.MonkeyPatch, ended: bool, lost: tuple[int, ...], words: str
) -> None:
    """A busy machine delays rank 1."""
    monkeypatch.setattr(meeting, "_BROKEN_S", 0.0)
    store = dist.HashStore()  # type: ignore[attr-defined]
    three = members([False, False, ended], monkeypatch)
    with pytest.raises(RankLost, match=f"^{words}, and did not come back") as caught:
        raise_broken(store, three[0], three, "no answer within 4 s", holds=False)
    assert caught.value.ranks == lost


def test_a_rank_of_another_machine_says_who_is_lost_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 sees no other process; rank 1, which still has time, sees that rank 2 has ended."""
    store = dist.HashStore()  # type: ignore[attr-defined]
    three = members([None, False, True], monkeypatch)
    monkeypatch.setattr(meeting, "_LOOK_S", LIMIT_S)
    said: list[tuple[int, ...]] = []

    def wait(rank: int, limit: float) -> None:
        with pytest.raises(RankLost) as caught:
            leave(store, rank, three, limit, holds=False)
        said.append(caught.value.ranks)

    other = threading.Thread(target=wait, args=(1, 300.0), daemon=True)
    other.start()
    wait_until(lambda: store.check(["left/1"]), "rank 1 does not leave")
    wait(0, 0.01)
    other.join(LIMIT_S)
    assert said == [(2,), (2,)]


def test_all_can_still_leave_together_when_one_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    store = dist.HashStore()  # type: ignore[attr-defined]
    two = members([False, False], monkeypatch)
    store.set("left/1", "")
    store.set("late", "")
    assert leave(store, 0, two, 300.0, holds=False)
    assert leave(store, 1, two, 300.0, holds=False)


@pytest.mark.parametrize(
    ("state", "started", "lost"),
    [
        ("S", 700, False),
        ("R", 700, False),
        ("D", 700, False),
        ("Z", 700, True),
        ("X", 700, True),
        ("T", 700, True),
        ("t", 700, True),
        ("S", 701, True),
    ],
)
def test_a_process_is_lost_that_has_ended_or_is_stopped(
    tmp_path: Path, state: str, started: int, lost: bool
) -> None:
    fields = [state, *map(str, range(4, 22)), str(started), "23", "24"]
    (tmp_path / "7").mkdir()
    (tmp_path / "7/stat").write_text(f"7 (a) Z (b) {' '.join(fields)}\n")
    assert is_lost(7, 700, tmp_path) is lost


def test_a_process_that_is_not_there_is_lost_unless_it_is_hidden(tmp_path: Path) -> None:
    # above the largest number that Linux gives
    assert is_lost((1 << 22) + 1, 700, tmp_path) is True
    assert is_lost(os.getpid(), 700, tmp_path) is None
    (tmp_path / "7").mkdir()
    (tmp_path / "7/stat").write_text("7 (a) S 1")
    assert is_lost(7, 700, tmp_path) is None


def test_a_process_knows_itself_where_proc_shows_it(tmp_path: Path) -> None:
    namespace, started = own_process()
    assert namespace == str(Path("/proc/self/ns/pid").readlink())
    assert is_lost(os.getpid(), started) is False
    (tmp_path / "self").symlink_to(str(os.getpid() + 1))
    with pytest.raises(OSError, match="another namespace"):
        own_process(tmp_path)


@pytest.mark.parametrize(("seen", "lost"), [(False, False), (True, True), (None, True)])
def test_a_rank_0_at_work_is_not_lost_although_its_store_is_silent(
    seen: bool | None,
    lost: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    cut = threading.Event()

    class Silent:
        def set(self, key: str, value: str) -> None:
            cut.wait(LIMIT_S)
            raise RuntimeError("closed")

    class Cut(Meeting):
        def cut(self) -> None:
            cut.set()

    there = Cut(None, "there", of_rank_0=True)
    two = tuple(members([seen, False], monkeypatch))
    run = init_module._Run(there, Silent(), None, 1, two, os.getpid())  # type: ignore[arg-type]
    monkeypatch.setattr(init_module, "_run", run)
    monkeypatch.setattr(stores, "_LATE_S", 0.0)
    if lost:
        with pytest.raises(RankLost, match="rank 0, which holds the store"):
            init_module.shutdown(0.01)
    else:
        init_module.shutdown(0.01)
    warned = [message.split(" and ")[0] for message in caplog.messages]
    assert warned == ([] if lost else ["rank 0 did not shut down within 0.01 s"])


@pytest.mark.parametrize(
    "other", [{"machine": "b"}, {"pid_namespace": "pid:[2]"}, {"pid_namespace": ""}]
)
def test_nobody_looks_at_a_process_of_another_machine_or_container(
    other: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    me, there = members([True, True], monkeypatch)
    assert meeting.judged(me, there) is True
    assert meeting.judged(me, replace(there, **other)) is None  # type: ignore[arg-type]
    blank = {"pid_namespace": ""}
    assert meeting.judged(replace(me, **blank), replace(there, **blank)) is None  # type: ignore[arg-type]


class _Ends:
    """A store that ends when it is asked what the others wrote."""

    def add(self, key: str, amount: int) -> int:
        return amount

    def set(self, key: str, value: str) -> None: ...

    def check(self, keys: list[str]) -> bool:
        raise RuntimeError("it ended")


def test_what_a_rank_found_stays_when_the_store_ends_or_is_cut_off() -> None:
    def find() -> None:
        raise_together(_Ends(), Problem("rank 1 is lost", (1,)), 2, 0.0, holds=True)  # type: ignore[arg-type]

    with pytest.raises(RankLost, match="rank 1 is lost"):
        find()
    with pytest.raises(RuntimeError, match="it ended"):
        raise_together(_Ends(), None, 2, 0.0, holds=True)  # type: ignore[arg-type]
    cut = threading.Event()

    def wait_and_find() -> None:
        cut.wait(LIMIT_S)
        find()

    class Cut(Meeting):
        def cut(self) -> None:
            cut.set()

    there = Cut(None, "there", of_rank_0=True)
    with pytest.raises(RankLost, match="rank 1 is lost"):
        stores.in_time(there, 1, -stores._LATE_S, wait_and_find)


def test_a_watched_call_is_cut_when_it_is_late() -> None:
    def fail() -> None:
        raise RuntimeError("gone")

    cut = threading.Event()
    assert watched(LIMIT_S, lambda: 3, cut.set) == 3
    with pytest.raises(RuntimeError, match="gone"):
        watched(LIMIT_S, fail, cut.set)
    assert not cut.is_set()
    with pytest.raises(Overrun) as caught:
        watched(0.0, lambda: fail() if cut.wait(LIMIT_S) else None, cut.set)
    assert str(caught.value.__cause__) == "gone"


def test_connections_of_the_program_are_not_cut(ranks: Ranks) -> None:
    found = values(ranks, "keeps_other_sockets", 2, port=free_port(), victim=1, lost=[1])
    assert found[0] == [True, True]


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("how", ["tcp", "file"])
def test_ctrl_c_ends_what_waits_for_other_ranks(
    ranks: Ranks, tmp_path: Path, how: str, number: int
) -> None:
    method = f"tcp://127.0.0.1:{free_port()}" if how == "tcp" else f"file://{tmp_path / 'store'}"
    found = values(ranks, "interrupted", 1, method=method, number=number)
    assert found == [["interrupted", 1, "interrupted", 1, 1]]


def test_a_fork_of_a_rank_does_not_end_its_group(ranks: Ranks) -> None:
    for total, said in values(ranks, "forks", 2, port=free_port()):
        assert total == 2.0
        assert "this process was forked from a rank" in said


def test_the_groups_store_waits_as_long_as_the_group(ranks: Ranks) -> None:
    """NCCL waits there for the id that a late rank writes."""
    assert values(ranks, "store_limit", 2, port=free_port()) == [[1800.0, 77.0]] * 2


def test_a_rank_that_raises_leaves_at_once(ranks: Ranks) -> None:
    reported = values(ranks, "raises_inside", 2, port=free_port())
    assert reported == [["", False, 1], ["'mine'", False, 1]]


def test_a_group_that_lives_on_holds_no_port(training_ranks: Ranks) -> None:
    assert values(training_ranks, "model_lives_on", 2, port=free_port()) == [[True, 2, True]] * 2


def test_a_checked_world_names_both_sides(ranks: Ranks) -> None:
    import torch

    hooks = hasattr(torch._C._distributed_c10d.ProcessGroup, "register_pre_hook")
    for found in values(ranks, "checked", 2, port=free_port()):
        name, message, _ = found["first"]
        assert name == "CollectiveMismatch"
        assert "rank 1 called" in message or "rank 0 called" in message
        assert found["covers"] is hooks
        assert (found["plain"] is not None) is hooks


def test_broken_variables_stop_init_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    gpu = portagpu.backend("cpu")
    with pytest.raises(CollectiveError, match="RANK is set and WORLD_SIZE is not"):
        gpu.comm.init()
    with gpu.comm.init(rank=0, world_size=1) as world:
        assert world.world_size == 1


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"timeout_s": 0}, ValueError, "timeout_s is a number of seconds above 0"),
        ({"timeout_s": float("inf")}, ValueError, "timeout_s is a number"),
        ({"collective_timeout_s": -1}, ValueError, "collective_timeout_s is a number"),
        ({"rank": 0}, ValueError, "give both rank and world_size"),
        ({"rank": 2, "world_size": 2}, ValueError, "numbered from 0 to 1"),
        ({"rank": True, "world_size": 2}, TypeError, "rank is an int"),
        ({"init_method": "udp://x"}, ValueError, "init_method is tcp://HOST:PORT"),
        ({"init_method": "tcp://x"}, ValueError, "init_method is tcp://HOST:PORT"),
        ({"init_method": "tcp://x:99999"}, ValueError, "init_method is tcp://HOST:PORT"),
        ({"init_method": "file://here/x"}, ValueError, "init_method is tcp://HOST:PORT"),
        ({"init_method": "file:///nowhere/x"}, CollectiveError, "cannot be written"),
        ({"rank": 0, "world_size": 2}, CollectiveError, "set MASTER_ADDR to the host of rank 0"),
    ],
)
def test_arguments_that_make_no_sense(
    options: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said) as caught:
        portagpu.backend("cpu").comm.init(**options)
    assert "\n" not in str(caught.value)
    assert not dist.is_initialized()


def test_a_store_or_an_init_method_not_both() -> None:
    store = dist.HashStore()  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="not both"):
        portagpu.backend("cpu").comm.init(store=store, init_method="env://")


def test_a_given_store_serves_one_run_after_another() -> None:
    comm, store = portagpu.backend("cpu").comm, dist.HashStore()  # type: ignore[attr-defined]
    for _ in range(2):
        with comm.init(rank=0, world_size=1, store=store) as world:
            assert world.where == "the given store"
            with pytest.raises(CollectiveError, match="before another init"):
                comm.init()
    assert not dist.is_initialized()


def test_a_device_without_a_library_has_no_world() -> None:
    comm = portagpu.backend("cpu").comm.none("cpu")
    with pytest.raises(Unsupported):
        comm.init()
    with pytest.raises(Unsupported):
        comm.shutdown()


def test_shutdown_without_a_group_does_nothing() -> None:
    comm = portagpu.backend("cpu").comm
    comm.shutdown()
    comm.shutdown()
    with pytest.raises(ValueError, match="number of seconds from 0"):
        comm.shutdown(-1.0)


def test_shutdown_destroys_a_group_of_the_program() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    portagpu.backend("cpu").comm.shutdown()
    assert not dist.is_initialized()

"""The doctor on dumps of torch's flight recorder, real and written ones, next to torch's own."""

from __future__ import annotations

import copy
import io
import json
import os
import pickle
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from portagpu.base.errors import RecordingError
from portagpu.checks.collectives_doctor import DoctorOptions, doctor, engine, known_findings, stalls
from portagpu.checks.collectives_doctor.findings import to_result
from portagpu.checks.collectives_doctor.flight_recorder import (
    load_data,
    looks_like_dump,
    rank_of,
    read_dump,
)
from portagpu.checks.collectives_doctor.stalls import judge_dumps
from portagpu.facts.readings.model import FormatError
from portagpu.runs.results.run import Verdict
from tests.support.looped import looped

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from portagpu.runs.results.run import Result, Run
    from portagpu.runs.world import Ranks


def trusted(data: bytes) -> Any:
    """What pickle itself reads; the data is this test's own."""
    return pickle.loads(data)  # noqa: S301


# ---- written dumps


def entry(record: int, name: str = "all_reduce", **other: Any) -> dict[str, Any]:
    """One entry as FlightRecorderDetail.hpp writes it."""
    return {
        "frames": [
            {"name": "all_reduce", "filename": "/x/torch/distributed/c10d.py", "line": 1},
            {"name": "step", "filename": "train.py", "line": 10 + record},
        ],
        "record_id": record,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": record + 1,
        "p2p_seq_id": 0,
        "op_id": record + 1,
        "profiling_name": f"nccl:{name}",
        "time_created_ns": 1000 + record,
        "input_sizes": [[4, 4]],
        "input_dtypes": ["Float"],
        "output_sizes": [[4, 4]],
        "output_dtypes": ["Float"],
        "state": "completed",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": True,
        "timeout_ms": 600000,
        "is_p2p": False,
        **other,
    }


OPEN = {"state": "started", "retired": False}


def document(entries: Sequence[Mapping[str, Any]], world: int = 2, **other: Any) -> dict[str, Any]:
    ranks = str(list(range(world)))
    return {
        "version": "2.10",
        "comm_lib_version": "2.27.7",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}},
        "pg_status": {},
        "entries": list(entries),
        **other,
    }


def judged(tmp_path: Path, *documents: Mapping[str, Any], as_json: bool = False) -> Run:
    """The doctor's run on one dump of each rank."""
    for rank, each in enumerate(documents):
        file = tmp_path / f"nccl_trace_rank_{rank}"
        file.write_bytes(json.dumps(each).encode() if as_json else pickle.dumps(each, 2))
    return doctor(DoctorOptions(paths=[tmp_path]))


def problems(run: Run) -> list[tuple[str, str | None]]:
    """(finding, who) of all that are not PASS."""
    return [(name(r), r.device) for r in run.results if r.verdict is not Verdict.PASS]


def name(result: Result) -> str:
    return result.id.rpartition("/")[2]


def evidence(run: Run, finding: str) -> str:
    return next(r.reason for r in run.results if name(r) == finding)


@pytest.mark.parametrize("as_json", [False, True])
def test_the_rank_that_is_late_is_named_with_what_the_others_wait_for(
    tmp_path: Path, as_json: bool
) -> None:
    ahead = [entry(0), entry(1), entry(2, **OPEN)]
    run = judged(tmp_path, document(ahead), document([entry(0), entry(1)]), as_json=as_json)
    assert problems(run) == [("behind", "rank 1")]
    reported = evidence(run, "behind")
    assert "all_reduce of Float [4, 4], number 3 of group 0 (default_pg)" in reported
    assert "in which rank 0 waits in step (train.py:12)" in reported
    assert "its last call was all_reduce of Float [4, 4], number 2" in reported
    assert "step (train.py:11)" in reported
    assert (run.verdict, run.culprit) == (Verdict.FAIL, "rank 1")


def test_ranks_in_step_are_a_pass(tmp_path: Path) -> None:
    run = judged(tmp_path, *[document([entry(0), entry(1)])] * 2)
    assert run.verdict is Verdict.PASS
    assert evidence(run, "dumps") == "ranks 0 and 1: 4 calls in 1 group"


def test_a_rank_that_is_ahead_of_finished_calls_is_not_a_problem(tmp_path: Path) -> None:
    """The dumps of a run that goes well are not made at one time."""
    first = document([entry(0, "broadcast"), entry(1, "broadcast")])
    assert judged(tmp_path, first, document([entry(0, "broadcast")])).verdict is Verdict.PASS


def test_only_what_every_full_recorder_still_has_is_compared(tmp_path: Path) -> None:
    late = [entry(n) for n in range(5, 9)]
    run = judged(tmp_path, document([entry(n) for n in range(7, 9)]), document(late))
    assert run.verdict is Verdict.PASS


def test_the_rank_that_differs_from_most_is_the_one(tmp_path: Path) -> None:
    usual = document([entry(0, **OPEN)], world=3)
    odd = document([entry(0, input_sizes=[[5, 4]], output_sizes=[[5, 4]], **OPEN)], world=3)
    assert problems(judged(tmp_path, odd, usual, usual)) == [("shape", "rank 0")]


def test_a_call_that_was_left_out_is_reported(tmp_path: Path) -> None:
    def sized(record: int, size: int, **other: Any) -> dict[str, Any]:
        return entry(record, input_sizes=[[size]], output_sizes=[[size]], **other)

    usual = document([sized(0, 8), sized(1, 16), sized(2, 32, **OPEN)], world=3)
    odd = document([sized(0, 8), sized(1, 32, **OPEN)], world=3)
    run = judged(tmp_path, usual, odd, usual)
    assert problems(run) == [("shape", "rank 1")]
    assert "rank 1 left out a call" in evidence(run, "shape")


def test_two_groups_in_different_order_are_reported_as_that(tmp_path: Path) -> None:
    config = {
        "0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"},
        "7": {"name": "7", "desc": "tensor", "ranks": "[0, 1]"},
    }
    here = entry(0, **OPEN)
    there = entry(0, process_group=("7", "tensor"), **OPEN)
    run = judged(tmp_path, document([here], pg_config=config), document([there], pg_config=config))
    assert problems(run) == [("other-group", "rank 1"), ("other-group", "rank 0")]
    assert "it waits in all_reduce of Float [4, 4], number 1 of group 7" in evidence(
        run, "other-group"
    )


def test_subgroups_of_one_name_and_other_ranks_are_not_one_group(tmp_path: Path) -> None:
    def of(rank: int) -> dict[str, Any]:
        config = {"1": {"name": "1", "desc": "sub", "ranks": f"[{rank}]"}}
        size = [[rank + 4]]
        own = entry(0, process_group=("1", "sub"), input_sizes=size, output_sizes=size)
        return document([own], pg_config=config)

    assert judged(tmp_path, of(0), of(1)).verdict is Verdict.PASS


def test_a_rank_without_a_dump_is_named(tmp_path: Path) -> None:
    run = judged(tmp_path, *[document([entry(0)], world=4)] * 2)
    assert problems(run) == [("missing-dump", None)]
    assert evidence(run, "missing-dump") == "no dump of ranks 2 and 3, of 4 ranks that are known"
    assert run.exit_code == 3


def test_a_rank_that_died_is_named_where_the_others_wait(tmp_path: Path) -> None:
    waits = document([entry(0), entry(1, **OPEN)], world=3)
    run = judged(tmp_path, waits, waits)
    assert problems(run) == [("missing-dump", "rank 2"), ("in-flight", None)]
    assert evidence(run, "in-flight").endswith("; no dump of rank 2, a member too")
    assert run.verdict is Verdict.INCONCLUSIVE


def test_a_collective_that_all_called_and_that_timed_out_is_not_a_fault_of_the_program(
    tmp_path: Path,
) -> None:
    late = document([entry(0), entry(1, state="started", retired=True)])
    run = judged(tmp_path, late, late)
    assert problems(run) == [("timed-out", None)]
    assert "ran out of time after 600 s on ranks 0 and 1" in evidence(run, "timed-out")


def test_a_collective_that_is_running_is_not_a_failure(tmp_path: Path) -> None:
    run = judged(tmp_path, *[document([entry(0, **OPEN)])] * 2)
    assert problems(run) == [("in-flight", None)]
    assert run.verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("operation", "found", "verdict"),
    [
        ("gloo:all_reduce", "in-flight", Verdict.PASS),
        ("gloo:barrier", "in-flight", Verdict.PASS),
        ("gloo:broadcast", "partial", Verdict.INCONCLUSIVE),
        ("nccl:all_reduce", "partial", Verdict.FAIL),
    ],
)
def test_dumps_of_a_job_that_goes_on_differ_by_moments(
    tmp_path: Path, operation: str, found: str, verdict: Verdict
) -> None:
    """Gloo retires a call later and from another thread."""
    state = "scheduled" if operation.startswith("gloo") else "completed"
    done = entry(0, profiling_name=operation, state=state)
    running = done | {"state": "scheduled", "retired": False}
    run = judged(tmp_path, *[document([each], world=3) for each in (done, running, done)])
    assert [kind for kind, _ in problems(run)] == [found]
    assert run.verdict is verdict


def test_a_rank_that_is_late_in_a_running_job_of_gloo_is_still_named(tmp_path: Path) -> None:
    waits = document([entry(0, profiling_name="gloo:all_reduce", **OPEN)], world=3)
    run = judged(tmp_path, waits, document([], world=3), waits)
    assert problems(run) == [("behind", "rank 1")]


def test_versions_of_the_library_that_differ_are_named(tmp_path: Path) -> None:
    usual = document([entry(0)], world=3)
    run = judged(tmp_path, usual, usual, {**usual, "comm_lib_version": "2.26.2"})
    assert problems(run) == [("library-version", "rank 2")]


def p2p(record: int, words: str, **other: Any) -> dict[str, Any]:
    return entry(record, words, **{"is_p2p": True, "p2p_seq_id": record + 1, **other})


def test_a_receive_without_its_send_names_the_sender(tmp_path: Path) -> None:
    sends = document([p2p(0, "send 0->1")])
    takes = document([p2p(0, "recv 1<-0"), p2p(1, "recv 1<-0", **OPEN)])
    run = judged(tmp_path, sends, takes)
    assert problems(run) == [("peer", "rank 0")]
    assert "rank 1 waits in recv 0 to 1 of Float [4, 4]" in evidence(run, "peer")
    assert "rank 0 sends 1 of 2" in evidence(run, "peer")


def test_a_send_and_its_receive_of_other_shapes_are_named(tmp_path: Path) -> None:
    sends = document([p2p(0, "send 0->1", **OPEN)])
    takes = document([p2p(0, "recv 1<-0", output_sizes=[[2]], **OPEN)])
    assert problems(judged(tmp_path, sends, takes)) == [("peer", "rank 1")]


def test_every_kind_has_its_cause_remedy_and_source(tmp_path: Path) -> None:
    for kind in known_findings().values():
        assert all([kind.means, kind.cause, kind.remedy, kind.source]), kind.id
    run = judged(tmp_path, document([entry(0), entry(1, **OPEN)]), document([entry(0)]))
    (behind,) = (r for r in run.results if name(r) == "behind")
    assert set(behind.extra) == {"cause", "remedy", "source"}
    assert behind.extra["remedy"] == known_findings()["behind"].remedy


# ---- next to torch's own analyser

BASES = {
    "all_reduce": ([[4, 4]], [[4, 4]]),
    "allreduce_coalesced": ([[4], [2]], [[4], [2]]),
    "broadcast": ([[4]], [[4]]),
    "reduce": ([[4]], [[4]]),
    "all_gather": ([[4]], [[8]]),
    "_all_gather_base": ([[4]], [[8]]),
    "all_gather_into_tensor_coalesced": ([[4]], [[8]]),
    "reduce_scatter": ([[8]], [[4]]),
    "_reduce_scatter_base": ([[8]], [[4]]),
    "reduce_scatter_tensor_coalesced": ([[8]], [[4]]),
    "gather": ([[4]], [[4], [4]]),
    "scatter": ([[4], [4]], [[4]]),
    "all_to_all": ([[4]], [[4]]),
    "barrier": ([[1]], [[1]]),
}
CHANGES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "input": {"input_sizes": [[6]]},
    "output": {"output_sizes": [[6]]},
    "both": {"input_sizes": [[6]], "output_sizes": [[6]]},
    "dtype": {"input_dtypes": ["Half"], "output_dtypes": ["Half"]},
    "output dtype": {"output_dtypes": ["Half"]},
    "state": {"state": "scheduled", "retired": False},
    "operation": {"profiling_name": "nccl:new_window"},
}


@pytest.mark.torch
@looped("change", CHANGES)
@looped("operation", BASES)
def test_what_torchs_analyser_finds_in_two_calls_is_found(
    tmp_path: Path, operation: str, change: str
) -> None:
    pytest.importorskip("torch")
    from torch.distributed.flight_recorder.components.types import MatchState
    from torch.distributed.flight_recorder.components.utils import match_one_event

    sizes = dict(zip(("input_sizes", "output_sizes"), BASES[operation], strict=True))
    usual = entry(0, operation, **sizes)
    other = {**copy.deepcopy(usual), **CHANGES[change]}
    said = match_one_event(usual, other, {"0": {0, 1}}, "0").state
    wanted = {
        MatchState.FULLY_MATCHED: [],
        MatchState.UNDECIDED: [],
        MatchState.COLLECTIVE_TYPE_MISMATCH: ["operation"],
        MatchState.SIZE_OR_SYNTAX_MISMATCH: ["shape"],
        MatchState.COLLECTIVE_DTYPE_MISMATCH: ["dtype"],
        MatchState.COLLECTIVE_STATE_MISMATCH: ["partial"],
    }[said]
    found = [each for each, _ in problems(judged(tmp_path, document([usual]), document([other])))]
    if found != wanted:
        # torch compares two calls alone, and not the sum of all
        assert (operation, change) in BEYOND_TORCH, f"torch says {said}, and the doctor {found}"
        assert found == [BEYOND_TORCH[operation, change]]


BEYOND_TORCH = {
    # torch decides these two when it has all ranks, by the sums of their elements
    ("all_to_all", "input"): "shape",
    ("all_to_all", "output"): "shape",
}


@pytest.mark.torch
def test_coalesced_calls_are_compared_one_by_one(tmp_path: Path) -> None:
    """The cases of torch's test of its analyser with several calls of one number."""

    def coalesced(sizes: Sequence[int], end: str) -> dict[str, Any]:
        parts = [
            entry(n, "_broadcast_oop", collective_seq_id=1, input_sizes=[[s]], output_sizes=[[s]])
            for n, s in enumerate(sizes)
        ]
        last = entry(len(sizes), end, collective_seq_id=1, input_sizes=[[]], output_sizes=[[]])
        return document([*parts, last])

    both = coalesced([4, 4], "coalesced")
    assert judged(tmp_path, both, both).verdict is Verdict.PASS
    usual, uneven = (coalesced(sizes, "ALLGATHER_coalesced") for sizes in ([4, 4], [4, 5]))
    run = judged(tmp_path, usual, uneven)
    assert [each for each, _ in problems(run)] == ["shape"]
    assert "_broadcast_oop of Float [5]" in evidence(run, "shape")
    run = judged(tmp_path, document([entry(0)]), coalesced([4, 4], "REDUCE_SCATTER_coalesced"))
    assert [each for each, _ in problems(run)] == ["operation"]
    begun = coalesced([4, 4], "REDUCE_SCATTER_coalesced")
    run = judged(tmp_path, {**begun, "entries": begun["entries"][:1]}, begun)
    assert problems(run) == [("behind", "rank 0")]
    assert "rank 0 made 1 of the 3 calls that are number 1" in evidence(run, "behind")
    assert "did not call _broadcast_oop of Float [4] in step (train.py:11)" in evidence(
        run, "behind"
    )


@pytest.mark.torch
def test_every_operation_that_torch_knows_is_a_pass_where_ranks_agree(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from torch.distributed.flight_recorder.components.types import COLLECTIVES

    for operation in sorted(COLLECTIVES):
        sizes = BASES.get(operation, ([[4]], [[4]]))
        usual = document([entry(0, operation, input_sizes=sizes[0], output_sizes=sizes[1])])
        assert judged(tmp_path, usual, usual).verdict is Verdict.PASS, operation


def test_only_the_root_of_a_gather_has_results(tmp_path: Path) -> None:
    root = entry(0, "gather", output_sizes=[[4, 4], [4, 4]])
    other = entry(0, "gather", output_sizes=[[]], output_dtypes=[])
    assert judged(tmp_path, document([root]), document([other])).verdict is Verdict.PASS


def test_sends_and_receives_in_one_batch_are_matched(tmp_path: Path) -> None:
    def batch(rank: int) -> dict[str, Any]:
        peer = 1 - rank
        return document([
            p2p(0, f"send {rank}->{peer}", p2p_seq_id=1),
            p2p(1, f"recv {rank}<-{peer}", p2p_seq_id=1),
            p2p(2, "coalesced", p2p_seq_id=1, input_sizes=[], output_sizes=[]),
        ])  # fmt: skip

    assert judged(tmp_path, batch(0), batch(1)).verdict is Verdict.PASS


# ---- real dumps, of Gloo

KINDS = {
    "fine": [],
    "missing": [("behind", "rank 2")],
    "op": [("operation", "rank 2")],
    "shape": [("shape", "rank 2")],
    "dtype": [("dtype", "rank 2")],
    "root": [("partial", None)],
    "group": [("other-group", "rank 2")],
    "pair": [("alone", "rank 1")],
    "timeout": [("behind", "rank 2")],
    "subgroup": [("members-unknown", None)],
}


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory, rank_server: Ranks) -> Path:
    """A folder with the dumps of three ranks for each kind of fault that leaves them alive."""
    folder = tmp_path_factory.mktemp("dumps")
    for kind in KINDS:
        (folder / kind).mkdir()
        options = {"kind": kind, "folder": str(folder / kind)}
        done = rank_server.run(
            "tests.support.hang_ranks:plant", 3, arguments=options, backend="cpu", timeout_s=60.0
        )
        assert done.ok, done.sentence
    return folder


@pytest.mark.torch
def test_torchs_analyser_dies_on_these_dumps_and_agrees_where_the_names_are_mended(
    real: Path,
) -> None:
    from torch.distributed.flight_recorder.components.builder import build_db
    from torch.distributed.flight_recorder.components.config_manager import JobConfig

    def database(kind: str, *, mended: bool) -> Any:
        details: dict[str, Any] = {}
        for rank in range(3):
            dump = trusted((real / kind / f"rank_{rank}").read_bytes())
            if mended:
                dump["pg_config"] = {
                    name: {"name": name, "desc": desc, "ranks": ranks}
                    for name, desc, ranks in (
                        ("0", "default_pg", "[0, 1, 2]"),
                        ("2", "undefined", "[0, 1, 2]"),
                        ("1", "undefined", "[0, 1]"),
                    )
                }
            details[str(rank)] = {**dump, "rank": rank}
        return build_db(details, JobConfig().parse_args([]), "2.10")

    with pytest.raises(KeyError):
        database("missing", mended=False)
    assert all(each.pass_check for each in database("fine", mended=True).collectives)
    lost = database("missing", mended=True).collectives[-1]
    assert lost.missing_ranks == {2}
    wrong_ones = {"op": "COLLECTIVE_TYPE", "shape": "SIZE_OR_SYNTAX", "dtype": "COLLECTIVE_DTYPE"}
    for kind, said in wrong_ones.items():
        wrong = database(kind, mended=True).collectives[-1].mismatch_collectives
        assert list(wrong) == [2]
        assert said in str(wrong[2].type_of_mismatch)


# ---- hostile and damaged files


class Harmful:
    def __init__(self, how: str, mark: Path) -> None:
        self.how = how
        self.mark = mark

    def __reduce__(self) -> Any:
        if self.how == "call":
            return os.system, (f"touch {self.mark}",)
        if self.how == "eval":
            return eval, (f"__import__('os').mkdir({str(self.mark)!r})",)
        return Path.touch, (self.mark,)


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("how", ["call", "eval", "method"])
def test_a_pickle_that_runs_code_is_refused_before_it_does(
    tmp_path: Path, how: str, protocol: int
) -> None:
    mark = tmp_path / "mark"
    folder = tmp_path / "dumps"
    folder.mkdir()
    data = pickle.dumps(document([entry(0, frames=[Harmful(how, mark)])]), protocol)
    (folder / "rank_0").write_bytes(data)
    (folder / "rank_1").write_bytes(pickle.dumps(document([entry(0)]), 2))
    run = doctor(DoctorOptions(paths=[folder]))
    assert not mark.exists()
    assert ("unread", "rank_0") in problems(run)
    if protocol >= 2:
        assert "would run code" in evidence(run, "unread")
        trusted(data)
        assert mark.exists(), "the pickle does no harm where it is run, and shows nothing"


OPCODES = {
    "global": b"cos\nsystem\n.",
    "instance": b"(ios\nsystem\n.",
    "stack global": b"\x8c\x02os\x8c\x06system\x93.",
    "extension": b"\x82\x01.",
    "persistent id": b"Pid\n.",
    "binary persistent id": b"K\x01Q.",
    "object": b"(cos\nsystem\no.",
    "new object": b"cos\nsystem\n)\x81.",
    "build": b"}}b.",
    "byte array": b"\x96\x01\0\0\0\0\0\0\0x.",
    "buffer": b"\x97.",
    "text number": b"I1\n.",
}


@pytest.mark.parametrize("opcode", OPCODES)
def test_an_opcode_that_is_not_data_is_refused(opcode: str) -> None:
    with pytest.raises(FormatError, match="would run code"):
        load_data(b"\x80\x05" + OPCODES[opcode])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80",
        b"\x80\x02.",
        b"\x80\x02K\x01K\x01.",
        b"\x80\x02h\x05.",
        b"\x80\x02q\x05.",
        b"\x80\x02a.",
        b"\x80\x02e.",
        b"\x80\x02t.",
        b"\x80\x02\x86.",
        b"\x80\x02}(K\x01u.",
        b"\x80\x02K\x01K\x01a.",
        b"\x80\x02}]K\x01s.",
        b"\x80\x02]K\x01K\x01s.",
        b"\x80\x02X\xff\xff\xff\x7fabc.",
        b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7fabc.",
        b"\x80\x02(" + b"(" * 1000,
        b"\x80\x02X\x02\0\0\0\xff\xff.",
    ],
    ids=range(18),
)
def test_a_damaged_pickle_is_one_clear_error(data: bytes) -> None:
    with pytest.raises(FormatError) as caught:
        load_data(data)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_data_reads_as_pickle_reads_it(protocol: int) -> None:
    values: list[Any] = [
        None,
        True,
        False,
        0,
        255,
        256,
        65536,
        -1,
        1 << 40,
        0.5,
        "",
        "ä",
        "x" * 300,
    ]
    values += [[], {}, (), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), [[1]], {"a": {"b": [1, (2,)]}}]
    values.append([values[-1]] * 3)
    for value in [*values, values]:
        assert load_data(pickle.dumps(value, protocol)) == value


@pytest.mark.torch
def test_real_dumps_read_as_pickle_reads_them(real: Path) -> None:
    for file in real.glob("*/rank_?"):
        assert load_data(file.read_bytes()) == trusted(file.read_bytes())


@pytest.mark.parametrize("as_json", [False, True])
def test_a_dump_that_breaks_off_anywhere_is_one_clear_error(as_json: bool) -> None:
    whole = document([entry(0), entry(1)])
    data = json.dumps(whole).encode() if as_json else pickle.dumps(whole, 2)
    assert read_dump(data, "rank_0").rank == 0
    for end in range(1, len(data), 7 if as_json else 3):
        with pytest.raises(FormatError) as caught:
            read_dump(data[:end], "rank_0")
        assert "\n" not in str(caught.value)


def test_damaged_dumps_are_read_or_refused_with_a_format_error() -> None:
    chance = random.Random(13)  # noqa: S311 - seeded on purpose
    whole = pickle.dumps(document([entry(0), p2p(1, "send 0->1"), entry(2, **OPEN)]), 2)
    good = read_dump(whole, "rank_1")
    read = 0
    for _ in range(3000):
        data = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            dump = read_dump(bytes(data), "rank_0")
        except FormatError as error:
            assert "\n" not in str(error)
            continue
        read += 1
        for finding in judge_dumps([dump, good]):
            assert finding.evidence.isprintable()
            to_result(finding)
    assert read > 100


def test_a_group_that_does_not_have_the_rank_that_calls_in_it_is_not_a_reason_to_stop(
    tmp_path: Path,
) -> None:
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[5, 6]"}}
    calls = [entry(0), p2p(1, "send 7->9"), entry(2, **OPEN)]
    run = judged(tmp_path, *[document(calls, pg_config=config)] * 2)
    assert ("missing-dump", None) in problems(run)


@pytest.mark.parametrize(
    "odd",
    [
        [],
        {"version": 2},
        {"version": "2.10", "entries": 3},
        {"version": "2.10", "entries": [3]},
        {"version": "2.10", "entries": [{}]},
        {"version": "2.10", "entries": [{"process_group": ("0", "x")}]},
        {"version": "2.10", "entries": [], "pg_config": {"0": 3}},
        document([entry(0, record_id=[])]),
    ],
)
def test_another_document_is_not_a_dump(odd: Any) -> None:
    with pytest.raises(FormatError, match="not a dump of torch's flight recorder"):
        read_dump(pickle.dumps(odd, 2), "rank_0")


def test_one_object_in_twenty_thousand_places_is_read_once() -> None:
    """A pickle of a megabyte may stand for a terabyte."""
    shapes = [[1] * 64] * 4000
    frames = [{"name": "f", "filename": "x", "line": 1}] * 4000
    same = entry(0, input_sizes=shapes, output_sizes=shapes, frames=frames)
    data = pickle.dumps(document([same] * 20_000), 4)
    assert len(data) < 1 << 20
    dump = read_dump(data, "rank_0")
    assert len(dump.entries) == 20_000
    assert dump.entries[0].inputs is dump.entries[-1].inputs


def test_calls_of_one_number_are_collected_without_copies_of_all_before() -> None:
    """200 000 calls of one number were 20 000 000 000 copied places."""
    calls = [entry(n, collective_seq_id=1) for n in range(100)]
    dump = read_dump(pickle.dumps(document(calls, 1), 2), "rank_0")
    (group,) = stalls._groups({0: dump})
    assert isinstance(group.calls[0][1], list)
    assert len(group.calls[0][1]) == 100
    assert [each.id for each in judge_dumps([dump])] == ["dumps"]


@looped("seed", range(200))
def test_victims_are_those_that_reach_a_rank_that_waits_for_nobody(seed: int) -> None:
    """Compared with a search of every path."""
    chance = random.Random(seed)  # noqa: S311 - seeded on purpose
    waits = stalls._Waits()
    for rank in range(6):
        if awaited := {n for n in range(6) if n != rank and chance.random() < 0.25}:
            waits.whom[rank] = awaited
    waits.differing.update(n for n in range(6) if chance.random() < 0.1)

    def ends(rank: int, path: tuple[int, ...]) -> bool:
        if rank in waits.differing or (path and not waits.whom.get(rank)):
            return True
        onward = waits.whom.get(rank, set()) - {*path, rank}
        return any(ends(each, (*path, rank)) for each in onward)

    assert waits.victims() == {rank for rank in range(6) if ends(rank, ())}


def test_a_dump_beyond_its_limit_is_reported_and_a_log_of_that_size_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "MAX_DOCUMENT_BYTES", 1 << 20)
    (tmp_path / "rank_0").write_bytes(b"\x80\x02" + b"0" * (1 << 20))
    (tmp_path / "report.json").write_bytes(b'{"communicators": []}' + b" " * (1 << 20))
    text = "node1:1:2 [0] NCCL INFO NCCL version 2.27.7\n"
    (tmp_path / "job.log").write_text(text * (1 + (1 << 20) // len(text)))
    run = doctor(DoctorOptions(paths=[tmp_path]))
    assert [r.reason for r in run.results if name(r) == "unread"] == [
        "rank_0: it is larger than 1 MiB",
        "report.json: it is larger than 1 MiB",
    ]
    assert evidence(run, "log").endswith("NCCL 2.27.7")


def test_links_in_a_circle_pipes_and_devices_stop_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "dumps"
    (folder / "below").mkdir(parents=True)
    (folder / "below" / "above").symlink_to(folder)
    (folder / "itself").symlink_to(folder / "itself")
    os.mkfifo(folder / "pipe")
    (folder / "rank_0").write_bytes(pickle.dumps(document([entry(0)], 1), 2))
    assert problems(doctor(DoctorOptions(paths=[folder]))) == []
    run = doctor(DoctorOptions(paths=[folder / "pipe", "/dev/zero"]))
    assert [r.reason for r in run.results] == [
        "pipe: not a regular file",
        "zero: not a regular file",
    ]
    with pytest.raises(RecordingError, match="Too many levels of symbolic links"):
        doctor(DoctorOptions(paths=[folder / "itself"]))


def test_numbers_that_no_machine_has_are_refused_or_left_out() -> None:
    huge = 1 << 2000
    same = entry(0, input_sizes=[[huge] * 64], timeout_ms=huge, state="started")
    dump = read_dump(pickle.dumps(document([same]), 2), "rank_0")
    assert dump.entries[0].inputs == ((),)
    assert dump.entries[0].timeout_ms is None
    for key in ("record_id", "collective_seq_id"):
        with pytest.raises(FormatError, match="instead of a number"):
            read_dump(pickle.dumps(document([entry(0, **{key: huge})]), 2), "rank_0")
    with pytest.raises(FormatError, match="name it as torch does"):
        read_dump(pickle.dumps(document([], rank=huge), 2), "dump")


def test_a_list_inside_itself_does_not_end_the_reader() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(FormatError):
        read_dump(pickle.dumps(document(loop), 2), "rank_0")
    assert read_dump(pickle.dumps(document([entry(0, frames=loop)]), 2), "rank_0").entries


def test_the_rank_is_in_the_name() -> None:
    for file, rank in (
        ("nccl_trace_rank_3", 3),
        ("rank_12.json", 12),
        ("node4/x.7", 7),
        ("rank_0.pickle", 0),
        ("trace", None),
        ("2024.json.txt", None),
    ):
        assert rank_of(file) == rank, file
    with pytest.raises(FormatError, match="name it as torch does"):
        read_dump(pickle.dumps(document([]), 2), "dump")


def test_a_path_without_a_file_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="No such file"):
        doctor(DoctorOptions(paths=[tmp_path / "nothing"]))


def test_a_dump_is_distinguished_from_other_files() -> None:
    stream = io.BytesIO()
    pickle.dump(document([]), stream, 2)
    assert looks_like_dump(stream.getvalue())
    assert looks_like_dump(json.dumps(document([])).encode())
    assert not looks_like_dump(b"NCCL INFO")
    assert not looks_like_dump(b'{"entries": []}')


def test_two_dumps_of_one_rank_are_reported(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "rank_0").write_bytes(pickle.dumps(document([entry(0)], 1), 2))
    (tmp_path / "a" / "rank_0.json").write_text(json.dumps(document([entry(0)], 1)))
    run = doctor(DoctorOptions(paths=[tmp_path]))
    assert problems(run) == [("two-dumps", "rank 0")]
    assert evidence(run, "two-dumps") == "rank 0 has the dumps a/rank_0 and b/rank_0"


def test_a_file_that_cannot_be_read_stops_no_other(tmp_path: Path) -> None:
    (tmp_path / "rank_0").write_bytes(pickle.dumps(document([entry(0)]), 2))
    (tmp_path / "rank_1").write_bytes(pickle.dumps(document([entry(0)]), 2)[:-9])
    with (tmp_path / "rank_2").open("wb") as sparse:
        sparse.truncate((256 << 20) + 1)
    (tmp_path / "rank_3").symlink_to("/etc/passwd")
    run = doctor(DoctorOptions(paths=[tmp_path]))
    assert problems(run) == [("unread", "rank_1"), ("unread", "rank_2"), ("missing-dump", "rank 1")]
    assert evidence(run, "dumps").startswith("rank 0: 1 call")
    assert [r.reason for r in run.results if name(r) == "unread"] == [
        "rank_1: this pickle is incomplete, or the file is not a pickle",
        "rank_2: it is larger than 256 MiB",
    ]


# ---- simulated worlds


GROUPS = {"0": (0, 1, 2, 3), "a": (0, 1, 2), "b": (1, 2, 3)}
SIMULATED = ("stops", "operation", "shape", "dtype", "left out", "too many")


def simulated(seed: int) -> tuple[list[dict[str, Any]], str, int]:
    """(dumps of four ranks, the fault, the faulty rank): each call waits for all of its group.

    A call that differs from the others' never ends, like in a library that compares nothing.
    """
    chance = random.Random(seed)  # noqa: S311 - seeded on purpose
    program = [
        (
            chance.choice(list(GROUPS)),
            chance.choice(["all_reduce", "allreduce_coalesced"]),
            2 + n,
            "Float",
        )
        for n in range(30)
    ]
    fault, culprit = chance.choice(SIMULATED), chance.randrange(4)
    at = chance.choice([n for n, (group, *_) in enumerate(program) if culprit in GROUPS[group]])
    programs = {rank: [each for each in program if rank in GROUPS[each[0]]] for rank in range(4)}
    mine = programs[culprit]
    place = sum(culprit in GROUPS[group] for group, *_ in program[:at])
    group, operation, size, _ = mine[place]
    mine[place:] = {
        "stops": [],
        "operation": [(group, "barrier", size, "Float"), *mine[place + 1 :]],
        "shape": [(group, "all_reduce", 99, "Float"), *mine[place + 1 :]],
        "dtype": [(group, operation, size, "Half"), *mine[place + 1 :]],
        "left out": mine[place + 1 :],
        "too many": [(group, "all_reduce", 98, "Float"), *mine[place:]],
    }[fault]
    if fault == "shape":
        # a difference of shapes is one of operations too where the others call another one
        for rank, each in programs.items():
            programs[rank] = [(call_group, "all_reduce", *rest) for call_group, _, *rest in each]
    return _run(programs), fault, culprit


def _run(programs: Mapping[int, Sequence[tuple[str, str, int, str]]]) -> list[dict[str, Any]]:
    done = dict.fromkeys(programs, 0)
    while True:
        waits = {r: p[done[r]] for r, p in programs.items() if done[r] < len(p)}
        ready = next(
            (
                members
                for group, members in GROUPS.items()
                if all(r in waits and waits[r][0] == group for r in members)
                if len({waits[r] for r in members}) == 1
            ),
            (),
        )
        for rank in ready:
            done[rank] += 1
        if not ready:
            break
    config = {name: {"name": name, "desc": f"g{name}", "ranks": str(list(ranks))}
              for name, ranks in GROUPS.items()}  # fmt: skip
    dumps = []
    for rank, program in programs.items():
        entries, numbers = [], dict.fromkeys(GROUPS, 0)
        for n, (group, operation, size, dtype) in enumerate(program[: done[rank] + 1]):
            numbers[group] += 1
            entries.append(
                entry(
                    n,
                    operation,
                    process_group=(group, f"g{group}"),
                    collective_seq_id=numbers[group],
                    input_sizes=[[size]],
                    output_sizes=[[size]],
                    input_dtypes=[dtype],
                    output_dtypes=[dtype],
                    **(OPEN if n == done[rank] else {}),
                )
            )
        own = {name: each for name, each in config.items() if rank in GROUPS[name]}
        dumps.append(document(entries, pg_config=own))
    return dumps


@looped("seed", range(120))
def test_a_planted_fault_of_a_simulated_world_is_blamed_on_its_rank(
    tmp_path: Path, seed: int
) -> None:
    dumps, fault, culprit = simulated(seed)
    run = judged(tmp_path, *dumps)
    blamed = {who for found, who in problems(run) if found != "in-flight"}
    if fault == "stops":
        assert blamed == {f"rank {culprit}"}, "a rank that only waits is not to blame"
    elif fault == "left out" and not blamed:
        # it was the rank's last call of all: nobody waits, or nobody that is here
        assert all(each["entries"][-1]["state"] == "completed" for each in dumps)
    else:
        # of two ranks that differ, and of a circle, all are reported
        assert f"rank {culprit}" in blamed, [r.reason for r in run.results]


def test_ranks_that_wait_for_each_other_are_reported_as_a_circle(tmp_path: Path) -> None:
    config = {name: {"name": name, "desc": name, "ranks": "[0, 1]"} for name in "ab"}
    here, there = (entry(0, process_group=(name, name), **OPEN) for name in "ab")
    run = judged(tmp_path, *[document([each], pg_config=config) for each in (here, there)])
    assert problems(run) == [("other-group", "rank 1"), ("other-group", "rank 0")]
    assert evidence(run, "other-group").endswith(
        "; they wait for each other: rank 1 for rank 0, rank 0 for rank 1"
    )

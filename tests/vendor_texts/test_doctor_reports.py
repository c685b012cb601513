"""The doctor on reports in JSON: RAS, and the calls that the Inspector plugin measured."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pytest

from portagpu.checks.collectives_doctor import DoctorOptions, doctor, known_findings
from portagpu.checks.collectives_doctor.reports import (
    Reports,
    judge_reports,
    looks_like_report,
    read_report,
)
from portagpu.facts.readings.model import FormatError
from portagpu.runs.results.run import Verdict

if TYPE_CHECKING:
    from pathlib import Path

    from portagpu.runs.results.run import Run


def rank(number: int, calls: int, **status: Any) -> dict[str, Any]:
    """One rank as NCCL 2.28 reports it."""
    known = {"init_state": 0, "async_error": 0, "finalize_called": False, "abort_flag": False}
    return {
        "rank": number,
        "host": "10.0.0.4",
        "pid": 1000 + number,
        "cuda_dev": number,
        "nvml_dev": number,
        "status": {**known, **status},
        "collective_counts": {"Broadcast": 0, "AllReduce": calls},
    }


def state(*ranks: dict[str, Any], missing: tuple[int, ...] = (), dead: bool = False) -> str:
    status = {"unresponsive": True, "considered_dead": dead}
    absent = [
        {"rank": n, "host": "10.0.0.5", "pid": 1000 + n, "cuda_dev": n, "nvml_dev": n,
         "status": status} for n in missing
    ]  # fmt: skip
    communicator = {
        "hash": "0xa1349768e9517ed7",
        "secondary_hash": "0x7c:0x83",
        "size": len(ranks) + len(missing),
        "ranks_count": len(ranks),
        "missing_ranks_count": len(missing),
        "ranks": list(ranks),
        "missing_ranks": absent,
    }
    report = {"nccl_version": "2.28.9", "communicators_count": 1, "communicators": [communicator]}
    return json.dumps(report, indent=2)


def judged(tmp_path: Path, **files: str) -> Run:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    return doctor(DoctorOptions(paths=[tmp_path]))


def problems(run: Run) -> list[tuple[str, str | None]]:
    return [
        (r.id.rpartition("/")[2], r.device) for r in run.results if r.verdict is not Verdict.PASS
    ]


def test_ranks_in_step_are_a_pass(tmp_path: Path) -> None:
    run = judged(tmp_path, a=state(rank(0, 4), rank(1, 4)))
    assert problems(run) == []
    assert run.results[0].reason == "1 reports of 1 communicators, library 2.28.9"


@pytest.mark.parametrize("dead", [False, True])
def test_a_rank_that_is_missing_is_named_with_its_process(tmp_path: Path, dead: bool) -> None:
    run = judged(tmp_path, a=state(rank(0, 4), missing=(1,), dead=dead))
    assert problems(run) == [("rank-missing", "rank 1")]
    said = "is considered dead" if dead else "does not answer"
    assert f"{said} (pid 1001 on 10.0.0.5)" in run.results[1].reason


def test_the_comma_that_a_release_leaves_out_is_put_back(tmp_path: Path) -> None:
    """NCCL 2.28.9 writes a missing rank without the comma before its status."""
    text = state(rank(0, 4), missing=(1,)).replace('"nvml_dev": 1,', '"nvml_dev": 1')
    with pytest.raises(json.JSONDecodeError):
        json.loads(text)
    assert problems(judged(tmp_path, a=text)) == [("rank-missing", "rank 1")]


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ({"async_error": 6}, "it has the error 6"),
        ({"abort_flag": True}, "it is being aborted"),
        ({"init_state": 7}, "it is still being created"),
        ({"init_state": 3}, "its creation failed with 3"),
    ],
)
def test_a_rank_in_trouble_is_named(tmp_path: Path, status: dict[str, Any], said: str) -> None:
    run = judged(tmp_path, a=state(rank(0, 4), rank(1, 4, **status)))
    assert problems(run) == [("rank-state", "rank 1")]
    assert said in run.results[1].reason


def test_fewer_calls_are_a_question_until_nothing_moves(tmp_path: Path) -> None:
    uneven = state(rank(0, 9), rank(1, 8), rank(2, 9))
    assert problems(judged(tmp_path, a=uneven)) == [("rank-slow", "rank 1")]
    moved = state(rank(0, 12), rank(1, 11), rank(2, 12))
    assert problems(judged(tmp_path, a=uneven, b=moved)) == [("rank-slow", "rank 1")]
    run = judged(tmp_path, a=uneven, b=uneven)
    assert problems(run) == [("rank-stopped", "rank 1")]
    assert "made 8 calls of allreduce" in run.results[1].reason


def call(number: int, rank: int = 0, **other: Any) -> str:
    """One object of the Inspector's output, format v4.0."""
    return json.dumps(
        {
            "header": {"id": "0x7f8c496ae9f661", "rank": rank, "n_ranks": 2, "nnodes": 1},
            "metadata": {
                "inspector_output_format_version": "v4.0",
                "git_rev": "",
                "rec_mechanism": "nccl_profiler_interface",
                "dump_timestamp_us": 1748030377748202,
                "hostname": "h",
                "pid": 1639453,
            },
            **({"coll_perf": {"coll": "AllReduce", "coll_sn": number}} if number else {}),
            **other,
        }
    )


def test_measured_calls_are_counted_and_the_rank_that_is_late_is_named(tmp_path: Path) -> None:
    run = judged(
        tmp_path,
        a="\n".join(call(n, 0) for n in (1, 2, 3)),
        b="\n".join(call(n, 1) for n in (1, 2)),
    )
    assert run.results[0].reason == "5 measured calls in 2 files"
    assert problems(run) == [("rank-slow", "rank 1")]


@pytest.mark.parametrize("text", ["", "\n", call(0), f"{call(0)}\n{call(0)}"])
def test_a_plugin_is_active_only_where_its_output_has_calls(tmp_path: Path, text: str) -> None:
    run = judged(tmp_path, **{"inspector-pid7.log": text})
    assert problems(run) == [("plugin-silent", None)]
    assert "inspector-pid7.log" in run.results[0].reason
    assert judged(tmp_path, **{"inspector-pid7.log": f"{text}\n{call(4)}"}).verdict is Verdict.PASS


def test_dropped_calls_are_reported(tmp_path: Path) -> None:
    run = judged(tmp_path, a="\n".join([call(1), call(0, dump_stats={"dropped_total": 5})]))
    assert problems(run) == [("measured-dropped", None)]


def test_reports_that_break_off_or_are_damaged_are_read_or_refused() -> None:
    chance = random.Random(3)  # noqa: S311 - seeded on purpose
    texts = [state(rank(0, 4), rank(1, 3), missing=(2,)), "\n".join(call(n) for n in range(1, 9))]
    for text in texts:
        for end in range(0, len(text), 11):
            damaged = list(text[:end])
            for _ in range(end // 400):
                damaged[chance.randrange(len(damaged))] = chr(chance.randrange(32, 127))
            reports = Reports()
            try:
                read_report("".join(damaged), "x", reports)
            except FormatError as error:
                assert "\n" not in str(error)
            for finding in judge_reports(reports):
                assert finding.id in known_findings()


@pytest.mark.parametrize(
    "odd",
    [
        '{"communicators": [3]}',
        '{"communicators": [{}]}',
        '{"communicators": [{"hash": "x", "ranks": [1]}]}',
        "[1]",
        '{"metadata": 1}',
        '{"communicators": ' + "[" * 100_000,
    ],
    ids=range(6),
)
def test_another_document_is_not_a_report(odd: str) -> None:
    with pytest.raises(FormatError):
        read_report(odd, "x", Reports())


def test_a_report_is_distinguished_from_other_files() -> None:
    assert looks_like_report("x", state(rank(0, 1)).encode())
    assert looks_like_report("x", call(1).encode())
    assert looks_like_report("nccl-inspector-7/a.log", b"")
    assert not looks_like_report("x", b"")
    assert not looks_like_report("inspector", b"NCCL INFO")

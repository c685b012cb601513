"""The doctor on logs of jobs as people publish them; ``job_logs.toml`` has the right answers."""

from __future__ import annotations

import gzip
import json
import random
import re
import tomllib
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest

from portagpu.checks.collectives_doctor import DoctorOptions, doctor, known_findings
from portagpu.checks.collectives_doctor.findings import own_table
from portagpu.facts.formats.prefixes import regular_prefixes
from portagpu.runs.results.run import Verdict
from tests.conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from portagpu.runs.results.result import Result
    from portagpu.runs.results.run import Run

LOGS: Final = tomllib.loads((ROOT / "tests/vendor_texts/job_logs.toml").read_text("utf-8"))["log"]
_UNREADABLE: Final = {
    "watchdog-folded": "the terminal cut the line between the rank and its timeout"
}
"""Logs of which the right answer is not had in full, and why."""


def zstd(data: bytes) -> bytes:
    with pa.BufferOutputStream() as sink:
        with pa.CompressedOutputStream(sink, "zstd") as stream:
            stream.write(data)
        return bytes(sink.getvalue())


def judged(folder: Path, text: str) -> Run:
    file = folder / "job.log"
    file.write_text(text, encoding="utf-8")
    return doctor(DoctorOptions(paths=[file]))


def headline(run: Run) -> Result | None:
    """The result that a reader sees first."""
    rest = [r for r in run.results if r.verdict is not Verdict.PASS and not r.failed]
    unsure = [r for r in rest if r.verdict is Verdict.INCONCLUSIVE]
    return next(iter([*run.failures, *unsure, *rest]), None)


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log["id"])
def test_a_published_log_gives_the_answer_that_was_written_before(
    tmp_path: Path, log: dict[str, Any]
) -> None:
    run = judged(tmp_path, log["text"])
    first = headline(run)
    assert run.verdict is Verdict(log["verdict"]), run.why
    name = first.id.rpartition("/")[2] if first is not None else ""
    if log["first"] or run.verdict is not Verdict.PASS:
        assert name in log["first"], [r.id for r in run.results]
    if log["id"] == "torchrun-threads":
        assert first is None
    shown = [first] if first is not None and log["first"] else run.results
    said = " ".join(f"{r.device} {r.reason} {r.extra['cause']} {r.extra['remedy']}" for r in shown)
    if log["id"] not in _UNREADABLE:
        assert [each for each in log["names"] if each not in said] == []


def test_every_order_of_findings_names_findings_that_there_are() -> None:
    table = own_table()
    named = [*table["causes"], *table["consequences"]]
    assert sorted(set(named) - set(known_findings())) == []
    assert len(named) == len(set(named))


TWO_RANKS: Final = (
    "[rank0]: torch.distributed.DistBackendError: NCCL error in: x.cpp:1, internal error\n"
    "[rank0]: Last error:\n[rank0]: Bootstrap : no socket interface found\n"
)
FORMS: Final = {
    "as it is": lambda text: text.encode(),
    "UTF-16": lambda text: text.encode("utf-16"),
    "with colours": lambda text: "".join(
        f"\x1b[31m{line}\x1b[0m\n" for line in text.splitlines()
    ).encode(),
    "after a progress bar": lambda text: (" 5%|#   | 1/20\r" + text.replace("\n", "\r\n")).encode(),
    "as JSON lines": lambda text: "".join(
        json.dumps({"log": line + "\n", "stream": "stderr"}) + "\n" for line in text.splitlines()
    ).encode(),
    "in a gzip": lambda text: gzip.compress(text.encode()),
    "in a zstd": lambda text: zstd(text.encode()),
    "in two zstds": lambda text: zstd(text[:90].encode()) + zstd(text[90:].encode()),
    "in two gzips": lambda text: (
        gzip.compress(text[:90].encode()) + gzip.compress(text[90:].encode())
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_log_is_read_in_every_form(tmp_path: Path, form: str) -> None:
    file = tmp_path / "job.log"
    file.write_bytes(FORMS[form](TWO_RANKS))
    run = doctor(DoctorOptions(paths=[file]))
    assert [r.id.rpartition("/")[2] for r in run.failures] == ["no-interface", "library-error"]
    assert run.culprit == "rank 0"


@pytest.mark.parametrize(
    "prefix",
    [
        "[default0]:", "[trainer0|0]:", "[1,3]<stderr>:", " 3: ",
        "(Worker pid=7, ip=10.0.0.1) ",
        "[pod/train-0/main] 2024-05-01T10:11:12.123456789Z ", "2024-05-01 10:11:12,123 ",
        "node-7: ", "node-7 | ", "> ",
        "(EngineCore_DP0 pid=1) (RayWorkerWrapper pid=2, ip=10.0.0.2) ",
        "  | 2025-05-16T16:39:51.208-07:00 | ", "trainer/0 [1]:", "[80748] ",
        # CRI, journald, RFC 5424, Docker Compose, BuildKit, Kibana, Kubernetes
        "2024-01-02T03:04:05.678901234Z stdout F ", "Jan  2 03:04:05 node7 python[123]: ",
        "<14>1 2024-01-02T03:04:05.1Z host app 123 - - ", "worker-1  | ", "#12 1.234 ",
        "May 16, 2026 @ 20:46:57.892    ", "job-worker-0 pytorch ", "[a-b-worker-0 pytorch] ",
        # loggers of Python, loguru, Spark, glog
        "2024-01-01 00:00:00,123 - INFO - ", "ERROR:root:", "24/01/02 03:04:05 INFO Executor: ",
        "2024-01-01 00:00:00.123 | ERROR    | __main__:main:12 - ",
        "I0102 03:04:05.678 123 x.py:12] ", "[2024-01-01 00:00:00,123] [ERROR] [launch.py:1:x] ",
        # Open MPI 5, SageMaker, MPICH, mpirun --timestamp-output, SGLang
        "[prterun-host-1234@1,3]<stdout>:", "[1,mpirank:0,algo-2]<stdout>:", "[3] ", "<3>",
        "Sun Jan 28 10:55:05 2018[1,3]<stdout>:", "[2024-01-01 00:00:00 TP3] ", "node7> ",
    ],
)  # fmt: skip
def test_prefixes_are_taken_off_several_at_once(tmp_path: Path, prefix: str) -> None:
    text = "".join(f"{prefix}{line}\n" for line in TWO_RANKS.splitlines())
    run = judged(tmp_path, text)
    assert [r.id.rpartition("/")[2] for r in run.failures] == ["no-interface", "library-error"]
    assert run.culprit == "rank 0"


@pytest.mark.parametrize("prefix", ["[rank: 0] ", "[Rank 0]: ", "Rank 0: ", "x [mpirank:0] "])
def test_a_rank_in_a_prefix_of_an_unknown_form_is_known(tmp_path: Path, prefix: str) -> None:
    text = "".join(f"{prefix}{line[9:]}\n" for line in TWO_RANKS.splitlines())
    run = judged(tmp_path, text)
    assert [r.id.rpartition("/")[2] for r in run.failures] == ["no-interface", "library-error"]
    assert run.culprit == "rank 0"


def test_lines_that_are_the_same_after_their_beginning_have_no_prefix() -> None:
    same = [f"worker-{n}: connection to 10.0.0.{n} lost" for n in range(9)]
    assert regular_prefixes(same) == ()
    found, *_ = regular_prefixes([f"worker-{n}: {t}" for n, t in enumerate(["a b", "c d", "e"])])
    assert found.length("worker-12: [x] y") == len("worker-12: ")
    assert found.length("worker: y") == 0


def test_lines_of_a_program_in_one_text_of_json_are_its_lines(tmp_path: Path) -> None:
    text = json.dumps({"level": "fatal", "msg": "it failed", "output": TWO_RANKS})
    run = judged(tmp_path, f"starting\n{text}\n")
    assert [r.id.rpartition("/")[2] for r in run.failures] == ["no-interface", "library-error"]


@pytest.mark.parametrize("code", [7, 9, 11, 135, 137, 1])
def test_codes_of_signals_are_named(tmp_path: Path, code: int) -> None:
    line = f"worker-0 exited with code {code}\n"
    run = judged(tmp_path, line)
    assert [r.id.rpartition("/")[2] for r in run.failures] == ["rank-ended"]
    name = {135: "SIGBUS", 137: "SIGKILL"}.get(code, "")
    assert (name in run.failures[0].reason) and ("SIG" in run.failures[0].reason) == bool(name)


def test_a_code_of_0_is_not_an_end(tmp_path: Path) -> None:
    assert not judged(tmp_path, "worker-0 exited with code 0\n").failures


def test_a_broken_gzip_and_a_zstd_say_what_to_do(tmp_path: Path) -> None:
    whole = gzip.compress(TWO_RANKS.encode() * 50)
    for data, said in (
        (whole[:8], "no line|format|whole gzip"),
        (b"\x1f\x8b" + bytes(40), "not a whole gzip file"),
        (b"\x28\xb5\x2f\xfd" + bytes(40), "not a whole zstd file"),
    ):
        file = tmp_path / "job.log"
        file.write_bytes(data)
        run = doctor(DoctorOptions(paths=[file]))
        assert run.verdict is not Verdict.PASS
        assert re.search(said, run.results[0].reason), run.results[0].reason
    for packed in (whole, zstd(TWO_RANKS.encode() * 20_000)):
        file.write_bytes(packed[:-12])
        assert doctor(DoctorOptions(paths=[file])).failures[0].id.endswith("/no-interface")


def test_zstd_without_a_package_names_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> object:
        raise ImportError(name)

    monkeypatch.setattr("portagpu.base.packed.import_module", nothing)
    file = tmp_path / "job.log"
    file.write_bytes(zstd(TWO_RANKS.encode()))
    said = doctor(DoctorOptions(paths=[file])).results[0].reason
    assert "pip install zstandard" in said
    assert "\n" not in said


def test_two_ranks_whose_letters_are_mixed_are_never_a_pass(tmp_path: Path) -> None:
    chance = random.Random(11)  # noqa: S311 - seeded on purpose
    for _ in range(20):
        parts = [list(TWO_RANKS), list(TWO_RANKS.replace("rank0", "rank1"))]
        mixed = []
        while parts := [each for each in parts if each]:
            mixed.append(chance.choice(parts).pop(0))
        assert judged(tmp_path, "".join(mixed)).verdict is not Verdict.PASS


def test_lines_of_one_kind_cost_as_much_at_the_end_as_at_the_beginning(tmp_path: Path) -> None:
    """Nothing is kept for each line: a long log has the findings of a short one."""
    line = "node1:100:107 [0] transport/net.cc:12 NCCL WARN Call {0} failed with status {0}\n"
    run = judged(tmp_path, "".join(line.format(n) for n in range(20_000)))
    assert [r.id.rpartition("/")[2] for r in run.failures] == ["library-error"]
    assert "(20000 times)" in run.failures[0].reason
    assert len(run.failures[0].reason) < 400


@pytest.mark.parametrize(
    ("line", "rank"),
    [
        ("(VllmWorker rank=7 pid=410) RuntimeError: NCCL error: unhandled cuda error", 7),
        ("(VllmWorker TP3 pid=12) RuntimeError: NCCL error: unhandled cuda error", 3),
        ("[2025-02-24 14:09:34 TP14] RuntimeError: NCCL error: unhandled cuda error", 14),
        ("[2025-02-24 14:09:34 DP1 TP5 EP5] RuntimeError: NCCL error: unhandled cuda error", 5),
    ],
)
def test_a_serving_framework_s_prefix_states_the_rank(tmp_path: Path, line: str, rank: int) -> None:
    assert judged(tmp_path, line + "\n").culprit == f"rank {rank}"


def test_a_warning_in_a_line_of_another_writer_is_read(tmp_path: Path) -> None:
    first = "a:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC"
    second = "a:3:4 [1] misc/socket.cc:9 NCCL WARN Connect to 10.0.0.4<5> failed : No route to host"
    torch = "[rank3]:[E101 00:00:00.100000000 ProcessGroupNCCL.cpp:6] [Rank 3] Watchdog"
    torch += " caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE)"
    for text, found in ((first + second, "connect"), (first + torch, "watchdog")):
        assert [r.id.rpartition("/")[2] for r in judged(tmp_path, text).failures] == [found]


def test_what_ends_after_the_scheduler_cancelled_a_job_is_not_a_cause(tmp_path: Path) -> None:
    cancelled = "slurmstepd: error: *** JOB 9 ON n1 CANCELLED AT 2024-01-01T00:00:00 DUE TO "
    ended = "srun: error: n1: task 2: Exited with exit code 1\n"
    after = judged(tmp_path, f"{cancelled}TIME LIMIT ***\n{ended}")
    assert [r.id.rpartition("/")[2] for r in after.failures] == ["job-cancelled"]
    before = judged(tmp_path, f"{ended}{cancelled}TIME LIMIT ***\n")
    assert [r.id.rpartition("/")[2] for r in before.failures] == ["rank-ended", "job-cancelled"]

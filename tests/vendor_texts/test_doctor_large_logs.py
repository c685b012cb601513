"""Large logs: lines that say nothing are passed over, and none that says something is."""

from __future__ import annotations

import random
import tomllib
from typing import TYPE_CHECKING, Any, Final

import pytest

from portagpu.checks.collectives_doctor.log_filter import LineFilter
from portagpu.checks.collectives_doctor.log_judgement import judge_logs
from portagpu.checks.collectives_doctor.log_tables import patterns
from portagpu.checks.collectives_doctor.logs import Job, read_log
from tests.conftest import ROOT

if TYPE_CHECKING:
    from portagpu.checks.collectives_doctor.findings import Finding

LOGS: Final = tomllib.loads((ROOT / "tests/vendor_texts/job_logs.toml").read_text("utf-8"))["log"]
SEED: Final = 20261130


def findings(text: str) -> list[Finding]:
    job = Job()
    read_log(text, job)
    return list(judge_logs(job))


def ids(text: str) -> list[str]:
    return [each.id for each in findings(text)]


def noise(draw: random.Random, lines: int) -> list[str]:
    """What training prints, and NCCL at INFO (github.com/NVIDIA/nccl/issues/1516)."""
    forms = (
        "node{a}:{b}:{c} [{a}] NCCL INFO Channel 0{a}/0 : {a}[{a}] -> {b}[{b}] via P2P/IPC",
        "node{a}:{b}:{c} [{a}] NCCL INFO AllReduce: opCount {c:x} sendbuff 0x7f{b:x} count {b}",
        "step {b} loss 0.{c} memory {a} GiB used",
        '{{"step": {b}, "msg": "loss 0.{c}"}}',
    )
    return [
        draw.choice(forms).format(a=draw.randrange(8), b=draw.randrange(99), c=draw.randrange(9999))
        for _ in range(lines)
    ]


# a name in front of every line is known by the lines that have it
PLAIN: Final = [log for log in LOGS if not log["id"].startswith("pdsh")]


@pytest.mark.parametrize("log", PLAIN[::4], ids=lambda log: log["id"])
def test_a_log_in_the_middle_of_noise_gives_the_same_findings(log: dict[str, Any]) -> None:
    draw = random.Random(f"{SEED} {log['id']}")  # noqa: S311
    before, after = noise(draw, 1500), noise(draw, 1500)
    alone, among = ids(log["text"]), ids("\n".join([*before, log["text"].strip("\n"), *after, ""]))
    # INFO lines of set-ups that end say nothing new, whether a log ends early is another matter,
    # and what follows an exception shows that the program goes on
    among += ["program-ended"] if "program-exception" in among else []
    assert [each for each in alone if each not in (*among, "setup-open", "creation")] == []


def test_warnings_are_counted_beyond_the_lines_of_a_shape_that_may_say_nothing() -> None:
    warning = "node1:7:8 [0] transport/net_ib.cc:91 NCCL WARN the moon is {}"
    found = findings("\n".join(warning.format(n) for n in range(1000)))
    assert any("(1000 times)" in (each.evidence or "") for each in found)


def test_the_last_error_is_read_whatever_its_words_are() -> None:
    quiet = [f"[rank1]: step {n}" for n in range(300)]
    said = ["[rank0]: ncclSystemError: System call failed.", "[rank0]: Last error:", *quiet[:20]]
    text = "\n".join([*quiet, *said, "[rank0]: the cable sings", *quiet])
    assert any("the cable sings" in (each.evidence or "") for each in findings(text))


def test_every_line_with_a_word_is_read_once_and_in_order() -> None:
    draw = random.Random(SEED)  # noqa: S311
    words = [word for word in patterns().line_words if word.strip()]
    lines = []
    for _ in range(3000):
        letters = "".join(draw.choices("qwzyuj ", k=draw.randrange(40)))
        at = draw.randrange(len(letters) + 1)
        word = draw.choice(words) if draw.random() < 0.2 else ""
        lines.append(f"{letters[:at]}{word}{letters[at:]}{draw.randrange(10)}")
    wanted = [n for n, line in enumerate(lines) if any(word in line for word in words)]
    found = list(LineFilter(patterns().line_words).numbers(lines))
    assert found == sorted(set(found))
    assert set(wanted) <= set(found)


def test_without_words_every_line_is_read() -> None:
    assert list(LineFilter(()).numbers(["a", "", "b"])) == [0, 1, 2]


def test_lines_of_a_shape_that_say_nothing_are_passed_over() -> None:
    lines = [f"rror {n}" for n in range(50_000)]
    found = LineFilter(("rror",))
    read = 0
    for _ in found.numbers(lines):
        read += 1
        found.said_nothing()
    assert read < 1000


@pytest.mark.parametrize("level", ["INFO", "WARN"])
def test_a_code_that_is_not_0_is_read_after_many_that_are(level: str) -> None:
    # the line of aws-ofi-nccl that states the return code of each request
    line = "node1:7:8 [0] NCCL {} NET/OFI Request {} completed. RC: {}. Completed"
    quiet = [line.format("INFO", number, 0) for number in range(1000)]
    assert (
        ids("\n".join([*quiet, line.format(level, 9, 12), *quiet]))[1:]
        == ids("\n".join([*quiet[:3], line.format(level, 9, 12), *quiet[:3]]))[1:]
    )
    assert len(ids("\n".join([*quiet, line.format(level, 9, 12)]))) > len(ids("\n".join(quiet)))

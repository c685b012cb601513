"""Logs of real machines, from the paste to the verdict: no calm fault, and no false alarm."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from portagpu.checks.bringup import BringupOptions, bringup
from portagpu.checks.recordings.replay import Recording
from portagpu.cli._health_text import health_text
from portagpu.facts.formats.events import events, table
from portagpu.facts.formats.host import kernel_log
from portagpu.facts.formats.reader import read_text
from portagpu.runs.results.advice import Action, action_of
from portagpu.runs.results.run import Verdict

TEXTS: list[dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("kernel_texts.toml").read_text(encoding="utf-8")
)["text"]
WORST = (Verdict.FAIL, Verdict.INCONCLUSIVE, Verdict.UNVERIFIED, Verdict.PASS)
each_text = pytest.mark.parametrize("stated", TEXTS, ids=[each["source"][:60] for each in TEXTS])


def judged(folder: Path, text: str | bytes) -> tuple[Verdict, Action]:
    """The worst verdict and action of what health says of a log."""
    path = folder / "log.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    run = bringup(BringupOptions(replay=Recording(path)))
    found = [each for each in run.results if each.id == "health/events"]
    assert found, "the text was not read as a log"
    verdict = next(each for each in WORST if each in {one.verdict for one in found})
    return verdict, max(action_of(each) for each in found)


def coded(text: str) -> set[tuple[str, str]]:
    events = [event for each in read_text(text) for event in each.events]
    return {(event.pci or event.device or "-", event.code) for event in events}


@each_text
def test_a_real_log_gets_the_answer_that_an_expert_gives(
    tmp_path: Path, stated: dict[str, Any]
) -> None:
    text = stated["text"].lstrip("\n")
    assert {tuple(each) for each in stated["events"]} <= coded(text)
    found = judged(tmp_path, text)
    assert found == (Verdict(stated["verdict"]), Action(stated["action"]))
    if stated.get("healthy"):
        assert found[0] is not Verdict.FAIL
    else:
        assert found[1] > Action.NONE


@each_text
def test_each_line_is_a_log_by_itself(stated: dict[str, Any]) -> None:
    for line in stated["text"].strip().splitlines() if stated.get("lines_alone", True) else ():
        assert kernel_log.matches(line), line
        assert kernel_log.SHAPE.line.match(line), line


@each_text
def test_a_log_that_breaks_off_has_the_events_of_its_whole_lines(stated: dict[str, Any]) -> None:
    lines = stated["text"].strip().splitlines()
    whole = coded(stated["text"].lstrip("\n"))
    for count in range(1, len(lines) + 1):
        assert coded("".join(f"{line}\n" for line in lines[:count])) <= whole


CSV = "index, name, pci.bus_id\n0, NVIDIA H200, 00000000:07:00.0\n"
FAULT = "[ 1011.001000] NVRM: GPU0 nvAssertOkFailedNoLog: Assertion failed: Reset required "
FAULT += "[NV_ERR_RESET_REQUIRED] (0x00000062) returned from status @ kernel_channel.c:2874\n"


def devices(folder: Path, text: str) -> list[str | None]:
    path = folder / "log.txt"
    path.write_text(text, encoding="utf-8")
    run = bringup(BringupOptions(replay=Recording(path)))
    return [each.device for each in run.results if each.id == "health/events"]


def test_a_fault_without_an_address_is_of_the_only_gpu(tmp_path: Path) -> None:
    assert devices(tmp_path, CSV + FAULT) == ["0000:07:00.0"]
    # two GPUs: the driver's number is not nvidia-smi's
    assert devices(tmp_path, CSV + "1, NVIDIA H200, 00000000:08:00.0\n" + FAULT) == ["NVRM GPU0"]
    # the log itself names another one
    other = "[ 1000.000000] NVRM: Xid (PCI:0000:09:00): 31, pid=1, name=python3, Ch 00000008\n"
    assert set(devices(tmp_path, CSV + other + FAULT)) == {"0000:09:00.0", "NVRM GPU0"}
    assert devices(tmp_path, FAULT) == ["NVRM GPU0"]


def test_the_sentence_that_no_table_lists_is_shown_without_its_process(tmp_path: Path) -> None:
    said = "NVRM: GPU3 someCheck: engine error 0x7"
    line = f"Jan 05 10:00:00 node7 kernel: {said}, pid=42, name=python3"
    path = tmp_path / "log.txt"
    path.write_text(f"{line}\n", encoding="utf-8")
    run = bringup(BringupOptions(replay=Recording(path)))
    (found,) = (each for each in run.results if each.id == "health/events")
    assert found.reason.endswith(f": {said!r}")
    assert not any(word in found.reason for word in ("node7", "python3", "42"))


def test_what_is_less_grave_stays_next_to_a_failure(tmp_path: Path) -> None:
    xid = "NVRM: Xid (PCI:0000:02:00): {}, pid=1, name=python3, Ch 00000008"
    lines = [f"[ {100 + at}.000000] {xid.format(13)}\n" for at in range(40)]
    path = tmp_path / "log.txt"
    path.write_text("".join(lines) + f"[ 200.000000] {xid.format(79)}\n", encoding="utf-8")
    run = bringup(BringupOptions(replay=Recording(path)))
    (found,) = (each for each in run.results if each.id == "health/events")
    assert found.verdict is Verdict.FAIL
    assert "Xid 13 (Graphics Engine Exception), 40 times" in str(found.extra["also"])
    text = "\n".join(health_text(run))
    assert "also in the log:" in text
    assert "40 times" in text


@pytest.mark.parametrize(
    "text",
    [
        "kernel: 6.8.0-49-generic\narch: x86_64\n",
        "[  5928.470] (II) LoadModule: glamoregl\n[  5928.547] (EE) NVIDIA(0): Failed\n",
        "2026-01-05T10:00:00,859+00:00 INFO worker 3 is ready\n",
    ],
)
def test_what_has_no_prefix_of_a_kernel_is_no_log(text: str) -> None:
    assert not kernel_log.matches(text)


@pytest.mark.parametrize("stated", TEXTS[::6], ids=[each["source"][:60] for each in TEXTS[::6]])
def test_a_log_that_repeats_itself_has_each_event_as_often(stated: dict[str, Any]) -> None:
    def codes(text: str) -> list[str]:
        return [e.code for _, e in events(text, table("kernel_log"), "") if e is not None]

    text = stated["text"].lstrip("\n")
    once = codes(text)
    assert codes(text * 70) == once * 70


def test_an_event_among_many_harmless_lines_of_its_shape_is_found() -> None:
    quiet = "[  1.{0:06}] NVRM: GPU at PCI:0000:4c:00: the counter is {0}\n"
    lost = "[  2.000001] NVRM: GPU 0000:4c:00.0: GPU has fallen off the bus.\n"
    text = "".join(quiet.format(n) for n in range(500)) + lost
    assert coded(text) == {("0000:4c:00.0", "fallen off the bus")}


def test_programs_in_a_systems_log_are_passed_over() -> None:
    text = (
        "Feb  3 04:05:06 gpu7 systemd[1]: Started Session 7 of user root.\n"
        "Feb  3 04:05:07 gpu7 kernel: NVRM: Xid (PCI:0000:4c:00): 79, pid=1, GPU has fallen off "
        "the bus.\n"
        "2026-02-03T04:05:08.123456+00:00 gpu7 sshd[99]: Accepted publickey for root\n"
    )
    found = read_text(text)
    assert [event.code for each in found for event in each.events] == ["Xid 79"]
    assert [problem for each in found for problem in each.problems] == []

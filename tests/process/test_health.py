"""``portagpu health``: what is judged, what the kernel's log adds, and what schedulers read."""

from __future__ import annotations

import errno
import json
import os
import platform
import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from portagpu.base.errors import RecordingError, TargetNotFound
from portagpu.base.plugins import install
from portagpu.checks.health import engine as logs
from portagpu.checks.health import scheduler
from portagpu.checks.health.engine import (
    KernelLog,
    Snapshot,
    events_since,
    health,
    health_so_far,
    log_file,
)
from portagpu.checks.health.options import HealthOptions
from portagpu.checks.health.scheduler import Answer, Hook, State, answer, inform_operator, npd_line
from portagpu.cli._health_text import health_text, summary
from portagpu.facts.formats.reader import read_text
from portagpu.facts.host.tree import Tree
from portagpu.facts.readings.model import Event, Findings, GpuState, Reading
from portagpu.machine.inventory import sources
from portagpu.machine.inventory.sources import Live
from portagpu.runs.results.advice import Action, action_of
from portagpu.runs.results.run import Result, Run, Verdict, read_json, validate
from portagpu_cuda.plugin import CudaPlugin
from tests.support.fake_nvml import EIGHT_H200, NVLINK_STATUS
from tests.support.forked_verbs import VERB, ForkedVerbs
from tests.support.gpu_trees import machine, nvidia_gpu
from tests.support.host_trees import build, two_socket_x86
from tests.support.result_samples import info
from tests.support.waits import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Child

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "tests" / "vendor_texts" / "formats" / "nvidia_smi_xml"
GPU = "0000:03:00.0"
LOST = f"NVRM: Xid (PCI:{GPU[:-2]}): 79, pid=1234, name=python, GPU has fallen off the bus.\n"
CRASH = f"NVRM: Xid (PCI:{GPU[:-2]}): 31, pid=1234, name=python, Ch 00000008, MMU Fault\n"
ECC = f"NVRM: Xid (PCI:{GPU[:-2]}): 95, pid=1234, Uncontained ECC error\n"
QUIET = "[    0.000000] Linux version 6.8.0\n"


def dmesg(*lines: str) -> str:
    return QUIET + "".join(f"[  100.{number:06}] {line}" for number, line in enumerate(lines))


@pytest.fixture(scope="module")
def root_of_node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a machine with eight H200, which no test changes."""
    files, links = machine(*(nvidia_gpu(index) for index in range(8)))
    return build(tmp_path_factory.mktemp("node") / "machine", two_socket_x86() | files, links)


@pytest.fixture
def node(root_of_node: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Run]:
    """Judges a machine of files with eight H200 and this log, as if it were this one."""
    root = root_of_node
    monkeypatch.setattr("portagpu.checks.health.engine.Live", lambda: Live(root, {}))

    def judge(printed: str | None = QUIET, /, **options: Any) -> Run:
        def journal(limit_s: float) -> KernelLog:
            if printed is None:
                return KernelLog(problem="the kernel's log is not read: journalctl: no permission")
            return logs._parsed(printed)

        monkeypatch.setattr("portagpu.checks.health.engine.journal", journal)
        run = health(HealthOptions(**options))
        validate(json.loads(run.to_text()))
        return run

    return judge


def found(run: Run, name: str) -> list[Result]:
    return [each for each in run.results if each.id == name]


# ---- what is judged


def test_a_fault_of_the_log_names_the_device_and_the_action(node: Callable[..., Run]) -> None:
    run = node(dmesg(LOST))
    (event,) = found(run, "health/events")
    assert (event.device, event.verdict, action_of(event)) == (GPU, Verdict.FAIL, Action.ISOLATE)
    assert event.suite == "health"
    assert event.extra["action"] == "isolate"
    assert event.extra["action_source"].startswith("https://docs.nvidia.com/deploy/xid-errors/")
    assert run.exit_code == 1
    assert summary(run).startswith(f"FAIL, action isolate: health/events on {GPU}: Xid 79 ")
    text = health_text(run)
    assert f"  {GPU}  NVIDIA H200  FAIL  isolate" in text
    assert "  7 x NVIDIA H200: no finding" in text


def test_every_finding_of_a_document_has_its_action_and_source(node: Callable[..., Run]) -> None:
    run = node(dmesg(ECC), expect_devices=16)
    for each in run.results:
        if each.failed:
            assert each.extra["action"] in set(Action), each.id
            assert each.extra["action_source"], each.id
    (count,) = found(run, "identity/count")
    assert count.extra["action"] == "isolate"
    order = [line.split()[0] for line in health_text(run) if " FAIL " in line and "health" in line]
    assert order == ["reset"]
    listed = health_text(run)
    first = next(n for n, line in enumerate(listed, 1) if line.startswith("findings, "))
    assert listed[first].split()[:2] == ["isolate", "FAIL"]


def test_all_devices_there_and_no_event_is_not_yet_a_pass(node: Callable[..., Run]) -> None:
    """Files of the kernel say nothing of ECC: a vendor's library has to answer."""
    run = node(expect_devices=8)
    assert run.verdict is Verdict.INCONCLUSIVE
    assert found(run, "identity/count")[0].verdict is Verdict.PASS
    (silent,) = found(run, "health/answers")
    assert "no source states any value of the health" in silent.reason
    assert run.exit_code == 3
    assert answer(run).state is State.UNKNOWN


MISSING = "raise ModuleNotFoundError(\"No module named 'pynvml'\", name='pynvml')"


@pytest.mark.parametrize(("library", "code"), [(EIGHT_H200, 0), (MISSING, 3)])
def test_eight_good_gpus_end_with_0_or_the_missing_library_is_named(
    node: Callable[..., Run],
    tmp_path: Path,
    stand_in: Callable[[str, str], None],
    monkeypatch: pytest.MonkeyPatch,
    library: str,
    code: int,
) -> None:
    """The recipe of ``docs/start-node.md``: with the vendor's library, and without it."""
    files, links = machine(*(nvidia_gpu(index) for index in range(8)))
    cool = {path: "0" if "throttle" in path else text for path, text in two_socket_x86().items()}
    root = build(tmp_path / "machine", cool | files, links)
    stand_in("pynvml", library)
    said = CudaPlugin(Tree(root)).probe()
    monkeypatch.setattr("portagpu.checks.health.engine.Live", lambda: Live(root, {}))
    monkeypatch.setattr("portagpu.checks.health.engine.Snapshot._libraries", (said,))
    tools = tuple(read_text(NVLINK_STATUS))
    monkeypatch.setattr("portagpu.checks.health.engine.tool_findings", lambda _: tools)
    run = node(expect_devices=8, target="nvidia-h200-sxm")
    text = health_text(run)
    assert run.exit_code == code, text
    (answers,) = found(run, "health/answers")
    if code == 0:
        assert answers.reason == "8 GPU(s) state their health"
        assert text == ["devices:", "  8 x NVIDIA H200: no finding"]
        assert summary(run) == "PASS, action none"
    else:
        named = (
            f"NVML does not answer: its Python module pynvml is not installed: {install('cuda')}"
        )
        assert answers.reason.endswith(named)
        assert any(line.endswith(named) for line in text)


def test_the_cpu_stands_for_no_gpu_that_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = build(tmp_path / "machine", two_socket_x86(), {})
    (root / "sys/bus/pci/devices").mkdir(parents=True, exist_ok=True)
    monkeypatch.setattr("portagpu.checks.health.engine.Live", lambda: Live(root, {}))
    monkeypatch.setattr("portagpu.checks.health.engine.journal", lambda _: logs._parsed(QUIET))
    (count,) = found(health(HealthOptions(expect_devices=1)), "identity/count")
    assert (count.verdict, action_of(count)) == (Verdict.FAIL, Action.ISOLATE)
    assert count.reason == "0 device(s) shown by files, 1 expected"
    of_cpu = HealthOptions(expect_devices=1, target="cpu-x86-64")
    assert found(health(of_cpu), "identity/count")[0].verdict is Verdict.PASS


def test_another_product_than_the_target_fails(node: Callable[..., Run]) -> None:
    run = node(target="nvidia-a100-sxm-80gb")
    (target,) = found(run, "identity/target")
    assert (target.verdict, action_of(target)) == (Verdict.FAIL, Action.ISOLATE)
    with pytest.raises(TargetNotFound):
        node(target="nvidia-h20000")


def test_the_host_and_the_log_are_judged_before_any_library_is_asked(
    node: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    node(dmesg(LOST))  # sets the log

    def hanging(self: Snapshot) -> None:
        raise AssertionError("a library was asked")

    monkeypatch.setattr(Snapshot, "findings", hanging)
    first = next(health_so_far(HealthOptions()))
    assert action_of(found(first, "health/events")[0]) is Action.ISOLATE


def test_the_tools_report_devices_where_no_library_answers(
    node: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    def tools(commands: object) -> tuple[Findings, ...]:
        state = GpuState(recovery="Reset")
        said = Reading(source="nvidia-smi", vendor="nvidia", pci=GPU, state=state)
        return (Findings(kind="nvidia-smi -q -x", readings=(said,)),)

    monkeypatch.setattr("portagpu.checks.health.engine.tool_findings", tools)
    (asks,) = [each for each in found(node(), "health/answers") if each.failed]
    assert (asks.device, asks.extra["action"]) == (GPU, "isolate")
    # a prolog has no time for them
    assert not [each for each in found(node(tools=False), "health/answers") if each.failed]


def test_a_check_that_breaks_is_an_error_and_stops_no_other(
    node: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no such file")

    monkeypatch.setattr("portagpu.checks.bringup.checks.links.judge_links", broken)
    run = node(dmesg(LOST))
    (broke,) = found(run, "links/check")
    assert (broke.verdict, action_of(broke)) == (Verdict.ERROR, Action.MONITOR)
    assert found(run, "health/events")
    assert answer(replace_results(run, [broke])).state is State.UNKNOWN


def replace_results(run: Run, results: list[Result]) -> Run:
    return Run(run.info, results)


@pytest.mark.parametrize(
    ("page", "name", "action"),
    [
        ("v13-lost.xml", "health/answers", "isolate"),
        ("v11-mig-throttled.xml", "health/throttling", "monitor"),
    ],
)
def test_recordings_are_judged_like_machines(page: str, name: str, action: str) -> None:
    run = health(HealthOptions(replay=[str(PAGES / page)]))
    failed = [each for each in found(run, name) if each.failed]
    assert failed
    assert all(action_of(each) == action for each in failed)
    assert run.info.replay
    assert run.info.host == ""


def test_a_recording_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cat.jpg").write_bytes(bytes(range(256)))
    with pytest.raises(RecordingError):
        health(HealthOptions(replay=[str(tmp_path / "cat.jpg")]))


def test_a_recording_takes_its_log_from_a_file(tmp_path: Path) -> None:
    log = tmp_path / "dmesg.log"
    log.write_text(dmesg(LOST))
    run = health(HealthOptions(replay=[str(PAGES / "v13-lost.xml")], log=str(log)))
    assert any(each.device == GPU for each in found(run, "health/events"))
    assert f"  {GPU}  listed by no other source  FAIL  isolate" in health_text(run)


def test_a_finding_of_a_sliced_gpu_and_of_its_slices_is_the_gpus() -> None:
    text = health_text(health(HealthOptions(replay=[str(PAGES / "v11-mig-throttled.xml")])))
    assert text[:2] == ["devices:", "  0001:c7:00.0  NVIDIA A100-PCIE-40GB  FAIL  reset"]
    assert text[2] == ""


# ---- the log


def test_a_log_that_may_not_be_read_is_inconclusive(node: Callable[..., Run]) -> None:
    run = node(None)
    (log,) = found(run, "health/log")
    assert log.verdict is Verdict.INCONCLUSIVE
    assert "no permission" in log.reason
    assert answer(run).reason.startswith("not judged: health/log: the kernel's log is not read")


def test_an_application_error_asks_for_nothing(node: Callable[..., Run]) -> None:
    (event,) = found(node(dmesg(CRASH)), "health/events")
    assert (event.verdict, action_of(event)) == (Verdict.UNVERIFIED, Action.NONE)


def test_an_unknown_xid_is_watched(node: Callable[..., Run]) -> None:
    run = node(dmesg(f"NVRM: Xid (PCI:{GPU[:-2]}): 4711, pid=1, something new\n"))
    (event,) = found(run, "health/events")
    assert (event.verdict, action_of(event)) == (Verdict.UNVERIFIED, Action.MONITOR)
    assert event.extra["action_source"] == "docs/when-it-fails.md"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "no line in it is of a kernel's log"),
        (bytes(range(256)) * 100, "no line in it is of a kernel's log"),
        (b"LPKSHHRH" + bytes(5000), "is the journal's own file: give what `journalctl -k"),
        (b"Nov  3 10:00:00 another kernel: NVRM: x\n", "is the log of another, and not of this"),
    ],
    ids=["empty", "binary", "journal", "another-machine"],
)
def test_a_file_that_is_not_a_log_of_this_machine_says_what_it_is(
    node: Callable[..., Run], tmp_path: Path, data: bytes, said: str
) -> None:
    (tmp_path / "log").write_bytes(data)
    (log,) = found(node(log=str(tmp_path / "log")), "health/log")
    assert log.verdict is Verdict.INCONCLUSIVE
    assert said in log.reason


NO_LINES = {
    "nothing": "",
    "no-entries": "-- No entries --\n",
    # systemd, src/shared/journal-util.c; what journalctl -k prints for a user without its groups
    "no-permission": "Hint: You are currently not seeing messages from other users and the "
    "system.\n"
    "      Users in groups 'adm', 'systemd-journal' can see all messages.\n"
    "      Pass -q to turn off this notice.\nNo journal files were found.\n-- No entries --\n",
    "insufficient": "No journal files were opened due to insufficient permissions.\n",
    "dmesg": "dmesg: read kernel buffer failed: Operation not permitted\n",
    "denied": "Permission denied\n",
    "boot": "-- Boot 0123456789abcdef0123456789abcdef --\n",
    "logs": "-- Logs begin at Mon 2026-01-05 10:00:00 UTC, end at Tue 2026-01-06. --\n",
    "journal": "-- Journal begins at Mon 2026-01-05 10:00:00 UTC, ends at Tue 2026-01-06. --\n",
    "fabric-manager": "[Jan 05 2026 10:00:00] [INFO] [tid 1234] Fabric Manager is started.\n",
}


@pytest.mark.parametrize(
    ("name", "since"),
    [*((name, None) for name in NO_LINES), *(("boot", since) for since in ("all", "60"))],
)
def test_a_log_without_a_line_of_the_kernel_is_not_a_reading(
    node: Callable[..., Run], tmp_path: Path, name: str, since: str | None
) -> None:
    (tmp_path / "log").write_text(NO_LINES[name])
    run = node(log=str(tmp_path / "log"), since=since)
    (log,) = found(run, "health/log")
    assert log.verdict is Verdict.INCONCLUSIVE
    assert log.reason.startswith(f"the log was not read: {tmp_path / 'log'}: ")
    assert all(each.verdict is not Verdict.PASS for each in found(run, "health/events"))
    said = answer(run)
    assert (said.state, action_of(log)) == (State.UNKNOWN, Action.NONE)
    assert said.reason.startswith("not judged: health/log: the log was not read")
    assert "the log was not read" in npd_line(said)
    codes = [said.exit_code(each, fail_on_unknown=True) for each in Hook]
    assert codes == [2 if each is Hook.NPD else 3 for each in Hook]


@pytest.mark.parametrize("name", NO_LINES)
def test_a_live_journal_without_a_line_of_the_kernel_is_not_a_reading(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    said = [sources.CommandOutput(("journalctl",), NO_LINES[name])]
    monkeypatch.setattr(sources, "run_commands", lambda commands, limit_s: iter(said))
    assert logs.journal(1.0).problem.startswith("the kernel's log is not read: ")
    # what dmesg prints then counts
    said.append(sources.CommandOutput(("dmesg",), QUIET))
    assert logs.journal(1.0).problem == ""


@pytest.mark.parametrize(
    ("there", "said"),
    [
        ((), "/sys and /proc cannot be read: "),
        (("proc/meminfo",), "/sys cannot be read: "),
        (("sys/bus/pci/slots/1/x", "proc/meminfo"), "/sys cannot be read: "),
        (("sys/bus/pci/devices/0000:00:00.0/class",), "/proc cannot be read: "),
        (("sys/bus/pci/devices/0000:00:00.0/class", "proc/meminfo"), ""),
        # a kernel that was built without PCI
        (("sys/bus/cpu/devices/x", "proc/meminfo"), ""),
    ],
)
def test_a_machine_whose_files_cannot_be_read_is_not_passed(
    node: Callable[..., Run],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    there: tuple[str, ...],
    said: str,
) -> None:
    root = build(tmp_path / "empty", dict.fromkeys(there, "1 kB\n"))
    monkeypatch.setattr("portagpu.checks.health.engine.Live", lambda: Live(root, {}))
    run = node()
    (sources,) = found(run, "environment/recording")
    assert sources.verdict is (Verdict.INCONCLUSIVE if said else Verdict.PASS)
    assert sources.reason.startswith(said)
    assert action_of(sources) is Action.NONE
    if said:
        assert run.exit_code == 3
        assert answer(run).state is State.UNKNOWN


def test_a_log_that_ends_before_this_boot_is_not_a_reading_of_it(
    node: Callable[..., Run], tmp_path: Path
) -> None:
    before = time.time() - logs.boot_s() + 3600  # allowed: logs have stamps of today
    (tmp_path / "log").write_text(f"{iso(before)} {platform.node()} kernel: {CRASH}")
    for since in (None, "boot", "60"):
        run = node(log=str(tmp_path / "log"), since=since)
        assert found(run, "health/log")[0].verdict is Verdict.INCONCLUSIVE
        assert "before this machine was started" in found(run, "health/log")[0].reason
        assert not [r for r in found(run, "health/events") if r.verdict is Verdict.PASS]
    assert not found(node(log=str(tmp_path / "log"), since="all"), "health/log")
    # a window in which this kernel wrote nothing is empty, and was read
    with (tmp_path / "log").open("a") as stream:
        stream.write(f"{iso(0)} {platform.node()} kernel: Linux version 6.8.0\n")
    assert not found(node(log=str(tmp_path / "log"), since="0.5"), "health/log")


def test_a_file_that_is_not_there_or_a_pipe_does_not_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "nothing", "."):
        read = log_file(tmp_path / name, of_this_machine=True)
        assert "cannot be read: " in read.problem, name


def test_a_driver_that_repeats_itself_all_day_does_not_use_up_the_time() -> None:
    many = dmesg(*([CRASH] * logs.MAX_LINES), LOST)
    read = logs._parsed(many)
    assert read.findings is not None
    assert len(read.findings.events) == logs.MAX_LINES + 1
    assert "Xid 79" in read.findings.events[-1].code
    assert read.cut == (
        "only the last 20000 lines of drivers and errors were read, of 20001, and one of each kind "
        "before them"
    )
    quiet = QUIET + "[    1.000000] pci 0000:00:00.0: bridge\n" * logs.MAX_LINES
    assert logs._parsed(quiet).cut == ""


DENIED = "dmesg ended with status 1: dmesg: read kernel buffer failed: Operation not permitted"


@pytest.mark.parametrize(
    ("user", "output", "hint"),
    [
        (
            1000,
            {"problem": DENIED},
            "run this as root, or as a member of the group systemd-journal",
        ),
        (1000, {"text": NO_LINES["no-permission"]}, "run this as root, or as a member of"),
        (0, {"problem": DENIED}, "run the container with the capability SYSLOG"),
        (1000, {"problem": "dmesg ended with status 1: nothing"}, ""),
    ],
)
def test_a_log_that_may_not_be_read_says_who_may(
    monkeypatch: pytest.MonkeyPatch, user: int, output: dict[str, str], hint: str
) -> None:
    said = [sources.CommandOutput(("dmesg",), **output)]
    monkeypatch.setattr(sources, "run_commands", lambda commands, limit_s: iter(said))
    monkeypatch.setattr(os, "geteuid", lambda: user)
    problem = logs.journal(1.0).problem
    assert problem.partition("; ")[2].startswith(hint)
    assert bool(hint) == ("; " in problem)


def test_a_log_file_of_root_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object, **more: object) -> bytes:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(logs, "read_bounded", refuse)
    for user, hint in ((1000, "; run this as root"), (0, "")):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        found = log_file("kern.log", of_this_machine=True)
        assert found.problem == f"kern.log: cannot be read: Permission denied{hint}"


def test_a_driver_that_repeats_itself_does_not_hide_the_fault_before() -> None:
    noise = ("pcieport 0000:00:01.0: AER: Corrected error received: 0000:01:00.0\n",)
    read = logs._parsed(dmesg(CRASH, LOST, *noise * (logs.MAX_LINES + 5)))
    assert read.findings is not None
    assert [each.code for each in read.findings.events[:2]] == ["Xid 31", "Xid 79"]
    assert len(read.findings.events) == logs.MAX_LINES + 3
    assert "one of each kind" in read.cut


def test_a_journal_of_which_only_the_end_was_read_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = QUIET + "[    1.000000] IN=eth0 OUT= SRC=10.0.0.1\n" * (sources.LOG_LINES - 1)
    for text, cut in ((printed, "the last 100000 lines of the journal"), (QUIET, "")):
        output = sources.CommandOutput(("journalctl",), text)
        monkeypatch.setattr(logs, "kernel_log_output", lambda _, output=output: output)
        assert cut in logs.journal(1.0).cut
        assert bool(cut) == bool(logs.journal(1.0).cut)


def iso(seconds_ago: float) -> str:
    # allowed: logs have stamps of today
    moment = time.time() - seconds_ago
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="seconds")


def test_a_collectors_log_is_judged_by_the_lines_of_this_machine(
    tmp_path: Path, node: Callable[..., Run]
) -> None:
    host, other = f"{platform.node()}.example", "elsewhere"
    for owner, code in ((other, None), (host, "Xid 79"), ("localhost", "Xid 79")):
        lines = f"{iso(2)} {owner} kernel: {LOST}{iso(1)} {host} kernel: {CRASH}"
        (tmp_path / "log").write_text(f"{lines}{iso(1)} {other} kernel: {LOST}")
        run = node(log=str(tmp_path / "log"))
        reasons = [each.reason for each in found(run, "health/events") if each.failed]
        assert [code in each for each in reasons] == [True] * (code is not None)
        assert (
            "lines of other hosts were left out, as of elsewhere"
            in found(run, "health/log")[0].reason
        )


def test_a_systems_log_that_begins_with_many_lines_of_programs_is_read(
    tmp_path: Path, node: Callable[..., Run]
) -> None:
    host = platform.node()
    programs = "".join(
        f"{iso(9)} {host} slurmd[{n}]: launched a task of a job\n" for n in range(900)
    )
    (tmp_path / "log").write_text(f"{programs}{iso(1)} {host} kernel: {CRASH}")
    assert not found(node(log=str(tmp_path / "log")), "health/events")[0].failed
    # anybody may say this, and it is not a line of the kernel's
    spoken = f"{iso(1)} {host} joe: {LOST}{iso(1)} {host} joe[7]: {LOST}"
    (tmp_path / "log").write_text(f"{programs}{spoken}{iso(1)} {host} kernel: {CRASH}")
    assert not found(node(log=str(tmp_path / "log")), "health/events")[0].failed
    (tmp_path / "log").write_text(f"{programs}{iso(1)} {host} kernel: {LOST}")
    (event,) = found(node(log=str(tmp_path / "log")), "health/events")
    assert action_of(event) is Action.ISOLATE


def test_events_of_an_earlier_boot_do_not_count(tmp_path: Path, node: Callable[..., Run]) -> None:
    host = platform.node()
    before = time.time() - logs.boot_s() + 3600  # allowed: logs have stamps of today
    lines = f"{iso(before)} {host} kernel: {LOST}{iso(1)} {host} kernel: {ECC}"
    (tmp_path / "log").write_text(lines)
    (event,) = found(node(log=str(tmp_path / "log")), "health/events")
    assert "Xid 95" in event.reason
    run = node(log=str(tmp_path / "log"), since="all")
    assert "Xid 79" in found(run, "health/events")[0].reason
    assert not found(node(log=str(tmp_path / "log"), since="0.5"), "health/events")[0].failed


@pytest.mark.parametrize(
    ("stamp", "age_s"),
    [
        ("%Y-%m-%dT%H:%M:%S+0000", 600),
        ("%a %b %d %H:%M:%S %Y", 600),
        ("%b %d %H:%M:%S", 600),
        ("%b %d %H:%M:%S", 60 * 86_400),
        ("%Y-%m-%dT%H:%M:%S,123456+00:00", 600),
    ],
)
def test_the_clocks_of_logs_are_understood(
    stamp: str, age_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    written = time.strftime(
        stamp, time.gmtime(time.time() - age_s)
    )  # allowed: logs have stamps of today
    read = logs._instant_s(
        written, logs.boot_s(), time.time()
    )  # allowed: logs have stamps of today
    assert read == pytest.approx(time.time() - age_s, abs=3)  # allowed: logs have stamps of today


def test_seconds_of_the_kernel_count_from_its_start_and_unknown_times_are_kept() -> None:
    now, boot = time.time(), logs.boot_s()  # allowed: logs have stamps of today
    old = Event(source="x", vendor="y", code="z", time="1.5")
    fresh = replace(old, time=f"{now - boot:.3f}")
    timeless = replace(old, time="yesterday")
    assert events_since([old, fresh, timeless], now - 60) == (
        *((old,) if now - boot < 61 else ()),
        fresh,
        timeless,
    )
    assert len(events_since([old, fresh], None)) == 2


# ---- answers to schedulers


def result(name: str, verdict: Verdict = Verdict.FAIL, **extra: Any) -> Result:
    return Result(
        id=name,
        suite="health",
        area=name.partition("/")[0],
        verdict=verdict,
        reason="so",
        device=GPU,
        extra=extra,
    )


PASSED = result("health/ecc", Verdict.PASS)
OPEN = result("health/answers", Verdict.INCONCLUSIVE)
LATE = replace(result("health/time", Verdict.INCONCLUSIVE), reason="not judged within 8 s")


@pytest.mark.parametrize(
    ("results", "state", "codes"),
    [
        ([PASSED], "well", (0, 0, 0)),
        ([PASSED, result("health/pending-repair")], "well", (0, 0, 0)),
        ([PASSED, result("identity/count")], "faulty", (1, 1, 1)),
        ([OPEN, result("identity/count")], "faulty", (1, 1, 1)),
        ([PASSED, OPEN], "unknown", (0, 3, 2)),
        ([LATE, PASSED], "unknown", (0, 3, 2)),
        ([], "unknown", (0, 3, 2)),
        ([result("links/check", Verdict.ERROR), PASSED], "unknown", (0, 3, 2)),
    ],
)
def test_a_scheduler_learns_well_faulty_or_unknown(
    results: list[Result], state: str, codes: tuple[int, int, int]
) -> None:
    given = answer(Run(info(), results))
    assert given.state == state
    assert given.exit_code(Hook.PROLOG) == codes[0]
    assert given.exit_code(Hook.PROLOG, fail_on_unknown=True) == codes[1]
    assert given.exit_code(Hook.NPD) == given.exit_code(Hook.NPD, fail_on_unknown=True) == codes[2]


def test_what_fails_can_be_set() -> None:
    run = Run(info(), [PASSED, result("health/pending-repair")])
    assert answer(run, Action.RESET).state is State.FAULTY
    assert answer(run, Action.REPLACE).state is State.WELL
    assert answer(run).reason == f"reset: health/pending-repair on {GPU}: so"


def test_the_reason_names_the_worst_and_that_time_ran_out() -> None:
    late = answer(Run(info(), [PASSED, OPEN, LATE, result("health/pending-repair")]))
    assert late.reason == (
        f"reset: health/pending-repair on {GPU}: so; "
        f"not judged: health/time on {GPU}: not judged within 8 s (and 1 more)"
    )


@pytest.mark.parametrize("letter", ["x", "ä", "€", "😀"])
def test_node_problem_detector_gets_80_bytes_at_most(letter: str) -> None:
    line = npd_line(Answer(State.FAULTY, Action.ISOLATE, f"isolate: {letter * 200}"))
    assert 74 < len(line.encode()) <= 80
    assert npd_line(Answer(State.WELL, Action.NONE, "no finding")) == "no finding"


def test_the_operator_finds_the_reason_in_a_file(tmp_path: Path) -> None:
    given = Answer(State.FAULTY, Action.ISOLATE, "isolate: Xid 79")
    place = tmp_path / "reason"
    inform_operator(given, Hook.PROLOG, place)
    assert place.read_text().endswith("Z prolog faulty isolate: Xid 79\n")
    problems = inform_operator(given, Hook.PROLOG, tmp_path / "no" / "folder")
    assert any("the reason is not in " in each for each in problems)


def test_the_system_log_gets_one_line_and_is_never_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import socket

    place = tmp_path / "log"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as system:
        system.bind(str(place))
        monkeypatch.setattr(scheduler, "_SYSLOG", str(place))
        given = Answer(State.FAULTY, Action.ISOLATE, "isolate: Xid 79")
        assert inform_operator(given, Hook.EPILOG, tmp_path / "reason") == []
        line = system.recv(4096).decode()
        assert line.startswith("<27>portagpu-health[")
        assert line.endswith("]: epilog: isolate: Xid 79")
        # nobody reads: a full socket is a problem to report, and not one to wait for
        for _ in range(10_000):
            problems = inform_operator(given, Hook.EPILOG, tmp_path / "reason")
            if problems:
                break
        assert "not in the system's log" in problems[0]
        well = Answer(State.WELL, Action.NONE, "no finding")
        assert inform_operator(well, Hook.EPILOG, tmp_path / "reason") == []


# ---- the command


def command(
    *words: str, site: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    path = [str(site)] if site is not None else []
    return subprocess.run(
        [sys.executable, "-m", "portagpu", "health", *words],
        env={
            "PYTHONPATH": ":".join([*path, str(ROOT), str(ROOT / "backends")]),
            "PYTHONWARNINGS": "error",
            **variables,
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


JUDGES_HERE = """
import portagpu.checks.health.watchdog
from portagpu.checks.health.engine import health
portagpu.checks.health.watchdog.health_within = health
"""


@pytest.fixture
def fork(verbs: ForkedVerbs) -> Callable[..., Child]:
    """The command in a fork that judges by itself, with no variable; a warning is an error."""
    body = f"{JUDGES_HERE}import warnings\nwarnings.simplefilter('error')\n{VERB}"
    return lambda *words: verbs("health", *words, environment={}, body=body)


def test_the_command_judges_and_writes(tmp_path: Path) -> None:
    page = str(PAGES / "v13-lost.xml")
    done = command("--replay", page, "--out", str(tmp_path / "out"))
    assert done.returncode == 1, done.stderr
    assert "isolate  FAIL health/answers" in done.stdout
    assert "action isolate: " in done.stdout
    run = read_json(tmp_path / "out" / "result.json")
    assert run.info.command[:2] == ("portagpu", "health")
    assert (tmp_path / "out" / "report.html").stat().st_size > 1000


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--gate", "sbatch"), "'sbatch' is not one of"),
        (("--since", "yesterday"), '\'yesterday\' is not "boot", "all" or a number of seconds'),
        (("--since", "nan"), "'nan' is not"),
        (("--fail-on", "reset"), "need --gate"),
        (("--gate", "npd", "--json", "-"), "give --json and --ocp a file"),
        (("--limit", "0"), "0 is not in the range"),
        (("--replay", "/nowhere"), "no such file or folder"),
        (("--log", "/nowhere", "--gate", "prolog"), "--log /nowhere: there is no such file"),
        (("--target", "nvidia-h20000"), "nvidia-h20000"),
        (("--target", "nvidia-h20000", "--gate", "prolog"), "nvidia-h20000"),
        (("--replay", ".", "--since", "60"), "leave it out with --replay"),
    ],
)
def test_wrong_usage_is_one_line(
    words: tuple[str, ...], said: str, fork: Callable[..., Child]
) -> None:
    done = fork(*words)
    assert done.code == 2
    assert said in done.err
    assert len(done.err.splitlines()) == 1


def test_a_gate_whose_judgement_breaks_lets_the_job_run_and_says_so(
    tmp_path: Path, fork: Callable[..., Child]
) -> None:
    reason = ("--reason-file", str(tmp_path / "reason"))
    for words, code in (((), 0), (("--fail-on-unknown",), 3)):
        done = fork("--gate", "prolog", *words, *reason, "--replay", "/nowhere")
        assert done.code == code
        assert "not judged: /nowhere: no such file or folder" in done.err
    assert fork("--gate", "npd", "--replay", "/nowhere").code == 2


FULL = """
import os
full = os.open("/dev/full", os.O_WRONLY)
os.dup2(full, 1)
os.dup2(full, 2)
"""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("gate", ["prolog", "healthcheck"])
def test_output_that_nobody_takes_is_not_a_fault_of_the_node(
    gate: str, tmp_path: Path, verbs: ForkedVerbs
) -> None:
    given = ("--gate", gate, "--log", str(tmp_path / "log"))
    for line, code in ((QUIET, 0), (dmesg(LOST), 1)):
        (tmp_path / "log").write_text(line)
        assert (
            verbs("health", *given, environment={}, body=f"{JUDGES_HERE}{FULL}{VERB}").code == code
        )


HANGS = {
    # a vendor's library that does not return
    "probe": (
        "import time\n"
        "from portagpu.devices.contract import Plugin, Status\n"
        "class Hanging(Plugin):\n"
        "    name, contract, vendor = 'hanging', (1, 0), 'hanging'\n"
        "    def status(self): return Status(False, 'hangs')\n"
        "    def count(self): return 0\n"
        "    def open(self, index): raise NotImplementedError\n"
        "    def probe(self): time.sleep(600)\n"
        "PLUGIN = Hanging()\n"
    ),
    # Python itself does not come back: a file system that hangs, a read of the kernel's files
    "python": "PLUGIN = None\n",
}


def hanging_site(folder: Path, kind: str) -> Path:
    """A folder of packages in which that hangs; the hanging process writes ``folder/pid``."""
    site = folder / "site"
    described = site / "hanging-1.0.dist-info"
    described.mkdir(parents=True)
    (site / "hanging_backend.py").write_text(HANGS[kind])
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: hanging\nVersion: 1.0\n")
    (described / "entry_points.txt").write_text(
        "[portagpu.backends]\nhanging = hanging_backend:PLUGIN\n"
    )
    if kind == "python":
        (site / "sitecustomize.py").write_text(
            "import os, pathlib, sys, time\n"
            "if 'portagpu.checks.health.watchdog' in sys.orig_argv:\n"
            f"    pathlib.Path({str(folder / 'pid')!r}).write_text(str(os.getpid()))\n"
            "    time.sleep(600)\n"
        )
    return site


def has_ended(folder: Path) -> bool:
    """Whether the process in ``folder/pid`` is gone."""
    return not Path(f"/proc/{(folder / 'pid').read_text()}").exists()


@pytest.mark.parametrize("kind", HANGS)
def test_it_ends_in_time_whatever_hangs(kind: str, tmp_path: Path) -> None:
    site, log = hanging_site(tmp_path, kind), tmp_path / "dmesg.log"
    log.write_text(dmesg(LOST))
    words = ("--log", str(log), "--since", "all", "--reason-file", str(tmp_path / "r"))

    def ended(limit_s: int) -> subprocess.CompletedProcess[str]:
        # the command's own helper ends it long after this limit and before the 600 s of the sleep
        return command("--gate", "prolog", "--limit", str(limit_s), *words, site=site)

    done = ended(4)
    if kind == "probe":
        # a busy machine needs longer for the rest
        for limit_s in (8, 16, 32, 64):
            if "nothing was judged" in done.stderr:
                done = ended(limit_s)
        # the log was judged although the library hangs
        assert done.returncode == 1, done.stderr
        assert f"isolate: health/events on {GPU}: Xid 79" in done.stderr
        return
    assert done.returncode == 0, done.stderr
    assert "not judged within 4 s: nothing was judged" in done.stderr
    wait_until(lambda: has_ended(tmp_path), "the child was left")


def test_a_signal_ends_what_hangs_as_well(tmp_path: Path) -> None:
    site, folder = hanging_site(tmp_path, "python"), tmp_path / "pid"
    process = subprocess.Popen(
        [sys.executable, "-m", "portagpu", "health", "--gate", "epilog"],
        env={"PYTHONPATH": ":".join([str(site), str(ROOT), str(ROOT / "backends")])},
        stderr=subprocess.PIPE,
    )
    try:
        wait_until(lambda: folder.exists() and bool(folder.read_text()), "no child began")
        process.terminate()
        assert process.wait(timeout=60) == 130
    finally:
        process.kill()
        process.communicate()
    wait_until(lambda: has_ended(tmp_path), "the child was left")


def test_a_child_that_dies_is_inconclusive(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        "import os, sys\nif 'portagpu.checks.health.watchdog' in sys.orig_argv:\n    os.abort()\n"
    )
    done = command("--gate", "npd", site=site)
    assert done.returncode == 2
    assert done.stdout.startswith("not judged: health/time: the judging process died of SIGABRT")


def test_a_node_without_gpus_and_log_is_not_passed(
    tmp_path: Path, fork: Callable[..., Child]
) -> None:
    done = fork("--expect-devices", "8", "--log", str(tmp_path))
    assert done.code in (1, 3)
    assert "cannot be read" in done.out


def test_the_command_imports_no_torch_and_no_numpy() -> None:
    code = (
        "import sys; from portagpu.checks.health.engine import health_so_far; "
        "import portagpu.checks.health.scheduler, portagpu.checks.health.watchdog; "
        "import portagpu.cli.health; "
        "print(sorted({'torch', 'numpy', 'rich', 'multiprocessing'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'backends'}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() == "[]"


def test_slurm_is_called_nowhere() -> None:
    """Neither a prolog nor an epilog may call its commands; the generated scripts drain."""
    for path in (ROOT / "portagpu" / "checks" / "health").glob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert not {"scontrol", "sinfo", "squeue", "sacctmgr", "srun"} & set(text.split()), path

"""Bring-up where no device can be opened: what files, libraries and the kernel's log show."""

from __future__ import annotations

import json
import tarfile
from typing import TYPE_CHECKING, Any

import pytest

from portagpu.base.errors import BackendNotFound, RecordingError, UnknownBackend
from portagpu.checks.bringup import BringupOptions, bringup, load_gates
from portagpu.checks.bringup.checks import health
from portagpu.checks.bringup.run import Context, MachineUnderTest
from portagpu.checks.recordings.replay import Recording
from portagpu.cli import main
from portagpu.facts.formats.host import kernel_log
from portagpu.facts.host import read_host
from portagpu.facts.torchbuild import TorchBuild
from portagpu.machine.inventory.sources import CommandOutput, Live, kernel_log_output
from portagpu.runs.results.run import Evidence, Run, Verdict, validate
from portagpu.runs.world import Ranks
from tests.support.gpu_trees import amd_gpu, machine
from tests.support.host_trees import build, two_socket_x86

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("forked")

LOST = "0000:03:00.0"
# in the form of the messages of Linux drivers/gpu/drm/amd/amdgpu/amdgpu_ras.c, as dmesg has them
LOG = (
    f"[  100.512345] amdgpu {LOST}: amdgpu: 1 uncorrectable hardware errors detected in umc block\n"
)
# drivers/edac/edac_mc.c, edac_ue_error
EDAC = "[  200.512345] EDAC MC0: 1 UE memory read error on DIMM_A1 (channel:0 slot:0 page:0x1)\n"
QUIET = "[    0.000000] Linux version 6.8.0\n[    1.512345] pci 0000:00:00.0: bridge\n"


class Here(Live):
    """A machine of files, whose kernel's log is a text."""

    text = ""

    def log_output(self) -> CommandOutput | None:
        return CommandOutput(("dmesg",), self.text) if self.text else None


@pytest.fixture
def eight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[Here]:
    """This machine as one of eight MI300X, until the test is over."""
    files, links = machine(*(amd_gpu(index) for index in range(8)))
    root = build(tmp_path / "machine", two_socket_x86() | files, links)

    class Eight(Here):
        def __init__(self) -> None:
            super().__init__(root, {})

    monkeypatch.setattr("portagpu.checks.bringup.run.Live", Eight)
    monkeypatch.setattr("portagpu.checks.bringup.checks.environment.gpus_on_machine", tuple)
    return Eight


def without_torch(monkeypatch: pytest.MonkeyPatch, found: TorchBuild | None = None) -> None:
    monkeypatch.setattr("portagpu.facts.torchbuild.torch_build", lambda: found)


def run(**options: Any) -> Run:
    made = bringup(BringupOptions(**options))
    validate(json.loads(made.to_text()))
    return made


def verdicts(made: Run, area: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for each in made.results:
        if each.area == area:
            found.setdefault(each.id.partition("/")[2], set()).add(str(each.verdict))
    return found


def test_without_torch_every_gate_that_needs_no_device_is_judged(
    eight: type[Here], monkeypatch: pytest.MonkeyPatch
) -> None:
    without_torch(monkeypatch)
    made = run(target="amd-mi300x", expect_devices=8)
    assert made.verdict is Verdict.FAIL
    assert made.first_failed == "environment/torch"
    assert "torch is not installed" in made.summary_line()
    assert verdicts(made, "identity")["target"] == {"PASS"}
    assert verdicts(made, "identity")["count"] == {"PASS"}
    assert len([each for each in made.results if each.id == "identity/device"]) == 8
    for gate in load_gates()[1:]:
        found = verdicts(made, gate.id)
        assert found["blocked"] == {"INCONCLUSIVE"}, gate.id
        assert (len(found) > 1) == (gate.replay is not None), gate.id
    assert all(Evidence.EXECUTED not in each.evidence for each in made.results)


def test_a_torch_that_cannot_be_imported_is_reported_by_its_own_problem(
    eight: type[Here], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = TorchBuild(location="", version="2.9", kind="cpu", problem="torch is damaged: x")
    without_torch(monkeypatch, broken)
    made = run()
    assert made.verdict is Verdict.FAIL
    assert "torch is damaged: x" in made.summary_line()
    assert len([each for each in made.results if each.id == "identity/device"]) == 8


def test_a_host_that_lost_data_fails_its_cpu_and_a_gpu_next_to_it_does_not(
    eight: type[Here], monkeypatch: pytest.MonkeyPatch
) -> None:
    (gate,) = [each for each in load_gates() if each.id == "health"]
    context = Context(MachineUnderTest("cpu", Ranks(), machine=eight(), shared=True), gate, "quick")
    for text, wanted in ((EDAC + LOG, [("health/events", Verdict.FAIL)]), (LOG, []), ("", [])):
        monkeypatch.setattr(eight, "text", text)
        context.tested.machine = eight()
        events = [each for each in health.check(context) if each.id == "health/events"]
        assert [(each.id, each.verdict) for each in events] == wanted, text
        assert all("lost data" in each.reason for each in events)


@pytest.mark.torch
def test_links_and_health_are_judged_where_no_device_opens(
    eight: type[Here], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")

    def none(name: str) -> int:
        raise BackendNotFound("the backend has no device", {name: "the driver is another version"})

    monkeypatch.setattr("portagpu.checks.bringup.checks.identity.registry.count", none)
    monkeypatch.setattr(eight, "text", LOG)
    made = run(backend="cpu")
    assert {"identity/device", "health/events"} == {each.id for each in made.failures}
    assert verdicts(made, "links")["blocked"] == {"INCONCLUSIVE"}
    assert len(verdicts(made, "links")) > 1
    assert verdicts(made, "memory") == {"blocked": {"INCONCLUSIVE"}}


def test_a_backend_that_nobody_declares_is_still_refused() -> None:
    with pytest.raises(UnknownBackend):
        bringup(BringupOptions(backend="cpuu"))


# ---- reading the log


def program(folder: Path, name: str, text: str, status: int = 0) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.txt").write_text(text)
    path = folder / name
    path.write_text(f"#!/bin/sh\n/bin/cat '{folder / name}.txt'\nexit {status}\n")
    path.chmod(0o755)


JOURNAL = """\
2026-05-04T10:00:00+0000 kernel: Linux version 6.8.0
2026-05-04T10:00:01+0000 kernel: NVRM: Xid (PCI:0000:07:00): 79, pid=1, GPU has fallen off the bus.
"""
"""As journalctl(1) writes short-iso without host names."""


def test_the_journal_is_read_before_dmesg_and_dmesg_where_it_shows_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert kernel_log_output().problem.endswith("neither journalctl nor dmesg shows it")
    program(tmp_path / "bin", "dmesg", "dmesg: read kernel buffer failed: Not permitted", 1)
    assert "Not permitted" in kernel_log_output().problem
    program(tmp_path / "bin", "dmesg", QUIET)
    program(tmp_path / "bin", "journalctl", "")
    assert kernel_log_output() == CommandOutput(("dmesg",), QUIET)
    program(tmp_path / "bin", "journalctl", JOURNAL)
    found = kernel_log_output()
    assert found.command[0] == "journalctl"
    (event,) = kernel_log.parse(found.text).events
    assert (event.code, event.pci, event.time) == (
        "Xid 79",
        "0000:07:00.0",
        "2026-05-04T10:00:01+0000",
    )


def test_a_live_log_gives_events_alone_and_no_gpu_of_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container sees its host's log, and not its host's GPUs."""
    program(tmp_path / "bin", "dmesg", f"[ 1.0] NVRM: loading NVIDIA UNIX x86_64\n{LOG}")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    found = Live().log()
    assert found is not None
    assert (len(found.events), found.readings) == (1, ())
    assert Live(tmp_path).log() is None, "a file tree has no log of this machine"


@pytest.mark.parametrize("shown", ["-- No entries --\n", "No journal files were found.\n", ""])
def test_a_live_log_without_a_line_of_the_kernel_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: str
) -> None:
    for name in ("journalctl", "dmesg"):
        program(tmp_path / "bin", name, shown)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert Live().log() is None
    program(tmp_path / "bin", "dmesg", QUIET)
    assert Live().log() is not None


# ---- one file


@pytest.mark.parametrize("link", ["/etc/passwd", "../../x", "../.."])
def test_a_link_that_leads_out_of_an_archive_is_refused(tmp_path: Path, link: str) -> None:
    entry = tarfile.TarInfo("saved/tree")
    entry.type, entry.linkname = tarfile.SYMTYPE, link
    with tarfile.open(tmp_path / "x.tar.gz", "w:gz") as archive:
        archive.addfile(entry)
    with pytest.raises(RecordingError, match="is a link"):
        Recording(tmp_path / "x.tar.gz")


# ---- other work


@pytest.mark.parametrize(
    ("load", "said"),
    [("6.93", "load 6.9 on 4 CPUs: numbers are not comparable"), ("4.00", ""), ("", "")],
)
def test_a_busy_machine_is_reported(tmp_path: Path, load: str, said: str) -> None:
    files = {
        "proc/loadavg": f"{load} 1.0 1.0 2/300 4711" if load else "",
        "proc/self/status": "Cpus_allowed_list:\t0-3",
        "sys/devices/system/cpu/online": "0-3",
    }
    assert read_host(build(tmp_path, files)).busy == said


@pytest.mark.torch
def test_bench_states_once_that_the_machine_is_busy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(
        "portagpu.facts.host.Host.busy", "load 9.0 on 2 CPUs: numbers are not comparable"
    )
    monkeypatch.setattr("portagpu.suites.performance.runner.measure", lambda *_: None)
    main(["bench"])
    assert capsys.readouterr().out.count("load 9.0 on 2 CPUs: numbers are not comparable") == 1

"""The example's vendor, from its own wheel next to ours: nothing here knows its boards."""

from __future__ import annotations

import json
import os
import site
import sysconfig
import venv
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import ROOT, Child, build_wheel, install
from tests.support.forked_verbs import VERB, ForkedVerbs
from tests.support.host_trees import build, pci_device, two_socket_x86

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Run = Callable[..., Child]

SMI = """\
demo-smi 1.0
board 0 at 0000:41:00.0: Demo One, DEMO-01, 61 C, slowed by fan_stopped, 12 pages retired
board 1 at 0000:81:00.0: Demo One, DEMO-02, 40 C, slowed by quiet_mode, 3 pages retired
"""
LOG = """\
[   10.000000] demo 0000:41:00.0: board stopped
[   11.000000] demo 0000:81:00.0: code 7
"""


@pytest.fixture(scope="module")
def python(portagpu_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment in which both wheels are installed, and nothing else."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, symlinks=True)
    into = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder)}))
    demo = build_wheel(ROOT / "examples/third_party_backend", tmp_path_factory.mktemp("demo-wheel"))
    for wheel in (portagpu_wheel, demo):
        install(wheel, into)
    return folder / "bin/python"


@pytest.fixture(scope="module")
def forks(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkedVerbs]:
    """A process of that environment; what portagpu needs is this one's."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("DEMO_")}
    # both wheels before this environment, which also has the metadata of this checkout
    own = python.parents[1].glob("lib/*/site-packages")
    needed = os.pathsep.join([*map(str, own), *site.getsitepackages()])
    environment = {**inherited, "PYTHONPATH": needed}
    with ForkedVerbs(
        tmp_path_factory.mktemp("forks"), environment=environment, python=str(python)
    ) as started:
        yield started


@pytest.fixture
def run(forks: ForkedVerbs, tmp_path: Path) -> Run:
    """``run(*words, **environment)`` in that environment: the command line, or a ``body``."""

    def in_venv(*words: str, body: str = VERB, **environment: str) -> Child:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("DEMO_")}
        return forks(*words, folder=tmp_path, environment={**inherited, **environment}, body=body)

    return in_venv


def _document(run: Run, *words: str, **environment: str) -> dict[str, Any]:
    ended = run(*words, "--json", "-", **environment)
    assert ended.out.startswith("{"), ended.err
    found: dict[str, Any] = json.loads(ended.out)
    return found


@pytest.fixture
def info(run: Run) -> Callable[..., dict[str, Any]]:
    return partial(_document, run, "info")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "smi.txt"
    file.write_text(SMI, encoding="utf-8")
    return file


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A machine with two of its boards: one with its driver, one with what computes nothing."""
    files = dict(two_socket_x86())
    for address in ("0000:41:00.0", "0000:81:00.0"):
        files |= pci_device(address, "0x120000", "0xde30")
    files |= {"sys/module/demo/version": "3.1", "proc/sys/kernel/numa_balancing": "1"}
    drivers = {
        "sys/bus/pci/devices/0000:41:00.0/driver": "../drivers/demo",
        "sys/bus/pci/devices/0000:81:00.0/driver": "../drivers/demo_flash",
    }
    return build(tmp_path / "tree", files, drivers)


def test_both_are_read_from_their_wheels(run: Run) -> None:
    code = (
        "import portagpu, portagpu_demo.vendor as demo, portagpu.facts.vendors as known;"
        "print(portagpu.__file__, demo.__file__, *known.vendors())"
    )
    ours, theirs, *names = run(body=code).ok().split()
    for file in (ours, theirs):
        assert not Path(file).is_relative_to(ROOT), f"{file} is of this checkout"
        assert "site-packages" in file
    assert names == ["nvidia", "amd", "demo"]


def test_its_text_is_read_among_other_outputs(
    info: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    file = tmp_path / "paste.txt"
    ours = "GPU 0: NVIDIA H100 PCIe (UUID: GPU-00000000-0000-0000-0000-000000000001)\n"
    file.write_text(f"{ours}{SMI}{LOG}strange words\n", encoding="utf-8")
    found = info("--replay", str(file))
    assert [gpu["vendor"] for gpu in found["gpus"]] == ["demo", "demo", "nvidia"]
    assert [event["code"] for event in found["events"]] == ["board stopped", "Demo code 7"]
    unread = [each for each in found["remarks"] if "no known format" in each]
    assert len(unread) == 1
    assert unread[0].startswith("1 line is of no known format: 'strange words' in line 7")


def test_of_its_text_alone_no_line_is_left(info: Callable[..., dict[str, Any]], text: Path) -> None:
    remarks = info("--replay", str(text))["remarks"]
    assert not [each for each in remarks if "known format" in each]


def test_its_text_is_read(info: Callable[..., dict[str, Any]], text: Path) -> None:
    found = info("--replay", str(text))
    boards = [(g["vendor"], g["pci"], g["name"], g["uuid"]) for g in found["gpus"]]
    assert boards == [
        ("demo", "0000:41:00.0", "Demo One", "DEMO-01"),
        ("demo", "0000:81:00.0", "Demo One", "DEMO-02"),
    ]


def test_its_boards_are_found_on_the_bus(info: Callable[..., dict[str, Any]], tree: Path) -> None:
    found = info("--replay", str(tree))
    boards = [(g["vendor"], g["pci"], g["driver"]) for g in found["gpus"]]
    assert boards == [("demo", "0000:41:00.0", "demo"), ("demo", "0000:81:00.0", "demo_flash")]
    assert {g["driver_version"] for g in found["gpus"]} == {"3.1"}


def test_what_to_do_about_its_boards_is_reported(
    info: Callable[..., dict[str, Any]], tree: Path, text: Path
) -> None:
    reported = info("--replay", str(tree), "--replay", str(text))["remarks"]
    assert any(
        "0000:81:00.0 is bound to demo_flash" in each
        for each in info("--replay", str(tree))["remarks"]
    )
    assert any(each.startswith("automatic NUMA balancing slows Demo One") for each in reported), (
        reported
    )


def test_its_health_and_its_log_are_judged(run: Run, text: Path, tmp_path: Path) -> None:
    log = tmp_path / "dmesg.txt"
    log.write_text(LOG, encoding="utf-8")
    words = ("bringup", "--replay", str(text), "--replay", str(log))
    results = _document(run, *words)["results"]
    failed = {each["id"]: each for each in results if each["verdict"] == "FAIL"}
    said = " ".join(each["reason"] for each in failed.values())
    assert "0000:41:00.0: slowed by fan_stopped: check air flow" in said
    assert "quiet_mode" not in said, "what somebody has set is not a fault"
    assert "0000:41:00.0: 12 pages are retired (all 12), and 10 are the limit" in said
    assert "0000:81:00.0" not in said
    (event,) = (each for each in results if "board stopped" in (each["reason"] or ""))
    assert event["verdict"] == "FAIL"
    assert "restart the machine" in event["reason"]
    assert event["extra"]["severity"] == "gone"
    codes = [(e["code"], e["meaning"], e["action"]) for e in _events(run, log)]
    assert codes[1] == ("Demo code 7", "A contact is loose", "reseat the board")


def _events(run: Run, log: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = _document(run, "info", "--replay", str(log))["events"]
    return found


def test_its_tool_without_an_answer_is_understood(
    info: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    file = tmp_path / "answer.txt"
    file.write_text("demo-smi: no driver\n", encoding="utf-8")
    (event,) = info("--replay", str(file))["events"]
    assert (event["vendor"], event["code"], event["fatal"]) == ("demo", "no driver", True)


def test_its_variables_are_shown_and_judged(
    info: Callable[..., dict[str, Any]], tree: Path
) -> None:
    masks = {"DEMO_VISIBLE_BOARDS": "0,x", "DEMO_POSE_AS": "two"}
    found = info(**masks)
    assert {name: found["visible"].get(name) for name in masks} == masks
    assert "DEMO_POSE_AS=two makes a board pose as another one: unset it" in found["remarks"]


def test_its_masks_are_resolved(run: Run) -> None:
    code = """
from portagpu.facts.visible import DeviceId, environment_for, resolve
boards = [DeviceId(n, f"DEMO-0{n}") for n in range(3)]
seen = resolve({"DEMO_VISIBLE_BOARDS": "DEMO-02,0"}, boards, "demo")
assert [each.index for each in seen.devices] == [2, 0] and not seen.problems, seen
wrong = resolve({"DEMO_VISIBLE_BOARDS": "0,x"}, boards, "demo").problems
assert any("names no device for the demo runtime" in each.message for each in wrong), wrong
assert environment_for(boards[1:], "demo") == {"DEMO_VISIBLE_BOARDS": "1,2"}
"""
    run(body=code).ok()


def test_its_words_for_exhausted_memory_are_known(run: Run) -> None:
    code = """
import sys, types
sys.modules["torch"] = types.SimpleNamespace(OutOfMemoryError=MemoryError)
import portagpu
print(portagpu.is_oom(RuntimeError("Demo board is full: 3 MiB")))
print(portagpu.is_oom(RuntimeError("board is cold")))
"""
    assert run(body=code).ok().split() == ["True", "False"]


def test_its_plugin_has_its_variables(run: Run) -> None:
    code = (
        "from portagpu.devices.discovery import plugin;"
        "print(plugin('demo').variables.for_job('/tmp/job'), plugin('demo').variables.one_by_one)"
    )
    assert run(body=code).ok().strip() == "{'DEMO_CACHE': '/tmp/job/demo'} {'DEMO_WAIT': '1'}"


def test_no_file_of_the_project_knows_it() -> None:
    files = [f for top in ("portagpu", "backends", "matrix") for f in (ROOT / top).rglob("*")]
    known = [
        str(file)
        for file in files
        if file.suffix in (".py", ".toml") and "demo" in file.read_text("utf-8").lower().split()
    ]
    assert not known

"""Recordings that want to harm their reader: links, numbers, sizes, names."""

from __future__ import annotations

import json
import os
import random
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from portagpu.base.errors import RecordingError
from portagpu.base.files import read_bounded
from portagpu.checks.bringup import BringupOptions, bringup
from portagpu.checks.info import collect
from portagpu.checks.recordings.replay import MANIFEST, Recording
from portagpu.cli.bringup import bringup as bringup_verb
from portagpu.cli.info import info
from portagpu.facts.formats import MAX_DEVICES
from portagpu.facts.host import tree
from portagpu.facts.host.tree import (
    MAX_ATTRIBUTE,
    MAX_CPUS,
    RootedFolder,
    Tree,
    cpu_list,
    size_bytes,
    to_int,
)
from portagpu.machine.inventory import sources
from portagpu.machine.inventory.join import MAX_GPUS
from portagpu.reports.html import render as report_page
from portagpu.reports.junit import render as junit
from portagpu.runs.results.plain import UNSAFE
from portagpu.runs.results.run import Run
from tests.support import fuzz_trees
from tests.support.fuzz_trees import OUTSIDE, fuzz, own, texts
from tests.support.host_trees import PCI, build, gfx942_node

if TYPE_CHECKING:
    from collections.abc import Iterator

KFD = "sys/class/kfd/kfd/topology/nodes"
LIST = "GPU 0: NVIDIA H200 (UUID: GPU-00000001-0000-1111-2222-333333333333)\n"


def everything(recording: Recording) -> str:
    """All that ``info`` and ``bringup`` say of a recording."""
    said = json.dumps(collect(machine=recording))
    return said + bringup(BringupOptions(replay=recording)).to_text()


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A machine next to the recording: the reader's own."""
    files = gfx942_node(1, 0x8300) | {"proc/sys/kernel/osrelease": OUTSIDE, "list": LIST + OUTSIDE}
    root = build(tmp_path / "outside", files)
    (root / MANIFEST).write_text(
        json.dumps({"schema": "portagpu.recording/1", "libraries": {"python": OUTSIDE}})
    )
    return root


@pytest.mark.parametrize(
    "link",
    [
        ("tree", "."),
        ("tree/proc/sys", "proc/sys"),
        ("tree/proc/sys/kernel/osrelease", "proc/sys/kernel/osrelease"),
        ("outputs/list.txt", "list"),
        ("outputs", "."),
        ("findings", "."),
        (MANIFEST, MANIFEST),
    ],
)
@pytest.mark.parametrize("absolute", [True, False])
def test_no_link_leads_out_of_a_recording(
    tmp_path: Path, outside: Path, link: tuple[str, str], absolute: bool
) -> None:
    recording = tmp_path / "recording"
    (recording / "outputs-of-its-own").mkdir(parents=True)
    (recording / "outputs-of-its-own" / "dmesg").write_text("[    1.0] NVRM: loaded\n" + LIST)
    place, target = recording / link[0], (outside / link[1]).resolve()
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(target if absolute else os.path.relpath(target, place.parent))
    try:
        said = everything(Recording(recording))
    except RecordingError as error:
        said = str(error)
        assert said.isprintable()
    assert OUTSIDE not in said
    assert "0000:83:00.0" not in said


@pytest.mark.parametrize("target", ["..", "../..", "../../..", "/..", "/../..", "../outside"])
def test_a_link_may_not_climb_above_the_tree(tmp_path: Path, outside: Path, target: str) -> None:
    root = build(tmp_path / "machine", {"proc/meminfo": "MemTotal: 1 kB"}, {"sys": target})
    tree = Tree(root)
    assert tree.names("sys") == ()
    assert tree.text("sys/outside/list") is None
    assert tree.text("sys/list") is None


def test_links_inside_a_tree_lead_where_they_did_on_the_machine(tmp_path: Path) -> None:
    files = {"sys/devices/pci0000:00/0000:01:00.0/vendor": "0x10de", "sys/a/b/up": "here"}
    links = {
        f"{PCI}/0000:01:00.0": "../../../devices/pci0000:00/0000:01:00.0",
        "sys/absolute": "/sys/devices/pci0000:00",
        "sys/chain": "absolute/0000:01:00.0/../../../a/./b",
    }
    tree = Tree(build(tmp_path, files, links))
    assert tree.integer(f"{PCI}/0000:01:00.0/vendor") == 0x10DE
    assert tree.link_name(f"{PCI}/0000:01:00.0") == "0000:01:00.0"
    assert tree.names("sys/absolute") == ("0000:01:00.0",)
    assert tree.text("sys/chain/up") == "here"


def test_an_absolute_link_of_a_part_of_a_machine_is_below_that_part(tmp_path: Path) -> None:
    links = {"here": "/sys/class/kfd/kfd/topology/nodes/1", "out": "/sys/class", "etc": "/etc"}
    root = build(tmp_path, {"nodes/1/name": "vega10"}, links)
    tree = Tree(root, "sys/class/kfd/kfd/topology")
    assert tree.text("sys/class/kfd/kfd/topology/here/name") == "vega10"
    assert tree.names("sys/class/kfd/kfd/topology/out") == ()
    assert tree.names("sys/class/kfd/kfd/topology/etc") == ()


def test_loops_of_links_end(tmp_path: Path) -> None:
    links = {"a": "b", "b": "a", "self": "self", "deep": "/".join(["deep2"] * 600), "deep2": "."}
    tree = Tree(build(tmp_path, {"file": "x"}, links))
    for path in ("a", "b", "self", "deep", "self/x"):
        assert tree.text(path) is None
        assert not tree.exists(path)


def test_a_link_that_is_exchanged_meanwhile_is_not_followed(
    tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = build(tmp_path / "machine", {"proc/file": "inside", "proc/folder/file": "inside"})
    looked = os.stat

    def exchanged(path: Any, *more: Any, **named: Any) -> os.stat_result:
        found = looked(path, *more, **named)
        if path in ("file", "folder") and named:
            place = root / "proc" / path
            if place.is_file():
                place.unlink()
            else:
                place.rename(tmp_path / f"moved-{random.random()}")  # noqa: S311 - no secret
            place.symlink_to(outside / "list" if path == "file" else outside)
        return found

    monkeypatch.setattr(tree.os, "stat", exchanged)
    for path in ("proc/file", "proc/folder/list"):
        with pytest.raises(OSError, match=r"symbolic links|Not a directory"):
            RootedFolder(root).data(path, 100)


def test_a_user_may_give_a_recording_as_a_link(tmp_path: Path) -> None:
    root = build(tmp_path / "machine" / "tree", gfx942_node(1, 0x8300))
    (tmp_path / "link").symlink_to(root.parent)
    (gpu,) = Recording(tmp_path / "link").inventory().gpus
    assert gpu.pci == "0000:83:00.0"
    assert Recording(tmp_path / "link").origins()[0].sha256 is not None


def test_what_is_not_a_file_is_named_and_not_opened(tmp_path: Path) -> None:
    (tmp_path / "list").write_text(LIST)
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("list")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
    problems = Recording(tmp_path).inventory().problems
    assert problems == (
        "fifo: a pipe, device or socket is not read",
        "link: a link is not read",
        "socket: a pipe, device or socket is not read",
    )


def test_reading_folders_opens_nothing_for_long(tmp_path: Path) -> None:
    build(tmp_path, {"folder/file": "x"}, {"link": "folder"})
    before = sorted(path.name for path in Path("/proc/self/fd").iterdir())
    for path in ("folder", "none", "folder/file/below", "link"):
        with pytest.raises(OSError, match=r"regular|directory"):
            read_bounded(tmp_path / path, 10)
        with pytest.raises(OSError, match=r"regular|directory"):
            RootedFolder(tmp_path).data(path, 10)
    assert sorted(path.name for path in Path("/proc/self/fd").iterdir()) == before


# -- sizes ---------------------------------------------------------------------------------------


def test_a_huge_sparse_recording_is_not_hashed(tmp_path: Path) -> None:
    (tmp_path / "list").write_text(LIST)
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(300 << 30)
    read = Recording(tmp_path)
    assert read.origins()[0].sha256 is None
    assert "sparse: its format is not known" in read.inventory().problems
    file_alone = tmp_path / "alone"
    file_alone.write_text(LIST)
    os.truncate(file_alone, 300 << 30)
    assert Recording(file_alone).origins()[0].sha256 is None


def test_a_file_that_grows_while_it_is_hashed_ends(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "list").write_text(LIST)
    monkeypatch.setattr(sources, "MAX_BYTES", 100)

    def endless(*_: Any, **__: Any) -> Iterator[bytes]:
        for _ in range(1000):
            yield b"x" * 101
        pytest.fail("read on after the bound")

    monkeypatch.setattr(RootedFolder, "pieces", lambda self, name, most, **_: (next(endless()),))
    assert sources.origin_of(tmp_path).sha256 is None


def test_a_folder_of_more_entries_than_any_of_the_kernels_is_not_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree, "MAX_ENTRIES", 100)
    build(tmp_path, {f"many/{n}": "x" for n in range(101)} | {"list": LIST.strip()})
    assert Tree(tmp_path).names("many") == ()
    (problem,) = Recording(tmp_path).inventory().problems
    assert "what follows is not read" in problem
    assert Recording(tmp_path).origins()[0].sha256 is None


def test_what_was_read_of_one_recording_counts_for_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree, "MAX_READS", 2000)
    (tmp_path / "list").write_text(LIST)
    for _ in range(100):
        assert collect(machine=Recording(tmp_path / "list"))["gpus"]


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        (f"0-{MAX_CPUS - 1}," * 4000, MAX_CPUS),
        ("5,1-3,2-4,1", 5),
        ("3-1", 0),
        (f"0-{MAX_CPUS}", None),
        ("0-99999999999", None),
        ("1," * MAX_ATTRIBUTE, None),
        ("\u0661-\u0663", None),
    ],
)
def test_cpu_lists_are_read_once_however_often_they_repeat(text: str, cpus: int | None) -> None:
    found = cpu_list(text)
    assert (None if found is None else len(found)) == cpus
    assert found is None or list(found) == sorted(set(found))


def test_numbers_beyond_64_bits_are_none() -> None:
    for text in ("9" * 21, "9" * 5000, "0x" + "f" * 17, "\u0663", "\u00b2", "1_0", "--1", "0x", ""):
        assert to_int(text) is None
    assert to_int("18446744073709551615") == 2**64 - 1
    assert to_int("-1") == -1
    assert size_bytes("\u0663 kB") is None


@pytest.mark.parametrize("lines", ["", " ", "simd_count", "\n\n\t\n"])
def test_a_blank_line_among_properties_is_passed_over(tmp_path: Path, lines: str) -> None:
    files = gfx942_node(1, 0x8300)
    files[f"{KFD}/1/properties"] = f"{lines}\n{files[f'{KFD}/1/properties']}\n{lines}"
    (gpu,) = Recording(build(tmp_path, files)).inventory().gpus
    assert gpu.pci == "0000:83:00.0"


def listed(count: int) -> str:
    return "".join(
        f"GPU {n}: NVIDIA H200 (UUID: GPU-{n:08x}-0000-1111-2222-{n:012x})\n" for n in range(count)
    )


def test_more_gpus_than_any_machine_has_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "most").write_text(listed(MAX_GPUS))
    assert len(Recording(tmp_path / "most").inventory().gpus) == MAX_GPUS
    (tmp_path / "more").write_text(listed(MAX_GPUS + 1))
    with pytest.raises(RecordingError, match=f"more than the {MAX_GPUS} that any machine has"):
        Recording(tmp_path / "more")
    (tmp_path / "far").write_text(listed(MAX_DEVICES + 1))
    with pytest.raises(RecordingError, match=f"lists more than {MAX_DEVICES} devices"):
        Recording(tmp_path / "far")


# -- names and words -----------------------------------------------------------------------------

EVIL = "\x1b[2J\x7f\x9b31m\u202eevil\u2066\ufeff"


def shown(recording: Path) -> dict[str, str]:
    """What each exit of the program says of a recording."""
    exits = {}
    for name, verb, *options in (
        ("info", info),
        ("info --json", info, "--json", "-"),
        ("info --topology", info, "--topology"),
        ("info --topology --json", info, "--topology", "--json", "-"),
        ("bringup", bringup_verb),
        ("bringup --json", bringup_verb, "--json", "-"),
    ):
        done = CliRunner().invoke(verb, ["--replay", str(recording), *options])
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        exits[name] = done.output
    run = bringup(BringupOptions(replay=Recording(recording)))
    return exits | {"JUnit": junit(run), "page": report_page(run), "document": run.to_text()}


def test_no_exit_shows_what_a_terminal_would_obey(tmp_path: Path) -> None:
    folder = tmp_path / f"of{EVIL}"
    folder.mkdir()
    (folder / f"list{EVIL}").write_text(
        f"GPU 0: NVIDIA {EVIL} (UUID: GPU-{EVIL})\n"
        f"  MIG {EVIL} Device  0: (UUID: MIG-1{EVIL})\n  MIG {EVIL}\x1b Device  0: (UUID: MIG-2)\n"
    )
    (folder / f"csv{EVIL}").write_text(
        f"name, uuid, driver_version\nA{EVIL}, GPU-a{EVIL}, 1{EVIL}\n"
    )
    (folder / f"no format{EVIL}").write_text(EVIL)
    (folder / MANIFEST).write_text(
        json.dumps(
            {
                "schema": "portagpu.recording/1",
                "source": f"https://x/{EVIL}\ud800",
                "environment": {"CUDA_VISIBLE_DEVICES": EVIL},
                "libraries": {f"lib{EVIL}": EVIL, "python": f"3{EVIL}\ud800"},
                "backends": {EVIL: {"usable": False, "reason": EVIL}},
                "torch": {"version": EVIL, "problem": None, "kind": EVIL},
            }
        )
    )
    for name, text in shown(folder).items():
        odd = UNSAFE.search(text)
        assert odd is None, f"{name} shows {odd and text[odd.start() - 60 : odd.end() + 20]!r}"
        assert "the check broke" not in text, name
        assert "evil" in text, f"{name} says nothing of it: a test that cannot fail"


def test_devices_of_one_name_have_names_of_their_own(tmp_path: Path) -> None:
    uuid = "GPU-aaaa"
    (tmp_path / "list").write_text(
        f"GPU 0: A (UUID: {uuid}\x1b)\n  MIG 1g Device  0: (UUID: MIG-1)\n"
        f"  MIG 1g Device  0: (UUID: MIG-2)\nGPU 1: A (UUID: {uuid}\x7f)\n"
        f"GPU 2: A (UUID: {uuid} (1))\n"
    )
    run = bringup(BringupOptions(replay=Recording(tmp_path / "list")))
    assert not [result.reason for result in run.results if "the check broke" in result.reason]
    assert Run.from_json(json.loads(run.to_text())).verdict is run.verdict


def test_what_json_escapes_is_the_same_text_again(tmp_path: Path) -> None:
    name = "A\u202eevil\u2066"
    (tmp_path / "csv").write_text(f"name, uuid\n{name}, GPU-a\n")
    done = CliRunner().invoke(info, ["--replay", str(tmp_path / "csv"), "--json", "-"])
    assert "\\u202e" in done.output
    assert json.loads(done.output)["gpus"][0]["name"] == name


# -- campaigns -----------------------------------------------------------------------------------


@pytest.mark.parametrize("machine", list(own()), ids=lambda machine: machine.name)
def test_no_mutation_of_a_tree_breaks_its_readers(tmp_path: Path, machine: Any) -> None:
    mutated_trees_are_read(machine, 6, tmp_path)


def mutated_trees_are_read(machine: Any, count: int, folder: Path) -> None:
    report = fuzz([machine], count, 0, folder)
    assert not report.faults, report.faults[:5]
    assert report.outcomes["read"] > 0.8 * count, report.outcomes


def test_no_mutation_of_a_text_breaks_what_is_made_of_it(tmp_path: Path) -> None:
    mutated_texts_are_read(1, tmp_path)


def mutated_texts_are_read(count: int, folder: Path) -> None:
    report = fuzz(texts(), count, 0, folder)
    assert not report.faults, report.faults[:5]
    assert report.outcomes["read"] > 30 * count, report.outcomes


def test_mutated_trees_are_the_same_every_time(tmp_path: Path) -> None:
    first, *_ = own()
    assert fuzz_trees.mutation(first, 5, 1) == fuzz_trees.mutation(first, 5, 1)
    assert fuzz_trees.mutation(first, 0, 1) == first
    assert fuzz_trees.mutation(first, 5, 1) != fuzz_trees.mutation(first, 6, 1)

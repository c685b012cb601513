"""Recordings: what is saved of a machine, and what anybody's files are read as."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from portagpu.base.errors import OutputError, RecordingError
from portagpu.checks.info import collect
from portagpu.checks.recordings.anonymous import Anonymizer
from portagpu.checks.recordings.record import record
from portagpu.checks.recordings.replay import MANIFEST, MAX_FILES, Recording
from portagpu.cli.info import info
from portagpu.machine.inventory.sources import Live, run_commands, tool_findings
from tests.support.gpu_trees import amd_gpu, machine, nvidia_gpu
from tests.support.host_trees import build, gfx942_node, two_socket_x86

if TYPE_CHECKING:
    from pathlib import Path

TOPO = """\
\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV18\t0-31\t0
GPU1\tNV18\t X \t0-31\t0
"""
XID = "[  100.5] NVRM: Xid (PCI:0000:07:00): 79, pid=1, GPU has fallen off the bus.\n"


def eight(root: Path) -> Path:
    """A machine of four H200 and four MI300X, two of these in partitions."""
    gpus = [nvidia_gpu(n) for n in range(4)]
    gpus += [amd_gpu(n, parts=1 if n < 6 else 8) for n in range(4, 8)]
    files, links = machine(*gpus)
    return build(root, two_socket_x86() | files, links)


def described(machine: Any) -> dict[str, Any]:
    document = json.loads(json.dumps(collect(machine=machine)))
    if document["torch"] is not None:
        document["torch"]["location"] = ""
    return document


def test_nothing_that_names_the_machine_is_saved(tmp_path: Path) -> None:
    container = "c0ffee" * 10 + "beef"
    planted = {
        "proc/cmdline": "BOOT_IMAGE=/vmlinuz root=UUID=5ec4e7 host=node-0815 iommu=pt",
        "proc/self/status": "Name:\tsecret-job\nUid:\t4711\nCpus_allowed_list:\t0-3",
        "proc/self/cgroup": f"0::/docker/{container}",
        "proc/1/cgroup": f"0::/docker/{container}",
        "proc/self/mountinfo": "1 2 0:3 / /home/someone rw - nfs filer:/someone rw\n"
        "2 2 0:4 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw",
        f"sys/fs/cgroup/docker/{container}/memory.max": "1073741824",
        "sys/class/infiniband/mlx5_0/node_guid": "9c05:9103:0000:0001",
        "sys/class/infiniband/mlx5_0/node_desc": "node-0815 mlx5_0",
        "sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE",
    }
    files, links = machine(amd_gpu(0, name="Instinct in node-0815"), nvidia_gpu(1))
    root = build(tmp_path / "machine", two_socket_x86() | files | planted, links)
    saved = record(tmp_path / "saved", root, names=[("host", "node-0815"), ("user", "someone")])
    texts = "\n".join(
        f"{path.relative_to(tmp_path / 'saved')}\n{path.read_text(errors='replace')}"
        for path in (tmp_path / "saved").rglob("*")
        if path.is_file()
    )
    for word in ("node-0815", "someone", "secret-job", "4711", "5ec4e7", "9c05", container):
        assert word not in texts, f"{word} is in the recording"
    assert "iommu=pt" in texts
    assert (
        described(Recording(tmp_path / "saved"))["host"]["limits"]["cgroup"]
        == (described(Live(root, {}))["host"]["limits"]["cgroup"])
    )
    assert saved.scrubbed["kernel parameter"] == 3
    assert {"host", "serial", "group", "line"} <= saved.scrubbed.keys()
    stated = json.loads((tmp_path / "saved" / MANIFEST).read_text())["scrubbed"]
    assert stated == dict(saved.scrubbed)


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("<serial>1650522012345</serial>", "<serial>N/A</serial>"),
        ("<serial>N/A</serial>", "<serial>N/A</serial>"),
        ('{"Serial Number": "PCB-42"}', '{\n "Serial Number": "N/A"\n}\n'),
        ('{"asic_serial": 12345}', '{\n "asic_serial": "N/A"\n}\n'),
        ("<name>Node-7's</name>", "<name>&lt;host-1&gt;'s</name>"),
        ("    Serial Number                 : 165052", "    Serial Number                 : N/A"),
        ("GPU[0]\t\t: Serial Number: 692231", "GPU[0]\t\t: Serial Number: N/A"),
        ("on Node-7.example now", "on <host-1>.example now"),
        ("node-77 is another", "node-77 is another"),
    ],
)
def test_serial_numbers_and_names_in_outputs(text: str, clean: str) -> None:
    cleaner = Anonymizer([("host", "node-7")])
    assert cleaner.text(text) == clean
    assert cleaner.text(clean) == clean


def test_a_device_serial_number_in_configuration_space_is_zeroed() -> None:
    data = bytearray(0x200)
    data[0x100:0x104] = (0x150 << 20 | 1 << 16 | 0x000D).to_bytes(4, "little")
    data[0x150:0x154] = (1 << 16 | 0x0003).to_bytes(4, "little")
    data[0x154:0x15C] = bytes(range(1, 9))
    clean = Anonymizer().file("sys/bus/pci/devices/0000:00:01.0/config", bytes(data))
    assert clean[0x154:0x15C] == bytes(8)
    assert clean[:0x154] == bytes(data[:0x154])


def test_a_folder_that_exists_or_cannot_be_made_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="it exists already"):
        record(tmp_path, eight(tmp_path / "machine"), names=())
    with pytest.raises(OutputError, match="cannot be written: No such file"):
        record(tmp_path / "none" / "saved", tmp_path / "machine", names=())
    assert sorted(each.name for each in tmp_path.iterdir()) == ["machine"]


def test_a_link_that_leads_out_of_a_recording_is_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("0x10de")
    folder = "sys/bus/pci/devices/0000:01:00.0"
    files = {f"{folder}/class": "0x030200", f"{folder}/device": "0x2335"}
    root = build(tmp_path / "machine", files, {f"{folder}/vendor": str(secret)})
    assert Recording(root).inventory().gpus == ()
    assert Recording(root).tree.text(f"{folder}/vendor") is None


def test_a_topology_of_kfd_alone_is_a_recording(tmp_path: Path) -> None:
    kfd = "sys/class/kfd/kfd/topology/"
    nodes = build(tmp_path / "machine", gfx942_node(1, 0x8300)) / kfd
    for given in (nodes, nodes.parent):
        (gpu,) = Recording(given).inventory().gpus
        assert gpu.pci == "0000:83:00.0"
    assert Recording(nodes).tree.text("proc/cpuinfo") is None


def test_files_of_several_tools_are_read_together(tmp_path: Path) -> None:
    (tmp_path / "node").mkdir()
    (tmp_path / "topo.txt").write_text(TOPO)
    (tmp_path / "node" / "dmesg").write_text(XID)
    (tmp_path / "notes.md").write_text("It became slow on Tuesday.\n")
    found = Recording(tmp_path)
    assert [event.code for event in found.inventory().events] == ["Xid 79"]
    assert {link.path for each in found.findings() for link in each.links} >= {"NV18"}
    assert "notes.md: its format is not known" in found.inventory().problems
    assert not found.software_known


def test_recordings_that_contradict_each_other_are_reported(tmp_path: Path) -> None:
    for name, product in (("one", "NVIDIA H200"), ("two", "NVIDIA H100 80GB HBM3")):
        files, links = machine(nvidia_gpu(0, name=product))
        build(tmp_path / name, files, links)
    found = Recording(tmp_path / "one", tmp_path / "two")
    (gpu,) = found.inventory().gpus
    assert gpu.name == "NVIDIA H200"
    assert any("NVIDIA H100 80GB HBM3" in each for each in gpu.disagreements)


def test_two_identities_at_one_address_are_reported(tmp_path: Path) -> None:
    for name, number in (("one", 0x4344E78B718814CD), ("two", 0x805BCE698DE95724)):
        build(tmp_path / name, gfx942_node(1, 0x8300, unique_id=number))
    (gpu,) = Recording(tmp_path / "one", tmp_path / "two").inventory().gpus
    assert gpu.uuid == "GPU-4344e78b718814cd"
    (reported,) = gpu.disagreements
    assert "UUID" in reported
    assert "gpu-805bce698de95724" in reported


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "no file in it is a recording"),
        ({"a.txt": "hello"}, "a.txt: its format is not known; give what portagpu record or"),
        ({"a.txt": "hello", "b.bin": "\0\1"}, "no file in it is a recording"),
        ({MANIFEST: "{"}, "cannot be read"),
        ({MANIFEST: "[" * 100_000}, "cannot be read"),
        ({MANIFEST: "[]"}, "not a document of portagpu.recording/1"),
        (
            {MANIFEST: '{"schema": "portagpu.recording/2"}'},
            "not a document of portagpu.recording/1",
        ),
    ],
)
def test_what_is_not_a_recording_is_one_line(
    tmp_path: Path, files: dict[str, str], said: str
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(RecordingError, match=said) as caught:
        Recording(tmp_path)
    assert "\n" not in str(caught.value)
    with pytest.raises(RecordingError, match="no such file or folder"):
        Recording(tmp_path / "none")


@pytest.mark.parametrize("manifest", [{}, {"torch": 7}, {"backends": [1]}, {"libraries": {"a": 1}}])
def test_a_manifest_of_odd_values_stops_nothing(tmp_path: Path, manifest: dict[str, Any]) -> None:
    document = {"schema": "portagpu.recording/1", **manifest}
    (tmp_path / MANIFEST).write_text(json.dumps(document))
    assert described(Recording(tmp_path))["libraries"] == {}


def test_too_many_files_are_a_stated_part(tmp_path: Path) -> None:
    (tmp_path / "0-dmesg").write_text(XID)
    for number in range(MAX_FILES):
        (tmp_path / f"{number + 1:05}").touch()
    problems = Recording(tmp_path).inventory().problems
    assert f"only {MAX_FILES} files were read" in problems


def test_the_verb_reads_recordings_and_refuses_others(tmp_path: Path) -> None:
    (tmp_path / "dmesg").write_text(XID)
    done = CliRunner().invoke(info, ["--replay", str(tmp_path / "dmesg")])
    assert done.exit_code == 0, done.output
    assert "Xid 79: GPU has fallen off the bus" in done.output
    assert "Torch" not in done.output, "a kernel log says nothing of torch"
    refused = CliRunner().invoke(info, ["--replay", str(tmp_path / "none")])
    assert isinstance(refused.exception, RecordingError)


TOOL = """#!/bin/sh
case "$1" in
hang) exec sleep 300 ;;
fail) printf 'no device\\nmore' >&2; exit 1 ;;
esac
cat "$0.txt"
"""


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    file = tmp_path / "bin" / "gpu-tool"
    file.parent.mkdir()
    file.write_text(TOOL)
    file.with_name("gpu-tool.txt").write_text(TOPO)
    file.chmod(0o755)
    (tmp_path / "bin" / "forbidden").write_text("")
    monkeypatch.setenv("PATH", f"{file.parent}{os.pathsep}{os.environ['PATH']}")
    return file.name


@pytest.mark.processes(4, "each tool is one")
def test_tools_are_asked_one_by_one(tool: str) -> None:
    commands = [(tool, "topo"), ("no-such-gpu-tool",), (tool, "fail"), ("forbidden",)]
    good, failed, forbidden = run_commands(commands)
    assert good.text.split() == TOPO.split()
    assert good.problem == ""
    assert failed.problem == f"{tool} fail ended with status 1: no device more"
    assert forbidden.problem == "forbidden cannot be started: Permission denied"


def test_a_tool_that_hangs_is_ended(tool: str) -> None:
    (hung,) = run_commands([(tool, "hang")], limit_s=1.0)  # allowed: what it limits never ends
    assert hung.problem.startswith(f"{tool} hang did not answer within 1 s")


def test_what_tools_print_becomes_findings(tool: str) -> None:
    good, failed = tool_findings([(tool, "topo"), (tool, "fail")])
    assert "NV18" in {link.path for link in good.links}
    assert failed.problems == (f"{tool} fail ended with status 1: no device more",)


def test_a_pipe_in_a_recording_is_not_waited_for(tmp_path: Path) -> None:
    kfd = "sys/class/kfd/kfd/topology/nodes"
    root = build(tmp_path / "machine", gfx942_node(1, 0x8300))
    (root / kfd / "2").mkdir()
    os.mkfifo(root / kfd / "2/properties")
    os.mkfifo(root / "dmesg")
    (gpu,) = Recording(root).inventory().gpus
    assert gpu.pci == "0000:83:00.0"
    with pytest.raises(RecordingError, match="not a regular file"):
        Recording(root / "dmesg")


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("sys/devices/system/cpu/online", "0-99999999999"),
        ("sys/devices/system/cpu/present", f"0-{'9' * 5000}"),
        ("sys/devices/system/node/node0/cpulist", "0-999999999"),
        ("proc/meminfo", f"MemTotal: {'9' * 5000} kB"),
        ("sys/devices/system/cpu/cpu0/cache/index0/size", f"{'9' * 5000}K"),
    ],
)
def test_numbers_beyond_any_machine_are_unknown(tmp_path: Path, path: str, text: str) -> None:
    root = build(tmp_path, two_socket_x86() | {path: text})
    assert described(Recording(root))["schema"] == "portagpu.info/1"


def test_a_kernel_file_beyond_any_size_is_unknown(tmp_path: Path) -> None:
    root = build(tmp_path, gfx942_node(1, 0x8300))
    file = root / "sys/class/kfd/kfd/topology/nodes/1/properties"
    os.truncate(file, 1 << 30)
    assert Recording(root).inventory().gpus == ()


def test_paths_that_cannot_be_are_one_short_line(tmp_path: Path) -> None:
    for bad in ("a" * 5000, "a\0b"):
        with pytest.raises(RecordingError) as caught:
            Recording(tmp_path / bad)
        assert len(str(caught.value)) < 300
        with pytest.raises(OutputError, match="cannot be written"):
            record(tmp_path / bad, tmp_path, names=())


@pytest.mark.parametrize(
    "torch", [{"location": 5}, {"problem": True}, {"version": ["a", {"b": 1}]}]
)
def test_odd_words_on_torch_are_unknown(tmp_path: Path, torch: dict[str, Any]) -> None:
    (tmp_path / MANIFEST).write_text(json.dumps({"schema": "portagpu.recording/1", "torch": torch}))
    done = CliRunner().invoke(info, ["--replay", str(tmp_path)])
    assert done.exit_code == 0, done.output


def test_findings_that_no_terminal_can_show_are_refused(tmp_path: Path) -> None:
    record(tmp_path / "saved", eight(tmp_path / "machine"), names=())
    file = tmp_path / "saved" / "findings" / "odd.json"
    file.parent.mkdir()
    reading = '{"source": "x", "vendor": "amd", "pci": "\\ud800"}'
    file.write_text(f'{{"kind": "x", "readings": [{reading}]}}')
    problems = Recording(tmp_path / "saved").inventory().problems
    assert any("readings[0].pci: must be text of one line" in each for each in problems)


def test_a_secret_in_a_mask_is_taken_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = "sk-" + "abcdef1234567890" * 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"{planted},0")
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "GPU-4344e78b718814cd,1")
    saved = record(tmp_path / "saved", eight(tmp_path / "machine"), names=())
    environment = Recording(tmp_path / "saved").environment
    assert planted not in environment["CUDA_VISIBLE_DEVICES"]
    assert environment["HIP_VISIBLE_DEVICES"] == "GPU-4344e78b718814cd,1"
    assert saved.scrubbed["secret"] == 1

"""Several outputs in one text, what terminals and mail put into it, and archives of them.

The outputs are those of ``tests/vendor_texts/formats``, or are made here like them; what a paste
has to give is written by hand. Where a class of pastes has a source it stands in its line.
"""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from typing import TYPE_CHECKING, Any

import pytest

from portagpu.base.errors import RecordingError
from portagpu.checks.recordings import archives as unpacked
from portagpu.checks.recordings import replay as recording
from portagpu.checks.recordings.replay import Recording
from portagpu.facts.formats.cleaning import decode_text
from portagpu.facts.formats.reader import UNREAD, read_text
from tests.conftest import ROOT
from tests.support.format_texts import fixture
from tests.support.gpu_trees import amd_gpu, machine
from tests.support.host_trees import build, gfx942_node
from tests.support.looped import looped

if TYPE_CHECKING:
    from pathlib import Path

ESC = "\x1b"
TABLE = fixture("nvidia_smi_text/table-550.txt")
"""Four GPUs by number and address, without UUIDs."""
ADDRESSES = ("19", "3b", "4c", "5d")


def listed(count: int = 4) -> str:
    """What ``nvidia-smi -L`` prints: GPUs by number and UUID, without addresses."""
    return "".join(
        f"GPU {n}: NVIDIA H100 80GB HBM3 (UUID: GPU-0000000{n}-1111-2222-3333-00000000000{n + 1})\n"
        for n in range(count)
    )


def linked() -> str:
    """What ``nvidia-smi nvlink -s`` prints."""
    rows = "".join(f"\t Link {n}: 26.562 GB/s\n" for n in range(18))
    return "".join(f"{line}\n{rows}" for line in listed().splitlines())


def queried() -> str:
    lines = ["", "==============NVSMI LOG==============", "", "Driver Version      : 550.90.07", "",
             "Attached GPUs       : 4"]  # fmt: skip
    for bus in ADDRESSES:
        lines += [f"GPU 00000000:{bus.upper()}:00.0", "    Product Name    : NVIDIA H100 80GB HBM3",
                  "    FB Memory Usage", "        Total       : 81559 MiB", ""]  # fmt: skip
    return "\n".join(lines)


TOPO = "\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\n" + "".join(
    f"GPU{a}\t" + "\t".join(" X " if a == b else "NV18" for b in range(4)) + "\t0-51\n"
    for a in range(4)
)
LOST = (
    "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
)
LOG = f"[ 12.000001] pcieport 0000:3a:01.0: AER: Corrected error received\n[ 12.345678] {LOST}\n"
AMD_ADDRESSES = ("05", "26", "46", "65")
AMD_LIST = "".join(
    f"GPU: {n}\n    BDF: 0000:{bus}:00.0\n"
    f"    UUID: {n + 1:02x}ff74a1-0000-1000-8011-e92b0a5d57c{n}\n\n"
    for n, bus in enumerate(AMD_ADDRESSES)
)
AMD_JSON = (
    "[\n"
    + ",\n".join(
        f'    {{\n        "gpu": {n},\n        "bdf": "0000:{bus}:00.0"\n    }}'
        for n, bus in enumerate(AMD_ADDRESSES)
    )
    + "\n]\n"
)
ROCM = (
    "=" * 20 + " ROCm System Management Interface " + "=" * 20 + "\n"
    + "=" * 27 + " Concise Info " + "=" * 27 + "\n"
    "GPU  Temp (DieEdge)  AvgPwr  SCLK     MCLK     Fan  Perf  PwrCap  VRAM%  GPU%\n"
    + "".join(f"{n}    52.0c           179.0W  1700Mhz  1600Mhz  0%   auto  300.0W   65%   99%\n"
              for n in range(4))
    + "=" * 74 + "\n" + "=" * 24 + " End of ROCm SMI Log " + "=" * 24 + "\n"
)  # fmt: skip


def read(tmp_path: Path, text: str | bytes, name: str = "paste") -> Recording:
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return Recording(tmp_path / name)


# -- several outputs -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        (TABLE + listed(), {"nvidia-smi", "nvidia-smi -L"}),
        (listed() + "\n" + TABLE, {"nvidia-smi", "nvidia-smi -L"}),
        (TABLE + LOG, {"nvidia-smi", "kernel log"}),
        (LOG + TABLE, {"nvidia-smi", "kernel log"}),
        (TABLE + linked() + LOG, {"nvidia-smi", "nvidia-smi nvlink", "kernel log"}),
        (listed() + linked(), {"nvidia-smi -L", "nvidia-smi nvlink"}),
        (TABLE + TOPO, {"nvidia-smi", "nvidia-smi topo"}),
        (queried() + TABLE + LOG, {"nvidia-smi -q", "nvidia-smi", "kernel log"}),
        (AMD_LIST + ROCM, {"amd-smi", "rocm-smi"}),
        (AMD_JSON + ROCM, {"amd-smi --json", "rocm-smi"}),
        (
            f"root@node7:~# x\n{AMD_JSON}root@node7:~# rocm-smi\n{ROCM}",
            {"amd-smi --json", "rocm-smi"},
        ),
        (
            f"$ nvidia-smi\n{TABLE}$ nvidia-smi -L\n{listed()}(base) [me@node7 ~]$ dmesg\n{LOG}",
            {"nvidia-smi", "nvidia-smi -L", "kernel log"},
        ),
        (
            TABLE.replace("|   2  NV", f"[ 12.345678] {LOST}\n|   2  NV"),
            {"nvidia-smi", "kernel log"},
        ),
    ],
    ids=lambda value: "+".join(sorted(value)) if isinstance(value, set) else "",
)
def test_every_output_of_a_text_is_read_and_is_of_the_same_gpus(
    tmp_path: Path, text: str, kinds: set[str]
) -> None:
    inventory = read(tmp_path, text).inventory()
    assert kinds <= set(inventory.kinds)
    assert len(inventory.gpus) == 4
    codes = [event.code for event in inventory.events]
    assert codes == (["Xid 79"] if "kernel log" in kinds else [])
    assert not inventory.problems
    assert not inventory.breaks_off
    assert all(gpu.pci or gpu.uuid for gpu in inventory.gpus)


def test_files_name_the_same_gpus_by_uuid_and_by_address(tmp_path: Path) -> None:
    (tmp_path / "list").write_text(listed())
    (tmp_path / "table").write_text(TABLE)
    gpus = Recording(tmp_path).inventory().gpus
    assert [(gpu.pci, gpu.uuid and gpu.uuid[-1], gpu.driver_version) for gpu in gpus] == [
        (f"0000:{bus}:00.0", str(n + 1), "550.90.07") for n, bus in enumerate(ADDRESSES)
    ]


def test_an_index_joins_nothing_that_is_known_to_be_apart(tmp_path: Path) -> None:
    other = TABLE.replace(":3B:", ":EE:")
    gpus = read(tmp_path, f"$ nvidia-smi\n{TABLE}$ nvidia-smi\n{other}").inventory().gpus
    assert [gpu.pci for gpu in gpus if gpu.pci] == [f"0000:{b}:00.0" for b in (*ADDRESSES, "ee")]
    assert len(gpus) == 5


def test_outputs_of_one_tool_that_have_numbers_alone_are_of_the_same_gpus(tmp_path: Path) -> None:
    again = ROCM.replace("52.0c", "61.0c")
    assert len(read(tmp_path, f"$ rocm-smi\n{ROCM}$ rocm-smi\n{again}").inventory().gpus) == 4


def test_an_error_that_one_of_two_outputs_shows_is_kept(tmp_path: Path) -> None:
    broken = TABLE.replace("Off |                    0 |", "Off |                    5 |", 1)
    for first, second in ((TABLE, broken), (broken, TABLE)):
        (gpu, *_) = read(tmp_path, f"$ nvidia-smi\n{first}$ nvidia-smi\n{second}").inventory().gpus
        assert gpu.memory.uncorrected == 5


def test_a_driver_that_an_output_does_not_state_is_not_another_version(tmp_path: Path) -> None:
    from portagpu.checks.bringup import BringupOptions, bringup

    def drivers(text: str) -> list[tuple[str, str]]:
        run = bringup(BringupOptions(replay=read(tmp_path, text)))
        return [(str(r.verdict), r.reason) for r in run.results if r.id.endswith("versions/driver")]

    assert drivers(TABLE + listed()) == [("PASS", "driver 550.90.07")]
    version = "NVIDIA-SMI version  : 550.90.07\nDRIVER version      : 550.90.07\n\n"
    assert drivers(version + listed()) == [("PASS", "driver 550.90.07")]
    fewer = "".join(
        f"index, uuid, driver_version\n{n}, GPU-0000000{n}-1, 550.90.07\n" for n in (0,)
    )
    (verdict, reason), *_ = drivers(f"{fewer}\nGPU 1: NVIDIA H100 (UUID: GPU-00000001-1)\n")
    assert verdict == "INCONCLUSIVE"
    assert "nothing states that of" in reason


@pytest.mark.parametrize(
    ("text", "number", "words"),
    [
        (f"This is my machine:\n\n{TABLE}", "1 line is", "'This is my machine:' in line 1"),
        (f"{TABLE}It hangs.\nWhat can I do?\n", "2 lines are", "'It hangs.' in line 33"),
        (f"We see:\n{LOG}", "1 line is", "'We see:' in line 1"),
        (f"{TABLE}\x1b]0;x\x07\u202eodd\x85\n", "1 line is", "'odd' in line 33"),
        (f'{TABLE}{{"is": "what"}}\n', "1 line is", '\'{"is": "what"}\' in line 33'),
    ],
)
def test_what_no_reader_takes_is_said(tmp_path: Path, text: str, number: str, words: str) -> None:
    problems = read(tmp_path, text).inventory().problems
    assert problems == (f"{number} of no known format: {words}",)


def test_banners_keep_the_states_of_a_machine_apart() -> None:
    found = read_text((PASTES / "banners.txt").read_text())
    states = [r for each in found for r in each.readings if "query-gpu" in r.source]
    assert {one.source: one.state.utilization_percent for one in states} == {
        "nvidia-smi --query-gpu (idle)": 0.0,
        "nvidia-smi --query-gpu (load)": 98.0,
    }
    assert "nvmlInit_v2" in found[-1].problems[0]


def test_prompts_part_outputs() -> None:
    found = read_text((PASTES / "prompts.txt").read_text())
    assert [each.kind for each in found] == [
        "nvidia-smi -L",
        "nvidia-smi topo",
        "nvidia-smi nvlink",
    ]
    assert [link.bandwidth_bytes_s for link in found[2].links] == [20_000_000_000]


PASTES = ROOT / "tests/vendor_texts/pastes"


# -- what stands in and before a line ------------------------------------------------------------

EACH_LINE: dict[str, Any] = {
    # slurm.schedmd.com/srun.html, --label
    "srun --label": lambda line: f"0: {line}",
    "srun --label, padded": lambda line: f" 0: {line}",
    # docs.open-mpi.org, mpirun --tag-output
    "mpirun --tag-output": lambda line: f"[1,0]<stdout>:{line}",
    "pdsh": lambda line: f"node7: {line}",
    "docker compose logs": lambda line: f"gpu-1  | {line}",
    # docs.github.com, logs of workflow runs
    "GitHub Actions": lambda line: f"2025-03-04T10:11:12.1234567Z {line}",
    "journal of a service": lambda line: f"Mar 04 10:11:12 node7 smi.sh[123]: {line}",
    "mail": lambda line: f"> {line}",
    "mail, twice": lambda line: f"> > {line}",
    "mail without a blank": lambda line: f">> {line}",
    "bars": lambda line: f"| {line}",
    "indented": lambda line: f"    {line}",
    "tab": lambda line: f"\t{line}",
    "CR CR LF": lambda line: f"{line}\r\r",
    "colours": lambda line: f"{ESC}[01;31m{ESC}[K{line}{ESC}[m{ESC}[K",
    "colours of cat -v": lambda line: f"^[[1m{line}^[[0m",
    "bold by backspaces": lambda line: "".join(f"{c}\b{c}" for c in line),
    "blanks that do not break": lambda line: line.replace("  ", " \u00a0"),
}


@looped("change", EACH_LINE)
@looped(
    "text,kind",
    [
        (TABLE, "nvidia-smi"),
        (queried(), "nvidia-smi -q"),
        (listed(), "nvidia-smi -L"),
        (AMD_LIST, "amd-smi"),
        (AMD_JSON, "amd-smi --json"),
        (ROCM, "rocm-smi"),
        (fixture("rocminfo/one-cpu-two-gpus.txt"), "rocminfo"),
        (fixture("lspci/vvv.txt"), "lspci -nn"),
        (LOG, "kernel log"),
        (fixture("nvidia_smi_xml/v2-fermi.xml"), "nvidia-smi -q -x"),
    ],
)
def test_what_stands_before_each_line_changes_nothing(text: str, kind: str, change: str) -> None:
    (plain,) = read_text(text)
    changed = "".join(f"{EACH_LINE[change](line)}\n" for line in text.split("\n"))
    (found,) = read_text(decode_text(changed.encode()))
    assert (found.kind, len(found.readings)) == (kind, len(plain.readings))
    assert [(e.code, e.pci) for e in found.events] == [(e.code, e.pci) for e in plain.events]
    assert found.readings == plain.readings
    assert found.breaks_off == plain.breaks_off


@pytest.mark.parametrize(
    "line",
    [
        # util-linux, dmesg(1): --color=always, -T, -H, -x, --time-format
        f"{ESC}[32m[1234567.123456] {ESC}[0m{ESC}[33mNVRM{ESC}[0m: {ESC}[31m{LOST[6:]}{ESC}[0m",
        f"[Tue Mar  4 10:11:12 2025] {LOST}",
        f"{ESC}[32m[Mar 4 10:11] {ESC}[0m{LOST}",
        f"[  +0.000012] {LOST}",
        f"kern  :err   : [12345.678901] {LOST}",
        f"2025-03-04T10:11:12,123456+00:00 {LOST}",
        f"<3>[   12.345678] {LOST}",
        f"6,1234,123456,-;{LOST}",
        # journalctl(1): -k, -o short-iso
        f"Mar 04 10:11:12 node7 kernel: {LOST}",
        f"2025-03-04T10:11:12+0000 node7 kernel: {LOST}",
        LOST,
    ],
)
def test_a_fault_in_a_log_is_found_next_to_a_table_however_the_log_is_written(
    tmp_path: Path, line: str
) -> None:
    for text in (f"{line}\n", f"{TABLE}{line}\n", f"{line}\n{TABLE}"):
        (event,) = read(tmp_path, text).inventory().events
        assert (event.code, event.pci) == ("Xid 79", "0000:3b:00.0")
        assert event.line.isprintable()


def test_ranks_are_distinguished_by_their_labels() -> None:
    text = "".join(
        f"0: {a}\n1: {b}\n" for a, b in zip(TABLE.split("\n"), LOG.split("\n") * 20, strict=False)
    )
    found = read_text(f"srun: job 5 queued\n{text}")
    assert [each.kind for each in found] == ["nvidia-smi", "kernel log", UNREAD]


def test_a_terminal_is_read_as_it_looked(tmp_path: Path) -> None:
    dos = TABLE.replace("\n", "\r\n")
    for text in (
        f"{ESC}[H{ESC}[2JEvery 2.0s: nvidia-smi   node7: Tue Mar  4\r\n\r\n{dos}" * 2,
        f"Script started\r\n{ESC}]0;me@node7\x07{ESC}[?2004hme@node7:~$ nvidia-smi\r\n{dos}",
        TABLE.replace("   0  NVIDIA H100", f"{ESC}[3C0{ESC}[2CNVIDIA{ESC}[CH100"),
        f"Pulling 10%\rPulling 50%\rPulling 100%\n{TABLE}",
        f"```console\n$ nvidia-smi\n{TABLE}```\n",
        f"<details><summary>nvidia-smi</summary>\n\n<pre>\n{TABLE}</pre>\n</details>\n",
        f"> ```\n{''.join(f'> {line}' for line in TABLE.splitlines(keepends=True))}> ```\n",
    ):
        inventory = read(tmp_path, text).inventory()
        assert [gpu.name for gpu in inventory.gpus] == ["NVIDIA H100 80GB HBM3"] * 4, text[:80]
        assert not inventory.breaks_off


@pytest.mark.parametrize("mark", ["root@node7:/# ", "$ exit", "\nroot@node7:/# \n"])
def test_a_prompt_after_json_ends_it(tmp_path: Path, mark: str) -> None:
    inventory = read(tmp_path, AMD_JSON.rstrip() + mark).inventory()
    assert len(inventory.gpus) == 4
    assert not inventory.breaks_off


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-8-sig", "utf-16-le"])
def test_encodings(tmp_path: Path, encoding: str) -> None:
    data = (TABLE + LOG).encode(encoding)
    inventory = read(tmp_path, data).inventory()
    assert (len(inventory.gpus), len(inventory.events)) == (4, 1)


# -- archives ------------------------------------------------------------------------------------


def tar(files: dict[str, str | bytes], *more: tarfile.TarInfo, mode: str = "w:gz") -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode=mode) as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            data = content.encode() if isinstance(content, str) else content
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
        for entry in more:
            archive.addfile(entry)
    return made.getvalue()


def zipped(files: dict[str, str | bytes]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return made.getvalue()


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files of this test alone."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


FILES: dict[str, str | bytes] = {"node7/smi.txt": TABLE, "node7/dmesg.log": LOG}


@pytest.mark.parametrize(
    "data",
    [tar(FILES), tar(FILES, mode="w"), zipped(FILES), gzip.compress((TABLE + LOG).encode())],
    ids=["tar.gz", "tar", "zip", "gz"],
)
def test_what_is_packed_is_read_and_leaves_nothing(
    tmp_path: Path, temporary: Path, data: bytes
) -> None:
    packed = read(tmp_path, data)
    inventory = packed.inventory()
    assert (len(inventory.gpus), len(inventory.events)) == (4, 1)
    assert not inventory.problems
    assert packed.origins()[0].name == "paste"
    del packed
    assert not list(temporary.iterdir())


def test_a_packed_tree_is_read_as_long_as_the_recording_is(tmp_path: Path, temporary: Path) -> None:
    files, links = machine(amd_gpu(0), amd_gpu(1))
    root = build(tmp_path / "tree", files | gfx942_node(1, 0x8300), {})
    packed = {
        f"node7/{p.relative_to(root)}": p.read_bytes() for p in root.rglob("*") if p.is_file()
    }
    read_of = read(tmp_path, tar(packed, mode="w:gz"), "node7.tgz")
    assert links, "the machine has links, which this archive does not"
    assert read_of.tree.exists("sys/class/kfd/kfd/topology/nodes/1/properties")
    assert any(gpu.pci == "0000:83:00.0" for gpu in read_of.inventory().gpus)
    assert len(list(temporary.iterdir())) == 1


def test_a_packed_log_is_read_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "dmesg.1.gz").write_bytes(gzip.compress(LOG.encode()))
    (tmp_path / "table").write_text(TABLE)
    inventory = Recording(tmp_path).inventory()
    assert (len(inventory.gpus), len(inventory.events)) == (4, 1)


def test_what_is_unpacked_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacked, "MAX_ENTRIES", 3)
    many: dict[str, str | bytes] = {str(n): TABLE for n in range(4)}
    for data in (tar(many), zipped(many)):
        with pytest.raises(RecordingError, match="more than 3 files"):
            read(tmp_path, data)
    monkeypatch.setattr(recording, "MAX_FILE_BYTES", len(TABLE))
    packed = gzip.compress(TABLE.encode() + b"\n" * (64 << 20))
    inventory = read(tmp_path, packed).inventory()
    assert len(inventory.gpus) == 4
    assert inventory.problems == ("paste: only its beginning was unpacked",)


def test_a_gzip_that_breaks_off_is_read_to_there(tmp_path: Path) -> None:
    noise = os.urandom(40_000).hex()
    packed = gzip.compress((TABLE + noise).encode())
    inventory = read(tmp_path, packed[: len(packed) // 2]).inventory()
    assert len(inventory.gpus) == 4
    assert "paste: its gzip breaks off" in inventory.problems


def test_a_program_that_ends_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "n.tar.gz").write_bytes(tar(FILES))
    place = tmp_path / "temporary"
    place.mkdir()
    command = [sys.executable, "-m", "portagpu", "info", "--replay", str(tmp_path / "n.tar.gz")]
    done = subprocess.run(
        command,
        env=os.environ | {"TMPDIR": str(place)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "4 GPUs" in done.stdout, done.stderr
    assert not list(place.iterdir())

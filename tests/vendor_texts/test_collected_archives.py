"""Archives of collectors of whole machines, read as they are: nothing is unpacked to a disk.

The layout is that of sosreport (github.com/sosreport/sos): `sos_commands/PLUGIN/COMMAND`.
"""

from __future__ import annotations

import io
import lzma
import tarfile
from typing import TYPE_CHECKING

import pytest

from portagpu.base.errors import RecordingError
from portagpu.checks.recordings.replay import Recording

if TYPE_CHECKING:
    from pathlib import Path

ROOT = "sosreport-gpu7-2026-02-03-abcdefg"
LOST = "[ 1234.500000] NVRM: Xid (PCI:0000:4c:00): 79, pid=77, GPU has fallen off the bus.\n"
QUIET = "[   12.500000] nvidia-nvlink: Nvlink Core is being initialized, major device number 236\n"
LIST = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-11111111-2222-3333-4444-555555555555)\n"


def archive(path: Path, files: dict[str, str], mode: str = "w:xz") -> Path:
    with tarfile.open(path, mode) as packed:
        for name, kind, link in (
            ("lspci", tarfile.SYMTYPE, "/sos_commands/pci/lspci"),
            ("out", tarfile.SYMTYPE, "../../../etc/passwd"),
            ("dev/null", tarfile.CHRTYPE, ""),
        ):
            entry = tarfile.TarInfo(f"{ROOT}/{name}")
            entry.type, entry.linkname = kind, link
            packed.addfile(entry)
        for name, text in files.items():
            entry = tarfile.TarInfo(f"{ROOT}/{name}")
            entry.size = len(text.encode())
            packed.addfile(entry, io.BytesIO(text.encode()))
    return path


def codes(path: Path) -> list[str]:
    return [event.code for found in Recording(path).findings() for event in found.events]


@pytest.mark.parametrize("mode", ["w:xz", "w:gz", "w:bz2", "w"])
def test_the_log_of_a_report_is_read_however_it_is_packed(tmp_path: Path, mode: str) -> None:
    files = {"sos_commands/kernel/dmesg": LOST, "sos_commands/nvidia/nvidia-smi_-L": LIST}
    recording = Recording(archive(tmp_path / "report", files, mode))
    assert [event.code for found in recording.findings() for event in found.events] == ["Xid 79"]
    assert "NVIDIA H100 80GB HBM3" in {gpu.name for gpu in recording.inventory().gpus}


def test_logs_of_earlier_boots_count_where_the_present_one_is_not_there(tmp_path: Path) -> None:
    old = f"Feb  1 03:04:05 gpu7 kernel: {LOST.partition('] ')[2]}"
    files = {"var/log/messages": old, "sos_commands/logs/journalctl_--no-pager_--boot_-1": LOST}
    assert codes(archive(tmp_path / "old.tar.xz", files)) == ["Xid 79"]
    files["sos_commands/kernel/dmesg"] = QUIET
    assert codes(archive(tmp_path / "new.tar.xz", files)) == []


def test_a_report_without_a_log_or_a_tools_output_is_refused(tmp_path: Path) -> None:
    path = archive(tmp_path / "report.tar.xz", {"etc/hosts": "127.0.0.1 localhost\n"})
    with pytest.raises(RecordingError, match="none of its texts"):
        Recording(path)


def test_a_report_that_breaks_off_says_so(tmp_path: Path) -> None:
    whole = archive(
        tmp_path / "whole.tar",
        {"sos_commands/kernel/dmesg": LOST, "sos_commands/pci/lspci_-nnvv": "x" * 50_000},
        "w",
    )
    path = tmp_path / "cut.tar"
    path.write_bytes(whole.read_bytes()[:20_000])
    found = Recording(path).findings()
    assert [event.code for each in found for event in each.events] == ["Xid 79"]
    assert any("cannot be read to its end" in problem for f in found for problem in f.problems)


def test_a_single_log_may_be_packed_with_xz(tmp_path: Path) -> None:
    path = tmp_path / "dmesg.xz"
    path.write_bytes(lzma.compress((QUIET + LOST).encode()))
    assert codes(path) == ["Xid 79"]

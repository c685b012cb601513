"""The table of targets that were read from published recordings is what the recordings give."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from portagpu.checks.info import collect
from portagpu.checks.recordings.replay import Recording
from portagpu.reports.proofs.table import read_committed

ROOT = Path(__file__).parents[2]
RECORDINGS = ROOT.parent / "shared/recordings"
KINDS = {
    "amd-smi": "amd-smi",
    "kfd": "KFD topology",
    "lspci": "lspci",
    "nccl-topo-xml": "topology",
    "nvidia-smi-capture": "nvidia-smi capture",
    "nvidia-smi-xml": "nvidia-smi -q -x",
    "rocm-smi": "rocm-smi",
    "rocminfo": "rocminfo",
}
"""Folders of recordings, and how the table names them. A description by a vendor is none."""
WITHOUT_A_FORMAT = re.compile(r".*\.tar\.gz|rx7900xtx-node-properties\.txt")


@pytest.mark.skipif(not RECORDINGS.is_dir(), reason="no recordings next to this checkout")
def test_the_table_of_recorded_targets_is_current() -> None:
    found: dict[str, set[str]] = {}
    for folder, words in KINDS.items():
        for path in sorted((RECORDINGS / folder).iterdir()):
            if WITHOUT_A_FORMAT.fullmatch(path.name):
                continue
            for device in collect(machine=Recording(path))["devices"]:
                target = device["target"]
                if target is not None and "family" not in target:
                    found.setdefault(target, set()).add(words)
    recorded = read_committed(ROOT / "matrix").recorded
    stated = {target: ", ".join(each.read) for target, each in recorded.items()}
    assert sorted(found) == sorted(stated)
    for target, kinds in found.items():
        for words in kinds:
            assert words in stated[target], f"{target} was read from {words}"

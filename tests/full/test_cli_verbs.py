"""The verbs that read what is there: targets and reports; what a shell completes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from portagpu.checks.bringup import load_gates
from portagpu.facts.targets import load_targets
from portagpu.suites.conformance import AREAS

COMPLETED = [
    ("bringup --target nvidia-h2", [id_ for id_ in load_targets() if id_.startswith("nvidia-h2")]),
    ("compile --target amd-mi3", [id_ for id_ in load_targets() if id_.startswith("amd-mi3")]),
    ("targets show cpu-", ["cpu-aarch64", "cpu-x86-64"]),
    ("bringup --only health", ["health", "health-after"]),
    ("bringup --skip ", [gate.id for gate in load_gates()]),
    ("compile --arch gfx942", ["gfx942"]),
    ("occupancy --arch gfx942", ["gfx942"]),
    ("plan --target cpu-", ["cpu-aarch64", "cpu-x86-64"]),
    ("conform --only ", list(AREAS)),
    ("bench ge", ["gemm"]),
]


@pytest.mark.parametrize(("line", "expected"), COMPLETED)
def test_a_shell_completes_the_words(line: str, expected: list[str]) -> None:
    """As the script of click for bash asks: COMP_WORDS and COMP_CWORD, "type,value" a line."""
    words = f"portagpu {line}"
    done = subprocess.run(
        [sys.executable, "-c", "import sys; from portagpu.cli import main; sys.exit(main([]))"],
        env={
            **os.environ,
            "_PORTAGPU_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split(" ")) - 1),
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    found = [each.partition(",")[2] for each in done.stdout.splitlines()]
    assert set(expected) <= set(found), done.stderr
    assert (done.returncode, done.stderr) == (0, ""), "a shell shows what a completion says"
    begun = line.rpartition(" ")[2]
    assert all(each.startswith(begun) for each in found)

"""``portagpu bringup`` as a user calls it: wrong options, places that cannot be written, pipes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.process.test_bringup_cli import portagpu

pytestmark = pytest.mark.torch


def test_a_module_of_the_users_folder_does_not_stand_in_for_torch(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "torch.py").write_text("raise SystemExit('this is not torch')")
    program = Path(sys.executable).with_name("portagpu")
    if not program.exists():
        pytest.skip("portagpu is not installed as a program here")
    ended = subprocess.run(
        [program, "bringup", "--target", "amd-mi300x"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "FAIL: identity/target" in ended.stdout, ended.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--target", "nvidia-h200-sxn"), "did you mean 'nvidia-h200-sxm"),
        (("--backend", "cpuu"), "did you mean 'cpu'?"),
        (("--expect-devices", "0"), "'--expect-devices'"),
        (("--expect-devices", "many"), "'--expect-devices'"),
        (("--levl",), "--level"),
        (("--full", "--quick"), "--quick or --full"),
        (("--only", "memry"), "did you mean 'memory'?"),
        (("--skip", "zzz"), "gates are environment"),
        (("--duration", "nan"), "nan is not a finite number"),
        (("--duration", "0"), "--duration"),
        (("--backend", "cpuu", "--out", "made"), "did you mean 'cpu'?"),
        (("extra",), "unexpected extra argument"),
        (("--out", "/proc/nowhere"), "cannot write /proc/nowhere/result.json"),
        (("--json", "/proc/nowhere/x.json"), "cannot write /proc/nowhere/x.json"),
        (("--json", ""), "cannot write '': Is a directory"),
        (("--json", "/"), "cannot write /: Is a directory"),
        (("--target", "", "--out", "made"), "there is no target ''"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(tmp_path, arguments, said):
    pytest.importorskip("torch")
    ended = portagpu("bringup", *arguments, cwd=tmp_path)
    assert ended.returncode == 2, ended.stderr
    assert ended.stdout == ""
    lines = ended.stderr.strip().splitlines()
    assert len(lines) == 1, lines
    assert said in lines[0]
    assert list(tmp_path.iterdir()) == []

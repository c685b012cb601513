"""``portagpu profile`` opens its outputs with the readers of ``portagpu trace``."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("adbc_driver_sqlite")
pytest.importorskip("portagpu.traces.analysis.kineto")

samples = pytest.importorskip("tests.support.trace_samples")

from portagpu import cli
from portagpu.traces.profile import choice
from tests.process.test_profile_commands import ATTACHED, install
from tests.support.profile_runs import write_script

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in (*ATTACHED, "RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    choice._backend.cache_clear()
    yield
    choice._backend.cache_clear()


def captured(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, *words: str, code: int = 0
) -> dict[str, Any]:
    """The result of the only rank, by the command line."""
    out = str(tmp_path / "out")
    assert cli.main(["profile", "--json", "-", "-o", out, *words]) == code
    results = json.loads(capfd.readouterr().out)["results"]
    (found,) = [each for each in results if each["id"] == "profile/captured"]
    return found


@pytest.mark.parametrize(("tool", "write"), [("nsys", "write_nsys"), ("rocprofv3", "write_rocpd")])
def test_captures_of_vendors_are_opened(
    tool: str,
    write: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sample = tmp_path / "sample"
    getattr(samples, write)(samples.timeline(kernels=40, devices=1), sample)
    path = install(tool, tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SAMPLE", str(sample))
    script = str(write_script(tmp_path, "print('said')"))
    found = captured(capfd, tmp_path, "--with", tool, "--", sys.executable, script)
    assert found["value"] == found["extra"]["counts"]["kernel"] == 40


def test_a_capture_that_no_reader_knows_is_an_error(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = tmp_path / "sample"
    sample.write_bytes(b"no database")
    path = install("rocprofv3", tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SAMPLE", str(sample))
    script = str(write_script(tmp_path, "print('said')"))
    words = ("--with", "rocprofv3", "--", sys.executable, script)
    found = captured(capfd, tmp_path, *words, code=1)
    assert found["verdict"] == "FAIL"
    assert found["reason"].endswith("_results.db cannot be opened")

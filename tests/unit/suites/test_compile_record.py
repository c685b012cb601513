"""What was compiled, as it is committed: valid by today's facts and kernels, and shown in docs."""

from __future__ import annotations

import copy
import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from portagpu.base.errors import BundleError
from portagpu.suites.compile.record import check_record, main, read_record, record, table, to_text
from portagpu.suites.compile.run import CompileOptions, compile_kernels
from tests.conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

FILE = ROOT / "matrix" / "compiled.json"


@pytest.fixture(scope="module")
def committed() -> dict[str, Any]:
    return read_record(FILE)


def test_the_committed_record_is_of_the_kernels_and_facts_of_now(committed: dict[str, Any]) -> None:
    assert to_text(committed) == FILE.read_text("utf-8")
    gpus = [target.arch.name for target in CompileOptions().targets() if target.vendor != "cpu"]
    assert list(committed["architectures"]) == gpus
    assert check_record(committed, by_toolchains=True) == committed


def _row(document: dict[str, Any], arch: str, kernel: str, **row: Any) -> None:
    document["architectures"][arch][kernel] = row


def test_what_never_ends_or_is_too_large_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    large, pipe = tmp_path / "large.json", tmp_path / "pipe"
    with large.open("wb") as file:
        file.truncate(1 << 30)
    os.mkfifo(pipe)
    for path, said in ((large, "is larger than"), (pipe, "not a regular file")):
        with pytest.raises(BundleError, match=said):
            read_record(path)
        assert main([str(path)]) == 1
        reported = capsys.readouterr().err
        assert said in reported
        assert reported.count("\n") == 1


def test_an_architecture_that_failed_or_was_not_built_is_not_in_the_table(
    committed: dict[str, Any],
) -> None:
    document = copy.deepcopy(committed)
    _row(document, "sm_75", "ballot_rank", verdict="FAIL", reason="does not compile")
    document["architectures"]["sm_70"] = {
        "triton": {"verdict": "SKIP", "reason": "no"},
        "cpp": {"verdict": "INCONCLUSIVE", "reason": "NVRTC 13.5 cannot build for sm_70"},
    }
    rows = table(check_record(document))
    assert "`sm_80`" in rows
    assert "sm_75" not in rows
    assert "sm_70" not in rows


def test_only_a_whole_run_makes_a_record(tmp_path: Path) -> None:
    run = compile_kernels(CompileOptions(archs=["x86-64"], command=["portagpu", "compile"]))
    with pytest.raises(
        BundleError, match=r"has other kernels than there are; run portagpu compile"
    ):
        record(run)
    run.info = replace(run.info, interrupted=True)
    with pytest.raises(BundleError, match="was interrupted"):
        record(run)


def test_bad_files_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken, foreign = tmp_path / "broken.json", tmp_path / "foreign.json"
    broken.write_text("{", "utf-8")
    foreign.write_text(json.dumps([1]), "utf-8")
    for path in (broken, foreign, tmp_path / "none"):
        with pytest.raises(BundleError) as caught:
            read_record(path)
        assert "\n" not in str(caught.value)
        assert main([str(path)]) == 1
        assert capsys.readouterr().err.count("\n") == 1
    assert main([]) == main(["--table"]) == main(["-", "a"]) == 2

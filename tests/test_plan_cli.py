"""``portagpu plan``: what it prints and writes, and what it refuses in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from portagpu.cli import main

ASKED = ["plan", "--model", "llama-3.1-8b", "--batch", "64", "--sequence", "8192"]
H100 = ["--target", "nvidia-h100-sxm", "--ranks", "8"]
XML = Path(__file__).parent / "formats"


def test_the_text_has_plans_terms_and_what_was_rejected(capfd: pytest.CaptureFixture[str]) -> None:
    assert main([*ASKED, *H100]) == 0
    said = capfd.readouterr().out
    for words in ("optimiser state", "fragmentation", "rejected by memory", "step s", "may fit"):
        assert words in said


def test_the_document_has_every_plan(capfd: pytest.CaptureFixture[str]) -> None:
    assert main([*ASKED, *H100, "--target", "amd-mi300x", "--json", "-"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert document["schema"] == "portagpu.plan/1"
    assert [each["target"] for each in document["plans"]] == ["nvidia-h100-sxm", "amd-mi300x"]
    for each in document["plans"]:
        assert each["ranked"]
        assert all(one["rule"] and one["why"] for one in each["rejected"])
        for found in each["ranked"]:
            assert {"layout", "recipe", "fit", "why", "timing", "memory"} == set(found)


def test_a_model_that_fits_nowhere_is_exit_code_1(capfd: pytest.CaptureFixture[str]) -> None:
    asked = ["plan", "--model", "llama-3.1-405b", "--batch", "8", *H100]
    assert main(asked) == 1
    assert "nothing fits" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--target", "nvidia-h100-sxn", "--ranks", "8"], "nvidia-h100-sxm"),
        (["--target", "nvidia-h100-sxm"], "give --target and --ranks"),
        (["--target", "nvidia-h100-sxm", "--ranks", "16"], "need a network"),
        (["--target", "nvidia-h100-sxm", "--ranks", "8", "--nodes", "3"], "spread evenly"),
        ([*H100, "--strategy", "tp=zwei"], "no degree of parallelism"),
        ([*H100, "--precision", "fp7"], "no precision"),
        ([*H100, "--recompute", "sum"], "no recompute"),
        (["--target", "cpu-x86-64", "--ranks", "1"], "no memory size"),
    ],
)
def test_what_cannot_be_is_one_line(
    words: list[str], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main([*ASKED, *words]) == 2
    written = capfd.readouterr().err
    assert said in written
    assert "Traceback" not in written


@pytest.mark.parametrize("content", ["{", "[]", '{"hidden_size": 1}'])
def test_a_wrong_config_is_one_line(
    content: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.json"
    path.write_text(content)
    assert main(["plan", "--model", str(path), "--batch", "1", *H100]) == 2
    assert "config.json" in capfd.readouterr().err
    assert main(["plan", "--model", str(tmp_path / "no.json"), "--batch", "1", *H100]) == 2
    assert main(["plan", "--model", "lama-2-7b", "--batch", "1", *H100]) == 2
    assert "llama-2-7b" in capfd.readouterr().err

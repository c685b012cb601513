"""``portagpu plan``: what it prints and writes, and what it refuses in one line."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from portagpu.cli import main
from tests.conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

ASKED = ["plan", "--model", "llama-3.1-8b", "--batch", "64", "--sequence", "8192"]
H100 = ["--target", "nvidia-h100-sxm", "--ranks", "8"]
PLACES = ROOT / "tests/vendor_texts/placement"


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
            named = {"layout", "recipe", "fit", "why", "timing", "between_s", "memory"}
            assert named == set(found)


def test_targets_stand_side_by_side(capfd: pytest.CaptureFixture[str]) -> None:
    """One that cannot hold the model says so, and does not hide the other."""
    asked = ["plan", "--model", "llama-3.1-8b", "--batch", "8", "--sharding", "ddp", "--ranks", "1"]
    targets = ["--target", "amd-mi355x", "--target", "nvidia-h100-sxm"]
    assert main([*asked, *targets]) == 0
    head, first, second, why, *_ = capfd.readouterr().out.splitlines()
    assert head.split()[:3] == ["target", "GPUs", "layout"]
    assert first.split()[:4] == ["amd-mi355x", "1", "one", "rank"]
    assert "nothing fits" in second
    assert why.startswith("nvidia-h100-sxm: nothing fits: the smallest layout")


def test_a_model_that_fits_nowhere_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    asked = ["plan", "--model", "llama-3.1-405b", "--batch", "8", *H100, "--json", "-"]
    assert main(asked) == 1
    written = capfd.readouterr()
    (said,) = [line for line in written.err.splitlines() if line.startswith("portagpu:")]
    assert "nothing fits" in said
    (found,) = json.loads(written.out)["plans"]
    assert found["nothing"] in said
    assert "memory" in {each["rule"] for each in found["rejected"]}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--target", "nvidia-h100-sxn", "--ranks", "8"], "nvidia-h100-sxm"),
        (["--target", "nvidia-h100-sxm"], "give --target and --ranks"),
        (["--target", "nvidia-h100-sxm", "--ranks", "16"], "need a network"),
        (["--target", "nvidia-h100-sxm", "--ranks", "8", "--nodes", "3"], "spread evenly"),
        ([*H100, "--strategy", "tp=zwei"], "unknown degree of parallelism"),
        ([*H100, "--precision", "fp7"], "unknown precision"),
        ([*H100, "--recompute", "sum"], "unknown recompute"),
        (["--target", "cpu-x86-64", "--ranks", "1"], "no memory size"),
        (["--target", "nvidia-h100-sxm", "--ranks", "0"], "--ranks"),
        (["--target", "nvidia-h100-sxm", "--ranks", str(1 << 70)], "at most 65,536"),
        ([*H100, "--batch", str(1 << 70)], "batch is from 1 to"),
        ([*H100, "--sequence", str(1 << 70)], "micro_batch and sequence are from 1 to"),
        ([*H100, "--memory", "0"], "not a number of bytes"),
        ([*H100, "--nic-gbs", "nan"], "nic_gbs is"),
        ([*H100, "--efficiency", "nan"], "a share of the peak"),
        ([*H100, "--strategy", "tp=3"], "breaks world: tp 3"),
        ([*H100, "--strategy", "tp=2,tp=4"], "tp is there twice"),
        (["--target", "nvidia-h100-sxm", "--ranks", "16"], "--nic-gbs"),
        (["--target", "cpu-x86-64", "--ranks", "4"], "--memory"),
        ([*H100, "--settings", "megatron"], "not with fsdp2"),
    ],
)
def test_what_cannot_be_is_one_line(
    words: list[str], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main([*ASKED, *words]) == 2
    written = capfd.readouterr().err
    assert said in written
    assert written.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "it is not JSON"),
        ("[]", "it has no names and values"),
        ('"llama"', "it has no names and values"),
        ('{"hidden_size": 1}', "no 'num_hidden_layers'"),
    ],
)
def test_a_wrong_config_is_one_line(
    content: str, said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.json"
    path.write_text(content)
    assert main(["plan", "--model", str(path), "--batch", "1", *H100]) == 2
    written = capfd.readouterr().err
    assert "config.json" in written and said in written
    assert main(["plan", "--model", str(tmp_path / "no.json"), "--batch", "1", *H100]) == 2
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    assert main(["plan", "--model", str(tmp_path / "bytes.json"), "--batch", "1", *H100]) == 2
    assert "it is not text" in capfd.readouterr().err
    assert main(["plan", "--model", "lama-2-7b", "--batch", "1", *H100]) == 2
    assert "llama-2-7b" in capfd.readouterr().err


def test_a_recorded_machine_decides_the_domain(capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("networkx")
    asked = ["plan", "--model", "llama-2-7b", "--batch", "32", "--json", "-"]
    matrix = PLACES / "topo-m-8xH200-8nic-gke.txt"
    assert main([*asked, "--replay", str(matrix), "--target", "nvidia-h200-sxm"]) == 0
    (found,) = json.loads(capfd.readouterr().out)["plans"]
    assert (found["ranks"], found["domain"]) == (8, 8)
    rome = [*asked, "--replay", str(PLACES / "rccl-topo_8p_rome_n4.xml"), "--memory", "64G"]
    assert main([*rome, "--target", "amd-mi50"]) == 0
    (found,) = json.loads(capfd.readouterr().out)["plans"]
    assert found["ranks"] == 8
    assert found["domain"] == 4
    assert {each["layout"]["tp"] for each in found["ranked"]} <= {1, 2, 4}
    assert "tp-in-domain" in {each["rule"] for each in found["rejected"]}


def test_a_model_is_also_the_folder_of_its_config(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    assert main(["plan", "--model", str(tmp_path), "--batch", "8", *H100]) == 0
    assert main(["plan", "--model", str(tmp_path / "none"), "--batch", "8", *H100]) == 2
    assert "give a config.json, the folder that has it, or a name" in capfd.readouterr().err


def test_a_recording_without_links_says_that_facts_decide(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("networkx")
    source = PLACES.parent / "formats" / "nvidia_smi_text" / "table-550.txt"
    assert main([*ASKED, "--replay", str(source)]) == 0
    assert (
        "the recording has no links: the facts of nvidia-h100-sxm decide" in capfd.readouterr().out
    )


def test_a_recording_has_as_many_ranks_as_it_has(capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("networkx")
    matrix = str(PLACES / "topo-m-8xH200-8nic-gke.txt")
    asked = ["plan", "--model", "llama-2-7b", "--batch", "32", "--replay", matrix]
    assert main([*asked, "--target", "nvidia-h200-sxm", "--ranks", "7"]) == 2
    assert "have 8 ranks" in capfd.readouterr().err
    assert main(asked) == 2
    assert "give --target" in capfd.readouterr().err


SMALL = {
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 500,
}
PLANNED = """
from tests.support.planned_models import Decoder, adamw, decoder, loss_of

def planned():
    return (lambda: Decoder(decoder(2, 128, 352, 500))), loss_of(2, 128), adamw

def broken():
    raise RuntimeError("no module")

def prints():
    from neighbour import WORD
    print(WORD)
    return planned()

def ends():
    raise SystemExit(0)

def ends_later():
    return (lambda: exit(0)), loss_of(2, 128), adamw

wrong = lambda: 3
"""


def track(tmp_path: Path, name: str, *more: str) -> int:
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    (tmp_path / "train.py").write_text(PLANNED)
    asked = ["plan", "--model", str(tmp_path / "config.json"), "--batch", "2", "--sequence", "128"]
    asked += ["--target", "nvidia-h100-sxm", "--ranks", "1", "--micro-batch", "2"]
    asked += ["--precision", "fp32", "--recompute", "none"]
    return main([*asked, "--track", str(tmp_path / name), *more])


@pytest.mark.torch
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("train.py", "is not FILE:FUNCTION"),
        ("train.py:missing", "has no function missing"),
        ("train.py:broken", "did not run: "),
        ("train.py:ends", "ended the program (exit code 0)"),
        ("train.py:ends_later", "ended the program (exit code 0)"),
        ("train.py:wrong", "must return three functions: \\(build, step, optimizer\\)"),
        ("none.py:planned", "did not run: "),
        ("config.json:planned", "has no function planned"),
    ],
)
def test_what_cannot_be_tracked_is_one_line(
    name: str, said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    assert track(tmp_path, name) == 2
    written = capfd.readouterr().err
    assert said.replace("\\", "") in written
    assert "Traceback" not in written


@pytest.mark.torch
def test_what_the_tracked_file_prints_is_not_in_the_document(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    (tmp_path / "neighbour.py").write_text("WORD = 'printed'\n")
    before = [*sys.path]
    assert track(tmp_path, "train.py:prints", "--json", "-") == 0
    out, err = capfd.readouterr()
    assert json.loads(out)["tracked"]["peak"] > 0
    assert "printed" in err
    assert sys.path == before
    sys.modules.pop("neighbour")

"""Scripts written for one vendor train after the rewrite alone, and compute what they should.

The expected losses are those of the same scripts ported by hand in this file, without portagpu:
text is replaced, and libcst has no part in it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

pytest.importorskip("libcst")
pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from portagpu.train.port.reading import Source, read
from portagpu.train.port.rewrite import Rewritten, rewrite_source
from portagpu.train.port.rules import Rules, load_rules
from tests.benchmarks.port_public import with_wrong_name, without_rule

ROOT: Final = Path(__file__).resolve().parents[2]
SCRIPTS: Final = ROOT / "tests/support/port_samples/train"

BY_HAND: Final = {
    "single": {
        ".cuda()": "",
        ".cuda(non_blocking=True)": "",
        'device = "cuda"': 'device = "cpu"',
        "from torch.cuda.amp import GradScaler": "from torch.amp import GradScaler",
        "GradScaler()": 'GradScaler("cpu")',
        "torch.cuda.synchronize()": "pass",
    },
    "ranks": {
        "torch.cuda.set_device(local_rank)": "pass",
        "nccl": "gloo",
        ".to(local_rank)": "",
        ", device_ids=[local_rank], output_device=local_rank": "",
        'f"cuda:{local_rank}"': '"cpu"',
        "device_ids=[local_rank]": "",
    },
    "spawn": {
        "torch.cuda.set_device(gpu)": "pass",
        "nccl": "gloo",
        ".cuda(gpu)": "",
        ", device_ids=[gpu]": "",
        "torch.cuda.device_count()": 'int(__import__("os").environ["PORTAGPU_SHARED_DEVICES"])',
    },
}
RANKS: Final = {"single": 1, "ranks": 2, "spawn": 2}


def by_hand(name: str) -> str:
    text = (SCRIPTS / f"{name}.py").read_text(encoding="utf-8")
    for before, after in BY_HAND[name].items():
        assert before in text
        text = text.replace(before, after)
    return text


def by_tool(name: str, rules: Rules) -> str:
    source = read(SCRIPTS / f"{name}.py")
    assert isinstance(source, Source)
    new = rewrite_source(source, rules, unsafe=False)
    assert isinstance(new, Rewritten)
    return new.text


def losses(
    text: str, folder: Path, ranks: int, name: str, through: tuple[str, ...] = ()
) -> list[str]:
    """What the script prints as losses; it may fail or print none. ``through`` starts it."""
    folder.mkdir()
    script = folder / "script.py"
    script.write_text(text, encoding="utf-8")
    command = [sys.executable, *through, str(script)]
    if name == "ranks":
        rendezvous = ["--nnodes=1", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
        launcher = [sys.executable, "-m", "torch.distributed.run", *rendezvous]
        command = [*launcher, f"--nproc-per-node={ranks}", *through, str(script)]
    elif name == "spawn":
        command.append(str(folder / "store"))
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "backends")]),
        "PORTAGPU_BACKEND": "cpu",
        "PORTAGPU_SHARED_DEVICES": str(ranks),
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        command, env=environment, check=False, capture_output=True, text=True, timeout=240
    )
    return re.findall(r"loss ([\d.]+)", done.stdout)


@pytest.fixture(scope="module")
def losses_by_hand(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    folder = tmp_path_factory.mktemp("hand")
    return {name: losses(by_hand(name), folder / name, RANKS[name], name) for name in RANKS}


@pytest.mark.parametrize("name", RANKS)
def test_a_rewritten_script_has_the_losses_of_one_ported_by_hand(
    losses_by_hand: dict[str, list[str]], name: str, tmp_path: Path
) -> None:
    assert len(losses_by_hand[name]) == 4
    found = losses(by_tool(name, load_rules()), tmp_path / "tool", RANKS[name], name)
    assert found == losses_by_hand[name]


@pytest.mark.parametrize("name", [*RANKS])
def test_the_original_does_not_train_here(name: str, tmp_path: Path) -> None:
    text = (SCRIPTS / f"{name}.py").read_text(encoding="utf-8")
    assert losses(text, tmp_path / "original", 1, name) == []


@pytest.mark.parametrize(
    ("rule", "name"),
    [
        ("PG001", "single"),
        ("PG002", "single"),
        ("PG003", "ranks"),
        ("PG004", "ranks"),
        ("PG006", "spawn"),
        ("PG101", "spawn"),
        ("PG102", "spawn"),
    ],
)
def test_without_one_rule_a_script_does_not_train(rule: str, name: str, tmp_path: Path) -> None:
    """The negative control: each rule is needed, so that losses would show a wrong one."""
    without = without_rule(load_rules(), rule)
    assert losses(by_tool(name, without), tmp_path / "mutant", 1, name) == []


def test_a_wrong_rule_gives_other_losses(
    losses_by_hand: dict[str, list[str]], tmp_path: Path
) -> None:
    """One that seeds again where the script waits for its device: each later step draws others."""
    wrong = with_wrong_name(load_rules(), "torch.cuda.synchronize", "seed")
    expected = losses_by_hand["single"]
    found = losses(by_tool("single", wrong), tmp_path / "wrong", 1, "single")
    assert len(found) == len(expected) == 4
    assert found[0] == expected[0]
    assert found != expected


@pytest.mark.parametrize("name", RANKS)
def test_an_unchanged_script_has_the_same_losses_when_it_is_run_through(
    losses_by_hand: dict[str, list[str]], name: str, tmp_path: Path
) -> None:
    """``portagpu port run`` answers for the GPUs of the original."""
    original = (SCRIPTS / f"{name}.py").read_text(encoding="utf-8")
    through = ("-m", "portagpu", "port", "run")
    found = losses(original, tmp_path / "run", RANKS[name], name, through)
    assert found == losses_by_hand[name]

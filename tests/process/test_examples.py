"""The examples give the same losses alone and on ranks, in a few steps.

Ranks of the rank server run their programs. ``tests/full`` has torchrun, splitting in both ways at
once, and whether they learn.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import pytest

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.first]

import torch.distributed as dist

from tests.conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from portagpu.runs.world import Ranks

RANKS: Final = "tests.support.ranks"
EXAMPLE: Final = ROOT / "examples/train_transformer.py"
PARALLEL: Final = ROOT / "examples/train_parallel.py"
STEPS: Final = 4
SHORT: Final = ("--precision", "float32", "--steps", f"{STEPS}", "--every", "1", "--batch", "8")
AGREEMENT: Final = 1e-4
"""Relative: the same batches in float32, whose sums have another order: 1e-7 at first."""


def run(ranks: Ranks, path: Path, world: int, *words: str) -> list[tuple[int, str, str]]:
    """(exit status, output, errors) of each rank; this process is the agent that launched them."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    variables = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": f"{store.port}",
        "TORCHELASTIC_RUN_ID": "tests",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    return ranks.run(
        f"{RANKS}:program",
        world,
        arguments={"path": str(path), "words": words, "variables": variables},
        backend="cpu",
        group=False,
    ).values


def trained(ended: list[tuple[int, str, str]]) -> str:
    """What rank 0 of a run printed that succeeded; the others print nothing."""
    for code, out, err in ended:
        assert code == 0, f"the example exited with {code}\n{out}\n{err}"
    assert [out for _, out, _ in ended[1:]] == [""] * (len(ended) - 1)
    return ended[0][1]


def losses(out: str) -> list[float]:
    """The losses on the way, then the final one."""
    steps = re.findall(r"^step +\d+  loss (\S+)$", out, re.MULTILINE)
    final = re.findall(rf"^final loss (\S+) after {STEPS} steps", out, re.MULTILINE)
    assert (len(steps), len(final)) == (STEPS, 1), out
    cost = re.search(r": (\d+) tokens/s, peak memory (\d+) MiB a rank$", out.splitlines()[-1])
    assert cost is not None, f"the last line states no rate and no peak: {out}"
    assert min(map(int, cost.groups())) > 0
    return [float(each) for each in steps + final]


def test_the_transformer_trains_the_same_alone_and_on_two_ranks(training_ranks: Ranks) -> None:
    two = trained(run(training_ranks, EXAMPLE, 2, *SHORT))
    alone = trained(run(training_ranks, EXAMPLE, 1, *SHORT))
    # the losses on the way have four digits
    assert losses(two) == pytest.approx(losses(alone), rel=AGREEMENT, abs=2e-4)
    assert losses(alone)[-1] < losses(alone)[0]
    assert "on 1 rank(s) of cpu" in alone
    assert "on 2 rank(s) of cpu" in two


@pytest.mark.parametrize("options", [("--steps", "0"), ("--batch", "0"), ("--precision", "fp8")])
def test_the_transformer_refuses_bad_options_in_one_line(
    ranks: Ranks, options: tuple[str, str]
) -> None:
    ((code, out, err),) = run(ranks, EXAMPLE, 1, *options)
    assert code == 2, f"{options} must be wrong usage (2), not {code}"
    assert out == ""
    assert err.splitlines()[-1].startswith("train_transformer.py: error: ")

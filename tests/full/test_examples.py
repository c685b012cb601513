"""The examples do what their text says: they train, alone and on ranks, and the results agree."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.first]

from tests.process.test_examples import AGREEMENT as AGREEMENT_OF_SPLITS
from tests.process.test_examples import run, trained
from tests.support.launched import run_on_the_cpu

if TYPE_CHECKING:
    from portagpu.runs.world import Ranks

EXAMPLE: Final = Path(__file__).resolve().parents[2] / "examples" / "train_transformer.py"
ALONE: Final = [sys.executable, str(EXAMPLE)]
TWO_RANKS: Final = [
    sys.executable,
    "-m",
    "torch.distributed.run",
    "--standalone",
    "--nproc_per_node=2",
    str(EXAMPLE),
]

GUESSING: Final = 2.3026
"""ln 10: the loss of a model that knows nothing about ten equally likely digits."""
LEARNED: Final = 0.3
"""Below this the model gives the right digit more than e**-0.3 = 74 % of its probability."""
AGREEMENT: Final = 1e-2
"""Relative. Both runs see the same batches and differ in the order of float32 sums, which is
1e-7 at first and grows with every step."""


def parallel_losses(
    ranks: Ranks, world: int, *options: str, steps: int = 5
) -> dict[int, tuple[float, float]]:
    """Step -> (loss, norm) of a run of the parallel example, which must succeed."""
    given = ("--steps", str(steps), "--every", "1", "--batch", "8", *options)
    out = trained(run(ranks, PARALLEL, world, *given))
    found = re.findall(r"^step +(\d+)  loss (\S+)  norm (\S+)$", out, re.MULTILINE)
    return {int(step): (float(loss), float(norm)) for step, loss, norm in found}


def _run(command: list[str], *options: str, folder: Path) -> tuple[int, str, str]:
    """(exit status, output, errors) of the example on the CPU in float32."""
    return run_on_the_cpu([*command, "--precision", "float32", *options], folder)


def _train(command: list[str], folder: Path) -> tuple[list[float], float, str]:
    """(losses on the way, final loss, last line) of a run that must succeed."""
    code, out, err = _run(command, folder=folder)
    assert code == 0, f"the example exited with {code}\n{out}\n{err}"
    steps = [float(found) for found in re.findall(r"^step +\d+  loss (\S+)$", out, re.MULTILINE)]
    final = re.findall(r"^final loss (\S+) after .*$", out, re.MULTILINE)
    assert len(final) == 1, f"exactly one rank states the final loss, not {len(final)}:\n{out}"
    return steps, float(final[0]), out.splitlines()[-1]


def test_transformer_learns_the_same_alone_and_on_two_ranks(tmp_path: Path) -> None:
    steps_alone, alone, line_alone = _train(ALONE, tmp_path)
    steps_two, two, line_two = _train(TWO_RANKS, tmp_path)

    assert steps_alone[0] > 0.9 * GUESSING, f"it starts at {steps_alone[0]}, better than guessing"
    for loss, where in ((alone, "alone"), (two, "on two ranks")):
        assert loss < LEARNED, f"{where} the loss on unseen digits stays at {loss}"
    assert steps_two[0] == pytest.approx(steps_alone[0], abs=2e-4), (
        "before any update two ranks must see the same global batch as one"
    )
    assert two == pytest.approx(alone, rel=AGREEMENT), (
        f"the final loss is {alone} alone and {two} on two ranks: gradients are not those of the "
        "global batch"
    )
    assert "on 1 rank(s) of cpu" in line_alone
    assert "on 2 rank(s) of cpu" in line_two
    for line in (line_alone, line_two):
        cost = re.search(r": (\d+) tokens/s, peak memory (\d+) MiB a rank$", line)
        assert cost is not None, f"the last line states no rate and no peak: {line}"
        assert int(cost[1]) > 0
        assert int(cost[2]) > 0
    assert list(tmp_path.iterdir()) == [], "the example leaves files"


@pytest.mark.parametrize("options", [("--steps", "0"), ("--batch", "0"), ("--precision", "fp8")])
def test_transformer_refuses_bad_options_in_one_line(
    options: tuple[str, str], tmp_path: Path
) -> None:
    code, out, err = _run(ALONE, *options, folder=tmp_path)
    assert code == 2, f"{options} must be wrong usage (2), not {code}"
    assert out == ""
    assert err.splitlines()[-1].startswith("train_transformer.py: error: ")


PARALLEL: Final = EXAMPLE.with_name("train_parallel.py")
ONE_TASK: Final = 1e-4
"""Relative: the same batches, in float32, over 20 steps."""


def _losses(
    folder: Path, ranks: int, *options: str, steps: int = 20
) -> dict[int, tuple[float, float]]:
    """Step -> (loss, norm) of a run of the parallel example, which must succeed."""
    command = [*TWO_RANKS[:-2], f"--nproc_per_node={ranks}", str(PARALLEL)] if ranks > 1 else [
        sys.executable, str(PARALLEL),
    ]  # fmt: skip
    given = ("--steps", str(steps), "--every", "5", *options)
    code, out, err = run_on_the_cpu([*command, *given], folder)
    assert code == 0, f"the example exited with {code}\n{out}\n{err}"
    found = re.findall(r"^step +(\d+)  loss (\S+)  norm (\S+)$", out, re.MULTILINE)
    return {int(step): (float(loss), float(norm)) for step, loss, norm in found}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[int, tuple[float, float]]:
    """Of the parallel example, on one rank."""
    return _losses(tmp_path_factory.mktemp("alone"), 1)


def test_every_way_of_splitting_trains_the_same(
    alone: dict[int, tuple[float, float]], tmp_path: Path
) -> None:
    assert sorted(alone) == [0, 5, 10, 15, 19]
    assert alone[19][0] < alone[0][0]
    split = _losses(tmp_path, 4, "--tp", "2", "--pp", "2", "--recompute", "operators")
    for step, pair in alone.items():
        assert split[step] == pytest.approx(pair, rel=ONE_TASK), f"step {step}"
    assert list(tmp_path.iterdir()) == [], "the example leaves files"


def test_a_run_goes_on_on_other_ranks(
    alone: dict[int, tuple[float, float]], tmp_path: Path
) -> None:
    kept = ("--checkpoints", str(tmp_path / "kept"))
    _losses(tmp_path, 2, *kept, steps=10)
    on = _losses(tmp_path, 2, *kept, "--pp", "2", "--schedule", "interleaved")
    assert sorted(on) == [10, 15, 19]
    for step, pair in on.items():
        assert pair == pytest.approx(alone[step], rel=ONE_TASK), f"step {step}"


def test_a_split_run_trains_the_same_and_goes_on_split_in_another_way(
    training_ranks: Ranks, tmp_path: Path
) -> None:
    alone = parallel_losses(training_ranks, 1)
    assert sorted(alone) == [0, 1, 2, 3, 4]
    kept = ("--checkpoints", str(tmp_path / "kept"))
    begun = parallel_losses(training_ranks, 2, *kept, "--tp", "2", steps=3)
    assert sorted(begun) == [0, 1, 2]
    ways = ("--pp", "2", "--schedule", "interleaved", "--recompute", "operators")
    on = parallel_losses(training_ranks, 2, *kept, *ways)
    assert sorted(on) == [3, 4]
    for step, pair in alone.items():
        assert (begun | on)[step] == pytest.approx(pair, rel=AGREEMENT_OF_SPLITS), f"step {step}"

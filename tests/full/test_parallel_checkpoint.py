"""Checkpoints: whole or absent, loaded on other ranks, and what makes them be refused."""

from __future__ import annotations

import math
import os
import sys
from typing import TYPE_CHECKING, Any, Final

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import portagpu as pg
from portagpu.base.errors import PortagpuError
from portagpu.runs.world import Ranks, RankState
from tests.support.launched import run_on_the_cpu
from tests.support.parallel_ranks import adam, batch_of, model_of, reference, sgd
from tests.support.processes import descendants

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

STEPS: Final = 8


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks() as server:
        yield server


def run(ranks: Ranks, world: int, function: str = "resumes", **options: Any) -> Any:
    return ranks.run(
        f"tests.support.parallel_ranks:{function}",
        world,
        arguments=options,
        backend="cpu",
        timeout_s=120.0,
    )


def check_losses(done: Any, first: int, steps: int, wrote: int | None) -> None:
    """Each rank went on at ``first``, where ``wrote`` ranks had stopped, as if nothing had been."""
    assert done.ok, f"{done.sentence}\n{done.ranks[done.culprit or 0].output}"
    expected = reference(steps=STEPS, optimizer="adam")[0]
    for began, losses, extra, world in done.values:
        assert (began, world) == (first, wrote)
        assert losses == pytest.approx(expected[first:steps], rel=1e-12)
        assert extra == ({"seen": pytest.approx(expected[first - 1])} if first else None)


def test_training_goes_on_on_other_ranks_after_a_rank_is_killed(
    ranks: Ranks, tmp_path: Path
) -> None:
    """Four ranks, sharded and split; two sharded, killed; a pipeline, killed; one."""
    folder = str(tmp_path)
    # what tests of other files started in this process, such as a cluster
    others = set(descendants(os.getpid()))
    check_losses(run(ranks, 4, folder=folder, sharding="fsdp2", tp=2, steps=2), 0, 2, None)
    assert pg.parallel.latest(folder) == 2

    done = run(ranks, 2, folder=folder, sharding="fsdp2", steps=STEPS, dies=5)
    assert (done.culprit, done.ranks[1].state) == (1, RankState.DIED), done.sentence
    assert pg.parallel.latest(folder) == 4

    done = run(ranks, 2, folder=folder, pp=2, steps=STEPS, breaks=6)
    assert (done.culprit, done.ranks[1].state) == (1, RankState.DIED), done.sentence
    assert (tmp_path / ".step-6.partial").is_dir(), "it was killed while it wrote"
    assert pg.parallel.latest(folder) == 4

    check_losses(run(ranks, 1, folder=folder, steps=STEPS), 4, STEPS, 2)
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        f"step-{step}" for step in (2, 4, 6, 8)
    ]
    left = [pid for pid in descendants(os.getpid()) if pid not in {*others, ranks._child.pid}]
    assert not left, "ranks are left"


def test_a_pipeline_goes_on_as_replicas_and_back(ranks: Ranks, tmp_path: Path) -> None:
    folder = str(tmp_path)
    check_losses(run(ranks, 4, folder=folder, pp=2, steps=2), 0, 2, None)
    check_losses(run(ranks, 2, folder=folder, sharding="ddp", steps=4), 2, 4, 4)
    check_losses(run(ranks, 2, folder=folder, pp=2, steps=6), 4, 6, 2)


def test_stages_of_one_name_are_refused_on_every_rank(ranks: Ranks, tmp_path: Path) -> None:
    done = run(ranks, 2, "saves_two_of_one_name", folder=str(tmp_path))
    for kind, message in done.values:
        assert kind == "ValueError"
        assert message.startswith("two stages have a parameter 0.down.bias, and one would replace")
    assert list(tmp_path.iterdir()) == []


def test_every_rank_raises_what_the_first_found(ranks: Ranks, tmp_path: Path) -> None:
    done = run(ranks, 2, "saves_where_only_the_first_may_not", folder=str(tmp_path))
    said = ["FileExistsError", f"{tmp_path}/step-1 exists: load it, or remove it"]
    assert done.values == [said] * 2


def test_what_ranks_give_apart_is_refused_on_all(ranks: Ranks, tmp_path: Path) -> None:
    """Others would wait for the rank that raises, and checkpoints would be of two steps."""
    done = run(ranks, 2, "saves_apart", folder=str(tmp_path))
    assert done.ok, done.sentence
    assert done.values[0] == done.values[1]
    steps, folders, extra = (said for _, said in done.values[0])
    rest, what = f"rank 0 step 1 in {tmp_path}", "give the same on all ranks"
    assert steps == f"rank 1 saves step 2 in {tmp_path}, and {rest}: {what}"
    assert folders == f"rank 1 saves step 1 in {tmp_path}/1, and {rest}/0: {what}"
    assert extra.startswith("extra must be JSON: Object of type object is not JSON")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_left_without_the_part_that_was_written(
    ranks: Ranks, tmp_path: Path
) -> None:
    done = run(ranks, 2, "saves_on_a_full_disk", folder=str(tmp_path))
    said = f"rank 1 cannot write {tmp_path}/.step-1.partial: OSError: [Errno 27] File too large"
    assert done.values == [["PortagpuError", said]] * 2
    assert list(tmp_path.iterdir()) == []


RESTARTED: Final = """
import os
import signal

import torch
from torch import nn

import portagpu as pg

with pg.backend().comm.init() as world:
    mesh = pg.parallel.mesh()
    model = pg.parallel.shard(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    kept = pg.parallel.load("kept", model, optimizer)
    begin = kept.step if kept else 0
    for step in range(begin, 4):
        model(torch.ones(2, 4)).square().mean().backward()
        if world.rank == 1 and step == 2 and begin == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        optimizer.zero_grad()
        pg.parallel.save("kept", step + 1, model, optimizer)
    if world.rank == 0:
        print("began at", begin, flush=True)
"""


def test_torchrun_starts_killed_ranks_again_and_they_go_on(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(RESTARTED)
    words = ["--standalone", "--nproc_per_node=2", "--max-restarts=1", str(file)]
    code, out, err = run_on_the_cpu(
        [sys.executable, "-m", "torch.distributed.run", *words], tmp_path
    )
    assert code == 0, err
    assert out == "began at 2\n"
    assert pg.parallel.latest(tmp_path / "kept") == 4


def trained() -> tuple[Any, Any]:
    """A model and its optimiser after one step."""
    model = model_of("float64")
    stepper = adam(model.parameters())
    step(model, stepper)
    return model, stepper


def step(model: Any, stepper: Any) -> None:
    inputs, targets = batch_of(0, "float64")
    stepper.zero_grad()
    torch.nn.functional.mse_loss(model(inputs), targets).backward()
    stepper.step()


def parameters(model: Any) -> list[Any]:
    return [each.detach().clone() for each in model.parameters()]


def test_one_process_needs_no_group(tmp_path: Path) -> None:
    model, stepper = trained()
    path = pg.parallel.save(tmp_path, 1, model, stepper, extra={"epoch": 3})
    assert path == tmp_path / "step-1"
    for group in stepper.param_groups:
        group["lr"] = 0.5
    other = model_of("float64")
    its = adam(other.parameters())
    # gradients are there, and torch alone would then load no state of the optimiser
    other(batch_of(0, "float64")[0]).sum().backward()
    found = pg.parallel.load(tmp_path, other, its)
    assert found == pg.parallel.Loaded(step=1, world_size=1, extra={"epoch": 3}, path=path)
    assert all(each.grad is None for each in other.parameters())
    assert its.param_groups[0]["lr"] == 1e-2
    pg.parallel.load(tmp_path, model, stepper)
    step(model, stepper)
    step(other, its)
    assert all(
        torch.equal(*both) for both in zip(parameters(model), parameters(other), strict=True)
    )


def test_recomputed_layers_keep_their_names(tmp_path: Path) -> None:
    model, stepper = trained()
    pg.parallel.save(tmp_path, 1, model, stepper)
    other = pg.parallel.recompute(model_of("float64"))
    assert pg.parallel.load(tmp_path, other, adam(other.parameters())) is not None
    assert all(
        torch.equal(*both) for both in zip(parameters(model), parameters(other), strict=True)
    )


def test_what_is_not_a_checkpoint_is_not_found(tmp_path: Path) -> None:
    model, stepper = trained()
    assert pg.parallel.latest(tmp_path / "none") is None
    for name in ("step-", "step-x", ".step-9.partial", "step-9.old", "xstep-9"):
        (tmp_path / name).mkdir()
    assert pg.parallel.latest(tmp_path) is None
    assert pg.parallel.load(tmp_path, model, stepper) is None
    pg.parallel.save(tmp_path, 9, model, stepper)
    pg.parallel.save(tmp_path, 10, model, stepper)
    assert pg.parallel.latest(tmp_path) == 10
    found = pg.parallel.load(tmp_path, model, stepper, step=9)
    assert found is not None
    assert found.step == 9
    with pytest.raises(FileNotFoundError, match=r"no checkpoint at .*/step-8$"):
        pg.parallel.load(tmp_path, model, stepper, step=8)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"step": -1}, "a step is a whole number from 0 to 999999999999999, not -1"),
        ({"step": 1.0}, "a step is a whole number from 0 to 999999999999999, not 1.0"),
        ({"step": 10**15}, "a step is a whole number from 0 to 999999999999999, not 10"),
        ({"extra": {"a": object()}}, "extra must be JSON: Object of type object is not JSON"),
        ({"extra": {"a": math.nan}}, "extra must be JSON: Out of range float values"),
        ({"optimizer": []}, "1 models have 0 optimisers: give one each"),
    ],
)
def test_what_cannot_be_kept_is_refused_before_anything_is_written(
    tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    model, stepper = trained()
    with pytest.raises(ValueError, match=said):
        pg.parallel.save(tmp_path, **{"step": 1, "model": model, "optimizer": stepper, **options})
    assert list(tmp_path.iterdir()) == []


def test_parts_with_a_parameter_of_one_name_are_refused(tmp_path: Path) -> None:
    models = [model_of("float64"), model_of("float64")]
    with pytest.raises(ValueError, match=r"two parts of the model have a parameter 0\.down\.bias"):
        pg.parallel.save(tmp_path, 1, models, [sgd(each.parameters()) for each in models])


def test_a_checkpoint_that_others_may_write_is_not_read(tmp_path: Path) -> None:
    """Reading it may run code."""
    model, stepper = trained()
    path = pg.parallel.save(tmp_path, 1, model, stepper)
    (path / ".metadata").chmod(0o666)
    with pytest.raises(PortagpuError, match="is not read, because reading runs code: others may"):
        pg.parallel.load(tmp_path, model, stepper)


def test_a_checkpoint_of_another_schema_is_not_read(tmp_path: Path) -> None:
    model, stepper = trained()
    about = pg.parallel.save(tmp_path, 1, model, stepper) / "portagpu.json"
    about.write_text(about.read_text().replace("checkpoint/1", "checkpoint/2"))
    with pytest.raises(PortagpuError, match=r"of schema portagpu\.checkpoint/2"):
        pg.parallel.load(tmp_path, model, stepper)


def test_a_model_with_other_parameters_is_refused(tmp_path: Path) -> None:
    model, stepper = trained()
    pg.parallel.save(tmp_path, 1, model, stepper)
    other = torch.nn.Sequential(*model_of("float64"), torch.nn.Linear(8, 8))
    said = r"rank 0 cannot read .*: RuntimeError: Missing key in checkpoint .*8\.weight"
    with pytest.raises(PortagpuError, match=said):
        pg.parallel.load(tmp_path, other, adam(other.parameters()))


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("AdamW", {}),
        ("Adam", {"weight_decay": 0.5}),
        ("SGD", {"weight_decay": 0.5, "momentum": 0.9}),
    ],
)
def test_a_checkpoint_before_the_first_step_changes_no_number(
    tmp_path: Path, kind: str, options: dict[str, float]
) -> None:
    """torch makes the optimiser's state by a step, which Adam would count."""
    make = getattr(torch.optim, kind)
    plain, kept, other = (model_of("float64") for _ in range(3))
    steppers = [make(each.parameters(), lr=0.01, **options) for each in (plain, kept, other)]
    pg.parallel.save(tmp_path, 0, kept, steppers[1])
    pg.parallel.load(tmp_path, other, steppers[2])
    for _ in range(2):
        for model, stepper in zip((plain, kept, other), steppers, strict=True):
            step(model, stepper)
    for each in (kept, other):
        assert all(
            torch.equal(*both) for both in zip(parameters(plain), parameters(each), strict=True)
        )


def test_an_optimizer_of_other_parameters_is_refused(tmp_path: Path) -> None:
    model = model_of("float64")
    with pytest.raises(ValueError, match="make it after shard and split"):
        pg.parallel.save(tmp_path, 1, model, adam(model_of("float64").parameters()))
    assert list(tmp_path.iterdir()) == []


def test_folders_without_a_whole_checkpoint_are_passed_over(tmp_path: Path) -> None:
    model, stepper = trained()
    pg.parallel.save(tmp_path, 1, model, stepper)
    (tmp_path / "step-7").mkdir()
    (tmp_path / "step-8").write_text("a file")
    (tmp_path / "step-009").symlink_to(tmp_path / "step-1")
    assert pg.parallel.latest(tmp_path) == 1
    assert pg.parallel.load(tmp_path, model, stepper) is not None
    (tmp_path / "step-2").symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileExistsError, match="step-2 exists"):
        pg.parallel.save(tmp_path, 2, model, stepper)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"schema": "portagpu.checkpoint/1"}'])
def test_a_damaged_description_is_one_line(tmp_path: Path, text: str) -> None:
    model, stepper = trained()
    (pg.parallel.save(tmp_path, 1, model, stepper) / "portagpu.json").write_text(text)
    with pytest.raises(PortagpuError, match=r"portagpu\.json cannot be read: load another step \("):
        pg.parallel.load(tmp_path, model, stepper)


@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp"])
@pytest.mark.parametrize("kept", [0, 0.5])
def test_a_damaged_file_is_one_line(tmp_path: Path, name: str, kept: float) -> None:
    """Without torch's advice to read it in a way that runs code."""
    model, stepper = trained()
    path = pg.parallel.save(tmp_path, 1, model, stepper)
    data = (path / name).read_bytes()
    (path / name).write_bytes(data[: int(kept * len(data))])
    with pytest.raises(PortagpuError, match=f"rank 0 cannot read {path}: a file is damaged$"):
        pg.parallel.load(tmp_path, model, stepper)

"""``portagpu port run``: an unchanged script for GPUs runs here, and says what it asked for."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("torch")

from typing import TYPE_CHECKING, Final

from portagpu.train.port.lint import lint
from tests.process.test_port_run import run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch


BY_HAND: Final = (
    ("from torch.cuda.amp import GradScaler, autocast\n", ""),
    ("torch.cuda.set_device(0)\n", ""),
    (".cuda(non_blocking=True)", ""),
    (".cuda()", ""),
    ('"cuda:0"', '"cpu"'),
    ('"cuda"', '"cpu"'),
    ("GradScaler()", 'torch.amp.GradScaler("cpu")'),
    ("autocast(dtype", 'torch.autocast("cpu", dtype'),
    ("    x.record_stream(torch.cuda.current_stream())\n", ""),
    ("    torch.cuda.synchronize()\n", ""),
    ("torch.cuda.FloatTensor([", "torch.FloatTensor(["),
    (".type(torch.cuda.FloatTensor)", ""),
    ("storage.cuda(0)", "storage"),
)


SCRIPT: Final = """\
import sys
import torch
from torch import nn
from torch.cuda.amp import GradScaler, autocast

torch.cuda.set_device(0)
torch.manual_seed(0)
model = nn.Linear(4, 1).cuda()
model.to("cuda:0")
scaler = GradScaler()
device = torch.device("cuda")
for step in range(2):
    x = torch.ones(8, 4).cuda(non_blocking=True)
    y = torch.ones(8, 1, device=device)
    x.record_stream(torch.cuda.current_stream())
    y = y + torch.cuda.FloatTensor([[0.5]]) + torch.zeros(1).type(torch.cuda.FloatTensor)
    with autocast(dtype=torch.bfloat16):
        loss = (model(x) - y).pow(2).mean()
    scaler.scale(loss).backward()
    torch.cuda.synchronize()
    print("loss", loss.item())
torch.save(model.state_dict(), sys.argv[1])
kept = torch.load(sys.argv[1], map_location=lambda storage, place: storage.cuda(0))
print("kept", sorted(kept))
sys.exit(7)
"""


def test_an_unchanged_script_computes_what_a_port_by_hand_does(tmp_path: Path) -> None:
    """And every line that was answered is one that lint finds: a difference is a fault of one."""
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    by_hand = SCRIPT
    for before, after in BY_HAND:
        assert before in by_hand
        by_hand = by_hand.replace(before, after)
    (tmp_path / "hand.py").write_text(by_hand, encoding="utf-8")
    expected = run("hand.py", "a.pt", folder=tmp_path)
    found = run("-m", "portagpu", "port", "run", "script.py", "a.pt", folder=tmp_path)
    assert expected.stdout.count("loss") == 2, expected.stderr
    assert (found.stdout, found.returncode) == (expected.stdout, 7), found.stderr
    assert "the cpu backend answers for GPUs in this process" in found.stderr
    lines = {int(each) for each in re.findall(r"^script\.py:(\d+): ", found.stderr, re.MULTILINE)}
    linted = {each.line for each in lint([str(tmp_path / "script.py")]).findings}
    used = {10, 14, 17}  # names that an import or an assignment has bound, which are found there
    assert lines - used <= linted and len(lines) >= 10, (lines, linted)


RANKS: Final = """\
import os
import sys
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel as DDP

START = torch.full((4, 1), 0.5).cuda()


def train(rank, world, store, folder):
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=world)
    model = torch.nn.Linear(4, 1).cuda(rank)
    with torch.no_grad():
        model.weight.copy_(START.T)
        model.bias.zero_()
    model = DDP(model, device_ids=[rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.125)
    with open(f"{folder}/{rank}.txt", "w") as file:
        for step in range(3):
            x = torch.full((2, 4), float(rank + 1), device=f"cuda:{rank}")
            loss = (model(x) - 1).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item(), file=file)
    dist.barrier(device_ids=[rank])
    dist.destroy_process_group()


if __name__ == "__main__":
    folder = sys.argv[1]
    mp.spawn(train, args=(2, f"{folder}/store", folder), nprocs=2)
    print("both ended")
"""


def test_ranks_that_a_script_spawns_are_answered_from_their_first_line(tmp_path: Path) -> None:
    """Each imports the script again, whose first lines ask for a GPU; the losses are by hand."""
    (tmp_path / "ranks.py").write_text(RANKS, encoding="utf-8")
    found = run("-m", "portagpu", "port", "run", "ranks.py", str(tmp_path), folder=tmp_path)
    assert (found.stdout, found.returncode) == ("both ended\n", 0), found.stderr
    weight, bias = 0.5, 0.0
    expected: tuple[list[float], list[float]] = ([], [])
    for _ in range(3):
        off = [4 * weight * x + bias - 1 for x in (1, 2)]
        for rank in range(2):
            expected[rank].append(off[rank] ** 2)
        # the mean of both ranks' gradients
        weight -= 0.125 * (2 * off[0] * 1 + 2 * off[1] * 2) / 2
        bias -= 0.125 * (2 * off[0] + 2 * off[1]) / 2
    for rank in range(2):
        losses = [float(line) for line in (tmp_path / f"{rank}.txt").read_text("utf-8").split()]
        assert losses == pytest.approx(expected[rank], rel=1e-6)


MORE: Final = """\
import torch
from torch import nn

torch.manual_seed(0)
torch.cuda.manual_seed(1337)
made = torch.Generator(device="cuda")
made.manual_seed(3)
assert isinstance(made, torch.Generator)
model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
model = nn.DataParallel(model).cuda()
model.compile(backend="eager")
x = torch.rand(8, 4, device="cuda", generator=made)
print("loss", model(x).pow(2).mean().item() - model(x).mean().item())
"""


def test_seeds_generators_norms_and_wrappers_are_answered(tmp_path: Path) -> None:
    """As jik876/hifi-gan, facebookresearch/vicreg, clovaai/CutMix-PyTorch and
    KellerJordan/modded-nanogpt use them."""
    (tmp_path / "script.py").write_text(MORE, encoding="utf-8")
    by_hand = MORE.replace("torch.cuda.manual_seed(1337)\n", "").replace(".cuda()", "")
    by_hand = by_hand.replace("model = nn.SyncBatchNorm.convert_sync_batchnorm(model)\n", "")
    (tmp_path / "hand.py").write_text(by_hand.replace('"cuda"', '"cpu"'), encoding="utf-8")
    expected = run("hand.py", folder=tmp_path)
    found = run("-m", "portagpu", "port", "run", "script.py", folder=tmp_path)
    assert expected.stdout.startswith("loss"), expected.stderr
    assert found.stdout == expected.stdout, found.stderr

"""torch's trackers on real modules, and how far the closed form is from them."""

from __future__ import annotations

import copy
import weakref
from typing import Any, Final

import pytest

torch = pytest.importorskip("torch")

from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)
from torch.utils._python_dispatch import TorchDispatchMode

from portagpu.base.errors import Unsupported
from portagpu.facts.targets import load_target
from portagpu.train.planning import Layout, Recipe, estimate, track
from portagpu.train.planning.memory import logits as logits_of
from portagpu.train.planning.trackers import _mesh_of
from tests.support.planned_models import CASES, Decoder, adamw, decoder, loss_of

pytestmark = pytest.mark.torch

SMALL = decoder(2, 128, 352, 500)


def test_a_small_step_is_counted_by_hand() -> None:
    """One linear layer: weight, its gradient, two moments, the input and what the loss makes."""

    def step(module: Any) -> Any:
        return module(torch.zeros(1, 1024)).sum()

    found = track(lambda: torch.nn.Linear(1024, 1024, bias=False), step, adamw)
    weight = 4 * 1024 * 1024
    # AdamW has two temporaries of the weight's size, which torch counts among its state
    assert found.peak == pytest.approx((1 + 1 + 2 + 2) * weight, rel=0.01)
    assert found.parts["Parameter"] == found.parts["Gradient"] == weight
    assert found.parts["Optstate"] == pytest.approx((2 + 2) * weight, abs=64)


FEW: Final = [*CASES][:1]
DEAR: Final = [*CASES][1:]
"""``tests/full`` has them."""


@pytest.mark.parametrize("name", FEW)
def test_the_closed_form_is_near_the_tracker(name: str) -> None:
    near_the_tracker(name)


def near_the_tracker(name: str) -> None:
    model, batch, length, recompute = CASES[name]
    tracked = track(lambda: Decoder(model, recompute=recompute), loss_of(batch, length), adamw)
    recipe = Recipe(
        micro_batch=batch,
        sequence=length,
        precision="fp32",
        recompute="full" if recompute else "none",
        foreach=False,
    )
    found = estimate(model, recipe, target=load_target("cpu-x86-64"))
    assert abs(tracked.disagreement(found.expected)) < 0.03


def test_the_counts_of_parameters_are_torch_s() -> None:
    for model, *_ in CASES.values():
        with torch.device("meta"):
            module = Decoder(model)
        assert model.parameters == sum(each.numel() for each in module.parameters())


def test_tied_weights_count_once() -> None:
    model = decoder(1, 128, 352, 4000, tied=True)
    found = track(lambda: Decoder(model), loss_of(1, 8), adamw)
    assert found.parts["Parameter"] == 4 * model.parameters


def test_a_module_that_copies_its_layers_is_tracked() -> None:
    class Copies(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            one = torch.nn.Linear(64, 64)
            self.layers = torch.nn.ModuleList(copy.deepcopy(one) for _ in range(2))

        def forward(self, x: Any) -> Any:
            for each in self.layers:
                x = each(x)
            return x

    found = track(Copies, lambda module: module(torch.zeros(2, 64)).sum())
    assert found.parts["Parameter"] == 2 * 4 * (64 * 64 + 64)


def test_no_memory_is_used_for_a_large_module() -> None:
    """40 GB of parameters on a machine that may have less."""
    found = track(
        lambda: torch.nn.Linear(100_000, 100_000, bias=False),
        lambda module: module(torch.zeros(1, 100_000)).sum(),
    )
    assert found.peak >= 2 * 4 * 100_000**2


def test_what_cannot_run_on_fake_tensors_says_so_in_one_line() -> None:
    def step(module: Any) -> Any:
        total = module(torch.zeros(1, 4)).sum()
        return total if total.item() > 0 else -total

    with pytest.raises(Unsupported, match="does not run on fake tensors") as caught:
        track(lambda: torch.nn.Linear(4, 4), step)
    assert "\n" not in str(caught.value)


def test_no_group_is_left_over_after_an_error() -> None:
    def wrong(module: Any, mesh: Any) -> None:
        raise RuntimeError("no")

    with pytest.raises(Unsupported):
        track(lambda: Decoder(SMALL), loss_of(1, 8), ranks=4, shard=wrong)
    assert not torch.distributed.is_initialized()


class LiveBytes(TorchDispatchMode):
    """Bytes of the storages that plain operations made and that are still there."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.seen: set[int] = set()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if any(issubclass(each, DTensor) for each in types):
            return NotImplemented
        found = function(*args, **(kwargs or {}))
        for each in found if isinstance(found, tuple | list) else (found,):
            if type(each) is torch.Tensor:
                self._add(each.untyped_storage())
        return found

    def _add(self, storage: Any) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key not in self.seen:
            self.seen.add(key)
            self.now += size
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._remove, key, size)

    def _remove(self, key: int, size: int) -> None:
        self.seen.discard(key)
        self.now -= size


@pytest.mark.parametrize(("ranks", "tensors"), [(1, 3), (4, 4)])
def test_a_loss_over_a_split_vocabulary_holds_one_more_tensor(ranks: int, tensors: int) -> None:
    """torch's own loss, on 16-bit logits that are freed before backward, byte by byte."""
    rows, vocabulary = 256, 2048
    count = rows * vocabulary // ranks
    local = torch.zeros(rows, vocabulary // ranks, dtype=torch.bfloat16, requires_grad=True)
    with _mesh_of(ranks) as mesh, loss_parallel(), LiveBytes() as live:
        logits = local * 1
        whole = DTensor.from_local(logits, mesh, [Shard(-1)]) if ranks > 1 else logits
        loss = torch.nn.functional.cross_entropy(whole.float(), torch.zeros(rows).long())
        del logits, whole
        live.peak = live.now
        loss.backward()
    assert live.peak == pytest.approx(4 * tensors * count, rel=0.05)
    model = decoder(1, 64, 64, vocabulary)
    recipe = Recipe(sequence=rows)
    layout = Layout(tp=ranks)
    # and the 16-bit logits' own block, which stays reserved
    assert logits_of(model, recipe, layout)[0] == (4 * tensors + 2) * count


def test_torch_keeps_a_gathered_input_whole_and_copies_it_in_order() -> None:
    """An MLP over 4 fake ranks, byte by byte: what forward keeps, and the copy of its peak."""
    ranks, batch, length, hidden, inner = 4, 4, 128, 64, 256
    whole, split = 4 * batch * length * hidden, 4 * batch * length * inner // ranks
    plan = {
        "": PrepareModuleInput(
            input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),), use_local_output=True
        ),
        "0": ColwiseParallel(),
        "1": RowwiseParallel(output_layouts=Shard(1)),
    }
    with _mesh_of(ranks) as mesh:
        module = torch.nn.Sequential(
            torch.nn.Linear(hidden, inner, bias=False), torch.nn.Linear(inner, hidden, bias=False)
        )
        parallelize_module(module, mesh, plan)
        tokens = torch.zeros(batch, length // ranks, hidden, requires_grad=True)
        with LiveBytes() as live:
            output = module(tokens)
            assert live.now >= whole + split + whole // ranks
            assert live.peak - live.now >= 2 * whole
        # waits for what was not waited for
        output.sum()

"""A plan's settings on a model of one process, and what no part of torch does here."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

from portagpu.train.parallel.data import apply
from portagpu.train.planning import Recipe

pytestmark = pytest.mark.torch

RECIPE = Recipe(precision="fp32", sharding="ddp")


def mesh(**sizes: int) -> Any:
    """A mesh of which only sizes are asked; one of 1 in every other dimension."""
    whole = {"dp": 1, "tp": 1, "pp": 1, **sizes}
    return {name: SimpleNamespace(size=lambda n=n: n) for name, n in whole.items()}


class Layer(nn.Module):
    ran = 0

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        Layer.ran += 1
        return self.inner(x).tanh()


def model() -> nn.Module:
    return nn.Sequential(Layer(), Layer())


def test_one_process_without_settings_keeps_its_model() -> None:
    given = model()
    assert apply(RECIPE, given, mesh()) is given


def test_recomputed_layers_give_the_same_gradients() -> None:
    torch.manual_seed(0)
    plain, again = model(), model()
    again.load_state_dict(plain.state_dict())
    apply(replace(RECIPE, recompute="full"), again, mesh(), layers=Layer)
    x, ran = torch.randn(3, 4), []
    for each in (plain, again):
        Layer.ran = 0
        each(x).sum().backward()
        ran.append(Layer.ran)
    assert ran == [2, 4], "each of two layers runs forward and again"
    grads = [[p.grad for p in each.parameters()] for each in (plain, again)]
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


@pytest.mark.parametrize(
    ("changes", "sizes", "words"),
    [
        ({"sharding": "zero1"}, {}, "a recipe with sharding ddp or fsdp2, not zero1"),
        ({"precision": "mixed-bf16"}, {}, "precision fp32 or autocast-bf16, not mixed-"),
        ({"offload": "optimizer"}, {}, "only FSDP2 offloads"),
        ({"offload": "parameters"}, {}, "only FSDP2 offloads"),
        ({}, {"tp": 2}, "give the tensor_plan"),
    ],
)
def test_what_torch_does_not_do_is_refused(
    changes: dict[str, Any], sizes: dict[str, int], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        apply(replace(RECIPE, **changes), model(), mesh(**sizes))


def test_split_tensors_need_fsdp2_and_names_of_modules() -> None:
    plan: Any = {"0.inner": object()}
    with pytest.raises(ValueError, match="DDP does not take split tensors"):
        apply(RECIPE, model(), mesh(tp=2, dp=2), tensor_plan=plan)
    with pytest.raises(ValueError, match=r"the model has no module '\*\.wq'"):
        apply(RECIPE, model(), mesh(tp=2), tensor_plan={"*.wq": object()})  # type: ignore[dict-item]

"""Recomputation computes again what its kind says, and changes no gradient."""

from __future__ import annotations

from typing import Any, Final

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own convention

import portagpu as pg
from portagpu.train.planning.recipe import RECOMPUTES
from tests.support.parallel_ranks import Counted

LAYERS: Final = 3
PRODUCTS: Final = 4
"""Linear layers of each layer."""
ATTENTION: Final = "_scaled_dot_product_flash_attention_for_cpu"


class Layer(nn.Module):
    """Attention, dropout and a feed-forward part."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        self.drop = nn.Dropout(0.25)

    def forward(self, x: Any) -> Any:
        q, k, v = self.mix(x).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4)
        x = x + self.drop(
            self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        )
        return torch.tanh(x + self.down(torch.tanh(self.up(x))))


def trained(kind: str) -> tuple[dict[str, Any], dict[str, int]]:
    """Gradients by name, and how often products and attention ran forward."""
    torch.manual_seed(2)
    model = pg.parallel.recompute(nn.Sequential(*(Layer() for _ in range(LAYERS))), Layer, kind)
    inputs = torch.randn(2, 5, 16)
    counts = {}
    for name, word in (("products", "aten::addmm"), ("attention", ATTENTION)):
        model.zero_grad()
        torch.manual_seed(4)
        # inside, the repetition in backward is seen too
        with Counted(word) as seen:
            model(inputs).square().sum().backward()
        counts[name] = seen.count
    # a module that recomputes hides its own name
    return {name: each.grad for name, each in model.named_parameters()}, counts


@pytest.mark.parametrize("kind", RECOMPUTES)
def test_gradients_are_those_without(kind: str) -> None:
    found, expected = trained(kind)[0], trained("none")[0]
    plain = {name.replace("_checkpoint_wrapped_module.", ""): each for name, each in found.items()}
    assert plain.keys() == expected.keys()
    for name, each in expected.items():
        assert torch.equal(plain[name], each), name


@pytest.mark.parametrize(
    ("kind", "products", "attention"),
    [("none", 0, 0), ("selective", 0, 1), ("operators", PRODUCTS // 2, 0), ("full", PRODUCTS, 1)],
)
def test_what_is_computed_again(kind: str, products: int, attention: int) -> None:
    """Each layer runs its products and attention once, backward of attention once, and these."""
    assert trained(kind)[1] == {
        "products": LAYERS * (PRODUCTS + products),
        "attention": LAYERS * (2 + attention),
    }


def test_layers_in_a_list_recompute() -> None:
    """A list around them would be wrapped, and is never called."""
    model = nn.Module()
    model.layers = nn.ModuleList(Layer() for _ in range(2))
    pg.parallel.recompute(model)
    wrapped = [name for name, each in model.named_modules() if type(each).__name__ == "Layer"]
    assert wrapped == [f"layers.{layer}._checkpoint_wrapped_module" for layer in range(2)]


def test_a_stage_without_the_class_is_left_as_a_whole() -> None:
    """Its model has the class elsewhere; a class that no stage has is wrong on every rank."""

    class Place:
        """One rank of two in a pipeline."""

        def __init__(self, rank: int) -> None:
            self.rank = rank

        def __getitem__(self, name: str) -> Place:
            return self

        def size(self) -> int:
            return 2

        def get_local_rank(self) -> int:
            return self.rank

    for rank in range(2):
        model = nn.Sequential(Layer(), nn.Linear(16, 4))
        (part,) = pg.parallel.split(model, Place(rank))
        pg.parallel.recompute(part, Layer)
        wrapped = any("_checkpoint_wrapped_module" in name for name, _ in part.named_modules())
        assert wrapped == (rank == 0)
        with pytest.raises(ValueError, match="the model has no layer of LSTM"):
            pg.parallel.recompute(part, nn.LSTM)

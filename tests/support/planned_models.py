"""Decoders in plain torch, whose memory is estimated, tracked and measured."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - as torch's documentation calls it
from torch import nn
from torch.utils.checkpoint import checkpoint

from portagpu.train.planning import Model


class Block(nn.Module):
    """A layer as in Llama: RMSNorm, grouped queries without biases, a gated MLP."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.size = model.heads, model.kv_heads, model.head_size
        query, key = model.heads * model.head_size, model.kv_heads * model.head_size
        self.norm1, self.norm2 = nn.RMSNorm(model.hidden), nn.RMSNorm(model.hidden)
        self.q = nn.Linear(model.hidden, query, bias=False)
        self.k = nn.Linear(model.hidden, key, bias=False)
        self.v = nn.Linear(model.hidden, key, bias=False)
        self.o = nn.Linear(query, model.hidden, bias=False)
        self.gate = nn.Linear(model.hidden, model.inner, bias=False)
        self.up = nn.Linear(model.hidden, model.inner, bias=False)
        self.down = nn.Linear(model.inner, model.hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        y = self.norm1(x)
        q = self.q(y).view(batch, length, self.heads, self.size).transpose(1, 2)
        k = self.k(y).view(batch, length, self.kv_heads, self.size).transpose(1, 2)
        v = self.v(y).view(batch, length, self.kv_heads, self.size).transpose(1, 2)
        grouped = self.heads != self.kv_heads
        z = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
        x = x + self.o(z.transpose(1, 2).reshape(batch, length, -1))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    """Embedding, layers, norm and head; ``recompute`` makes each layer again in backward."""

    def __init__(self, model: Model, *, recompute: bool = False) -> None:
        super().__init__()
        self.recompute = recompute
        self.embedding = nn.Embedding(model.vocabulary, model.hidden)
        self.blocks = nn.ModuleList(Block(model) for _ in range(model.layers))
        self.norm = nn.RMSNorm(model.hidden)
        self.head = nn.Linear(model.hidden, model.vocabulary, bias=False)
        if model.tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        return self.head(self.norm(x))


def loss_of(batch: int, length: int) -> Any:
    """A step's loss, for a module."""

    def loss(module: nn.Module) -> torch.Tensor:
        tokens = torch.zeros(batch, length, dtype=torch.int64)
        logits = module(tokens)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), tokens.view(-1))

    return loss


def adamw(parameters: Any) -> torch.optim.Optimizer:
    """AdamW that steps one parameter after the other, as torch does on a CPU."""
    return torch.optim.AdamW(parameters, foreach=False)


def shard(module: Any, mesh: Any) -> None:
    """Each layer is a group, and the rest another one."""
    from torch.distributed.fsdp import fully_shard

    for block in module.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(module, mesh=mesh)


def decoder(layers: int, hidden: int, inner: int, vocabulary: int, **more: Any) -> Model:
    """A model with heads of 64."""
    heads = hidden // 64
    sizes = {"heads": heads, "kv_heads": heads, "head_size": 64} | more
    return Model(layers=layers, hidden=hidden, inner=inner, vocabulary=vocabulary, **sizes)


CASES: dict[str, tuple[Model, int, int, bool]] = {
    "deep": (decoder(8, 256, 704, 1000), 4, 256, False),
    "wide": (decoder(2, 768, 2048, 2000), 4, 256, False),
    "long": (decoder(4, 256, 704, 1000), 1, 2048, False),
    "large vocabulary": (decoder(2, 256, 704, 32000), 2, 256, False),
    "grouped queries": (decoder(4, 512, 1408, 1000, kv_heads=2), 4, 256, False),
    "tied": (decoder(2, 512, 1408, 8000, tied=True), 2, 256, False),
    "mostly parameters": (decoder(4, 768, 2048, 1000), 1, 32, False),
    "recomputed": (decoder(8, 256, 704, 1000), 4, 512, True),
}
"""Name -> model, sequences, tokens of each, and whether layers are recomputed."""

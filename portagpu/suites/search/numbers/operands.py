"""The operands of calls that move elements: rows, positions and masks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import random

    import torch

    from portagpu.devices.contract import Backend

Rows = list[list[Any]]


@dataclass(slots=True)
class Given:
    """The operands of one call, on the device and as rows of Python's numbers."""

    gpu: Backend
    x: torch.Tensor
    rows: Rows
    other: torch.Tensor
    others: Rows
    dtype: str
    dim: int
    seed: int
    chance: random.Random

    @property
    def m(self) -> int:
        return len(self.rows)

    @property
    def n(self) -> int:
        return int(self.x.shape[1])

    @property
    def length(self) -> int:
        """The elements along ``dim``."""
        return self.m if self.dim == 0 else self.n

    def indices(self, count: int, *, different: bool = False, negative: bool = False) -> list[int]:
        """Positions along ``dim``."""
        if different:
            return self.chance.sample(range(self.length), min(count, self.length))
        found = [self.chance.randrange(self.length) for _ in range(count if self.length else 0)]
        return [each - self.length if negative and each % 2 else each for each in found]

    def tensor(self, values: Any, dtype: str = "int64") -> torch.Tensor:
        """A tensor on the device."""
        import torch

        return torch.tensor(values, dtype=getattr(torch, dtype)).to(self.gpu.device)

    def whole(self, rows: Rows) -> torch.Tensor:
        """Indices or masks of the operand's shape."""
        dtype = "bool" if rows and rows[0] and isinstance(rows[0][0], bool) else "int64"
        return self.tensor(rows, dtype).reshape(self.m, self.n)

    def mask(self) -> Rows:
        """A mask of the operand's shape."""
        share = (0.5, 0.1, 0.9, 1.0, 0.0)[self.seed % 5]
        return [[self.chance.random() < share for _ in range(self.n)] for _ in range(self.m)]

    def every_index(self) -> Rows:
        """A position along ``dim`` for each element."""
        return [[self.chance.randrange(self.length) for _ in range(self.n)] for _ in range(self.m)]

    def permutations(self) -> Rows:
        """Positions along ``dim``, all different in each line."""
        if self.dim == 1:
            return [self.chance.sample(range(self.n), self.n) for _ in range(self.m)]
        return turned([self.chance.sample(range(self.m), self.m) for _ in range(self.n)], self.m)


def turned(rows: Rows, m: int) -> Rows:
    """The transposed rows, m of them."""
    return [list(each) for each in zip(*rows, strict=True)] if rows else [[] for _ in range(m)]


def copied(rows: Rows) -> Rows:
    return [list(each) for each in rows]


def lines_of(rows: Rows, dim: int, n: int) -> Rows:
    return copied(rows) if dim == 0 else turned(rows, n)


def from_lines(lines: Rows, dim: int, m: int) -> Rows:
    return lines if dim == 0 else turned(lines, m)

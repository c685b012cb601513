"""What share of the dense peak published trainings reach, and how long a step is by it.

The share is of all time, collectives and bubbles too: model operations a second over the peak
(MFU; Chowdhery et al. 2022, arXiv:2204.02311, appendix B). Recomputation counts as time, not as
operations. The runs are ``matrix/training/published.toml``, each with its source.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

from portagpu.base.paths import matrix_dir
from portagpu.base.units import count, number

if TYPE_CHECKING:
    from portagpu.facts.targets import Target
    from portagpu.train.planning.model import Model
    from portagpu.train.planning.recipe import Layout, Recipe

_NEAR: Final = 4.0
"""Models with at most this many times more or fewer parameters are of the same size."""
_ENOUGH: Final = 3
"""Runs of the same size that make an interval; with fewer, all of the product do."""
WIDER: Final = 1.35
"""How far another source's runs may lie outside of the shares of all others: with this factor nine
of ten runs do not (the tests count them)."""


@dataclass(frozen=True, slots=True)
class PublishedRun:
    """A published training: ``parameters`` are those that multiply a token, ``width`` is heads x
    head size, ``tokens_s`` of one GPU."""

    target: str
    precision: str
    source: str
    name: str
    parameters: int
    layers: int
    width: int
    sequence: int
    gpus: int
    tokens_s: float

    def share(self, peak: float) -> float:
        """Of a dense peak in operations a second."""
        operations = 6 * self.parameters + 12 * self.layers * self.width * self.sequence
        return self.tokens_s * operations / peak


@dataclass(frozen=True, slots=True)
class Utilisation:
    """The smallest and largest share of the peak of the ``runs``, and their sources."""

    low: float
    high: float
    runs: int
    smallest: int
    largest: int
    sources: tuple[str, ...]

    def __str__(self) -> str:
        sizes = f"{number(self.smallest / 1e9, 2)} to {number(self.largest / 1e9, 2)} billion"
        runs = count(self.runs, "published run")
        return (
            f"{self.low:.0%} to {self.high:.0%} of the dense peak: {runs} of {sizes} active "
            "parameters"
        )


@cache
def published_runs() -> tuple[PublishedRun, ...]:
    """All of ``matrix/training/published.toml``."""
    text = (matrix_dir() / "training" / "published.toml").read_text("utf-8")
    return tuple(
        PublishedRun(each["target"], each["precision"], each["where"], *run)
        for each in tomllib.loads(text)["published"]
        for run in each["runs"]
    )


def published_utilisation(
    target: Target, matrix: str, parameters: int, without: str | None = None
) -> Utilisation | None:
    """The share that published runs reach on a product.

    :param target: the product.
    :param matrix: the type of products of matrices, such as "bf16".
    :param parameters: those of the model that multiply a token; runs of about its size count, or
        all of the product where there are too few.
    :param without: a source that is left out, to see what the others say of it.
    :returns: None where no run on the product is published, or its peak is not known.
    """
    peak = target.peak(matrix)
    runs = [
        each
        for each in published_runs()
        if (each.target, each.precision) == (target.id, matrix) and each.source != without
    ]
    near = [each for each in runs if 1 / _NEAR <= each.parameters / parameters <= _NEAR]
    runs = near if len(near) >= _ENOUGH else runs
    if peak is None or not runs:
        return None
    shares = [each.share(peak.value * 1e12) for each in runs]
    sizes = [each.parameters for each in runs]
    sources = tuple(dict.fromkeys(each.source for each in runs))
    return Utilisation(min(shares), max(shares), len(runs), min(sizes), max(sizes), sources)


def seconds_between(
    found: Utilisation, model: Model, recipe: Recipe, layout: Layout, target: Target, bound: float
) -> tuple[float, float] | None:
    """(shortest, longest) step in seconds, with the share of published runs and ``WIDER``.

    :param found: the share.
    :param model: the sizes of the model.
    :param recipe: how it is trained; frozen weights have no published share.
    :param layout: the parallel layout, which says how many tokens a step has.
    :param target: the product.
    :param bound: seconds that no step is shorter than.
    :returns: None for frozen weights, and where the peak is not known.
    """
    peak = target.peak(recipe.numbers.matrix)
    if peak is None or recipe.frozen or not recipe.training:
        return None
    tokens = recipe.micro_batch * recipe.sequence * layout.micro_batches * layout.dp
    width = model.heads * (model.head_size + model.value_size) / 2
    span = 12 * model.layers * width * model.span(recipe.sequence)
    seconds = tokens * (6 * model.active_parameters + span) / (peak.value * 1e12 * layout.world)
    shortest = max(seconds / min(found.high * WIDER, 1.0), bound)
    return shortest, max(seconds / found.low * WIDER, shortest)

"""What each stage of a pipeline holds: layers, embedding and head, and activations in flight.

Layers that do not divide are spread as torchtitan does (``_generate_llm_fqn_per_model_part``): the
embedding and the head count as a layer each, and the first parts take what is left over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from portagpu.train.planning.model import Model
    from portagpu.train.planning.recipe import Layout


@dataclass(frozen=True, slots=True)
class Stage:
    """One rank of a pipeline: its layers in all chunks, and what is in flight.

    ``in_flight`` counts layers times micro-batches whose activations it holds at once. The first
    stage has the embedding, and the last one the head.
    """

    index: int
    layers: int
    in_flight: float
    first: bool
    last: bool


def layers_of_parts(layers: int, parts: int) -> tuple[int, ...]:
    """Layers of each part of a model that is cut into ``parts``; all equal if they divide."""
    if layers % parts == 0:
        return (layers // parts,) * parts
    each, more = divmod(layers + 2, parts)
    found = [each + (index < more) for index in range(parts)]
    found[0] -= 1
    found[-1] -= 1
    return tuple(found)


def stages(model: Model, layout: Layout) -> tuple[Stage, ...]:
    """All stages. Chunk c of stage r is part c p + r of the model.

    In 1F1B stage r holds p - r micro-batches at once. Interleaved, it starts with (v - 1) p +
    2 (p - r) - 1 chunks, which is 1 + (p - 1) / (p v) of all layers on the first one
    (arXiv:2205.05198, section 4.2.3). GPipe holds all m micro-batches, and nothing holds more.
    """
    parts = layers_of_parts(model.layers, layout.pp * layout.chunks)
    found = []
    for index in range(layout.pp):
        layers = sum(parts[index :: layout.pp])
        held: float = layout.micro_batches
        if layout.schedule == "1f1b":
            held = min(held, layout.pp - index)
        elif layout.schedule == "interleaved":
            started = (layout.chunks - 1) * layout.pp + 2 * (layout.pp - index) - 1
            held = min(held, started / layout.chunks)
        found.append(Stage(index, layers, layers * held, index == 0, index == layout.pp - 1))
    return tuple(found)

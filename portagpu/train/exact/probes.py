"""Every probe, in the order in which a screen runs them, and the digests that any device of any
vendor has to give: ``matrix/screen/digests.toml``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

from portagpu.base.documents import matching, object_of, read_toml, values_of, whole
from portagpu.base.paths import matrix_dir
from portagpu.train.exact import collectives, integers, layers, memory, products, repeated, vectors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from portagpu.train.exact.probe import Probe


PROBES: Final[tuple[Probe, ...]] = (
    *products.PROBES,
    *layers.CONVOLUTION_PROBES,
    *layers.ATTENTION_PROBES,
    *vectors.VECTOR_PROBES,
    *integers.PROBES,
    *vectors.REDUCTION_PROBES,
    *memory.COPY_PROBES,
    *memory.MEMORY_PROBES,
    *collectives.PROBES,
    *repeated.PROBES,
)


SCHEMA: Final = "portagpu.digests/1"
AREAS: Final = ("products", "convolution", "attention", "vectors", "integers", "reductions")
"""Areas of probes that have published digests: what one device computes, and exactly."""
_FILE: Final = object_of(
    {"seed": whole, "sha256": values_of(matching(r"[0-9a-f]{64}", "64 hexadecimal digits"))},
    others=True,
)


@dataclass(frozen=True, slots=True)
class Published:
    """Digests of the results of each probe's first run, with ``scale`` 1.

    :param seed: Of the operands.
    :param sha256: By the name of the probe: ``judge.digest`` of its result.
    """

    seed: int
    sha256: Mapping[str, str]


@cache
def published_digests() -> Published:
    """The digests of this installation; raises PortagpuError where its file is missing or wrong."""
    found = read_toml(matrix_dir() / "screen" / "digests.toml", SCHEMA, _FILE)
    return Published(found["seed"], found["sha256"])

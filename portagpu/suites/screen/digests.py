"""The published digests: what a probe gives for one seed on every device of every vendor."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Final

from portagpu.base.documents import matching, object_of, read_toml, values_of, whole
from portagpu.base.paths import matrix_dir

if TYPE_CHECKING:
    from collections.abc import Mapping

SCHEMA: Final = "portagpu.digests/1"
_SHA256: Final = matching(r"[0-9a-f]{64}", "a SHA-256 in 64 hexadecimal digits")
_FILE: Final = object_of({"seed": whole, "digest": values_of(_SHA256)}, others=True)


@dataclass(frozen=True, slots=True)
class Published:
    """The seed of all digests, and the digest of each probe by its name."""

    seed: int = 0
    digests: Mapping[str, str] = field(default_factory=dict)


@cache
def published() -> Published:
    """The digests of the hardware matrix; none where it has no file of them.

    Raises DocumentError for a file that has another form.
    """
    path = matrix_dir() / "screen" / "digests.toml"
    if not path.exists():
        return Published()
    found = read_toml(path, SCHEMA, _FILE)
    return Published(found["seed"], found["digest"])


def published_digest(probe: str) -> str | None:
    """The published digest of a probe; None where there is none."""
    return published().digests.get(probe)

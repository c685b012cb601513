"""The published digests: what each exact probe gives for one seed, on every device."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.documents import matching, object_of, read_toml, values_of, whole
from portagpu.base.paths import matrix_dir

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SCHEMA: Final = "portagpu.digests/1"
_SHA256: Final = matching("[0-9a-f]{64}", "a SHA-256 in 64 hexadecimal digits")
_FILE: Final = object_of({"seed": whole, "digests": values_of(_SHA256)})


@dataclass(frozen=True, slots=True)
class Digests:
    """What ``judge.digest`` gives for the results of probes.

    :param seed: Of the draws; the scale is 1.
    :param by_probe: SHA-256 by the name of a probe. Those of probes that are not exact, or have no
        fixed size, are absent.
    """

    seed: int
    by_probe: Mapping[str, str]


def read_digests(path: Path) -> Digests:
    """The digests of a file; raises DocumentError that names the file and the key."""
    found: dict[str, Any] = read_toml(path, SCHEMA, _FILE)
    return Digests(found["seed"], found["digests"])


def digests_path() -> Path:
    """Where the published digests are, in the wheel or in the checkout."""
    return matrix_dir() / "screen" / "digests.toml"


@cache
def published() -> Digests:
    """The digests that came with this installation."""
    return read_digests(digests_path())

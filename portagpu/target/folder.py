"""One folder of targets: ``<id>.toml``, ``families/<arch>.toml`` and ``sources.toml``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from portagpu.errors import TargetError
from portagpu.target.read import Catalogue, read_family, read_sources, read_target
from portagpu.target.table import read_text

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from portagpu.target.model import Match, Target

_SOURCES: Final = "sources.toml"


def read_folder(path: Path, base: Catalogue | None = None) -> Catalogue:
    """What ``path`` adds to ``base``, checked, as a catalogue that holds both.

    Files of the folder may refer to the families and sources of ``base``. Raises TargetError at the
    first thing that is wrong, and leaves ``base`` as it was.
    """
    base = base or Catalogue()
    found = Catalogue(dict(base.sources), dict(base.families), dict(base.targets))
    if (path / _SOURCES).is_file():
        for name, source in read_sources(_SOURCES, read_text(path / _SOURCES)).items():
            _check_unique(_SOURCES, "sources", name, found.sources)
            found.sources[name] = source
    for file in sorted((path / "families").glob("*.toml")):
        family = read_family(file.name, read_text(file), found, file.stem)
        _check_unique(file.name, "id", family.id, found.families)
        found.families[family.id] = family
    for file in sorted(path.glob("*.toml")):
        if file.name != _SOURCES:
            target = read_target(file.name, read_text(file), found, file.stem)
            _check_unique(file.name, "id", target.id, found.targets)
            _check_unambiguous(file.name, target, found.targets.values())
            found.targets[target.id] = target
    return found


def _check_unique(file: str, key: str, name: str, taken: Iterable[str]) -> None:
    if name in taken:
        raise TargetError(f"{file}: {key}: {name!r} is defined already (rule duplicate)")


def _check_unambiguous(file: str, new: Target, others: Iterable[Target]) -> None:
    """Raise TargetError where a device can be two products."""
    for other in others:
        if new.arch == other.arch and _overlaps(new.match, other.match):
            raise TargetError(
                f"{file}: match.names: a device can be {new.id} and {other.id}; tell them apart by "
                "memory_bytes or unit_count (rule ambiguous-match)"
            )
        shared = sorted(new.match.pci_ids & other.match.pci_ids)
        if shared and new.vendor == other.vendor:
            raise TargetError(
                f"{file}: match.pci_ids: {shared[0]} is of {new.id} and {other.id} "
                "(rule ambiguous-match)"
            )


def _overlaps(one: Match, two: Match) -> bool:
    if not (one.names & two.names or (one.any_product and two.any_product)):
        return False
    ranges = ((one.memory_bytes, two.memory_bytes), (one.unit_count, two.unit_count))
    return all(
        first is None or second is None or (first[0] <= second[1] and second[0] <= first[1])
        for first, second in ranges
    )

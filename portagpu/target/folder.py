"""One folder of targets, whose files are read when they are asked for, and once.

A folder has ``<id>.toml`` for each target, ``families/<arch>.toml`` and ``sources.toml``. To tell
what one device is takes its family and the products of that family; reading every file takes
several times as long, and is for those who ask for everything.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final

from portagpu.errors import TargetError
from portagpu.target.read import Catalogue, read_family, read_sources, read_target
from portagpu.target.table import read_text

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from portagpu.target.model import Match, Target
    from portagpu.target.read import Family

_SOURCES: Final = "sources.toml"


class Folder:
    """The targets of ``path``, which may refer to the families and sources of ``base``.

    ``base`` stays as it is. Threads may share a folder: each file has one value, whoever reads it.
    Every method raises TargetError at the first thing that is wrong in
    what it had to read.
    """

    def __init__(self, path: Path, base: Catalogue | None = None) -> None:
        base = base or Catalogue()
        self.path = path
        self._base = base
        self._families = dict(base.families)
        self._targets = dict(base.targets)
        self._texts: dict[Path, str] = {}

    @cached_property
    def _known(self) -> Catalogue:
        """What files of this folder may refer to; it grows while they are read."""
        sources = dict(self._base.sources)
        path = self.path / _SOURCES
        if path.is_file():
            for name, source in read_sources(path.name, read_text(path)).items():
                _once(path.name, "sources", name, sources)
                sources[name] = source
        return Catalogue(sources, self._families, self._targets)

    @cached_property
    def _family_paths(self) -> dict[str, Path]:
        return {path.stem: path for path in sorted((self.path / "families").glob("*.toml"))}

    @cached_property
    def _target_paths(self) -> dict[str, Path]:
        return {
            path.stem: path for path in sorted(self.path.glob("*.toml")) if path.name != _SOURCES
        }

    def _text(self, path: Path) -> str:
        if path not in self._texts:
            self._texts[path] = read_text(path)
        return self._texts[path]

    def _head(self, path: Path) -> str:
        """The keys before the first table, as text: enough to rule a file out."""
        return self._text(path).partition("\n[")[0]

    @property
    def family_ids(self) -> tuple[str, ...]:
        """The id of every family here, which no file has to be read for."""
        return tuple(self._family_paths)

    def family(self, vendor: str | None, arch: str) -> Family | None:
        """The family of that name or alias, of any vendor where ``vendor`` is None, or None."""
        if not arch:
            return None
        named = self._family_paths.get(arch)
        paths = (
            [named] if named else [p for p in self._family_paths.values() if arch in self._head(p)]
        )
        for family in map(self._family, paths):
            if vendor in (None, family.vendor) and arch in (family.id, *family.aliases):
                return family
        return None

    def _family(self, path: Path) -> Family:
        if path.stem not in self._families or path.stem in self._base.families:
            family = read_family(path.name, self._text(path), self._known, path.stem)
            _once(path.name, "id", family.id, self._base.families)
            self._families.setdefault(family.id, family)
        return self._families[path.stem]

    def products(self, family: Family) -> list[Target]:
        """The targets of ``family``, in the order of their ids."""
        paths = [path for path in self._target_paths.values() if family.id in self._head(path)]
        return [each for each in map(self._target, paths) if each.arch == family.arch]

    def target(self, target_id: str) -> Target | None:
        """The target of that id, or None when there is no such file."""
        path = self._target_paths.get(target_id)
        return None if path is None else self._target(path)

    def _target(self, path: Path) -> Target:
        if path.stem not in self._targets or path.stem in self._base.targets:
            for stem, family in self._family_paths.items():
                if stem in self._head(path):
                    self._family(family)
            target = read_target(path.name, self._text(path), self._known, path.stem)
            _once(path.name, "id", target.id, self._base.targets)
            _unambiguous(path.name, target, tuple(self._targets.values()))
            self._targets.setdefault(target.id, target)
        return self._targets[path.stem]

    def with_pci_id(self, pci_id: str) -> list[Target]:
        """The targets of any vendor that have this PCI id ("74a1", "744c:c8")."""
        quoted = f'"{pci_id}"'
        paths = [path for path in self._target_paths.values() if quoted in self._text(path)]
        return [each for each in map(self._target, paths) if pci_id in each.match.pci_ids]

    def everything(self) -> Catalogue:
        """What this folder adds to its base, as a catalogue that holds both."""
        for path in self._family_paths.values():
            self._family(path)
        for path in self._target_paths.values():
            self._target(path)
        return self._known


def read_folder(path: Path, base: Catalogue | None = None) -> Catalogue:
    """What ``path`` adds to ``base``, checked, as a catalogue that holds both.

    Raises TargetError at the first thing that is wrong, and leaves ``base`` as it was.
    """
    return Folder(path, base).everything()


def _once(file: str, key: str, name: str, taken: Iterable[str]) -> None:
    if name in taken:
        raise TargetError(f"{file}: {key}: {name!r} is defined already (rule duplicate)")


def _unambiguous(file: str, new: Target, others: Iterable[Target]) -> None:
    """No device may be two products."""
    for other in others:
        if new.id != other.id and new.arch == other.arch and _overlap(new.match, other.match):
            raise TargetError(
                f"{file}: match.names: a device can be {new.id} and {other.id}; tell them apart by "
                "memory_bytes or unit_count (rule ambiguous-match)"
            )
        shared = sorted(new.match.pci_ids & other.match.pci_ids)
        if shared and new.id != other.id and new.vendor == other.vendor:
            raise TargetError(
                f"{file}: match.pci_ids: {shared[0]} is of {new.id} and {other.id} "
                "(rule ambiguous-match)"
            )


def _overlap(one: Match, two: Match) -> bool:
    if not (one.names & two.names or (one.any_product and two.any_product)):
        return False
    ranges = ((one.memory_bytes, two.memory_bytes), (one.unit_count, two.unit_count))
    return all(
        first is None or second is None or (first[0] <= second[1] and second[0] <= first[1])
        for first, second in ranges
    )

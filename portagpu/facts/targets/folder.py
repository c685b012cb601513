"""One folder of targets: ``<id>.toml``, ``families/<arch>.toml`` and ``sources.toml``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

from portagpu.base.errors import TargetError
from portagpu.facts.targets.read import (
    Catalogue,
    read_family,
    read_family_names,
    read_family_of,
    read_match,
    read_sources,
    read_target,
    split_sources,
)
from portagpu.facts.targets.toml import read_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from importlib.resources.abc import Traversable
    from pathlib import Path

    from portagpu.facts.targets.facts import Source
    from portagpu.facts.targets.model import Match, Target

_V = TypeVar("_V")
_SUFFIX: Final = ".toml"
_SOURCES: Final = "sources.toml"


class MadeWhenUsed(Mapping[str, _V]):
    """Values by key, each made once, when it is first asked for."""

    def __init__(self, keys: Iterable[str], make: Callable[[str], _V]) -> None:
        self._keys = dict.fromkeys(sorted(keys))
        self._make = make
        self._made: dict[str, _V] = {}

    def __getitem__(self, key: str) -> _V:
        if key not in self._made and key in self._keys:
            # two threads that make it both get the first one's
            self._made.setdefault(key, self._make(key))
        return self._made[key]

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)


@dataclass(frozen=True, slots=True)
class OpenFolder(Catalogue):
    """A folder whose files are read one by one, when they are first asked for."""

    names_of_families: Mapping[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)
    families_of: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    matches: Mapping[str, Match] = field(default_factory=dict)
    problems: dict[str, None] = field(default_factory=dict)
    """What was wrong in files that were asked for, each in one line."""

    def family_names(self, family: str) -> tuple[str, tuple[str, ...]]:
        return self.names_of_families[family]

    def family_of(self, target: str) -> tuple[str, str]:
        return self.families_of[target]

    def match(self, target: str) -> Match:
        return self.matches[target]


def open_folder(path: Traversable) -> OpenFolder:
    """The catalogue of a folder that was checked when it was built; nothing else is read for it.

    ``path`` may be in a zipped package. Each file is checked when it is read, against those that it
    refers to. What is between files is for :func:`read_folder`, and that ids are their files' names
    is taken for granted. Asking for something in a wrong file raises TargetError.
    """
    problems: dict[str, None] = {}

    def texts(folder: Traversable) -> Mapping[str, str]:
        names = [each.name for each in folder.iterdir() if each.name.endswith(_SUFFIX)]
        keys = [name.removesuffix(_SUFFIX) for name in names if name != _SOURCES]
        return MadeWhenUsed(keys, lambda key: read_text(folder / f"{key}{_SUFFIX}"))

    def each_file(
        files: Mapping[str, str], read: Callable[[str, str, str], _V]
    ) -> MadeWhenUsed[_V]:
        def make(key: str) -> _V:
            try:
                return read(f"{key}{_SUFFIX}", files[key], key)
            except TargetError as error:
                problems[str(error)] = None
                raise

        return MadeWhenUsed(files, make)

    families, targets = texts(path / "families"), texts(path)
    sources = _open_sources(path / _SOURCES)
    catalogue = Catalogue(
        sources,
        each_file(families, lambda file, text, stem: read_family(file, text, catalogue, stem)),
        each_file(targets, lambda file, text, stem: read_target(file, text, catalogue, stem)),
    )
    return OpenFolder(
        catalogue.sources,
        catalogue.families,
        catalogue.targets,
        each_file(families, lambda file, text, _: read_family_names(file, text)),
        each_file(targets, lambda file, text, _: read_family_of(file, text)),
        each_file(targets, lambda file, text, _: read_match(file, text, sources)),
        problems,
    )


def _open_sources(path: Traversable) -> Mapping[str, Source]:
    """The sources of a file, each read when first asked for if their tables can be separated."""
    text = read_text(path)
    parts = split_sources(_SOURCES, text)
    if not parts:
        return read_sources(_SOURCES, text)

    def make(key: str) -> Source:
        try:
            return read_sources(_SOURCES, parts[key])[key]
        except TargetError:
            # the whole file's error has the place in the file
            return read_sources(_SOURCES, text)[key]

    return MadeWhenUsed(parts, make)


def read_folder(
    path: Path, base: Catalogue | None = None, products: Iterable[Path] | None = None
) -> Catalogue:
    """What ``path`` adds to ``base``, checked, as a catalogue that holds both.

    Files of the folder may refer to the families and sources of ``base``. Raises TargetError at the
    first thing that is wrong, and leaves ``base`` as it was.

    :param products: the files of products that are read; by default all of the folder's.
    """
    base = base or Catalogue()
    sources, families, targets = dict(base.sources), dict(base.families), dict(base.targets)
    found = Catalogue(sources, families, targets)
    if (path / _SOURCES).is_file():
        for name, source in read_sources(_SOURCES, read_text(path / _SOURCES)).items():
            _check_unique(_SOURCES, "sources", name, sources)
            sources[name] = source
    for file in sorted((path / "families").glob("*.toml")):
        family = read_family(file.name, read_text(file), found, file.stem)
        _check_unique(file.name, "id", family.id, families)
        families[family.id] = family
    for file in sorted(path.glob("*.toml") if products is None else products):
        if file.name != _SOURCES:
            target = read_target(file.name, read_text(file), found, file.stem)
            _check_unique(file.name, "id", target.id, targets)
            check_unambiguous(file.name, target, targets.values())
            targets[target.id] = target
    return found


def _check_unique(file: str, key: str, name: str, taken: Iterable[str]) -> None:
    if name in taken:
        raise TargetError(f"{file}: {key}: {name!r} is defined already (rule duplicate)")


def check_unambiguous(file: str, new: Target, others: Iterable[Target]) -> None:
    """Raise TargetError where a device can be two products."""
    for other in others:
        if new.arch == other.arch and _overlaps(new.match, other.match):
            raise TargetError(
                f"{file}: match.names: a device can be {new.id} and {other.id}; distinguish by "
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

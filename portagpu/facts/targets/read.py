"""Targets, families and sources from the TOML of one folder: ``<id>.toml``,
``families/<arch>.toml`` and ``sources.toml``. Every error names file, key and rule.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from portagpu.base.documents import each, flag, matching, object_of, values_of, version, wrong
from portagpu.base.errors import TargetError
from portagpu.facts.arch import Arch
from portagpu.facts.capability import Capability
from portagpu.facts.targets.expect import read_expectation
from portagpu.facts.targets.facts import Source, names, read_facts, source_ids
from portagpu.facts.targets.model import ExpectedFailure, Match, Scope, Target, normalise
from portagpu.facts.targets.toml import (
    day,
    errors_in,
    line,
    load_head,
    load_table,
    load_toml,
    read_text,
    span,
    split_tables,
    table,
    texts_of,
    unknown,
    word_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from importlib.resources.abc import Traversable
    from pathlib import Path

    from portagpu.facts.targets.model import Fact


TARGET_SCHEMA: Final = "portagpu.target/1"
FAMILY_SCHEMA: Final = "portagpu.family/1"
SOURCES_SCHEMA: Final = "portagpu.sources/1"

_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")
_INDENTED: Final = re.compile(r"(?m)^[ \t]+\[")

_id: Final = matching(
    r"[a-z0-9]+([._-]+[a-z0-9]+)*", "lower-case letters and digits joined by - . _", "id"
)
_claims: Final = texts_of(word_of(map(str, Capability), "capability-id"))
_pci_ids: Final = texts_of(
    matching(r"[0-9a-f]{4}(:[0-9a-f]{2})?", "like 74a1, or 744c:c8 with revision", "pci-id")
)
_MATCH_KEYS: Final = {
    "names": names,
    "shared_names": names,
    "any_product": flag,
    "memory_bytes": span,
    "unit_count": span,
    "source": texts_of(),
    "pci_ids": _pci_ids,
    "pci_source": texts_of(),
}
_MATCH: Final = object_of(_MATCH_KEYS, frozenset(_MATCH_KEYS))
FAILURE: Final = object_of(
    {
        "case_id_pattern": line,
        "reason": line,
        "url": matching(r"https://\S+", "an https address", "url"),
        "expires": day,
    }
)
_FAMILY_HEAD: Final = {"vendor": line, "aliases": names}
_FAMILY: Final = object_of(
    {
        "schema": version(FAMILY_SCHEMA),
        "id": _id,
        **_FAMILY_HEAD,
        "claims": _claims,
        "facts": table,
    },
    frozenset({"aliases", "claims", "facts"}),
)
_FAMILY_TOP: Final = object_of(_FAMILY_HEAD, frozenset({"aliases"}), others=True)
_TARGET_HEAD: Final = {"vendor": line, "family": line}
_TARGET_TOP: Final = object_of(_TARGET_HEAD, others=True)
_OF_TARGET: Final = {
    "product": line,
    "claims": _claims,
    "match": _MATCH,
    "facts": table,
    "expectations": each(table),
    "expected_failures": each(FAILURE),
}
_TARGET: Final = object_of(
    {"schema": version(TARGET_SCHEMA), "id": _id, **_TARGET_HEAD, **_OF_TARGET},
    frozenset(_OF_TARGET),
)
_OF_SOURCE: Final = {"version": line, "dated": day, "retrieved": day, "note": line}
_SOURCE: Final = object_of({"kind": line, "where": line, **_OF_SOURCE}, frozenset(_OF_SOURCE))
_SOURCES: Final = object_of(
    {"schema": version(SOURCES_SCHEMA), "sources": values_of(_SOURCE)}, frozenset({"sources"})
)


@dataclass(frozen=True, slots=True, eq=False)
class Family:
    """The facts and claims of one architecture's members. Made once, and compared by identity."""

    id: str
    vendor: str
    aliases: tuple[str, ...]
    claims: tuple[str, ...]
    facts: Mapping[str, Fact]

    @property
    def arch(self) -> Arch:
        """The architecture, with the warp size of the facts."""
        size = self.facts["exec.wave_size_default"].value
        return Arch(self.vendor, self.id, int(size) if isinstance(size, int) else 1)

    def target(self) -> Target:
        """The target of a member whose product is unknown."""
        return Target(
            id=f"{self.id} family",
            vendor=self.vendor,
            product=None,
            arch=self.arch,
            scope=Scope.FAMILY,
            facts=self.facts,
            claims=self.claims,
        )


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The sources, families and targets that files of targets may refer to, each by id.

    A catalogue may read a file when it is first asked for. Its methods ask for no more than a part.
    """

    sources: Mapping[str, Source] = field(default_factory=dict)
    families: Mapping[str, Family] = field(default_factory=dict)
    targets: Mapping[str, Target] = field(default_factory=dict)

    def family_names(self, family: str) -> tuple[str, tuple[str, ...]]:
        """The vendor of a family, and its aliases."""
        found = self.families[family]
        return found.vendor, found.aliases

    def family_of(self, target: str) -> tuple[str, str]:
        """The vendor and the family of a target."""
        arch = self.targets[target].arch
        return arch.vendor, arch.name

    def match(self, target: str) -> Match:
        """How a device is recognised as the target."""
        return self.targets[target].match


def _check_name(identity: str, stem: str | None) -> None:
    if stem is not None and identity != stem:
        words = f"{identity!r} must be the file's name, {stem!r}"
        raise wrong("id", words, "id-is-file-name")


def _match(found: Mapping[str, Any], sources: Mapping[str, Source]) -> Match:
    written = found.get("names", ())
    given = frozenset(map(normalise, written))
    shared = frozenset(map(normalise, found.get("shared_names", ())))
    any_product = found.get("any_product", False)
    if not shared <= given:
        raise wrong("match.shared_names", "every one of them has to be among names", "match")
    if "" in given:
        raise wrong("match.names", "holds a name without letters or digits", "null")
    if any_product == bool(given):
        raise wrong("match.names", "give either names or any_product = true", "match")
    pci_source = source_ids(found, sources, "match", "pci_source")
    if bool(found.get("pci_ids")) != bool(pci_source):
        raise wrong("match.pci_source", "pci_ids and their source stand together", "pci-id")
    return Match(
        names=given,
        shared=shared,
        shared_name=next(iter(found.get("shared_names", ())), None),
        name=written[0] if written else None,
        any_product=any_product,
        memory_bytes=_span(found, "memory_bytes"),
        unit_count=_span(found, "unit_count"),
        source=source_ids(found, sources, "match"),
        pci_ids=frozenset(found.get("pci_ids", ())),
        pci_source=pci_source,
    )


def _span(found: Mapping[str, Any], key: str) -> tuple[int, int] | None:
    return tuple(found[key]) if key in found else None


def read_match(file: str, text: str, sources: Mapping[str, Source]) -> Match:
    """How a device is recognised as the product of a target's file, from that table alone."""
    with errors_in(file):
        return _match(_MATCH.read(load_table(text, "match"), "match"), sources)


def read_family_of(file: str, text: str) -> tuple[str, str]:
    """Vendor and family of a target's file, from its beginning."""
    with errors_in(file):
        found = _TARGET_TOP.read(load_head(text), "")
        return found["vendor"], found["family"]


def read_family_names(file: str, text: str) -> tuple[str, tuple[str, ...]]:
    """Vendor and aliases of a family's file, from its beginning."""
    with errors_in(file):
        found = _FAMILY_TOP.read(load_head(text), "")
        return found["vendor"], found.get("aliases", ())


def split_sources(file: str, text: str) -> dict[str, str]:
    """A document for each source of a ``sources.toml``, by id; empty where it cannot be split.

    It can where each header begins a line and is written once.
    """
    tables = split_tables(text) or {}
    head = tables.pop("", "")
    names = [name.removeprefix("sources.") for name in tables]
    plain = list(tables) == [f"sources.{name}" for name in names]
    if not plain or text.count("\n[") != len(names) or _INDENTED.search(text):
        return {}
    if not all(map(_BARE.fullmatch, names)) or "sources" in load_toml(head):
        return {}
    return {name: head + part for name, part in zip(names, tables.values(), strict=True)}


def read_sources(file: str, text: str) -> dict[str, Source]:
    """The sources that a ``sources.toml`` defines."""
    with errors_in(file):
        found = _SOURCES.read(load_toml(text), "")
        return {name: Source(name, **each) for name, each in found.get("sources", {}).items()}


def read_family(file: str, text: str, catalogue: Catalogue, stem: str | None = None) -> Family:
    """The family that ``text`` describes, with sources of ``catalogue``."""
    with errors_in(file):
        found = _FAMILY.read(load_toml(text), "")
        _check_name(found["id"], stem)
        facts = read_facts(found.get("facts", {}), Scope.FAMILY, catalogue.sources, {})
        key = "exec.wave_size_default"
        if key not in facts:
            raise wrong(f"facts.{key}", "is missing: an architecture has a warp size", "required")
        aliases, claims = found.get("aliases", ()), found.get("claims", ())
        return Family(found["id"], found["vendor"], aliases, claims, facts)


def read_target(file: str, text: str, catalogue: Catalogue, stem: str | None = None) -> Target:
    """The target that ``text`` describes, with sources and families of ``catalogue``.

    ``stem`` is the file's name without its suffix, which the id has to equal.
    """
    with errors_in(file):
        found = _TARGET.read(load_toml(text), "")
        _check_name(found["id"], stem)
        sources, families = catalogue.sources, catalogue.families
        if found["family"] not in families:
            raise unknown("family", found["family"], families, "family")
        family = families[found["family"]]
        if found["vendor"] != family.vendor:
            raise wrong(
                "vendor", f"must be {family.vendor!r}, its family's", "family-contradiction"
            )
        facts = read_facts(found.get("facts", {}), Scope.PRODUCT, sources, family.facts)
        return Target(
            id=found["id"],
            vendor=family.vendor,
            product=found.get("product"),
            arch=family.arch,
            scope=Scope.PRODUCT,
            facts=facts,
            claims=found.get("claims", family.claims),
            expected_failures=tuple(
                ExpectedFailure(**failure) for failure in found.get("expected_failures", ())
            ),
            all_expectations=tuple(
                read_expectation(data, f"expectations[{index}]", facts, sources)
                for index, data in enumerate(found.get("expectations", ()))
            ),
            match=_match(found.get("match", {}), sources),
        )


_V = TypeVar("_V")
_SUFFIX: Final = ".toml"
_SOURCES_FILE: Final = "sources.toml"


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
        keys = [name.removesuffix(_SUFFIX) for name in names if name != _SOURCES_FILE]
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
    sources = _open_sources(path / _SOURCES_FILE)
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
    parts = split_sources(_SOURCES_FILE, text)
    if not parts:
        return read_sources(_SOURCES_FILE, text)

    def make(key: str) -> Source:
        try:
            return read_sources(_SOURCES_FILE, parts[key])[key]
        except TargetError:
            # the whole file's error has the place in the file
            return read_sources(_SOURCES_FILE, text)[key]

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
    if (path / _SOURCES_FILE).is_file():
        for name, source in read_sources(_SOURCES_FILE, read_text(path / _SOURCES_FILE)).items():
            _check_unique(_SOURCES_FILE, "sources", name, sources)
            sources[name] = source
    for file in sorted((path / "families").glob("*.toml")):
        family = read_family(file.name, read_text(file), found, file.stem)
        _check_unique(file.name, "id", family.id, families)
        families[family.id] = family
    for file in sorted(path.glob("*.toml") if products is None else products):
        if file.name != _SOURCES_FILE:
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

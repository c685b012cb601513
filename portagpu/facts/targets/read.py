"""Targets, families and sources from TOML. Every error names file, key and rule."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.documents import (
    each,
    flag,
    matching,
    object_of,
    values_of,
    version,
    wrong,
)
from portagpu.facts.arch import Arch
from portagpu.facts.capability import Capability
from portagpu.facts.targets.expect import read_expectation
from portagpu.facts.targets.facts import Source, names, read_facts, source_ids
from portagpu.facts.targets.model import (
    ExpectedFailure,
    Match,
    Scope,
    Target,
    normalise,
)
from portagpu.facts.targets.toml import (
    day,
    errors_in,
    line,
    load_head,
    load_table,
    load_toml,
    span,
    split_tables,
    table,
    texts_of,
    unknown,
    word_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

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

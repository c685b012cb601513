"""Targets, families and sources from TOML. Every error names file, key and rule."""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.documents import short_repr
from portagpu.base.text import did_you_mean
from portagpu.facts.arch import Arch
from portagpu.facts.capability import Capability
from portagpu.facts.targets.expect import read_expectation
from portagpu.facts.targets.facts import Source, read_facts, source_ids
from portagpu.facts.targets.model import (
    ExpectedFailure,
    Match,
    Scope,
    Target,
)
from portagpu.facts.targets.table import (
    Table,
    load_head,
    load_table,
    load_toml,
    normalise,
    split_tables,
    unknown_word,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from portagpu.facts.targets.model import Fact

TARGET_SCHEMA: Final = "portagpu.target/1"
FAMILY_SCHEMA: Final = "portagpu.family/1"
SOURCES_SCHEMA: Final = "portagpu.sources/1"

_TARGET_KEYS: Final = (
    "schema",
    "id",
    "vendor",
    "product",
    "family",
    "claims",
    "match",
    "facts",
    "expectations",
    "expected_failures",
)
_FAMILY_KEYS: Final = ("schema", "id", "vendor", "aliases", "claims", "facts")
_SOURCE_KEYS: Final = ("kind", "where", "version", "dated", "retrieved", "note")
_MATCH_KEYS: Final = (
    "names",
    "shared_names",
    "any_product",
    "memory_bytes",
    "unit_count",
    "source",
    "pci_ids",
    "pci_source",
)
_PCI_ID: Final = re.compile(r"[0-9a-f]{4}(:[0-9a-f]{2})?")
_FAILURE_KEYS: Final = ("case_id_pattern", "reason", "url", "expires")
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")
_INDENTED: Final = re.compile(r"(?m)^[ \t]+\[")
_ID: Final = re.compile(r"[a-z0-9]+([._-][a-z0-9]+)*")
_CAPABILITIES: Final = tuple(str(capability) for capability in Capability)
_CLAIM: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


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


def _checked_id(top: Table, schema: str, stem: str | None) -> str:
    if top.text("schema") != schema:
        top.fail("schema", "schema", f"must be {schema!r}, not {top.data['schema']!r}")
    identity = top.text("id")
    if not _ID.fullmatch(identity.replace("_", "-")):
        top.fail("id", "id", f"{identity!r} must be lower-case letters and digits joined by - . _")
    if stem is not None and identity != stem:
        top.fail("id", "id-is-file-name", f"{identity!r} must be the file's name, {stem!r}")
    return identity


def _claims(top: Table) -> tuple[str, ...]:
    claims = top.texts("claims")
    for claim in claims:
        if not _CLAIM.fullmatch(claim):
            top.fail("claims", "capability-id", f"{claim!r} is not a capability id (peak-memory)")
        if claim not in _CAPABILITIES:
            offer = did_you_mean(claim, _CAPABILITIES, f"there is {', '.join(_CAPABILITIES)}")
            top.fail("claims", "capability-id", f"{claim!r} is not a capability; {offer}")
    return claims


def _match(top: Table, sources: Mapping[str, Source]) -> Match:
    table = Table(top.file, "match", top.table("match"), _MATCH_KEYS)
    any_product = table.data.get("any_product", False)
    if not isinstance(any_product, bool):
        table.fail("any_product", "type", f"must be true or false, not {short_repr(any_product)}")
    written = table.texts("names")
    names = frozenset(normalise(name) for name in written)
    shared = frozenset(normalise(name) for name in table.texts("shared_names"))
    if not shared <= names:
        table.fail("shared_names", "match", "every one of them has to be among names")
    if "" in names:
        table.fail("names", "null", "holds a name without letters or digits")
    if any_product == bool(names):
        table.fail("names", "match", "give either names or any_product = true")
    pci_ids = table.texts("pci_ids")
    for each in pci_ids:
        if not _PCI_ID.fullmatch(each):
            table.fail("pci_ids", "pci-id", f"{each!r} must be like 74a1, or 744c:c8 with revision")
    pci_source = source_ids(table, sources, "pci_source")
    if bool(pci_ids) != bool(pci_source):
        table.fail("pci_source", "pci-id", "pci_ids and their source stand together")
    return Match(
        names=names,
        shared=shared,
        shared_name=next(iter(table.texts("shared_names")), None),
        name=written[0] if written else None,
        any_product=any_product,
        memory_bytes=_range(table, "memory_bytes"),
        unit_count=_range(table, "unit_count"),
        source=source_ids(table, sources),
        pci_ids=frozenset(pci_ids),
        pci_source=pci_source,
    )


def _range(table: Table, key: str) -> tuple[int, int] | None:
    if key not in table.data:
        return None
    value = table.data[key]
    whole = isinstance(value, list) and all(type(each) is int for each in value)
    if not whole or len(value) != 2 or not 0 < value[0] <= value[1]:
        table.fail(
            key, "range", f"must be [least, greatest], two integers, not {short_repr(value)}"
        )
    return value[0], value[1]


def _expected_failure(file: str, path: str, data: dict[str, Any]) -> ExpectedFailure:
    table = Table(file, path, data, _FAILURE_KEYS)
    url = table.text("url")
    if not re.fullmatch(r"https://\S+", url):
        table.fail("url", "url", f"must be an https address, not {short_repr(url)}")
    expires = table.required_value("expires")
    if not isinstance(expires, datetime.date) or isinstance(expires, datetime.datetime):
        table.fail("expires", "type", f"must be a date (2027-01-31), not {short_repr(expires)}")
    return ExpectedFailure(table.text("case_id_pattern"), table.text("reason"), url, expires)


def read_match(file: str, text: str, sources: Mapping[str, Source]) -> Match:
    """How a device is recognised as the product of a target's file, from that table alone."""
    return _match(Table(file, "", {"match": load_table(file, text, "match")}, ("match",)), sources)


def read_family_of(file: str, text: str) -> tuple[str, str]:
    """Vendor and family of a target's file, from its beginning."""
    top = Table(file, "", load_head(file, text), _TARGET_KEYS)
    return top.text("vendor"), top.text("family")


def read_family_names(file: str, text: str) -> tuple[str, tuple[str, ...]]:
    """Vendor and aliases of a family's file, from its beginning."""
    top = Table(file, "", load_head(file, text), _FAMILY_KEYS)
    return top.text("vendor"), top.texts("aliases")


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
    if not all(map(_BARE.fullmatch, names)) or "sources" in load_toml(file, head):
        return {}
    return {name: head + part for name, part in zip(names, tables.values(), strict=True)}


def read_sources(file: str, text: str) -> dict[str, Source]:
    """The sources that a ``sources.toml`` defines."""
    top = Table(file, "", load_toml(file, text), ("schema", "sources"))
    if top.text("schema") != SOURCES_SCHEMA:
        top.fail("schema", "schema", f"must be {SOURCES_SCHEMA!r}")
    found: dict[str, Source] = {}
    for name, data in top.table("sources").items():
        table = Table(file, f"sources.{name}", data, _SOURCE_KEYS)
        found[name] = Source(
            name,
            table.text("kind"),
            table.text("where"),
            table.text("version", ""),
            _day(table, "retrieved"),
            table.text("note", ""),
            _day(table, "dated"),
        )
    return found


def _day(table: Table, key: str) -> datetime.date | None:
    day = table.data.get(key)
    if day is not None and type(day) is not datetime.date:
        table.fail(key, "type", f"must be a date, not {short_repr(day)}")
    return day


def read_family(file: str, text: str, catalogue: Catalogue, stem: str | None = None) -> Family:
    """The family that ``text`` describes, with sources of ``catalogue``."""
    top = Table(file, "", load_toml(file, text), _FAMILY_KEYS)
    identity = _checked_id(top, FAMILY_SCHEMA, stem)
    facts = read_facts(top, Scope.FAMILY, catalogue.sources, {})
    if "exec.wave_size_default" not in facts:
        top.fail(
            "facts.exec.wave_size_default",
            "required",
            "is missing: an architecture has a warp size",
        )
    return Family(identity, top.text("vendor"), top.texts("aliases"), _claims(top), facts)


def read_target(file: str, text: str, catalogue: Catalogue, stem: str | None = None) -> Target:
    """The target that ``text`` describes, with sources and families of ``catalogue``.

    ``stem`` is the file's name without its suffix, which the id has to equal.
    """
    top = Table(file, "", load_toml(file, text), _TARGET_KEYS)
    identity = _checked_id(top, TARGET_SCHEMA, stem)
    name = top.text("family")
    if name not in catalogue.families:
        top.fail("family", "family", unknown_word(name, tuple(catalogue.families)))
    family = catalogue.families[name]
    if top.text("vendor") != family.vendor:
        top.fail("vendor", "family-contradiction", f"must be {family.vendor!r}, its family's")
    facts = read_facts(top, Scope.PRODUCT, catalogue.sources, family.facts)
    claims = _claims(top) if "claims" in top.data else family.claims
    return Target(
        id=identity,
        vendor=family.vendor,
        product=top.text("product") if "product" in top.data else None,
        arch=family.arch,
        scope=Scope.PRODUCT,
        facts=facts,
        claims=claims,
        expected_failures=tuple(
            _expected_failure(file, f"expected_failures[{index}]", each)
            for index, each in enumerate(top.tables("expected_failures"))
        ),
        all_expectations=tuple(
            read_expectation(file, f"expectations[{index}]", each, facts, catalogue.sources)
            for index, each in enumerate(top.tables("expectations"))
        ),
        match=_match(top, catalogue.sources),
    )

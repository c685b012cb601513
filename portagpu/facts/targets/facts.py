"""Facts from the ``facts`` tables of a file, with checked type, unit, range and source.

The ranges only catch slips of unit and of magnitude (Gb/s for GB/s, MiB for bytes); what a number
must be is for :mod:`portagpu.facts.targets.rules`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.documents import (
    anything,
    object_of,
    refuse,
    wrong,
)
from portagpu.base.text import short_repr
from portagpu.facts.targets.model import DTYPE_BITS, Confidence, Fact, Scope
from portagpu.facts.targets.rules import violations
from portagpu.facts.targets.toml import line, printable, texts_of, unknown, word_of

if TYPE_CHECKING:
    import datetime
    from collections.abc import Iterable, Iterator, Mapping

    from portagpu.facts.targets.model import FactValue


class Kind(StrEnum):
    """The type of a value, as TOML spells it."""

    INTEGER = "an integer"
    NUMBER = "a number"
    BOOLEAN = "true or false"
    TEXT = "text"
    CHOICE = "one of the allowed words"
    TILE = "a tile such as 16x8x16"
    INTEGERS = "a list of integers"
    TEXTS = "a list of texts"
    CHOICES = "a list of the allowed words"


@dataclass(frozen=True, slots=True)
class Key:
    """What the value of one key must look like; ``units`` empty: the value has no unit.

    ``product`` says that the key describes one product and is refused in a family's file.
    """

    name: str
    kind: Kind
    units: tuple[str, ...] = ()
    low: float = 0.0
    high: float = 0.0
    product: bool = False
    choices: tuple[str, ...] = ()


MATRIX_DTYPES: Final = tuple(name for name in DTYPE_BITS if not name.endswith("_acc16"))
FP8_FLAVOURS: Final = ("ocp", "fnuz")
SCALED_RECIPES: Final = ("tensor", "row", "mx")
TF32_EMULATIONS: Final = ("bf16x3",)
TOPOLOGIES: Final = ("switched", "mesh")
ECC: Final = ("on", "off")
"""Whether a product that has ECC is delivered with it turned on."""
OCCUPANCY_RULES: Final = ("blocks-per-unit", "waves-per-simd")
ACCUMULATOR_FILES: Final = ("separate", "unified")
COMPILE_ROUTES: Final = ("triton", "cpp")


def _execution() -> Iterator[Key]:
    i = Kind.INTEGER
    yield Key("arch.generation", Kind.TEXT)
    yield Key("exec.unit_name", Kind.TEXT)
    yield Key("exec.wave_name", Kind.TEXT)
    yield Key("exec.wave_size_default", i, ("threads",), 1, 64)
    yield Key("exec.wave_sizes_supported", Kind.INTEGERS, ("threads",), 1, 64)
    yield Key("exec.simds_per_unit", i, (), 1, 8)
    yield Key("exec.max_waves_per_simd", i, ("waves",), 1, 64)
    yield Key("exec.max_waves_per_unit", i, ("waves",), 1, 256)
    yield Key("exec.max_threads_per_unit", i, ("threads",), 1, 8192)
    yield Key("exec.max_threads_per_block", i, ("threads",), 1, 4096)
    yield Key("exec.max_blocks_per_unit", i, ("blocks",), 1, 256)
    yield Key("exec.max_barriers_per_unit", i, ("barriers",), 1, 256)
    yield Key("exec.compute_units_per_unit", i, (), 2, 8)
    yield Key("exec.occupancy_rule", Kind.CHOICE, choices=OCCUPANCY_RULES)
    for dimension in "xyz":
        yield Key(f"exec.max_grid_{dimension}", i, ("blocks",), 1024, 2**32)
    yield Key("exec.max_threads_per_dimension", i, ("threads",), 2**16, 2**40)
    yield Key("exec.max_access", i, ("B",), 1, 128)
    yield Key("exec.unit_count", i, ("SM", "CU", "WGP", "core"), 1, 4096, product=True)
    yield Key("exec.chiplet_count", i, ("XCD", "GCD", "die"), 1, 64, product=True)


def _registers() -> Iterator[Key]:
    i, registers = Kind.INTEGER, ("32-bit registers",)
    yield Key("register.file_per_unit", i, registers, 1024, 2**20)
    yield Key("register.entries_per_simd", i, ("VGPRs",), 64, 4096)
    yield Key("register.max_per_thread", i, registers, 16, 1024)
    yield Key("register.max_per_block", i, registers, 1024, 2**20)
    yield Key("register.alloc_granularity", i, ("32-bit registers/wave", "VGPRs"), 1, 4096)
    yield Key("register.allocated_per", Kind.TEXT)
    yield Key("register.accumulators", Kind.TEXT)
    yield Key("register.accumulator_file", Kind.CHOICE, choices=ACCUMULATOR_FILES)
    yield Key("register.accumulator_alignment", i, ("VGPRs",), 1, 64)
    yield Key("register.max_accumulators_per_thread", i, registers, 16, 1024)
    yield Key("register.scalar", Kind.TEXT)
    yield Key("register.scalar_steps", Kind.INTEGERS, ("SGPRs",), 16, 1024)
    yield Key("register.scalar_least_waves", i, ("waves",), 1, 64)
    yield Key("register.max_scalar_per_thread", i, ("SGPRs",), 16, 1024)


def _shared_memory() -> Iterator[Key]:
    i, size = Kind.INTEGER, ("B",)
    yield Key("shared_memory.per_unit", i, size, 1024, 2**20)
    yield Key("shared_memory.per_block_default", i, size, 1024, 2**20)
    yield Key("shared_memory.per_block_optin", i, size, 1024, 2**20)
    yield Key("shared_memory.reserved_per_block", i, size, 0, 16384)
    yield Key("shared_memory.alloc_granularity", i, size, 1, 16384)
    yield Key("shared_memory.banks", i, (), 1, 256)
    yield Key("shared_memory.bank_width", i, size, 1, 32)
    yield Key("shared_memory.carveouts", Kind.INTEGERS, ("KiB",), 0, 1024)


def _matrix() -> Iterator[Key]:
    yield Key("matrix.dtypes", Kind.CHOICES, choices=MATRIX_DTYPES)
    yield Key("matrix.sparse_dtypes", Kind.CHOICES, choices=MATRIX_DTYPES)
    yield Key("matrix.fp8_flavour", Kind.CHOICE, choices=FP8_FLAVOURS)
    yield Key("matrix.scaled_recipes", Kind.CHOICES, choices=SCALED_RECIPES)
    yield Key("matrix.tf32_emulation", Kind.CHOICE, choices=TF32_EMULATIONS)
    yield Key("matrix.flushes_subnormals", Kind.CHOICES, choices=MATRIX_DTYPES)
    yield Key("matrix.instructions", Kind.TEXTS)
    for dtype in MATRIX_DTYPES:
        yield Key(f"matrix.tile.{dtype}", Kind.TILE)
    for unit in ("matrix", "vector"):
        for dtype in DTYPE_BITS:
            per_clock = ("OP/clock/unit",) if dtype.startswith("int") else ("FLOP/clock/unit",)
            name = f"{unit}.rate.{dtype}"
            yield Key(name, Kind.INTEGER, per_clock, 2, 2**20)


def _compile() -> Iterator[Key]:
    yield Key("compile.routes", Kind.CHOICES, choices=COMPILE_ROUTES)
    yield Key("compile.without", Kind.TEXT)
    yield Key("compile.packages", Kind.TEXTS)
    for dtype in MATRIX_DTYPES:
        yield Key(f"compile.matrix.{dtype}", Kind.TEXT)


def _product() -> Iterator[Key]:
    n, i, rate = Kind.NUMBER, Kind.INTEGER, ("GB/s",)
    for sparsity in ("dense", "sparse"):
        for unit in ("matrix", "vector"):
            for dtype in DTYPE_BITS:
                ops = ("TOPS",) if dtype.startswith("int") else ("TFLOPS",)
                yield Key(f"peak.{sparsity}.{unit}.{dtype}", n, ops, 0.05, 1e5, product=True)
    yield Key("peak.clock.matrix", n, ("MHz",), 200, 5000, product=True)
    yield Key("peak.clock.vector", n, ("MHz",), 200, 5000, product=True)
    yield Key("memory.size", n, ("GB",), 1, 4096, product=True)
    yield Key("memory.sizes", Kind.INTEGERS, ("GB",), 1, 4096, product=True)
    yield Key("memory.reported", i, ("B",), 2**30, 2**42, product=True)
    yield Key("memory.kind", Kind.TEXT, product=True)
    yield Key("memory.ecc", Kind.CHOICE, choices=ECC, product=True)
    yield Key("memory.bandwidth", n, rate, 50, 50000, product=True)
    yield Key("cache.l1_per_unit", n, ("KiB",), 4, 1024)
    yield Key("cache.l1_and_shared_memory_per_unit", n, ("KiB",), 4, 1024)
    yield Key("cache.l2_total", n, ("MiB",), 0.25, 1024, product=True)
    yield Key("cache.l2_per_chiplet", n, ("MiB",), 0.25, 1024, product=True)
    yield Key("cache.memory_side_total", n, ("MiB",), 1, 4096, product=True)
    yield Key("link.kind", Kind.TEXT, product=True)
    yield Key("link.topology", Kind.CHOICE, choices=TOPOLOGIES, product=True)
    yield Key("link.count", i, ("links",), 1, 64, product=True)
    yield Key("link.per_link_per_direction", n, rate, 1, 120, product=True)
    yield Key("link.per_link_bidirectional", n, rate, 2, 240, product=True)
    yield Key("link.total_per_direction", n, rate, 1, 2000, product=True)
    yield Key("link.total_bidirectional", n, rate, 2, 4000, product=True)
    yield Key("host_link.kind", Kind.TEXT, product=True)
    yield Key("host_link.pcie_generation", i, (), 1, 8, product=True)
    yield Key("host_link.pcie_lanes", i, ("lanes",), 1, 32, product=True)
    yield Key("host_link.per_direction", n, rate, 0.2, 1000, product=True)
    yield Key("power.limit", n, ("W",), 5, 5000, product=True)


def _cpu() -> Iterator[Key]:
    yield Key("cpu.cache_line", Kind.INTEGER, ("B",), 16, 1024)
    yield Key("cpu.page_sizes", Kind.INTEGERS, ("B",), 512, 2**20)
    yield Key("cpu.baseline_vector_bits", Kind.INTEGER, ("bit",), 64, 4096)


KEYS: Final[Mapping[str, Key]] = MappingProxyType(
    {
        key.name: key
        for group in (_execution, _registers, _shared_memory, _matrix, _compile, _product, _cpu)
        for key in group()
    }
)
"""Every key that a fact may have."""


_TILE: Final = re.compile(r"[1-9]\d{0,3}(x[1-9]\d{0,3}){2}")
names: Final = texts_of(printable)
_FACT: Final = object_of(
    {
        "value": anything,
        "unit": anything,
        "source": texts_of(),
        "confidence": word_of(Confidence),
        "note": line,
        "overrides_family": line,
    },
    frozenset({"unit", "source", "note", "overrides_family"}),
)


@dataclass(frozen=True, slots=True)
class Source:
    """Where facts come from; ``kind`` is "vendor-doc", "vendor-code", "executed" and so on."""

    id: str
    kind: str
    where: str
    version: str = ""
    retrieved: datetime.date | None = None
    note: str = ""
    dated: datetime.date | None = None
    """The day of that version; None where it is not known."""


def source_ids(
    document: Mapping[str, Any], sources: Mapping[str, Source], path: str, key: str = "source"
) -> tuple[str, ...]:
    """The sources that ``document`` names, each of which has to be there."""
    named: tuple[str, ...] = document.get(key, ())
    for each in named:
        if each not in sources:
            raise unknown(f"{path}.{key}", each, sources, "source-resolves")
    return named


def _read_value(key: Key, value: object, path: str) -> FactValue:
    """The value, of the type and within the range of ``key``."""
    if key.kind in (Kind.TEXT, Kind.CHOICE):
        rule = word_of(key.choices) if key.choices else line
        text: str = rule.read(value, path)
        return text
    if key.kind is Kind.TILE:
        if not isinstance(value, str) or not _TILE.fullmatch(value):
            raise refuse(path, key.kind, value)
        return value
    if key.kind in (Kind.INTEGER, Kind.NUMBER):
        return _read_scalar(key, value, path)
    if not isinstance(value, list) or not value:
        raise refuse(path, key.kind, value)
    if key.kind is Kind.INTEGERS:
        numbers = [int(_read_scalar(key, each, path)) for each in value]
        if sorted(set(numbers)) != numbers:
            raise wrong(path, "must ascend, each once", "ascending")
        return tuple(numbers)
    texts: tuple[str, ...] = (texts_of(word_of(key.choices)) if key.choices else names).read(
        value, path
    )
    return texts


def _read_scalar(key: Key, value: object, path: str) -> int | float:
    integer = key.kind in (Kind.INTEGER, Kind.INTEGERS)
    allowed = int if integer else int | float
    if isinstance(value, bool) or not isinstance(value, allowed):
        raise refuse(path, key.kind, value)
    # written so that a NaN, which compares with nothing, is outside
    if not key.low <= value <= key.high:
        raise wrong(path, f"{short_repr(value)} is outside {key.low:g} to {key.high:g}", "range")
    return value


def _read_unit(key: Key, unit: object, path: str) -> str | None:
    if not key.units:
        if unit is not None:
            raise wrong(path, f"has no unit, not {short_repr(unit)}", "unit")
        return None
    if unit is None:
        raise wrong(path, f"is missing; it must be {' or '.join(key.units)}", "unit")
    if unit not in key.units:
        raise refuse(path, " or ".join(key.units), unit, "unit")
    return str(unit)


def _fact_tables(path: str, data: Mapping[str, Any]) -> Iterable[tuple[str, dict[str, Any]]]:
    """The facts in nested tables, each a table that has a value, by dotted key."""
    for name, inner in data.items():
        key = f"{path}.{name}" if path else name
        if not isinstance(inner, dict):
            what = "a table { value, unit, source, confidence }"
            raise refuse(f"facts.{key}", what, inner)
        if "value" in inner or key in KEYS:
            yield key, inner
        else:
            yield from _fact_tables(key, inner)


def read_facts(
    tables: Mapping[str, Any],
    scope: Scope,
    sources: Mapping[str, Source],
    family: Mapping[str, Fact],
) -> Mapping[str, Fact]:
    """The facts of a document's ``facts``, together with those of its family.

    Raises DocumentError for what is wrong in one, or between several.
    """
    facts = dict(family)
    for name, data in _fact_tables("", tables):
        path = f"facts.{name}"
        if name not in KEYS:
            raise unknown(path, name, KEYS, "unknown-key")
        key = KEYS[name]
        found = _FACT.read(data, path)
        if key.product and scope is Scope.FAMILY:
            raise wrong(path, "belongs to a product, not to an architecture", "family-scope")
        fact = Fact(
            key=name,
            value=_read_value(key, found["value"], f"{path}.value"),
            unit=_read_unit(key, found.get("unit"), f"{path}.unit"),
            source=source_ids(found, sources, path),
            confidence=found["confidence"],
            note=found.get("note", ""),
            scope=scope,
        )
        if not fact.source and fact.confidence is not Confidence.UNVERIFIED:
            words = f"is missing; only {Confidence.UNVERIFIED.value!r} has none"
            raise wrong(f"{path}.source", words, "source")
        if fact.confidence is Confidence.DERIVED and not fact.note:
            words = "is missing; a derived fact says how it was computed"
            raise wrong(f"{path}.note", words, "derivation")
        _check_against_family(path, fact, family.get(name), found.get("overrides_family"))
        facts[name] = fact
    for violation in violations(facts):
        raise wrong(f"facts.{violation.key}", violation.message, violation.rule)
    return MappingProxyType(facts)


def _check_against_family(path: str, fact: Fact, inherited: Fact | None, why: str | None) -> None:
    """Check that a product states why it differs from its family, and has the same warp size."""
    rule = "family-contradiction"
    same = inherited is not None and (inherited.value, inherited.unit) == (fact.value, fact.unit)
    if why and (inherited is None or same):
        raise wrong(f"{path}.overrides_family", "there is nothing to override", rule)
    if inherited is not None and not same and (not why or fact.key == "exec.wave_size_default"):
        words = (
            f"{short_repr(fact.value)} contradicts its family, which has "
            f"{short_repr(inherited.value)}; say why in overrides_family"
        )
        raise wrong(f"{path}.value", words, rule)

"""Loads the entry points of the group ``portagpu.vendors``, once in a process, and checks them."""

from __future__ import annotations

import re
import threading
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from string import Formatter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from portagpu.base.documents import DocumentError, check_types
from portagpu.base.patience import LIMITS
from portagpu.base.plugins import OWN_DISTRIBUTION, call_quietly, distribution_of, entry_points
from portagpu.base.text import error_line, one_line
from portagpu.facts.vendors.model import Vendor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from importlib.metadata import EntryPoint


GROUP: Final = "portagpu.vendors"

_K = TypeVar("_K")
_V = TypeVar("_V")

_Vendors = tuple[Mapping[str, Vendor], tuple[str, ...]]
_found: _Vendors | None = None
_lock: Final = threading.Lock()
_late_problems: dict[str, None] = {}
"""Problems of tables, which are read when they are first used."""


class LazyMapping(Mapping[_K, _V]):
    """A mapping that is made at its first use, from data of all vendors."""

    __slots__ = ("_collect", "_found")

    def __init__(self, collect: Callable[[], Mapping[_K, _V]]) -> None:
        self._collect = collect
        self._found: Mapping[_K, _V] | None = None

    def _all(self) -> Mapping[_K, _V]:
        if self._found is None:
            self._found = MappingProxyType(dict(self._collect()))
        return self._found

    def __getitem__(self, key: _K) -> _V:
        return self._all()[key]

    def __iter__(self) -> Iterator[_K]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())


def vendors() -> Mapping[str, Vendor]:
    """Every declared vendor by name: this distribution's first, then by entry point."""
    return _all_vendors()[0]


def vendor_named(name: str) -> Vendor:
    """The vendor of that name; an empty one where no distribution declares it."""
    return vendors().get(name) or Vendor(name=name)


def problems() -> tuple[str, ...]:
    """Why an entry point or a table was left out, one sentence each."""
    return (*_all_vendors()[1], *_late_problems)


def _all_vendors() -> _Vendors:
    global _found
    if _found is None:
        # several threads probe at a time
        with _lock:
            _found = _found or _load_all()
    return _found


def _load_all() -> _Vendors:
    found: dict[str, Vendor] = {}
    owners: dict[str, str] = {}
    wrong: list[str] = []

    def order(point: EntryPoint) -> tuple[bool, str, str]:
        return distribution_of(point) != OWN_DISTRIBUTION, point.name, point.value

    for point in sorted(set(entry_points(GROUP)), key=order):
        owner = distribution_of(point)
        vendor, reason = _load(point)
        claims = list(_claims(vendor)) if vendor is not None else []
        taken = next((each for each in claims if each in owners), None)
        if taken is not None:
            reason = f"declares {taken}, which is {owners[taken]}'s: uninstall one of them"
        if vendor is None or reason:
            wrong.append(f"the vendor {point.name!r} of {owner} is left out: it {reason}")
        else:
            found[vendor.name] = vendor
            owners.update(dict.fromkeys(claims, owner))
    if not found:
        wrong.append("no vendor is declared, so that no GPU is known: install portagpu again")
    return MappingProxyType(found), tuple(wrong)


def _load(point: EntryPoint) -> tuple[Vendor | None, str]:
    value, failure = call_quietly(point.load, LIMITS.load_s, f"the vendor {point.name!r} to load")
    if failure:
        return None, failure
    if type(value) is not Vendor:
        return None, f"is a {type(value).__name__} instead of a portagpu Vendor"
    # the tests check those of this distribution
    wrong = "" if distribution_of(point) == OWN_DISTRIBUTION else wrong_field(value)
    return (None, wrong) if wrong else (value, "")


def _claims(vendor: Vendor) -> Iterator[str]:
    """What one vendor alone may declare, in words."""
    yield f"the vendor {vendor.name!r}"
    yield from (f"the PCI vendor id {number:#06x}" for number in vendor.pci_ids)
    if vendor.masks is not None:
        yield f"the masks of {vendor.masks.name!r}"
        yield from (f"the masks' layer {each.layer!r}" for each in vendor.masks.layers)


def tables(name: str) -> Mapping[str, Mapping[str, Any]]:
    """The tables of that name by vendor. Broken ones are left out."""
    return MappingProxyType(_read_tables(name))


@cache
def _read_tables(name: str) -> dict[str, Mapping[str, Any]]:
    found: dict[str, Mapping[str, Any]] = {}
    for vendor in vendors().values():
        file = vendor.tables / f"{name}.toml" if vendor.tables is not None else None
        if file is None or not file.is_file():
            continue
        try:
            found[vendor.name] = tomllib.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            _report_table(vendor.name, name, error)
    return found


def leave_out_table(vendor: str, name: str, error: Exception) -> None:
    """Take a vendor's table that cannot be used out of :func:`tables`, and say why."""
    _read_tables(name).pop(vendor, None)
    _report_table(vendor, name, error)


def _report_table(vendor: str, name: str, error: Exception) -> None:
    why = one_line(str(error)) if isinstance(error, DocumentError) else error_line(error)
    _late_problems[f"the table {name}.toml of the vendor {vendor!r} is left out: {why}"] = None


_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_.-]*")
# names of texts that belong to no vendor's GPUs: of a CPU's readings, and of the kernel's log
_RESERVED: Final = frozenset({"cpu", "host"})
_MIN_ERROR: Final = 8
"""Characters of a text that means exhausted memory: a shorter one is in other errors too."""
_OTHERS_PRODUCT: Final = "another product 7"


def wrong_field(vendor: Vendor) -> str:
    """What is wrong with the first wrong field; empty where all are right."""
    try:
        check_types(vendor, Vendor, "")
    except DocumentError as error:
        return f"has a wrong field: {error}"
    # values are read only where all types are right
    return next(_wrong_values(vendor), "")


def _wrong_values(vendor: Vendor) -> Iterator[str]:
    if not _NAME.fullmatch(vendor.name) or vendor.name in _RESERVED:
        form = 'a word in lower case, and neither "cpu" nor "host"'
        yield f"states its name as {one_line(repr(vendor.name))} instead of {form}"
    masks, files = vendor.masks, vendor.driver_files
    if masks is not None and masks.vendor != vendor.name:
        yield f"has masks of {masks.vendor!r} instead of {vendor.name!r}"
    for pattern in (*vendor.makers, *vendor.brands, *vendor.libraries):
        yield from _wrong_pattern(pattern)
    for text in vendor.out_of_memory:
        if len(text) < _MIN_ERROR:
            yield f"states {text!r} for exhausted memory, which other texts may have too"
    if vendor.tuning is not None and not vendor.tuning.product:
        yield "recommends kernel settings without a product's name"
    forms = [(each.counted, "count") for each in vendor.fabrics if each.counted is not None]
    if files is not None:
        yield from _wrong_pattern(files.devices)
        forms.append((files.device, "minor"))
    for form, field in forms:
        if not _has_field_alone(form, field):
            yield f"states the form {form!r}, which has another field than {field}"


def _wrong_pattern(pattern: str) -> Iterator[str]:
    """Why ``pattern`` cannot be one of several in a regular expression."""
    try:
        # first alone: ")(" would end the group around it
        groups = re.compile(pattern).groups
        joined = re.compile(f"(?:{pattern})|a")
    except re.error as error:
        yield f"states the pattern {pattern!r}, which is none: {error}"
        return
    if groups:
        yield f"states the pattern {pattern!r}, whose group captures: write (?:...)"
    if joined.fullmatch("") or joined.fullmatch(_OTHERS_PRODUCT):
        yield f"states the pattern {pattern!r}, which fits any text"


def _has_field_alone(form: str, name: str) -> bool:
    try:
        found = [each[1:] for each in Formatter().parse(form) if each[1] is not None]
    except ValueError:
        return False
    return all(each == (name, "", None) for each in found)

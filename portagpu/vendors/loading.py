"""Loads the entry points of the group ``portagpu.vendors``, once in a process."""

from __future__ import annotations

import contextlib
import re
import sys
import threading
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType, NoneType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from portagpu.distributions import entry_points
from portagpu.foreign import LOAD_LIMIT_S, OWN_DISTRIBUTION, distribution_of, start_call
from portagpu.text import one_line
from portagpu.vendors.masks import MaskRules, Runtime
from portagpu.vendors.model import DriverFiles, Fabric, Tuning, Vendor

if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.metadata import EntryPoint

GROUP: Final = "portagpu.vendors"
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_.-]*")
# names of texts that belong to no vendor's GPUs: of a CPU's readings, and of the kernel's log
_RESERVED: Final = frozenset({"cpu", "host"})

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
        # several threads probe at a time, and the redirection of standard output is the process's
        with _lock:
            _found = _found or _load_all()
    return _found


def _load_all() -> _Vendors:
    found: dict[str, tuple[str, Vendor]] = {}
    wrong: list[str] = []

    def order(point: EntryPoint) -> tuple[bool, str, str]:
        return distribution_of(point) != OWN_DISTRIBUTION, point.name, point.value

    for point in sorted(set(entry_points(GROUP)), key=order):
        owner = distribution_of(point)
        vendor, reason = _load(point)
        if vendor is not None and vendor.name in found:
            first = found[vendor.name][0]
            reason = f"declares {vendor.name!r}, which is {first}'s: uninstall one of them"
        if vendor is None or reason:
            wrong.append(f"the vendor {point.name!r} of {owner} is left out: it {reason}")
        else:
            found[vendor.name] = (owner, vendor)
    return MappingProxyType({name: vendor for name, (_, vendor) in found.items()}), tuple(wrong)


def _load(point: EntryPoint) -> tuple[Vendor | None, str]:
    # standard output may be a document, which what a third party prints must not be part of
    with contextlib.redirect_stdout(sys.stderr):
        value, failure = start_call(point.load, LOAD_LIMIT_S)(f"the vendor {point.name!r} to load")
    if failure:
        return None, failure
    if not isinstance(value, Vendor):
        return None, f"is a {type(value).__name__} instead of a portagpu Vendor"
    wrong = _wrong_field(value)
    return (None, wrong) if wrong else (value, "")


_KINDS: Final[Mapping[str, tuple[type, ...]]] = {
    "masks": (Runtime, NoneType),
    "driver_files": (DriverFiles, NoneType),
    "tuning": (Tuning, NoneType),
    "tables": (Path, NoneType),
    **dict.fromkeys(("torch_build", "driver_version", "chip_list"), (str, NoneType)),
    **dict.fromkeys(("uuid_prefix", "unsliced"), (str,)),
    **dict.fromkeys(("unusable_drivers", "disguises"), (Mapping,)),
}
_MEMBERS: Final[Mapping[str, type]] = {
    "pci_ids": int,
    "fabrics": Fabric,
    **dict.fromkeys(("visibility", "makers", "brands", "libraries", "out_of_memory"), str),
}
"""The types of the members of a Vendor's tuples."""


def _wrong_field(vendor: Vendor) -> str:
    """What is wrong with the first wrong field; empty where all are right."""
    form = ""
    if not _is_name(vendor.name):
        name, form = "name", 'a word in lower case, and neither "cpu" nor "host"'
    for each, kinds in _KINDS.items():
        if not isinstance(getattr(vendor, each), kinds):
            name, form = each, f"a {kinds[0].__name__}"
    for each, kind in _MEMBERS.items():
        if not _is_tuple_of(getattr(vendor, each), kind):
            name, form = each, f"a tuple of {kind.__name__}"
    if form:
        return f"states its {name} as {one_line(repr(getattr(vendor, name)))} instead of {form}"
    masks, files = vendor.masks, vendor.driver_files
    if masks is not None and masks.vendor != vendor.name:
        return f"has masks of {masks.vendor!r} instead of {vendor.name!r}"
    if masks is not None and not _is_tuple_of(masks.layers, MaskRules):
        return "has masks without a tuple of MaskRules as their layers"
    patterns = [*vendor.makers, *vendor.brands, *vendor.libraries]
    forms = [(each.counted or "", "count") for each in vendor.fabrics]
    if files is not None:
        patterns.append(files.devices)
        forms.append((files.device, "minor"))
    for text in patterns:
        try:
            re.compile(text)
        except re.error as error:
            return f"states the pattern {text!r}, which is none: {error}"
    for text, field in forms:
        try:
            text.format(**{field: 0})
        except (IndexError, KeyError, ValueError) as error:
            return f"states the form {text!r}, which has another field than {field}: {error}"
    return ""


def _is_name(name: object) -> bool:
    return isinstance(name, str) and bool(_NAME.fullmatch(name)) and name not in _RESERVED


def _is_tuple_of(values: object, kind: type) -> bool:
    # a tuple of one text without its comma is a text, whose every letter would be one
    return isinstance(values, tuple) and all(
        isinstance(each, kind) and not isinstance(each, bool) and each != "" for each in values
    )


@cache
def tables(name: str) -> Mapping[str, Mapping[str, Any]]:
    """The tables of that name by vendor. Broken ones are left out."""
    found: dict[str, Mapping[str, Any]] = {}
    for vendor in vendors().values():
        file = vendor.tables / f"{name}.toml" if vendor.tables is not None else None
        if file is None or not file.is_file():
            continue
        try:
            found[vendor.name] = tomllib.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            report_left_out(vendor.name, f"{name}.toml", error)
    return MappingProxyType(found)


def report_left_out(vendor: str, table: str, error: Exception) -> None:
    """Add to :func:`problems` that a vendor's table cannot be used, and why."""
    why = one_line(f"{type(error).__name__}: {error}")
    _late_problems[f"the table {table} of the vendor {vendor!r} is left out: {why}"] = None

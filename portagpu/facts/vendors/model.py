"""Data of a vendor's GPUs, drivers and tools, which its distribution declares; loaded once in a
process, and checked.

Every field except the name has a default, which means that nothing of that kind is known.
:mod:`portagpu.facts.visible` applies the rules of masks.
"""

from __future__ import annotations

import re
import threading
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from pathlib import Path  # noqa: TC003 - the types of fields are read
from string import Formatter
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias, TypeVar

from portagpu.base.documents import DocumentError, check_types, filled
from portagpu.base.environment import Switch  # noqa: TC001 - the types of fields are read
from portagpu.base.patience import LIMITS
from portagpu.base.plugins import OWN_DISTRIBUTION, call_quietly, distribution_of, entry_points
from portagpu.base.text import error_line, one_line

if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.metadata import EntryPoint


Word: TypeAlias = Annotated[str, filled]
"""An item of several texts."""


class Numbers(Enum):
    """How much of an entry has to be a number."""

    LEADING = "the digits it starts with; the rest is ignored"
    PLAIN = "all of it, in decimal without sign, blanks or leading zeros"
    C_LITERAL = "all of it, as C writes it: 0x16 and octal 010 too"


class Blanks(Enum):
    """Which entries may stand between blanks."""

    NOWHERE = "no entry"
    AT_NUMBERS = "entries that are numbers"
    EVERYWHERE = "all entries"


class Repeated(Enum):
    """The effect of a device that the mask names a second time."""

    HIDES_ALL = "every device is hidden"
    ENDS = "it ends the list"
    SKIPPED = "it counts once"


class UuidMatch(Enum):
    """Which device a UUID names."""

    ONE_THAT_STARTS = "the only one whose UUID starts with it"
    FIRST_THAT_STARTS = "the first one whose UUID starts with it"


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskRules:
    """How one layer of a runtime reads its mask.

    ``variables`` are read in this order: the first one that is set is the mask. ``uuid_characters``
    bounds the length of a UUID with its prefix. ``one_kind`` says that the first entry decides
    whether all are numbers or all UUIDs of that prefix, ``empty_entry_fails`` that the layer does
    not start where an entry is empty. ``slice_prefix`` begins the UUID of a slice, of which a
    process gets ``most_slices``. Versions are those since which the layer behaves so, None for
    always.
    """

    layer: str
    variables: tuple[Word, ...]
    numbers: Numbers
    blanks: Blanks
    repeated: Repeated
    uuid_prefixes: tuple[Word, ...]
    uuid_match: UuidMatch
    uuid_case_counts: bool
    one_kind: bool = False
    empty_entry_fails: bool = False
    removes_quotes: bool = False
    uuid_characters: tuple[int, int] | None = None
    slice_prefix: str | None = None
    most_slices: int = 0
    empty_hides_since: str | None = None
    uuids_since: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchRules:
    """How torch counts devices before it starts the runtime (``torch.cuda.device_count``).

    Where ``counted`` is set, torch takes its number of entries for the number of devices and reads
    only the first of ``variables``. ``asks_for`` are prefixes for which it asks the runtime.
    ``bare_uuids`` says that it compares without the "GPU-" and with lower-case UUIDs.
    """

    variables: tuple[Word, ...]
    counted: str | None = None
    asks_for: tuple[Word, ...] = ()
    bare_uuids: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """A vendor's runtime: the layers that its masks pass in order, and the child's variable.

    ``name`` is the kind of the torch build that uses it; ``vendor`` is the vendor's name.

    Each layer numbers the devices that the layer before left. ``leaving`` maps a variable to the
    reason for setting another one too. ``unread`` maps a variable that looks like a mask to the
    reason why it is none. ``foreign`` are masks of other runtimes. ``torch`` is None where torch
    reads no mask by itself; ``torch_module`` is its module for such devices.
    """

    name: str
    vendor: str
    layers: tuple[MaskRules, ...]
    child_variable: str
    torch: TorchRules | None = None
    torch_module: str = "torch.cuda"
    leaving: Mapping[str, str] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)
    foreign: tuple[Word, ...] = ()

    @property
    def variables(self) -> tuple[str, ...]:
        """Every variable that is, or looks like, a mask of this runtime."""
        read = [name for layer in self.layers for name in layer.variables]
        return (*read, *self.unread)


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverFiles:
    """Files with which a kernel driver lists its GPUs in addition to PCI.

    ``devices`` is the pattern of the files in /dev, one for each GPU. ``device`` is their form with
    the GPU's ``{minor}`` number. ``listing`` is a folder with one folder
    for each GPU, named by its PCI address, whose file ``information`` has lines "field: value";
    ``address``, ``uuid``, ``minor`` and ``product`` are names of its fields.
    """

    devices: str
    device: str
    listing: str | None = None
    address: str = ""
    uuid: str = ""
    minor: str = ""
    product: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """A kind of link between GPUs that is faster than PCI Express, as readings name it.

    ``counted`` is the word for this many of them ("NV{count}"), None where a count does not change
    the word; ``legend`` is the word in a legend, and what it means.
    """

    kind: str
    counted: str | None = None
    legend: tuple[Word, Word] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """Kernel settings that a vendor recommends for products with ``product`` in their names.

    Each sentence is shown where the setting is otherwise: ``translated`` where the IOMMU translates
    addresses, ``balancing`` where automatic NUMA balancing is on, ``moved`` where the kernel may
    move PCI resources. None asks nothing.
    """

    product: str
    translated: str | None = None
    balancing: str | None = None
    moved: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Vendor:
    """Data of one vendor. ``name`` is its name in readings, architectures and targets."""

    name: str
    pci_ids: tuple[int, ...] = ()
    """Vendor ids of the PCI ID database. They identify GPUs on the bus."""
    torch_build: str | None = None
    """The kind of torch's build for its GPUs (``TorchBuild.kind``); None where any build does."""
    masks: Runtime | None = None
    """How its runtime reads visible-device masks."""
    visibility: tuple[Word, ...] = ()
    """Further variables than ``masks`` has that hide or disguise devices: shown and recorded."""
    driver_files: DriverFiles | None = None
    driver_version: str | None = None
    """The file in which its kernel driver states its version, relative to the root."""
    chip_list: str | None = None
    """A list of products on the machine in the form of libdrm's ``amdgpu.ids``."""
    makers: tuple[Word, ...] = ()
    """Patterns of the maker's names, in lower case, that stand before a product's."""
    brands: tuple[Word, ...] = ()
    """Patterns of words that name no product by themselves ("radeon graphics")."""
    uuid_prefix: str = "GPU-"
    """How its runtime begins a GPU's UUID; other spellings are numbers of other tools."""
    fabrics: tuple[Fabric, ...] = ()
    """Its links between GPUs, the fastest first."""
    unusable_drivers: Mapping[str, str] = field(default_factory=dict)
    """Kernel drivers with which its GPUs do not compute, and what to do: "is bound to ..."."""
    disguises: Mapping[str, str] = field(default_factory=dict)
    """Variables that make a GPU another one for programs, and what to do."""
    unsliced: str = "is divided into parts and has none, so that nothing can run on it"
    """What to do about a GPU that is to be used in slices and has none."""
    tuning: Tuning | None = None
    libraries: tuple[Word, ...] = ()
    """Patterns of the names of Python distributions whose versions matter."""
    out_of_memory: tuple[Word, ...] = ()
    """Parts of its libraries' error texts that mean exhausted memory, in lower case. They are for
    errors that are not a ``torch.OutOfMemoryError``."""
    switches: tuple[Switch, ...] = ()
    """Variables under which its devices do not work as they do otherwise: debugging aids."""
    tables: Path | None = None
    """The folder of its tables, each of which may be missing: ``kernel_log.toml`` (lines of logs,
    and how grave they are), ``answers.toml`` (what its tools print where they have no answer),
    ``health.toml`` (reasons that slow clocks, limits, counters of links), ``doctor.toml`` (lines
    and variables of its communication library) and ``tuning.toml`` (settings of it to try, and the
    file that its tuner reads). Their forms are those of ``portagpu/facts/formats``,
    ``portagpu/runs/judges``, ``portagpu/checks/collectives_doctor`` and
    ``portagpu/devices/collectives/tuning.py``. A cost model (``Plugin.cost_model``) keeps its own
    constants here, in a form of its own."""


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
    for form, wanted in forms:
        if not _has_field_alone(form, wanted):
            yield f"states the form {form!r}, which has another field than {wanted}"


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

"""Data of a vendor's GPUs, drivers and tools, which its distribution declares; no code.

Every field except the name has a default, which means that nothing of that kind is known.
:mod:`portagpu.facts.visible` applies the rules of masks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path  # noqa: TC003 - the types of fields are read
from typing import TYPE_CHECKING, Annotated, TypeAlias

from portagpu.base.documents import filled
from portagpu.base.environment import Switch  # noqa: TC001 - the types of fields are read

if TYPE_CHECKING:
    from collections.abc import Mapping


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

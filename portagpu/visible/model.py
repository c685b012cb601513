"""The nouns of visibility: devices, masks, the rules they are read by, and what can be wrong."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Final

from portagpu.errors import PortagpuError

if TYPE_CHECKING:
    from collections.abc import Mapping

_SHOWN_CHARACTERS: Final = 40


class VisibilityError(PortagpuError, ValueError):
    """A list of devices that no mask can express, or a runtime that is not known."""


@dataclass(frozen=True, slots=True)
class DeviceId:
    """One device of a machine, as its runtime would name it with no mask set.

    ``index`` counts whole GPUs (and AMD partitions, each of which is a device) in the runtime's own
    full order. ``uuid`` is written as the runtime writes it ("GPU-…", "MIG-…"). ``parent`` is the
    UUID of the GPU of which this is a MIG slice; a slice has its parent's index.
    """

    index: int
    uuid: str | None = None
    parent: str | None = None


class ProblemId(StrEnum):
    """What can be wrong with masks; the values are stable."""

    AFTER_END = "after-end"
    AMBIGUOUS_UUID = "ambiguous-uuid"
    BLANKS = "blanks"
    EMPTY_MASK = "empty-mask"
    FOREIGN_VARIABLE = "foreign-variable"
    LEAVING_VARIABLE = "leaving-variable"
    MIXED_KINDS = "mixed-kinds"
    NOTHING_LEFT = "nothing-left"
    NUMBER_BASE = "number-base"
    OUT_OF_RANGE = "out-of-range"
    QUOTED = "quoted"
    RENUMBERED = "renumbered"
    REPEATED = "repeated"
    SHADOWED = "shadowed"
    SLICE_BY_INDEX = "slice-by-index"
    SLICES = "slices"
    TORCH_DISAGREES = "torch-disagrees"
    TORCH_RAISES = "torch-raises"
    TRAILING_TEXT = "trailing-text"
    TWO_MASKS = "two-masks"
    UNKNOWN_UUID = "unknown-uuid"
    UNREADABLE = "unreadable"
    UNREAD_VARIABLE = "unread-variable"
    UUID_SUPPORT = "uuid-support"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, in one sentence that says what to do.

    ``harmful`` is True when other devices are visible than the writer of the mask asked for, or
    torch and the runtime do not agree; otherwise it is advice.
    """

    id: ProblemId
    message: str
    harmful: bool = True


@dataclass(frozen=True, slots=True)
class Index:
    """An entry that names a device by its number, from 0, among those the mask is read over."""

    number: int


@dataclass(frozen=True, slots=True)
class Uuid:
    """An entry that names a device by its UUID or the beginning of it, as it is written."""

    text: str


@dataclass(frozen=True, slots=True)
class Mask:
    """What is left of a mask when a runtime has read it.

    ``entries`` is None when the variable is not set or hides nothing, and empty when it hides all.
    ``deliberate`` says that a mask that hides all was written to (empty, or "-1" first). ``fails``
    says that the layer fails to start and shows nothing, unless the entries name every device.
    """

    entries: tuple[Index | Uuid, ...] | None
    problems: tuple[Problem, ...] = ()
    deliberate: bool = False
    fails: bool = False


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
    """What a device that was named before does."""

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
    variables: tuple[str, ...]
    numbers: Numbers
    blanks: Blanks
    repeated: Repeated
    uuid_prefixes: tuple[str, ...]
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

    variables: tuple[str, ...]
    counted: str | None = None
    asks_for: tuple[str, ...] = ()
    bare_uuids: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """A vendor's runtime: the layers that its masks pass in order, and the child's variable.

    Each layer numbers what the one before left. ``leaving`` maps a variable to why another should
    be set beside it, ``unread`` one that looks like a mask to why it is not, and ``foreign`` are
    the masks of other runtimes.
    """

    name: str
    vendor: str
    layers: tuple[MaskRules, ...]
    torch: TorchRules
    child_variable: str
    leaving: Mapping[str, str]
    unread: Mapping[str, str]
    foreign: tuple[str, ...]

    @property
    def variables(self) -> tuple[str, ...]:
        """Every variable that is, or looks like, a mask of this runtime."""
        read = [name for layer in self.layers for name in layer.variables]
        return (*read, *self.unread)


def shown(text: str) -> str:
    """A mask or an entry for a message: one line, cut where it is long."""
    if len(text) <= _SHOWN_CHARACTERS:
        return ascii(text)
    return f"{text[:_SHOWN_CHARACTERS]!a}… ({text.count(',') + 1} entries)"

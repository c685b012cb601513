"""The rules by which a vendor's runtime reads visible-device masks: data and its types.

:mod:`portagpu.facts.visible` applies these rules.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Annotated, TypeAlias

from portagpu.base.documents import filled

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

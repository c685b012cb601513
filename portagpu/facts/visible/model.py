"""The types of visibility: devices, masks, their problems, and the runtimes with known masks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from portagpu.base.errors import PortagpuError
from portagpu.facts.vendors import LazyMapping, vendors

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from portagpu.facts.vendors import MaskRules, Runtime


_SHOWN_CHARACTERS: Final = 40


class VisibilityError(PortagpuError, ValueError):
    """A list of devices that no mask can express, or a runtime that is not known."""


@dataclass(frozen=True, slots=True)
class DeviceId:
    """One device of a machine, as its runtime names it without masks.

    ``index`` counts whole GPUs (and AMD partitions, each of which is a device) in the runtime's own
    full order. ``uuid`` is the runtime's spelling ("GPU-…", "MIG-…"). A MIG slice has the UUID of
    its GPU as ``parent``, and its parent's index.
    """

    index: int
    uuid: str | None = None
    parent: str | None = None


class ProblemId(StrEnum):
    """The kinds of problems of masks; the values are stable."""

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
    """One problem, in one sentence that says what to do.

    ``harmful`` is True when other devices are visible than the mask asks for, or when torch and the
    runtime disagree. Otherwise the problem is advice.
    """

    id: ProblemId
    message: str
    harmful: bool = True


@dataclass(frozen=True, slots=True)
class Index:
    """An entry that names a device by its number, from 0, among those that the layer sees."""

    number: int


@dataclass(frozen=True, slots=True)
class Uuid:
    """An entry that names a device by its UUID or a prefix of it, as written."""

    text: str


@dataclass(frozen=True, slots=True)
class Mask:
    """A mask as a runtime reads it.

    ``entries`` is None when the variable is not set or hides nothing, and empty when it hides all.
    ``deliberate`` means that the mask hides all on purpose (empty, or "-1" first). ``fails`` means
    that the layer fails to start and shows nothing, unless the entries name every device.
    """

    entries: tuple[Index | Uuid, ...] | None
    problems: tuple[Problem, ...] = ()
    deliberate: bool = False
    fails: bool = False


def quoted(text: str) -> str:
    """A mask or an entry for a message: one line, cut where it is long."""
    if len(text) <= _SHOWN_CHARACTERS:
        return ascii(text)
    return f"{text[:_SHOWN_CHARACTERS]!a}… ({text.count(',') + 1} entries)"


RUNTIMES: Final[Mapping[str, Runtime]] = LazyMapping(
    lambda: {each.masks.name: each.masks for each in vendors().values() if each.masks is not None}
)
"""The runtimes by the name of the torch build that uses them."""

RULES: Final[Mapping[str, MaskRules]] = LazyMapping(
    lambda: {rules.layer: rules for each in RUNTIMES.values() for rules in each.layers}
)
"""The layers by name."""


def runtime_named(name: str) -> Runtime:
    """The runtime of that name; raises VisibilityError for an unknown one."""
    try:
        return RUNTIMES[name]
    except KeyError:
        raise VisibilityError(
            f"no runtime is called {name!r}: choose one of {', '.join(RUNTIMES)}"
        ) from None


def relevant_runtimes(build: str | None, vendors: Iterable[str]) -> tuple[str, ...]:
    """The runtimes of a torch build of that kind and of GPUs of those vendors.

    :param build: the kind of the build of torch ("cuda"); None without torch.
    :param vendors: the vendors of the machine's GPUs.
    """
    present = set(vendors)
    return tuple(
        name for name, runtime in RUNTIMES.items() if name == build or runtime.vendor in present
    )

"""Masks of visible devices: the types of devices, masks and problems, and how a layer of a runtime
or ``torch.cuda.device_count`` reads one mask.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from itertools import takewhile
from typing import TYPE_CHECKING, Final

from portagpu.base.errors import PortagpuError
from portagpu.facts.vendors import Blanks, LazyMapping, MaskRules, Numbers, Repeated, vendors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from portagpu.facts.vendors import Runtime


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


if TYPE_CHECKING:
    _Report = Callable[[ProblemId, int, str], None]


_SIGNED: Final = re.compile(r"[+-]?[0-9]+")
_PLAIN: Final = re.compile(r"0|[1-9][0-9]*")
_C_LITERAL: Final = re.compile(r"([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)")
_QUOTED: Final = re.compile(r' *"(.*)" *', re.DOTALL)
_QUOTES: Final = ('"', "'")
_MAX_DIGITS: Final = 18


@dataclass(frozen=True, slots=True)
class _ListEnd:
    """An entry that ends the list: on purpose (a negative number), or because of a problem."""

    problem: ProblemId | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class _Named:
    """An entry that names a device, with a problem of its spelling if any."""

    entry: Index | Uuid
    problem: ProblemId | None = None
    why: str = ""


def parse(text: str | None, rules: MaskRules, variable: str | None = None) -> Mask:
    """The mask as a layer with these rules reads it.

    Takes any string, in time linear in its length. Each kind of problem is reported once.

    :param text: the value of the variable; None where it is not set.
    :param rules: how the layer reads it.
    :param variable: its name in messages; by default the first of the rules.
    :returns: the entries, and the problems that were found.
    """
    name = variable or rules.variables[0]
    if text is None:
        return Mask(None)
    if text == "":
        return Mask((), _empty_mask(name, rules), deliberate=True)
    in_quotes = _QUOTED.fullmatch(text) if rules.removes_quotes else None
    if in_quotes is None:
        return _parse_list(text, rules, name)
    problem = Problem(
        ProblemId.QUOTED,
        f"{name}={quoted(text)} has quotes in its value, which only {rules.layer} removes: "
        "write it without",
    )
    if not in_quotes[1]:
        return Mask(None, (problem,))
    inner = _parse_list(in_quotes[1], rules, name)
    return Mask(inner.entries, (problem, *inner.problems), inner.deliberate)


def _parse_list(text: str, rules: MaskRules, name: str) -> Mask:
    tokens = text.split(",")
    prefix = next((each for each in rules.uuid_prefixes if text.startswith(each)), None)
    entries: dict[Index | Uuid, None] = {}
    problems: dict[ProblemId, Problem] = {}

    def report(kind: ProblemId, position: int, text_of: str) -> None:
        # the message costs as much as the mask is long
        if kind not in problems:
            where = f"{name}={quoted(text)}: entry {position + 1} ({quoted(tokens[position])}) "
            problems[kind] = Problem(kind, where + text_of)

    for position, token in enumerate(tokens):
        read = _read_entry(token, rules, prefix)
        if isinstance(read, _ListEnd):
            _report_end(read, position, tokens, report)
            by_will = read.problem is None and position == 0
            fails = rules.empty_entry_fails and _is_empty(position, tokens)
            return Mask(tuple(entries), tuple(problems.values()), by_will, fails)
        if read.problem is not None:
            report(read.problem, position, read.why)
        if read.entry in entries:
            report(ProblemId.REPEATED, position, repeated_text(rules))
            if rules.repeated is Repeated.HIDES_ALL:
                return Mask((), tuple(problems.values()))
            if rules.repeated is Repeated.ENDS:
                break
        entries[read.entry] = None
    if rules.uuids_since is not None and any(isinstance(each, Uuid) for each in entries):
        kind = ProblemId.UUID_SUPPORT
        text_of = (
            f"{rules.layer} reads UUIDs since {rules.uuids_since}; older ones hide all: use numbers"
        )
        problems[kind] = Problem(kind, f"{name}={quoted(text)}: {text_of}", harmful=False)
    return Mask(tuple(entries), tuple(problems.values()))


def repeated_text(rules: MaskRules) -> str:
    """The effect of a repeated device, for a message."""
    return f"names a device again, for {rules.layer} {rules.repeated.value}: name each once"


def _report_end(end: _ListEnd, position: int, tokens: list[str], report: _Report) -> None:
    after = len(tokens) - position - 1
    ends = f"the list, with {after} more after it" if after else "the list"
    if end.problem is not None:
        if tokens[position].strip() or _is_empty(position, tokens):
            report(end.problem, position, end.why.replace("the list", ends, 1))
    elif after:
        report(ProblemId.AFTER_END, position, f"ends {ends}: remove what must not be seen")


def _is_empty(position: int, tokens: list[str]) -> bool:
    """Whether an entry is empty; a comma at the very end makes no entry."""
    if tokens[position].strip():
        return False
    return bool(tokens[position]) or position == 0 or position + 1 < len(tokens)


def _empty_mask(name: str, rules: MaskRules) -> tuple[Problem, ...]:
    if rules.empty_hides_since is None:
        return ()
    return (
        Problem(
            ProblemId.EMPTY_MASK,
            f"{name} is empty, which hides every device since {rules.empty_hides_since} and none "
            "before: write -1 to hide all, or unset it",
            harmful=False,
        ),
    )


def _read_entry(token: str, rules: MaskRules, prefix: str | None) -> _Named | _ListEnd:
    text = token.strip() if rules.blanks is Blanks.EVERYWHERE else token
    if rules.one_kind and prefix is not None:
        if text.startswith(prefix):
            return _Named(Uuid(text))
        if text.strip().startswith(prefix):
            return _blanks(rules)
        return _mixed_kinds(rules)
    folded = text if rules.uuid_case_counts else text.upper()
    if any(folded.startswith(each) for each in rules.uuid_prefixes):
        if rules.one_kind:
            return _mixed_kinds(rules)
        return _read_uuid(text, rules)
    return _read_number(text, rules)


def _read_uuid(text: str, rules: MaskRules) -> _Named | _ListEnd:
    least, most = rules.uuid_characters or (0, len(text))
    if least <= len(text) <= most:
        return _Named(Uuid(text))
    why = f"is not a UUID for {rules.layer}, which takes {least} to {most} characters"
    return _ListEnd(ProblemId.UNREADABLE, why)


def _read_number(text: str, rules: MaskRules) -> _Named | _ListEnd:
    if rules.numbers is Numbers.LEADING:
        return _read_leading(text, rules)
    if rules.numbers is Numbers.C_LITERAL:
        return _read_c_literal(text, rules)
    if _PLAIN.fullmatch(text):
        return _Named(Index(_clipped_number(text)))
    return _end_at(text, rules)


def _read_leading(text: str, rules: MaskRules) -> _Named | _ListEnd:
    start = text.lstrip() if rules.blanks is Blanks.AT_NUMBERS else text
    found = _SIGNED.match(start)
    if found is None:
        return _end_at(text, rules)
    value = _clipped_number(found[0])
    if value < 0:
        return _ListEnd()
    if start[found.end() :].strip():
        why = f"is read as {value}: write numbers with commas between them, ranges are not read"
        return _Named(Index(value), ProblemId.TRAILING_TEXT, why)
    return _Named(Index(value))


def _read_c_literal(text: str, rules: MaskRules) -> _Named | _ListEnd:
    found = _C_LITERAL.fullmatch(text)
    if found is None:
        return _end_at(text, rules)
    digits = found[2]
    base = 16 if digits[1:2] in ("x", "X") else 8 if digits.startswith("0") else 10
    value = _clipped_number(found[1] + (digits[2:] if base == 16 else digits), base)
    if value < 0:
        return _ListEnd()
    if base == 16 or (base == 8 and value > 7):
        why = f"is read as {value} in base {base}: write it in decimal"
        return _Named(Index(value), ProblemId.NUMBER_BASE, why)
    return _Named(Index(value))


def _end_at(text: str, rules: MaskRules) -> _ListEnd:
    """The end of the list at a text that names no device, with the reason."""
    bare = text.strip()
    if not bare:
        if rules.empty_entry_fails:
            why = f"is empty, and {rules.layer} fails to start: remove the comma"
        else:
            why = "is empty and ends the list: remove the comma"
        return _ListEnd(ProblemId.UNREADABLE, why)
    if re.fullmatch(r"-[0-9]+", text):
        return _ListEnd()
    if bare.startswith(_QUOTES):
        why = f"starts with a quote, which ends the list for {rules.layer}: write it without"
        return _ListEnd(ProblemId.QUOTED, why)
    if bare != text and (
        _PLAIN.fullmatch(bare) or any(bare.startswith(each) for each in rules.uuid_prefixes)
    ):
        return _blanks(rules)
    why = f"names no device for {rules.layer} and ends the list: name devices by number or UUID"
    return _ListEnd(ProblemId.UNREADABLE, why)


def _blanks(rules: MaskRules) -> _ListEnd:
    why = f"has blanks, which end the list for {rules.layer}: write commas alone"
    return _ListEnd(ProblemId.BLANKS, why)


def _mixed_kinds(rules: MaskRules) -> _ListEnd:
    why = f"is of another kind than the first, which ends the list for {rules.layer}: use one kind"
    return _ListEnd(ProblemId.MIXED_KINDS, why)


def _clipped_number(digits: str, base: int = 10) -> int:
    """The digits as a number. A number beyond any count of devices keeps its sign only."""
    sign = -1 if digits.startswith("-") else 1
    bare = digits.lstrip("+-").lstrip("0")
    return sign * (int(bare, base) if 0 < len(bare) <= _MAX_DIGITS else 10**18 if bare else 0)


_UUID_PREFIXES: Final = ("GPU-", "MIG-")
_MAX_DEVICES: Final = 64
"""torch's list where no variable is set has this many numbers."""


@dataclass(frozen=True, slots=True)
class TorchView:
    """torch's own reading, which may differ from the runtime's.

    ``entries`` is its list of numbers or of UUIDs, None where it takes every device. ``count`` is
    its number of devices, None where it asks the runtime or raises; ``error`` is what it raises.
    Both are true where the management library answers. Otherwise torch asks the runtime.
    """

    entries: tuple[int, ...] | tuple[str, ...] | None = None
    count: int | None = None
    error: str | None = None


def torch_list(environment: Mapping[str, str], runtime: Runtime) -> TorchView:
    """torch's list of devices, without ``count``, which needs the devices."""
    rules = runtime.torch
    if rules is None:
        return TorchView()
    counted = None if rules.counted is None else environment.get(rules.counted)
    if counted is not None:
        left = len(counted.split(","))
        mask = environment.get(rules.variables[0])
        if mask is None:
            return TorchView(tuple(range(left)))
        if len(mask.split(",")) > left:
            return TorchView(
                error=f"{rules.variables[0]} contains more devices than {rules.counted}"
            )
    else:
        mask = next((environment[name] for name in rules.variables if name in environment), None)
    if mask is None:
        return TorchView()
    try:
        return TorchView(_torch_entries(mask))
    except ValueError as error:
        return TorchView(error=str(error))


def torch_view(
    environment: Mapping[str, str], devices: Sequence[DeviceId], runtime: Runtime
) -> TorchView:
    """torch's list and number of devices on a machine with ``devices``."""
    view = torch_list(environment, runtime)
    if view.error is not None or runtime.torch is None:
        return view
    whole = {device.index: device.parent or device.uuid for device in devices}
    if view.entries is None:
        return TorchView(None, min(_MAX_DEVICES, len(whole)))
    if not view.entries:
        return TorchView(view.entries, 0)
    names = [entry for entry in view.entries if isinstance(entry, str)]
    if not names:
        return TorchView(view.entries, _count_numbers(view.entries, len(whole)))
    if names[0].startswith(runtime.torch.asks_for or ("\0",)):
        return TorchView(view.entries)
    uuids = [uuid or "" for _, uuid in sorted(whole.items())]
    if runtime.torch.bare_uuids:
        names = [name.replace("GPU-", "", 1) for name in names]
        uuids = [uuid.removeprefix("GPU-").lower() for uuid in uuids]
    return TorchView(view.entries, _count_names(names, uuids))


def _torch_entries(mask: str) -> tuple[int, ...] | tuple[str, ...]:
    prefix = next((each for each in _UUID_PREFIXES if mask.startswith(each)), None)
    if prefix is not None:
        kept = tuple(takewhile(lambda each: each.startswith(prefix), mask.split(",")))
        return kept if len(set(kept)) == len(kept) else ()
    numbers: dict[int, None] = {}
    for token in mask.split(","):
        number = _torch_number(token.strip())
        if number in numbers:
            return ()
        if number < 0:
            break
        numbers[number] = None
    return tuple(numbers)


def _torch_number(text: str) -> int:
    """torch's number of an entry, -1 for none; raises ValueError where torch does."""
    sign = text[:1] if text[:1] in ("+", "-") else ""
    digits = "".join(takewhile(str.isdigit, text[len(sign) :]))
    return int(sign + digits) if sign or digits else -1


def _count_numbers(numbers: Sequence[object], devices: int) -> int:
    return sum(1 for _ in takewhile(lambda each: isinstance(each, int) and each < devices, numbers))


def _count_names(names: Sequence[str], uuids: Sequence[str]) -> int:
    found: set[int] = set()
    for name in names:
        matching = [at for at, uuid in enumerate(uuids) if uuid.startswith(name)]
        if len(matching) != 1:
            break
        if matching[0] in found:
            return 0
        found.add(matching[0])
    return len(found)

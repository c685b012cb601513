"""What a thread's profile shows, beside the blocks that were marked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from portagpu.facts.captures.labels import decode

PLAIN: Final = ("forward", "a b", "layer/3")
"""Names that a profile shows as they are."""
Shown = tuple[str, str, tuple[tuple[str, Any], ...]]
"""Domain, name and labels, as a profile tells them."""


@dataclass(frozen=True, slots=True)
class Node:
    """A block as it should be shown, the number of the one around it, and whether it may lack."""

    shown: Shown
    around: int | None
    may_lack: bool


@dataclass(frozen=True, slots=True, eq=False)
class Event:
    """A block of a profile, in nanoseconds."""

    name: str
    begin: int
    end: int


def compared(events: list[Event], expected: list[Node], thread: bool) -> str:
    """The first difference between what a thread's profile shows and what was marked."""
    where = " of another thread" if thread else ""
    left = list(enumerate(expected))
    around: list[tuple[Event, int]] = []
    seen: set[int] = set()
    for number, event in enumerate(events):
        name, labels, domain = decode(event.name)
        found = (domain, name, tuple(labels.items()))
        while left and left[0][1].may_lack and not _is(event, found, left[0][1].shown):
            left.pop(0)
        if not left:
            return f"the profile{where} shows a block {_short(event.name)} that was not marked"
        index, node = left.pop(0)
        seen.add(index)
        if not _is(event, found, node.shown):
            told = _told(node.shown)
            return f"block {number + 1}{where} is {_short(event.name)}, and was marked as {told}"
        if name in PLAIN and not labels and not domain and event.name != name:
            return f"the block {name!r}{where} is shown as {_short(event.name)}"
        while around and around[-1][0].end < event.end:
            around.pop()
        parent = around[-1][1] if around else None
        around.append((event, index))
        outer = node.around
        while outer is not None and outer not in seen and expected[outer].may_lack:
            outer = expected[outer].around
        if parent != outer:
            inside = "no block" if parent is None else _told(expected[parent].shown)
            right = "no block" if outer is None else _told(expected[outer].shown)
            return (
                f"the block {_short(event.name)}{where} is inside {inside}, and was inside {right}"
            )
    missing = next((node for _, node in left if not node.may_lack), None)
    return (
        "" if missing is None else f"the block {_told(missing.shown)}{where} is not in the profile"
    )


def _short(name: str) -> str:
    """A name for a sentence, with its length if it is long."""
    return repr(name) if len(name) <= 80 else f"{name[:40]!r}... of {len(name)} characters"


def _is(event: Event, found: Shown, shown: Shown) -> bool:
    """Whether it is that block; a device may show a name as it is, whatever it would decode to."""
    return _same(found, shown) or shown == ("", event.name, ())


def _same(found: Shown, shown: Shown) -> bool:
    return found == shown and _types(found) == _types(shown)


def _types(shown: Shown) -> list[type]:
    return [type(value) for _, value in shown[2]]


def _told(shown: Shown) -> str:
    domain, name, labels = shown
    of = f" of the domain {domain}" if domain else ""
    return f"{_short(name)}{of}" + (f" with {dict(labels)}" if labels else "")

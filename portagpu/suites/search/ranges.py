"""Profiler ranges: a model of nesting, and programs of blocks that torch's profiler records.

Every annotated block is in torch's profile, with its name, its labels and its domain, under the
block around it in its thread: so :class:`portagpu.devices.annotations.annotate` has it for every
device. What a device's own calls mark has to be in it where the device has no vendor, and may be
where they report one to the profiler. Depths and errors are judged on every device. Blocks that
were open when the recording began are not in it."""

from __future__ import annotations

import math
import warnings
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from portagpu.facts.captures.labels import DOMAIN, decode
from portagpu.suites.search.area import Area

if TYPE_CHECKING:
    from collections.abc import Callable

    from hypothesis.strategies import SearchStrategy

    from portagpu.devices.contract import Backend
    from portagpu.runs.world import Rank
    from portagpu.suites.search.area import Program, Runners


PLAIN: Final = ("forward", "a b", "layer/3")
"""Names that a profile shows as they are."""
Shown = tuple[str, str, tuple[tuple[str, Any], ...]]
"""Domain, name and labels, as a profile shows them."""
NAMES: Final = (
    *("forward", "", "a b", "layer/3", 'a "quote"', "back\\slash", "schöne Grüße", "日本"),
    *(
        "tab\tand\nline",
        "x" * 500,
        "50%20",
        "<b>&\"'</b>",
        "{'k':1}",
        "portagpu:x",
        "a:b",
        "it's",
        " ",
    ),
)
LABELS: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"step": 3},
    {"step": -(2**63), "loss": 0.1, "ok": True},
    {"text": "it's {here}", "empty": ""},
    {"big": 2**70, "small": 5e-324, "no": False},
    {"infinite": float("inf")},
    {"ü": 'schön "so"\n'},
)
DOMAINS: Final = (DOMAIN, "mine", "a.b-c_1")
COLORS: Final = (None, "red", "#00ff80", 0x123456)
KINDS: Final = ("annotate", "labelled", "function", "push", "region")
THREAD_NAMES: Final = ("the main thread begins", "the other thread begins")
MAX_LEFT: Final = 64
"""Ranges that another program may have left open, where it was ended by an error."""


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
            marked = _as_marked(node.shown)
            return f"block {number + 1}{where} is {_short(event.name)}, and was marked as {marked}"
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
            inside = "no block" if parent is None else _as_marked(expected[parent].shown)
            right = "no block" if outer is None else _as_marked(expected[outer].shown)
            return (
                f"the block {_short(event.name)}{where} is inside {inside}, and was inside {right}"
            )
    missing = next((node for _, node in left if not node.may_lack), None)
    return (
        ""
        if missing is None
        else f"the block {_as_marked(missing.shown)}{where} is not in the profile"
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


def _as_marked(shown: Shown) -> str:
    domain, name, labels = shown
    of = f" of the domain {domain}" if domain else ""
    return f"{_short(name)}{of}" + (f" with {dict(labels)}" if labels else "")


class _Ranges(Area):
    name = "ranges"

    def programs(self, gpu: Backend) -> SearchStrategy[Program]:
        from portagpu.suites.search.strategies import call, programs

        thread = (False, False, True)
        label = tuple(range(len(LABELS)))
        enter = call(
            "enter",
            kind=KINDS,
            title=NAMES,
            labels=label,
            domain=DOMAINS,
            color=COLORS,
            thread=thread,
        )
        leave = call("leave", error=(False, True), thread=thread)
        own = (
            call("mark", title=NAMES, thread=thread),
            call("push_and_pop", title=NAMES, times=(1, 2, 3, 5), thread=thread),
        )
        return programs(
            *(enter, enter, enter, leave, leave),
            *own,
            call("decorated", title=NAMES, labels=label, error=(False, True), thread=thread),
            call("again", title=NAMES, times=(2, 3), thread=thread),
            call("pop_of_none", thread=thread),
            call("listen"),
            call("listens", thread=thread),
            most=14,
        )

    def calls(self) -> Runners:
        return CALLS

    def difference(self, rank: Rank, program: Program) -> str:
        run = _Run(rank.gpu)
        with ExitStack() as blocks:
            blocks.callback(run.close)
            return run.all(program)


@dataclass(slots=True)
class _Open:
    """A block that is open: how it is closed, and its node where it is recorded."""

    kind: str
    close: Callable[..., Any]
    node: int | None


@dataclass(slots=True)
class _Run:
    """One program on the device and in the model; the main thread is False, the other one True."""

    gpu: Backend
    stacks: dict[bool, list[_Open]] = field(default_factory=lambda: {False: [], True: []})
    nodes: dict[bool, list[Node]] = field(default_factory=lambda: {False: [], True: []})
    """By thread, in the order of their beginnings: blocks, and the number of the one around."""
    profile: Any = None
    other: ThreadPoolExecutor | None = None
    named: bool = False
    """Whether the profile shows which thread is the other one."""

    def all(self, program: Program) -> str:
        """The first difference."""
        wrong = self._none_open()
        if not any(name == "listen" for name, _ in program):
            wrong = wrong or self.listen()
        if wrong:
            return wrong
        for name, given in program:
            found: str | None = CALLS[name](self, **given)
            if found:
                return found
        for thread, stack in self.stacks.items():
            while stack:
                found = self.leave(False, thread)
                if found:
                    return found
        return self._recorded()

    def close(self) -> None:
        """Close what a difference left open."""
        for thread, stack in self.stacks.items():
            while stack:
                self._in(thread, partial(stack.pop().close, None, None, None))
        if self.profile is not None:
            self.profile.__exit__(None, None, None)
            self.profile = None
        if self.other is not None:
            self.other.shutdown()

    def _in(self, thread: bool, do: Callable[[], Any]) -> Any:
        if not thread:
            return do()
        self.other = self.other or ThreadPoolExecutor(1)
        if self.profile is not None and not self.named:
            self.named = True
            self.other.submit(_name_thread, other=True).result()
        return self.other.submit(do).result()

    # the model

    def _depth(self, thread: bool) -> int:
        """How many ranges are open that range_push opened."""
        return sum(each.kind == "push" for each in self.stacks[thread])

    def _name(self, title: str, kind: str) -> str:
        """What a device's own call marks: on one of a vendor no other kind of block is named so."""
        return f"{title} of {kind}" if self.gpu.plugin.vendor else title

    def _node(
        self, thread: bool, name: str, labels: dict[str, Any], domain: str, may_lack: bool = False
    ) -> int | None:
        """A block begins; its number, None where nothing records it."""
        if self.profile is None:
            return None
        shown = (
            "" if domain == DOMAIN else domain,
            name,
            tuple(
                (key, str(value) if value == math.inf else value) for key, value in labels.items()
            ),
        )
        around = [each.node for each in self.stacks[thread] if each.node is not None]
        self.nodes[thread].append(Node(shown, around[-1] if around else None, may_lack))
        return len(self.nodes[thread]) - 1

    # calls

    def _none_open(self) -> str:
        """Close what another program left open."""
        for _ in range(MAX_LEFT):
            try:
                found = self.gpu.range_pop()
            except IndexError:
                return ""
        return f"range_pop() without an open range is {found}, and no IndexError"

    def listen(self) -> str:
        from torch.autograd.profiler import profile

        if self.profile is not None:
            return ""
        self.profile = profile(**_options())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.profile.__enter__()
        _name_thread(other=False)
        return self.listens(thread=False)

    def listens(self, thread: bool) -> str:
        if thread or self.profile is None or self._in(thread, self.gpu.listens) is True:
            return ""
        return "listens() is not True while torch's profiler records"

    def enter(
        self, kind: str, title: str, labels: int, domain: str, color: Any, thread: bool
    ) -> str:
        from portagpu.devices.annotations import annotate, region

        given: dict[str, Any] = dict(LABELS[labels])
        may_lack = bool(self.gpu.plugin.vendor) and kind != "function"
        title = (
            title
            if kind == "function" or (kind == "region" and not title)
            else self._name(title, kind)
        )
        if kind == "push":
            depth = self._in(thread, partial(self.gpu.range_push, title))
            expected = self._depth(thread)
            node = self._node(thread, title, {}, DOMAIN, may_lack)
            self.stacks[thread].append(_Open(kind, partial(_pop, self.gpu), node))
            return "" if depth == expected else f"range_push() is {depth} at depth {expected}"
        make: Callable[[], Any]
        if kind == "annotate":
            given, domain = {}, DOMAIN
            make = partial(self.gpu.annotate, title)
        elif kind == "labelled":
            make = partial(self.gpu.labelled_block, title, given, domain, color)
        elif kind == "function":
            make = partial(annotate, title, domain=domain, color=color, **given)
        else:
            given, domain = {}, DOMAIN
            make = partial(region, title)

        def begin() -> Any:
            block = make()
            block.__enter__()
            return block

        block = self._in(thread, begin)
        marked = kind != "region" or title
        node = self._node(thread, title, given, domain, may_lack) if marked else None
        self.stacks[thread].append(_Open(kind, block.__exit__, node))
        return ""

    def leave(self, error: bool, thread: bool) -> str:
        if not self.stacks[thread]:
            return ""
        block = self.stacks[thread].pop()
        raised = KeyError("on purpose")
        if block.kind == "push":
            found = self._in(thread, self.gpu.range_pop)
            expected = self._depth(thread)
            return "" if found == expected else f"range_pop() is {found} at depth {expected}"
        how = (KeyError, raised, None) if error else (None, None, None)
        try:
            swallowed = self._in(thread, partial(block.close, *how))
        except KeyError as other:
            return "" if error and other is raised else f"a block ended with {other!r}"
        return "an annotated block swallowed the error that was raised in it" if swallowed else ""

    def mark(self, title: str, thread: bool) -> None:
        """A mark is for the vendor's profiler: torch's may show it or not."""
        self._in(thread, partial(self.gpu.mark, f"{title} mark"))
        self._node(thread, f"{title} mark", {}, DOMAIN, may_lack=True)

    def decorated(self, title: str, labels: int, error: bool, thread: bool) -> str:
        from portagpu.devices.annotations import annotate

        def body(one: int, two: int = 2) -> int:
            if error:
                raise KeyError("on purpose")
            return one + two

        function = annotate(title, **LABELS[labels])(body)
        try:
            found = self._in(thread, partial(function, 40))
        except KeyError:
            found = None
        self._node(thread, title, dict(LABELS[labels]), DOMAIN)
        expected = None if error else 42
        if found != expected:
            return f"a decorated function gave {found}, not {expected}"
        return "" if function.__name__ == "body" else "a decorated function lost its name"

    def again(self, title: str, times: int, thread: bool) -> None:
        """One object, entered several times before it is left."""
        from portagpu.devices.annotations import annotate

        block = annotate(title)

        def nest() -> None:
            for _ in range(times):
                block.__enter__()
            for _ in range(times):
                block.__exit__(None, None, None)

        self._in(thread, nest)
        opened = 0
        for _ in range(times):
            node = self._node(thread, title, {}, DOMAIN)
            if node is not None:
                self.stacks[thread].append(_Open("again", _nothing, node))
                opened += 1
        del self.stacks[thread][len(self.stacks[thread]) - opened :]

    def push_and_pop(self, title: str, times: int, thread: bool) -> str:
        """Several ranges, each in the one before."""
        for _ in range(times):
            found = self.enter("push", title, 0, DOMAIN, None, thread)
            if found:
                return found
        for _ in range(times):
            found = self.leave(False, thread)
            if found:
                return found
        return ""

    def pop_of_none(self, thread: bool) -> str:
        if self._depth(thread):
            return ""
        try:
            found = self._in(thread, self.gpu.range_pop)
        except IndexError:
            return ""
        return f"range_pop() without an open range is {found}, and no IndexError"

    # what was recorded

    def _recorded(self) -> str:
        if self.profile is None:
            return ""
        profile, self.profile = self.profile, None
        profile.__exit__(None, None, None)
        threads: dict[int, list[Event]] = defaultdict(list)
        # not function_events, from which torch removes the only child that has its parent's name
        for event in sorted(profile.kineto_results.events(), key=lambda one: one.start_ns()):
            begin = event.start_ns()
            shown = Event(event.name(), begin, begin + event.duration_ns())
            if event.is_user_annotation():
                threads[event.start_thread_id()].append(shown)
        for events in threads.values():
            own = {THREAD_NAMES[each]: each for each in (False, True)}
            thread = own.get(events[0].name)
            if thread is not None:
                found = compared(events[1:], self.nodes[thread], thread)
                if found:
                    return found
        return ""


CALLS: Final[Runners] = {
    "again": _Run.again,
    "decorated": _Run.decorated,
    "enter": _Run.enter,
    "leave": _Run.leave,
    "listen": _Run.listen,
    "listens": _Run.listens,
    "mark": _Run.mark,
    "pop_of_none": _Run.pop_of_none,
    "push_and_pop": _Run.push_and_pop,
}
"""What runs each call of a program."""


def _nothing(*_: Any) -> None:
    """What ends a block that no call ends."""


def _pop(gpu: Backend, *_: Any) -> None:
    gpu.range_pop()


def _name_thread(other: bool) -> None:
    """Show in the profile which thread this is, by torch alone."""
    import torch

    with torch.profiler.record_function(THREAD_NAMES[other]):
        pass


def _options() -> dict[str, Any]:
    """Of a profile of the host's side, of all threads where this torch can."""
    from torch._C._profiler import _ExperimentalConfig

    options: dict[str, Any] = {"use_cpu": True, "use_kineto": True}
    try:
        options["experimental_config"] = _ExperimentalConfig(profile_all_threads=True)
    except TypeError:  # an older torch
        return options
    return options


AREA: Final = _Ranges()

"""Whether each rank was captured, and why not."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.subprocesses.start import signal_name
from portagpu.base.text import excerpt
from portagpu.facts.captures.model import ON_DEVICE, Kind
from portagpu.facts.captures.profilers import RECORDED
from portagpu.runs.results.run import Result, Verdict
from portagpu.runs.results.wording import at_least

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from portagpu.facts.captures.model import Capture
    from portagpu.facts.captures.profilers import Recorded, Request
    from portagpu.traces.profile.choice import Choice


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """One process that imported torch or has a rank."""

    pid: int
    rank: int | None = None
    world_size: int | None = None
    local_world_size: int | None = None
    torch: str | None = None
    """torch's version; None where it was not imported."""
    ended: bool = False
    """Whether it came to Python's exit handlers."""
    regions: int = 0
    """How many times a region was opened."""
    used_gpu: bool | None = None
    own_profiler: bool = False
    """Whether the program started torch's profiler itself."""
    scheduled: bool = False
    """Whether ``pg.profiling`` decided what is recorded."""
    worker: bool = False
    """Whether it is a helper that ends with its parent, such as a data loader's."""
    files: tuple[str, ...] = ()
    empty: bool = False
    """Whether torch's profiler recorded nothing in it."""
    problem: str = ""


def read_notes(folder: Path) -> tuple[Note, ...]:
    """The notes in ``folder``, by process; a damaged one is left out."""
    known = {each.name for each in fields(Note)}
    found = []
    for file in sorted(folder.glob("*.json")):
        try:
            facts = json.loads(file.read_text("utf-8"))
            facts["files"] = tuple(facts.get("files", ()))
            found.append(Note(**{name: facts[name] for name in known & facts.keys()}))
        except (OSError, ValueError, TypeError, AttributeError):
            continue
    return tuple(found)


def expected_ranks(notes: Iterable[Note]) -> set[int]:
    """The ranks that processes of this machine have: those that began, and their missing peers."""
    notes = [each for each in notes if each.rank is not None]
    ranks = {each.rank for each in notes if each.rank is not None}
    for each in notes:
        if each.world_size is not None and each.world_size == each.local_world_size:
            # all on this machine
            ranks |= set(range(each.world_size))
    return ranks


SUITE: Final = "profile"
AREA: Final = "capture"
COUNTED: Final[tuple[Kind, ...]] = (
    "kernel",
    "copy",
    "set",
    "api",
    "operator",
    "range",
    "collective",
)
_WORDS: Final = {
    "kernel": "kernels",
    "copy": "copies",
    "set": "sets of memory",
    "api": "calls of the runtime",
    "operator": "operators",
    "range": "ranges",
    "collective": "collectives",
    "sync": "waits",
}
_OWN_PROFILER: Final = (
    "the command starts torch's profiler itself, and one at a time records: read the traces that "
    "it writes"
)
_CAPTURE_SOURCE: Final = "a profiled rank that did something has events"


def command_result(code: int, duration_s: float) -> Result:
    """How the command ended."""
    failed = f"died of {signal_name(-code)}" if code < 0 else f"exited with code {code}"
    return Result(
        id=f"{SUITE}/command",
        suite=SUITE,
        area=AREA,
        verdict=Verdict.FAIL if code else Verdict.PASS,
        value=float(code),
        unit="1",
        reason=f"the command {failed}" if code else "",
        duration_s=duration_s,
        extra={"exit_code": code},
    )


def step_result(file: Path, problem: str) -> Result:
    """A step after the command that failed for ``file``."""
    return _result("output", Verdict.FAIL, device=file.name, reason=problem)


def unread_result(file: Path, problem: str) -> Result:
    """A file of the profiler that no reader could read."""
    return _result("output", Verdict.ERROR, device=file.name, reason=problem)


def judge_ranks(captures: Mapping[Path, Capture], launched: Launched) -> list[Result]:
    """One result for each rank that was captured or should have been; at least one."""
    request, notes = launched.request, launched.notes
    expected = expected_ranks(notes) if request.starts_ranks else ()
    by_rank: dict[int | None, list[tuple[Path, Capture]]] = {rank: [] for rank in expected}
    for file, capture in captures.items():
        by_rank.setdefault(_rank(file, capture), []).append((file, capture))
    if not by_rank:
        by_rank[request.rank] = []
    if None in by_rank and len(by_rank) > 1 and not _count(by_rank[None]).total():
        # the launcher, which starts ranks and does nothing else
        del by_rank[None]
    kinds = _expected_kinds(request, launched.choice.on_gpu)
    results = []
    for rank in sorted(by_rank, key=lambda each: -1 if each is None else each):
        own = [each for each in notes if each.rank == rank] if rank is not None else list(notes)
        circumstances = replace(
            launched,
            notes=[each for each in own if not each.worker] or own,
            unread=_of_rank(launched.unread, rank),
        )
        results.append(_rank_result(rank, by_rank[rank], kinds, circumstances))
    return results


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """A command that ended: what may be the reason that a rank has no events."""

    request: Request
    choice: Choice
    code: int
    """The command's exit code."""
    notes: Sequence[Note]
    unread: Sequence[Path]
    """Files of the profiler that could not be opened."""

    @property
    def cut(self) -> bool:
        """Whether torch's profiler made way for one of the program's own."""
        is_torch = self.choice.profiler.name == "torch"
        return is_torch and any(each.own_profiler for each in self.notes)

    def why(self, kinds: Sequence[Kind], found: Sequence[tuple[Path, Capture]]) -> str:
        """The reason, in a sentence; the most certain one."""
        notes, torch = self.notes, [each for each in self.notes if each.torch is not None]
        profiler = self.choice.profiler.name
        own = profiler == "torch"
        if said := self._messages(found):
            return said
        if self.unread:
            return f"{self.unread[0].name} cannot be opened"
        if problem := next((each.problem for each in notes if each.problem), ""):
            return f"the profiler could not record: {problem}"
        if torch and not any(each.ended for each in torch):
            return "the process ended without Python's exit handlers (os._exit, or a signal)"
        if own and any(each.scheduled for each in notes):
            return (
                "the program's own schedule (pg.profiling) recorded nothing: train more steps, or "
                "wait for fewer"
            )
        if self.code:
            return "the command failed before it did anything that is recorded"
        if self.cut:
            return _OWN_PROFILER
        if own and not torch:
            return (
                "the command imported no torch, or its Python ignores PYTHONPATH (options -E, -I "
                "and -S): torch's profiler records what torch does"
            )
        if self.request.region and torch and not any(each.regions for each in torch):
            return "no region was opened: open one with pg.region(name), or leave --region out"
        on_device = not {*ON_DEVICE}.isdisjoint(kinds)
        if on_device and torch and not any(each.used_gpu for each in torch):
            return "the command used no GPU"
        if not own and any(each.own_profiler for each in notes):
            return (
                f"the command starts torch's profiler, which records from the same library as "
                f"{profiler}: leave one of them out"
            )
        if self.request.region and not notes:
            return "no region was opened, or the command used no device"
        if found and kinds == ("range",):
            return "the command marked nothing (portagpu.annotate), or not where it is recorded"
        if own and (self.request.delay_s or self.request.duration_s):
            return "nothing ran in the time that --delay and --duration leave"
        if own:
            return "torch did nothing that is recorded in a process that was started, not forked"
        if found:
            return f"the capture is there, and {profiler} says nothing of its reason"
        return f"{profiler} wrote nothing, and says nothing of its reason"

    def _messages(self, found: Sequence[tuple[Path, Capture]]) -> str:
        """What the tool said of its own capture, with what it means where that is known."""
        said = [
            each
            for _, capture in found
            for level in ("error", "warning")
            for each in capture.messages
            if each.level == level
        ]
        profiler = self.choice.profiler
        for hint in profiler.hints:
            for each in said:
                if re.search(hint.pattern, each.text, re.IGNORECASE):
                    return f"{hint.meaning} ({profiler.name}: {excerpt(each.text)})"
        return f"{profiler.name} says: {excerpt(said[0].text)}" if said else ""


def _expected_kinds(request: Request, on_gpu: bool) -> tuple[Kind, ...]:
    """What a capture must have some of, by the first of RECORDED that was asked for."""
    kinds: dict[Recorded, tuple[Kind, ...]] = {
        "kernels": ("kernel",),
        "copies": ("copy", "set"),
        "runtime": ("api",),
        "ranges": ("range",),
        "communication": ("collective", "api", "range"),
    }
    first = next(each for each in RECORDED if each in request.record)
    on_device = first in ("kernels", "copies", "runtime")
    return ("operator",) if on_device and not on_gpu else kinds[first]


def _rank_result(
    rank: int | None,
    found: Sequence[tuple[Path, Capture]],
    kinds: Sequence[Kind],
    circumstances: Launched,
) -> Result:
    counts = _count(found)
    number = sum(counts[kind] for kind in kinds)
    reason = ""
    if not found:
        reason = f"nothing was captured: {circumstances.why(kinds, found)}"
    elif not number:
        reason = f"no {_WORDS[kinds[0]]} were captured: {circumstances.why(kinds, found)}"
    elif circumstances.cut:
        reason = f"the capture ends early: {_OWN_PROFILER}"
    extra: dict[str, Any] = {
        "counts": dict(counts),
        "files": [file.name for file, _ in found],
        "messages": [
            f"{each.level}: {excerpt(each.text)}"
            for _, capture in found
            for each in capture.messages
        ],
        "problems": [excerpt(each) for _, capture in found for each in capture.problems],
        "dropped": sum(capture.dropped for _, capture in found),
    }
    return _result(
        "captured",
        Verdict.FAIL if reason else Verdict.PASS,
        device=None if rank is None else f"rank {rank}",
        value=float(number),
        unit="1",
        expected=at_least(1, _CAPTURE_SOURCE),
        reason=reason,
        extra=extra,
    )


def _result(what: str, verdict: Verdict, **fields: Any) -> Result:
    return Result(id=f"{SUITE}/{what}", suite=SUITE, area=AREA, verdict=verdict, **fields)


def _rank(file: Path, capture: Capture) -> int | None:
    """The rank in the name, which the launch gave, else that of the processes in it."""
    named = _named_rank(file)
    return capture.rank if named is None else named


def _named_rank(file: Path) -> int | None:
    match = re.match(r"rank(\d+)\.", file.name)
    return int(match[1]) if match else None


def _of_rank(files: Iterable[Path], rank: int | None) -> list[Path]:
    return [file for file in files if _named_rank(file) in (None, rank)]


def _count(found: Iterable[tuple[Path, Capture]]) -> Counter[str]:
    """Kind -> events in all of these captures; kinds that none can have are absent."""
    counts: Counter[str] = Counter()
    for _, capture in found:
        for kind in capture.tables:
            counts[kind] += capture.count(kind) or 0
    return counts


def counts_in_words(counts: Mapping[str, int]) -> str:
    """ "12 kernels, 3 copies": the kinds of COUNTED of which there are any."""
    return ", ".join(f"{counts[kind]} {_WORDS[kind]}" for kind in COUNTED if counts.get(kind))

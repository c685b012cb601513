"""Read a text of any formats: clean it, divide it, and give each part to its reader."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache, partial
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.installation import DamagedInstallation
from portagpu.base.text import excerpt
from portagpu.facts.formats import host
from portagpu.facts.formats.cleaning import clean_streams, without_marks
from portagpu.facts.formats.events import ANSWERS, may_be_event, no_answer_events
from portagpu.facts.formats.foreign_readers import (
    foreign_readers,
    reader_entry_points,
    reader_names,
)
from portagpu.facts.formats.host import kernel_log
from portagpu.facts.formats.sections import MAX_LINE, Shapes, TextPart, divide_text, is_known
from portagpu.facts.formats.wrapped import unwrapped
from portagpu.facts.readings.model import Findings, FormatError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_LOG: Final = "kernel_log"
"""Asked last: any text may have lines of a log."""

UNREAD: Final = "what no reader knows"
_SELECTED: Final = re.compile(
    # a container or a job sees the devices that it was given
    r"\b(?:docker|podman|nerdctl|kubectl|crictl|oc (?:exec|rsh|debug)|singularity|apptainer|enroot"
    r"|srun|salloc)\b|@[0-9a-f]{12}[: ]|@[\w-]{1,80}-[0-9a-z]{5,10}-[0-9a-z]{5}[: ]"
    # an option of the tool that chooses devices
    r"| (?:-i|--id|--device|-g|--gpu)[ =]*\w| -d[ =]*\d"
)
"""In the line of a prompt: not every device of the machine is listed below."""
_WHOLE: Final = re.compile(
    r"[^:|,]{1,80} ?: (?:.*[ (])?(?:N/A|Yes|[Ee]nabled|[Dd]isabled|None|Active|[Tt]rue|[Ff]alse"
    r"|TRUE|FALSE|Error|lost|detected|[a-z]+\.|"
    r"\d[\d.]{0,12} ?(?:[MGKT]i?B|W|C|MHz|%|V|GT/s|[MGK][Bb]/s|Gbps))"
    # of a table of eight links each: up, down or without one
    r"|[A-Z]{3}\d{1,4} +[0-9a-f:.]{12,16}(?: +[UDX]){8}"
    # an address in brackets, which names the device of the line
    r"|.{1,300} \((?:PCI:)?[0-9a-f]{4,8}(?::[0-9a-f]{2}){2}\.[0-7]\)"
    # of a legend, a border, an error in the place of a device
    r"| *[\w#*]{1,5} += .{3,}|\+[-=+]{20,}\+|[Uu]nable to .{10,100}\.[0-7]: .{8,}"
)
"""A line with a label that ends as a whole one does, and not in half a value: what is pasted lacks
the last line end, and what is cut seldom ends so."""
_QUIET_RECORD: Final = re.compile(r'\A\s*\{[^\x00]*"level"\s*:\s*"(?i:info|debug|trace)"')
"""Of a program that writes its log as JSON: what it only informs of is not an output."""
_CONTAINER_BANNER: Final = "Container image Copyright"
_SEVERAL_MACHINES: Final = (
    "the text may be of several machines: give the output of each machine alone"
)
_MAX_SHOWN: Final = 3
_MAX_PROBLEMS: Final = 50


def read_text(text: str) -> tuple[Findings, ...]:
    """The findings of each output in ``text``, in order, with a problem for lines that are left.

    Lines that tools print where they have no answer are read anywhere. Raises FormatError for a
    text of no known format, and for one in which nothing can be used.
    """
    shapes = _shapes()
    found: list[Findings] = []
    refused: list[str] = []
    broken: list[str] = []
    unread: list[tuple[int, str]] = []
    by_stream: list[list[Findings]] = []
    for stream in _streams(text, shapes):
        before = len(found)
        parts, lines, is_report, programs = divide_text(stream, shapes)
        answers = no_answer_events(stream)
        if not answers:
            # an answer in a service's journal stands among lines that say nothing
            lines += programs
        if parts and not is_report:
            unread += lines
        whole = [TextPart(None, 0, lines=stream.split("\n"))]
        for part, reader in _with_readers(parts or whole, broken):
            if reader is None and _QUIET_RECORD.search(part.text[:4000]):
                continue
            if reader is None:
                unread += (
                    [(part.first + n, line) for n, line in enumerate(part.lines)]
                    if parts
                    else lines
                )
                continue
            try:
                one = _parse_part(part, reader)
                found.append(replace(one, complete=_is_complete(one, part, reader, stream)))
            except FormatError as error:
                if no_answer_events(part.text):
                    continue
                refused.append(f"{excerpt(part.title)}: {error}" if part.title else str(error))
        if answers:
            found.append(Findings(kind=ANSWERS, events=answers))
        by_stream.append(found[before:])
    if _are_several_machines(by_stream):
        found = [one if not one.readings else replace(one, breaks_off=True) for one in found]
        broken.append(_SEVERAL_MACHINES)
    unread = [(at, line) for at, line in unread if not no_answer_events(line)]
    if unread or not found:
        broken += foreign_readers().problems
    if not found:
        raise FormatError("; ".join([*(refused or ["its format is not known"])[:1], *broken]))
    problems = [*refused[:_MAX_PROBLEMS], *broken, *_unread_problem(unread)]
    if problems:
        found.append(Findings(kind=UNREAD, problems=tuple(dict.fromkeys(problems))))
    return tuple(found)


def _are_several_machines(streams: Sequence[Sequence[Findings]]) -> bool:
    """Whether two labels of a text have GPUs of one number and tool that are not one by UUID.

    Nodes of one kind have their GPUs at the same addresses, so that these show nothing.
    """
    seen: dict[tuple[str, int], str | int | None] = {}
    for stream in streams:
        own = {
            (one.kind, gpu.index): gpu.uuid or gpu.unique_id
            for one in stream
            for gpu in one.readings
            if gpu.index is not None
        }
        if any(key in seen and (name is None or seen[key] != name) for key, name in own.items()):
            return True
        seen |= own
    return False


def _streams(text: str, shapes: Shapes) -> tuple[str, ...]:
    """The outputs in ``text``, also in the JSON or YAML of what ran the tools."""
    known = partial(is_known, shapes=shapes)

    def says_something(one: str) -> bool:
        return known(one) or bool(no_answer_events(one))

    inner = unwrapped(text, says_something)
    if not inner and (text[:1] == ">" or "\x1b" in text):
        inner = unwrapped(without_marks(text), says_something)
    return tuple(each for one in inner or [text] for each in clean_streams(one, known))


@cache
def readers() -> Mapping[str, Any]:
    """This distribution's readers by module name, in the order in which they are tried.

    Raises DamagedInstallation where its entry points are not of this version.
    """
    try:
        packages = [host, *(import_module(each.value) for each in reader_entry_points(own=True))]
    except ImportError as error:
        raise DamagedInstallation(
            f"this installation of portagpu has entry points of another one ({error}): uninstall "
            "portagpu until pip finds none, and install it again"
        ) from error
    names = [name for package in packages for name in reader_names(package)]
    modules = {name.rpartition(".")[2]: import_module(name) for name in names}
    return dict(sorted(modules.items(), key=lambda each: (each[0] == _LOG, each[0])))


@cache
def _shapes() -> Shapes:
    # an output begins as ours where both could begin
    every = [*readers().items(), *((each.name, each) for each in foreign_readers().readers)]
    return Shapes(
        [(name, shape) for name, each in every for shape in getattr(each, "SHAPES", ())],
        (_LOG, kernel_log.SHAPE),
        "|".join(each.ROOT for _, each in every if hasattr(each, "ROOT")),
    )


def _reader(part: TextPart, broken: list[str]) -> Any:
    """The first reader that matches the part; ours come before those of other distributions."""
    if part.module == _LOG:
        return kernel_log
    text = part.text
    for each in (*readers().values(), *foreign_readers().readers):
        try:
            if each.matches(text):
                return each
        except FormatError as error:
            broken.append(str(error))
    return None


def _with_readers(parts: Sequence[TextPart], broken: list[str]) -> list[tuple[TextPart, Any]]:
    """``parts`` with their readers; repetitions of one output in a row become one part.

    The reader then chooses among the repetitions.
    """
    found: list[tuple[TextPart, Any]] = []
    for part in parts:
        reader = _reader(part, broken)
        last, before = found[-1] if found else (None, None)
        if last is not None and reader is None and not any(map(str.isalnum, part.text)):
            # brackets with which the one before goes on, and breaks off
            last.lines += part.lines
            continue
        if (
            last is not None
            and reader is not None
            and reader is before
            and (last.section, last.shape) == (part.section, part.shape)
            and not getattr(reader, "SINGLE", False)
        ):
            last.lines += part.lines
            last.cut |= part.cut
            last.tail = part.tail
        else:
            found.append((part, reader))
    return found


def _parse_part(part: TextPart, reader: Any) -> Findings:
    ends_in_a_line = not part.cut and _ends_in_a_line(part)
    if part.ends_in_a_line and (ends_in_a_line or _is_before_its_end(part)):
        # half a value is another one
        part.lines.pop()
    found: Findings = reader.parse(part.text)
    name = part.title
    problems = tuple(f"{name}: {each}" for each in found.problems) if name else found.problems
    if part.cut:
        problems += ("the text says that parts of it were left out",)
    if ends_in_a_line:
        problems += (f"the text breaks off in a line: {excerpt(part.tail[-40:])!r}",)
    broken = found.breaks_off or part.cut or ends_in_a_line
    if not _SELECTED.search(part.command) and (missing := _missing_numbers(found)):
        problems += (f"the list goes on without GPU {', '.join(map(str, missing))}",)
        broken = True
    found = replace(found, problems=problems, breaks_off=broken)
    if part.state is None:
        return found
    return replace(
        found,
        readings=tuple(
            replace(one, source=f"{one.source} ({part.state})") for one in found.readings
        ),
        links=tuple(replace(one, source=f"{one.source} ({part.state})") for one in found.links),
    )


def _missing_numbers(found: Findings) -> list[int]:
    """The numbers that a driver's list passes over, where no GPU without a number explains them."""
    numbers = {one.index for one in found.readings if one.index is not None}
    if found.complete is None or not numbers:
        return []
    first, last = min(numbers), max(numbers)
    if last - first < len(found.readings):
        return []
    # a damaged number may be any: what lies between is never listed whole
    return list(islice((n for n in range(first, last) if n not in numbers), _MAX_SHOWN))


def _is_complete(found: Findings, part: TextPart, reader: Any, stream: str) -> bool | None:
    """``Findings.complete`` of one output among others in a text."""
    if found.complete is None:
        return None
    if found.breaks_off or getattr(reader, "MASKED", False):
        return False
    if _SELECTED.search(part.command) is not None or _CONTAINER_BANNER in stream:
        return None
    # what follows shows that the list ended before it
    return found.complete or part.closed


def _ends_in_a_line(part: TextPart) -> bool:
    """Whether the text ends in the middle of the part's last line, as far as that matters."""
    if part.module == _LOG and not may_be_event(part.tail):
        return False
    shape = part.shape
    if not part.tail or shape is None or shape.ends is not None:
        return False
    if shape.checks_its_end or shape.tells_its_end:
        return False
    line = part.tail[:MAX_LINE].strip()
    if not part.ends_in_a_line or line.count("[") > line.count("]"):
        return True
    return (shape.last or _WHOLE).fullmatch(line) is None


def _is_before_its_end(part: TextPart) -> bool:
    """Whether an output with an end mark breaks off in its last line."""
    shape = part.shape
    return shape is not None and shape.ends is not None and not shape.ends.search(part.tail)


def _unread_problem(unread: Sequence[tuple[int, str]]) -> Iterator[str]:
    """One sentence about lines that no reader takes: how many, and the first ones."""
    spoken = [(at, line) for at, line in unread if any(map(str.isalnum, line))]
    if not spoken:
        return
    places: list[tuple[int, str]] = []
    last = -3
    for at, line in spoken:
        if at > last + 2 and len(places) < _MAX_SHOWN:
            places.append((at, line))
        last = at
    shown = ", ".join(f"{excerpt(line, 60)!r} in line {at + 1}" for at, line in places)
    number = "1 line is" if len(spoken) == 1 else f"{len(spoken)} lines are"
    yield f"{number} of no known format: {shown}"

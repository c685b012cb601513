"""Divide a text into the outputs of tools that it holds.

Each reader declares the shapes of its outputs (:class:`portagpu.facts.formats.Shape`). JSON and XML
end with their last bracket or tag. Lines of a kernel's log are recognised one by one, anywhere. A
prompt, a banner or the fence of a code block ends an output and belongs to none."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from portagpu.base.text import excerpt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from portagpu.facts.formats import Shape

_TOOLS: Final = (
    r"(?:sudo |watch |time |srun |timeout |docker |podman |kubectl |cat |/\S{1,60}/)?"
    r"(?:nvidia-|nv-hostengine|rocm|amd|lspci|dmesg|journalctl|lstopo|cat |grep |sudo |srun |"
    r"docker |kubectl |ibstat|ras-mc-ctl|mcelog|ethtool |dcgmi|curl |"
    r"ibdev2netdev|tegrastats|"
    r"watch |ssh |head |tail |echo |uname|lsmod|modinfo|lscpu|free|numactl|python|exit|ls\b|cd )"
)
_BARE_COMMAND: Final = (
    r"(?:sudo )?(?:/?(?:[\w.-]{1,40}/){1,8})?"
    r"(?:nvidia-[a-z]{2,12}|rocm[a-z-]{0,10}|amd-?smi|lspci|dmesg|ibstat(?:us)?|dcgmi|ras-mc-ctl"
    r"|mcelog|ethtool|rocminfo|ibdev2netdev|tegrastats)(?:\.exe)?"
    r"(?: +-{1,2}[\w=,.:*-]{1,60}| +[a-z]{1,20}(?![\w:])| +\d{1,4}(?![\w:.]))*(?: *\|.{0,200})?"
)
"""A command without a prompt, as it is left above its output."""
_BRACKET: Final = r"\[[\w.-]{1,64}(?: [~/\w][\w./~-]{0,80})?\]"
"""Of the prompt of Red Hat's distributions for root, without a user's name or without a folder."""
_BRACKET_PROMPT: Final = re.compile(rf"{_BRACKET}[$#] ")
_PROMPT: Final = re.compile(
    r"(?:\([\w.-]{1,40}\) ?){0,3}\[?[\w.-]{1,64}@[\w.-]{1,64}[: ][^$#%>|]{0,200}[$#%>]"
    r"(?: .{0,500})?"
    rf"|(?:PS )?[A-Z]:\\[^>]{{0,200}}> ?.{{0,500}}|[$#%>+!❯➜] ?{_TOOLS}.{{0,500}}"
    r"|[\w.:~/-]{1,60}[$#] (?=\S).{0,500}|In \[\d{0,5}\]: .{0,500}|CMD: .{0,200}"
    r"|Every \d{1,4}[.,]\d ?s: .{0,500}"
    rf"|[$❯➜]|\$ [A-Za-z./~(].{{0,500}}|{_BRACKET}[$#] .{{0,500}}|{_BARE_COMMAND}"
)
_FENCE: Final = re.compile(
    r"(?:`{3,}|~{3,})[\w+ .-]{0,40}"
    r"|</?(?:details|summary|pre|code|p|br|div)(?: [^<>]{0,100})?/?>(?:[^<>|]{0,200}</summary>)?"
    r"|\[/?code\]",
    re.IGNORECASE,
)
_FENCES: Final = "`~<["
_PROGRESS: Final = re.compile(
    r"% Total +% Received % Xferd .*|Dload +Upload +Total .*"
    r"|(?=.{0,100}--:--:--)[\d.]{1,9}[kMGT]? .*"
)
"""What curl prints of its progress where its output goes into a pipe."""
_FRAME: Final = re.compile(r"#{10,}\s*")
_HEADING: Final = re.compile(r"(={3,8}|-{3,8}|#{3,8}) (?=\S)([^=*#|+]{1,78}?) \1")
"""A heading of a script that prints several outputs: "=== GPUs ==="."""
_RULE: Final = re.compile(r"_{40,60}")
_RULES: Final = re.compile(r"\n\n_{40,60}(?=\n\n)")
_REPORT_RULES: Final = 5
"""Rules with an empty line around them, between the sections of a report of a whole machine."""
_COMMAND: Final = re.compile(r"# \$ (.{1,60})")
_LEFT_OUT: Final = re.compile(
    r"(?:\.{3}|…).{0,60}|-{2,} ?(?:More|8<|>8|snip|cut).{0,40}"
    r"|[\[(<{]?(?=[^\n]{0,60}(?:\.{3}|…|truncat|omit|snip|trimm|cut|skipp|left out|elided))"
    r"(?:\.{3,}|…)? ?(?:the )?(?:rest |output |lines? |rest of (?:the )?output )?"
    r"(?:\d{1,9} (?:more )?\w{1,10} )?(?:is |was |were )?"
    r"(?:truncated|omitted|snip(?:ped)?|trimmed|cut(?: off)?|skipp(?:ed|ing)|left out|elided)?"
    r" ?(?:\.{3,}|…)?[\])>}]?",
    re.IGNORECASE,
)
_MAY_SAY_IT: Final = re.compile(
    r"\.\.\.|…|--|truncat|omit|snip|trimm|cut|skipp|left out|elided", re.IGNORECASE
)
"""What a line that says that others were left out has."""
_PROGRAM: Final = re.compile(
    # months are in the language of the machine: "jan.", "11月"
    r"(?:(?:[^\W\d_]{3,9}\.?|\d{1,2}月) [ \d]\d \d\d:\d\d:\d\d"
    r"|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d{1,9})?"
    r"(?:Z|[+-]\d\d:?\d\d)) (?:[\w.-]{1,64} )?(?!kernel\b)[\w./@()-]{1,80}(?:\[\d{1,9}\])?: "
)
"""A program's line in a system's log, which is passed over where the kernel's lines are read."""
_LOG_INDENT: Final = 8
_BAR: Final = re.compile(r"\+[-=+]+\+")

_JSON: Final = re.compile(r"[ \t]*(?:\{\s*(?:$|\"|\})|\[\s*(?:$|\{|\[|\]))")
_JSON_MARK: Final = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\\?$)|[][{}]')
_XML: Final = re.compile(r"\s*<(?:\?xml\b|!DOCTYPE |!--)")
_TAG: Final = re.compile(r"<([A-Za-z_][\w.:-]{0,80})(?=[\s>/]|$)")
_INSIDE: Final = '<"{}[],'


@dataclass(slots=True, eq=False)
class TextPart:
    """One output: its ``lines``, and where it was in the text.

    ``section`` is the number of prompts, banners and fences before it, ``title`` the last of them.
    ``state`` is "idle" for the banner "idle :: query (-q)". ``cut`` is True where the text itself
    says that lines were left out.
    """

    module: str | None
    """The reader's module; None for JSON and XML, which readers recognise by content."""
    first: int
    section: int = 0
    title: str = ""
    state: str | None = None
    cut: bool = False
    lines: list[str] = field(default_factory=list)
    shape: Shape | None = None
    tail: str = ""
    """The text's last line, if it has no line end and belongs to this part or follows it."""
    command: str = ""
    """The prompt's line before it."""
    closed: bool = False
    """A prompt, a banner or another output follows: the text does not break off in this part."""

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + ("" if self.ends_in_a_line else "\n")

    @property
    def ends_in_a_line(self) -> bool:
        """Whether the text ends with the part's last line, and without its end."""
        return bool(self.tail and self.lines) and self.lines[-1].strip() == self.tail.strip()


class DividedText(NamedTuple):
    parts: list[TextPart]
    unread: list[tuple[int, str]]
    """Lines that belong to no part, each with its number from 0."""
    is_report: bool = False
    """A collector of whole machines wrote it, with sections that nobody has to read."""
    programs: Sequence[tuple[int, str]] = ()
    """Lines of a system's log that programs wrote, where none of them is the kernel's."""


class Shapes:
    """The shapes of all readers, combined into one pattern that each line is matched with once."""

    def __init__(self, shapes: Sequence[tuple[str, Shape]], log: tuple[str, Shape], roots: str):
        self.log_module, self.log = log
        self._shapes = shapes
        self._begins = re.compile("|".join(f"({shape.begins})" for _, shape in shapes))
        self._root = re.compile(rf"\s*<(?:{roots})[\s>]")

    def output_begun_by(self, line: str, below: str) -> tuple[str, Shape] | None:
        """The (module, shape) of which an output begins with ``line``."""
        match = self._begins.match(f"{line}\n{below}")
        return None if match is None else self._shapes[(match.lastindex or 1) - 1]

    def is_log(self, line: str) -> bool:
        # some forms of paste have tabs in the place of blanks
        return self.log.line.match(line.replace("\t", " ") if "\t" in line else line) is not None

    def is_document(self, line: str) -> bool:
        """Whether JSON or XML may begin with ``line``."""
        return any(each.match(line) is not None for each in (_JSON, _XML, self._root))


def is_known(text: str, shapes: Shapes) -> bool:
    """Whether an output begins anywhere in ``text``, or a line of it is of a kernel's log."""
    lines = text.split("\n")
    return any(
        shapes.is_log(line)
        or shapes.is_document(line[:MAX_LINE])
        or shapes.output_begun_by(line.lstrip()[:MAX_LINE], below.lstrip()[:MAX_LINE]) is not None
        for line, below in zip(lines, [*lines[1:], ""], strict=True)
        if line.strip()
    )


MAX_LINE: Final = 4000
"""Characters of a line that are matched."""


def divide_text(text: str, shapes: Shapes) -> DividedText:
    """The outputs in ``text``, in order; the lines of a kernel's log are one."""
    return _Divider(text, shapes).run()


class _Divider:
    def __init__(self, text: str, shapes: Shapes) -> None:
        self.lines = text.split("\n")
        self.shapes = shapes
        self.parts: list[TextPart] = []
        self.unread: list[tuple[int, str]] = []
        self.programs: list[tuple[int, str]] = []
        self.current: TextPart | None = None
        self.log: TextPart | None = None
        self.indent = 0
        self.begun: set[str] = set()
        self.document: _Document | None = None
        self.section, self.title, self.command = 0, "", ""
        self.state: str | None = None
        self.banner: list[str] | None = None
        self.in_log = False
        self.logged = -1
        self.cut = False
        self.at_prompt = False
        self.is_report = len(_RULES.findall(text)) >= _REPORT_RULES

    def run(self) -> DividedText:
        for at in range(len(self.lines)):
            self._line(at)
        if self.banner:
            self.unread += [(len(self.lines) - 1, line) for line in self.banner]
        # after a prompt nothing was cut
        if self.parts and self.lines[-1] and not self.at_prompt:
            (self.current or self.parts[-1]).tail = self.lines[-1]
        programs = self.programs if self.log is None else ()
        return DividedText(self.parts, self.unread, self.is_report, programs)

    def _line(self, at: int) -> None:
        line = self.lines[at]
        seen = line[:MAX_LINE]
        bare = seen.strip()
        if not bare:
            self.in_log = False
            if self.current is not None:
                self.current.lines.append("")
            return
        if self.banner is None and not bare.startswith("[...]") and self.shapes.is_log(bare):
            # most lines of large texts, and nothing else looks like them
            self.at_prompt = False
            self._to_log(at, bare if line[:1].isspace() else line)
            return
        if self.current is None and self.banner is None and _PROGRAM.match(bare) is not None:
            self.at_prompt = False
            self.programs.append((at, line))
            return
        self.at_prompt = self._is_between(line, bare)
        if self.at_prompt:
            return
        if (
            len(bare) < 80
            and _MAY_SAY_IT.search(bare) is not None
            and (words := bare.strip("| "))
            and _LEFT_OUT.fullmatch(words)
        ):
            self._left_out()
        elif self.shapes.is_log(bare):
            self._to_log(at, bare if line[:1].isspace() else line)
        elif self.document is not None and bare[0] in _INSIDE:
            self._to_document(at, line)
        else:
            self._to_shape(at, line, seen, bare)

    # -- what stands between outputs -----------------------------------------------------------

    def _is_between(self, line: str, bare: str) -> bool:
        if _FRAME.fullmatch(bare) is not None:
            if self.banner is None:
                self.banner = []
            else:
                title, words = (
                    self.banner[0].lstrip("# ").strip() if self.banner else "",
                    self.banner,
                )
                command = next((m[1] for each in words if (m := _COMMAND.fullmatch(each[:64]))), "")
                self._close(title or command)
                before, separator, _ = title.partition(" :: ")
                self.state = excerpt(before, 40) if separator else None
                self.banner = None
            return True
        if self.banner is not None:
            if line.startswith("#"):
                self.banner.append(line)
                return True
            # a frame that is not closed is not a banner
            self.banner = None
        if bare[0] in "=-#" and (heading := _HEADING.fullmatch(bare)) is not None:
            self._close(heading.group(2))
            return True
        if self.is_report and _RULE.fullmatch(bare):
            self._close("")
            return True
        if (
            bare[0] in _FENCES
            and _FENCE.fullmatch(bare)
            and (self.document is None or bare[0] != "<")
        ):
            self._close("")
            return True
        if bare[0] in "%D0123456789" and _PROGRESS.fullmatch(bare) is not None:
            return True
        if bare[0] in '|{<"' or (
            bare[0] == "[" and "@" not in bare[:80] and _BRACKET_PROMPT.match(bare) is None
        ):
            return False
        if _PROMPT.fullmatch(bare[:600]) is None or (
            bare[0] == "#" and self._continues_part(line[:MAX_LINE])
        ):
            return False
        self._close(bare)
        return True

    def _close(self, title: str) -> None:
        self.section += 1
        self.title, self.command, self.state = excerpt(title, 80), title, None
        if self.current is not None:
            self.current.closed = bool(title)
        self.current = self.document = None
        self.begun.clear()

    def _left_out(self) -> None:
        if self.parts:
            (self.current or self.parts[-1]).cut = True
        else:
            self.cut = True

    # -- outputs -------------------------------------------------------------------------------

    def _add_part(self, module: str | None, at: int, shape: Shape | None = None) -> TextPart:
        part = TextPart(module, at, self.section, self.title, self.state, self.cut, shape=shape)
        part.command = self.command
        if self.current is not None and module != self.shapes.log_module:
            self.current.closed = True
        self.cut = False
        self.parts.append(part)
        return part

    def _to_log(self, at: int, line: str) -> None:
        if self.log is None:
            self.log = self._add_part(self.shapes.log_module, at, self.shapes.log)
        self.log.lines.append(line)
        self.logged = at
        self.in_log = "[tid " in line[:120]

    def _to_document(self, at: int, line: str) -> None:
        document, part = self.document, self.current
        if document is None or part is None:
            return
        end = document.feed(line)
        part.lines.append(line if end is None else line[:end])
        if end is not None:
            self.current = self.document = None
            rest = line[end:].strip(" \t,;")
            if rest and _PROMPT.fullmatch(rest[:600]) is not None:
                self._close(rest)
            elif any(map(str.isalnum, rest)):
                self.lines[at] = rest
                self._line(at)

    def _to_shape(self, at: int, line: str, seen: str, bare: str) -> None:
        current, document = self.current, self.document
        deeper = len(seen) - len(seen.lstrip()) - self.indent
        anywhere = current is not None and current.shape is not None and current.shape.anywhere
        fits = document is None and (deeper >= 0 or anywhere) and self._continues_part(seen)
        if document is None and not (fits and deeper) and self.shapes.is_document(seen):
            self._open_document(at, line)
            return
        below = self.lines[at + 1][:MAX_LINE].lstrip() if at + 1 < len(self.lines) else ""
        found = self.shapes.output_begun_by(bare, below)
        # what may stand in another output as well begins none there
        inside = fits or document is not None
        if found and inside and (found[1].weak or (deeper and fits and not found[1].anywhere)):
            found = None
        if found is not None:
            self._begin(at, line, bare, found)
        elif document is not None:
            self._to_document(at, line)
        elif fits and current is not None and current.shape is not None:
            current.lines.append(line[min(self.indent, self.indent + deeper) :])
            if current.shape.ends is not None and current.shape.ends.search(seen):
                self.current = None
        elif self.log is not None and (self.in_log or self._continues_log(at, seen)):
            self.log.lines.append(line)
            self.logged = at
        else:
            self.unread.append((at, line))

    def _continues_log(self, at: int, seen: str) -> bool:
        """dmesg indents the rest of a message of several lines by the width of its time."""
        return self.logged == at - 1 and len(seen) - len(seen.lstrip()) >= _LOG_INDENT

    def _continues_part(self, seen: str) -> bool:
        shape = self.current.shape if self.current is not None else None
        blanks = min(self.indent, len(seen) - len(seen.lstrip()))
        return shape is not None and shape.line.match(seen[blanks:]) is not None

    def _begin(self, at: int, line: str, bare: str, found: tuple[str, Shape]) -> None:
        module, shape = found
        current = self.current
        device = shape.device.match(bare) if shape.device is not None else None
        name = bare if device is None else device.group()
        goes_on = self.document is None and current is not None and current.shape is shape
        if goes_on and current is not None and name not in self.begun:
            current.lines.append(line[self.indent :])
            self.begun.add(name)
            return
        above = self._lines_above(at, shape)
        self.document = None
        self.current = part = self._add_part(module, at, shape)
        self.indent = self._common_indent(at)
        part.lines += [each[self.indent :] for each in above]
        part.lines.append(line[self.indent :])
        self.begun = {name}
        if shape.ends is not None and shape.ends.search(line[:MAX_LINE]):
            self.current = None

    def _lines_above(self, at: int, shape: Shape) -> list[str]:
        """Lines just above the first one that belong to the output too: a border, a date."""
        taken: list[str] = []
        current = self.current
        border = current.lines[-1] if current is not None and current.lines else ""
        if current is not None and current.shape is not shape and _BAR.fullmatch(border.strip()):
            return [current.lines.pop()] if shape.line.match(border) else []
        for above in range(at - 1, max(-1, at - 30), -1):
            if not self.lines[above].strip():
                continue
            if not self.unread or self.unread[-1][0] != above:
                break
            if shape.line.match(self.lines[above].lstrip()[:MAX_LINE]) is None:
                break
            taken.append(self.unread.pop()[1])
        return taken[::-1]

    def _common_indent(self, at: int) -> int:
        """Blanks that all lines of the paragraph from ``at`` begin with, up to some of them."""
        least = 200
        for line in self.lines[at : at + 30]:
            if not line.strip():
                break
            least = min(least, len(line[:MAX_LINE]) - len(line[:MAX_LINE].lstrip()))
            if not least:
                break
        return least

    def _open_document(self, at: int, line: str) -> None:
        self.document = _Document(is_json=_JSON.match(line[:MAX_LINE]) is not None)
        self.current = self._add_part(None, at)
        self._to_document(at, line)


class _Document:
    """JSON or XML that is followed line by line to its end."""

    def __init__(self, *, is_json: bool) -> None:
        self._depth = 0
        self._is_json = is_json
        self._root: str | None = None

    def feed(self, line: str) -> int | None:
        """Where in ``line`` the document ends; None where it goes on."""
        return self._json(line) if self._is_json else self._xml(line)

    def _json(self, line: str) -> int | None:
        for match in _JSON_MARK.finditer(line):
            mark = match.group()[0]
            if mark in "[{":
                self._depth += 1
            elif mark in "]}":
                self._depth -= 1
                if self._depth <= 0:
                    return match.end()
        return None

    def _xml(self, line: str) -> int | None:
        if self._root is None:
            match = _TAG.search(line)
            if match is None:
                return None
            self._root = match.group(1)
        closing = f"</{self._root}>"
        at = line.find(closing)
        return None if at < 0 else at + len(closing)

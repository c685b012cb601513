"""Taking out of a tool's output, and of a library's findings, what is nobody's business.

An output is taken apart by its own form (XML, JSON, lines), so that what is escaped is seen and
what is put in its place can be read again. Lists of processes go as a whole.
"""

from __future__ import annotations

import html
import json
import re
from typing import TYPE_CHECKING, Any, Final, Protocol
from xml.sax.saxutils import escape, quoteattr

from portagpu.formats.json_text import json_documents, json_start
from portagpu.redact.scrub import kind_of

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterable, Iterator


class Cleaner(Protocol):
    """What takes out of one text what identifies."""

    @property
    def counts(self) -> Counter[str]:
        """How often each kind was taken out."""

    def value(self, key: str, text: str) -> str:
        """``text`` as it may be kept; ``key`` is the key, tag or label above it, or nothing."""

    def placeholder(self, kind: str, found: str) -> str:
        """What stands for ``found``."""


NO_VALUE: Final = "N/A"
"""What the vendors' tools write where they have none, and what their readers take for none."""

_BLANKS: Final = re.compile(r"[\s-]++")
_OF_PROCESSES: Final = re.compile(
    r"(?:\A|_)(?:process(?:es|_(?:info|information|list|name|id|details))?|pids?|comm|cmd|cmdline"
    r"|command_line|argv|exe|fdinfo|(?:container|job|task|app|pod)_(?:name|id)|namespace|owner"
    r"|cgroup)\Z"
)
_ONE_PROCESS: Final = re.compile(r"pid|process[ _](?:id|name)", re.IGNORECASE)
_OF_RECORDS: Final = frozenset({"gpu", "gpu_id"})
_NUMBERED_PROCESS: Final = re.compile(r"pid_?\d++\Z")
_TAG: Final = re.compile(r"<(?P<end>/?+)(?P<name>[\w:.-]++)(?P<attributes>[^<>]*+)>")
_ATTRIBUTE: Final = re.compile(
    r"(?<![\w:.-])(?P<name>[\w:.-]++)\s*+=\s*+(?P<value>\"[^\"]*+\"|'[^']*+')"
)
_MARKUP: Final = re.compile(
    r"^\ufeff?[ \t]*+<(?:\?xml|!DOCTYPE|[A-Za-z][\w:.-]*+[\s/>])", re.MULTILINE
)
_DECLARED: Final = re.compile(r"<!DOCTYPE\s++([\w:.-]++)")
_HEAD: Final = 4096
_LONGEST_KEY: Final = 80

# "Processes:", "    Process Info : None", "| Processes:       |", "PROCESS_INFO:"
_SECTION: Final = re.compile(
    r"\A(?P<box>\|?)(?P<indent> *+)(?:compute |accounted |kfd |running )?"
    r"(?:process(?:es|[ _](?:info|information|list))|fdinfo)\s*+(?::.*+)?(?P<end>\|?)\Z",
    re.IGNORECASE,
)
_LABEL: Final = re.compile(r"[A-Z][\w ()/.-]{0,60}:(?:\s|\Z)")
_TOP: Final = re.compile(r"GPU\b|Unable to |[=#+$]|-{5}")
_HEADER: Final = re.compile(
    r"(?:\A|[\s,|\"])(?:pid|process[ _]?name|process[ _]?id)(?:\Z|[\s,|\"])", re.IGNORECASE
)
_LONE_PROCESS: Final = re.compile(
    r"\A\s*+(?:pids?\s*+[:=]?\s*+\d|process[ _](?:id|name)\s*+:)", re.IGNORECASE
)

_OF_LOG: Final = (
    # a process calls itself what it likes, in up to 15 bytes (TASK_COMM_LEN), commas among them
    ("process", re.compile(r"(?P<keep>\bname=)(?P<value>.{0,15}(?=, )|[^,\n]++)")),
    ("process", re.compile(r"(?P<keep>\bpid=)(?P<value>[^\s,]++)")),
    (
        "process",
        re.compile(
            r"(?P<keep>\b[Pp]rocess:? )"
            r"(?P<value>[^\n]{0,40}? pid:? \d++(?: thread [^\n]{0,40}? pid \d++)?)"
        ),
    ),
    ("process", re.compile(r"(?P<keep>\b[Cc]omm[:=] ?)(?P<value>[^\n]{1,15})")),
    (
        "host",
        re.compile(
            r"^(?P<keep>(?:<\d{1,3}>)?"
            r"(?:[A-Z][a-z]{2} [ \d]\d [\d:.]{8,15}|\d{4}-\d\d-\d\dT[\d:.,+Z-]{8,24}) )"
            r"(?P<value>[^\s:]++)(?= [^\s:]{1,40}: )",
            re.MULTILINE,
        ),
    ),
)
"""(kind, form) of what a kernel's log says beside the device."""


def is_of_processes(key: str) -> bool:
    """Whether a key, tag or label is of a process or of a list of them."""
    words = _BLANKS.sub("_", key.strip().lower())
    return _OF_PROCESSES.search(words) is not None or _NUMBERED_PROCESS.match(words) is not None


def clean_document(value: Any, clean: Cleaner, key: str = "") -> Any:
    """JSON's values without processes; every text, and every key, as ``clean`` gives it."""
    if isinstance(value, dict):
        if any(_ONE_PROCESS.fullmatch(name) is not None for name in value):
            # the record of a process; of a GPU's record its number stays
            value = {name: item for name, item in value.items() if name.lower() in _OF_RECORDS}
        return {
            clean.value("", name): clean_document(item, clean, _below(key, name))
            for name, item in value.items()
            if not is_of_processes(name)
        }
    if isinstance(value, list | tuple):
        return [clean_document(item, clean, key) for item in value]
    if isinstance(value, str):
        return clean.value(key, value)
    if kind_of(key) is not None and type(value) in (int, float):
        text = clean.value(key, str(value))
        return value if text == str(value) else text
    return value


def _below(key: str, name: str) -> str:
    """The key that says what a value is: in a table of firmware the name is a block's."""
    return f"{key[-_LONGEST_KEY:]} {name}" if key else name


def clean_output(text: str, clean: Cleaner) -> str:
    """A tool's output without processes and without what ``clean`` takes out.

    Raises FormatError for what looks like JSON and is none: nothing tells what is what in it.
    """
    if _MARKUP.search(text[:_HEAD]) is not None:
        return "".join(_xml(text, clean))
    if json_start(text[:_HEAD]) is not None:
        return _json(text, clean)
    return clean_lines(text, clean)


def _json(text: str, clean: Cleaner) -> str:
    broken = False
    try:
        documents = [json.loads(text[json_start(text) :])]
    except (ValueError, RecursionError):
        documents, broken = json_documents(text)
    written = [json.dumps(clean_document(each, clean), indent=1) for each in documents]
    # what broke off goes on breaking off
    return "\n".join([*written, *(["["] if broken else [])]) + "\n"


def _xml(text: str, clean: Cleaner) -> Iterator[str]:
    at, open_tag, left_out, depth = 0, "", "", 0
    text = _without_comments(text)
    for match in _TAG.finditer(text):
        between, at = text[at : match.start()], match.end()
        name, ends = match["name"], bool(match["end"])
        alone = match["attributes"].endswith("/")
        if left_out:
            depth += 0 if name != left_out or alone else -1 if ends else 1
            left_out = left_out if depth else ""
            continue
        yield _between(between, open_tag, clean)
        if is_of_processes(name) and not ends:
            left_out, depth = ("", 0) if alone else (name, 1)
            clean.counts["process"] += 1
        else:
            yield _tag(match, clean)
        open_tag = "" if ends else name
    if not left_out:
        yield _between(text[at:], open_tag, clean)


def _without_comments(text: str) -> str:
    """Comments, instructions and all declarations but the name of the document's type go."""
    pieces: list[str] = []
    at = 0
    while (begin := text.find("<", at)) >= 0:
        if text[begin + 1 : begin + 2] not in ("!", "?"):
            end = begin + 1
            pieces.append(text[at:end])
        else:
            pieces.append(text[at:begin])
            closing = (
                "-->"
                if text.startswith("<!--", begin)
                else "]]>"
                if text.startswith("<![", begin)
                else ">"
            )
            found = text.find(closing, begin)
            end = found + len(closing) if found >= 0 else len(text)
            if (declared := _DECLARED.match(text, begin)) is not None:
                pieces.append(f"<!DOCTYPE {declared[1]}>")
            elif text.startswith("<?xml", begin):
                pieces.append('<?xml version="1.0"?>')
        at = end
    return "".join([*pieces, text[at:]])


# what _without_comments leaves of a document's beginning
_PROLOG: Final = re.compile(r'(<\?xml version="1\.0"\?>|<!DOCTYPE \w{1,40}>)')


def _between(text: str, tag: str, clean: Cleaner) -> str:
    """Text outside of tags, with its blanks as they are."""
    bare = text.strip()
    if not bare:
        return text
    if not tag:
        # a line of the tool's may stand around the beginning of the document
        pieces = _PROLOG.split(text)
        return "".join(
            piece if number % 2 else escape(clean_lines(html.unescape(piece), clean))
            for number, piece in enumerate(pieces)
        )
    first = text.index(bare)
    return text[:first] + escape(clean.value(tag, html.unescape(bare))) + text[first + len(bare) :]


def _tag(match: re.Match[str], clean: Cleaner) -> str:
    if not match["attributes"].strip("/ \t\n"):
        return match[0]
    found = {
        each["name"]: html.unescape(each["value"][1:-1])
        for each in _ATTRIBUTE.finditer(match["attributes"])
    }
    # hwloc: <info name="HostName" value="node7"/>
    named = found.get("name", "") if "value" in found else ""
    kept = {
        name: NO_VALUE
        if named and is_of_processes(named)
        else clean.value(named if name == "value" and named else name, value)
        for name, value in found.items()
    }
    written = "".join(f" {name}={quoteattr(value)}" for name, value in kept.items())
    end = "/" if match["attributes"].endswith("/") else ""
    return f"<{match['end']}{match['name']}{written}{end}>"


def clean_lines(text: str, clean: Cleaner) -> str:
    """Lines without lists of processes, and without what labels, logs and forms tell."""
    kept = "\n".join(_label(line, clean) for line in _without_processes(text.split("\n"), clean))
    for kind, pattern in _OF_LOG:

        def hidden(match: re.Match[str], kind: str = kind) -> str:
            unknown = "<unknown>" in match["value"]
            return match["keep"] + (
                match["value"] if unknown else clean.placeholder(kind, match["value"])
            )

        kept = pattern.sub(hidden, kept)
    if kept and text.endswith("\n") and not kept.endswith("\n"):
        kept += "\n"  # a line without an end is one that was cut
    return clean.value("", kept)


def _label(line: str, clean: Cleaner) -> str:
    """A line "Serial Number : 1652" without its value, where the label says that it identifies."""
    words = line.split(":")
    for at in range(1, len(words)):
        label = words[at - 1].strip(' \t"')
        if kind_of(label) not in (None, "uuid"):
            value = ":".join(words[at:])
            blank = value[: len(value) - len(value.lstrip())]
            return ":".join(words[:at]) + ":" + blank + clean.value(label, value.strip())
    return line


def _without_processes(lines: Iterable[str], clean: Cleaner) -> Iterator[str]:
    """Lines outside of lists of processes: sections by their indentation, boxes, and tables."""
    ends: Callable[[str], bool] | None = None
    for line in lines:
        if ends is not None:
            if not ends(line):
                continue
            ends = None
            if line.startswith("+-"):
                yield line
                continue
        section = _SECTION.match(line)
        box = section["box"] if section is not None else line.startswith("|")
        if box and (section is not None or "process name" in line.lower()):
            ends = _ends_box
        elif section is not None:
            indent = len(section["indent"])
            ends = lambda below, indent=indent: _ends_section(below, indent)  # noqa: E731
        elif _HEADER.search(line) is not None and ":" not in line and not line.startswith("|"):
            ends = _ends_table
        elif _LONE_PROCESS.match(line) is None:
            yield line
            continue
        clean.counts["process"] += 1


def _ends_box(line: str) -> bool:
    return line.startswith("+-")


def _ends_table(line: str) -> bool:
    return not line.strip() or _TOP.match(line) is not None


def _ends_section(line: str, indent: int) -> bool:
    """A section ends with a line as far left that is a label: a name may hold a line's end."""
    bare = line.strip()
    if not bare:
        return False
    left = len(line) - len(line.lstrip(" "))
    return left <= indent and (_TOP.match(bare) is not None or _LABEL.match(bare) is not None)

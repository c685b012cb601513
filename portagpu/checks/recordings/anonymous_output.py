"""Anonymise tools' outputs and libraries' findings.

An output is processed by its form (XML, JSON, lines), so that escaped text is found and the result
can be read again. Lists of processes are removed as a whole.
"""

from __future__ import annotations

import html
import json
import re
from typing import TYPE_CHECKING, Any, Final, Protocol
from xml.sax.saxutils import escape, quoteattr

from portagpu.base.redact.names import identifying_kind, names_something, nearest_key
from portagpu.facts.formats.json_xml import json_documents, json_start

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterable, Iterator


class Cleaner(Protocol):
    """Replaces identifying texts."""

    @property
    def counts(self) -> Counter[str]:
        """How often each kind was replaced."""

    def value(self, key: str, text: str) -> str:
        """The anonymised ``text``; ``key`` is the key, tag or label above it, or empty."""

    def placeholder(self, kind: str, found: str) -> str:
        """The placeholder for ``found``."""


NO_VALUE: Final = "N/A"
"""The vendors' tools write this where they have no value, and their readers know it."""

_BLANKS: Final = re.compile(r"[\s-]++")
_PROCESS_KEY: Final = re.compile(
    r"(?:\A|_)(?:process(?:es|_(?:info|information|list|name|id|details))?|pids?|comm|cmd|cmdline"
    r"|command_line|argv|exe|fdinfo|(?:container|job|task|app|pod)_(?:name|id)|namespace|owner"
    r"|cgroup)\Z"
)
_ONE_PROCESS: Final = re.compile(r"pid|process[ _](?:id|name)", re.IGNORECASE)
_KEPT_OF_PROCESSES: Final = frozenset({"gpu", "gpu_id"})
_NUMBERED_PROCESS: Final = re.compile(r"pid_?\d++\Z")
_TAG: Final = re.compile(r"<(?P<end>/?+)(?P<name>[\w:.-]++)(?P<attributes>(?:[\s/][^<>]*+)?)>")
_ATTRIBUTE: Final = re.compile(
    r"(?<![\w:.-])(?P<name>[\w:.-]++)\s*+=\s*+(?P<value>\"[^\"]*+\"|'[^']*+')"
)
_MARKUP: Final = re.compile(
    r"^\ufeff?[ \t]*+<(?:\?xml|!DOCTYPE|[A-Za-z][\w:.-]*+[\s/>])", re.MULTILINE
)
_DECLARED: Final = re.compile(r"<!DOCTYPE\s++([\w:.-]++)")
_HEAD: Final = 4096
_MAX_KEY: Final = 80

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

_LOG_FORMS: Final = (
    # a process calls itself what it likes, in up to 15 bytes (TASK_COMM_LEN), commas among them; a
    # metric's label is written without a blank, and names a product
    ("process", re.compile(r"(?<![{,])(?P<keep>\bname=)(?P<value>.{0,15}(?=, )|[^,\n]++)")),
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
"""(kind, pattern) of identifying texts in a kernel's log."""


def is_process_key(key: str) -> bool:
    """Whether a key, tag or label is of a process or of a list of them."""
    words = _BLANKS.sub("_", key.strip().lower())
    return _PROCESS_KEY.search(words) is not None or _NUMBERED_PROCESS.match(words) is not None


def clean_document(value: Any, clean: Cleaner, key: str = "") -> Any:
    """JSON values without processes; ``clean`` anonymises every text and key."""
    if isinstance(value, dict):
        if any(_ONE_PROCESS.fullmatch(name) is not None for name in value):
            # the record of a process; of a GPU's record its number stays
            value = {
                name: item for name, item in value.items() if name.lower() in _KEPT_OF_PROCESSES
            }
        return {
            clean.value("", name): clean_document(
                item, clean, _joined_key(key, nearest_key("", name, value))
            )
            for name, item in value.items()
            if not is_process_key(name)
        }
    if isinstance(value, list | tuple):
        return [clean_document(item, clean, key) for item in value]
    if isinstance(value, str):
        return clean.value(key, value)
    kind = identifying_kind(key)
    if kind is not None and names_something(kind, key, value):
        text = clean.value(key, str(value))
        return value if text == str(value) else text
    return value


def _joined_key(key: str, name: str) -> str:
    """The key that describes a value: in a table of firmware the name alone is a block's."""
    return f"{key[-_MAX_KEY:]} {name}" if key else name


def clean_output(text: str, clean: Cleaner) -> str:
    """A tool's output without processes and without what ``clean`` takes out.

    Raises FormatError for text that looks like JSON and is none: its keys are unknown.
    """
    if _MARKUP.search(text[:_HEAD]) is not None:
        return "".join(_clean_xml(text, clean))
    if json_start(text[:_HEAD]) is not None:
        return _clean_json(text, clean)
    return clean_lines(text, clean)


def _clean_json(text: str, clean: Cleaner) -> str:
    broken = False
    try:
        documents = [json.loads(text[json_start(text) :])]
    except (ValueError, RecursionError):
        documents, broken = json_documents(text)
    written = [json.dumps(clean_document(each, clean), indent=1) for each in documents]
    # what broke off goes on breaking off
    return "\n".join([*written, *(["["] if broken else [])]) + "\n"


def _clean_xml(text: str, clean: Cleaner) -> Iterator[str]:
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
        yield _clean_content(between, open_tag, clean)
        if is_process_key(name) and not ends:
            left_out, depth = ("", 0) if alone else (name, 1)
            clean.counts["process"] += 1
        else:
            yield _clean_tag(match, clean)
        open_tag = "" if ends else name
    if not left_out:
        yield _clean_content(text[at:], open_tag, clean)


def _without_comments(text: str) -> str:
    """The text without comments, instructions and declarations; the document type's name stays."""
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


def _clean_content(text: str, tag: str, clean: Cleaner) -> str:
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


def _clean_tag(match: re.Match[str], clean: Cleaner) -> str:
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
        if named and is_process_key(named)
        else clean.value(named if name == "value" and named else name, value)
        for name, value in found.items()
    }
    written = "".join(f" {name}={quoteattr(value)}" for name, value in kept.items())
    end = "/" if match["attributes"].endswith("/") else ""
    return f"<{match['end']}{match['name']}{written}{end}>"


def clean_lines(text: str, clean: Cleaner) -> str:
    """Lines without lists of processes and without identifying values."""
    kept = "\n".join(
        _clean_labelled_line(line, clean) for line in _without_processes(text.split("\n"), clean)
    )
    for kind, pattern in _LOG_FORMS:

        def hide_value(match: re.Match[str], kind: str = kind) -> str:
            unknown = "<unknown>" in match["value"]
            return match["keep"] + (
                match["value"] if unknown else clean.placeholder(kind, match["value"])
            )

        kept = pattern.sub(hide_value, kept)
    if kept and text.endswith("\n") and not kept.endswith("\n"):
        kept += "\n"  # a line without an end is one that was cut
    return clean.value("", kept)


def _clean_labelled_line(line: str, clean: Cleaner) -> str:
    """A line "Serial Number : 1652" without its value, where the label is identifying."""
    words = line.split(":")
    for at in range(1, len(words)):
        label = words[at - 1].strip(' \t"')
        if identifying_kind(label) not in (None, "uuid"):
            value = ":".join(words[at:])
            blank = value[: len(value) - len(value.lstrip())]
            return ":".join(words[:at]) + ":" + blank + clean.value(label, value.strip())
    return line


def _without_processes(lines: Iterable[str], clean: Cleaner) -> Iterator[str]:
    """The lines without lists of processes, which are indented sections, boxes or tables."""
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

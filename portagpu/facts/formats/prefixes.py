"""What launchers, clusters and collectors of logs write in front of a program's lines.

One line may have several: ``kubectl logs --prefix --timestamps`` writes a pod and a time, and torch
a rank after them. Each form is known by its own marks, so that it is found on any line. A host's
bare name in front of lines is known by its regularity alone (:func:`regular_names`).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_MAX_PREFIXES: Final = 8
_MAX_REGULAR_LINES: Final = 2000
"""Lines at the beginning of a text in which names are counted."""
_SHARE: Final = 0.8
"""Of the lines that say something: some are written by the launcher itself."""

_DATE: Final = r"\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,:]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?"
_PREFIXES: Final = re.compile(
    r"(?:>[ \t]?){1,8}"
    # torch's own hook for exceptions, and torchrun's and torchx's labels of roles
    r"|\[rank(?P<rank>\d{1,7})\]:[ ]?"
    r"|\[(?:default|[a-z_]{1,20})(?P<local>\d{1,7})(?:\|\d{1,7})?\]:[ ]?"
    r"|[a-z_]{1,20}/\d{1,7} \[\d{1,7}\]:[ ]?"
    # mpirun --tag-output, srun --label
    r"|\[\d{1,9}(?:,(?P<tagged>\d{1,7}))?\](?:<std(?:out|err|diag)>:[ ]?|[ ]?(?=\[rank\d))"
    r"|[ ]{0,6}(?P<label>\d{1,7}):(?:[ ]|$)"
    # Ray
    r"|\((?:[A-Za-z_][\w.:]{0,80} (?:rank=\d{1,7} )?pid=\d{1,9}|raylet)(?:, ip=[\w.:]{1,60})?\)[ ]?"
    # kubectl logs --prefix, stern, and benches that name the stream
    r"|\[pod/[\w./-]{1,200}\][ ]"
    r"|[\w./-]{1,100} \[std(?:out|err)\][ ]?"
    rf"|[ \t]{{0,8}}\|[ ](?={_DATE})"
    rf"|\[?{_DATE}\]?(?:[ ]\|)?(?:[ ]{{1,4}}|$)"
    # the logging of serving frameworks
    r"|(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d "
    r"\[?[\w./-]{1,80}\.py:\d{1,6}\][ ]?"
)
_LEVELS: Final = ("DEBUG ", "INFO ", "WARNING ", "ERROR ", "CRITICAL ")
_MAX_NAME: Final = 110
"""Letters in which a prefix that begins with a name has its bracket."""
REPEATED: Final = "[repeated "
"""What a line of Ray has that stands for others."""
_REPEATED: Final = re.compile(r" ?\[repeated (\d{1,7})x across cluster\].{0,200}$")
_NAME: Final = re.compile(r"([A-Za-z0-9][\w.-]{0,63})(?::[ ]|[ ]{0,20}\|[ ]?)")
_JSON_TEXTS: Final = ("log", "message", "msg", "text", "textPayload")


@dataclass(frozen=True, slots=True)
class Origin:
    """What the prefixes of a line say of it.

    ``rank`` is that of the whole job. ``label`` is a number that a launcher gave to the process,
    mostly its rank too. ``repeats`` are further equal lines of other processes, for which this one
    stands: Ray's count is of this line and those (``python/ray/_private/ray_logging``).
    """

    rank: int | None = None
    label: str = ""
    repeats: int = 0


PLAIN: Final = Origin()


def split_prefixes(line: str, names: frozenset[str] = frozenset()) -> tuple[Origin, str]:
    """The line without what stands in front of it, and what that says.

    :param line: one line of text.
    :param names: hosts or pods that begin lines here, from :func:`regular_names`.
    """
    if not names and line[:1].isalpha() and not _may_have_one(line[:_MAX_NAME]):
        return _without_repeats(PLAIN, line)
    rank: int | None = None
    label = ""
    at = 0
    for _ in range(_MAX_PREFIXES):
        if (found := _PREFIXES.match(line, at)) is not None:
            said = found.groupdict()
            if said["rank"] is not None:
                rank = int(said["rank"])
            label = said["tagged"] or said["label"] or said["local"] or label
        elif not names or (found := _NAME.match(line, at)) is None or found[1] not in names:
            break
        at = found.end()
    rest = line[at:] if at else line
    return _without_repeats(Origin(rank, label) if rank is not None or label else PLAIN, rest)


def _may_have_one(head: str) -> bool:
    """Whether a line that begins with a letter may have a prefix of a known form."""
    return (" [std" in head or ("/" in head and " [" in head)) or head.startswith(_LEVELS)


def _without_repeats(origin: Origin, line: str) -> tuple[Origin, str]:
    if REPEATED not in line or (found := _REPEATED.search(line)) is None:
        return origin, line
    return replace(origin, repeats=max(int(found[1]) - 1, 0)), line[: found.start()]


def regular_names(lines: Iterable[str]) -> frozenset[str]:
    """The names that begin nearly all lines, with a colon or a bar after them.

    A name of a host or pod has a digit or a hyphen; words such as ERROR are none.
    """
    spoken, found = 0, 0
    names: dict[str, int] = {}
    for number, line in enumerate(lines):
        if number == _MAX_REGULAR_LINES:
            break
        if line.isspace() or not line:
            continue
        spoken += 1
        _, rest = split_prefixes(line[:400])
        name = _NAME.match(rest)
        if name is not None and re.search(r"\d|-", name[1]):
            names[name[1]] = names.get(name[1], 0) + 1
            found += 1
    return frozenset(names) if found >= max(2, _SHARE * spoken) else frozenset()


def text_of_json(line: str) -> str:
    """What a program wrote, of a line that a collector put into JSON; the line itself without."""
    if not (line.startswith("{") and line.rstrip().endswith("}")):
        return line
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return line
    if not isinstance(document, dict):
        return line
    if isinstance(inner := document.get("message"), dict):
        # torch's file of an error: {"message": {"message": ..., "extraInfo": ...}}
        document = inner
    text = next((t for k in _JSON_TEXTS if isinstance(t := document.get(k), str)), None)
    return line if text is None else text.rstrip("\n").replace("\n", " ")

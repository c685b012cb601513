"""Archives of collectors of whole machines (sosreport, must-gather): the texts of interest in them.

They are read in memory, one after another, and nothing is unpacked to a disk: such an archive has
links that lead out of it, devices, and gigabytes that nobody has to read.
"""

from __future__ import annotations

import re
import tarfile
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from portagpu.checks.recordings.archives import UNREADABLE, opened_tar
from portagpu.facts.formats.file_names import TOOLS_OUTPUT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import IO

_COLLECTOR: Final = re.compile(r"(?:^|/)(?:sosreport-|sos_commands/|sos_reports/|must-gather)")
_MARKED: Final = 400
"""Entries at an archive's beginning by which a collector is known."""
MAX_STREAM: Final = 1 << 30
"""Unpacked bytes of an archive that are passed through."""
MAX_TEXTS: Final = 64 << 20
"""Bytes of all texts that are kept."""
_MAX_TEXT: Final = 16 << 20
_MAX_ENTRIES: Final = 400_000
_PIECE: Final = 1 << 18

_OLD: Final = r"(?:_-b_?-\d|_--boot_?-\d|last_boot|previous)"
_PRESENT: Final = re.compile(
    rf"(?!.*{_OLD}).*/(?:dmesg(?:_-\w{{1,4}})?|journalctl_[\w.-]{{0,80}}|journal(?:\.log|\.txt)?"
    r"|kernel\.log)(?:\.txt|\.gz)?$"
)
"""Logs of the present boot."""
_LOGS: Final = re.compile(r".*/var/log/(?:messages|syslog|kern\.log)$")
_OTHER_FILES: Final = re.compile(r".*(?:\.conf|\.service|\.repo|\.rpm|_-?-h(?:elp)?|\.ko)$")


class CollectedText(NamedTuple):
    """A text of the archive; ``cut`` says what of it was not kept."""

    name: str
    data: bytes
    cut: str = ""


def is_collected(path: Path) -> bool:
    """Whether a collector of whole machines wrote the tar at ``path``."""
    try:
        with opened_tar(path, MAX_STREAM) as archive:
            for number, entry in enumerate(archive):
                if _COLLECTOR.search(entry.name):
                    return True
                if number == _MARKED:
                    break
    except UNREADABLE:
        pass
    return False


def collected_texts(path: Path) -> Iterator[CollectedText]:
    """The texts that say something of devices or the kernel, each once.

    The system's logs are of several boots: they are left out where one of the present boot is
    there. The last text of an archive that breaks off is one without data that says so.
    """
    logs: list[CollectedText] = []
    found = 0
    left = MAX_TEXTS
    problem = ""
    try:
        with opened_tar(path, MAX_STREAM) as archive:
            for number, entry in enumerate(archive):
                name = f"/{entry.name}"
                if number == _MAX_ENTRIES or left <= 0:
                    problem = "only a part of its files was read"
                    break
                if not entry.isreg() or _OTHER_FILES.match(name):
                    continue
                is_present, is_log = _PRESENT.match(name), _LOGS.match(name)
                file = (
                    archive.extractfile(entry)
                    if (is_present or is_log or TOOLS_OUTPUT.match(name))
                    else None
                )
                if file is None:
                    continue
                text = _read(entry.name, file, min(left, _MAX_TEXT))
                left -= len(text.data)
                if is_log:
                    logs.append(text)
                else:
                    found += bool(is_present and text.data.strip())
                    yield text
    except (*UNREADABLE, tarfile.TarError) as error:
        problem = f"the archive cannot be read to its end: {error}"
    if not found:
        yield from logs
    if problem:
        yield CollectedText("the archive", b"", problem)


def _read(name: str, file: IO[bytes], most: int) -> CollectedText:
    """A file's end: a log's last lines are its newest."""
    pieces: deque[bytes] = deque()
    kept = whole = 0
    while piece := file.read(_PIECE):
        pieces.append(piece)
        kept += len(piece)
        whole += len(piece)
        while kept - len(pieces[0]) >= most:
            kept -= len(pieces.popleft())
    data = b"".join(pieces)
    if whole == len(data):
        return CollectedText(name, data)
    return CollectedText(
        name, data.partition(b"\n")[2], f"only its last {len(data) >> 20} MiB were read"
    )

"""Saving of a machine what :class:`portagpu.recordings.replay.Recording` reads.

What is saved of the kernel's files is what reading the machine has read: nothing can be missing
from a replay that was looked at live, and nothing else is in it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from portagpu.errors import OutputError
from portagpu.formats.host import kernel_log
from portagpu.formats.reader import read_text
from portagpu.host import read_host, visibility
from portagpu.host.cpu import read_machine
from portagpu.host.tree import Tree, as_tree
from portagpu.info import collect
from portagpu.inventory.sources import Live
from portagpu.inventory.tools import Output, outputs
from portagpu.readings.document import to_document
from portagpu.readings.model import Findings, FormatError
from portagpu.recordings.anonymous import Anonymous, group_mounts, identities
from portagpu.recordings.archives import pack
from portagpu.recordings.replay import FINDINGS, MANIFEST, OUTPUTS, SCHEMA, TREE
from portagpu.recordings.traced_tree import Watched
from portagpu.redact.names import machine_names
from portagpu.redact.scrub import scrub
from portagpu.scratch import Scratch
from portagpu.text import excerpt
from portagpu.trust import destination

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

PACKED: Final = (".tar.gz", ".tgz")
"""How the name of a recording ends that is one file."""
_NOT_NAMING: Final = frozenset({"kernel", "path"})
"""A kernel's release is a version, and the paths of this process are in none of the files."""


@dataclass(frozen=True, slots=True)
class Saved:
    """What was written: the number of files, what was taken out by kind, and what is missing."""

    folder: Path
    files: int
    scrubbed: Mapping[str, int]
    problems: tuple[str, ...]


def record(
    folder: Path | str,
    root: Tree | Path | str = "/",
    names: Sequence[tuple[str, str]] | None = None,
) -> Saved:
    """Save this machine, or the one below ``root``, into ``folder``, which must not exist yet.

    A ``folder`` that ends with one of ``PACKED`` is a file with that folder in it. ``names`` are
    pairs of kind and text that are taken out of every text, by default what this machine, its user
    and its secrets are called. The folder appears whole or not at all. Raises OutputError where it
    cannot be written.
    """
    target = Path(folder)
    packed = next((each for each in PACKED if target.name.endswith(each)), "")
    try:
        place = destination(target)
        there = place.exists()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise OutputError(f"{excerpt(str(target))}: it cannot be written: {reason}") from None
    if there:
        raise OutputError(f"{target}: it exists already; name a folder that does not")
    known = machine_names() if names is None else names
    tree = Watched(as_tree(root).root, as_tree(root).at)
    machine = _Asked(tree)
    collect(machine=machine)
    machine.topology()
    _complete(tree)
    asked = machine.commands(machine.findings())
    printed = list(outputs(asked))
    read = {each: found for each in printed if (found := _findings(each))}
    log = machine.log_output()
    logged = _logged(log) if log is not None else None
    cleaner = Anonymous(
        [pair for pair in known if pair[0] not in _NOT_NAMING],
        identities(machine.findings(), chain.from_iterable(read.values())),
        group_mounts(tree.files.get("proc/self/mountinfo", b"").decode(errors="surrogateescape")),
    )
    problems = [each.problem for each in (*printed, *([log] if log else [])) if each.problem]
    problems += [_left_out(each) for each in printed if each not in read and not each.problem]
    try:
        with Scratch("recording", place.parent) as made:
            here = made / "whole"
            here.mkdir()
            _save_tree(tree, here / TREE, cleaner)
            quiet = [logged] if logged is not None and not logged.events else []
            _save_findings([*machine.asked, *quiet], here / FINDINGS, cleaner)
            kept = [Output(log.command, _of_log(logged))] if log and logged else []
            problems += _save_outputs([*read, *kept], here / OUTPUTS, cleaner)
            _save_manifest(machine, here, cleaner, known, problems)
            files = sum(1 for each in here.rglob("*") if each.is_file() and not each.is_symlink())
            if packed:
                pack(here, made / "packed", place.name.removesuffix(packed))
                here = made / "packed"
            here.rename(place)
    except OSError as error:
        raise OutputError(f"{target}: it cannot be written: {error.strerror}") from error
    taken = {kind: count for kind, count in sorted(cleaner.counts.items()) if count}
    return Saved(target, files, taken, tuple(problems))


class _Asked(Live):
    """The machine, whose libraries are asked once."""

    def __init__(self, tree: Watched) -> None:
        super().__init__(tree)
        from portagpu.discovery import probes

        answers = tuple(probes().values()) if tree.is_live else ()
        self.asked = tuple(each for each in answers if each.readings or each.problems)

    def probed(self) -> tuple[Findings, ...]:
        return self.asked


def _complete(tree: Watched) -> None:
    """Put into files what system calls say of a live machine."""
    if not tree.is_live:
        return
    machine, shm = read_machine(tree), read_host(tree).limits.shm_bytes
    if machine is not None:
        tree.files.setdefault("proc/sys/kernel/arch", machine.encode())
    if shm is not None:
        mounts = tree.files.get("proc/self/mountinfo", b"").decode(errors="replace").splitlines()
        kept = [line for line in mounts if line.split()[4:5] != ["/dev/shm"]]  # noqa: S108
        line = f"0 0 0:0 / /dev/shm rw - tmpfs shm rw,size={shm >> 10}k"
        tree.files["proc/self/mountinfo"] = "\n".join([*kept, line]).encode()


def _save_tree(tree: Watched, folder: Path, cleaner: Anonymous) -> None:
    clean = Watched(
        tree.root,
        files={cleaner.path(path): cleaner.file(path, data) for path, data in tree.files.items()},
        links={cleaner.path(path): cleaner.path(link) for path, link in tree.links.items()},
        folders={cleaner.path(path) for path in tree.folders},
    )
    base = folder / tree.at
    base.mkdir(parents=True)
    clean.save(folder)


def _save_findings(found: Iterable[Findings], folder: Path, cleaner: Anonymous) -> None:
    for each in found:
        # as JSON has it, whatever types the findings are of
        plain = json.loads(json.dumps(to_document(each), default=_plain))
        document = json.dumps(cleaner.document(plain), indent=1)
        _write(folder / f"{_file_name(each.kind, cleaner)}.json", document)


def _findings(output: Output) -> tuple[Findings, ...]:
    """What readers find in the output; empty where none knows it, so that nobody can scrub it."""
    try:
        return read_text(output.text)
    except FormatError:
        return ()


def _left_out(output: Output) -> str:
    return f"{' '.join(output.command)}: what it printed is of no known format and is left out"


def _save_outputs(printed: Iterable[Output], folder: Path, cleaner: Anonymous) -> Iterator[str]:
    """Write the outputs, and say of which nobody can tell what is what in them."""
    for each in printed:
        try:
            clean = cleaner.text(each.text)
        except (FormatError, RecursionError):  # JSON that breaks off, or is nested without end
            yield _left_out(each)
            continue
        if clean.strip():
            name = _file_name(" ".join(each.command), cleaner)
            _write(folder / f"{name}.txt", clean)


def _logged(log: Output) -> Findings | None:
    """The events of the log; without any, that it was read."""
    if log.problem:
        return None
    found, private = kernel_log.parse(log.text).events, kernel_log.of_processes()
    kept = tuple(event for event in found if event.code not in private)
    return Findings(kind=kernel_log.KIND, events=kept)


def _of_log(logged: Findings) -> str:
    """The lines about devices: a kernel's log holds much that is nobody's business."""
    # a last line without an end is one that breaks off
    return "".join(f"{event.line}\n" for event in logged.events)


def _save_manifest(
    machine: Live,
    folder: Path,
    cleaner: Anonymous,
    known: Sequence[tuple[str, str]],
    problems: Sequence[str],
) -> None:
    build = machine.torch()
    software: Any = {
        "torch": None if build is None else {**dataclasses.asdict(build), "location": ""},
        "libraries": dict(machine.libraries()),
        "backends": {
            name: {"usable": status.usable, "reason": status.reason}
            for name, status in machine.backends().items()
        },
        "problems": list(problems),
    }
    clean = scrub(software, known)
    cleaner.counts.update(clean.counts)
    files = sorted(each for each in folder.rglob("*") if each.is_file() and not each.is_symlink())
    manifest = {
        "schema": SCHEMA,
        "taken": datetime.now(UTC).isoformat(timespec="seconds"),
        "portagpu": machine.libraries()["portagpu"],
        "python": platform.python_version(),
        "environment": {
            name: cleaner.value("", value)
            for name, value in visibility(machine.environment).items()
        },
        **clean.document,
        "scrubbed": {kind: count for kind, count in sorted(cleaner.counts.items()) if count},
        "files": {
            str(each.relative_to(folder)): hashlib.sha256(each.read_bytes()).hexdigest()
            for each in files
        },
    }
    _write(folder / MANIFEST, json.dumps(manifest, indent=1) + "\n")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text.encode(errors="surrogateescape"))


def _file_name(words: str, cleaner: Anonymous) -> str:
    words = cleaner.name(words)
    return "-".join(filter(None, (w.strip("-/") for w in words.split()))).replace("/", "-")


def _plain(value: object) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is no value of findings")

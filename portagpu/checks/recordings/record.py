"""Save a recording of this machine for :class:`portagpu.checks.recordings.replay.Recording`.

Of the kernel's files exactly those are saved that a live reading has opened. So a replay misses
nothing that a live run reads, and holds nothing else.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.errors import OutputError
from portagpu.base.files import Scratch, destination
from portagpu.base.redact.names import machine_names
from portagpu.base.redact.scrub import scrub
from portagpu.base.text import excerpt
from portagpu.checks.info import collect
from portagpu.checks.recordings.anonymous import Anonymizer, group_mounts, identities
from portagpu.checks.recordings.archives import pack
from portagpu.checks.recordings.replay import FINDINGS, MANIFEST, OUTPUTS, SCHEMA, TREE
from portagpu.facts.formats.host import kernel_log
from portagpu.facts.formats.reader import read_text
from portagpu.facts.host import read_host, visibility
from portagpu.facts.host.cpu import read_machine
from portagpu.facts.host.tree import Tree, as_tree
from portagpu.facts.readings.model import Findings, FormatError, to_document
from portagpu.machine.inventory.sources import CommandOutput, Live, run_commands

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


@dataclass(frozen=True, slots=True)
class TracedTree(Tree):
    """A tree that keeps what is read: files with their bytes, links, and folders."""

    files: dict[str, bytes] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)

    def data(self, path: str) -> bytes | None:
        found = Tree.data(self, path)
        if found is not None:
            self.files[path] = found
        return found

    def exists(self, path: str) -> bool:
        found = Tree.exists(self, path)
        if found:
            self._record_path(path)
        return found

    def names(self, path: str, pattern: str = ".*") -> tuple[str, ...]:
        found = Tree.names(self, path, pattern)
        if found:
            self.folders.add(path)
        for name in found:
            self._record_path(f"{path}/{name}")
        return found

    def link_parts(self, path: str) -> tuple[str, ...]:
        found = Tree.link_parts(self, path)
        if found:
            self._record_path(path)
        return found

    def _record_path(self, path: str) -> None:
        """Record that a path exists, and its kind."""
        link = self.link(path)
        if link is not None:
            self.links[path] = link
        elif self.is_folder(path):
            self.folders.add(path)
        else:
            self.files.setdefault(path, b"")

    def save(self, folder: Path) -> None:
        """Write what was read below ``folder``, which has to exist; links stay inside it."""
        root = folder.resolve()
        # a link before what is reached through it
        for path in sorted(self.links, key=lambda path: path.count("/")):
            place = _parent(root, path) / Path(path).name
            target = Path(os.path.normpath(place.parent.resolve() / self.links[path]))
            if target.is_relative_to(root) and not place.exists():
                place.symlink_to(self.links[path])
        for path in sorted(self.folders):
            _folder(root, path)
        for path, data in sorted(self.files.items()):
            place = _parent(root, path) / Path(path).name
            if not place.is_dir():
                place.write_bytes(data)


def _parent(root: Path, path: str) -> Path:
    return _folder(root, str(Path(path).parent))


def _folder(root: Path, path: str) -> Path:
    """The folder below ``root``, following links; it is created if it is missing."""
    here = root
    for part in Path(path).parts:
        here = Path(os.path.normpath((here / part).resolve()))
        if not here.is_relative_to(root):
            # a link that leads out of the tree was not saved, so that this cannot be one
            raise ValueError(f"{path} leads out of the recording")
        here.mkdir(parents=True, exist_ok=True)
    return here


PACKED: Final = (".tar.gz", ".tgz")
"""Suffixes of recordings that are one file."""
_NOT_NAMING: Final = frozenset({"kernel", "path"})
"""A kernel's release is a version, and the paths of this process are in none of the files."""


@dataclass(frozen=True, slots=True)
class SavedRecording:
    """What was written: the number of files, removals by kind, and what is missing."""

    folder: Path
    files: int
    scrubbed: Mapping[str, int]
    problems: tuple[str, ...]


def record(
    folder: Path | str,
    root: Tree | Path | str = "/",
    names: Sequence[tuple[str, str]] | None = None,
) -> SavedRecording:
    """Save this machine, or the one below ``root``, without what identifies it.

    :param folder: What to make, whole or not at all; it must not exist yet. A name that ends with
        one of ``PACKED`` is a file with that folder in it.
    :param root: The root of the machine's files.
    :param names: Pairs of kind and text that are taken out of every text; by default what this
        machine, its user and its secrets are called.
    :returns: What was saved, and how often each kind was taken out.
    :raises OutputError: The folder cannot be written.
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
    tree = TracedTree(as_tree(root).root, as_tree(root).at)
    machine = _ProbedOnce(tree)
    collect(machine=machine)
    machine.topology()
    _add_system_calls(tree)
    asked = machine.commands(machine.findings())
    printed = list(run_commands(asked))
    read = {each: found for each in printed if (found := _findings(each))}
    log = machine.log_output()
    logged = _log_findings(log) if log is not None else None
    cleaner = Anonymizer(
        [pair for pair in known if pair[0] not in _NOT_NAMING],
        identities(machine.findings(), chain.from_iterable(read.values())),
        group_mounts(tree.files.get("proc/self/mountinfo", b"").decode(errors="surrogateescape")),
    )
    problems = [each.problem for each in (*printed, *([log] if log else [])) if each.problem]
    problems += [
        _left_out_problem(each) for each in printed if each not in read and not each.problem
    ]
    try:
        with Scratch("recording", place.parent) as made:
            here = made / "whole"
            here.mkdir()
            _save_tree(tree, here / TREE, cleaner)
            # that it was read, or was not: its lines say neither
            from_log = [logged] if logged is not None and not logged.events else []
            _save_findings([*machine.asked, *from_log], here / FINDINGS, cleaner)
            kept = [CommandOutput(log.command, _log_lines(logged))] if log and logged else []
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
    return SavedRecording(target, files, taken, tuple(problems))


class _ProbedOnce(Live):
    """The live machine; its libraries are probed once."""

    def __init__(self, tree: TracedTree) -> None:
        super().__init__(tree)
        from portagpu.devices.discovery import probes

        answers = tuple(probes().values()) if tree.is_live else ()
        self.asked = tuple(each for each in answers if each.readings or each.problems)

    def library_findings(self) -> tuple[Findings, ...]:
        return self.asked


def _add_system_calls(tree: TracedTree) -> None:
    """Add files for values that a live machine gets from system calls."""
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


def _save_tree(tree: TracedTree, folder: Path, cleaner: Anonymizer) -> None:
    clean = TracedTree(
        tree.root,
        files={cleaner.path(path): cleaner.file(path, data) for path, data in tree.files.items()},
        links={cleaner.path(path): cleaner.path(link) for path, link in tree.links.items()},
        folders={cleaner.path(path) for path in tree.folders},
    )
    base = folder / tree.at
    base.mkdir(parents=True)
    clean.save(folder)


def _save_findings(found: Iterable[Findings], folder: Path, cleaner: Anonymizer) -> None:
    for each in found:
        # as JSON has it, whatever types the findings are of
        plain = json.loads(json.dumps(to_document(each), default=_as_dict))
        document = json.dumps(cleaner.document(plain), indent=1)
        _write(folder / f"{_file_name(each.kind, cleaner)}.json", document)


def _findings(output: CommandOutput) -> tuple[Findings, ...]:
    """The findings in the output; empty for an unknown format, which cannot be scrubbed."""
    try:
        return read_text(output.text)
    except FormatError:
        return ()


def _left_out_problem(output: CommandOutput) -> str:
    return f"{' '.join(output.command)}: what it printed is of no known format and is left out"


def _save_outputs(
    printed: Iterable[CommandOutput], folder: Path, cleaner: Anonymizer
) -> Iterator[str]:
    """Write the outputs; yields a problem for each whose structure is unknown."""
    for each in printed:
        try:
            clean = cleaner.text(each.text)
        except (FormatError, RecursionError):  # JSON that breaks off, or is nested without end
            yield _left_out_problem(each)
            continue
        if clean.strip():
            name = _file_name(" ".join(each.command), cleaner)
            _write(folder / f"{name}.txt", clean)


def _log_findings(log: CommandOutput) -> Findings:
    """The events of the log, without those that name processes, or why it was not read."""
    if log.problem:
        return Findings(kind=kernel_log.UNREAD, problems=(log.problem,))
    found, private = kernel_log.parse(log.text).events, kernel_log.process_codes()
    kept = tuple(event for event in found if event.code not in private)
    return Findings(kind=kernel_log.KIND, events=kept)


def _log_lines(logged: Findings) -> str:
    """The lines about devices; the rest of a kernel's log is private."""
    # a last line without an end is one that breaks off
    return "".join(f"{event.line}\n" for event in logged.events)


def _save_manifest(
    machine: Live,
    folder: Path,
    cleaner: Anonymizer,
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


def _file_name(words: str, cleaner: Anonymizer) -> str:
    words = cleaner.name(words)
    return "-".join(filter(None, (w.strip("-/") for w in words.split()))).replace("/", "-")


def _as_dict(value: object) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} cannot be a value of findings")

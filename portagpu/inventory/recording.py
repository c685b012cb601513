"""A machine that somebody recorded: a file, or a folder of files, read as a live one is.

A recording is what ``portagpu record`` writes; or a file that a tool printed; or a folder with such
files, with the kernel's files below ``sys`` and ``proc``, or with a topology of KFD alone. Files of
no known format become a sentence and stop nothing.
"""

from __future__ import annotations

import json
import os
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from portagpu.contract import Status
from portagpu.errors import RecordingError
from portagpu.files import read_bounded
from portagpu.host.tree import Tree
from portagpu.inventory.document import from_document
from portagpu.inventory.kernel import kernel_findings
from portagpu.inventory.model import Findings, FormatError
from portagpu.inventory.origin import origin_of
from portagpu.inventory.sources import Machine
from portagpu.telemetry.formats import one_line, text_of
from portagpu.telemetry.reader import read_text
from portagpu.torchbuild import TorchBuild

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from portagpu.inventory.gpu import Inventory
    from portagpu.inventory.origin import Origin

MANIFEST: Final = "recording.json"
SCHEMA: Final = "portagpu.recording/1"
TREE: Final = "tree"
FINDINGS: Final = "findings"
OUTPUTS: Final = "outputs"

LONGEST_FILE: Final = 32 << 20
"""Bytes that are read of one file: a 500-GPU matrix is 3 MiB, a kernel's log 16."""
MOST_BYTES: Final = 128 << 20
"""Bytes that are read of all files together."""
MOST_FILES: Final = 4000
MOST_FOLDERS: Final = 4000
_KERNEL_FOLDERS: Final = ("sys", "proc", "dev")
# what a folder holds that is recorded by itself: a mark in it, and where the kernel has it
_PARTS: Final = (
    ("nodes/*/properties", "sys/class/kfd/kfd/topology"),
    ("topology/nodes/*/properties", "sys/class/kfd/kfd"),
    ("*/ports/*/state", "sys/class/infiniband"),
)


_READ: Final = "what portagpu record or a vendor's tool wrote (docs/recordings.md)"
NO_TREE: Final = Tree(Path(os.devnull))
"""Below a file there is nothing."""


class Recording(Machine):
    """The machine that the files at ``paths`` show; reads everything once, and runs nothing.

    Of several recordings of one machine the first counts where they contradict each other; the
    kernel's files and the software are those of the first that has them. Raises RecordingError
    where there is nothing to read.
    """

    def __init__(self, *paths: Path | str) -> None:
        found: list[Findings] = []
        trees: list[Tree] = []
        self._manifest: dict[str, Any] = {}
        self._sources: list[tuple[Path, str | None]] = []
        for path in map(Path, paths):
            findings, tree, manifest = _opened(path)
            self._sources.append((path, _texts(manifest).get("source")))
            found.extend(findings)
            trees.extend([tree] if tree is not None else [])
            self._manifest = self._manifest or manifest
        self.tree = trees[0] if trees else NO_TREE
        self.software_known = bool(self._manifest)
        self.environment = _texts(self._manifest.get("environment"))
        self._findings = tuple(found)
        self._joined: Inventory | None = None

    def findings(self) -> tuple[Findings, ...]:
        return self._findings

    def inventory(self) -> Inventory:
        self._joined = self._joined or super().inventory()
        return self._joined

    def origins(self) -> tuple[Origin, ...]:
        try:
            return tuple(origin_of(path, source) for path, source in self._sources)
        except OSError as error:
            raise RecordingError(f"{error.filename}: {error.strerror}") from None

    def torch(self) -> TorchBuild | None:
        stated = self._manifest.get("torch")
        if not isinstance(stated, dict):
            return None
        texts = {
            field.name: each
            for field in fields(TorchBuild)
            if isinstance(each := stated.get(field.name), str)
        }
        debug = stated.get("debug")
        known: dict[str, Any] = {"location": "", **texts}
        return TorchBuild(**known | {"debug": debug if isinstance(debug, bool) else None})

    def libraries(self) -> Mapping[str, str]:
        return _texts(self._manifest.get("libraries"))

    def backends(self) -> Mapping[str, Status]:
        stated = self._manifest.get("backends")
        if not isinstance(stated, dict):
            return {}
        return {
            str(name): Status(bool(each.get("usable")), one_line(str(each.get("reason", ""))))
            for name, each in stated.items()
            if isinstance(each, dict)
        }


def _opened(path: Path) -> tuple[list[Findings], Tree | None, dict[str, Any]]:
    try:
        path.stat()
        if path.is_dir():
            next(path.iterdir(), None)
    except (OSError, ValueError) as error:
        reason = "there is no such file or folder"
        if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
            reason = error.strerror or reason
        raise RecordingError(f"{one_line(str(path))}: {reason}") from None
    manifest, tree = _manifest_of(path), _tree_of(path)
    found = list(_of_files(path))
    if tree is not None:
        found.extend(kernel_findings(tree))
    elif not manifest and not any(_says_something(each) for each in found):
        reasons = [problem for each in found for problem in each.problems]
        said = reasons[0] if len(reasons) == 1 else f"{path}: no file in it is a recording"
        raise RecordingError(f"{said}; give {_READ}")
    return found, tree, manifest


def _says_something(found: Findings) -> bool:
    return bool(found.readings or found.links or found.events or found.versions)


def _texts(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        return {}
    return {str(key): each for key, each in value.items() if isinstance(each, str)}


def _tree_of(path: Path) -> Tree | None:
    """The kernel's files in a recording; None where it has none."""
    for folder in (path / TREE, path):
        if any((folder / name).is_dir() for name in _KERNEL_FOLDERS):
            return Tree(folder)
    for mark, at in _PARTS:
        if path.is_dir() and next(path.glob(mark), None) is not None:
            return Tree(path, at)
    return None


def _manifest_of(path: Path) -> dict[str, Any]:
    file = path / MANIFEST
    if not file.is_file():
        return {}
    try:
        manifest = json.loads(read_bounded(file, LONGEST_FILE))
    except (OSError, ValueError, RecursionError) as error:
        raise RecordingError(f"{file}: it cannot be read: {one_line(str(error))}") from None
    if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA:
        raise RecordingError(f"{file}: it is no document of {SCHEMA}")
    return manifest


def _of_files(path: Path) -> Iterator[Findings]:
    """What each file says; those of the kernel's tree are read as a tree."""
    left = MOST_BYTES
    for number, file in enumerate(_files(path)):
        name = str(file.relative_to(path)) if file != path else file.name
        if number == MOST_FILES:
            yield Findings(kind="files", problems=(f"only {MOST_FILES} files were read",))
            return
        if left <= 0:
            many = f"only the first {MOST_BYTES >> 20} MiB of its files were read"
            yield Findings(kind="files", problems=(many,))
            return
        try:
            data = read_bounded(file, LONGEST_FILE + 1)
            left -= len(data)
            yield _read(file, name, data)
        except (FormatError, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            yield Findings(kind=name, problems=(f"{name}: {one_line(reason or 'unreadable')}",))


def _read(file: Path, name: str, data: bytes) -> Findings:
    text = text_of(data[:LONGEST_FILE])
    if file.suffix == ".json" and file.parent.name == FINDINGS:
        return _saved(text)
    found = read_text(text)
    if len(data) > LONGEST_FILE:
        more = f"{name}: only its first {LONGEST_FILE >> 20} MiB were read"
        return replace(found, problems=(*found.problems, more))
    return found


def _saved(text: str) -> Findings:
    try:
        return from_document(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise FormatError(one_line(str(error))) from None


def _files(path: Path) -> Iterator[Path]:
    """The files of a recording that are not the kernel's, in order; links are not followed."""
    if not path.is_dir():
        yield path
        return
    marked = {mark.split("/")[0] for mark, _ in _PARTS if next(path.glob(mark), None) is not None}
    for number, (folder, folders, names) in enumerate(os.walk(path)):
        if number == MOST_FOLDERS:
            return
        here = Path(folder)
        top = here == path
        left_out = {*_KERNEL_FOLDERS, TREE} if top or here.name == TREE else set()
        if top and marked:
            return
        folders[:] = sorted(each for each in folders if each not in left_out)
        for name in sorted(names):
            file = here / name
            if name != MANIFEST and file.is_file() and not file.is_symlink():
                yield file

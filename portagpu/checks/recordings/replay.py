"""Replay a recorded machine: a file or a folder, read like a live machine.

A recording is what ``portagpu record`` writes, a file that a tool printed, or a folder. A folder
may have such files, the kernel's files below ``sys`` and ``proc``, or a topology of KFD alone.
Files of unknown formats become problems and stop nothing.
"""

from __future__ import annotations

import json
import os
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.errors import RecordingError
from portagpu.base.files import read_bounded
from portagpu.base.text import excerpt
from portagpu.checks.recordings.archives import (
    PACKED,
    UnpackedArchive,
    file_head,
    packed_with,
    unpacked,
)
from portagpu.devices.contract import Status
from portagpu.facts.formats.cleaning import decode_text
from portagpu.facts.formats.host import kernel_log
from portagpu.facts.formats.reader import UNREAD, read_text
from portagpu.facts.host.tree import Kind, RootedFolder, Tree, resolve_link
from portagpu.facts.readings.model import Findings, FormatError, from_document
from portagpu.facts.torchbuild import TorchBuild
from portagpu.machine.inventory.join import MAX_GPUS, too_many_message
from portagpu.machine.inventory.kernel import kernel_findings
from portagpu.machine.inventory.sources import Machine, origin_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from portagpu.machine.inventory.gpu import Inventory
    from portagpu.machine.inventory.sources import Origin
    from portagpu.machine.inventory.topology import Topology

MANIFEST: Final = "recording.json"
SCHEMA: Final = "portagpu.recording/1"
TREE: Final = "tree"
FINDINGS: Final = "findings"
OUTPUTS: Final = "outputs"

MAX_FILE_BYTES: Final = 32 << 20
"""Bytes that are read of one file: a 500-GPU matrix is 3 MiB, a kernel's log 16."""
MAX_BYTES: Final = 128 << 20
"""Bytes that are read of all files together."""
MAX_FILES: Final = 4000
_BEGINNING: Final = 4096
_PACKED_BEGINNING: Final = 1 << 20
_MAX_UNREAD: Final = 20
_KERNEL_FOLDERS: Final = ("sys", "proc", "dev")
# what a folder holds that is recorded by itself: a mark in it, and where the kernel has it
_PARTS: Final = (
    ("nodes/*/properties", "sys/class/kfd/kfd/topology"),
    ("topology/nodes/*/properties", "sys/class/kfd/kfd"),
    ("*/ports/*/state", "sys/class/infiniband"),
)


_READ: Final = "what portagpu record or a vendor's tool wrote (docs/recordings.md)"
_NOWHERE: Final = Path(os.devnull)
"""A path without entries below it."""


class Recording(Machine):
    """The machine that the files at ``paths`` describe; reads everything once, and runs nothing.

    Where several recordings of one machine contradict each other, the first counts. The kernel's
    files and the software are those of the first recording that has them. Raises RecordingError
    where there is nothing to read.
    """

    def __init__(self, *paths: Path | str) -> None:
        found: list[Findings] = []
        trees: list[Tree] = []
        self._manifest: dict[str, Any] = {}
        self._sources: list[tuple[Path, str | None]] = []
        for path in map(Path, paths):
            findings, tree, manifest = self._open(path)
            self._sources.append((path, _texts(manifest).get("source")))
            found.extend(findings)
            trees.extend([tree] if tree is not None else [])
            self._manifest = self._manifest or manifest
        self.tree = trees[0] if trees else Tree(_NOWHERE)
        self.software_known = bool(self._manifest)
        self.environment = _texts(self._manifest.get("environment"))
        self._findings = tuple(found)
        self._inventory: Inventory | None = None
        self.inventory()

    def _open(self, path: Path) -> tuple[list[Findings], Tree | None, dict[str, Any]]:
        """Open the file or folder; an archive is unpacked for the lifetime of this recording."""
        kind = packed_with(file_head(path))
        if kind in PACKED and packed_with(_unpacked_beginning(path)) == "tar":
            kind = "tar"
        if kind not in ("tar", "zip"):
            return _open_recording(path)
        if kind == "tar" and (found := _collected_findings(path)):
            return found, None, {}
        packed = UnpackedArchive(path, kind, self)
        try:
            return _open_recording(packed.folder, archive=path)
        except RecordingError:
            packed.remove()
            raise

    def findings(self) -> tuple[Findings, ...]:
        return self._findings

    def inventory(self) -> Inventory:
        self._inventory = self._inventory or super().inventory()
        return self._inventory

    def topology(self) -> Topology:
        found = super().topology()
        for kind, devices in (("GPUs", found.gpus), ("NICs", found.nics)):
            if len(devices) > MAX_GPUS:
                raise RecordingError(too_many_message(len(devices), kind))
        return found

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
            str(name): Status(bool(each.get("usable")), excerpt(str(each.get("reason", ""))))
            for name, each in stated.items()
            if isinstance(each, dict)
        }


def _unpacked_beginning(path: Path) -> bytes:
    """The first bytes of a packed file; bzip2 unpacks only whole blocks."""
    try:
        return unpacked(read_bounded(path, _PACKED_BEGINNING), _BEGINNING)[0]
    except (OSError, RecordingError):
        return b""


def _collected_findings(path: Path) -> list[Findings]:
    """The findings of the texts of interest in the archive of a collector; empty for another."""
    # few recordings are one
    from portagpu.checks.recordings.collected import collected_texts, is_collected

    found: list[Findings] = []
    if not is_collected(path):
        return found
    for text in collected_texts(path):
        if text.data:
            found += _text_findings(text.name, "", partial(_same, text.data))[0]
        if text.cut:
            shown = excerpt(text.name)
            problem = f"{shown}: {text.cut}"
            found.append(Findings(kind=shown, problems=(problem,), breaks_off=True))
    if not any(_says_something(each) for each in found):
        raise RecordingError(
            f"{excerpt(str(path))}: none of its texts is a kernel's log or a tool's output; "
            f"give {_READ}"
        )
    return found


def _same(data: bytes) -> bytes:
    return data


def _open_recording(
    path: Path, archive: Path | None = None
) -> tuple[list[Findings], Tree | None, dict[str, Any]]:
    """(findings, kernel's tree, manifest) of a file or folder; ``archive`` is its packed file."""
    try:
        path.stat()
        if path.is_dir():
            next(path.iterdir(), None)
    except (OSError, ValueError) as error:
        reason = "no such file or folder"
        if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
            reason = error.strerror or reason
        raise RecordingError(f"{excerpt(str(path))}: {reason}") from None
    if not path.is_dir():
        manifest, tree, found = {}, None, list(_file_findings(path))
    else:
        folder = RootedFolder(resolve_link(path))
        manifest, tree = _read_manifest(folder), _kernel_tree(folder)
        # of a part of a machine all files are the kernel's
        packed = archive is None
        found = [] if tree is not None and tree.at else list(_folder_findings(folder, packed))
    if tree is not None:
        found.extend(kernel_findings(tree))
    elif not manifest and not any(_says_something(each) for each in found):
        reasons = [problem for each in found for problem in each.problems]
        shown = excerpt(str(archive or path))
        problem = reasons[0] if len(reasons) == 1 else f"{shown}: no file in it is a recording"
        raise RecordingError(f"{problem}; give {_READ}")
    return found, tree, manifest


def _says_something(found: Findings) -> bool:
    # a text without any error is a reading too; a log that nobody might read is judged as unread
    whole = not found.problems and found.kind not in (UNREAD, "files")
    logs = (kernel_log.KIND, kernel_log.UNREAD)
    return (
        bool(found.readings or found.links or found.events or found.versions or found.kind in logs)
        or whole
    )


def _texts(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        return {}
    return {str(key): each for key, each in value.items() if isinstance(each, str)}


def _kernel_tree(folder: RootedFolder) -> Tree | None:
    """The kernel's files in a recording; None where it has none."""
    kinds = dict(_entries(folder, ""))
    if kinds.get(TREE) is Kind.LINK:
        raise RecordingError(
            f"{folder.root / TREE}: it is a link, which a recording does not follow; "
            "put the folder itself there"
        )
    for name in (TREE, ""):
        below = _entries(folder, name)
        if any(each in _KERNEL_FOLDERS and kind is Kind.FOLDER for each, kind in below):
            return Tree(folder.root / name, recorded=True)
    at = next((at for parts, at in _PARTS if _is_there(folder, "", parts.split("/"))), None)
    return None if at is None else Tree(folder.root, at, recorded=True)


def _entries(folder: RootedFolder, path: str) -> list[tuple[str, Kind]]:
    try:
        return folder.entries(path, follow=not path)
    except OSError:
        return []


def _is_there(folder: RootedFolder, path: str, parts: Sequence[str]) -> bool:
    """Whether ``path`` has a path of these parts below it; "*" stands for any name."""
    part, *rest = parts
    for name, kind in _entries(folder, path):
        if part in ("*", name):
            here = f"{path}/{name}" if path else name
            if not rest:
                return True
            if kind is Kind.FOLDER and _is_there(folder, here, rest):
                return True
    return False


def _read_manifest(folder: RootedFolder) -> dict[str, Any]:
    file = folder.root / MANIFEST
    try:
        manifest = json.loads(folder.data(MANIFEST, MAX_FILE_BYTES, follow=False))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise RecordingError(
            f"{file}: it cannot be read: {excerpt(_error_reason(error))}"
        ) from None
    if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA:
        raise RecordingError(f"{file}: not a document of {SCHEMA}")
    return manifest


def _error_reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or "unreadable"


def _file_findings(path: Path) -> Iterator[Findings]:
    """The findings of a single file, which may be a link."""
    yield from _text_findings(
        path.name, path.parent.name, lambda: read_bounded(path, MAX_FILE_BYTES + 1)
    )[0]


def _folder_findings(folder: RootedFolder, may_be_packed: bool) -> Iterator[Findings]:
    """The findings of each file, without those of the kernel's tree."""
    left, number = MAX_BYTES, 0
    unread: list[str] = []
    try:
        for name, kind in folder.walk(_is_kernels):
            if kind is not Kind.FILE:
                unread.append(f"{excerpt(name)}: a {kind.value} is not read")
                continue
            if name == MANIFEST or name.endswith(f"/{MANIFEST}"):
                continue
            if number == MAX_FILES:
                unread.append(f"only {MAX_FILES} files were read")
                break
            if left <= 0:
                unread.append(f"only the first {MAX_BYTES >> 20} MiB of its files were read")
                break
            number += 1
            inner = Path(name).parent.name or folder.root.name
            found, size = _text_findings(
                name,
                inner,
                partial(folder.data, name, MAX_FILE_BYTES + 1, follow=False),
                may_be_packed,
            )
            left -= size
            yield from found
    except OSError as error:
        unread.append(f"{excerpt(str(error.filename))}: {error.strerror}: what follows is not read")
    if unread:
        more = f" (and {len(unread) - _MAX_UNREAD} more)" if len(unread) > _MAX_UNREAD else ""
        problems = (
            [*unread[: _MAX_UNREAD - 1], f"{unread[_MAX_UNREAD - 1]}{more}"] if more else unread
        )
        yield Findings(kind="files", problems=tuple(problems))


def _is_kernels(folder: str, name: str) -> bool:
    return name in (*_KERNEL_FOLDERS, TREE) and Path(folder).name in ("", TREE)


def _text_findings(
    name: str, folder: str, read: Callable[[], bytes], may_be_packed: bool = True
) -> tuple[list[Findings], int]:
    """(findings of the file ``name`` in that folder, its size in bytes)."""
    shown, size, cut = excerpt(name), 0, ""
    try:
        data = read()
        if (kind := packed_with(data)) is not None:
            if kind not in PACKED or not may_be_packed:
                where = "here" if may_be_packed else "in an archive"
                raise FormatError(f"files packed with {kind} are not read {where}: unpack it")
            data, cut = unpacked(data, MAX_FILE_BYTES + 1)
            if (inner := packed_with(data)) is not None:
                raise FormatError(f"{inner} in a {kind} is not read here: unpack it")
        size = len(data)
        text = decode_text(data[:MAX_FILE_BYTES])
        if folder == FINDINGS and name.endswith(".json"):
            return [_saved_findings(text)], size
        found = list(read_text(text))
    except (FormatError, RecordingError, OSError) as error:
        return [Findings(kind=shown, problems=(f"{shown}: {excerpt(_error_reason(error))}",))], size
    if cut:
        found.append(Findings(kind=shown, problems=(f"{shown}: {cut}",), breaks_off=True))
    elif size > MAX_FILE_BYTES:
        more = f"{shown}: only its first {MAX_FILE_BYTES >> 20} MiB were read"
        found.append(Findings(kind=shown, problems=(more,), breaks_off=True))
    return found, size


def _saved_findings(text: str) -> Findings:
    try:
        return from_document(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise FormatError(excerpt(str(error))) from None

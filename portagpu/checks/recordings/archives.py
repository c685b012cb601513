"""Packed recordings: one file in gzip, xz or bzip2, tar or zip of a folder, within limits.

Files are unpacked one by one into a folder of this process (``portagpu/base/files.py``). Names
that lead out of it, and archives in archives, are refused. ``pack`` writes a recording as a tar.gz.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import tarfile
import weakref
import zipfile
import zlib
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, BinaryIO, Final

from portagpu.base.errors import RecordingError
from portagpu.base.files import Scratch, read_bounded
from portagpu.base.text import excerpt

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_BYTES: Final = 128 << 20
"""Unpacked size of an archive."""
MAX_ENTRIES: Final = 65_536
_MAX_NAME: Final = 1024
_PIECE: Final = 1 << 16
_XZ_MEMORY: Final = 256 << 20
"""That xz may take: its dictionary is 8 MiB by default, and 64 MiB with -9."""

_GZIP, _ZIP = b"\x1f\x8b", b"PK\x03\x04"
_TAR_AT, _TAR = 257, b"ustar"
_UNREAD: Final = (
    (b"\x28\xb5\x2f\xfd", "zstd"), (b"7z\xbc\xaf", "7z"),
    (b"PK\x05\x06", "an empty zip"), (b"Rar!", "rar"), (b"\x04\x22\x4d\x18", "lz4"),
)  # fmt: skip
_PACKED: Final = ((_GZIP, "gzip"), (b"\xfd7zXZ\0", "xz"), (b"BZh", "bzip2"))
PACKED: Final = frozenset(name for _, name in _PACKED)
"""What a single file may be packed with to be read."""
_UNPACK: Final = "unpack it, and give what is in it"


def packed_with(data: bytes) -> str | None:
    """What a file that begins with ``data`` is packed with; None for one that is not packed."""
    if data.startswith(_ZIP):
        return "zip"
    if data[_TAR_AT : _TAR_AT + len(_TAR)] == _TAR:
        return "tar"
    return next((name for mark, name in (*_PACKED, *_UNREAD) if data.startswith(mark)), None)


def file_head(path: Path) -> bytes:
    """The first bytes of a file, enough for :func:`packed_with`; empty if it cannot be read."""
    try:
        return read_bounded(path, _TAR_AT + len(_TAR))
    except OSError:
        return b""


def unpacked(data: bytes, most: int) -> tuple[bytes, str]:
    """(at most ``most`` unpacked bytes, a sentence if that is not all).

    Raises RecordingError where ``data`` is not what one of ``PACKED`` writes.
    """
    kind = packed_with(data) or ""
    pieces, left, rest = [], most, data
    try:
        while rest and left > 0:
            unpacker = _unpacker(kind)
            piece = unpacker.decompress(rest, left)
            pieces.append(piece)
            left -= len(piece)
            if not unpacker.eof:
                cut = "only its beginning was unpacked" if left <= 0 else f"its {kind} breaks off"
                return b"".join(pieces), cut
            rest = unpacker.unused_data.lstrip(b"\0")
    except (zlib.error, lzma.LZMAError, OSError, EOFError, KeyError):
        if not any(pieces):
            raise RecordingError(f"its {kind} cannot be read") from None
        return b"".join(pieces), f"its {kind} breaks off"
    return b"".join(pieces), "only its beginning was unpacked" if rest else ""


def _unpacker(kind: str) -> Any:
    return {
        "gzip": lambda: zlib.decompressobj(wbits=31),
        "xz": lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, _XZ_MEMORY),
        "bzip2": bz2.BZ2Decompressor,
    }[kind]()


class UnpackedArchive:
    """An archive's files in ``folder``, which is removed when ``owner`` is collected.

    Raises RecordingError for an archive that cannot be read, leads out of its folder, or is larger
    than any recording.
    """

    def __init__(self, path: Path, kind: str, owner: object) -> None:
        scratch = Scratch("recording")
        self.remove = weakref.finalize(owner, scratch.remove)
        shown = excerpt(path.name)
        try:
            _save(_zip_entries(path) if kind == "zip" else _tar_entries(path), scratch.path)
        except UNREADABLE as error:
            self.remove()
            reason = error.strerror if isinstance(error, OSError) else excerpt(str(error))
            problem = f"{shown}: this {kind} cannot be read: {reason or 'it breaks off'}"
            raise RecordingError(problem) from None
        except _ArchiveRefused as error:
            self.remove()
            raise RecordingError(f"{shown}: {error}; {_UNPACK}") from None
        self.folder = _only_folder(scratch.path)


def pack(folder: Path, file: Path, name: str) -> None:
    """Write ``folder`` as ``name`` into a tar.gz, without times and owners of files."""

    def nameless(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = entry.mtime = 0
        entry.uname = entry.gname = ""
        entry.mode = 0o755 if entry.isdir() else 0o644
        return entry

    with (
        file.open("wb") as plain,
        gzip.GzipFile("", "wb", fileobj=plain, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        archive.add(folder, name, filter=nameless)


class _ArchiveRefused(Exception):
    """Why an archive is not unpacked."""


UNREADABLE: Final = (
    OSError, EOFError, tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError,
    NotImplementedError, RuntimeError, ValueError,
)  # fmt: skip


class _BoundedReader:
    """A sequential reader of a file that may be packed; raises _ArchiveRefused beyond the limit."""

    def __init__(self, file: BinaryIO, most: int) -> None:
        self._file = file
        self._left = self._most = most
        kind = packed_with(file.read(8))
        file.seek(0)
        self._kind = kind if kind in PACKED else None
        self._unpacker = _unpacker(self._kind) if self._kind else None
        self._packed = b""

    def read(self, size: int = -1) -> bytes:
        if size < 0 or size > self._left:
            raise _ArchiveRefused(f"it holds more than {self._most >> 20} MiB")
        pieces = []
        wanted = size
        while wanted and (piece := self._piece(wanted)):
            pieces.append(piece)
            wanted -= len(piece)
        self._left -= size - wanted
        return b"".join(pieces)

    def _piece(self, size: int) -> bytes:
        """At most ``size`` unpacked bytes; empty at the end. Raises EOFError if it breaks off."""
        if self._unpacker is None:
            return self._file.read(size)
        while True:
            if self._unpacker.eof:
                self._packed = self._unpacker.unused_data.lstrip(b"\0") or self._file.read(_PIECE)
                if not self._packed.strip(b"\0"):
                    return b""
                self._unpacker = _unpacker(self._kind or "")
            data = self._packed
            if not data and getattr(self._unpacker, "needs_input", True):
                data = self._file.read(_PIECE)
            piece: bytes = self._unpacker.decompress(data, size)
            self._packed = getattr(self._unpacker, "unconsumed_tail", b"")
            if piece:
                return piece
            if not data and not self._unpacker.eof:
                raise EOFError("it breaks off")


@contextmanager
def opened_tar(path: Path, most: int) -> Iterator[tarfile.TarFile]:
    """The tar at ``path``, packed or not, to be read once from its beginning."""
    with path.open("rb") as plain:
        bounded: Any = _BoundedReader(plain, most)
        try:
            with tarfile.open(fileobj=bounded, mode="r|") as archive:
                yield archive
        except _ArchiveRefused as error:
            raise ValueError(str(error)) from None


def _tar_entries(path: Path) -> Iterator[tuple[str, IO[bytes] | str | None]]:
    """(name, content) of every entry; the target of a link, and None for a folder."""
    with path.open("rb") as plain:
        bounded: Any = _BoundedReader(plain, MAX_BYTES + (MAX_ENTRIES << 11))
        with tarfile.open(fileobj=bounded, mode="r|") as archive:
            for entry in archive:
                if entry.issym() and _stays_inside(entry.name, entry.linkname):
                    yield entry.name, entry.linkname
                    continue
                if entry.issym() or entry.islnk():
                    raise _ArchiveRefused(f"{excerpt(entry.name)!r} in it is a link")
                if not (entry.isreg() or entry.isdir()):
                    raise _ArchiveRefused(f"{excerpt(entry.name)!r} in it is not a regular file")
                yield entry.name, archive.extractfile(entry) if entry.isreg() else None


def _stays_inside(name: str, link: str) -> bool:
    """Whether a link leads to a place in the archive, as those of a recorded tree do."""
    _parts(name)
    end = PurePosixPath(os.path.normpath(PurePosixPath(name).parent / link))
    return "\0" not in link and not end.is_absolute() and end.parts[:1] not in ((), ("..",))


def _zip_entries(path: Path) -> Iterator[tuple[str, IO[bytes] | str | None]]:
    _bound_directory(path)
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            kind = entry.external_attr >> 16 & 0o170000
            if kind == 0o120000:
                raise _ArchiveRefused(f"{excerpt(entry.filename)!r} in it is a link")
            if kind not in (0, 0o100000, 0o040000):
                raise _ArchiveRefused(f"{excerpt(entry.filename)!r} in it is not a regular file")
            if entry.flag_bits & 1:
                raise _ArchiveRefused("it is encrypted")
            if entry.is_dir():
                yield entry.filename, None
            else:
                with archive.open(entry) as file:
                    yield entry.filename, file


def _bound_directory(path: Path) -> None:
    """_Refused for a zip whose list of entries would fill the memory, which is read at once."""
    found = 0
    with path.open("rb") as file:
        for _ in range(MAX_BYTES // _PIECE + 1):
            piece = file.read(_PIECE)
            found += piece.count(b"PK\x01\x02")
            if not piece:
                return
            if found > MAX_ENTRIES:
                raise _ArchiveRefused(f"it holds more than {MAX_ENTRIES} files")
    raise _ArchiveRefused(f"it is larger than {MAX_BYTES >> 20} MiB")


def _save(entries: Iterator[tuple[str, IO[bytes] | str | None]], folder: Path) -> None:
    left, number = MAX_BYTES, 0
    links: dict[Path, str] = {}
    for name, content in entries:
        number += 1
        if number > MAX_ENTRIES:
            raise _ArchiveRefused(f"it holds more than {MAX_ENTRIES} files")
        place = folder.joinpath(*_parts(name))
        if isinstance(content, str):
            links[place] = content
            continue
        if content is None:
            place.mkdir(parents=True, exist_ok=True, mode=0o700)
            continue
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(place, flags, 0o600), "wb") as file:
            while piece := content.read(_PIECE):
                left -= len(piece)
                if left < 0:
                    raise _ArchiveRefused(f"it holds more than {MAX_BYTES >> 20} MiB")
                file.write(piece)
    # after every file and folder, so that none is made through a link
    for place in links:
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    for place, link in links.items():
        place.symlink_to(link)


def _parts(name: str) -> tuple[str, ...]:
    """The names of folders and the file; _Refused for what would not stay in the archive."""
    if len(name) > _MAX_NAME or "\0" in name:
        raise _ArchiveRefused(f"it contains the unusable name {excerpt(name, 40)!r}")
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise _ArchiveRefused(f"{excerpt(name, 80)!r} in it leads outside of it")
    return path.parts


def _only_folder(folder: Path) -> Path:
    """The single folder that holds the whole archive, if there is one."""
    for _ in range(8):
        inner = list(folder.iterdir())
        # what a tree of the kernel's or of a recording begins with says where it begins
        if len(inner) != 1 or not inner[0].is_dir() or inner[0].name in _MEANT:
            return folder
        folder = inner[0]
    return folder


_MEANT: Final = frozenset(
    {"sys", "proc", "dev", "tree", "topology", "nodes", "findings", "outputs"}
)

"""Files that are packed with Zstandard, which Python's library reads since 3.14.

Before that one of two packages serves: ``zstandard``, or pyarrow, which the extra ``trace`` has.
"""

from __future__ import annotations

import io
from contextlib import suppress
from importlib import import_module
from typing import IO, TYPE_CHECKING, Any, Final, cast

from portagpu.base.errors import MissingDependency

if TYPE_CHECKING:
    from collections.abc import Callable

ZSTD: Final = b"\x28\xb5\x2f\xfd"
"""How a frame of Zstandard begins (RFC 8878)."""
_PIECE: Final = 1 << 14


def zstd_file(file: IO[bytes]) -> io.BufferedReader:
    """What a file of Zstandard holds. It raises OSError where that is damaged or breaks off.

    Raises MissingDependency where nothing can unpack it.
    """
    return io.BufferedReader(_Unpacked(file))


def zstd_bytes(data: bytes, most: int) -> bytes:
    """At most ``most`` unpacked bytes, as far as they are whole; raises as :func:`zstd_file`."""
    found = bytearray()
    with zstd_file(io.BytesIO(data)) as file, suppress(OSError):
        while (left := most - len(found)) > 0 and (piece := file.read1(left)):
            found += piece
    return bytes(found)


class _Unpacked(io.RawIOBase):
    def __init__(self, file: IO[bytes]) -> None:
        self._stream = _stream(file)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            # little at a time: a read that meets the end of a broken file returns nothing
            data = self._stream.read(min(len(buffer), _PIECE))
        except Exception as error:
            # each package has errors of its own
            raise OSError("its zstd is damaged or breaks off") from error
        buffer[: len(data)] = data
        return len(data)


def _stream(file: IO[bytes]) -> IO[bytes]:
    ways: tuple[tuple[str, Callable[[Any], object]], ...] = (
        ("compression.zstd", lambda found: found.ZstdFile(file)),
        (
            "zstandard",
            lambda found: found.ZstdDecompressor().stream_reader(file, read_across_frames=True),
        ),
        (
            "pyarrow",
            lambda found: found.CompressedInputStream(found.PythonFile(file, mode="r"), "zstd"),
        ),
    )
    for name, open_with in ways:
        try:
            found = import_module(name)
        except ImportError:
            continue
        return cast("IO[bytes]", open_with(found))
    raise MissingDependency(
        "it is packed with zstd, which needs Python 3.14 or the package zstandard: "
        "pip install zstandard, or unpack it (zstd -d)"
    )

"""Several outputs in one text, what terminals and mail put into it, and archives of them.

The outputs are those of ``tests/vendor_texts/formats``, or are made here like them; what a paste
has to give is written by hand. Where a class of pastes has a source it stands in its line."""

from __future__ import annotations

import gzip
import lzma
import tarfile
from typing import TYPE_CHECKING

import pytest

from portagpu.base.errors import RecordingError
from tests.vendor_texts.test_pastes import FILES, LOG, TABLE, read, tar, zipped
from tests.vendor_texts.test_pastes import temporary as temporary

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, target
    return entry


REFUSED = {
    "out of a tar": (tar({"../../evil": TABLE}), "'../../evil' in it leads outside of it"),
    "out of a zip": (zipped({"../evil": TABLE}), "'../evil' in it leads outside of it"),
    "from the root": (tar({"/etc/evil": TABLE}), "leads outside of it"),
    "link": (tar(FILES, special("l", tarfile.SYMTYPE, "/etc")), "'l' in it is a link"),
    "hard link": (
        tar(FILES, special("l", tarfile.LNKTYPE, "node7/smi.txt")),
        "'l' in it is a link",
    ),
    "device": (tar(FILES, special("d", tarfile.CHRTYPE)), "'d' in it is not a regular file"),
    "pipe": (tar(FILES, special("p", tarfile.FIFOTYPE)), "'p' in it is not a regular file"),
    "odd name": (tar({"../\x1b[2J": TABLE}), "leads outside of it"),
    "too long": (tar({"a" * 3000: TABLE}), "contains the unusable name"),
    "twice": (tar({"a": TABLE}) and tar({"a": TABLE, "./a": LOG}), "cannot be read"),
    # made in its test: packing it takes long
    "large": (lambda: tar({str(n): b"\0" * (20 << 20) for n in range(8)}), "more than 128 MiB"),
    "archive in it": (tar({"in.tar.gz": tar(FILES)}), "gzip are not read in an archive: unpack it"),
    "zip in it": (zipped({"in.zip": zipped(FILES)}), "zip are not read in an archive: unpack it"),
    "zip in an xz": (lzma.compress(zipped(FILES)), "zip in a xz is not read here: unpack it"),
    "zstd": (b"\x28\xb5\x2f\xfd" + b"x" * 300, "packed with zstd are not read here: unpack it"),
    "gzip of a zip": (gzip.compress(zipped(FILES)), "zip in a gzip is not read here: unpack it"),
    "no zip": (b"PK\x03\x04" + b"x" * 300, "this zip cannot be read"),
    "half a tar": (tar(FILES, mode="w")[:700], "this tar cannot be read"),
    "no gzip": (b"\x1f\x8b" + b"x" * 300, "its gzip cannot be read"),
}


@pytest.mark.parametrize(("data", "said"), REFUSED.values(), ids=REFUSED.keys())
def test_an_archive_that_is_none_of_a_recording_is_refused_in_one_line(
    tmp_path: Path, temporary: Path, data: bytes | Callable[[], bytes], said: str
) -> None:
    with pytest.raises(RecordingError) as caught:
        read(tmp_path, data() if callable(data) else data)
    assert said in str(caught.value)
    assert str(caught.value).isprintable()
    assert not list(temporary.iterdir())
    assert not (tmp_path / "evil").exists()
    assert not (tmp_path.parent / "evil").exists()

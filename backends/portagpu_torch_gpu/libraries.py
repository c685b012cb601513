"""What torch switches in the libraries of both vendors: searches for convolutions, and direct
storage through ``torch.cuda.gds``. No GPU has run this.

torch has the module for one vendor since 2.7 and for both since 2.15 (torch 2.15, documentation of
``torch.cuda.gds.is_available``; pytorch pull request 191069). In a build without the library it is
there too, and its first call raises RuntimeError (torch/cuda/gds.py). ``GdsFile`` of torch adds
O_DIRECT by itself. Nothing here imports torch before a file is opened.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from portagpu.base.errors import Unsupported
from portagpu.base.text import error_line

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import torch


@contextmanager
def searched(on: bool) -> Iterator[None]:
    """With ``torch.backends.cudnn.benchmark`` switched: the library searches for convolutions."""
    import torch

    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = on
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


class GdsFile:
    """A file and registered memory of a GPU: a ``portagpu.plugin.DirectFile``."""

    def __init__(self, library: str, device: torch.device, path: Path, size: int) -> None:
        import torch

        try:
            from torch.cuda import gds
        except ImportError as error:
            raise Unsupported(f"torch {torch.__version__} has no torch.cuda.gds") from error
        self.memory = torch.zeros(size, dtype=torch.uint8, device=device)
        self._storage: Any = self.memory.untyped_storage()
        self._gds: Any = gds
        self._registered = False
        self._file: Any = None
        try:
            self._gds.gds_register_buffer(self._storage)
            self._registered = True
            self._file = self._gds.GdsFile(str(path), os.O_RDWR)
            # what cannot go directly is refused by a transfer, and not before
            self.read()
        except (RuntimeError, OSError) as error:
            self.close()
            raise Unsupported(
                f"{library} does not read files of this folder directly: {error_line(error)}"
            ) from error

    def read(self) -> None:
        """Fill ``memory`` from the file; the library's call returns when it is."""
        self._file.load_storage(self._storage)

    def write(self) -> None:
        """Fill the file from ``memory``, and have the disk keep it."""
        self._file.save_storage(self._storage)
        os.fdatasync(self._file.fd)

    def close(self) -> None:
        """Give the file back, which torch's object closes when it goes, and the registration."""
        self._file = None
        if self._registered:
            self._registered = False
            self._gds.gds_deregister_buffer(self._storage)

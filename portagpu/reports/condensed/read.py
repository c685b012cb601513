"""Result files of many nodes, read by several processes."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_all_start_methods, get_context
from typing import TYPE_CHECKING, Final

from portagpu.reports.condensed.nodes import NodeRun, read_node
from portagpu.reports.condensed.packed import Packed, Unpacker, pack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from portagpu.reports.condensed.nodes import Found, Other, Unread

_SHARE: Final = 16
"""Files for which one more process is worth its start."""


def read_nodes(
    paths: Sequence[Path], processes: int = 0, known: Callable[[Path], NodeRun | None] | None = None
) -> Iterator[Found]:
    """Each file in its order; one whose run is ``known`` is not read.

    By default as many ``processes`` read as there are cores; few files are read by this one.
    """
    if known is not None:
        found = [known(path) for path in paths]
        rest = [path for path, run in zip(paths, found, strict=True) if run is None]
        read = read_nodes(rest, processes)
        yield from (next(read) if run is None else run for run in found)
        return
    processes = min(processes or len(os.sched_getaffinity(0)), len(paths) // _SHARE)
    if processes < 2 or "fork" not in get_all_start_methods():
        yield from map(read_node, paths)
        return
    unpacker = Unpacker()
    with ProcessPoolExecutor(processes, mp_context=get_context("fork")) as pool:
        packed = pool.map(_read_packed, paths, chunksize=_SHARE // 4)
        for path, each in zip(paths, packed, strict=True):
            run = unpacker.read(each, path) if isinstance(each, Packed) else each
            yield read_node(path) if run is None else run


_forms: Final[dict[bytes, bytes]] = {}
"""Of this process: a form that several runs have travels once with them."""


def _read_packed(path: Path) -> Packed | Unread | Other:
    """What a file holds, as it travels between processes: packed, a run has no facts."""
    found = read_node(path)
    if not isinstance(found, NodeRun):
        return found
    packed = pack(found)
    return packed._replace(form=_forms.setdefault(packed.form, packed.form))

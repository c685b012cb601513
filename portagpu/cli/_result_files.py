"""Results from files: documents, bundles, and folders of them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import click

from portagpu.errors import BundleError, ResultError
from portagpu.files import read_bounded
from portagpu.text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from portagpu.results.run import Run

_WHOLE: Final = "result.json"
"""What ``--out`` writes: it stands for its folder, whose bundle is of the same run."""
_SCHEMA: Final = re.compile(rb'"schema"\s*:\s*"portagpu\.(result|bundle)/')
_HEAD_BYTES: Final = 4096


def read_runs(paths: Iterable[Path]) -> dict[Path, Run]:
    """The runs of files and folders by their files, in their order; bundles are validated.

    A folder with a ``result.json`` is that run; of any other folder it is every result below it.
    Raises UsageError in one line for what is no result, for a file that was altered or cut, for a
    folder without results, and for two files with one run.
    """
    runs: dict[Path, Run] = {}
    ids: dict[str, Path] = {}
    for path in paths:
        for file in _files(path):
            if file in runs:
                continue
            run = _read(file)
            if (other := ids.setdefault(run.info.id, file)) != file:
                raise click.UsageError(
                    f"{one_line(str(other))} and {one_line(str(file))} both hold the run "
                    f"{one_line(run.info.id)}: name one of them"
                )
            runs[file] = run
    return runs


def _read(file: Path) -> Run:
    from portagpu.bundle import read_bundle
    from portagpu.results.run import Run, read_json

    try:
        if _kind(file) == b"bundle":
            return Run.from_json(read_bundle(file)["result"])
        return read_json(file)
    except (BundleError, ResultError) as error:
        message = f"{one_line(str(error))}; give results, as --json and --out write them"
        raise click.UsageError(message) from error


def _files(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
    elif (whole := path / _WHOLE).exists():
        yield whole
    else:
        found = list(_below(path))
        if not found:
            raise click.UsageError(f"{one_line(str(path))}: no file in this folder is a result")
        yield from found


def _below(folder: Path) -> Iterator[Path]:
    for each in sorted(folder.iterdir()):
        if each.is_dir() and not each.is_symlink():
            whole = each / _WHOLE
            if whole.exists():
                yield whole
            else:
                yield from _below(each)
        elif each.suffix == ".json" and _kind(each):
            yield each


def _kind(file: Path) -> bytes:
    """ "result" or "bundle", as the first bytes say; empty for anything else."""
    try:
        found = _SCHEMA.search(read_bounded(file, _HEAD_BYTES))
    except OSError:
        return b""
    return found[1] if found else b""

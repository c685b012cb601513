"""The engine: reads what it is given, and adds a result for each finding."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from portagpu.base.errors import MissingDependency, RecordingError
from portagpu.base.files import read_bounded
from portagpu.base.packed import ZSTD, zstd_bytes
from portagpu.base.text import excerpt
from portagpu.checks.collectives_doctor.findings import Finding, combine_findings, to_result
from portagpu.checks.collectives_doctor.flight_recorder import looks_like_dump, rank_of, read_dump
from portagpu.checks.collectives_doctor.log_job import Job
from portagpu.checks.collectives_doctor.log_judgement import judge_logs
from portagpu.checks.collectives_doctor.logs import NoKnownLineError, read_log
from portagpu.checks.collectives_doctor.reports import (
    Reports,
    judge_reports,
    looks_like_report,
    read_report,
)
from portagpu.checks.collectives_doctor.settings import judge_machine
from portagpu.checks.collectives_doctor.stalls import judge_dumps
from portagpu.facts.formats.cleaning import decode_text
from portagpu.facts.host.tree import Kind, RootedFolder
from portagpu.facts.readings.model import FormatError
from portagpu.runs.engine import Progress, RunOptions, add_result, complete

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from portagpu.checks.collectives_doctor.flight_recorder import Dump
    from portagpu.machine.inventory.sources import Machine
    from portagpu.runs.results.run import Run

MAX_FILE_BYTES: Final = 256 << 20
"""Bytes of one file: the log of a hundred ranks has about 100 MiB."""
MAX_FILES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class InputFile:
    """One file: its name, below a folder that was given, and a reader of its first bytes."""

    name: str
    data: Callable[[int], bytes]

    def read(self) -> bytes:
        """The whole file. Raises FormatError where it cannot be read, or is too large."""
        try:
            data = self.data(MAX_FILE_BYTES + 1)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "it cannot be read"
            raise FormatError(reason) from None
        if data[:2] == _GZIP:
            data = _unpacked(data)
        elif data[:4] == ZSTD:
            try:
                data = zstd_bytes(data, MAX_FILE_BYTES + 1)
            except MissingDependency as error:
                raise FormatError(str(error)) from None
            if not data:
                raise FormatError("it is not a whole zstd file")
        if len(data) > MAX_FILE_BYTES:
            raise FormatError(f"it is larger than {MAX_FILE_BYTES >> 20} MiB")
        return data


_GZIP: Final = b"\x1f\x8b"


def _unpacked(data: bytes) -> bytes:
    """What a gzip holds, one byte more than the limit at most, and as far as it is whole."""
    found = bytearray()
    while data[:2] == _GZIP and len(found) <= MAX_FILE_BYTES:
        unpacker = zlib.decompressobj(wbits=31)
        try:
            found += unpacker.decompress(data, MAX_FILE_BYTES + 1 - len(found))
        except zlib.error:
            if not found:
                raise FormatError("it is not a whole gzip file") from None
            break
        data = unpacker.unused_data
    return bytes(found)


def list_inputs(paths: Sequence[Path | str]) -> list[InputFile]:
    """Each file at ``paths``; of a folder, all files below it, without links.

    Raises RecordingError for a path that is not there, and for too many files.
    """
    found: list[InputFile] = []
    if not all(map(str, paths)):
        raise RecordingError("a path is empty: name a file or a folder")
    for path in map(Path, paths):
        try:
            path.stat()
            for each in _below(path) if path.is_dir() else [_single(path)]:
                found.append(each)
                if len(found) > MAX_FILES:
                    raise RecordingError(f"there are more than {MAX_FILES} files: give fewer")
        except (OSError, ValueError) as error:
            if isinstance(error, RecordingError):
                raise
            reason = getattr(error, "strerror", None) or "it cannot be read"
            raise RecordingError(f"{excerpt(str(path))}: {reason}") from None
    return found


def _single(path: Path) -> InputFile:
    return InputFile(path.name, partial(read_bounded, path))


def _below(path: Path) -> Iterator[InputFile]:
    folder = RootedFolder(path.resolve())
    for name, kind in folder.walk():
        if kind is Kind.FILE:
            yield InputFile(name, partial(folder.data, name, follow=False))


MAX_DOCUMENT_BYTES: Final = 64 << 20
"""Bytes of a dump or report, which is held as a whole: a dump of 20 000 entries is 20 MiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorOptions(RunOptions):
    """What to look at: files and folders with dumps and logs of one run, and a machine."""

    paths: Sequence[Path | str] = ()
    machine: Machine | None = None
    """The machine whose settings are looked at; None for none."""


def doctor(options: DoctorOptions, progress: Progress | None = None) -> Run:
    """The findings on what ``options`` name, each with evidence, cause, remedy and source.

    Raises RecordingError for a path that is not there. A file that cannot be read, or is of no
    known form, is an ERROR of its own.
    """
    progress = progress or Progress()
    files = list_inputs(options.paths)
    run = options.new_run()

    def work(run: Run) -> None:
        found = list(_file_findings(files, progress))
        if options.machine is not None:
            progress.item_begins("settings", 1, 1)
            found += judge_machine(options.machine)
        for finding in combine_findings(found):
            add_result(run, progress, to_result(finding))

    return complete(run, progress, work)


def _file_findings(files: Sequence[InputFile], progress: Progress) -> Iterator[Finding]:
    dumps: dict[int, Dump] = {}
    job, reports = Job(), Reports()
    for number, file in enumerate(files, 1):
        progress.item_begins(file.name, number, len(files))
        try:
            second = _read_file(file.name, file.read(), dumps, job, reports)
        except FormatError as error:
            shown = excerpt(file.name)
            # a file with a dump's name has to be one
            is_text = isinstance(error, NoKnownLineError) and rank_of(file.name) is None
            kind = "no-known-line" if is_text else "unread"
            yield Finding(id=kind, evidence=f"{shown}: {error}", device=shown)
            continue
        if second is not None:
            evidence = (
                f"rank {second.rank} has the dumps {dumps[second.rank].file} and {second.file}"
            )
            yield Finding(id="two-dumps", evidence=evidence, device=f"rank {second.rank}")
    if dumps:
        yield from judge_dumps([dumps[rank] for rank in sorted(dumps)])
    yield from judge_reports(reports)
    if job.lines or job.said or job.tables:
        yield from judge_logs(job)


def _read_file(
    name: str, data: bytes, dumps: dict[int, Dump], job: Job, reports: Reports
) -> Dump | None:
    """Add a file to what it is of; a second dump of one rank and form is returned instead.

    Raises FormatError for a file of no known form.
    """
    is_report = looks_like_report(name, data)
    if (is_report or looks_like_dump(data)) and len(data) > MAX_DOCUMENT_BYTES:
        raise FormatError(f"it is larger than {MAX_DOCUMENT_BYTES >> 20} MiB")
    if is_report:
        read_report(decode_text(data), name, reports)
    elif looks_like_dump(data):
        dump = read_dump(data, name)
        known = dumps.get(dump.rank)
        if known is not None and known.is_json == dump.is_json:
            return dump
        # of a pickle and a JSON of one rank, the pickle has the lines of the program
        if known is None or known.is_json:
            dumps[dump.rank] = dump
    else:
        read_log(decode_text(data), job)
    return None

"""The record of a fleet run: its nodes, its steps and their states, in one file of one folder.

``<folder>/fleet.json`` is the record. The results of a step lie in ``<folder>/<step id>/``, as
``--out`` of the command wrote them. The record is written atomically after every change: whoever
reads it sees a whole one, and an interrupted run goes on from it.

``fleet.lock`` in the same folder lets one process at a time change it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import platform
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from portagpu.base.documents import DocumentError, decode, encode, mapping, version
from portagpu.base.errors import OutputError, PortagpuError
from portagpu.base.files import read_bounded, write_atomic
from portagpu.base.text import excerpt
from portagpu.runs.results.advice import Action
from portagpu.runs.results.verdicts import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


SCHEMA: Final = "portagpu.fleet/1"
FILE: Final = "fleet.json"
ENDED: Final = "ended"
"""The file in which ``step.sh`` writes the job's number and the command's exit code."""
RESULT: Final = "result.json"
_MAX_BYTES: Final = 256 << 20
"""Of a record; a step takes some 500."""


class FleetRecordError(PortagpuError, ValueError):
    """The folder has no record that can be used; the message says why, in one line."""


class StepState(StrEnum):
    """How far a step of a fleet run is."""

    WAITING = "waiting"
    """Not submitted yet."""
    SUBMITTED = "submitted"
    """In the scheduler's queue."""
    RUNNING = "running"
    DONE = "done"
    """It ended by itself, and its result was read; the result has the verdict."""
    LOST = "lost"
    """It ended without a result: the node died, the job was cancelled, or the folder is full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One command on one node, or on a pair or group of nodes together.

    ``id`` is unique in the record and a name of a folder. ``round`` counts from 0: steps of one
    round share no node. ``job`` is the scheduler's name of the job ("123_4"), ``attempts`` how
    often it was submitted, ``reason`` one line about a state that needs one. ``result`` is the
    file of its result, relative to the folder; None until it was read. ``verdict`` is the result's,
    ``gate`` the first gate or area that failed in it, ``action`` what to do about the node.
    """

    id: str
    nodes: tuple[str, ...]
    round: int = 0
    state: StepState = StepState.WAITING
    job: str | None = None
    attempts: int = 0
    reason: str = ""
    result: str | None = None
    verdict: str | None = None
    gate: str | None = None
    action: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRecord:
    """One fleet run; ``what`` is one of ``WHATS`` in ``portagpu.reports.fleet.request``.

    ``arguments`` are those of the portagpu command on each node. ``started`` is RFC 3339 with its
    zone. ``scheduler`` has what the scheduler was asked for ("partition", "gres", "version").
    ``drained`` maps the nodes that this run drained to the reason that it gave, empty once it has
    resumed them.
    """

    id: str
    what: str
    arguments: tuple[str, ...] = ()
    started: str
    nodes: tuple[str, ...]
    scheduler: Mapping[str, str] = field(default_factory=dict)
    steps: tuple[Step, ...] = ()
    drained: Mapping[str, str] = field(default_factory=dict)
    schema: str = SCHEMA


def read_record(folder: Path) -> FleetRecord:
    """The record in ``folder``. Raises FleetRecordError."""
    path = folder / FILE
    try:
        document = json.loads(read_bounded(path, _MAX_BYTES))
    except FileNotFoundError:
        raise FleetRecordError(
            f"{folder} has no {FILE}: it is not the folder of a fleet run"
        ) from None
    except OSError as error:
        raise FleetRecordError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise FleetRecordError(f"{path} is not JSON, or was cut off: {error}") from error
    try:
        version(SCHEMA).read(mapping(document, FILE).get("schema"), "schema")
        record = decode(FleetRecord, document, FILE)
    except DocumentError as error:
        raise FleetRecordError(f"{path}: {error}") from error
    if damage := _damage(record):
        raise FleetRecordError(f"{path} is damaged: {damage}")
    return record


def _damage(record: FleetRecord) -> str:
    """What cannot be in a record that this version wrote; empty for a whole one."""
    if len({step.id for step in record.steps}) < len(record.steps):
        return "two steps have one id"
    nodes = set(record.nodes)
    for step in record.steps:
        name = excerpt(step.id)
        if not step.nodes or not nodes.issuperset(step.nodes):
            return f"the step {name} has other nodes than the run"
        if step.verdict not in {None, *Verdict} or step.action not in {None, *Action}:
            return f"the step {name} has a verdict or an action that there is not"
        if step.state is StepState.DONE and (step.verdict is None or not step.result):
            return f"the step {name} is done without a result"
        if "\0" in (step.result or ""):
            return f"the step {name} has a result that is not the name of a file"
    return ""


def write_record(folder: Path, record: FleetRecord) -> None:
    """Replace the record in ``folder``. Raises OutputError."""
    write_atomic(folder / FILE, json.dumps(encode(record), indent=1) + "\n")


LOCK_FILE: Final = "fleet.lock"
_NO_LOCKS: Final = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
"""Of file systems without locks, such as some mounts of Lustre: there is no check then."""


class FleetBusy(PortagpuError, RuntimeError):
    """Another process works in the folder; the message says which."""


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder, which is made if it does not exist. Raises FleetBusy and OutputError.

    The kernel releases it at the end of this process, however it ends. NFS knows the lock on all
    machines (flock(2)).
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise OutputError(
            f"cannot write into {folder}: {error.strerror}; name a folder that is writable and "
            "shared with the nodes"
        ) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = excerpt(os.pread(descriptor, 200, 0).decode("utf-8", "replace"))
            raise FleetBusy(
                f"another portagpu fleet runs in {folder} ({holder or 'of unknown name'}): "
                "wait until it ends, or name another folder"
            ) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise OutputError(f"cannot lock {folder}: {error.strerror}") from error
        with contextlib.suppress(OSError):
            # for people alone: a full disk does not matter
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()} on {platform.node()}".encode(), 0)
        yield
    finally:
        os.close(descriptor)

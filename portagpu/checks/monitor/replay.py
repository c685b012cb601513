"""The rounds in a file of samples, as ``portagpu monitor --json`` writes it."""

from __future__ import annotations

import json
from dataclasses import fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.documents import DocumentError, decode
from portagpu.base.errors import RecordingError
from portagpu.base.text import one_line
from portagpu.checks.monitor.run import to_samples
from portagpu.checks.monitor.sample import (
    EVENT_SCHEMA,
    SAMPLE_SCHEMA,
    Device,
    Event,
    Happening,
    Round,
    Sample,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from portagpu.machine.inventory import Inventory

_HEAD: Final = ("schema", "time", "sequence", "host")
_MAX_LINE: Final = 1 << 20


def read_rounds(path: Path) -> Iterator[Round]:
    """Each round of the file in its order; ``at_s`` counts from the first one.

    A last line that was cut off is left out. Raises RecordingError, which names the line.
    """
    samples: list[Sample] = []
    events: list[Event] = []
    head: tuple[str, int, str] | None = None
    begin: datetime | None = None

    def whole() -> Round:
        nonlocal begin
        assert head is not None  # noqa: S101 - the caller saw one
        time = datetime.fromisoformat(head[0]).astimezone(UTC)
        begin = begin or time
        return Round(
            number=head[1],
            time=time,
            at_s=(time - begin).total_seconds(),
            host=head[2],
            samples=tuple(samples),
            events=tuple(events),
        )

    try:
        with path.open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(_MAX_LINE), b""), 1):
                if not line.endswith(b"\n"):
                    break
                if not line.strip():
                    continue
                own, value = _read(line, f"{one_line(str(path))}: line {number}")
                if head is not None and own != head:
                    yield whole()
                    samples, events = [], []
                head = own
                (samples if isinstance(value, Sample) else events).append(value)  # type: ignore[arg-type]
    except OSError as error:
        raise RecordingError(f"{one_line(str(path))}: {error.strerror or error}") from error
    if head is None:
        raise RecordingError(f"{one_line(str(path))}: has no sample of portagpu monitor --json")
    yield whole()


def has_samples(path: Path) -> bool:
    """Whether the file may be one of samples; a folder and a vendor's output are not."""
    try:
        with path.open("rb") as file:
            first = json.loads(file.readline(_MAX_LINE))
        return isinstance(first, dict) and "schema" in first
    except (OSError, ValueError, RecursionError):
        return False


def recorded_round(found: Inventory, path: Path) -> Round:
    """The devices of a recording as the only round; raises RecordingError where it has none."""
    if not found.gpus:
        raise RecordingError(
            f"{one_line(str(path))}: lists no devices; portagpu health --replay judges what it says"
        )
    return Round(
        number=0,
        time=None,
        at_s=0.0,
        host="",
        samples=tuple(to_samples(found.gpus, found.links, here=False)),
        problems=found.problems,
    )


def _read(line: bytes, where: str) -> tuple[tuple[str, int, str], Sample | Event]:
    """The time, number and host of a line, and what it says."""
    try:
        document: dict[str, Any] = json.loads(line)
        schema, time, sequence, host = (document.pop(name) for name in _HEAD)
        own = (str(time), int(sequence), str(host))
        datetime.fromisoformat(own[0])
        if schema == SAMPLE_SCHEMA:
            return own, decode(Sample, document, "sample")
        if schema != EVENT_SCHEMA:
            raise ValueError(f"is {schema!r}, and not a sample")
        about = {each.name: document[each.name] for each in fields(Device)}
        named = decode(Device, about, "event") if any(about.values()) else None
        return own, Event(
            event=Happening(document["event"]), text=str(document["text"]), device=named
        )
    except DocumentError as error:
        raise RecordingError(f"{where}: {error}") from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        reason = one_line(str(error)) or type(error).__name__
        raise RecordingError(f"{where}: not a line of portagpu monitor --json: {reason}") from error

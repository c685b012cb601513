"""Reads the captures of the tests of ``portagpu profile``, with code of its own."""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from portagpu.facts.captures.model import Capture, Process, Source, ToolMessage, table
from portagpu.facts.readings.model import FormatError

if TYPE_CHECKING:
    from pathlib import Path

    from portagpu.facts.captures.model import Kind

CATEGORIES: Final[dict[str, Kind]] = {
    "cpu_op": "operator",
    "user_annotation": "range",
    "kernel": "kernel",
    "gpu_memcpy": "copy",
}


def read(path: Path) -> Capture:
    """A trace of torch's profiler, or a file of one of the fakes. Raises FormatError."""
    try:
        if path.suffix == ".json":
            return read_kineto(json.loads(path.read_text("utf-8")), path)
        return read_fake(path)
    except (ValueError, sqlite3.Error) as error:
        raise FormatError(f"{path}: {error}") from error


def read_kineto(document: dict[str, Any], path: Path) -> Capture:
    """Every category of CATEGORIES but those of GPUs is there, if with 0 events."""
    found: dict[Kind, list[tuple[str, float, float]]] = defaultdict(list)
    found["operator"], found["range"] = [], []
    for event in document["traceEvents"]:
        if kind := CATEGORIES.get(event.get("cat", "")):
            found[kind].append((event["name"], event["ts"], event["dur"]))
    info = document.get("distributedInfo", {})
    return Capture(
        Source(str(path), "kineto"),
        {kind: _table(rows) for kind, rows in found.items()},
        processes=(Process(0, rank=info.get("rank"), world_size=info.get("world_size")),),
    )


def read_fake(path: Path) -> Capture:
    """What ``tests/support/profilers`` write: a table ``events`` of kinds, one of ``messages``."""
    with sqlite3.connect(path) as database:
        rows = database.execute("SELECT kind, name, start, stop FROM events").fetchall()
        said = database.execute("SELECT level, text FROM messages").fetchall()
    database.close()
    found: dict[Kind, list[tuple[str, float, float]]] = {"kernel": [], "copy": [], "range": []}
    for kind, name, start, stop in rows:
        found[kind].append((name, start / 1000, (stop - start) / 1000))
    return Capture(
        Source(str(path), "fake"),
        {kind: _table(rows) for kind, rows in found.items()},
        messages=tuple(ToolMessage(level, text) for level, text in said),
    )


def _table(rows: list[tuple[str, float, float]]) -> Any:
    return table(
        {
            "name": [name for name, _, _ in rows],
            "start_ns": [int(start * 1000) for _, start, _ in rows],
            "end_ns": [int((start + length) * 1000) for _, start, length in rows],
        }
    )

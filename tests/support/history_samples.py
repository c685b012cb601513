"""Runs for a store: made-up measures of machines over time, as documents and as files."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from portagpu.runs.results.run import Evidence, Result, Run, RunInfo, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

FIRST_DAY = datetime(2025, 1, 1, 8, 0, tzinfo=UTC)


def measure(name: str, value: float, unit: str = "GB/s", **fields: object) -> Result:
    return Result(
        id=name,
        suite="performance",
        area=name.partition("/")[0],
        verdict=Verdict.UNVERIFIED,
        **{  # type: ignore[arg-type]
            "evidence": (Evidence.EXECUTED,),
            "value": value,
            "unit": unit,
            "statistic": "median",
            "n": 20,
            "spread": abs(value) * 0.01,
            **fields,
        },
    )


def run(
    number: int,
    results: Sequence[Result],
    *,
    host: str = "node-1",
    target: str | None = "example-1",
    versions: Mapping[str, str | None] | None = None,
    **fields: object,
) -> Run:
    """Run ``number`` of a host: one a day since 2025-01-01."""
    started = FIRST_DAY + timedelta(days=number)
    info = RunInfo(
        id=f"{started:%Y%m%dT%H%M%SZ}-{abs(hash_of(host, target)) % 2**32:08x}",
        started=f"{started:%Y-%m-%dT%H:%M:%SZ}",
        duration_s=60.0,
        command=("portagpu", "bench"),
        host=host,
        target=target,
        backend="example",
        versions={"portagpu": "0.1.0", "torch": "2.12.0", "driver": None, **(versions or {})},
    )
    made = Run(info, list(results))
    for name, value in fields.items():
        made.info = RunInfo(**{**made.info.to_json(), name: value})
    return made


def hash_of(*words: str | None) -> int:
    """A number of those words that is the same in every process."""
    found = 0
    for char in "\0".join(str(word) for word in words):
        found = (found * 31 + ord(char)) % 2**31
    return found


def write(folder: Path, runs: Sequence[Run]) -> list[Path]:
    """The file of each run."""
    return [each.write_json(folder / f"{each.info.host}-{each.info.id}.json") for each in runs]

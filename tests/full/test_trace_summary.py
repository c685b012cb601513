"""Summaries against an oracle that counts every nanosecond, and the same for every format."""

from __future__ import annotations

import json
from dataclasses import replace
from statistics import fmean, median, pstdev
from typing import TYPE_CHECKING, Any

import pytest

from portagpu.traces.analysis.reading import read, to_document
from portagpu.traces.analysis.summary import summarize
from tests.support import trace_samples
from tests.support.looped import looped
from tests.unit.traces.test_trace_summary import (
    SEEDS,
    Event,
    capture,
    category_of,
    covered,
    made,
    np,
)
from tests.unit.traces.test_trace_summary import block as block

if TYPE_CHECKING:
    from pathlib import Path

    from portagpu.facts.captures.model import Kind


def expected_rows(events: dict[Kind, list[Event]], device: int, by: str) -> dict[Any, Event]:
    """(kind, name or category) -> the figures of that device, by counting."""
    work = [
        (kind, each)
        for kind in ("kernel", "copy", "set")
        for each in events[kind]  # type: ignore[index]
        if each["device"] == device
    ]
    if not work:
        return {}
    wall = max(each["end_ns"] for _, each in work) - min(each["start_ns"] for _, each in work)
    kernels = sum(each["end_ns"] - each["start_ns"] for kind, each in work if kind == "kernel")
    groups: dict[Any, list[Event]] = {}
    for kind, each in work:
        name = each.get("name", kind) if by == "name" else category_of(kind, each)
        groups.setdefault((kind, name), []).append(each)
    found = {}
    for (kind, name), members in groups.items():
        lengths = [each["end_ns"] - each["start_ns"] for each in members]
        own = category_of(kind, members[0])
        others = covered(each for of, each in work if category_of(of, each) != own)
        time = covered(members)
        found[kind, name] = {
            "calls": len(members),
            "total_ns": sum(lengths),
            "mean_ns": round(fmean(lengths), 3),
            "median_ns": round(float(median(lengths)), 3),
            "p95_ns": round(float(np.percentile(lengths, 95)), 3),
            "min_ns": min(lengths),
            "max_ns": max(lengths),
            "stddev_ns": pytest.approx(pstdev(lengths), abs=1e-3),
            "percent_of_kernels": round(100 * sum(lengths) / kernels, 3)
            if kind == "kernel" and kernels
            else None,
            "percent_of_wall": round(100 * len(time) / wall, 3) if wall else None,
            "exposed_ns": len(time - others),
            "bytes": sum(each["bytes"] for each in members) if kind == "copy" else None,
        }
    return found


@pytest.mark.usefixtures("block")
@looped("seed", SEEDS)
def test_rows_of_names_and_categories_are_what_counting_gives(seed: int) -> None:
    events = made(seed)
    found = summarize([capture(events, 2)])
    assert found.categories is not None
    for rows, by in ((found.rows, "name"), (found.categories, "category")):
        seen: dict[int, dict[Any, Event]] = {0: {}, 1: {}}
        for row in rows.to_pylist():
            seen[row["device"]][row["kind"], row[by]] = row
        for device in (0, 1):
            wanted = expected_rows(events, device, by)
            assert seen[device].keys() == wanted.keys()
            for key, figures in wanted.items():
                assert {name: seen[device][key][name] for name in figures} == figures, key
        totals = [row["total_ns"] for row in rows.to_pylist()]
        assert totals == sorted(totals, reverse=True)


@pytest.mark.parametrize("labelled", [False, True])
@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("devices", [1, 2])
def test_one_timeline_gives_one_summary_in_every_format(
    tmp_path: Path, devices: int, shuffled: bool, labelled: bool
) -> None:
    made = trace_samples.timeline(3000, devices=devices, shuffled=shuffled, labelled=labelled)
    if not labelled:
        # each of the three has other facts of a collective's call
        made = replace(made, collectives={key: each[:0] for key, each in made.collectives.items()})
    texts = set()
    for name, write in trace_samples.WRITERS.items():
        given = read(write(made, tmp_path / f"{name}.trace"))  # type: ignore[operator]
        document = to_document(summarize([given]))
        for of_source in ("sources", "hardware", "details", "messages"):
            document.pop(of_source)
        # a kind that one format has a place for, and that none has any of
        document["events"] = {kind: n for kind, n in document["events"].items() if n}
        texts.add(json.dumps(document))
    assert len(texts) == 1
    (text,) = texts
    found = json.loads(text)
    assert found["events"]["kernel"] == 3000
    assert {each["path"] for each in found["ranges"]} >= {"step", "step/forward"}
    assert sum(found["steps"][0]["device_ns"]) > 0

"""The map of others' expectations names checks that exist, and says no more than is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from portagpu.base.errors import RecordingError
from portagpu.checks.bringup import BringupOptions, bringup, load_gates
from portagpu.checks.recordings.replay import Recording
from portagpu.facts.targets import Authority, load_targets
from portagpu.runs.results.advice import checks
from portagpu.runs.results.verdicts import Evidence, Verdict
from portagpu.suites.performance import metrics
from portagpu.suites.performance.cases import FURTHER_IDS
from tests.support.health_page import VENDORS, read_data, status

FOLDERS = (
    *(
        "amd-smi",
        "amdgpu-top",
        "kfd",
        "rocm-smi",
        "rocminfo",
        "lspci",
        "kernel-logs",
        "nccl-topo-xml",
    ),
    *("nvidia-smi-xml", "nvidia-smi-capture", "nvidia-smi-text"),
)
RECORDINGS = Path(__file__).parents[3] / "shared/recordings"
DATA = read_data()
ROWS = [row for group in DATA["lists"] for row in group["rows"]]


def known_ids() -> set[str]:
    """The ids of bring-up that have an advice of their own, and the measures."""
    gates = {gate.id for gate in load_gates()}
    stated = {each for check in checks() if check.suite == "bringup" for each in check.ids}
    exact = {each for each in stated if "*" not in each and each.partition("/")[0] in gates}
    return exact | set(metrics()) | set(FURTHER_IDS)


def test_every_check_that_the_page_names_exists() -> None:
    named = {each for row in ROWS for each in row["checks"]}
    named |= {each for vendor in VENDORS for each in DATA["recorded"][vendor]}
    assert named <= known_ids(), f"there is no {sorted(named - known_ids())}"


def test_what_needs_a_device_is_never_recorded() -> None:
    """A recording holds what tools printed: no measure, no memory pattern, no conformance case."""
    without = {gate.id for gate in load_gates() if not gate.replay}
    for vendor in VENDORS:
        for each in DATA["recorded"][vendor]:
            assert each not in metrics(), each
            assert each.partition("/")[0] not in without, f"{each} cannot be replayed"


@pytest.mark.parametrize(
    ("listed", "recorded", "word"),
    [
        ([], ["a"], "not covered"),
        (["a", "b"], ["b", "a"], "recorded"),
        (["a", "b"], ["b"], "partly recorded"),
        (["a"], [], "asked"),
    ],
)
def test_the_word_of_a_row(listed: list[str], recorded: list[str], word: str) -> None:
    assert status(listed, recorded) == word


def test_the_four_lists_are_there_and_dated() -> None:
    titles = {group["title"]: group["source"] for group in DATA["lists"]}
    assert set(titles) == {"ClusterMAX", "DCGM", "RVS", "AMD's system acceptance"}
    assert all("2026-" in source for source in titles.values())
    levels = {
        row["expected"][0] for g in DATA["lists"] if g["title"] == "DCGM" for row in g["rows"]
    }
    assert levels == set("1234")


def test_a_row_that_is_not_covered_or_falls_short_says_of_what() -> None:
    open_ = [row["expected"] for row in ROWS if not row["checks"]]
    assert len(open_) > 10, "the page claims to cover everything"


@pytest.mark.skipif(not RECORDINGS.is_dir(), reason="no recordings next to this checkout")
def test_what_is_recorded_is_what_the_recordings_judge() -> None:
    """The vendor is that of the target or of the devices, and of a log that of its driver."""
    found: dict[str, set[str]] = {vendor: set() for vendor in VENDORS}
    for folder in FOLDERS:
        for path in sorted((RECORDINGS / folder).iterdir()):
            try:
                run = bringup(BringupOptions(replay=Recording(path)))
            except RecordingError:  # a description by a vendor, and no recording
                continue
            names = " ".join([run.info.target or "", path.name, str(run.info.devices)]).lower()
            vendor = "nvidia" if "nvidia" in names or "xid" in names else "amd"
            found[vendor] |= {
                each.id
                for each in run.results
                if Evidence.RECORDED in each.evidence and each.verdict is not Verdict.SKIP
            }
    for vendor in VENDORS:
        missing = set(DATA["recorded"][vendor]) - found[vendor]
        assert not missing, f"no recording of {vendor} judges {sorted(missing)}"


def judged_products(metric: str, source: str) -> str:
    """The products whose figures of ``metric`` from such sources bind: "MI100, MI210"."""
    found = {
        target.id.removeprefix("amd-").upper()
        for target in load_targets().values()
        for each in target.expectations(metric)
        if each.authority is Authority.VENDOR and each.source[0].startswith(source)
    }
    return ", ".join(sorted(found, key=lambda name: (len(name), name)))


@pytest.mark.parametrize(
    ("expected", "metric", "source"),
    [
        ("`gst`", "gemm/bf16", "A-RVS"),
        ("`all_reduce_perf", "collectives/all_reduce", "A-ACC"),
        ("`rocblas-bench`, fp32", "gemm/fp32", "A-ACC"),
        ("BabelStream", "memory/copy", "A-ACC"),
    ],
)
def test_the_products_that_a_row_names_are_those_of_the_targets(
    expected: str, metric: str, source: str
) -> None:
    (row,) = [row for row in ROWS if row["expected"].startswith(expected)]
    named = re.findall(r"MI\d+[AX]?", row["missing"])
    wanted = judged_products(metric, source).split(", ")
    assert sorted(named) == sorted(wanted), f"{row['expected']}: {wanted}"

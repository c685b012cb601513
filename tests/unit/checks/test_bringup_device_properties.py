"""What devices report against what targets state: every rule, and the recorded devices."""

from __future__ import annotations

from pathlib import Path

import pytest

from portagpu.checks.bringup.device_properties import FIELDS, ROWS, Subject, compare
from portagpu.facts.targets import identify, load_target, load_targets, parse_target
from portagpu.runs.results.run import Verdict
from tests.support.looped import looped
from tests.support.recorded_gpus import ALL

MIB = 1 << 20
H200 = {
    # what CUDA's documentation of compute capability 9.0 and an H200's nvidia-smi have
    "multi_processor_count": 132,
    "total_memory": 143156 * MIB,
    "max_threads_per_block": 1024,
    "max_threads_per_multi_processor": 2048,
    "regs_per_multiprocessor": 65536,
    "shared_memory_per_block": 49152,
    "shared_memory_per_block_optin": 232448,
    "shared_memory_per_multiprocessor": 233472,
    "L2_cache_size": 50 * MIB,
    "memory_bus_width": 6144,
    "memory_clock_rate": 3201000,
    "clock_rate": 1980000,
}
MI300X = {
    "multi_processor_count": 304,
    "total_memory": 206141652992,
    "max_threads_per_block": 1024,
    "max_threads_per_multi_processor": 2048,
    "shared_memory_per_block": 65536,
    "shared_memory_per_multiprocessor": 65536,
    "L2_cache_size": 4 * MIB,
    "memory_bus_width": 8192,
    "memory_clock_rate": 1300000,
    "clock_rate": 2100000,
}


def found(target_id, reported, **part):
    subject = Subject(reported, load_target(target_id), **part)
    return {finding.name: finding for finding in compare(subject, "cuda:0")}


@pytest.mark.parametrize(
    ("target_id", "reported"), [("nvidia-h200-sxm", H200), ("amd-mi300x", MI300X)]
)
def test_a_device_that_is_what_its_target_states_passes_every_row(target_id, reported):
    findings = found(target_id, reported)
    not_compared = findings.pop("not-compared", None)
    assert {each.verdict for each in findings.values()} == {Verdict.PASS}, findings
    absent = {row.name for row in ROWS} - findings.keys()
    sentences = not_compared.reason if not_compared is not None else ""
    assert all(name in sentences for name in absent), f"{absent} are compared nowhere: {sentences}"


@pytest.mark.parametrize(
    ("field", "value", "row", "verdict"),
    [
        ("multi_processor_count", 131, "unit-count", Verdict.FAIL),
        ("total_memory", 80 << 30, "memory-size", Verdict.FAIL),
        # within what is recognised as the product, and more than a driver is known to keep
        ("total_memory", 138 << 30, "memory-size", Verdict.PASS),
        ("total_memory", 137 << 30, "memory-size", Verdict.PASS),
        ("total_memory", int(136.1 * 2**30), "memory-size", Verdict.FAIL),
        ("max_threads_per_block", 512, "threads-per-block", Verdict.FAIL),
        ("max_threads_per_multi_processor", 1536, "threads-per-unit", Verdict.FAIL),
        ("shared_memory_per_block", 65536, "shared-memory-per-block", Verdict.FAIL),
        ("shared_memory_per_block_optin", 166912, "shared-memory-optin", Verdict.FAIL),
        ("shared_memory_per_multiprocessor", 167936, "shared-memory-per-unit", Verdict.FAIL),
        ("regs_per_multiprocessor", 32768, "registers-per-unit", Verdict.UNVERIFIED),
        ("L2_cache_size", 60 * MIB, "l2-cache", Verdict.UNVERIFIED),
        ("memory_bus_width", 5120, "memory-bus", Verdict.UNVERIFIED),
        ("memory_clock_rate", 2619000, "memory-bus", Verdict.UNVERIFIED),
        ("clock_rate", 1600000, "clock", Verdict.UNVERIFIED),
        ("clock_rate", 1830000, "clock", Verdict.PASS),
    ],
)
def test_a_difference_is_a_result_of_its_own(field, value, row, verdict):
    findings = found("nvidia-h200-sxm", {**H200, field: value})
    assert findings[row].verdict is verdict, findings[row].reason
    others = {each.verdict for name, each in findings.items() if name != row}
    assert others <= {Verdict.PASS, Verdict.SKIP}, "another row differs too"
    assert findings[row].reason.startswith("nvidia-h200-sxm states "), findings[row].reason


@pytest.mark.parametrize(
    ("share", "verdict"),
    # below 0.9897 it is none of what the target is recognised by
    [(1.0, Verdict.PASS), (0.9972, Verdict.PASS), (0.98, Verdict.FAIL), (1.002, "UNVERIFIED")],
)
def test_what_a_driver_keeps_is_not_missing(share, verdict):
    most = load_target("amd-mi300x").value("memory.reported")
    finding = found("amd-mi300x", {"total_memory": int(share * most)})["memory-size"]
    assert finding.verdict == verdict, finding.reason


def test_a_field_that_torch_does_not_have_is_stated_and_not_compared():
    findings = found("nvidia-h200-sxm", {"total_memory": H200["total_memory"]})
    assert set(findings) == {"memory-size", "not-compared"}
    assert findings["not-compared"].verdict is Verdict.SKIP
    assert "not reported by this torch: unit-count" in findings["not-compared"].reason


def test_a_third_partys_figure_fails_nobody():
    text = (Path(__file__).parents[3] / "matrix/targets/nvidia-h200-sxm.toml").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("unit_count = [")]
    subject = Subject({"multi_processor_count": 100}, parse_target("\n".join(lines)))
    (finding, _) = compare(subject, "cuda:0")
    assert finding.verdict is Verdict.UNVERIFIED, finding.reason
    assert "only a third party states it" in finding.reason


@pytest.mark.parametrize("count", [48, 96])
def test_workgroup_processors_may_be_counted_as_compute_units(count):
    reported = {
        "multi_processor_count": count,
        "shared_memory_per_multiprocessor": 65536,
        "regs_per_multiprocessor": 98304,
    }
    findings = found("amd-rx7900xtx", reported)
    findings.pop("not-compared")
    assert {each.verdict for each in findings.values()} == {Verdict.PASS}, findings
    for wrong in (42, 84, 24):
        findings = found("amd-rx7900xtx", {"multi_processor_count": wrong})
        assert findings["unit-count"].verdict is Verdict.FAIL, f"{wrong} units pass"


def test_half_of_a_unit_that_is_not_a_pair_is_a_difference():
    findings = found("amd-mi300x", {"shared_memory_per_multiprocessor": 32768})
    assert findings["shared-memory-per-unit"].verdict is Verdict.FAIL


CPX = {"multi_processor_count": 38, "total_memory": 206141652992 // 8, "L2_cache_size": 4 * MIB}


def test_an_equal_partition_is_held_against_its_share():
    part = {"part": "CPX NPS1", "parts": 8}
    findings = found("amd-mi300x", CPX, **part)
    assert findings["unit-count"].verdict is Verdict.PASS, findings["unit-count"].reason
    assert findings["memory-size"].verdict is Verdict.PASS, findings["memory-size"].reason
    assert "one of 8 equal parts" in findings["unit-count"].reason
    assert findings["l2-cache"].verdict is Verdict.UNVERIFIED, "no fact states a partition's cache"
    fewer = found("amd-mi300x", {**CPX, "multi_processor_count": 37}, **part)
    assert fewer["unit-count"].verdict is Verdict.FAIL, "a partition without one of its units"
    whole = found("amd-mi300x", {**CPX, "max_threads_per_block": 512}, **part)
    assert whole["threads-per-block"].verdict is Verdict.FAIL, "a unit's limit is not divided"


def test_a_slice_is_not_held_against_the_whole_gpu():
    reported = {"multi_processor_count": 42, "total_memory": 19968 * MIB}
    reported |= {"max_threads_per_block": 1024}
    findings = found("nvidia-a100-sxm-40gb", reported, part="3g.20gb", parts=None)
    for name in ("unit-count", "memory-size"):
        assert findings[name].verdict is Verdict.UNVERIFIED, findings[name].reason
        assert "the part 3g.20gb" in findings[name].reason
    assert findings["threads-per-block"].verdict is Verdict.PASS, "a unit is whole in a slice"


@pytest.mark.parametrize("gpu", ALL, ids=[gpu.id for gpu in ALL])
def test_no_recorded_device_fails(gpu):
    values = {**gpu.documented, **gpu.recorded}
    reported = {name: values[name] for name in FIELDS if name in values}
    vendor = {"cuda": "nvidia", "rocm": "amd"}[gpu.kind]
    target = identify(
        vendor, gpu.arch, values["name"], values["total_memory"], values["multi_processor_count"]
    )
    if target is None:
        pytest.skip(f"{gpu.arch} has no facts")
    findings = list(compare(Subject(reported, target), "cuda:0"))
    failed = [each.reason for each in findings if each.verdict is Verdict.FAIL]
    assert not failed, f"{gpu.id}: {failed}"
    assert sum(each.verdict is Verdict.PASS for each in findings) >= 2, "hardly anything compared"


@looped("target_id", sorted(load_targets()))
def test_every_target_is_compared_with_every_row_that_it_states(target_id):
    reported = dict.fromkeys(FIELDS, 1)
    findings = {
        each.name: each for each in compare(Subject(reported, load_target(target_id)), "cuda:0")
    }
    sentences = findings.pop("not-compared").reason if "not-compared" in findings else ""
    assert {*findings, *(name for name in (row.name for row in ROWS) if name in sentences)} == {
        row.name for row in ROWS
    }
    passed = [each.reason for each in findings.values() if each.verdict is Verdict.PASS]
    assert not passed, f"a device of ones passes: {passed}"

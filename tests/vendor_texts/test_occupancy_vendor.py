"""Occupancy equals what the vendors' own code says, case by case.

The stored answers are always compared; where a compiler and cuda_occupancy.h, or llvmlite, are
installed, other cases are answered by them here and now.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from portagpu.base.errors import LimitExceeded
from portagpu.devices.sizing import Occupancy, occupancy
from tests.support import occupancy_vendor as vendor

MASK = {
    "waves": 1,
    "registers": 2,
    "shared memory": 4,
    "block slots": 8,
    "barriers": 16,
}
SHARED = Path(__file__).resolve().parents[3] / "shared" / "facts"


def ask_cuda(case: dict[str, int | str]) -> Occupancy:
    return occupancy(
        str(case["arch"]),
        case["threads"],
        case["registers"],
        case["static"] + case["dynamic"],
        barriers=case["barriers"],
        opt_in=bool(case["opt_in"]),
        carveout=None if case["carveout"] == -1 else case["carveout"],
    )


def cuda_mismatch(case: dict[str, int | str]) -> str | None:
    """What differs from the header's answer, or None."""
    try:
        found = ask_cuda(case)
    except LimitExceeded as error:
        refused = case["by_memory"] == 0 and error.limit.startswith("shared_memory.per_block")
        return None if refused else f"{case}: {error}"
    room = {str(limit.resource): limit.blocks for limit in found.limits}
    ours = {
        "blocks": found.blocks,
        "by_waves": room["waves"],
        "by_registers": room["registers"],
        "by_memory": room.get("shared memory", vendor.NO_LIMIT),
        "by_slots": room["block slots"],
        "by_barriers": room.get("barriers", vendor.NO_LIMIT),
        "allocated_registers": found.residency.allocated_registers,
        "allocated_memory": found.residency.allocated_shared_memory,
        "mask": sum(MASK[name] for name in found.limited_by),
    }
    theirs = {name: case[name] for name in vendor.CUDA_FOUND}
    others = [theirs[f"by_{name}"] for name in ("waves", "registers", "memory", "slots")]
    if theirs["by_barriers"] < min(others):
        # the header keeps the factors that limited before it looked at barriers
        theirs["mask"] &= MASK["barriers"]
    if case["arch"] == "sm_103":
        # before CUDA 13.5 the header had twice as many barriers for it
        for each in (ours, theirs):
            each["by_barriers"], each["mask"] = 0, each["mask"] & ~MASK["barriers"]
    return None if ours == theirs else f"{case}: {ours}"


def ask_amd(case: dict[str, int | str]) -> Occupancy:
    features = str(case["features"])
    return occupancy(
        str(case["arch"]),
        case["threads"],
        max(case["used_vgprs"], 1),
        case["memory"],
        accumulators=case["used_accumulators"],
        scalar_registers=case["total_sgprs"],
        wave_size=64 if "+wavefrontsize64" in features else None,
        cu_mode="+cumode" in features,
    )


def amd_mismatch(case: dict[str, int | str]) -> str | None:
    found = ask_amd(case).per_simd
    assert found is not None
    ours = found.compiler
    return None if ours == case["waves_per_simd"] else f"{case}: {ours}"


def differing(mismatch, cases) -> list[str]:
    return [text for case in cases if (text := mismatch(case)) is not None]


def test_nvidia_equals_the_stored_answers_of_the_header():
    cases = vendor.stored("nvidia")
    assert len(cases) == 10_000
    wrong = differing(cuda_mismatch, cases)
    assert not wrong, f"{len(wrong)} of {len(cases)} differ, first {wrong[0]}"


def test_amd_equals_the_stored_answers_of_llvm():
    cases = vendor.stored("amd")
    assert len(cases) == 10_000
    wrong = differing(amd_mismatch, cases)
    assert not wrong, f"{len(wrong)} of {len(cases)} differ, first {wrong[0]}"


def test_the_stored_cases_are_the_generators():
    for name, cases, asked in (
        ("nvidia", vendor.cuda_cases(vendor.SEED, 10_000), vendor.CUDA_ASKED),
        ("amd", vendor.amd_cases(vendor.SEED, 10_000), vendor.AMD_ASKED),
    ):
        stored = [{column: row[column] for column in asked} for row in vendor.stored(name)]
        assert stored == cases, f"{name}: run tests/support/occupancy_vendor.py again"


def shared_rows(name: str) -> list[dict[str, str]]:
    path = SHARED / name
    if not path.is_file():
        pytest.skip(f"{path} is not here")
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def test_nvidia_equals_collected_vectors():
    rows = shared_rows("occupancy_vectors_nvidia.csv")
    for row in rows:
        numbers = {key: int(value) for key, value in row.items() if key != "cc"}
        memory = numbers["static_smem"] + numbers["dyn_smem"]
        try:
            found = occupancy(row["cc"], numbers["block"], numbers["regs"], memory)
        except LimitExceeded:
            assert numbers["lim_smem"] == 0, row
            continue
        assert (found.blocks, found.waves, found.max_waves) == (
            numbers["blocks_per_sm"],
            numbers["warps_per_sm"],
            numbers["max_warps"],
        ), row
    assert len(rows) == 189


def test_amd_equals_collected_vectors():
    rows = shared_rows("occupancy_vectors_amd.csv")
    for row in rows:
        found = occupancy(
            row["gfx"],
            int(row["workgroup"]),
            int(row["arch_vgpr"]),
            int(row["lds_bytes"]),
            accumulators=int(row["acc_vgpr"]),
            scalar_registers=int(row["total_sgpr"] or 0),
            wave_size=64 if "+wavefrontsize64" in row["features"] else None,
            cu_mode="+cumode" in row["features"],
        ).per_simd
        assert found is not None
        rounded = int(row["hw_rounded_lds_waves_per_simd(computed)"])
        assert (found.compiler, found.hardware) == (int(row["llvm22_waves_per_simd"]), rounded), row
    assert len(rows) == 240

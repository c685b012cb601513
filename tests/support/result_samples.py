"""Runs as bring-up writes them: one that passes, one with a culprit, one that was stopped.

The numbers are made up; they only have to look like what a machine gives.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace

from portagpu.runs.results.run import Evidence, Result, Run, RunInfo, Verdict

EXECUTED = (Evidence.EXECUTED,)
ONE_NODE = "two ranks of one process tree on one machine say nothing about a network"
SIZES = [2**power for power in range(10, 29, 2)]
GATES = ("environment", "identity", "versions", "links", "memory", "numerics", "transfers")


def info(**changes: object) -> RunInfo:
    fields: dict[str, object] = {
        "id": "20250301T101500Z-0a1b2c3d",
        "started": "2025-03-01T10:15:00Z",
        "duration_s": 74.21,
        "command": ("portagpu", "bringup", "--quick", "--out", "bring up"),
        "host": "node-07",
        "target": "cpu-x86-64",
        "backend": "cpu",
        "versions": {"portagpu": "0.1.0", "torch": "2.13.0+cpu", "driver": None, "comm": "Gloo"},
        "devices": ({"name": "Example CPU 9000", "arch": "x86-64", "memory_bytes": 64 * 2**30},),
    }
    return RunInfo(**{**fields, **changes})  # type: ignore[arg-type]


def gate(area: str, name: str, verdict: Verdict = Verdict.PASS, **fields: object) -> Result:
    return Result(
        id=f"{area}/{name}",
        suite="bringup",
        area=area,
        verdict=verdict,
        **{"evidence": EXECUTED, "duration_s": 1.25, **fields},  # type: ignore[arg-type]
    )


def curve(y_label: str, series: str, peak: float, half: float) -> dict[str, object]:
    """A bandwidth curve that saturates at ``peak`` GB/s, half of it at ``half`` bytes."""
    return {
        "x": SIZES,
        "y": [peak * size / (size + half) for size in SIZES],
        "x_label": "message size",
        "y_label": y_label,
        "x_unit": "B",
        "y_unit": "GB/s",
        "x_log": True,
        "series": series,
    }


def record(y_label: str, unit: str, series: str, base: float, swing: float) -> dict[str, object]:
    seconds = [0.5 * step for step in range(60)]
    return {
        "x": seconds,
        "y": [base + swing * math.sin(s / 3) + swing * math.exp(-s / 4) for s in seconds],
        "x_label": "time",
        "y_label": y_label,
        "x_unit": "s",
        "y_unit": unit,
        "x_log": False,
        "series": series,
    }


def passing() -> Run:
    run = Run(info())
    for area in GATES[:4]:
        run.add(gate(area, "consistent", duration_s=0.04))
    run.add(gate("memory", "pattern", value=2048, unit="MiB", duration_s=6.5))
    run.add(
        gate(
            "memory",
            "bandwidth",
            value=18.42,
            unit="GB/s",
            statistic="median",
            n=20,
            spread=0.31,
            shape={"bytes": 268435456},
            expected={
                "reference": 20.0,
                "lower": -0.2,
                "upper": 0.15,
                "unit": "GB/s",
                "source": "https://example.org/memory.html",
            },
            does_not_show="one socket; caches are larger than the smaller sizes",
            extra={"curve": curve("memory bandwidth", "copy", 18.9, 30000)},
        )
    )
    run.add(gate("numerics", "matmul[float32]", device="cpu"))
    run.add(
        gate("numerics", "fp8-decode", Verdict.SKIP, evidence=(), reason="the target has no FP8")
    )
    run.add(
        gate(
            "transfers",
            "host-to-device",
            Verdict.UNVERIFIED,
            value=9.13,
            unit="GB/s",
            statistic="median",
            n=20,
            spread=0.2,
            shape=[4096, 4096],
            reason="no expectation for this target",
            extra={
                "curves": [
                    curve("transfer bandwidth", "to the device", 9.4, 90000),
                    curve("transfer bandwidth", "from the device", 8.1, 160000),
                ]
            },
        )
    )
    for operation, peak in (("all-reduce", 4.1), ("all-gather", 5.6), ("reduce-scatter", 3.2)):
        run.add(
            gate(
                "collectives",
                operation,
                Verdict.UNVERIFIED,
                value=peak * 0.98,
                unit="GB/s",
                statistic="median",
                n=10,
                spread=0.05,
                does_not_show=ONE_NODE,
                extra={"curve": curve("busbw", operation, peak, 250000)},
            )
        )
    run.add(
        gate(
            "sustained",
            "gemm",
            value=412.0,
            unit="GFLOP/s",
            statistic="median",
            n=60,
            spread=6.1,
            duration_s=30.0,
            extra={
                "curves": [
                    record("throughput", "GFLOP/s", "float32", 405, 20),
                    record("temperature", "°C", "package", 71, -6),
                    record("clock", "MHz", "core 0", 2900, 120),
                    record("clock", "MHz", "core 1", 2880, 90),
                ]
            },
        )
    )
    return run


def failing() -> Run:
    """Eight accelerators; one has a bad link, which fails transfers and blocks what follows."""
    devices = tuple(
        {"name": "Example Accelerator 300", "arch": "ex900", "memory_bytes": 192 * 2**30}
        for _ in range(8)
    )
    run = Run(info(target="example-ex900", backend="example", devices=devices, host="node-08"))
    for area in GATES[:4]:
        run.add(gate(area, "consistent", duration_s=0.2))
    for index in range(8):
        slow = index == 5
        run.add(
            gate(
                "transfers",
                "host-to-device",
                Verdict.FAIL if slow else Verdict.PASS,
                device=f"ex:{index}",
                value=13.2 if slow else 55.0 + 0.1 * index,
                unit="GB/s",
                statistic="median",
                n=20,
                spread=0.4,
                expected={
                    "reference": 55.0,
                    "lower": -0.1,
                    "upper": None,
                    "unit": "GB/s",
                    "source": "median of the devices of this machine",
                },
                reason="13.2 GB/s is 24 % of the median of 8 devices" if slow else "",
                extra={
                    "curve": curve(
                        "transfer bandwidth", f"ex:{index}", 13.4 if slow else 55 + index, 9e5
                    )
                },
            )
        )
    for name in ("all-reduce", "all-gather"):
        run.add(
            gate(
                "collectives",
                name,
                Verdict.INCONCLUSIVE,
                evidence=(),
                reason="not run: the gate transfers failed",
                blocked_by="transfers/host-to-device",
                duration_s=0.0,
            )
        )
    return run


def stopped() -> Run:
    """Ctrl-C in the fourth gate: what was done is there, what was not is INCONCLUSIVE."""
    run = Run(info(interrupted=True, duration_s=3.9))
    for area in GATES[:3]:
        run.add(gate(area, "consistent", duration_s=0.04))
    for area in GATES[3:]:
        run.add(
            gate(
                area,
                "consistent",
                Verdict.INCONCLUSIVE,
                evidence=(),
                reason="not run: interrupted",
                duration_s=0.0,
            )
        )
    return run


def eight_devices() -> Run:
    """A full bring-up of a node with eight devices: 1100 cases, and 29 measures of each device."""
    chance = random.Random(7)  # noqa: S311 - made-up numbers
    names = [f"ex:{index}" for index in range(8)]
    described = {"name": "Example Accelerator 300", "arch": "ex900", "memory_bytes": 192 * 2**30}
    machine = info(target="example-ex900", backend="example", host="node-09")
    run = Run(replace(machine, devices=tuple(dict(described) for _ in names)))
    for number in range(1100):
        case = f"case-of-some-length-{number // 6}[float32-{number % 6}]"
        made = gate("numerics", case, duration_s=0.01)
        run.add(replace(made, extra={"suite": "conformance", "area": "numerics"}))
    for name in names:
        for fact in ("device", "arch", "warp-size", "capabilities", "memory", "clock"):
            run.add(gate("identity", fact, device=name, duration_s=0.01))
        for fact in ("answers", "throttled", "row-remaps", "ecc-errors", "links-up", "power"):
            run.add(gate("health", fact, device=name, value=0, unit="1", duration_s=0.01))
        for number in range(29):
            found = chance.uniform(97, 103)
            extra: dict[str, object] = {"flops": 2 * 4096**3, "bytes": 3 * 2 * 4096**2}
            if number < 6:
                extra = {"curve": curve("transfer bandwidth", f"{number}, {name}", found, 9e5)}
            run.add(
                gate(
                    "transfers" if number < 12 else "sustained",
                    f"measure-{number}[bf16]",
                    device=name,
                    value=found,
                    unit="GB/s" if number < 12 else "TFLOPS",
                    statistic="median",
                    n=20,
                    spread=chance.uniform(0.1, 0.5),
                    shape=[4096, 4096, 4096],
                    expected={
                        "reference": 100.0,
                        "lower": -0.1,
                        "upper": None,
                        "unit": "GB/s" if number < 12 else "TFLOPS",
                        "source": "https://example.org/blog/measuring-the-most/part-2/README.html",
                    },
                    does_not_show="operands that fit a cache stay there between calls",
                    extra=extra,
                )
            )
    return run

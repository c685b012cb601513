"""Full runs as bring-up writes them, made by hand: one result a gate, and devices that say who
they are. They earn nothing; they are what the validator of bundles is tried on."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from portagpu.checks.bringup import load_gates
from portagpu.facts.targets import load_target
from portagpu.reports.bundles.content import digests, make, to_text
from portagpu.runs.results.run import Evidence, Result, Run, RunInfo, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable

EXECUTED = (Evidence.EXECUTED,)
OF_GATES = {
    "environment": "python",
    "identity": "count",
    "versions": "torch",
    "links": "numa",
    "health": "answers",
    "memory": "patterns",
    "numerics": "device",
    "transfers": "values",
    "collectives": "values",
    "sustained": "values",
    "screen": "screen",
    "health-after": "answers",
}
"""The name of one result of each gate."""


def result(name: str, gate: str, **fields: Any) -> Result:
    given = {"verdict": Verdict.PASS, "evidence": EXECUTED, "suite": "bringup", **fields}
    return Result(id=name, area=gate, **given)


def adopted(name: str, gate: str, suite: str, **fields: Any) -> Result:
    """A result of another suite as bring-up takes it over."""
    extra = {**fields.pop("extra", {}), "suite": suite, "area": name.partition("/")[0]}
    return result(name, gate, extra=extra, **fields)


def facts(target_id: str, backend: str, index: int) -> dict[str, Any]:
    target = load_target(target_id)
    memory = target.match.memory_bytes or (0, 64 * 2**30)
    return {
        "backend": backend,
        "device": backend if backend == "cpu" else f"cuda:{index}",
        "product": target.product or "Example CPU 9000",
        "arch_vendor": target.arch.vendor,
        "arch": target.arch.name,
        "warp_size": target.arch.warp_size,
        "unit_count": target.value("exec.unit_count") or 8,
        "memory_bytes": memory[1],
        "uuid": None if backend == "cpu" else f"GPU-0a1b2c3d-0000-4000-8000-00000000000{index}",
        "target": target_id,
        "capabilities": sorted(target.claims),
        "versions": {"torch": "2.11.0", "driver": "6.16.6", "kernel": "6.8.0-45-acme"},
    }


def full_run(target: str = "cpu-x86-64", backend: str = "cpu", count: int = 1) -> Run:
    """A run in which every gate ran and passed on ``count`` devices of ``target``."""
    seen = [facts(target, backend, index) for index in range(count)]
    devices = [
        {
            "kind": "cpu" if backend == "cpu" else "gpu",
            "vendor": each["arch_vendor"],
            "name": each["product"],
            **{key: each[key] for key in ("arch", "uuid", "memory_bytes", "target")},
        }
        for each in seen
    ]
    run = Run(
        RunInfo(
            id="20260301T101500Z-0a1b2c3d",
            started="2026-03-01T10:15:00Z",
            duration_s=240.5,
            area_duration_s={"environment": 0.5, "numerics": 30.0},
            command=("portagpu", "bringup", "--full", "--out", "/home/jdoe/out"),
            host="node-07",
            target=target,
            backend=backend,
            versions={"portagpu": "0.1.0", "torch": "2.11.0", "driver": None},
            devices=devices,
        )
    )
    for each in seen:
        run.add(result("identity/device", "identity", device=each["device"], extra={"facts": each}))
    for gate in load_gates():
        evidence = EXECUTED if gate.earns else ()
        run.add(result(f"{gate.id}/{OF_GATES[gate.id]}", gate.id, evidence=evidence))
    run.add(adopted("rng/seed-repeats[rand]", "numerics", "conformance"))
    run.add(
        adopted(
            "memory/copy",
            "transfers",
            "performance",
            verdict=Verdict.UNVERIFIED,
            value=18.5,
            unit="GB/s",
            statistic="median",
            n=20,
            spread=0.25,
            shape={"array_bytes": 2**27},
            extra={"samples": [18.25, 18.5], "seed": 7},
        )
    )
    return run


def bundle(run: Run | None = None) -> dict[str, Any]:
    """A valid bundle of ``full_run``, or of another run."""
    return make(run or full_run(), "full", [("host", "node-07"), ("user", "jdoe")])


def data(document: dict[str, Any]) -> bytes:
    return to_text(document).encode()


def altered(change: Callable[[dict[str, Any]], object], of: dict[str, Any] | None = None) -> bytes:
    """The bytes of a bundle that somebody changed, with digests that fit the change."""
    document = json.loads(json.dumps(of or bundle()))
    change(document)
    return data({**document, "sha256": digests(document)})

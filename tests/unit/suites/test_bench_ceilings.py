"""The share of a run's own ceiling that each measure reached."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from portagpu.runs.results.run import Result
from portagpu.runs.results.verdicts import Verdict
from portagpu.suites.performance.runner import with_shares


def test_shares_of_the_ceiling_are_of_the_same_dtype_and_of_memory() -> None:
    device: Any = SimpleNamespace(cache_bytes=32 << 20)

    def of(metric: str, value: float | None, unit: str, **more: Any) -> Result:
        fields = {"verdict": Verdict.UNVERIFIED, "extra": {"metric": metric}, **more}
        fields.setdefault("shape", {"array_bytes": 128 << 20})
        return Result(
            id=metric, suite="performance", area=metric.partition("/")[0], value=value,
            unit=unit if value is not None else None, **fields,
        )  # fmt: skip

    fp32 = [of("gemm/fp32", value, "TFLOPS") for value in (1.0, 2.0)]
    fp32 = [replace(each, id=f"gemm/fp32[{place}]") for place, each in enumerate(fp32)]
    rest = [of("gemm/bf16", 8.0, "TFLOPS"), of("memory/copy", 10.0, "GB/s")]
    # a sum reads faster than STREAM copies: it is above the ceiling and does not set it
    rest += [of("memory/triad", 20.0, "GB/s"), of("memory/read", 30.0, "GB/s")]
    rest += [
        of("launch/issue", 2.0, "us"),
        of("memory/add", None, "", verdict=Verdict.FAIL, reason="x"),
    ]
    found = {each.id: each.extra for each in with_shares([*fp32, *rest], device)}
    shares = {name: extra.get("of_ceiling") for name, extra in found.items()}
    assert shares == {
        "gemm/fp32[0]": 0.5,
        "gemm/fp32[1]": 1.0,
        "gemm/bf16": 1.0,
        "memory/copy": 0.5,
        "memory/triad": 1.0,
        "memory/read": 1.5,
        "launch/issue": None,
        "memory/add": None,
    }
    assert found["memory/copy"]["ceiling"]["id"] == "memory/triad"
    # arrays below four times the cache of 32 MiB neither have a share nor set the ceiling
    cached = [
        of("operators/sgd", 90.0, "GB/s", shape={"array_bytes": 32 << 20}, does_not_show="y"),
        of("memory/scale", 80.0, "GB/s", shape={"array_bytes": (128 << 20) - 1}),
        of("operators/adamw", 10.0, "GB/s"),
    ]
    small, scale, large, *_ = with_shares([*cached, *rest], device)
    for each in (small, scale):
        assert "of_ceiling" not in each.extra
        assert each.extra["beyond_cache"] is False
        assert "no share of the memory's bandwidth" in each.does_not_show
    assert small.does_not_show.startswith("y; ")
    assert large.extra["of_ceiling"] == 0.5
    assert large.does_not_show == ""

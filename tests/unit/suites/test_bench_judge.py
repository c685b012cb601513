"""What a measured value means on a target: the table of verdicts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from portagpu.base.stats import summarise
from portagpu.facts.arch import Arch
from portagpu.facts.targets import Authority, Confidence, Expectation, Fact, Scope, Target
from portagpu.runs.results.run import Verdict
from portagpu.suites.performance import Effort
from portagpu.suites.performance.case_runner import time_limit_s
from portagpu.suites.performance.cases import BenchCase
from portagpu.suites.performance.judge import judge, share_of_limit, upper_limit

if TYPE_CHECKING:
    from collections.abc import Sequence

GEMM = BenchCase(
    id="gemm/bf16[64]",
    metric="gemm/bf16",
    area="gemm",
    unit="TFLOPS",
    function="gemm",
    arguments={"m": 64, "n": 64, "k": 64},
    algorithm="dense",
    dtype="bf16",
)
COPY = BenchCase(
    id="memory/copy",
    metric="memory/copy",
    area="memory",
    unit="GB/s",
    function="stream",
    algorithm="stream",
)
REDUCE = BenchCase(
    id="collectives/all_reduce[8]",
    metric="collectives/all_reduce",
    area="collectives",
    unit="GB/s",
    function="collective",
    world=8,
)


def fact(key: str, value: Any, unit: str | None, confidence: str = "vendor-source") -> Fact:
    return Fact(key, value, unit, ("DOC",), Confidence(confidence), "", Scope.PRODUCT)


def expectation(metric: str, reference: float, **changes: Any) -> Expectation:
    fields: dict[str, Any] = {
        "metric": metric,
        "reference": reference,
        "lower": -0.1,
        "upper": 0.1,
        "unit": "TFLOPS" if metric.startswith("gemm") else "GB/s",
        "statistic": "median",
        "shape": "64x64x64",
        "algorithm": "dense",
        "ranks": None,
        "size_bytes": None,
        "software": (),
        "source": ("DOC",),
        "authority": Authority.VENDOR,
        "note": "",
        "limit": 1000.0,
        "limit_rule": "a rule",
    }
    return Expectation(**{**fields, **changes})


def target(*expectations: Expectation, facts: Sequence[Fact] = ()) -> Target:
    stated = [
        fact("peak.dense.matrix.bf16", 1000.0, "TFLOPS"),
        fact("memory.bandwidth", 4000.0, "GB/s"),
    ]
    return Target(
        id="some-gpu",
        vendor="some",
        product="Some GPU",
        arch=Arch("some", "x1", 32),
        scope=Scope.PRODUCT,
        facts={each.key: each for each in (*stated, *facts)},
        all_expectations=expectations,
    )


STATED = expectation("gemm/bf16", 800.0)


@pytest.mark.parametrize(
    ("value", "authority", "verdict"),
    [
        (800.0, Authority.VENDOR, Verdict.PASS),
        (720.0, Authority.VENDOR, Verdict.PASS),
        (880.0, Authority.OWN, Verdict.PASS),
        (800.0, Authority.THIRD_PARTY, Verdict.PASS),
        (719.0, Authority.VENDOR, Verdict.FAIL),
        (719.0, Authority.OWN, Verdict.FAIL),
        (719.0, Authority.THIRD_PARTY, Verdict.UNVERIFIED),
        (881.0, Authority.VENDOR, Verdict.FAIL),
        (881.0, Authority.THIRD_PARTY, Verdict.UNVERIFIED),
        (1019.0, Authority.VENDOR, Verdict.FAIL),
        (1021.0, Authority.VENDOR, Verdict.ERROR),
        (1021.0, Authority.THIRD_PARTY, Verdict.ERROR),
    ],
)
def test_the_table_of_verdicts(value: float, authority: Authority, verdict: Verdict) -> None:
    judgement = judge(GEMM, summarise([value]), target(replace(STATED, authority=authority)))
    assert judgement.verdict is verdict, judgement.reason
    assert judgement.reason, f"{verdict} says nothing"


@pytest.mark.parametrize(
    ("value", "verdict"), [(719.0, "UNVERIFIED"), (720.0, "PASS"), (881.0, "FAIL")]
)
def test_a_busy_machine_makes_nothing_too_slow(value: float, verdict: str) -> None:
    busy = "load 6.9 on 2 CPUs: numbers are not comparable"
    judgement = judge(GEMM, summarise([value]), target(STATED), busy=busy)
    assert judgement.verdict == verdict, judgement.reason
    assert judgement.reason.endswith(busy) is (verdict == "UNVERIFIED")


def test_an_expectation_is_named_with_its_source() -> None:
    judgement = judge(GEMM, summarise([800.0]), target(STATED))
    assert judgement.expected is not None
    assert judgement.expected["source"] == "DOC"
    assert (judgement.expected["reference"], judgement.expected["unit"]) == (800.0, "TFLOPS")


def test_without_an_expectation_a_measure_is_unverified() -> None:
    judgement = judge(GEMM, summarise([800.0]), target())
    assert judgement.verdict is Verdict.UNVERIFIED
    assert judgement.expected is None
    assert share_of_limit(GEMM, summarise([800.0]), target()) == pytest.approx(0.8)


def test_without_a_target_a_measure_is_unverified() -> None:
    assert judge(GEMM, summarise([1e9]), None).verdict is Verdict.UNVERIFIED


def test_a_value_above_the_peak_is_an_error_without_any_expectation() -> None:
    judgement = judge(GEMM, summarise([1100.0]), target())
    assert judgement.verdict is Verdict.ERROR
    assert "the measurement is wrong" in judgement.reason


def test_memory_faster_than_its_bandwidth_is_an_error() -> None:
    assert judge(COPY, summarise([4079.0]), target()).verdict is Verdict.UNVERIFIED
    assert judge(COPY, summarise([4081.0]), target()).verdict is Verdict.ERROR


def test_a_peak_that_nobody_confirmed_judges_nothing() -> None:
    doubtful = fact("peak.dense.matrix.bf16", 10.0, "TFLOPS", "unverified")
    assert upper_limit(GEMM, target(facts=[doubtful])) is None


def test_an_expectation_of_another_shape_does_not_judge() -> None:
    other = replace(STATED, shape="128x64x64", reference=1.0)
    judgement = judge(GEMM, summarise([800.0]), target(other))
    assert judgement.verdict is Verdict.UNVERIFIED
    assert "128x64x64" in judgement.reason, "the shape that is expected should be named"


def test_an_expectation_of_the_mean_judges_the_mean() -> None:
    # median 800 is inside, mean 600 is not
    samples = summarise([800.0, 800.0, 200.0])
    judged_by_mean = judge(GEMM, samples, target(replace(STATED, statistic="mean")))
    assert judged_by_mean.verdict is Verdict.FAIL
    assert judge(GEMM, samples, target(STATED)).verdict is Verdict.PASS


def test_a_statistic_that_is_not_measured_judges_nothing() -> None:
    judgement = judge(GEMM, summarise([1.0]), target(replace(STATED, statistic="p99")))
    assert judgement.verdict is Verdict.UNVERIFIED


@pytest.mark.parametrize(
    ("versions", "verdict"),
    [
        ({"torch": "2.7.1"}, Verdict.FAIL),
        ({"torch": "2.13.0"}, Verdict.UNVERIFIED),
        ({}, Verdict.UNVERIFIED),
    ],
)
def test_other_software_than_the_expectations_fails_nobody(
    versions: dict[str, str | None], verdict: Verdict
) -> None:
    stated = replace(STATED, software=(("torch", "==2.7.*"),))
    judgement = judge(GEMM, summarise([1.0]), target(stated), versions=versions)
    assert judgement.verdict is verdict, judgement.reason
    inside = judge(GEMM, summarise([800.0]), target(stated), versions=versions)
    assert inside.verdict is Verdict.PASS, "inside is inside with any software"


def reduce_expectation(reference: float, **changes: Any) -> Expectation:
    fields = {"algorithm": "ring", "ranks": 8, "size_bytes": 1024, "shape": "8 ranks"}
    return expectation("collectives/all_reduce", reference, **{**fields, **changes})


@pytest.mark.parametrize(
    ("size_bytes", "ranks", "verdict"),
    [
        (1024, 8, Verdict.FAIL),
        (2048, 8, Verdict.UNVERIFIED),
        (1024, 4, Verdict.UNVERIFIED),
    ],
)
def test_a_collective_is_judged_at_its_size_and_ranks_only(
    size_bytes: int, ranks: int, verdict: Verdict
) -> None:
    stated = target(reduce_expectation(300.0, ranks=ranks))
    judgement = judge(REDUCE, summarise([1.0]), stated, size_bytes=size_bytes)
    assert judgement.verdict is verdict, judgement.reason


def test_inside_the_expectation_of_any_algorithm_is_enough() -> None:
    stated = target(reduce_expectation(300.0), reduce_expectation(480.0, algorithm="nvls"))
    for value in (300.0, 480.0):
        judgement = judge(REDUCE, summarise([value]), stated, size_bytes=1024)
        assert judgement.verdict is Verdict.PASS, f"{value}: {judgement.reason}"
    assert judge(REDUCE, summarise([390.0]), stated, size_bytes=1024).verdict is Verdict.FAIL


def test_a_collective_faster_than_any_algorithm_can_be_is_an_error() -> None:
    links = [
        fact("link.topology", "switched", None),
        fact("link.total_per_direction", 450.0, "GB/s"),
    ]
    # in-switch reduction: 450 x 2 x 7 / 9 = 700
    most = upper_limit(REDUCE, target(facts=links))
    assert most is not None
    assert most[0] == pytest.approx(700.0)
    judgement = judge(REDUCE, summarise([720.0]), target(facts=links))
    assert judgement.verdict is Verdict.ERROR


def test_a_transfer_is_judged_by_its_own_kind_of_memory() -> None:
    case = replace(COPY, id="transfer/h2d[pageable]", metric="transfer/h2d", algorithm="pageable")
    stated = target(expectation("transfer/h2d", 55.0, algorithm="pinned"))
    assert judge(case, summarise([5.0]), stated).verdict is Verdict.UNVERIFIED
    pinned = replace(case, algorithm="pinned")
    assert judge(pinned, summarise([5.0]), stated).verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("samples", "verdict"),
    [
        # median 100; distances 0 to 10, the middle one 10: exactly the widest
        ([80.0, 90.0, 100.0, 110.0, 120.0], Verdict.PASS),
        ([80.0, 89.0, 100.0, 111.0, 120.0], Verdict.INCONCLUSIVE),
    ],
)
def test_a_spread_too_wide_is_not_judged(samples: list[float], verdict: Verdict) -> None:
    found = judge(replace(COPY, least=50.0), summarise(samples), None)
    assert found.verdict is verdict
    assert ("too wide to judge by" in found.reason) is (verdict is Verdict.INCONCLUSIVE)


def test_a_spread_just_above_its_limit_does_not_read_as_the_limit() -> None:
    found = judge(replace(COPY, least=50.0), summarise([79.0, 89.7, 100.0, 110.3, 120.0]), None)
    assert "the spread of 10.3% is too wide to judge by: more than 10%" in found.reason


def test_a_limit_of_time_grows_with_the_ranks() -> None:
    one, two, many = (
        time_limit_s(replace(REDUCE, world=world), Effort.QUICK) for world in (1, 2, 64)
    )
    assert one < two < many
    assert time_limit_s(replace(REDUCE, world=1, time_factor=3.0), Effort.QUICK) == 3 * one

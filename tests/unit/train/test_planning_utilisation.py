"""The share of the peak that published trainings reach, and the times that follow from it."""

from __future__ import annotations

import pytest

from portagpu.facts.targets import load_target
from portagpu.train.planning import Recipe, cluster_of, find_model, plan
from portagpu.train.planning.plans import parse_strategy
from portagpu.train.planning.utilisation import WIDER, published_runs, published_utilisation

EIGHT = find_model("llama-3.1-8b")
H100 = load_target("nvidia-h100-sxm")


def test_shares_are_those_that_the_sources_print() -> None:
    """llm-foundry prints MFU in percent, of the same definition (README.md at 061f2c7)."""
    printed = {
        ("MPT 70b", 2048, 64): 42.57,
        ("MPT 30b", 8192, 8): 29.92,
        ("MPT 7b", 2048, 8): 46.44,
        ("MPT 7b", 32768, 8): 30.94,
        ("MPT 1b", 2048, 64): 40.85,
    }
    found = {
        (each.name, each.sequence, each.gpus): 100 * each.share(989.4e12)
        for each in published_runs()
        if "llm-foundry" in each.source and each.precision == "bf16"
    }
    for run, share in printed.items():
        assert found[run] == pytest.approx(share, abs=0.06), run


def test_every_run_is_of_a_target_with_a_source_and_below_its_peak() -> None:
    for each in published_runs():
        assert each.source.startswith("https://")
        peak = load_target(each.target).peak(each.precision)
        assert peak is not None
        assert 0.1 < each.share(peak.value * 1e12) < 0.7, each


def test_the_other_sources_say_most_runs() -> None:
    """Of a source's runs nine of ten are in the interval of all others, with the factor."""
    inside = counted = 0
    for each in published_runs():
        target = load_target(each.target)
        others = published_utilisation(target, each.precision, each.parameters, each.source)
        if others is None:
            continue
        share = each.share(target.peak(each.precision).value * 1e12)
        counted += 1
        inside += others.low / WIDER <= share <= others.high * WIDER
    assert counted > 40
    assert inside / counted == pytest.approx(0.9, abs=0.02), (inside, counted)


def test_a_models_own_size_decides_where_there_are_enough_runs() -> None:
    small = published_utilisation(H100, "bf16", 2_000_000_000)
    large = published_utilisation(H100, "bf16", 400_000_000_000)
    assert small.largest < 8_000_000_000
    assert large.runs > 10
    assert published_utilisation(load_target("nvidia-t4"), "fp16", 10**9) is None


def test_a_published_step_is_between_the_two_times() -> None:
    """torchtitan, table 1: 6,667 tokens a second of each of 8 H100s, so 2.46 s for 16 sequences."""
    recipe = Recipe(sequence=8192, precision="autocast-bf16", sharding="fsdp2")
    found = plan(EIGHT, cluster_of(H100, 8), recipe, batch=16, strategy="dp=8",
                 micro_batches=(2,), recomputes=("operators",))  # fmt: skip
    assert parse_strategy("dp=8") == {"dp": 8}
    low, high = found.best.between_s
    assert found.best.timing.step_s <= low < 2.46 < high < 3.2 * low
    assert "published runs" in str(found.utilisation)


def test_a_measured_share_and_frozen_weights_have_no_published_times() -> None:
    recipe = Recipe(sequence=4096, precision="autocast-bf16", sharding="fsdp2")
    cluster = cluster_of(H100, 8)
    measured = plan(EIGHT, cluster, recipe, batch=16, strategy="dp=8", efficiency=0.4)
    frozen = plan(EIGHT, cluster, Recipe(sequence=4096, frozen=True), batch=16, strategy="dp=8")
    for each in (measured, frozen):
        assert each.utilisation is None
        assert each.best.between_s is None

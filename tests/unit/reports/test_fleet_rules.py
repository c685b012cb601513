"""What a fleet's report finds: planted faults, pairs, versions, and the limit for many values."""

from __future__ import annotations

import math
import random
from functools import cache
from pathlib import Path

import pytest

from portagpu.reports.condensed.nodes import Measured, MeasureId, Measures, NodeRun, condensed
from portagpu.reports.fleet import measures as pairs
from portagpu.reports.fleet import versions
from portagpu.reports.fleet.measures import LEVEL, MEASURE, NOISE
from portagpu.reports.fleet.record import FleetRecord, Step, StepState
from portagpu.reports.fleet.report import FleetReport, judge, natural
from portagpu.reports.fleet.request import collected
from portagpu.reports.fleet.result_files import Fleet, Joint
from portagpu.reports.fleet.scheduler import to_drain
from portagpu.runs.judges.peers import FALSE_ALARMS, compare_peers, deviations_for
from portagpu.runs.ledger import Owner, owner_of
from portagpu.runs.results.run import Result, Run, new_run
from portagpu.runs.results.verdicts import Verdict
from portagpu.runs.results.wording import exactly
from tests.support.fleet_simulation import document_of, scores, simulate, template
from tests.support.history_samples import measure, run

NAMES = [f"n{number}" for number in range(12)]


def test_every_planted_fault_is_found_and_nobody_else_is_named() -> None:
    planted_faults_are_found(1)


def planted_faults_are_found(seed: int) -> None:
    made = simulate(400, seed)
    for kind, score in scores(made, judge(made.fleet)).items():
        assert score.planted > 0, kind
        assert (score.found, score.false) == (score.planted, 0), kind


def test_a_result_file_of_the_simulation_holds_what_was_made_up() -> None:
    made = simulate(20, 5)
    whole = template().to_json()
    for name in list(made.fleet.nodes)[:3]:
        own = made.fleet.nodes[name][0]
        read = condensed(Run.from_json(document_of(own, whole)), own.path, own.owner)
        assert sorted(map(str, read.measures)) == sorted(map(str, own.measures))
        assert (read.verdict, read.hardware) == (own.verdict, own.hardware)
        assert (read.versions, read.devices) == (own.versions, own.devices)


@pytest.mark.parametrize("count", [100, 5_000, 254_426, 2_544_320])
def test_the_limit_of_many_comparisons_leaves_the_stated_chance_of_a_false_alarm(
    count: int,
) -> None:
    limit = deviations_for(count)
    # the tails of the normal distribution by its error function
    chance = math.erfc(limit / math.sqrt(2)) * count
    assert chance == pytest.approx(FALSE_ALARMS, rel=1e-6) or limit == 3.5


def test_the_limit_never_falls_below_that_of_few_values() -> None:
    assert [deviations_for(count) for count in (0, 1, 8, 100)] == [3.5] * 4
    assert deviations_for(107) == 3.5 < deviations_for(108)


def test_normal_noise_is_blamed_for_with_3_5_deviations_and_not_with_those_of_its_number() -> None:
    chance = random.Random(3)  # noqa: S311 - made-up values
    values = {str(n): chance.gauss(100, 3) for n in range(50_000)}
    blamed = compare_peers(values).outliers
    assert 10 < len(blamed) < 50  # 1 in 2,149 is 23
    assert not compare_peers(values, deviations=deviations_for(len(values))).outliers


@cache
def even() -> list[float]:
    """Values of many nodes with a MAD of 1 % of their median, none of them far away."""
    chance = random.Random(7)  # noqa: S311 - made-up values
    return [100 * (1 + 0.0148 * max(-2, min(2, chance.gauss(0, 1)))) for _ in range(40)]


def node_run(number: int, values: dict[str, float], **fields: object) -> NodeRun:
    results = [measure(name, value) for name, value in values.items()]
    made = run(number, results, host=f"n{number}", **fields)  # type: ignore[arg-type]
    return condensed(made, Path(f"{number}.json"), owner_of(made, f"n{number}"))


def report_of(runs: list[NodeRun]) -> FleetReport:
    fleet = Fleet()
    for each in runs:
        fleet.nodes.setdefault(each.owner.host, []).append(each)
    return judge(fleet)


def test_the_level_of_many_measures_shows_what_no_single_one_does() -> None:
    names = ("gemm/bf16", "gemm/fp16", "gemm/fp32", "gemm/fp64", "gemm/int8")
    chance = random.Random(11)  # noqa: S311 - made-up values
    runs = []
    for number in range(40):
        slow = 0.93 if number == 17 else 1.0
        values = {name: 100 * slow * (1 + chance.gauss(0, 0.02)) for name in names}
        runs.append(node_run(number, values))
    found = report_of(runs)
    assert [(each.node, each.among, each.worse) for each in found.unlike] == [("n17", LEVEL, True)]
    assert found.unlike[0].relative == pytest.approx(-0.07, abs=0.02)
    assert found.verdict is Verdict.FAIL


def test_a_faster_node_is_reported_and_not_blamed_and_a_time_is_worse_above() -> None:
    runs = [node_run(n, {"memory/copy": value}) for n, value in enumerate(even())]
    runs[3] = node_run(3, {"memory/copy": 160.0})
    found = report_of(runs)
    assert [(each.node, each.among, each.worse) for each in found.unlike] == [
        ("n3", MEASURE, False)
    ]
    assert found.verdict is not Verdict.FAIL
    times = [Measured(MeasureId("launch/issue", "null"), None, v, "us", None) for v in even()]
    times[5] = times[5]._replace(value=200.0)
    base = runs[0]
    fleet = Fleet()
    for number, each in enumerate(times):
        fleet.nodes[f"n{number}"] = [_with(base, number, each)]
    assert [(each.node, each.worse) for each in judge(fleet).unlike] == [("n5", True)]


def _with(base: NodeRun, number: int, *measures: Measured) -> NodeRun:
    from dataclasses import replace

    return replace(
        base,
        owner=Owner("", f"n{number}", "x"),
        account=replace(base.account, run=f"run-{number}"),
        measures=Measures.of(measures),
    )


def test_a_noisy_node_is_found_by_the_spread_of_its_own_samples() -> None:
    base = node_run(0, {"memory/copy": 1.0})
    fleet = Fleet()
    for number, value in enumerate(even()):
        spread = 9.0 if number == 30 else value / 50
        own = [
            Measured(MeasureId(f"gemm/{name}", "null"), None, value, "TFLOPS", spread)
            for name in ("bf16", "fp16", "fp32")
        ]
        fleet.nodes[f"n{number}"] = [_with(base, number, *own)]
    found = judge(fleet).unlike
    assert [(each.node, each.among, each.worse) for each in found] == [("n30", NOISE, True)]


def test_targets_are_not_compared_with_each_other() -> None:
    runs = [node_run(n, {"memory/copy": value}) for n, value in enumerate(even())]
    runs += [node_run(100 + n, {"memory/copy": 900.0}, target="other") for n in range(3)]
    found = report_of(runs)
    assert not found.unlike
    assert {each.hardware for each in found.distributions} == {"example-1"}


def test_a_measure_that_failed_without_a_number_is_worse() -> None:
    runs = [node_run(n, {"memory/copy": value}) for n, value in enumerate(even())]
    lost = Measured(MeasureId("memory/copy", "null"), None, math.nan, None, None)
    fleet = Fleet(nodes={each.owner.host: [each] for each in runs})
    fleet.nodes["n9"] = [_with(runs[9], 9, lost)]
    (found,) = judge(fleet).unlike
    assert (found.node, found.value, found.worse) == ("n9", None, True)
    assert found.sentence == "memory/copy gave no number"


def joints(rounds: list[list[tuple[str, ...]]], slow: dict[tuple[str, ...], float]) -> list[Joint]:
    base = node_run(0, {"collectives/all_reduce[16]": 1.0})
    values = iter(even() * 10)
    found = []
    for number, own in enumerate(rounds):
        for nodes in own:
            value = next(values) * slow.get(nodes, 1.0)
            each = Measured(MeasureId("collectives/all_reduce[16]", ""), None, value, "GB/s", None)
            found.append(Joint(nodes, number, _with(base, number, each)))
    return found


def rounds_of(count: int) -> list[list[tuple[str, ...]]]:
    """A tournament: in each round everybody meets somebody new."""
    own, found = NAMES[:], []
    for _ in range(count):
        found.append([(own[n], own[-1 - n]) for n in range(len(own) // 2)])
        own = [own[0], own[-1], *own[1:-1]]
    return found


def test_rounds_distinguish_a_slow_link_from_a_slow_node() -> None:
    rounds = rounds_of(5)
    link = rounds[2][1]
    slow = {pair: 0.6 for own in rounds for pair in own if "n7" in pair} | {link: 0.7}
    assert "n7" not in link
    found = judge(Fleet(joint=joints(rounds, slow))).slow
    assert {(each.what, each.nodes, each.slow, each.pairs) for each in found} == {
        (pairs.NODE, ("n7",), 5, 5),
        (pairs.LINK, link, 1, 5),
    }
    assert "n7 is slow in 5 of its 5 pairs" in found[0].sentence


def test_one_round_cannot_distinguish_a_link_from_a_node() -> None:
    rounds = rounds_of(1)
    found = judge(Fleet(joint=joints(rounds, {rounds[0][2]: 0.5}))).slow
    assert [(each.what, each.nodes) for each in found] == [(pairs.UNKNOWN, rounds[0][2])]
    assert "another round would show" in found[0].sentence


def test_a_group_is_reported_where_no_pair_in_it_is_slow() -> None:
    rounds = rounds_of(3)
    link = rounds[1][0]
    others = [name for name in NAMES if name not in link]
    groups: list[tuple[str, ...]] = [(*link, *others[:2]), tuple(others[2:6]), tuple(others[6:])]
    rounds += [groups, *([tuple(NAMES[n : n + 4])] for n in range(8))]
    slow = {link: 0.6, groups[0]: 0.6, groups[1]: 0.5}
    found = judge(Fleet(joint=joints(rounds, slow))).slow
    assert {each.nodes for each in found} == {link, groups[1]}
    assert "are slow together" in found[0].sentence


def test_two_slow_nodes_that_met_are_both_named() -> None:
    rounds = rounds_of(4)
    one, two = rounds[0][0]
    bad = {pair: 0.6 for own in rounds for pair in own if {one, two} & {*pair}}
    found = judge(Fleet(joint=joints(rounds, bad))).slow
    assert {(each.what, each.nodes) for each in found} == {
        (pairs.NODE, (one,)),
        (pairs.NODE, (two,)),
    }


def test_a_version_of_some_nodes_is_reported_with_what_they_measure() -> None:
    runs = []
    for number, value in enumerate(even()):
        bad = number % 5 == 0
        driver = {"driver": "2" if bad else "1"}
        runs.append(
            node_run(number, {"memory/copy": value * (0.95 if bad else 1)}, versions=driver)
        )
    (found,) = report_of(runs).differing
    assert (found.component, found.usual, found.votes, found.decided) == ("driver", "1", 32, True)
    (group,) = found.groups
    assert (group.version, len(group.nodes)) == ("2", 8)
    (effect,) = group.effects
    assert effect.relative == pytest.approx(-0.05, abs=0.015)
    assert effect.worse


def test_a_version_that_measures_in_the_same_way_has_no_effect_and_halves_have_no_majority() -> (
    None
):
    runs = [
        node_run(n, {"memory/copy": value}, versions={"driver": str(n % 2)})
        for n, value in enumerate(even())
    ]
    (found,) = report_of(runs).differing
    assert not found.decided
    assert not found.groups[0].effects


def test_a_node_that_lost_a_device_is_named() -> None:
    device = {"name": "Example"}
    runs = [
        node_run(n, {"memory/copy": 100.0}, devices=[device] * (7 if n == 4 else 8))
        for n in range(9)
    ]
    found = report_of(runs)
    (unlike,) = found.unlike
    assert (unlike.node, unlike.value, unlike.median) == ("n4", 7, 8)
    assert unlike.among == versions.DEVICES
    assert unlike.sentence == "number of devices is 7, its peers 8"
    assert found.verdict is Verdict.FAIL


def test_names_are_sorted_by_their_numbers() -> None:
    names = ["node-10", "node-9", "node-²", "a1b20", "a1b3", "", "node-" + "9" * 400]
    found = sorted(names, key=natural)
    assert found.index("node-9") < found.index("node-10")
    assert found.index("a1b3") < found.index("a1b20")


@pytest.mark.parametrize(("check", "nodes"), [("identity/target", []), ("identity/count", ["n1"])])
def test_no_node_is_drained_for_a_wrong_target(
    tmp_path: Path, check: str, nodes: list[str]
) -> None:
    made = new_run(["portagpu", "bringup"])
    expected = exactly("this", "the command line")
    fields = {"verdict": Verdict.FAIL, "reason": "it is something else", "value": "other"}
    made.add(
        Result(id=check, suite="bringup", area="identity", device="0", expected=expected, **fields)
    )
    made.finish().write_json(tmp_path / "result.json")
    (tmp_path / "ended").write_text("7 1\n")
    step, _ = collected(tmp_path, Step(id="n1", nodes=("n1",), state=StepState.RUNNING, job="7"))
    assert (step.state, step.action) == (StepState.DONE, "isolate")
    record = FleetRecord(id="f", what="bringup", started="now", nodes=("n1",), steps=(step,))
    assert [*to_drain(record, record.steps)] == nodes

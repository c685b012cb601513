"""The engine of ``portagpu screen`` on ranks: counts, wrong results, and ranks that fail."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from portagpu.checks.bringup import load_gates
from portagpu.checks.bringup.checks import screen as gate
from portagpu.checks.bringup.device import CheckedDevice
from portagpu.checks.bringup.run import Context, MachineUnderTest
from portagpu.facts.actions import Action
from portagpu.runs.results.advice import action_of, severity_of
from portagpu.runs.results.verdicts import Verdict
from portagpu.suites.screen import ScreenOptions, ScreenProgress, add_results
from portagpu.suites.screen.options import RUNS
from portagpu.train.exact.draws import Draws, batch_seed
from portagpu.train.exact.probes import Published, published_digests
from tests.conftest import ROOT
from tests.support.screen_probes import COLUMNS, ROWS

if TYPE_CHECKING:
    from portagpu.runs.results.run import Result, Run
    from portagpu.runs.world import Ranks

pytestmark = pytest.mark.torch

SAMPLES = ROOT / "tests" / "support" / "screen_probes.py"
ONE_RUN = ROWS * COLUMNS
DAY = 20261201

SEED = published_digests().seed


def screened(
    ranks: Ranks,
    probes: str,
    progress: ScreenProgress | None = None,
    *,
    devices: int = 1,
    **given: Any,
) -> Run:
    """The run of a screen of CPU ranks with the probes of that name."""
    options = ScreenOptions(
        **{
            "backend": "cpu",
            "indices": range(devices),
            "place": f"{SAMPLES}:{probes}",
            "batches": 2,
            "seed": DAY,
            "count_errors": False,
            **given,
        }
    )
    run = options.new_run()
    add_results(run, options, ranks, progress or ScreenProgress())
    return run.finish()


def of(run: Run, name: str, device: str | None = None) -> Result:
    """The result of that name, on that device where there are several."""
    (found,) = [
        each
        for each in run.results
        if each.id == f"screen/{name}" and device in (None, each.device)
    ]
    return found


def test_what_is_right_is_counted(ranks: Ranks) -> None:
    run = screened(ranks, "SOUND")
    good = of(run, "vectors/good")
    # the published seed and two batches, with RUNS results of each pair of operands
    assert good.verdict is Verdict.PASS
    assert good.value == 3 * RUNS * ONE_RUN
    assert good.unit == "results"
    assert good.extra["inputs"] == 3 * 2 * ONE_RUN
    assert good.extra["batches"] == 2
    assert good.extra["excluded_rate"] == pytest.approx(3 / (3 * RUNS * ONE_RUN))
    assert "none wrong" in good.reason
    assert run.info.seed == DAY
    assert good.does_not_show
    refused = of(run, "products/refused")
    assert (refused.verdict, refused.value) == (Verdict.SKIP, None)
    assert refused.reason == "the cpu backend does not compute in fp8"
    assert of(run, "device").verdict is Verdict.PASS
    assert of(run, "device").extra["results"] == 2 * 3 * RUNS * ONE_RUN


def test_digests_are_of_the_published_seed(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = of(screened(ranks, "GOOD"), "digests")
    assert unknown.verdict is Verdict.UNVERIFIED
    assert unknown.reason.startswith("no published digest of vectors/good, products/good")
    given = dict(unknown.extra["digests"])
    # SHA-256 of the sums of the draws, made here
    from hashlib import sha256

    draws = Draws(SEED)
    sums = sum(draws.integers(name, (ROWS, COLUMNS), 1, 100) for name in "ab")
    assert given["vectors/good"] == sha256(sums.numpy().tobytes()).hexdigest()  # type: ignore[union-attr]

    def publish(digests: dict[str, str]) -> None:
        monkeypatch.setattr(
            "portagpu.suites.screen.judge.published_digests", lambda: Published(SEED, digests)
        )

    publish(given)
    known = of(screened(ranks, "GOOD"), "digests")
    assert (known.verdict, known.reason) == (
        Verdict.PASS,
        "2 of 2 digests are the published ones",
    )
    publish({**given, "products/good": "0" * 64})
    other = of(screened(ranks, "GOOD"), "digests")
    assert other.verdict is Verdict.FAIL
    assert other.extra["differ"] == ["products/good"]
    assert action_of(other) is Action.ISOLATE
    # the same on all, which are one device here
    both = screened(ranks, "GOOD", devices=2)
    for each in ("rank 0", "rank 1"):
        assert of(both, "digests", each).extra["wrong_value"]["cause"] == "device or software"


def test_a_wrong_column_of_one_device_is_that_device(ranks: Ranks) -> None:
    run = screened(ranks, "ON_RANK_1", devices=2)
    assert of(run, "products/column", "rank 0").verdict is Verdict.PASS
    wrong = of(run, "products/column", "rank 1")
    assert wrong.verdict is Verdict.FAIL
    assert wrong.value == ONE_RUN, "it ended with its first wrong result"
    assert wrong.extra["wrong_value"]["cause"] == "device"
    assert action_of(wrong) is Action.ISOLATE
    assert severity_of(wrong).id == "wrong"
    known = wrong.extra["wrong"]
    assert (known["count"], known["of"], known["batch"], known["run"]) == (ROWS, ONE_RUN, -1, 1)
    assert (known["repeated"], known["repeated_wrong"]) == (100, 100)
    assert known["recurrence"] == "permanent"
    assert known["where"]["form"] == "one column"
    assert known["where"]["columns"] == [3, 3]
    assert known["where"]["bits"] == {"2": ROWS}
    for words in ("8 of 256 results", "permanent", "its peer is right", "bits 2 (8)"):
        assert words in wrong.reason
    # other probes go on there
    assert of(run, "products/good", "rank 1").value == 3 * RUNS * ONE_RUN


def test_the_same_wrong_bits_on_separate_devices_are_the_software(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = screened(ranks, "EVERYWHERE", devices=2)
    assert of(shared, "products/column", "rank 1").extra["wrong_value"]["cause"] == (
        "device or software"
    ), "two ranks of one CPU are one device"
    from portagpu.suites.screen.judge import Screened

    # as where each rank has a device of its own
    monkeypatch.setattr(Screened, "shared", property(lambda self: False, lambda self, value: None))
    separate = screened(ranks, "EVERYWHERE", devices=2)
    for device in ("rank 0", "rank 1"):
        wrong = of(separate, "products/column", device)
        assert wrong.verdict is Verdict.FAIL
        assert wrong.extra["wrong_value"]["cause"] == "software"
        assert action_of(wrong) is Action.NONE
        assert "its peer is wrong in the same bits" in wrong.reason


def test_one_device_alone_is_isolated(ranks: Ranks) -> None:
    wrong = of(screened(ranks, "EVERYWHERE"), "products/column")
    assert wrong.extra["wrong_value"]["cause"] == "device or software"
    assert action_of(wrong) is Action.ISOLATE


def test_what_happens_in_some_runs_is_intermittent(ranks: Ranks) -> None:
    wrong = of(screened(ranks, "SOMETIMES"), "products/sometimes")
    known = wrong.extra["wrong"]
    # runs 3, 7, ..., 99
    assert (known["repeated_wrong"], known["repeated"]) == (25, 100)
    assert known["recurrence"] == "intermittent"
    assert known["where"]["kinds"] == {"zeroed": 1}
    assert wrong.value == 4 * ONE_RUN, "the fourth run was the first wrong one"


def test_what_does_not_come_back_is_gone_and_fails_all_the_same(ranks: Ranks) -> None:
    wrong = of(screened(ranks, "ONCE"), "products/once")
    assert wrong.verdict is Verdict.FAIL
    assert wrong.extra["wrong"]["recurrence"] == "gone"
    assert wrong.extra["wrong"]["where"]["form"] == "one element"
    assert action_of(wrong) is Action.ISOLATE


def test_operands_can_be_made_again_from_what_a_failure_says(ranks: Ranks) -> None:
    known = of(screened(ranks, "EVERYWHERE", batches=1), "products/column").extra["wrong"]
    assert known["seed"] == SEED, "the published seed is first"
    seeds = {batch_seed(DAY, "products/column", number) for number in range(2)}
    assert len(seeds) == 2


def test_a_device_that_dies_leaves_and_the_others_go_on(ranks: Ranks) -> None:
    run = screened(ranks, "DYING", devices=3)
    dead = of(run, "vectors/dies", "rank 1")
    assert dead.verdict is Verdict.FAIL
    assert "died of SIGKILL" in dead.reason
    assert of(run, "device", "rank 1").verdict is Verdict.FAIL
    for device in ("rank 0", "rank 2"):
        for name in ("vectors/good", "products/good", "vectors/dies"):
            result = of(run, name, device)
            assert result.verdict is Verdict.PASS
            assert result.extra["batches"] == 2
            assert result.value == 3 * RUNS * ONE_RUN, "no batch is counted twice"
    # what was judged on it counts, and says that it is not all
    good = of(run, "vectors/good", "rank 1")
    assert good.value
    assert "died" in good.reason


def test_a_wrong_result_stands_where_the_device_dies_in_its_repetition(ranks: Ranks) -> None:
    run = screened(ranks, "WRONG_THEN_DYING")
    wrong = of(run, "products/column")
    assert wrong.verdict is Verdict.FAIL
    assert severity_of(wrong).id == "wrong"
    assert wrong.extra["wrong"]["where"]["form"] == "one column"
    assert wrong.extra["wrong"]["repeated"] == 0
    assert "the operands were not run again" in wrong.reason
    assert "died of SIGKILL" in of(run, "device").reason


@pytest.mark.usefixtures("quiet_machine")
def test_a_device_that_hangs_is_named_with_its_probe(ranks: Ranks) -> None:
    run = screened(ranks, "HANGING", devices=2, silence_s=1.0)  # allowed: it sleeps for an hour
    hung = of(run, "vectors/hangs", "rank 1")
    # on a busy machine it may only have been slow
    assert hung.verdict in (Verdict.FAIL, Verdict.INCONCLUSIVE)
    assert hung.value == "hung"
    assert "vectors/hangs" in hung.reason
    assert severity_of(hung).id == "hung"
    assert of(run, "vectors/hangs", "rank 0").verdict is Verdict.PASS


def test_a_probe_that_breaks_or_does_not_fit_stops_no_other(ranks: Ranks) -> None:
    run = screened(ranks, "BROKEN")
    broke = of(run, "products/breaks")
    assert (broke.verdict, broke.reason) == (
        Verdict.ERROR,
        "the probe raised ValueError: no such kernel",
    )
    for name, words in (("memory/large", "64 GiB"), ("products/inexact", "24 bits")):
        assert of(run, name).verdict is Verdict.INCONCLUSIVE
        assert words in of(run, name).reason
    assert of(run, "vectors/good").verdict is Verdict.PASS


def test_without_time_for_a_batch_it_says_which_probes_did_not_run(ranks: Ranks) -> None:
    run = screened(ranks, "GOOD", batches=None, seconds=1e-9)
    for name in ("vectors/good", "products/good"):
        assert of(run, name).verdict is Verdict.INCONCLUSIVE
        assert "the screen was over" in of(run, name).reason


def test_ctrl_c_keeps_what_was_judged(ranks: Ranks) -> None:
    class Stops(ScreenProgress):
        def item_begins(self, name: str, number: int, total: int) -> None:
            if number == 2:
                raise KeyboardInterrupt

    options = ScreenOptions(
        backend="cpu",
        indices=[0],
        place=f"{SAMPLES}:GOOD",
        batches=5,
        seed=DAY,
        count_errors=False,
    )
    run = options.new_run()
    with pytest.raises(KeyboardInterrupt):
        add_results(run, options, ranks, Stops())
    assert of(run, "vectors/good").value == RUNS * ONE_RUN
    run.finish(interrupted=True)
    assert (run.verdict, run.exit_code) == (Verdict.INCONCLUSIVE, 130)


def test_a_run_that_writes_nothing_does_not_pass_with_the_result_before_it(ranks: Ranks) -> None:
    run = screened(ranks, "OLD_RESULTS")
    assert of(run, "vectors/good").verdict is Verdict.PASS
    kept = of(run, "products/kept")
    assert kept.verdict is Verdict.FAIL
    wrong = kept.extra["wrong"]
    assert (wrong["run"], wrong["count"], wrong["where"]["form"]) == (2, ONE_RUN, "all elements")


def test_a_device_that_sees_no_wrong_element_is_not_judged(ranks: Ranks) -> None:
    run = screened(ranks, "BLIND_ON_RANK_1", devices=2)
    assert of(run, "products/blind", "rank 0").verdict is Verdict.PASS
    blind = of(run, "products/blind", "rank 1")
    assert blind.verdict is Verdict.FAIL
    assert "compares wrong" in blind.reason
    assert blind.extra["wrong_value"]["cause"] == "device"
    assert (severity_of(blind).id, action_of(blind)) == ("wrong", Action.ISOLATE)
    assert "products/blind went wrong" in of(run, "device", "rank 1").reason
    # no further batch of it, whose judging would say nothing
    assert blind.extra["batches"] == 0


def test_collectives_run_at_the_same_time_on_all_ranks(ranks: Ranks) -> None:
    run = screened(ranks, "TOGETHER", devices=2)
    for device in ("rank 0", "rank 1"):
        assert of(run, "collectives/sum", device).verdict is Verdict.PASS
        assert of(run, "collectives/sum", device).extra["batches"] == 2
    # wrong on one rank alone: the other's share ends with it, and both repeat together
    wrong = of(run, "collectives/wrong", "rank 1")
    assert wrong.verdict is Verdict.FAIL
    assert wrong.extra["wrong"]["repeated_wrong"] == wrong.extra["wrong"]["repeated"] == 100
    # a link and every other rank may have sent what is wrong
    assert wrong.extra["wrong_value"]["cause"] == "device or software"
    other = of(run, "collectives/wrong", "rank 0")
    assert other.verdict is Verdict.PASS
    assert "another rank had a wrong result" in other.reason


def test_memory_that_one_rank_lacks_ends_the_probe_on_all(ranks: Ranks) -> None:
    run = screened(ranks, "TOO_LARGE_TOGETHER", devices=2)
    for device, words in (("rank 0", "another rank could not"), ("rank 1", "64 GiB")):
        large = of(run, "collectives/large", device)
        assert large.verdict is Verdict.INCONCLUSIVE
        assert words in large.reason
        assert of(run, "collectives/sum", device).verdict is Verdict.PASS
        assert of(run, "device", device).verdict is Verdict.PASS


def test_one_device_has_no_collectives(ranks: Ranks) -> None:
    assert of(screened(ranks, "TOGETHER"), "collectives/sum").verdict is Verdict.SKIP


def test_devices_that_cannot_be_opened_are_named(ranks: Ranks) -> None:
    run = screened(ranks, "GOOD", devices=2, backend="cuda")
    for device in ("cuda 0", "cuda 1"):
        closed = of(run, "device", device)
        assert (closed.verdict, severity_of(closed).id) == (Verdict.ERROR, "gone")
        assert "BackendNotFound" in closed.reason
        good = of(run, "vectors/good", device)
        assert (good.verdict, good.blocked_by) == (Verdict.INCONCLUSIVE, "screen/device")


# ---- the gate of bring-up


def gate_results(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch, *, shared: bool, **fields: Any
) -> tuple[list[Result], list[ScreenOptions]]:
    """What the gate gives, with two batches of the tests' own probes, and what it asked for."""
    asked: list[ScreenOptions] = []

    def few(run: Run, options: ScreenOptions, *given: Any) -> None:
        asked.append(options)
        own = replace(options, batches=2, place=f"{SAMPLES}:EVERYWHERE", seed=DAY)
        add_results(run, own, *given)

    monkeypatch.setattr(gate.screen, "add_results", few)
    (found,) = [each for each in load_gates() if each.id == "screen"]
    tested = MachineUnderTest("cpu", ranks, devices=[CheckedDevice(0, "cpu", {})], shared=shared)
    context = Context(tested, found, "quick", **fields)
    return list(gate.check(context)), asked


def test_the_gate_takes_over_what_was_judged(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    results, (options,) = gate_results(ranks, monkeypatch, shared=True)
    assert {(each.suite, each.area) for each in results} == {("bringup", "screen")}
    by_id = {each.id: each for each in results}
    assert options.runs == 2
    assert by_id["screen/vectors/good"].value == 3 * 2 * ONE_RUN
    wrong = by_id["screen/products/column"]
    assert wrong.origin == ("screen", "screen")
    assert (severity_of(wrong).id, action_of(wrong)) == ("wrong", Action.ISOLATE)
    assert (options.batches, options.threads, options.indices) == (1, 1, [0])
    assert not options.count_errors, "a later gate reads them"


def test_a_gpu_is_screened_for_a_minute(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    _, (options,) = gate_results(ranks, monkeypatch, shared=False)
    assert (options.seconds, options.batches, options.threads) == (60, None, None)


def test_a_gate_without_time_says_so(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    results, asked = gate_results(ranks, monkeypatch, shared=True, started_s=-1e9)
    assert not asked
    assert [(each.id, each.verdict) for each in results] == [
        ("screen/screen", Verdict.INCONCLUSIVE)
    ]

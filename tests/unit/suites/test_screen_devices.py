"""What becomes of a screen's counts, and of a device that is silent while others are heard."""

from __future__ import annotations

from typing import Any

import pytest

from portagpu.runs.results.advice import Action, action_of
from portagpu.runs.results.run import Verdict
from portagpu.suites.screen.judge import Screened, results_of, separate_blind
from portagpu.suites.screen.options import ScreenOptions, UnknownProbe, selected_probes
from portagpu.suites.screen.runner import Heard, SilentRank, errors_result
from portagpu.suites.screen.tally import Tally
from portagpu.train.exact.probes import Published

# ---- silence


def test_a_silent_rank_is_named_with_what_it_did() -> None:
    now = [0.0]
    heard = Heard(60.0, lambda: now[0])
    heard.hear(0, "vectors/a", ended=False)
    heard.hear(1, "vectors/b", ended=False)
    now[0] = 59.0
    heard.hear(0, "vectors/c", ended=False)
    now[0] = 61.0
    with pytest.raises(SilentRank) as caught:
        heard.hear(0, "vectors/d", ended=False)
    assert (caught.value.rank, caught.value.step) == (1, "vectors/b")


def test_a_rank_that_ended_is_silent_for_good_reason() -> None:
    now = [0.0]
    heard = Heard(60.0, lambda: now[0])
    heard.hear(1, "", ended=True)
    now[0] = 1000.0
    heard.hear(0, "vectors/a", ended=False)
    assert heard.step_of(0) == "vectors/a"
    assert heard.step_of(2) == ""


# ---- counts


def screened(*names: str, count: int = 3, digest: str = "ab" * 32) -> list[Screened]:
    """Devices with 100 results of each probe."""
    devices = []
    for number in range(count):
        device = Screened(f"cuda:{number}", number)
        for name in names:
            device.tallies[name] = Tally()
            device.tallies[name].add(
                {"results": 100, "inputs": 50, "batches": 1, "scale": 2, "digest": digest}
            )
        devices.append(device)
    return devices


def of(devices: list[Screened], name: str, device: str) -> Any:
    (found,) = [
        each
        for each in results_of(devices, 20261201)
        if each.id == f"screen/{name}" and each.device == device
    ]
    return found


def test_counts_add_up_and_keep_few_readings() -> None:
    tally = Tally()
    for second in range(2000):
        reading = {"t_s": float(second), "power_w": 100.0}
        tally.add({"results": 4, "inputs": 2, "batches": 1, "telemetry": reading})
    assert (tally.results, tally.inputs, tally.batches) == (8000, 4000, 2000)
    assert 256 <= len(tally.readings) <= 512
    assert tally.readings[-1]["t_s"] == 1999.0
    assert tally.open


def test_readings_stand_next_to_what_was_judged() -> None:
    devices = screened("vectors/a", count=1)
    for second in range(3):
        devices[0].tallies["vectors/a"].add(
            {"telemetry": {"t_s": float(second), "power_w": 100.0 + second, "throttle_count": 5.0}}
        )
    assert of(devices, "vectors/a", "cuda:0").extra["telemetry"] == {
        "readings": 3,
        "power_w": {"min": 100.0, "median": 101.0, "max": 102.0},
        "throttle_count": 0.0,
    }
    curves = of(devices, "device", "cuda:0").extra["curves"]
    assert [(each["series"], each["x"]) for each in curves] == [
        ("power_w", [0.0, 1.0, 2.0]),
        ("throttle_count", [0.0, 1.0, 2.0]),
    ]


def test_a_digest_that_most_peers_do_not_have_is_that_device() -> None:
    devices = screened("repeated/a")
    devices[1].tallies["repeated/a"].digest = "cd" * 32
    wrong = of(devices, "digests", "cuda:1")
    assert (wrong.verdict, wrong.extra["wrong_value"]["cause"]) == (Verdict.FAIL, "device")
    assert action_of(wrong) is Action.ISOLATE
    for good in ("cuda:0", "cuda:2"):
        assert of(devices, "digests", good).verdict is Verdict.UNVERIFIED


def test_digests_of_all_peers_leave_nothing_unverified_where_none_is_published() -> None:
    devices = screened("copies/a", "memory/b", "collectives/c")
    # each rank of a collective has a part of its own
    devices[1].tallies["collectives/c"].digest = "cd" * 32
    found = of(devices, "digests", "cuda:1")
    assert found.verdict is Verdict.PASS
    assert found.reason == (
        "0 of 0 digests are the published ones, and 2 that have none are those of all peers"
    )
    assert set(found.extra["digests"]) == {"copies/a", "memory/b"}
    # of exact computing there should be one
    assert of(screened("products/a"), "digests", "cuda:1").verdict is Verdict.UNVERIFIED


def test_two_devices_that_differ_have_no_majority() -> None:
    devices = screened("repeated/a", count=2)
    devices[1].tallies["repeated/a"].digest = "cd" * 32
    for each in ("cuda:0", "cuda:1"):
        assert of(devices, "digests", each).verdict is Verdict.UNVERIFIED


def test_a_digest_that_all_lack_is_the_software(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "portagpu.suites.screen.judge.published_digests",
        lambda: Published(0, {"products/a": "ef" * 32}),
    )
    wrong = of(screened("products/a"), "digests", "cuda:1")
    assert (wrong.verdict, wrong.extra["wrong_value"]["cause"]) == (Verdict.FAIL, "software")
    assert action_of(wrong) is Action.NONE


# ---- errors of memory


def test_errors_of_memory_stand_next_to_the_verdict() -> None:
    before = {("0000:c1:00.0", "corrected"): 5, ("0000:c1:00.0", "uncorrected"): 0}
    same = errors_result(before, dict(before))
    assert (same.verdict, same.value) == (Verdict.PASS, 0)
    few = errors_result(before, {**before, ("0000:c1:00.0", "corrected"): 7})
    assert (few.verdict, few.value) == (Verdict.UNVERIFIED, 2)
    assert action_of(few) is Action.MONITOR
    assert "2 corrected on 0000:c1:00.0" in few.reason
    grave = errors_result(before, {**before, ("0000:c1:00.0", "uncorrected"): 1})
    assert (grave.verdict, action_of(grave)) == (Verdict.FAIL, Action.RESET)
    # a driver that was loaded again counts from 0
    again = errors_result(before, {**before, ("0000:c1:00.0", "corrected"): 1})
    assert again.value == 1
    nothing = errors_result({}, {})
    assert (nothing.verdict, nothing.value) == (Verdict.SKIP, None)


# ---- names


def test_patterns_name_probes_with_their_brackets() -> None:
    def names(*wanted: str) -> list[str]:
        return [each.name for each in selected_probes(ScreenOptions(probes=wanted))]

    everything = names()
    assert names("vectors/float32[add]") == ["vectors/float32[add]"]
    assert names("vectors/*[add]") == [
        each for each in everything if each.startswith("vectors/") and each.endswith("[add]")
    ]
    with pytest.raises(UnknownProbe, match=r"no probe 'vectors/float31\[add\]': did you mean"):
        names("vectors/float31[add]")


# ---- what a failure says


def failure(**fields: Any) -> dict[str, Any]:
    place = {"sentence": "one column: rows 0 to 7, column 3", "kinds": {"flipped": 8}}
    return {
        "batch": 0,
        "seed": 7,
        "scale": 1,
        "count": 8,
        "of": 256,
        "digest": "ab",
        "repeated": 100,
        "outcomes": 1,
        "repeated_wrong": 100,
        "where": place,
        **fields,
    }


def test_places_are_those_of_the_first_wrong_elements_where_there_are_more() -> None:
    devices = screened("vectors/a", count=1)
    devices[0].tallies["vectors/a"].failure = failure()
    assert "(seed 7, scale 1); one column" in of(devices, "vectors/a", "cuda:0").reason
    devices[0].tallies["vectors/a"].failure = failure(count=200)
    assert "200 of 256 results are wrong" in of(devices, "vectors/a", "cuda:0").reason
    assert "; the first 8: one column" in of(devices, "vectors/a", "cuda:0").reason


def test_rows_that_are_right_after_all_are_not_called_wrong_results() -> None:
    devices = screened("products/a", count=1)
    devices[0].tallies["products/a"].failure = failure(count=2, where=None)
    said = of(devices, "products/a", "cuda:0").reason
    assert "results are wrong" not in said
    assert "the device's integer check of 2 rows is wrong in batch 0" in said
    assert "the host finds the results of these rows right" in said


def test_digests_with_one_reason_are_named_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "portagpu.suites.screen.judge.published_digests",
        lambda: Published(0, {f"products/{each}": "ef" * 32 for each in "ab"}),
    )
    said = of(screened("products/a", "products/b", count=1), "digests", "cuda:0").reason
    assert said == (
        "wrong: 2 of 2 digests: products/a, products/b: "
        "device or software not separated: no peer did the same work"
    )


def test_a_device_that_compares_wrong_where_its_peers_do_not_is_to_blame() -> None:
    devices = screened("products/a", count=2)
    devices[1].tallies["products/a"].blind = True
    separate_blind(devices)
    wrong = of(devices, "products/a", "cuda:1")
    assert (wrong.verdict, wrong.extra["wrong_value"]["cause"]) == (Verdict.FAIL, "device")
    devices[0].tallies["products/a"].blind = True
    separate_blind(devices)
    wrong = of(devices, "products/a", "cuda:1")
    assert (wrong.verdict, wrong.extra["wrong_value"]["cause"]) == (Verdict.FAIL, "software")

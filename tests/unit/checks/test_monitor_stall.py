"""The rule for stalled jobs: published readings of stuck and working jobs, made-up series."""

from __future__ import annotations

import random

import pytest

from portagpu.checks.monitor.sample import AFTER_S, StallWatch

# (utilisation %, power W, power limit W, idle power W or None where the source has none)
STUCK = {
    # 4 nodes of 8 H100: "drops to approximately 100W/700W (500-690W is normal)", at 100 %
    "NVIDIA-NeMo/Speech#9291": (100, 100, 700, None),
    # V100 while the training is frozen
    "pytorch/pytorch#22671": (100, 66, 300, None),
    "open-mmlab/mmdetection#99": (100, 69, 300, None),
    # H100 in an allgather that hangs; the other three are at 129 to 137 W and 0 %
    "NVIDIA/nccl#1550": (100, 152, 700, 129),
}
WORKING = {
    # recorded outputs of the vendors' tools (docs/recordings.md)
    "L40S, nvidia-smi 595.80": (100, 242, 350, None),
    "rocm-smi, ROCm 5, first GPU": (100, 171, 300, None),
    "rocm-smi, ROCm 5, second GPU": (100, 179, 300, None),
    # MI355X at work, whose users took it for slow
    "ROCm#5891": (97, 530, 1400, None),
    # H100 training
    "NVIDIA-NeMo/Speech#9291, before": (100, 500, 700, 100),
}


def watch(*readings: tuple[float, float | None, float | None, float | None], **options: float):
    """What a new watch says to each (time, utilisation, power, limit)."""
    watching = StallWatch(**options)
    return [watching.look(*each) for each in readings]


def steady(busy: float, power: float, limit: float, idle: float | None, seconds: int = 300) -> bool:
    """Whether a device that shows the same for that long, once a second, is called stalled."""
    watching = StallWatch()
    if idle is not None:
        watching.look(-1, 0, idle, limit)
    return any(watching.look(at, busy, power, limit) for at in range(seconds))


@pytest.mark.parametrize("source", STUCK)
def test_a_published_stuck_job_is_found(source: str) -> None:
    assert steady(*STUCK[source])


@pytest.mark.parametrize("source", WORKING)
def test_a_published_working_job_is_not(source: str) -> None:
    assert not steady(*WORKING[source])


@pytest.mark.parametrize("index", range(4))
def test_a_recorded_series_that_works_raises_no_alarm(index: int) -> None:
    # SuperBench's published series (a limit of 250 W, utilisation 47 to 57 %) has no power draw:
    # nothing can be judged, and nothing is
    busy = (56, 57, 54, 49)[index]
    assert watch(*((at, busy, None, 250) for at in range(300))) == [None] * 300


def test_a_stall_begins_after_its_time_and_not_before() -> None:
    said = watch(*((at, 100, 80, 700) for at in range(200)))
    assert said.index(True) == AFTER_S
    assert all(said[int(AFTER_S) :])


def test_one_working_sample_starts_the_time_again() -> None:
    said = watch(*((at, 100, 400 if at == 100 else 80, 700) for at in range(300)))
    assert said.index(True) == 101 + AFTER_S


def test_a_stall_ends_after_ten_working_seconds_and_not_for_a_dip() -> None:
    power = [80] * 130 + [400] * 5 + [80] * 20 + [400] * 30
    said = watch(*((at, 100, watts, 700) for at, watts in enumerate(power)))
    assert said[120:165] == [True] * 45
    assert said[165:] == [False] * 20


def test_an_idle_device_is_never_stalled() -> None:
    assert not any(watch(*((at, 0, 70, 700) for at in range(600))))


def test_own_idle_power_moves_the_threshold() -> None:
    # of a device that idles at 140 W of 750 W, 180 W is nearly idle; unseen, 25 % are 187.5 W
    watching = StallWatch()
    assert watching.threshold_w(750) == 187.5
    watching.look(0, 0, 140, 750)
    watching.look(1, 2, 150, 750)
    assert watching.threshold_w(750) == pytest.approx(140 + 0.15 * 610)


def test_a_short_pause_of_a_job_is_not_its_idle_power() -> None:
    """Power is an average over a second: in the pause it is what the job drew before."""
    watching = StallWatch()
    watching.look(0, 0, 400, 700)
    for at in range(1, 400):
        assert watching.look(at, 100, 430, 700) is False


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_what_is_not_known_is_not_judged(missing: int) -> None:
    values: list[float | None] = [100, 80, 700]
    values[missing] = None
    assert watch(*((at, *values) for at in range(300))) == [None] * 300


def test_a_short_gap_changes_nothing_and_a_long_one_forgets() -> None:
    short = [at for at in range(200) if not 50 <= at < 75]
    said = watch(*((at, 100, 80, 700) for at in short))
    assert short[said.index(True)] == AFTER_S
    long = [at for at in range(300) if not 50 <= at < 100]
    said = watch(*((at, 100, 80, 700) for at in long))
    assert long[said.index(True)] == 100 + AFTER_S


def training(seed: int, limit: float, seconds: int = 600) -> list[tuple[int, float, float]]:
    """A made-up training of (s, %, W); no recorded series with power was available.

    Steps are at 55 to 95 % of the limit. Waits for input or other ranks take up to 60 s, busy at
    15 %, sometimes several in a row. Checkpoints are idle at 10 %.
    """
    rng = random.Random(seed)  # noqa: S311 - a series, no secret
    series: list[tuple[int, float, float]] = []
    while len(series) < seconds:
        kind = rng.choices(["steps", "wait", "checkpoint"], [8, 3, 1])[0]
        for _ in range(rng.randint(20, 90) if kind == "steps" else rng.randint(2, 60)):
            share = {"steps": rng.uniform(0.55, 0.95), "wait": 0.15, "checkpoint": 0.1}[kind]
            busy = {"steps": rng.uniform(92, 100), "wait": 100, "checkpoint": 0}[kind]
            series.append((len(series), busy, (share + rng.uniform(-0.02, 0.02)) * limit))
    return series[:seconds]


def longest_wait(series: list[tuple[int, float, float]]) -> int:
    """Seconds."""
    longest = now = 0
    for _, busy, power in series:
        now = now + 1 if busy == 100 and power < 200 else 0
        longest = max(longest, now)
    return longest


def test_made_up_trainings_alarm_only_for_long_waits_and_every_hang_is_found() -> None:
    alarms, long_waits, found = [], [], 0
    for seed in range(100):
        series = training(seed, 700)
        watching = StallWatch()
        if any([watching.look(*each, 700) for each in series]):  # noqa: C419 - all are to be looked at
            alarms.append(seed)
        if longest_wait(series) > AFTER_S:
            long_waits.append(seed)
        found += any([watching.look(600 + at, 100, 100, 700) for at in range(180)])  # noqa: C419
    assert alarms == long_waits
    assert (len(alarms), found) == (1, 100), "docs/monitor.md states these"

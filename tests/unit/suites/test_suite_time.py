"""Cases about time: on a busy machine what does not hold is not judged, and waits do not count."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from portagpu.base.patience import Starvation
from portagpu.suites.conformance import NotHere
from portagpu.suites.conformance.cases import RankFailed
from portagpu.suites.conformance.ranks import check_in_time, time_limited

QUIET = asdict(Starvation(wall_s=5.0, waited_s=0.05, load=1.5, cpus=2))
BUSY = asdict(Starvation(wall_s=8.0, waited_s=4.5, load=31.2, cpus=2))
AT_ONCE = asdict(Starvation(wall_s=0.02, waited_s=0.01, load=2.7, cpus=2))


@pytest.mark.parametrize("spent", [[QUIET], [], [QUIET, AT_ONCE]])
def test_what_does_not_hold_on_a_quiet_machine_fails(spent) -> None:
    with pytest.raises(AssertionError, match=r"^rank 1 reports that"), time_limited(spent):
        raise AssertionError("rank 1 reports that [1, 2] are lost")


def test_what_does_not_hold_on_a_busy_machine_is_not_judged() -> None:
    with pytest.raises(NotHere) as raised, time_limited([QUIET, BUSY]):
        raise AssertionError("rank 1 reports that [1, 2] are lost")
    assert str(raised.value) == (
        "rank 1 reports that [1, 2] are lost on a busy machine (load 31.2 on 2 CPUs; waited 56 % "
        "of the last 8 s for a CPU): run it again on a quiet machine"
    )


def test_what_holds_on_a_busy_machine_passes() -> None:
    with time_limited([BUSY]):
        # 8 s less 4.5 s of waiting
        check_in_time(BUSY, 4.0, "rank 1 waited")


def test_what_is_late_without_waiting_for_a_cpu_is_a_hang_and_no_wrong_value() -> None:
    with pytest.raises(RankFailed) as raised, time_limited([QUIET]):
        check_in_time(QUIET, 4.0, "rank 1 waited")
    assert str(raised.value) == "rank 1 waited 5.0 s, the bound is 4 s"
    assert raised.value.kind == "hung"

"""What is tuned, and the profile of what was measured, without ranks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
from portagpu.base.documents import encode
from portagpu.devices.collectives.algorithms import WAYS
from portagpu.devices.collectives.tuning import Candidate, Point
from portagpu.runs.results.run import Result, Run, new_run
from portagpu.runs.results.verdicts import Verdict
from portagpu.suites.collectives import tune_ranks
from portagpu.suites.collectives.tune import ID, TuneOptions, profile_of
from portagpu.suites.collectives.verify import WrongOptions

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    "wrong",
    [
        {"operations": ("sendrecv",)},
        {"dtypes": ("fp32",)},
        {"worlds": (1,)},
        {"sizes": (0,)},
    ],
)
def test_unknown_options_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(WrongOptions):
        TuneOptions(**wrong)


def test_points_are_whole_elements_for_each_rank_and_none_comes_twice() -> None:
    options = TuneOptions(sizes=(4096, 1000, 1001, 3), dtypes=("float32", "float64"))
    assert options.points("all_reduce", 3) == [
        *(("float32", 1000), ("float32", 4096)),
        *(("float64", 1000), ("float64", 4096)),
    ]
    # all_gather shares out: 3 ranks of 4 or 8 bytes
    assert options.points("all_gather", 3) == [
        *(("float32", 996), ("float32", 4092)),
        *(("float64", 984), ("float64", 4080)),
    ]
    assert TuneOptions(sizes=(3,)).points("all_reduce", 2) == []


DEVICE = {
    "name": "cpu", "arch": "x86-64", "product": "a CPU", "units": 2, "shared": True,
    "comm": "gloo", "comm_version": None,
}  # fmt: skip


def measured(size: int, way: str = "call", verdict: Verdict = Verdict.PASS) -> Result:
    """Of 2 ranks: the default takes 100 us, and another way a quarter of it."""
    chosen_us = 100.0 if way == "call" else 25.0
    point = Point(
        size_bytes=size, default_us=100.0, chosen_us=chosen_us, ratio=100.0 / chosen_us,
        spread=0.0, pairs=0 if way == "call" else 12, refuted="",
    )  # fmt: skip
    candidate = Candidate(name=way, way=way)
    extra = {"chosen": encode(candidate), "point": encode(point)}
    return Result(
        id=f"{ID}/all_reduce/float32/{size}[2]",
        suite="collectives",
        area="collectives",
        verdict=verdict,
        reason="" if verdict is Verdict.PASS else "3 elements are wrong",
        shape={"operation": "all_reduce", "dtype": "float32", "ranks": 2},
        extra={**extra, "default_us": [100.0] * 3, "chosen_us": [chosen_us] * 3},
    )


def finished(*results: Result, interrupted: bool = False) -> Run:
    run = new_run(backend="cpu", versions={"torch": "2.13", "portagpu": "1"}, devices=[DEVICE])
    for each in results:
        run.add(each)
    return run.finish(interrupted=interrupted)


def test_a_profile_has_a_range_for_each_choice() -> None:
    found = profile_of(finished(measured(1024), measured(4096, "flat"), measured(65536, "flat")))
    (entry,) = found.entries
    assert (entry.operation, entry.dtype, entry.ranks, entry.nodes) == (
        *("all_reduce", "float32"),
        *(2, 1),
    )
    ways = [(each.candidate.way, [p.size_bytes for p in each.points]) for each in entry.ranges]
    assert ways == [("call", [1024]), ("flat", [4096, 65536])]
    assert (found.machine.product, found.machine.units) == ("a CPU", 2)
    assert (found.stack.library, found.stack.torch, found.portagpu) == ("gloo", "2.13", "1")


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (lambda: finished(measured(1024), interrupted=True), "the run was interrupted"),
        (lambda: finished(measured(1024, verdict=Verdict.FAIL)), r"1024\[2\] is FAIL"),
        (finished, "nothing was measured"),
    ],
)
def test_a_run_that_shows_nothing_makes_no_profile(run: Any, words: str) -> None:
    with pytest.raises(ValueError, match=f"no profile: .*{words}"):
        profile_of(run())


def test_the_larger_buffer_of_every_operation_has_the_size_of_its_point() -> None:
    """Sizes are counted as nccl-tests counts them: what all ranks have together, on this one."""
    for operation in WAYS:
        for dtype in ("float32", "bfloat16"):
            rank: Any = SimpleNamespace(rank=1, world=4, gpu=SimpleNamespace(device="cpu"))
            found = tune_ranks._exchange(rank, operation, dtype, 4096)
            largest = max(found.sent.nbytes, found.received.nbytes)
            assert (largest, str(found.sent.dtype)) == (4096, f"torch.{dtype}"), operation

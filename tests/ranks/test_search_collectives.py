"""The area of collectives: its model by hand, right devices, and faults by their sentences."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parents[2]))

from portagpu.devices.collectives.comm import Comm
from portagpu.suites.search.area import load_area
from portagpu.suites.search.collectives import model
from portagpu.suites.search.collectives.area import RankDidNotAnswer, difference
from portagpu.suites.search.collectives.calls import CALLS, CLAIMED, HELPERS, is_claimed
from portagpu.suites.search.collectives.values import SIZE, addends, bits, wrapped
from tests.support.faults import faults_of

if TYPE_CHECKING:
    from portagpu.runs.world import Rank, Ranks

HERE = str(Path(__file__))
LIMIT_S = 60.0


def run(ranks: Ranks, function: str, world: int, **arguments: Any) -> Any:
    """What that function of this file returned on rank 0."""
    outcome = ranks.run(
        f"{HERE}:{function}",
        world,
        arguments=arguments,
        backend="cpu",
        group=True,
        timeout_s=LIMIT_S,
    )
    return outcome.values[0]


# the model, by hand


def exchange(rows: list[list[list[Any]]], **given: Any) -> model.Exchange:
    counts = [[len(part) for part in row] for row in rows]
    return model.Exchange(rows, counts, range(len(rows)), **given)


def after(contents: list[model.Content]) -> list[list[Any]]:
    """The parts of each buffer after the call."""
    return [[part.pattern for part in each.after] for each in contents]


@pytest.mark.parametrize(
    ("op", "dtype", "rows", "expected"),
    [
        ("SUM", "int8", [[100], [100], [127]], 71),
        ("SUM", "uint8", [[200], [100]], 44),
        ("PRODUCT", "int8", [[16], [16], [3]], 0),
        ("SUM", "int64", [[2**63 - 1], [1]], -(2**63)),
        ("BXOR", "int32", [[6], [3]], 5),
        ("BAND", "int32", [[-1], [12]], 12),
        ("BOR", "int16", [[-8], [3]], -5),
        ("AVG", "int32", [[6], [-2]], 2),
        ("MAX", "int8", [[-128], [127], [0]], 127),
        ("MIN", "float32", [[math.inf], [2.0], [-3.0]], -3.0),
        ("AVG", "float32", [[4.0], [8.0]], 6.0),
        ("PRODUCT", "bfloat16", [[1.5], [-2.0]], -3.0),
        ("SUM", "float32", [[math.inf], [1.0]], math.inf),
        ("MAX", "bool", [[0], [1]], 1),
        ("SUM", "complex64", [[1 + 2j], [3 - 5j]], 4 - 3j),
    ],
)
def test_a_reduction_by_hand(op: str, dtype: str, rows: Any, expected: Any) -> None:
    found, bounds = model.reduced(model.Sum(op, dtype, range(len(rows))), rows)
    assert found == [expected]
    assert bounds is None


def test_signs_of_zero_and_nan_by_hand() -> None:
    def reduced(op: str, *numbers: float) -> float:
        rows = [[each] for each in numbers]
        return model.reduced(model.Sum(op, "float32", range(len(rows))), rows)[0][0]  # type: ignore[return-value]

    assert math.copysign(1, reduced("SUM", -0.0, -0.0)) == -1
    assert math.copysign(1, reduced("SUM", -0.0, 0.0)) == 1
    assert math.isnan(reduced("SUM", math.inf, -math.inf))
    assert math.isnan(reduced("PRODUCT", 2.0, math.nan))
    assert math.isnan(reduced("MAX", math.nan, 1.0))
    assert math.copysign(1, reduced("MIN", 0.0, -0.0)) == -1


def test_the_bound_of_a_rounded_sum_by_hand() -> None:
    # 2^24 + 1 has no float32. Two ranks: k = 2 roundings of u = 2^-24, magnitude 2^24 + 1
    rows: Any = [[2.0**24], [1.0]]
    found, bounds = model.reduced(model.Sum("SUM", "float32", (0, 1)), rows)
    k_u = 2 * 2.0**-24
    assert found == [2.0**24 + 1]
    assert bounds == [pytest.approx(k_u / (1 - k_u) * (2.0**24 + 1), rel=1e-8)]
    # an average of three is a division that may round, or a product with 1 / 3
    _, thirds = model.reduced(model.Sum("AVG", "float32", (0, 1, 2)), [[3.0], [3.0], [3.0]])
    assert thirds == [pytest.approx(4 * 2.0**-24 * 3.0, rel=1e-6)]
    assert model.reduced(model.Sum("AVG", "float32", (0, 1)), [[3.0], [5.0]])[1] is None


def test_the_wider_sum_rounds_once() -> None:
    rows: Any = [[1.0], [2.0**-9]]
    own = model.reduced(model.Sum("SUM", "bfloat16", (0, 1)), rows)[1]
    wider = model.reduced(model.Sum("SUM", "bfloat16", (0, 1), "wider"), rows)[1]
    assert own is not None
    assert wider is not None
    assert wider[0] == pytest.approx(2.0**-8, rel=1e-2)
    assert own[0] == pytest.approx(2 * 2.0**-8, rel=2e-2)


def test_who_has_what_after_a_call() -> None:
    e = exchange([[[1]], [[2]], [[3]]], root=1)
    assert after(model.broadcast(e, 0)) == [[[2]]]
    assert after(model.all_gather(e, 0)) == [[[1]], [[1]], [[2]], [[3]]]
    assert after(model.all_gather_single(e, 2)) == [[[3]], [[1], [2], [3]]]
    assert after(model.gather(e, 1)) == [[[2]], [[1]], [[2]], [[3]]]
    assert after(model.gather(e, 0)) == [[[1]]]
    in_place = exchange([[[1]], [[2]], [[3]]], root=1, in_place=True)
    assert after(model.gather(in_place, 1)) == [[[1]], [[2]], [[3]]]
    assert [each.before for each in model.gather(in_place, 1)][1][0].pattern == [2]
    assert after(model.message(e, 2)) == [[[2]]]
    assert after(model.ring(e, 0)) == [[[1]], [[3]]]


def test_who_has_what_of_parts() -> None:
    rows = [[[1], [2]], [[30], [40]]]
    e = exchange(rows, root=1)
    assert after(model.scatter(e, 0)) == [[[30]]]
    assert after(model.scatter(e, 1)) == [[[40]], [[30]], [[40]]]
    assert after(model.all_to_all(e, 1)) == [[[30]], [[40]], [[2]], [[40]]]
    assert after(model.all_to_all_single(e, 0)) == [[[1], [2]], [[1], [30]]]
    e = exchange(rows, kind=model.Sum("SUM", "int32", (0, 1)), in_place=True)
    assert after(model.reduce_scatter(e, 1)) == [[[42]], [[30]], [[40]]]
    assert after(model.reduce_scatter_single(e, 0)) == [[[31], None]]
    assert after(model.reduce_to(exchange([[[1]], [[2]]], kind=e.kind, root=1), 0)) == [[None]]
    assert after(model.reduce_to(exchange([[[1]], [[2]]], kind=e.kind, root=1), 1)) == [[[3]]]


def test_values_are_of_their_format() -> None:
    assert wrapped(128, "int8") == -128
    assert wrapped(-1, "uint8") == 255
    assert bits("int32", 5, 4, 1, 9) == bits("int32", 5, 4, 1, 9) != bits("int32", 6, 4, 1, 9)
    # -0.0 and an infinity of float16 are among what is moved
    moved = {each for seed in range(40) for each in bits("float16", seed, 1, 1, 9)[0][0]}
    assert {0x7C00, -(2**15), 0, -1} <= moved
    for values in ("small", "exact", "random", "extreme", "special"):
        for op in ("SUM", "AVG", "PRODUCT"):
            for row in addends(values, op, "bfloat16", 3, 3, 1, 31):
                # eight bits of significand: nothing is left below them
                finite = [each for each in row[0] if math.isfinite(float(each))]  # type: ignore[arg-type]
                assert all(float(math.frexp(each)[0] * 256).is_integer() for each in finite)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "float8_e4m3fn", "float8_e4m3fnuz"])
@pytest.mark.parametrize("op", ["SUM", "AVG"])
def test_formats_that_libraries_often_refuse_are_judged(dtype: str, op: str) -> None:
    torch = pytest.importorskip("torch")
    from portagpu.suites.search.collectives.buffers import Buffer

    for n in (2, 4, 8):
        x = addends("random", op, dtype, 5, n, 1, 7)
        e = model.Exchange(x, [[7]] * n, range(n), kind=model.Sum(op, dtype, range(n)))
        (content,) = model.all_reduce(e, 1)
        buffer = Buffer(content, dtype, torch.device("cpu"), moved=False)
        assert "what was there before the call" in buffer.difference()
        numbers = torch.tensor(content.after[0].pattern, dtype=torch.float64)
        buffer.tensor.copy_(numbers.to(getattr(torch, dtype)))
        assert buffer.difference() == "", f"{op} of {n} {dtype} is not exact"


def test_ranks_agree_on_the_bits_of_what_is_rounded() -> None:
    torch = pytest.importorskip("torch")
    from portagpu.suites.search.collectives.buffers import Buffer

    rows: Any = [[[1.0, math.nan]], [[2.0**-24, 1.0]]]
    e = exchange(rows, kind=model.Sum("SUM", "float32", (0, 1)))
    (content,) = model.all_reduce(e, 0)
    digests = []
    for number in (1.0, 1.0 + 2.0**-23, 1.0):
        buffer = Buffer(content, "float32", torch.device("cpu"), moved=False)
        buffer.tensor.copy_(torch.tensor([number, math.nan]))
        assert buffer.difference() == ""
        digests.append(buffer.digest())
    assert digests[0] == digests[2] != digests[1]


def test_a_result_that_is_as_it_was_is_not_an_input() -> None:
    torch = pytest.importorskip("torch")
    from portagpu.suites.search.collectives.buffers import Buffer

    e = exchange([[[5]], [[3]]], kind=model.Sum("MAX", "int32", (0, 1)))
    (content,) = model.all_reduce(e, 0)
    buffer = Buffer(content, "int32", torch.device("cpu"), moved=False)
    buffer.tensor.fill_(3)
    reported = "got 3 at element 0 of 1 in the result, not 5, which is the input of rank 1 alone"
    assert buffer.difference() == reported
    buffer.tensor = buffer.tensor.reshape(1, 1)
    assert buffer.difference() == "got [1, 1] as the shape of the result"


def test_what_a_library_may_refuse() -> None:
    comm = Comm("gloo", "Gloo", None, "cpu", frozenset({"SUM", "MAX"}))
    claimed = {"shape": "flat", "in_place": False}
    assert is_claimed(comm, "all_reduce", "float16", "SUM", **claimed)  # type: ignore[arg-type]
    assert not is_claimed(comm, "all_reduce", "float16", "AVG", **claimed)  # type: ignore[arg-type]
    assert not is_claimed(comm, "broadcast", "int16", "", **claimed)  # type: ignore[arg-type]
    assert is_claimed(comm, "broadcast_bytes", "int16", "", **claimed)  # type: ignore[arg-type]
    assert not is_claimed(comm, "broadcast", "float32", "", shape="transposed", in_place=False)


# programs


@cache
def drawn_programs(count: int = 300) -> list[Any]:
    """The first programs of seed 5."""
    from hypothesis import given, seed

    import portagpu
    from portagpu.suites.search.worker import SETTINGS, settings

    found = []

    @settings(SETTINGS, max_examples=count)
    @seed(5)
    @given(load_area("collectives-4").programs(portagpu.backend("cpu")))
    def each(program: Any) -> None:
        found.append(program)

    each()
    return found


def test_programs_are_long_and_not_copies_of_one_another() -> None:
    programs = drawn_programs()
    assert all(programs)
    calls = [json.dumps(each) for program in programs for each in program if "n" in each[1]]
    assert len(calls) > 5 * len(programs)
    assert len(set(calls)) > 0.95 * len(calls)
    default = [
        each for program in programs for each in program if each[1].get("group") == "default"
    ]
    assert len(default) > 0.05 * len(calls)


def test_programs_have_each_call_of_each_dtype_that_is_claimed() -> None:
    calls = [each for program in drawn_programs() for each in program]
    assert {name for name, _ in calls} >= set(CALLS)
    plain = set(CALLS) - HELPERS
    pairs = {(name, given["dtype"]) for name, given in calls if name in plain}
    wanted = {(name, dtype) for name in plain for dtype in CLAIMED}
    assert len(wanted - pairs) <= 0.02 * len(wanted)


@pytest.mark.parametrize("name", ["all_gather", "reduce_scatter_tensor", "scatter", "all_reduce"])
def test_a_part_of_a_rank_has_more_than_64_kib(name: str) -> None:
    bytes_of = [
        given["n"] * SIZE[given["dtype"]]
        for program in drawn_programs()
        for called, given in program
        if called == name
    ]
    assert max(bytes_of) > 65_536


# reports of ranks


def report(**given: Any) -> dict[str, Any]:
    found = {
        "labels": {"0": "broadcast of 3 int8", "1": "barrier"},
        "wrong": None,
        "raised": None,
        "refused": [],
        "members": [0, 1],
        "barriers": {},
        "rounded": {},
    }
    return found | given


@pytest.mark.parametrize(
    ("one", "other", "sentence"),
    [
        ({}, {}, ""),
        ({"refused": [0]}, {"refused": [0]}, ""),
        (
            {"refused": [0]},
            {},
            "broadcast of 3 int8: rank 0 refused what rank 1 took",
        ),
        (
            {"raised": (1, "RuntimeError: Connection closed", True)},
            {"wrong": (0, "got 1")},
            "broadcast of 3 int8: rank 1 got 1",
        ),
        (
            {"raised": (1, "RuntimeError: Timed out", True)},
            {},
            "barrier: rank 0 waited in vain, while rank 1 went on: RuntimeError: Timed out",
        ),
        (
            {"barriers": {"1": (1.0, 2.0)}},
            {"barriers": {"1": (3.0, 4.0)}},
            "barrier: rank 0 left the barrier before rank 1 came to it",
        ),
        ({"rounded": {"0 5": "aa", "0 6": "ab"}}, {"rounded": {"0 6": "ab", "0 5": "aa"}}, ""),
        (
            {"rounded": {"0 5": "aa"}},
            {"rounded": {"0 5": "ab"}},
            "broadcast of 3 int8: rank 1 got other bits than rank 0",
        ),
    ],
)
def test_the_reports_of_two_ranks(one: Any, other: Any, sentence: str) -> None:
    assert difference({0: report(**one), 1: report(**other)}) == sentence


# ranks


def right_programs(rank: Rank, number: int, count: int) -> list[str] | None:
    """The differences of that many programs, which rank 0 draws."""
    from hypothesis import given, seed

    from portagpu.suites.search.worker import SETTINGS, settings

    area = load_area("collectives-4")
    if rank.rank:
        area.follow(rank)
        return None
    found = []

    @settings(SETTINGS, max_examples=count)
    @seed(number)
    @given(area.programs(rank.gpu))
    def each(program: Any) -> None:
        found.append(area.difference(rank, program))

    each()
    area.end(rank)
    return found


def repetitions_in_another_order(rank: Rank) -> str | None:
    """Rank 0 waits for the first of two sums first, the others, in a message too, for the second.

    Sums of three numbers of eight significant bits are rounded.
    """
    area = load_area("collectives-3")
    if rank.rank:
        area.follow(rank)
        return None
    sums = {"dtype": "bfloat16", "n": 31, "how": "later", "times": 2, "values": "random"}
    program = [
        ("message", call("message", group="tail", how="later")[1]),
        ("all_reduce", call("all_reduce", **sums)[1]),
        ("wait", {"which": "first"}),
    ]
    found = area.difference(rank, program)
    area.end(rank)
    return found


def test_ranks_may_wait_for_repetitions_in_another_order(search_ranks: Ranks) -> None:
    assert run(search_ranks, "repetitions_in_another_order", 3) == ""


def rounded_results(rank: Rank) -> dict[str, str]:
    """What a rank reports of rounded sums, by the number of the call and its seed."""
    from portagpu.suites.search.collectives.runner import Runner, make_groups

    floats = {"dtype": "bfloat16", "n": 31, "values": "random"}
    program = [("all_reduce", floats), ("reduce", floats), ("all_reduce", {"values": "random"})]
    calls = [(name, call(name, **given)[1]) for name, given in program]
    return Runner(rank, make_groups(rank, LIMIT_S)).run(calls).rounded


def test_ranks_report_the_bits_of_rounded_sums_that_all_of_them_get(search_ranks: Ranks) -> None:
    """Of a reduction to one rank the others have nothing, and whole numbers are not rounded."""
    outcome = search_ranks.run(
        f"{HERE}:rounded_results", 3, backend="cpu", group=True, timeout_s=LIMIT_S
    )
    one, *others = outcome.values
    assert list(one) == ["0 3"]
    assert others == [one, one]


def faulty_programs(rank: Rank, cases: list[Any]) -> list[str] | None:
    """The difference of each program while its fault is installed."""
    area = load_area("collectives-4")
    every = {each.name: each for each in faults_of("collectives")}
    found = []
    for fault, program in cases:
        with every[fault].apply():
            if rank.rank:
                area.follow(rank)
            else:
                found.append(area.difference(rank, program))
                area.end(rank)
    return found


def call(name: str, **given: Any) -> list[Any]:
    usual = {"group": "same", "n": 12, "dtype": "int32", "seed": 3, "shape": "rows"}
    return [name, usual | given]


def without_a_call(rank: Rank) -> list[str] | None:
    """Rank 1 leaves out a call: the others wait, and go on with nothing else."""
    import torch.distributed as dist

    from portagpu.suites.search.collectives import area as module

    module.LIMITS = replace(module.LIMITS, group_s=1.0)  # type: ignore[misc, attr-defined]
    area = load_area("collectives-4")
    if rank.rank:
        dist.all_reduce = lambda *given, **named: None
        area.follow(rank)
        return None
    program = [("all_reduce", call("all_reduce")[1])]
    found = [
        area.difference(rank, program),
        area.difference(rank, [("describe", {"group": "one"})]),
    ]
    found.append(area.difference(rank, program))
    area.end(rank)
    return found


def test_a_rank_that_leaves_out_a_call_is_reported(search_ranks: Ranks) -> None:
    first, other, again = run(search_ranks, "without_a_call", 2)
    assert "all_reduce SUM of 12 int32 on ranks 0, 1: rank 1 got" in first
    assert again == first
    assert other == ""


def silent_rank(rank: Rank) -> str | None:
    """Rank 1 never answers."""
    import time

    from portagpu.suites.search.collectives import area as channel

    channel.LIMITS = replace(channel.LIMITS, answer_s=0.3)  # type: ignore[misc, attr-defined]
    if rank.rank:
        link = channel.follow(rank, 0)
        time.sleep(1)  # allowed: it answers never
        link.close()
        return None
    leader = channel.Leader.meet(rank, 0)
    leader.send([])
    try:
        leader.answers(0.1, lambda: None)
    except RankDidNotAnswer as error:
        return str(error)
    finally:
        leader.close()
    return ""


def test_a_silent_rank_is_named(search_ranks: Ranks) -> None:
    assert run(search_ranks, "silent_rank", 2) == "rank 1 did not answer within 0.3 s"

"""Top-k compression with error feedback: worked examples, books that balance, convergence."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from portagpu.devices.collectives.compression import TopK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from portagpu.runs.world import Ranks


def values(ranks: Ranks, function: str, world: int = 2, **options: Any) -> list[Any]:
    done = ranks.run(
        f"tests.support.helper_ranks:{function}",
        world,
        arguments=options,
        backend="cpu",
        timeout_s=90.0,
    )
    assert done.ok, done.sentence
    return done.values


def words(*numbers: float) -> list[str]:
    return [str(float(each)) for each in numbers]


SAME = [[-5.0, -2.0, 1.0, 4.0], [2.0, 5.0, -3.0, 0.0]]


def test_two_steps_of_two_ranks_are_as_worked_out_by_hand(training_ranks: Ranks) -> None:
    """In the second step 4 and -4 of rank 0 are equal: the first of them is sent."""
    found = values(training_ranks, "one_parameter", gradients=[SAME, SAME], density=0.5)
    averages = [words(-2.5, 2.5, -1.5, 2.0), words(-0.5, 0.5, 0, 0)]
    kept = [
        [words(0, -2, 1, 0), words(0, 0, 2, 4)],
        [words(2, 0, 0, 0), words(0, 0, -3, 0)],
    ]
    assert found == [list(map(list, zip(averages, kept[rank], strict=True))) for rank in range(2)]


def test_equal_magnitudes_are_sent_in_the_order_of_memory(training_ranks: Ranks) -> None:
    ties = [[[1.0, -1.0] * 50] * 2]
    for ((average, kept),) in values(training_ranks, "one_parameter", gradients=ties, density=0.3):
        assert average == words(*[1, -1] * 15, *[0] * 70)
        assert kept == words(*[0] * 30, *[1, -1] * 35)


def test_a_gradient_of_zeros_and_one_element_are_harmless(training_ranks: Ranks) -> None:
    for ((average, kept),) in values(
        training_ranks, "one_parameter", gradients=[[[0.0] * 5] * 2], density=0.2
    ):
        assert (average, kept) == (words(0, 0, 0, 0, 0), words(0, 0, 0, 0, 0))
    for ((average, _),) in values(
        training_ranks, "one_parameter", gradients=[[[3.0], [5.0]]], density=1e-9
    ):
        assert average == words(4)


def test_what_is_not_finite_is_sent_first_and_not_kept(training_ranks: Ranks) -> None:
    """With one element of four sent: NaN goes, infinity and numbers next to it stay."""
    wild = [[9.0, math.nan, math.inf, 1.0], [9.0, 1.0, 1.0, 1.0]]
    tame = [[0.0, 0.0, 0.0, 2.0], [0.0, 0.0, 0.0, 0.0]]
    found = values(training_ranks, "one_parameter", gradients=[wild, tame], density=0.25)
    assert [each[0][0] for each in found] == [["4.5", "nan", "0.0", "0.0"]] * 2
    assert found[0][0][1] == words(9, 0, 0, 1)
    # 9 of rank 0, and one of the ones of rank 1
    assert [each[1][0] for each in found] == [words(4.5, 0.5, 0, 0)] * 2


def test_sixteen_bits_keep_what_rounding_leaves_over(training_ranks: Ranks) -> None:
    """257 is not a bfloat16: 256 is sent, and the 1 stays for the next step."""
    gradients = [[[2.0, 1.0], [0.0, 0.0]], [[0.0, 256.0], [0.0, 0.0]]]
    first, second = values(
        training_ranks, "one_parameter", gradients=gradients, density=0.5, dtype="bfloat16"
    )[0]
    assert first == [words(1, 0), words(0, 1)]
    assert second == [words(0, 128), words(0, 1)]


# ---- nothing is lost, whatever the buckets


def _balance(found: Sequence[dict[str, Any]]) -> list[float]:
    """Of each parameter: what all ranks had, less what they keep and what was applied."""
    off = []
    for place in range(len(found[0]["had"])):
        rows = zip(
            *[each["had"][place] for each in found],
            *[each["kept"][place] for each in found],
            found[0]["applied"][place],
            strict=True,
        )
        count = len(found)
        off.append(
            max(
                abs(sum(row[:count]) - sum(row[count : 2 * count]) - count * row[-1])
                for row in rows
            )
        )
    return off


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("density", [0.05, 0.3, 1.0])
def test_what_was_sent_and_what_is_kept_are_the_gradients(
    training_ranks: Ranks, dtype: str, density: float
) -> None:
    """All are whole numbers, so that each sum is exact; buckets change after the first step."""
    found = values(training_ranks, "books", density=density, steps=6, dtype=dtype)
    assert found[0]["applied"] == found[1]["applied"], "the ranks differ"
    assert _balance(found) == [0.0] * 4
    assert any(any(each) for each in found[0]["had"])
    kept = sum(abs(number) for each in found[0]["kept"] for number in each)
    assert (kept == 0) is (density == 1.0)
    first = found[0]["buckets"][:2]
    assert found[0]["buckets"].count(first[0]) < 6, "DDP made no other buckets: nothing was shown"


@pytest.mark.parametrize("twice", [0, 1])
def test_what_is_kept_of_a_parameter_that_no_rank_uses_stays(
    training_ranks: Ranks, twice: int
) -> None:
    """DDP throws away the average of what no rank used in the step."""
    steps = [["ab", "ab"], ["a", "a"], ["ab", "a"], ["b", "b"], ["a", "b"], ["a", "a"]]
    found = values(training_ranks, "unused", steps=steps, twice=twice)
    for (had, given, keeps), (others_had, others_given, others_keep) in zip(*found, strict=True):
        assert given == others_given
        rows = zip(had, others_had, keeps, others_keep, given, strict=True)
        assert [a + b - c - d - 2 * e for a, b, c, d, e in rows] == [0.0] * 6
    assert any(found[0][1][2]), "nothing was kept: nothing was shown"
    assert found[0][2] == [[0.0] * 6] * 3


@pytest.mark.parametrize("fault", ["dropped", "unsent"])
def test_a_fault_unbalances_the_books(training_ranks: Ranks, fault: str) -> None:
    found = values(training_ranks, "books", density=0.3, steps=6, dtype="float64", fault=fault)
    assert max(_balance(found)) > 0


def test_what_is_kept_by_bucket_does_not_survive_the_first_step(training_ranks: Ranks) -> None:
    options = {"density": 0.3, "steps": 6, "dtype": "float64", "fault": "by bucket"}
    done = training_ranks.run(
        "tests.support.helper_ranks:books", 2, arguments=options, backend="cpu", timeout_s=60.0
    )
    assert not done.ok


# ---- convergence


@pytest.fixture(scope="module")
def plain(training_server: Ranks) -> list[float]:
    """The losses of DDP without compression, in float64."""
    (losses, _), (others, _) = values(training_server, "trains", density=0, steps=120)
    assert losses == others
    return losses


def test_everything_sent_is_plain_ddp(training_ranks: Ranks, plain: list[float]) -> None:
    (losses, _), _ = values(training_ranks, "trains", density=1.0, steps=30)
    assert losses == pytest.approx(plain[:3], rel=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_all_ranks_have_the_same_bits(training_ranks: Ranks, dtype: str) -> None:
    found = values(training_ranks, "trains", 4, density=0.1, steps=20, dtype=dtype, bits_only=True)
    assert all(each[1] == found[0][1] for each in found)


def test_a_state_that_was_saved_goes_on_as_it_was(training_ranks: Ranks) -> None:
    usual = values(training_ranks, "trains", density=0.05, steps=20)
    assert values(training_ranks, "trains", density=0.05, steps=20, resume=True) == usual


# ---- wrong use


@pytest.mark.parametrize("density", [0, -0.5, 1.5, math.nan, math.inf, "x", True])
def test_a_wrong_density_is_refused(density: Any) -> None:
    with pytest.raises(ValueError, match="density is the share of elements to send, above 0"):
        TopK(torch.nn.Linear(2, 2), density)


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({}, "no tensors in 'kept'"),
        ([], "no tensors in 'kept'"),
        ({"kept": [1]}, "no tensors in 'kept'"),
        ({"kept": {"bias": [0.0, 0.0]}}, "no tensors in 'kept'"),
        ({"kept": {"x": torch.zeros(1)}}, "has a parameter 'x', and the model has none"),
        ({"kept": {"bias": torch.zeros(3)}}, "has 3 elements of 'bias', and the model has 2"),
    ],
)
def test_a_state_of_another_model_is_refused_and_changes_nothing(
    state: dict[str, Any], said: str
) -> None:
    model = torch.nn.Linear(2, 2)
    own = TopK(model, 0.5)
    own.kept(model.bias).fill_(7.0)
    with pytest.raises(ValueError, match=said):
        own.load_state_dict(state)
    assert own.state_dict()["kept"]["bias"].tolist() == [7.0, 7.0]


def test_another_model_or_density_is_reported(training_ranks: Ranks) -> None:
    for model, density in values(training_ranks, "strange_uses"):
        assert "DDP reduces a parameter that is not of the model that TopK was given" in model
        assert "the ranks give TopK different densities: [0.25, 0.5]" in density

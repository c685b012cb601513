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

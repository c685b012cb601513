"""A training loop that looks for silent corruption names the rank, on every rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import portagpu
from portagpu.train.exact.probes import PROBES
from portagpu.train.exact.products import KINDS
from portagpu.train.exact.training import TrainingScreen, _is_short, parameter_digest
from tests.support.exact_ranks import sample_probe

if TYPE_CHECKING:
    from portagpu.runs.world import Ranks


def said(ranks: Ranks, world: int, **arguments: Any) -> list[Any]:
    function = "tests.support.exact_ranks:trained"
    found = ranks.run(function, world, arguments=arguments, backend="cpu", timeout_s=60.0).values
    assert all(each == found[0] for each in found), "every rank says the same"
    text, named = found[0]
    return [text, named]


def test_sound_ranks_train_on(ranks: Ranks) -> None:
    assert said(ranks, 3) == ["", []]


def test_parameters_that_differ_in_one_bit_name_their_rank(ranks: Ranks) -> None:
    text, named = said(ranks, 3, lost_bit=1)
    assert named == [1]
    assert text.startswith(
        "step 2: the parameters of rank 1 differ from those of the other 2 ranks"
    )
    text, named = said(ranks, 2, lost_bit=1)
    assert named == [0, 1]
    assert "ranks hold different parameters, 2 kinds of 2, and none is of a majority" in text


def test_a_wrong_rank_is_the_device_and_equal_ones_are_the_software(ranks: Ranks) -> None:
    text, named = said(ranks, 3, wrong=[2])
    assert named == [2]
    assert text.startswith("step 2: rank 2 computed 1 wrong results of vectors/int64[sample]; its")
    text, named = said(ranks, 3, wrong=[0, 1, 2])
    assert named == [0, 1, 2]
    assert "all ranks are wrong in the same bits, so it is the software" in text
    text, named = said(ranks, 3, wrong=[0, 1, 2], same=False)
    assert "each in other bits" in text


def test_one_process_checks_its_own_device() -> None:
    model = torch.nn.Linear(4, 4)
    screen = portagpu.screen.TrainingScreen(model.parameters(), every=1)
    for _ in range(len(screen._probes or range(60))):
        screen.step()
    screen._probes = [sample_probe(1, same=True)]
    with pytest.raises(portagpu.SilentCorruption, match="device or software is not separated"):
        screen.step()


def test_products_of_every_format_are_checked_and_none_that_take_long() -> None:
    short = {each.name for each in PROBES if _is_short(each)}
    formats = {f"products/{each.name}" for each in KINDS}
    assert formats == {each.partition("[")[0] for each in short if each.startswith("products/")}
    assert {"vectors/float32[add]", "reductions/float64[sum]", "integers/int64[sort]"} < short
    assert not {each for each in short if "deep" in each or "memory" in each}


def test_steps_between_checks_do_nothing() -> None:
    screen = TrainingScreen(every=3)
    screen._probes = [sample_probe(1, same=True)]
    screen.step()
    screen.step()
    with pytest.raises(portagpu.SilentCorruption, match=r"^step 3: rank 0 "):
        screen.step()
    with pytest.raises(ValueError, match="every is 1 or more steps, not 0"):
        TrainingScreen(every=0)


def test_a_digest_changes_with_any_bit() -> None:
    tensors = [torch.arange(2050.0), torch.ones(3, 5, dtype=torch.bfloat16), torch.tensor([True])]
    first = int(parameter_digest(tensors))
    assert int(parameter_digest([each.clone() for each in tensors])) == first
    changes = []
    for tensor in tensors:
        raw = tensor.view(-1).view(torch.uint8)
        for place in (0, raw.numel() // 2, raw.numel() - 1):
            raw[place] ^= 1
            changes.append(int(parameter_digest(tensors)))
            raw[place] ^= 1
    assert first not in changes
    assert int(parameter_digest([torch.zeros(8), torch.ones(8)])) != int(
        parameter_digest([torch.ones(8), torch.zeros(8)])
    )
    with pytest.raises(ValueError, match="one tensor or more"):
        parameter_digest([])

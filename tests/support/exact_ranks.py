"""What the ranks of the tests of exact collectives do."""

from __future__ import annotations

import torch

from portagpu.base.errors import SilentCorruption
from portagpu.train.exact.collectives import PROBES
from portagpu.train.exact.draws import Draws
from portagpu.train.exact.probe import Expected, Probe
from portagpu.train.exact.training import TrainingScreen


def judged(rank, *, names, spoilt):
    """By probe, how many elements are wrong; ``spoilt`` is the rank that loses one on arrival."""
    found = {}
    for probe in PROBES:
        if probe.name not in names:
            continue
        refused = probe.refuses(rank.gpu)
        if refused:
            found[probe.name] = refused
            continue
        work = probe.make(rank.gpu, Draws(9, rank.gpu.device), 1)
        result = work.run()
        if rank.rank == spoilt:
            result.view(-1)[17] += 1
        wrong = work.judge(result)
        found[probe.name] = wrong.count if wrong else 0
    return found


def trained(rank, *, lost_bit=None, wrong=(), same=True):
    """What a training screen says after two steps: "", or the error with its ranks.

    ``lost_bit`` is the rank whose parameters differ in one bit, ``wrong`` are the ranks on which
    the device adds wrong, ``same`` whether all do so in the same bits.
    """
    model = torch.nn.Linear(8, 4)
    with torch.no_grad():
        for each in model.parameters():
            each.fill_(0.5)
        if rank.rank == lost_bit:
            model.weight.view(-1).view(torch.int32)[11] ^= 1
    screen = TrainingScreen(model.parameters(), every=2)
    screen._probes = [sample_probe(rank.rank + 1 if rank.rank in wrong else 0, same)]
    try:
        screen.step()
        screen.step()
    except SilentCorruption as error:
        return [str(error), list(error.ranks)]
    return ["", []]


def sample_probe(wrong, same):
    """A probe whose result is wrong in the last element, unless ``wrong`` is 0."""

    def make(gpu, draws, scale):
        right = draws.integers("x", (64,), 1, 9)

        def compute():
            result = right.clone()
            if wrong:
                result[-1] += 1 if same else wrong
            return result

        return Expected(compute, right, 64)

    return Probe("vectors/int64[sample]", "int64", make, lambda gpu: "")

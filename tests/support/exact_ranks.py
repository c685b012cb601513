"""What the ranks of the tests of exact collectives do."""

from __future__ import annotations

from portagpu.train.exact.collectives import PROBES
from portagpu.train.exact.draws import Draws


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

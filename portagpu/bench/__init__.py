"""The performance suite as a library: measuring, judging, and comparing like with like.

What is measured is in ``matrix/performance``; ``docs/performance.md`` says how. Importing this
imports no torch.
"""

from __future__ import annotations

from portagpu.bench.busbw import bus_factor
from portagpu.bench.cases import SUITE, BenchCase
from portagpu.bench.device import MeasuredDevice
from portagpu.bench.effort import Effort
from portagpu.bench.load import Comparison, Sustained, compare_ranks, sustained
from portagpu.bench.runner import BenchOptions, default_world, measure, open_device, run
from portagpu.bench.suite import AREAS, UnknownMeasure, metrics
from portagpu.rules.peers import Outlier, Peers, compare_peers

__all__ = [
    "AREAS",
    "SUITE",
    "BenchCase",
    "BenchOptions",
    "Comparison",
    "Effort",
    "MeasuredDevice",
    "Outlier",
    "Peers",
    "Sustained",
    "UnknownMeasure",
    "bus_factor",
    "compare_peers",
    "compare_ranks",
    "default_world",
    "measure",
    "metrics",
    "open_device",
    "run",
    "sustained",
]

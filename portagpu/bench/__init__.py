"""The performance suite as a library: measures, their judgement, and comparison between ranks.

The measures are in ``matrix/performance``; ``docs/performance.md`` explains them. Importing this
package does not import torch.
"""

from __future__ import annotations

from portagpu.bench.calibrate import CannotCalibrate, Proposal, propose
from portagpu.bench.cases import SUITE, BenchCase
from portagpu.bench.device import MeasuredDevice
from portagpu.bench.fleet import NoPeers, compare_runs
from portagpu.bench.load import Comparison, SustainedLoad, compare_ranks, sustain_load
from portagpu.bench.runner import BenchOptions, default_world, measure, open_device, run
from portagpu.bench.suite import AREAS, UnknownMeasure, metrics
from portagpu.bench.timing import Effort
from portagpu.collectives.bandwidth import bus_factor
from portagpu.rules.peers import Outlier, Peers, compare_peers

__all__ = [
    "AREAS",
    "SUITE",
    "BenchCase",
    "BenchOptions",
    "CannotCalibrate",
    "Comparison",
    "Effort",
    "MeasuredDevice",
    "NoPeers",
    "Outlier",
    "Peers",
    "Proposal",
    "SustainedLoad",
    "UnknownMeasure",
    "bus_factor",
    "compare_peers",
    "compare_ranks",
    "compare_runs",
    "default_world",
    "measure",
    "metrics",
    "open_device",
    "propose",
    "run",
    "sustain_load",
]

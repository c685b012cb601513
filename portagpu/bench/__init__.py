"""The performance suite as a library: measures, their judgement, and comparison between ranks.

The measures are in ``matrix/performance``; ``docs/performance.md`` explains them. Importing this
package does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from portagpu.lazy import lazy_names

if TYPE_CHECKING:
    from portagpu.bench.calibrate import CannotCalibrate as CannotCalibrate
    from portagpu.bench.calibrate import Proposal as Proposal
    from portagpu.bench.calibrate import propose as propose
    from portagpu.bench.cases import SUITE as SUITE
    from portagpu.bench.cases import BenchCase as BenchCase
    from portagpu.bench.device import MeasuredDevice as MeasuredDevice
    from portagpu.bench.fleet import NoPeers as NoPeers
    from portagpu.bench.fleet import compare_runs as compare_runs
    from portagpu.bench.load import Comparison as Comparison
    from portagpu.bench.load import SustainedLoad as SustainedLoad
    from portagpu.bench.load import compare_ranks as compare_ranks
    from portagpu.bench.load import sustain_load as sustain_load
    from portagpu.bench.runner import BenchOptions as BenchOptions
    from portagpu.bench.runner import default_world as default_world
    from portagpu.bench.runner import measure as measure
    from portagpu.bench.runner import open_device as open_device
    from portagpu.bench.runner import run as run
    from portagpu.bench.suite import AREAS as AREAS
    from portagpu.bench.suite import UnknownMeasure as UnknownMeasure
    from portagpu.bench.suite import metrics as metrics
    from portagpu.bench.timing import Effort as Effort
    from portagpu.collectives.bandwidth import bus_factor as bus_factor
    from portagpu.rules.peers import Outlier as Outlier
    from portagpu.rules.peers import Peers as Peers
    from portagpu.rules.peers import compare_peers as compare_peers
else:
    __all__, __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "portagpu.bench.calibrate": "CannotCalibrate Proposal propose",
            "portagpu.bench.cases": "SUITE BenchCase",
            "portagpu.bench.device": "MeasuredDevice",
            "portagpu.bench.fleet": "NoPeers compare_runs",
            "portagpu.bench.load": "Comparison SustainedLoad compare_ranks sustain_load",
            "portagpu.bench.runner": "BenchOptions default_world measure open_device run",
            "portagpu.bench.suite": "AREAS UnknownMeasure metrics",
            "portagpu.bench.timing": "Effort",
            "portagpu.collectives.bandwidth": "bus_factor",
            "portagpu.rules.peers": "Outlier Peers compare_peers",
        },
    )

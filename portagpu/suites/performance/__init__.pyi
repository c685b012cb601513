"""The public names, each with its module, for type checkers and to load on first use."""

from portagpu.suites.performance.fleet import CannotCalibrate as CannotCalibrate
from portagpu.suites.performance.fleet import Proposal as Proposal
from portagpu.suites.performance.fleet import propose as propose
from portagpu.suites.performance.cases import SUITE as SUITE
from portagpu.suites.performance.cases import BenchCase as BenchCase
from portagpu.suites.performance.device import MeasuredDevice as MeasuredDevice
from portagpu.suites.performance.fleet import NoPeers as NoPeers
from portagpu.suites.performance.fleet import compare_runs as compare_runs
from portagpu.suites.performance.load import Comparison as Comparison
from portagpu.suites.performance.load import SustainedLoad as SustainedLoad
from portagpu.suites.performance.load import compare_ranks as compare_ranks
from portagpu.suites.performance.load import sustain_load as sustain_load
from portagpu.suites.performance.runner import BenchOptions as BenchOptions
from portagpu.suites.performance.runner import default_world as default_world
from portagpu.suites.performance.runner import measure as measure
from portagpu.suites.performance.runner import open_device as open_device
from portagpu.suites.performance.runner import run as run
from portagpu.suites.performance.cases import AREAS as AREAS
from portagpu.suites.performance.cases import UnknownMeasure as UnknownMeasure
from portagpu.suites.performance.cases import metrics as metrics
from portagpu.suites.performance.timing import Effort as Effort
from portagpu.facts.nccl_tests.model import bus_factor as bus_factor
from portagpu.runs.judges.peers import Outlier as Outlier
from portagpu.runs.judges.peers import Peers as Peers
from portagpu.runs.judges.peers import compare_peers as compare_peers

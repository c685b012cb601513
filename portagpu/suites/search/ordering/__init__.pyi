"""The public names, each with its module, for type checkers and to load on first use."""

from portagpu.suites.search.ordering.area import AREA as AREA
from portagpu.suites.search.ordering.area import Ordering as Ordering
from portagpu.suites.search.ordering.kernels import Kernels as Kernels
from portagpu.suites.search.ordering.kernels import TorchKernels as TorchKernels

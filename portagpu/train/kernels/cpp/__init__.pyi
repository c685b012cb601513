"""The public names, each with its module, for type checkers and to load on first use."""

from portagpu.train.kernels.cpp.sources import compile_kernel as compile_kernel
from portagpu.train.kernels.cpp.sources import compile_source as compile_source
from portagpu.train.kernels.cpp.run import FunctionResources as FunctionResources
from portagpu.train.kernels.cpp.run import function_resources as function_resources
from portagpu.train.kernels.cpp.run import histogram as histogram
from portagpu.train.kernels.cpp.run import rank_rows as rank_rows
from portagpu.train.kernels.cpp.run import scan_rows as scan_rows
from portagpu.train.kernels.cpp.run import sum_all as sum_all
from portagpu.train.kernels.cpp.run import sum_rows as sum_rows
from portagpu.train.kernels.cpp.sources import KERNELS as KERNELS
from portagpu.train.kernels.cpp.sources import read_source as read_source
from portagpu.devices.machine_code import CompiledKernel as CompiledKernel
from portagpu.devices.machine_code import CompileError as CompileError

"""The public names, each with its module, for type checkers and to load on first use."""

from portagpu.suites.compile.run import CompileOptions as CompileOptions
from portagpu.suites.compile.run import compile_kernels as compile_kernels

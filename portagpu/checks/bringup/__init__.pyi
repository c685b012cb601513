"""The public names, each with its module, for type checkers and to load on first use."""

from portagpu.checks.bringup.gates import Gate as Gate
from portagpu.checks.bringup.gates import load_gates as load_gates
from portagpu.checks.bringup.run import BringupOptions as BringupOptions
from portagpu.checks.bringup.run import GateProgress as GateProgress
from portagpu.checks.bringup.run import bringup as bringup

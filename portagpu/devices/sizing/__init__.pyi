"""The public names, each with its module, for type checkers and to load on first use."""

from portagpu.devices.sizing.calculator import Occupancy as Occupancy
from portagpu.devices.sizing.calculator import occupancy as occupancy
from portagpu.devices.sizing.calculator import occupancy_of_code as occupancy_of_code
from portagpu.devices.sizing.rules import Kernel as Kernel
from portagpu.devices.sizing.launch import Launch as Launch
from portagpu.devices.sizing.launch import Sizing as Sizing
from portagpu.devices.sizing.matmul import Matmul as Matmul
from portagpu.devices.sizing.launch import Reduction as Reduction
from portagpu.devices.sizing.rules import Limit as Limit
from portagpu.devices.sizing.rules import Resource as Resource
from portagpu.devices.sizing.rules import WavesPerSimd as WavesPerSimd
from portagpu.devices.sizing.calculator import Step as Step

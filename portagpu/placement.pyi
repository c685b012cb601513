from portagpu.machine.placement import *

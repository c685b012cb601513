from portagpu.devices.precision import *

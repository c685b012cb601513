from portagpu.devices.sizing import *

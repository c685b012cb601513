"""The number of devices that a device shared by all ranks, a CPU, counts as."""

from __future__ import annotations

import os
from typing import Final

from portagpu.base.errors import PortagpuError

VARIABLE: Final = "PORTAGPU_SHARED_DEVICES"
LAUNCHER_VARIABLE: Final = "LOCAL_WORLD_SIZE"
"""The number of ranks on this machine, set by torchrun and other launchers."""
_MOST: Final = 4096


def shared_count() -> int:
    """``PORTAGPU_SHARED_DEVICES``, else the launcher's ``LOCAL_WORLD_SIZE``, else 1.

    Scripts compare the number of devices with the number of ranks, and give each rank the device of
    its number. Raises PortagpuError where the first variable is no number from 1 to 4096. The
    second belongs to another program, and counts as 1 then.
    """
    for name in (VARIABLE, LAUNCHER_VARIABLE):
        text = os.environ.get(name)
        if not text:
            continue
        if text.isascii() and text.isdigit() and len(text) < 9 and 1 <= int(text) <= _MOST:
            return int(text)
        if name == VARIABLE:
            raise PortagpuError(f"{name} is a number of devices from 1 to {_MOST}, not {text!r}")
    return 1

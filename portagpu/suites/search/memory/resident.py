"""What the kernel maps into a process's resident memory and takes back at any time: no tensor's.

A CPU's counters are the process's resident memory (``Backend.memory_stats``). It has pages of files
too, which are the code that ran: the kernel takes them back where other processes need memory, and
maps them again, some around each, when they are used (``filemap_map_pages`` in mm/filemap.c). And
pages of tensors that were swapped out do not count as resident
(Documentation/filesystems/proc.rst, ``RssFile`` and ``VmSwap`` in /proc/PID/status).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from portagpu.devices.contract import Backend

_STATUS: Final = Path("/proc/self/status")
_FIELDS: Final = re.compile(rb"^(RssFile|VmSwap):\s+(\d+) kB", re.MULTILINE)


def kernel_share(gpu: Backend, status: Path = _STATUS) -> int:
    """Bytes of mapped files that are resident, less those that were swapped out.

    0 on a device with memory of its own, and where the kernel does not state them.
    """
    if gpu.device.type != "cpu":
        return 0
    try:
        found = dict(_FIELDS.findall(status.read_bytes()))
    except OSError:
        return 0
    return 1024 * (int(found.get(b"RssFile", b"0")) - int(found.get(b"VmSwap", b"0")))

"""AMD's direct storage: hipFile through torch. No GPU has run this yet.

hipFile copies through the host's memory where its fast path cannot be taken, unless
``HIPFILE_ALLOW_COMPAT_MODE`` is false: then such a transfer fails (ROCm documentation, "hipFile
environment variables" and "hipFile fastpath and fallback backends"). It comes with ROCm 7.14 and
newer, takes the fast path on ext4 (``data=ordered``) and xfs, and has counters only behind an
interface of C and ``ais-stats``.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from portagpu.devices.plugin_parts import DirectStorage
from portagpu_torch_gpu.storage import GdsFile

STORAGE: Final = DirectStorage(
    library="hipFile",
    open=partial(GdsFile, "hipFile"),
    proof="HIPFILE_ALLOW_COMPAT_MODE=false has hipFile fail where it would copy through the host",
    environment={"HIPFILE_ALLOW_COMPAT_MODE": "false"},
)

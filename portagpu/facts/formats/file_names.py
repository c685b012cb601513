"""How collectors of whole machines name the files with tools' outputs: by their commands."""

from __future__ import annotations

import re
from typing import Final

TOOLS_OUTPUT: Final = re.compile(
    r".*/(?:nvidia-smi|nvidia-bug-report|lspci|rocm-smi|amd-smi|rocminfo|ibstat(?:us)?|dcgmi"
    r"|ethtool_-S|ras-mc-ctl|mcelog|fabricmanager|nv-hostengine|nvidia-fabricmanager)"
    r"[\w.:,=-]{0,120}$"
)
"""A path with such a name, of which a reader may know the text."""

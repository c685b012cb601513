"""What public code calls devices, their numbers and libraries; and where a line ends."""

from __future__ import annotations

import re
from typing import Final

INDEX_NAME: Final = re.compile(
    r"(?:\w+_)?local_rank|rank|(?:local_)?gpu(?:_(?:id|idx|index))?|dev(?:ice)?_(?:id|idx|index|num)"
)
"""Names that hold the number of a device."""
DEVICE_NAME: Final = re.compile(
    r"(?:\w+_)?dev(?:ice)?(?:_(?:type|name|str|string|map))?", re.IGNORECASE
)
LIBRARY_NAME: Final = re.compile(r"(?:\w+_)?backend", re.IGNORECASE)

_LINE: Final = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+\Z")


def lines_of(text: str) -> list[str]:
    """The lines with their ends, as Python counts them: a form feed ends none."""
    return _LINE.findall(text)

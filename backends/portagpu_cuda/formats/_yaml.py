"""The part of YAML that descriptions of devices are written in: nested mappings and lists.

Keys and scalars are text; quotes and comments are taken off, flow lists stay as they are written.
There are no anchors, tags or texts of several lines: such a line is counted and left out.
"""

from __future__ import annotations

import re
from typing import Final

Yaml = dict[str, "Yaml | str"] | list["Yaml | str"]

MAX_DEPTH: Final = 64

_ENTRY: Final = re.compile(r"([\w.-]{1,100}|\"[^\"]{1,100}\"):(?:\s+(.*))?")
_QUOTED: Final = re.compile(r"(\"[^\"]*\"|'[^']*')\s*(?:#.*)?")


def read_yaml(text: str) -> tuple[dict[str, Yaml | str], int]:
    """The outermost mapping, and how many lines could not be read."""
    root: dict[str, Yaml | str] = {}
    frames: list[tuple[int, Yaml]] = [(0, root)]
    pending: tuple[int, dict[str, Yaml | str], str] | None = None
    left_out = 0
    for line in text.splitlines():
        content = line.strip()
        if not content or content.startswith(("#", "---")):
            continue
        indent = len(line) - len(line.lstrip())
        is_item = content == "-" or content.startswith("- ")
        if pending is not None and _below(indent, is_item, pending[0]) and len(frames) < MAX_DEPTH:
            new: Yaml = [] if is_item else {}
            pending[1][pending[2]] = new
            frames.append((indent, new))
        else:
            _close(frames, indent, is_item)
        pending = None
        at, container = frames[-1]
        if at != indent or isinstance(container, list) != is_item:
            left_out += 1
            continue
        if isinstance(container, list):
            item = content[1:].lstrip()
            if _ENTRY.fullmatch(item) is None or len(frames) >= MAX_DEPTH:
                container.append(_scalar(item))
                continue
            indent += len(content) - len(item)
            content, inner = item, dict[str, "Yaml | str"]()
            container.append(inner)
            frames.append((indent, inner))
            container = inner
        match = _ENTRY.fullmatch(content)
        if match is None:
            left_out += 1
            continue
        key, value = match.group(1).strip('"'), _scalar(match.group(2) or "")
        container[key] = value
        if not value:
            pending = (indent, container, key)
    return root, left_out


def _below(indent: int, is_item: bool, key_indent: int) -> bool:
    """Whether a line belongs to the key above it; a list may stand as far left as its key."""
    return indent > key_indent or (is_item and indent == key_indent)


def _close(frames: list[tuple[int, Yaml]], indent: int, is_item: bool) -> None:
    while len(frames) > 1 and (
        frames[-1][0] > indent
        or (frames[-1][0] == indent and isinstance(frames[-1][1], list) and not is_item)
    ):
        frames.pop()


def _scalar(text: str) -> str:
    if (match := _QUOTED.fullmatch(text)) is not None:
        return match.group(1)[1:-1]
    return "" if text.startswith("#") else text.split(" #", 1)[0].strip()

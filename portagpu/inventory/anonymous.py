"""Taking out of a recording what says whose machine it was, file by file.

What stays are the GPUs' UUIDs, unique ids and PCI addresses, which join the sources; what goes are
names of hosts and users, secrets, serial numbers, ids of containers, and words of the kernel's
command line that are no setting of this package's.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from portagpu.host.settings import is_parameter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_SERIAL_FILE: Final = re.compile(r"(?:.*[_/])?serial(?:_number|_no)?|node_guid|sys_image_guid")
_SERIAL_TEXTS: Final = (
    # XML, JSON with and without quotes around the value, "Serial Number : 165..."
    re.compile(r"(?i)(<([\w-]*serial[\w-]*)>)([^<]+)(?=</\2>)"),
    re.compile(r"(?i)(\"([^\"]*serial[^\"]*)\"\s*:\s*)(\"[^\"]*\"|\d+)"),
    re.compile(r"(?im)^((\s*(?:GPU\[\d+\]\s*:)?[ \w]*serial[ \w]*)\s*:[ \t]*)(\S[^\n]*)"),
)
_ABSENT: Final = frozenset({"n/a", '"n/a"', "none", '""', '"none"', "0"})
_CONTAINER: Final = re.compile(r"(?<![0-9a-f])[0-9a-f]{32,64}(?![0-9a-f])")
_CGROUPS: Final = re.compile(r"proc/[^/]+/(?:cgroup|mountinfo)|sys/fs/cgroup/")
_KEPT_MOUNTS: Final = re.compile(r" - (?:cgroup2?|tmpfs) ")
_STATUS: Final = re.compile(r"proc/(?:self|thread-self)/status")

# PCI Express Base Specification, "Device Serial Number Extended Capability": id, offset, length
_EXTENDED: Final = 0x100
_SERIAL_CAPABILITY: Final = 0x0003
_MOST_CAPABILITIES: Final = 48


@dataclass(slots=True)
class Anonymous:
    """Replaces what identifies, and counts each kind; ``known`` are pairs of kind and text."""

    known: Sequence[tuple[str, str]] = ()
    counts: Counter[str] = field(default_factory=Counter)
    _containers: dict[str, str] = field(default_factory=dict)

    def file(self, path: str, data: bytes) -> bytes:
        """The file of the kernel's tree at ``path`` without what identifies."""
        if path.endswith("/config"):
            return self._config(data)
        if _SERIAL_FILE.fullmatch(path.rpartition("/")[2]) and data.strip():
            self.counts["serial"] += 1
            return b""
        text = data.decode(errors="surrogateescape")
        if path == "proc/cmdline":
            text = self._kept(text.split(), is_parameter, " ")
        elif _STATUS.fullmatch(path):
            text = self._kept(text.splitlines(), _is_affinity, "\n")
        elif path.endswith("/mountinfo"):
            text = self._kept(text.splitlines(), _is_kept_mount, "\n")
        return self.text(self.path(text) if _CGROUPS.match(path) else text).encode(
            errors="surrogateescape"
        )

    def path(self, text: str) -> str:
        """``text`` with the ids of containers numbered; the same id has the same number."""

        def number(match: re.Match[str]) -> str:
            self.counts["container"] += 1
            return self._containers.setdefault(match[0], f"container-{len(self._containers) + 1}")

        return _CONTAINER.sub(number, text)

    def text(self, text: str) -> str:
        """Text of a tool without serial numbers and without the known names."""
        for pattern in _SERIAL_TEXTS:
            text = pattern.sub(self._serial, text)
        for kind, name in self.known:
            found = re.compile(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", re.IGNORECASE)
            text, count = found.subn(f"<{kind}>", text)
            self.counts[kind] += count
        return text

    def _serial(self, match: re.Match[str]) -> str:
        if match[3].strip().lower() in _ABSENT:
            return match[0]
        self.counts["serial"] += 1
        return f'{match[1]}"N/A"' if match[0].lstrip().startswith('"') else f"{match[1]}N/A"

    def _kept(self, parts: list[str], keep: Callable[[str], bool], between: str) -> str:
        kept = [part for part in parts if keep(part)]
        self.counts["line" if between == "\n" else "kernel parameter"] += len(parts) - len(kept)
        return between.join(kept)

    def _config(self, data: bytes) -> bytes:
        """PCI configuration space without the device's serial number."""
        offset = _EXTENDED
        for _ in range(_MOST_CAPABILITIES):
            if offset + 12 > len(data):
                break
            header = int.from_bytes(data[offset : offset + 4], "little")
            if header & 0xFFFF == _SERIAL_CAPABILITY:
                self.counts["serial"] += 1
                return data[: offset + 4] + bytes(8) + data[offset + 12 :]
            offset = header >> 20
            if offset < _EXTENDED:
                break
        return data


def _is_affinity(line: str) -> bool:
    return line.startswith("Cpus_allowed_list")


def _is_kept_mount(line: str) -> bool:
    kept = _KEPT_MOUNTS.search(line) is not None
    return kept and ("cgroup" in line or " /dev/shm " in line)

"""Anonymise a recording: remove what identifies its machine, host, users and processes.

Kept are the identities that join the sources: UUIDs and unique numbers of GPUs, and PCI addresses.
Removed are processes, names of hosts and users, secrets, addresses, paths, serial numbers, names of
control groups, and kernel parameters that this package does not read. Texts are scrubbed by the
rules of bundles (``portagpu.base.redact``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.redact.names import identifying_kind, names_something
from portagpu.base.redact.patterns import PLACEHOLDER, bare_uuid
from portagpu.base.redact.scrub import Placeholders
from portagpu.checks.recordings.anonymous_output import (
    NO_VALUE,
    clean_document,
    clean_lines,
    clean_output,
)
from portagpu.facts.host.machine import is_parameter

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from portagpu.facts.readings.model import Findings, Reading

_SERIAL_FILE: Final = re.compile(
    r"(?:\A|_)serial(?:_number|_no)?\Z|\A(?:node_guid|sys_image_guid)\Z"
)
_STATUS: Final = re.compile(r"proc/(?:self|thread-self)/status")
_MEMBERS: Final = re.compile(r"proc/[^/]++/cgroup")
_GPU_UUID: Final = re.compile(
    r"(?:MIG-)?(?:GPU|MIG)-(?:[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{16})",
    re.IGNORECASE,
)
_MIN_UUID_LENGTH: Final = 8
"""Characters: a shorter "GUID" is a number that the kernel gave."""
_VERSIONED: Final = re.compile(
    r"(?:\A|[\s_-])(?:version|versions|ver|firmware|fw|bios|vbios|driver|revision)(?:\Z|[\s_-])",
    re.IGNORECASE,
)
_VERSION: Final = re.compile(r"[0-9A-Za-z]{1,8}(?:\.[0-9A-Za-z]{1,8}){1,8}\Z")

_GROUPS: Final = "sys/fs/cgroup"
_GROUP_KINDS: Final = frozenset({"cgroup", "cgroup2"})
# names that every machine has, and a sign of each kind of container that host.limits looks for
_COMMON_GROUPS: Final = frozenset(
    {"", "..", "sys", "fs", "cgroup", "unified", "systemd", "cpu", "cpuacct", "cpu,cpuacct",
     "cpuset", "memory", "pids", "devices", "freezer", "blkio", "init.scope", "system.slice",
     "user.slice", "machine.slice", "docker", "lxc", "kubepods", "kubepods.slice"}
)  # fmt: skip
_GROUP_FILES: Final = frozenset(
    {"cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us", "memory.max", "memory.limit_in_bytes",
     "memory.current", "memory.usage_in_bytes", "cpuset.cpus.effective", "cpuset.effective_cpus",
     "cpuset.cpus"}
)  # fmt: skip
_CONTAINERS: Final = ("kubepods", "docker", "libpod", "containerd", "lxc")
_FIRST_PROCESSES: Final = frozenset({"systemd", "init"})

# PCI Express Base Specification, "Device Serial Number Extended Capability": id, offset, length
_EXTENDED: Final = 0x100
_SERIAL_CAPABILITY: Final = 0x0003
_MAX_CAPABILITIES: Final = 48


def identities(asked: Iterable[Findings], printed: Iterable[Findings] = ()) -> frozenset[str]:
    """Identities that join the readings of a GPU, in the forms that sources write.

    They are the UUIDs of all sources, and the unique numbers that the kernel and the libraries
    state. A tool's serial number is kept only where it is such a number.
    """
    own = [reading for each in asked for reading in each.readings]
    found = {uuid for reading in own for uuid in _uuids(reading)}
    for reading in own:
        if reading.unique_id is not None:
            found |= {f"{reading.unique_id:x}", f"{reading.unique_id}"}
    others = (reading for each in printed for reading in each.readings)
    # without hyphens it is the unique number in another form
    return frozenset(found | {u for reading in others for u in _uuids(reading) if "-" in u})


def _uuids(reading: Reading) -> Iterator[str]:
    yield bare_uuid(reading.uuid or "")
    yield (reading.hive or "").partition(".")[0]
    yield from (bare_uuid(part.uuid or "") for part in reading.parts)
    yield from (text.lower() for key, text in reading.extra.items() if key.endswith("uuid"))


@dataclass(slots=True)
class Anonymizer:
    """Replaces identifying texts, and counts each kind.

    ``known`` are pairs of kind and text; ``joined`` are the identities that stay, as
    :func:`identities` gives them. The same text has the same placeholder throughout.
    """

    known: Sequence[tuple[str, str]] = ()
    joined: Collection[str] = ()
    groups: Collection[str] = (_GROUPS,)
    """Where control groups are mounted, without the first slash."""
    names: Placeholders = field(init=False)
    _parts: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.names = Placeholders(self.known)

    @property
    def counts(self) -> Counter[str]:
        return self.names.counts

    def file(self, path: str, data: bytes) -> bytes:
        """The anonymised content of the kernel's file at ``path``."""
        name = path.rpartition("/")[2]
        if name == "config":
            return self._config(data)
        if _SERIAL_FILE.search(name) and data.strip():
            self.counts["serial"] += 1
            return b""
        text = data.decode(errors="surrogateescape")
        if path == "proc/cmdline":
            text = self._keep_only(text.split(), is_parameter, " ")
        elif _STATUS.fullmatch(path):
            text = self._keep_only(text.splitlines(), _is_affinity, "\n")
        elif name == "uevent":
            text = self._keep_only(text.splitlines(), _is_slot, "\n")
        elif name == "comm" and text.strip() not in _FIRST_PROCESSES:
            self.counts["process"] += 1
            text = "other"
        elif name == "mountinfo":
            return self._mounts(text).encode(errors="surrogateescape")
        elif _MEMBERS.fullmatch(path):
            return self._memberships(text).encode(errors="surrogateescape")
        # a value by itself is what its file's name says; lines say it themselves
        clean = clean_lines(text, self) if "\n" in text.strip() else self.value(name, text)
        return clean.encode(errors="surrogateescape")

    def path(self, path: str) -> str:
        """A path of the kernel's tree, or a link's target, part by part."""
        if (
            not path.startswith(tuple(f"{root}/" for root in self.groups))
            and path not in self.groups
        ):
            return "/".join(map(self._part, path.split("/")))
        *folders, name = path.split("/")
        return "/".join(
            [*map(self.group, folders), name if name in _GROUP_FILES else self.group(name)]
        )

    def name(self, text: str) -> str:
        """A name, without exceptions for identities that join sources."""
        return self.names.replace_all(text, self.names.placeholder)

    def group(self, name: str) -> str:
        """A control group's name as a number; the kind of its container is kept."""
        if name in _COMMON_GROUPS:
            return name
        kind = next((f"{word}-" for word in _CONTAINERS if word in name), "")
        return f"{kind}{self.names.placeholder('group', name)[1:-1]}"

    def text(self, text: str) -> str:
        """The output of a tool, or any other text of several lines.

        Raises FormatError for what looks like JSON and is none.
        """
        return clean_output(text, self)

    def document(self, value: Any) -> Any:
        """JSON's values."""
        return clean_document(value, self)

    def value(self, key: str, text: str) -> str:
        """The anonymised text; ``key`` is the key, tag or label above it, or empty."""
        bare = text.strip()
        kind = identifying_kind(key) if key else None
        if kind is not None:
            numbered = kind == "uuid" and len(bare) < _MIN_UUID_LENGTH
            stated = names_something(kind, key, bare.strip('",')) and not PLACEHOLDER.fullmatch(
                bare
            )
            if not stated or numbered or self._joins_readings(bare):
                return text
            return self._replacement(kind, bare)
        if _VERSIONED.search(key) is not None and _VERSION.match(bare) is not None:
            return text
        return self.names.replace_all(text, self._replacement)

    def placeholder(self, kind: str, found: str) -> str:
        """The placeholder for ``found``; the same text always has the same one."""
        return self.names.placeholder(kind, found)

    def _replacement(self, kind: str, found: str) -> str:
        if self._joins_readings(found):
            return found
        placeholder = self.names.placeholder(kind, found)
        return NO_VALUE if kind == "serial" else placeholder

    def _joins_readings(self, text: str) -> bool:
        """Whether an id joins readings of a GPU: its UUID, zeros, or an id that a reader found."""
        bare = bare_uuid(text)
        short = bare.removeprefix("0x").lstrip("0")
        return (
            _GPU_UUID.fullmatch(text) is not None
            or not short.strip("0-")  # nothing but zeros
            or (bool(bare) and (bare in self.joined or short in self.joined))
        )

    def _part(self, part: str) -> str:
        if part not in self._parts:
            # an underscore joins a name to what somebody called it: "ib_10.0.0.1"
            pieces = self.name(part).split("_")
            self._parts[part] = "_".join(map(self.name, pieces)).replace("/", "-")
        return self._parts[part]

    def _keep_only(self, parts: list[str], keep: Callable[[str], bool], between: str) -> str:
        kept = [part for part in parts if keep(part)]
        self.counts["line" if between == "\n" else "kernel parameter"] += len(parts) - len(kept)
        return between.join(kept)

    def _mounts(self, text: str) -> str:
        """The mounts of control groups and of shared memory: their places and what limits them."""
        lines = text.splitlines()
        kept = []
        for line in lines:
            root, place, kind, options = _mount(line)
            if kind in _GROUP_KINDS:
                root, place = ("/".join(map(self.group, p.split("/"))) for p in (root, place))
            elif (kind, place) != ("tmpfs", "/dev/shm"):  # noqa: S108 - of the recorded machine
                continue
            known = [each for each in options if each.isalpha() or each.startswith("size=")]
            stated = ",".join(known) or "rw"
            kept.append(
                f"0 0 0:0 {root if kind != 'tmpfs' else '/'} {place} rw - {kind} {kind} {stated}"
            )
        self.counts["line"] += len(lines) - len(kept)
        return "\n".join(kept)

    def _memberships(self, text: str) -> str:
        kept = []
        for line in text.splitlines():
            number, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if number.isdigit():
                names = ",".join(
                    each if each.isidentifier() else "" for each in controllers.split(",")
                )
                kept.append(f"{number}:{names}:{'/'.join(map(self.group, path.split('/')))}")
        return "\n".join(kept)

    def _config(self, data: bytes) -> bytes:
        """PCI configuration space without the device's serial number."""
        offset = _EXTENDED
        for _ in range(_MAX_CAPABILITIES):
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


def group_mounts(mountinfo: str) -> tuple[str, ...]:
    """Where control groups are mounted, without the first slash."""
    found = (_mount(line) for line in mountinfo.splitlines())
    return (_GROUPS, *(place.strip("/") for _, place, kind, _ in found if kind in _GROUP_KINDS))


def _mount(line: str) -> tuple[str, str, str, list[str]]:
    """(root, place, kind, options) of a line of mountinfo; empty for what is none."""
    left, _, right = line.partition(" - ")
    words, kind = left.split(), right.split()
    if len(words) < 5 or len(kind) < 3:
        return "", "", "", []
    return words[3], words[4], kind[0], kind[2].split(",")


def _is_affinity(line: str) -> bool:
    return line.startswith("Cpus_allowed_list")


def _is_slot(line: str) -> bool:
    return line.startswith("PCI_SLOT_NAME=")

"""Reads the dumps of torch's flight recorder: pickle and JSON, of any of its libraries.

The form is that of ``torch/csrc/distributed/c10d/FlightRecorder.hpp`` and
``FlightRecorderDetail.hpp``, versions 2.0 to 2.10. A dump says of each collective that a rank
called what it was and how far it came. It does not say whose it is: the rank is in the file's name
(``nccl_trace_rank_3``), as ``torch.distributed.flight_recorder`` reads it too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.text import excerpt
from portagpu.checks.collectives_doctor.pickle_data import load_data
from portagpu.facts.formats.cleaning import decode_text
from portagpu.facts.formats.json_xml import json_documents
from portagpu.facts.readings.model import FormatError

if TYPE_CHECKING:
    from collections.abc import Mapping

KIND: Final = "flight recorder"
_NO_EVENTS: Final = "gloo"

Sizes = tuple[tuple[int, ...], ...]

_RANK: Final = re.compile(r"(\d{1,6})(?:\.(?:json|pickle|pkl|bin|dump))?")
_PEERS: Final = re.compile(r"(\d{1,6})(->|<-)(\d{1,6})")
_LISTED: Final = re.compile(r"\d{1,6}")
# bounds on what is taken from one entry, which a hostile dump may make of one object many times
_MOST_ENTRIES: Final = 200_000
_MOST_FRAMES: Final = 64
_MOST_TENSORS: Final = 4096
_MOST_RANKS: Final = 1 << 20
_OWN_FILES: Final = ("-packages/torch/", "/torch/distributed/", "/torch/csrc/", "/torch/_")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One collective that a rank called.

    ``operation`` is torch's word without the library ("all_reduce", "send"). ``sender`` and
    ``receiver`` are of a point-to-point operation, in the group's own numbers. Shapes and dtypes
    are one for each tensor, in torch's order. ``place`` is the first line of the call that is not
    torch's: "function (file:line)".
    """

    record: int
    group: str
    description: str
    sequence: int
    operation: str
    library: str
    inputs: Sizes = ()
    outputs: Sizes = ()
    input_types: tuple[str, ...] = ()
    output_types: tuple[str, ...] = ()
    state: str = ""
    retired: bool = False
    is_p2p: bool = False
    sender: int | None = None
    receiver: int | None = None
    timeout_ms: int | None = None
    place: str = ""

    @property
    def is_open(self) -> bool:
        """Whether the library has neither finished it nor given it up.

        Gloo has no events: its state stays "scheduled", and it is retired when it ended, also with
        an error.
        """
        return self.state != "completed" and not self.retired

    @property
    def is_given_up(self) -> bool:
        """Whether it ran out of time: retired without an end, of a library that records the end."""
        return self.retired and self.state != "completed" and self.library != _NO_EVENTS

    @property
    def words(self) -> str:
        """ "all_reduce of Float [4, 4]": what was called, and with what."""
        peers = f" {self.sender} to {self.receiver}" if self.sender is not None else ""
        shapes, types = (
            (self.inputs, self.input_types) if self.inputs else (self.outputs, self.output_types)
        )
        if not shapes:
            return f"{self.operation}{peers}"
        shown = ", ".join(str(list(each)) for each in shapes[:3])
        more = f" and {len(shapes) - 3} more" if len(shapes) > 3 else ""
        return f"{self.operation}{peers} of {'/'.join(dict.fromkeys(types))} {shown}{more}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dump:
    """What one rank's recorder held, its oldest entry first.

    ``groups`` maps a group's name to its ranks; a group whose ranks the dump does not say is not in
    it. ``is_whole`` says that it begins with the rank's first collective. ``known_ranks`` are all
    that any group names.
    """

    rank: int
    file: str
    is_json: bool
    version: str
    library_version: str
    entries: tuple[Entry, ...]
    groups: Mapping[str, frozenset[int]] = field(default_factory=dict)
    known_ranks: frozenset[int] = frozenset()

    @property
    def is_whole(self) -> bool:
        return not self.entries or self.entries[0].record == 0


def looks_like_dump(data: bytes) -> bool:
    """Whether ``data`` begins as a pickle does, or as JSON that names a dump's keys."""
    if data[:1] == b"\x80":
        return True
    return data[:64].lstrip()[:1] == b"{" and b'"pg_config"' in data and b'"entries"' in data


def rank_of(name: str) -> int | None:
    """The rank that a file's name ends with ("nccl_trace_rank_3", "rank_3.json"); None without."""
    stem = re.search(r"\d{1,6}(?:\.[a-z]{1,6})?$", name)
    found = _RANK.fullmatch(stem.group()) if stem else None
    return int(found.group(1)) if found else None


def read_dump(data: bytes, name: str) -> Dump:
    """The dump in a file of that name. Raises FormatError for anything else."""
    is_json = data[:1] != b"\x80"
    if is_json:
        documents, cut = json_documents(decode_text(data))
        document = documents[0] if documents else None
        if cut:
            raise FormatError("this dump breaks off: copy the whole file")
    else:
        document = load_data(data)
    if not isinstance(document, dict) or not isinstance(document.get("version"), str):
        raise FormatError("this is no dump of torch's flight recorder")
    stated = document.get("rank")
    rank = rank_of(name) if not _is_number(stated) else stated
    if rank is None:
        raise FormatError(
            "its name does not end with a rank, and a dump does not say whose it is: name it as "
            "torch does (rank_3)"
        )
    entries = document.get("entries", [])
    if not isinstance(entries, list | tuple):
        raise FormatError("this is no dump of torch's flight recorder: entries is no list")
    if len(entries) > _MOST_ENTRIES:
        raise FormatError(f"this dump has more than {_MOST_ENTRIES} entries")
    groups, known = _groups(document.get("pg_config"))
    reader = _EntryReader()
    return Dump(
        rank=rank,
        file=excerpt(name),
        is_json=is_json,
        version=excerpt(document["version"], 20),
        library_version=excerpt(_text(document.get("comm_lib_version")), 40),
        entries=tuple(reader.entry(each) for each in entries),
        groups=groups,
        known_ranks=known,
    )


def _groups(config: object) -> tuple[dict[str, frozenset[int]], frozenset[int]]:
    """(ranks of each group that has a name, all ranks that are named).

    Gloo of torch 2.13 records its groups before they have a name. All of them then share the key
    "", and one of them is left.
    """
    found: dict[str, frozenset[int]] = {}
    known: set[int] = set()
    for each in config.values() if isinstance(config, dict) else ():
        if not isinstance(each, dict):
            raise FormatError("this is no dump of torch's flight recorder: pg_config")
        stated = each.get("ranks")
        if isinstance(stated, list | tuple):
            ranks = {rank for rank in stated[:_MOST_RANKS] if _is_number(rank)}
        else:
            ranks = {int(rank) for rank in _LISTED.findall(_text(stated)[: 8 * _MOST_RANKS])}
        known |= ranks
        if (name := _text(each.get("name"))) and ranks:
            found[name] = frozenset(ranks)
    return found, frozenset(known)


class _EntryReader:
    """Reads entries; shapes and stacks that stand in many entries are read once."""

    def __init__(self) -> None:
        self._sizes: dict[int, Sizes] = {}
        self._types: dict[int, tuple[str, ...]] = {}
        self._texts: dict[str, str] = {}

    def entry(self, each: object) -> Entry:
        if not isinstance(each, dict):
            raise FormatError("this is no dump of torch's flight recorder: an entry is no table")
        group = each.get("process_group")
        if not isinstance(group, list | tuple) or len(group) != 2:
            raise FormatError("this is no dump of torch's flight recorder: process_group")
        library, _, words = _text(each.get("profiling_name")).rpartition(":")
        operation, _, peers = words.partition(" ")
        ends = _PEERS.fullmatch(peers)
        sender, receiver = (int(ends[1]), int(ends[3])) if ends else (None, None)
        if ends and ends[2] == "<-":
            sender, receiver = receiver, sender
        is_p2p = bool(each.get("is_p2p", ends is not None))
        return Entry(
            record=_number(each.get("record_id")),
            group=excerpt(_text(group[0]), 80),
            description=excerpt(_text(group[1]), 80),
            # before version 2.1 one number counted both kinds
            sequence=_number(
                each.get("p2p_seq_id" if is_p2p else "collective_seq_id", each.get("seq_id"))
            ),
            operation=excerpt(operation, 60),
            library=excerpt(library, 20),
            inputs=self._shapes(each.get("input_sizes")),
            outputs=self._shapes(each.get("output_sizes")),
            input_types=self._names(each.get("input_dtypes")),
            output_types=self._names(each.get("output_dtypes")),
            state=excerpt(_text(each.get("state")), 20),
            retired=each.get("retired") is True,
            is_p2p=is_p2p,
            sender=sender,
            receiver=receiver,
            timeout_ms=stated if _is_number(stated := each.get("timeout_ms")) else None,
            place=self._texts.setdefault(place := _place(each.get("frames")), place),
        )

    def _shapes(self, value: object) -> Sizes:
        if not isinstance(value, list | tuple):
            return ()
        if id(value) not in self._sizes:
            self._sizes[id(value)] = tuple(
                tuple(dim for dim in each[:64] if _is_number(dim))
                for each in value[:_MOST_TENSORS]
                if isinstance(each, list | tuple)
            )
        return self._sizes[id(value)]

    def _names(self, value: object) -> tuple[str, ...]:
        if isinstance(value, str):
            return (excerpt(value, 20),)
        if not isinstance(value, list | tuple):
            return ()
        if id(value) not in self._types:
            self._types[id(value)] = tuple(
                excerpt(_text(each), 20) for each in value[:_MOST_TENSORS]
            )
        return self._types[id(value)]


def _place(frames: object) -> str:
    """ "function (file:line)" of the first frame outside torch, else of the first; "" without."""
    if not isinstance(frames, list | tuple):
        return ""
    known = [each for each in frames[:_MOST_FRAMES] if isinstance(each, dict)]
    outside = (
        each
        for each in known
        if not any(part in _text(each.get("filename")) for part in _OWN_FILES)
    )
    frame: Any = next(outside, known[0] if known else None)
    if frame is None:
        return ""
    name, file = _text(frame.get("name")), _text(frame.get("filename"))
    return excerpt(f"{name} ({file}:{_number(frame.get('line'))})", 300)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _is_number(value: object) -> bool:
    """Whether it is a whole number of 64 bits, as all of torch's are."""
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63


def _number(value: object) -> int:
    """A count, which some writers have as text; raises FormatError for anything else."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        return int(value)
    if _is_number(value):
        return value  # type: ignore[return-value]
    raise FormatError(
        f"this is no dump of torch's flight recorder: a {type(value).__name__} stands for a number"
    )

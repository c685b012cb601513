"""Reads the dumps of torch's flight recorder: pickle and JSON, of any of its libraries.

The form is that of ``torch/csrc/distributed/c10d/FlightRecorder.hpp`` and
``FlightRecorderDetail.hpp``, versions 2.0 to 2.10. A dump says of each collective that a rank
called what it was and how far it came. It does not say whose it is: the rank is in the file's name
(``nccl_trace_rank_3``), as ``torch.distributed.flight_recorder`` reads it too.
"""

from __future__ import annotations

import math
import pickletools
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.text import excerpt
from portagpu.facts.formats.cleaning import decode_text
from portagpu.facts.formats.json_xml import json_documents
from portagpu.facts.readings.model import FormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

MAX_OPCODES: Final = 20_000_000
"""Opcodes of one pickle: 2000 entries of a flight recorder have 200 000."""
MAX_MARKS: Final = 32
"""Collections that are open at a time: a dump has about 6."""

_MARK: Final = object()
_SCALARS: Final = frozenset(
    {
        "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BININT", "BININT1", "BININT2", "LONG1",
        "BINFLOAT",
    }
)  # fmt: skip
_CONSTANTS: Final = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_IGNORED: Final = frozenset({"PROTO", "FRAME"})


class _Machine:
    """The stack, its open collections, and what the pickle remembers by number.

    A pickle is a program for a stack machine: its opcodes may import and call anything. This
    machine has only the opcodes that push, collect and repeat plain data, which are all that
    torch's own pickler writes into a dump. Any other opcode is refused.
    """

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def step(self, name: str, argument: Any) -> None:
        """Run one opcode; raises FormatError for one that is not data."""
        if name in _SCALARS:
            self.stack.append(argument)
        elif name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name])
        elif name in ("BINGET", "LONG_BINGET"):
            self.stack.append(self.memo[argument])
        elif name in ("BINPUT", "LONG_BINPUT"):
            self.memo[argument] = self.stack[-1]
        elif (action := _ACTIONS.get(name)) is not None:
            action(self)
        elif name not in _IGNORED:
            raise FormatError(
                f"this pickle would run code (opcode {name}), which no dump of torch does, so it "
                "was not run: get the dump from where it was written"
            )

    def _mark(self) -> None:
        if len(self.marks) == MAX_MARKS:
            raise FormatError("this pickle is nested too deeply for a dump")
        self.marks.append(len(self.stack))
        self.stack.append(_MARK)

    def _since_mark(self) -> list[Any]:
        at = self.marks.pop()
        items = self.stack[at + 1 :]
        del self.stack[at:]
        return items

    def _appends(self) -> None:
        items = self._since_mark()
        _of_kind(self.stack[-1], list).extend(items)

    def _append(self) -> None:
        item = self.stack.pop()
        _of_kind(self.stack[-1], list).append(item)

    def _set_items(self) -> None:
        items = self._since_mark()
        keys = [_key(each) for each in items[::2]]
        _of_kind(self.stack[-1], dict).update(zip(keys, items[1::2], strict=True))

    def _set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        _of_kind(self.stack[-1], dict)[_key(key)] = value

    def _tuple(self, count: int) -> None:
        items = tuple(self.stack[-count:])
        if len(items) < count:
            raise IndexError(count)
        del self.stack[-count:]
        self.stack.append(items)


def _key(value: Any) -> Any:
    """A key of a dict; the hash of a tuple can take all time, or the process's whole stack."""
    if isinstance(value, tuple):
        raise FormatError("this pickle has a tuple as a key, which no dump of torch has")
    return value


def _of_kind(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError(kind)
    return value


_ACTIONS: Final[dict[str, Callable[[_Machine], None]]] = {
    "MARK": _Machine._mark,
    "EMPTY_LIST": lambda machine: machine.stack.append([]),
    "EMPTY_DICT": lambda machine: machine.stack.append({}),
    "APPEND": _Machine._append,
    "APPENDS": _Machine._appends,
    "SETITEM": _Machine._set_item,
    "SETITEMS": _Machine._set_items,
    "TUPLE": lambda machine: machine.stack.append(tuple(machine._since_mark())),
    "TUPLE1": lambda machine: machine._tuple(1),
    "TUPLE2": lambda machine: machine._tuple(2),
    "TUPLE3": lambda machine: machine._tuple(3),
    "MEMOIZE": lambda machine: machine.memo.update({len(machine.memo): machine.stack[-1]}),
}


def load_data(data: bytes) -> Any:
    """The lists, dicts, tuples, texts, numbers, flags and None in a pickle of protocol 2 or newer.

    One object may stand in several places, as the pickle says, also inside itself. Raises
    FormatError for a pickle that breaks off, that would run code, or that has more opcodes or open
    collections than a dump has.
    """
    machine = _Machine()
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
            if count == MAX_OPCODES:
                raise FormatError("this pickle has more data than a dump")
            if opcode.name == "STOP":
                (value,) = machine.stack
                return value
            machine.step(opcode.name, argument)
    except FormatError:
        raise
    except (ValueError, LookupError, TypeError, UnicodeDecodeError, OverflowError):
        raise FormatError("this pickle is incomplete, or the file is not a pickle") from None
    raise FormatError("this pickle is incomplete, or the file is not a pickle")


KIND: Final = "flight recorder"
_NO_EVENTS: Final = "gloo"

Sizes = tuple[tuple[int, ...], ...]

_RANK: Final = re.compile(r"(\d{1,6})(?:\.(?:json|pickle|pkl|bin|dump))?")
_PEERS: Final = re.compile(r"(\d{1,6})(->|<-)(\d{1,6})")
_LISTED: Final = re.compile(r"\d{1,6}")
# bounds on what is taken from one entry, which a hostile dump may make of one object many times
_MAX_ENTRIES: Final = 200_000
_MAX_FRAMES: Final = 64
_MAX_TENSORS: Final = 4096
_MAX_RANKS: Final = 1 << 20
_OWN_FILES: Final = (
    *("-packages/torch/", "/torch/distributed/", "/torch/csrc/", "/torch/_"),
    "/portagpu_",
)
"""Of torch, and of a backend, which may do collectives on copies."""


_SAME_SIZES: Final = frozenset({"all_reduce", "allreduce_coalesced"})
_GATHERS: Final = frozenset({"all_gather", "_all_gather_base", "all_gather_into_tensor_coalesced"})
_SCATTERS: Final = frozenset(
    {"reduce_scatter", "_reduce_scatter_base", "reduce_scatter_tensor_coalesced"}
)
_KEEPS_DTYPE: Final = frozenset({*_SAME_SIZES, *_GATHERS, *_SCATTERS, "reduce"})


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
    def has_no_events(self) -> bool:
        """Whether its library records no start and end: only that it was called and is retired."""
        return self.library == _NO_EVENTS

    @property
    def is_given_up(self) -> bool:
        """Whether it ran out of time: retired without an end, of a library that records the end."""
        return self.retired and self.state != "completed" and not self.has_no_events

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


def contradiction(entry: Entry, size: int, *, exact: bool) -> tuple[str, str] | None:
    """(kind, words) where the tensors of one call do not fit each other.

    ``size`` is that of the group; ``exact`` says that it is known, not a lower bound.
    """
    given, taken = elements(entry.inputs[:1]), elements(entry.outputs[:1])
    if not entry.inputs or not entry.outputs:
        return None
    if entry.operation in _SAME_SIZES and entry.inputs != entry.outputs:
        return "shape", f"whose result is {[list(each) for each in entry.outputs[:3]]}"
    if exact and entry.operation in _GATHERS and taken != given * size:
        return "shape", f"whose result has {taken} elements instead of {given} from each of {size}"
    if exact and entry.operation in _SCATTERS and given != taken * size:
        return "shape", f"whose result has {taken} elements, which {size} ranks do not divide into"
    types = frozenset(entry.input_types), frozenset(entry.output_types)
    if entry.operation in _KEEPS_DTYPE and all(types) and types[0] != types[1]:
        return "dtype", f"whose result is {'/'.join(sorted(types[1]))}"
    return None


def elements(sizes: Sequence[Sequence[int]]) -> int:
    return sum(math.prod(each) for each in sizes)


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
            raise FormatError("this dump is incomplete: copy the whole file")
    else:
        document = load_data(data)
    if not isinstance(document, dict) or not isinstance(document.get("version"), str):
        raise FormatError("not a dump of torch's flight recorder")
    stated = document.get("rank")
    rank = rank_of(name) if not _is_number(stated) else stated
    if rank is None:
        raise FormatError(
            "its name does not end with a rank, and a dump does not state its rank: name it as "
            "torch does (rank_3)"
        )
    entries = document.get("entries", [])
    if not isinstance(entries, list | tuple):
        raise FormatError("not a dump of torch's flight recorder: 'entries' is not a list")
    if len(entries) > _MAX_ENTRIES:
        raise FormatError(f"this dump has more than {_MAX_ENTRIES} entries")
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
            raise FormatError(
                "not a dump of torch's flight recorder: 'pg_config' has an unexpected form"
            )
        stated = each.get("ranks")
        if isinstance(stated, list | tuple):
            ranks = {rank for rank in stated[:_MAX_RANKS] if _is_number(rank)}
        else:
            ranks = {int(rank) for rank in _LISTED.findall(_text(stated)[: 8 * _MAX_RANKS])}
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
            raise FormatError("not a dump of torch's flight recorder: an entry is not a table")
        group = each.get("process_group")
        if not isinstance(group, list | tuple) or len(group) != 2:
            raise FormatError(
                "not a dump of torch's flight recorder: 'process_group' is not a pair"
            )
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
                for each in value[:_MAX_TENSORS]
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
                excerpt(_text(each), 20) for each in value[:_MAX_TENSORS]
            )
        return self._types[id(value)]


def _place(frames: object) -> str:
    """ "function (file:line)" of the first frame of the program, else of the first; "" without."""
    if not isinstance(frames, list | tuple):
        return ""
    known = [each for each in frames[:_MAX_FRAMES] if isinstance(each, dict)]
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
        f"not a dump of torch's flight recorder: {type(value).__name__} instead of a number"
    )

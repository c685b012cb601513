"""Data of a pickle, read without running anything that the pickle names.

A pickle is a program for a stack machine: its opcodes may import and call anything. This machine
has only the opcodes that push, collect and repeat plain data, which are all that torch's own
pickler writes into a flight recorder's dump. Any other opcode is refused.
"""

from __future__ import annotations

import pickletools
from typing import TYPE_CHECKING, Any, Final

from portagpu.facts.readings.model import FormatError

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_OPCODES: Final = 20_000_000
"""Opcodes of one pickle: 2000 entries of a flight recorder have 200 000."""
MOST_MARKS: Final = 32
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
    """The stack, its open collections, and what the pickle remembers by number."""

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
                f"this pickle would run code (opcode {name}), which no dump of torch does: it was "
                "not run; get the dump from where it was written"
            )

    def _mark(self) -> None:
        if len(self.marks) == MOST_MARKS:
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
            if count == MOST_OPCODES:
                raise FormatError("this pickle has more data than a dump")
            if opcode.name == "STOP":
                (value,) = machine.stack
                return value
            machine.step(opcode.name, argument)
    except FormatError:
        raise
    except (ValueError, LookupError, TypeError, UnicodeDecodeError, OverflowError):
        raise FormatError("this pickle breaks off, or is none") from None
    raise FormatError("this pickle breaks off, or is none")

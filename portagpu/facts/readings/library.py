"""Calls of a vendor's Python module; None for what it refuses or does not have."""

from __future__ import annotations

import time
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeVar

from portagpu.base.text import error_line

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

_T = TypeVar("_T")

# what libraries store where a GPU has no such value: all ones in 16, 32 or 64 bits
_ABSENT: Final = frozenset({0xFFFF, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF})
MAX_PARTS: Final = 1024
"""Devices of a machine, or parts of a device: a library that states more is not to be believed."""
_NO_TEXT: Final = ("", "n/a", "unknown")


class Library:
    """Calls functions of ``module`` by name; None where it lacks the function or the call fails."""

    def __init__(self, module: Any) -> None:
        self.module = module

    def __call__(self, name: str, *arguments: Any) -> Any:
        """What the function returns; None where the module lacks it or the call fails.

        :param name: the name of the function.
        :param arguments: its arguments.
        """
        try:
            return getattr(self.module, name)(*arguments)
        except Exception:  # noqa: BLE001 - one value that fails stops no other
            return None

    def number(self, name: str, *arguments: Any) -> Any:
        """The number that a call returns; None for anything else.

        :param name: the name of the function.
        :param arguments: its arguments.
        """
        return number(self(name, *arguments))

    def integer(self, name: str, *arguments: Any) -> int | None:
        """The whole number that a call returns; None for anything else.

        :param name: the name of the function.
        :param arguments: its arguments.
        """
        return integer(self(name, *arguments))

    def count(self, name: str, *arguments: Any) -> int:
        """How many things a call states, to ask for each: 0 where it states no such number.

        :param name: the name of the function.
        :param arguments: its arguments.
        :returns: a number up to 1024: a library that states more is not believed.
        """
        found = self.integer(name, *arguments)
        return found if found is not None and 0 <= found <= MAX_PARTS else 0

    def text(self, name: str, *arguments: Any) -> str | None:
        """The text that a call returns; None for anything else.

        :param name: the name of the function.
        :param arguments: its arguments.
        """
        return text(self(name, *arguments))

    def mapping(self, name: str, *arguments: Any) -> dict[str, Any]:
        """The mapping that a call returns; empty for anything else.

        :param name: the name of the function.
        :param arguments: its arguments.
        """
        return table(self(name, *arguments))

    def integers(self, name: str, count: int, *arguments: Any) -> tuple[int, ...] | None:
        """The integers that a call returns in one list or tuple; None for anything else.

        :param name: the name of the function.
        :param count: how many integers there must be.
        :param arguments: its arguments.
        """
        found = self(name, *arguments)
        numbers = [integer(each) for each in found] if isinstance(found, list | tuple) else []
        known = tuple(each for each in numbers if each is not None)
        return known if len(known) == len(numbers) == count else None

    def member(self, kind: str, name: str) -> Any:
        """A member of one of the module's enumerations, None where this version lacks it.

        :param kind: the name of the enumeration.
        :param name: the name of its member.
        """
        return getattr(getattr(self.module, kind, None), name, None)


class Rarely:
    """Keeps what a call returned for ``after_s`` seconds: for values that cost much to read."""

    def __init__(self, after_s: float) -> None:
        self._after_s = after_s
        self._kept: dict[Hashable, tuple[float, Any]] = {}

    def __call__(self, key: Hashable, read: Callable[[], _T]) -> _T:
        """What ``read`` returned for that key, called again where it is too old.

        :param key: what is read, such as a device's index.
        :param read: reads it.
        """
        now = time.monotonic()
        if key not in self._kept or now - self._kept[key][0] >= self._after_s:
            self._kept[key] = (now, read())
        value: _T = self._kept[key][1]
        return value


def open_library(name: str, initialise: str, remedy: str) -> tuple[Any, str]:
    """Import a vendor's Python module and initialise it.

    Every exception is a reason: modules raise any for a missing symbol or driver.

    :param name: the module's name, as for an import.
    :param initialise: its function to call first, without arguments.
    :param remedy: what to do where the module is not installed.
    :returns: (module, ""), or (None, the reason in one line).
    """
    try:
        module = import_module(name)
        getattr(module, initialise)()
    except ModuleNotFoundError as error:
        missing = (error.name or "").split(".")[0] == name.split(".", maxsplit=1)[0]
        return None, f"is not installed: {remedy}" if missing else f"fails: {error_line(error)}"
    except (Exception, SystemExit) as error:  # noqa: BLE001
        return None, f"fails: {error_line(error)}"
    return module, ""


def number(value: Any) -> Any:
    """``value`` if it is a number; None for anything else, and for all ones."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value in _ABSENT:
        return None
    return value


def integer(value: Any) -> int | None:
    """``value`` as an integer, also from "0x74a1"; None for anything else."""
    if isinstance(value, str):
        try:
            value = int(value, 0)
        except ValueError:
            return None
    found = number(value)
    return int(found) if found is not None and found == found // 1 else None


def table(value: Any) -> dict[str, Any]:
    """``value`` if it is a table; an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def text(value: Any) -> str | None:
    """``value`` as text of one line without blanks; None for "N/A" and for nothing."""
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    found = value.strip() if isinstance(value, str) else ""
    return None if found.lower() in _NO_TEXT or not found.isprintable() else found

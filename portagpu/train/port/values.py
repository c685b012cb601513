"""Devices and communication libraries as values: which expressions stand for one."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import libcst as cst

from portagpu.train.port.expressions import last_name, numbered, string
from portagpu.train.port.names import DEVICE_NAME, LIBRARY_NAME

if TYPE_CHECKING:
    from collections.abc import Callable

    from portagpu.train.port.uses import Finder


def in_assignment(finder: Finder, target: cst.CSTNode, value: cst.BaseExpression) -> None:
    """A value that is assigned, or is a parameter's default."""
    in_named(finder, last_name(target), value)
    in_any(finder, value)


def in_named(finder: Finder, name: str, value: cst.BaseExpression) -> None:
    """A value under a name that says what it is: a device, or a communication library."""
    if DEVICE_NAME.fullmatch(name.replace("-", "_")):
        device(finder, value)
    elif LIBRARY_NAME.fullmatch(name.replace("-", "_")):
        library(finder, value)


def in_any(finder: Finder, value: cst.BaseExpression) -> None:
    """A device with a number is one under any name."""
    for words in finder.rules.words:
        number = numbered(value, words.device)
        if number is not None and not _is_fact(finder, number):
            device(finder, value)


def _is_fact(finder: Finder, value: cst.BaseExpression) -> bool:
    """Whether it is a version, a count or an answer of torch's: f"cuda:{torch.version.cuda}"."""
    name = finder.scope.qualified(value.func if isinstance(value, cst.Call) else value)
    known = name in finder.rules.names or any(name in each.available for each in finder.rules.words)
    return known and not name.endswith("current_device")


def device(finder: Finder, value: cst.BaseExpression, *, as_text: bool = True) -> None:
    """An expression in a place for a device. A text stays a text where ``as_text``."""
    if finder.is_portable(value) or _in_branches(finder, value, device, as_text=as_text):
        return
    write = finder.write
    make = write.device_text if as_text else write.device
    for words in finder.rules.words:
        rule = finder.rules.shapes["device text"]
        if string(value) == words.device:
            finder.add(value, rule, lambda _: make())
        elif numbered(value, words.device) is not None:
            finder.add(value, rule, partial(_renumbered, make, words.device))
    if not as_text and finder.scope.is_index(value):
        finder.add(value, finder.rules.shapes["device index"], write.device)


def _renumbered(
    make: Callable[[cst.BaseExpression | None], cst.BaseExpression],
    device: str,
    new: cst.BaseExpression,
) -> cst.BaseExpression:
    return make(numbered(new, device))


def library(finder: Finder, value: cst.BaseExpression) -> None:
    """An expression in a place for a communication library."""
    if finder.is_portable(value) or _in_branches(finder, value, library):
        return
    text = string(value) or ""
    for words in finder.rules.words:
        each = {part.rpartition(":")[2] for part in text.split(",")}
        if words.library in each:
            rule = finder.rules.shapes["library text"]
            finder.add(value, rule, finder.write.instead("pg.backend().comm.init_string"))


def _in_branches(finder: Finder, value: cst.BaseExpression, of: object, **options: bool) -> bool:
    """Look into ``a if test else b`` and ``a or b``; True where it was one of them."""
    assert callable(of)  # noqa: S101 - device or library, which stand below
    if isinstance(value, cst.IfExp):
        if not finder.scope.is_guard(value.test):
            of(finder, value.body, **options)
        if not finder.scope.is_opposite(value.test):
            of(finder, value.orelse, **options)
        return True
    if isinstance(value, cst.BooleanOperation):
        of(finder, value.left, **options)
        of(finder, value.right, **options)
        return True
    return False

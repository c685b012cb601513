"""Places where a device or a library can stand: values with a name, entries, loops, branches."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Final

import libcst as cst

from portagpu.train.port.expressions import (
    NOT_CPU,
    argument,
    dotted,
    last_name,
    numbered,
    string,
)
from portagpu.train.port.rules import DEVICE_NAME, LIBRARY_NAME

if TYPE_CHECKING:
    from collections.abc import Callable

    from portagpu.train.port.uses import Uses


_OWN: Final = re.compile(r"(?:^|\.)comm\.(?:device_ids?|output_device)\Z")
"""What the backend of portagpu offers for them, under a name of the program's."""


def in_process_devices(finder: Uses, value: cst.BaseExpression) -> None:
    """The devices of a process, which has none on a CPU."""
    guarded = isinstance(value, cst.IfExp) and finder.scope.is_guard(value.test)
    is_own = finder.scope.is_own(value) or _OWN.search(dotted(value))
    if last_name(value) == "None" or is_own or guarded:
        return
    rule = finder.rules.shapes["device ids"]
    finder.add(value, rule, finder.unless_cpu(value, lambda _: cst.Name("None")))


def in_entry(finder: Uses, entry: cst.DictElement) -> None:
    """A key and a value: what is loaded from a device keeps the device's name in a file."""
    key = string(entry.key) or ""
    for words in finder.rules.words:
        value = string(entry.value) or ""
        is_place = value.partition(":")[0] in (words.device, "cpu")
        is_place |= finder.scope.is_own(entry.value)
        if numbered(entry.key, words.device) is not None and (
            is_place or numbered(entry.value, words.device) is not None
        ):
            finder.handled.add(entry.key)
    in_named(finder, key, entry.value)
    if key in ("device_ids", "output_device"):
        in_process_devices(finder, entry.value)
    if key == "pin_memory" and last_name(entry.value) == "True":
        finder.add(entry.value, finder.rules.shapes["loader pin"], finder.write.instead(NOT_CPU))
    in_any(finder, entry.value)
    if all(each.device != key for each in finder.rules.words):  # a table of devices has all
        unknown(finder, entry.value)


def in_map_of_numbers(finder: Uses, value: cst.BaseExpression) -> None:
    """``device_map={"": 0}``, which takes the text of a CPU as well."""
    for each in value.elements if isinstance(value, cst.Dict) else ():
        number = each.value
        if finder.is_portable(number) or not (
            finder.scope.is_index(number) or _is_current(finder, number)
        ):
            continue
        rule = finder.rules.shapes["device index"]
        finder.add(number, rule, finder.unless_cpu(number, finder.write.instead('"cpu"')))


def _is_current(finder: Uses, node: cst.CSTNode) -> bool:
    name = finder.scope.qualified(node.func) if isinstance(node, cst.Call) else ""
    return name in {f"{each.module}.current_device" for each in finder.rules.words}


def in_each(finder: Uses, names: str, values: cst.BaseExpression) -> None:
    """What takes each of the values in turn: a loop, or a test for each parameter."""
    keys = [each.strip() for each in names.split(",")]
    if not isinstance(values, cst.List | cst.Tuple):
        return
    for each in (element.value for element in values.elements):
        parts = [part.value for part in getattr(each, "elements", ())] if len(keys) > 1 else [each]
        for name, part in zip(keys, parts, strict=False):
            in_named(finder, name, part)
            unknown(finder, part)


def unknown(finder: Uses, value: cst.BaseExpression) -> None:
    """A device or library whose use is not known."""
    if isinstance(value, cst.BooleanOperation) and isinstance(value.operator, cst.Or):
        unknown(finder, value.right)
    elif isinstance(value, cst.Call) and last_name(value.func) == "getattr" and value.args[2:]:
        unknown(finder, value.args[2].value)
    text = string(value)
    if finder.is_portable(value):
        return
    for words in finder.rules.words if text else ():
        shape = {words.device: "device text", words.library: "library text"}.get(text or "")
        if shape or numbered(value, words.device) is not None:
            rule = finder.rules.shapes[shape or "device text"]
            finder.add(value, rule, left="it is not known what the function does with it")


def in_return(finder: Uses, function: str, value: cst.BaseExpression) -> None:
    """``return "cuda"`` of a function whose name says that it is a device, or of another."""
    in_named(finder, function, value)
    in_any(finder, value)
    unknown(finder, value)


_FIELDS: Final = {"Argument", "Field", "Option", "field"}
"""Functions that describe an option or a field, and have its default."""


def in_assignment(finder: Uses, target: cst.CSTNode, value: cst.BaseExpression) -> None:
    """A value that is assigned, or is a parameter's default."""
    in_named(finder, _key(target) or last_name(target), value)
    if isinstance(value, cst.Call) and last_name(value.func) in _FIELDS:
        default = argument(value, 0, "default")
        if default is not None:
            in_named(finder, last_name(target), default.value)
            unknown(finder, default.value)
    in_any(finder, value)
    unknown(finder, value)


def _key(target: cst.CSTNode) -> str:
    """The key of ``options["device"]`` and ``os.environ["MY_DEVICE"]``."""
    if not isinstance(target, cst.Subscript):
        return ""
    first = target.slice[0].slice
    return (string(first.value) if isinstance(first, cst.Index) else None) or ""


def in_named(finder: Uses, name: str, value: cst.BaseExpression) -> None:
    """A value under a name that says what it is: a device, or a communication library."""
    if DEVICE_NAME.fullmatch(name.replace("-", "_")):
        in_device_place(finder, value)
    elif LIBRARY_NAME.fullmatch(name.replace("-", "_")):
        in_library_place(finder, value)


def in_any(finder: Uses, value: cst.BaseExpression) -> None:
    """A device with a number is one under any name."""
    for words in finder.rules.words:
        number = numbered(value, words.device)
        if number is not None and not _is_fact(finder, number):
            in_device_place(finder, value)


def _is_fact(finder: Uses, value: cst.BaseExpression) -> bool:
    """Whether it is a version, a count or an answer of torch's: f"cuda:{torch.version.cuda}"."""
    name = finder.scope.qualified(value.func if isinstance(value, cst.Call) else value)
    known = name in finder.rules.names or any(name in each.available for each in finder.rules.words)
    return known and not name.endswith("current_device")


def in_device_place(finder: Uses, value: cst.BaseExpression, *, numbers: bool = False) -> None:
    """An expression in a place for a device, where numbers are devices too if ``numbers``."""
    if finder.is_portable(value) or _in_branches(finder, value, in_device_place, numbers=numbers):
        return
    write = finder.write
    for words in finder.rules.words:
        rule = finder.rules.shapes["device text"]
        if string(value) == words.device:
            finder.add(value, rule, lambda _: write.device())
        elif numbered(value, words.device) is not None:
            finder.add(value, rule, partial(_renumbered, write.device, words.device))
    if numbers and finder.scope.is_index(value):
        finder.add(value, finder.rules.shapes["device index"], write.device)
    elif numbers and isinstance(value, cst.Call) and last_name(value.func) == "get_device":
        _device_of_tensor(finder, value)


def _device_of_tensor(finder: Uses, call: cst.Call) -> None:
    """``device=x.get_device()``, which is -1 on a CPU."""
    if isinstance(call.func, cst.Attribute) and not call.args:
        rule = finder.rules.shapes["device index"]
        finder.add(call, rule, lambda new: new.func.with_changes(attr=cst.Name("device")))


def _renumbered(
    make: Callable[[cst.BaseExpression | None], cst.BaseExpression],
    device: str,
    new: cst.BaseExpression,
) -> cst.BaseExpression:
    return make(numbered(new, device))


def in_library_place(finder: Uses, value: cst.BaseExpression) -> None:
    """An expression in a place for a communication library."""
    if finder.is_portable(value) or _in_branches(finder, value, in_library_place):
        return
    for words in finder.rules.words:
        rule, text = finder.rules.shapes["library text"], finder.scope.library(value) or ""
        both = f"cpu:gloo,{words.device}:{words.library}"
        parts = text.split(",")
        if text in (words.library, both):
            code = "pg.c10d_name(host=True)" if text == both else "pg.c10d_name()"
            finder.add(value, rule, finder.write.instead(code))
        elif {*parts} <= {"cpu:gloo", f"{words.device}:{words.library}"}:
            gloo = finder.write.instead("pg.c10d_name()")
            finder.add(value, rule, finder.unless_cpu(value, gloo))
        elif words.library in {part.rpartition(":")[2] for part in parts}:
            finder.add(value, rule, left="portagpu names one library, and Gloo with it")


def _in_branches(finder: Uses, value: cst.BaseExpression, of: object, **options: bool) -> bool:
    """Look into ``a if test else b`` and ``a or b``; True where it was one of them."""
    assert callable(of)  # noqa: S101 - one of the two functions above
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

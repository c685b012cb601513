"""Calls that belong to one vendor, and which values stand for its devices and libraries."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import libcst as cst

from portagpu.train.port.expressions import (
    argument,
    code_of,
    is_simple,
    keyword,
    last_name,
    numbered,
    string,
    without,
)
from portagpu.train.port.rules import DEVICE_NAME, LIBRARY_NAME

if TYPE_CHECKING:
    from collections.abc import Callable

    from portagpu.train.port.analysis import Uses


_DEVICE_FIRST: Final = {"Generator", "set_default_device", "set_device", "init_device_mesh"}
"""Functions of torch whose first argument is a device."""
_AUTOCAST: Final = {"torch.autocast", "torch.amp.autocast", "torch.amp.autocast_mode.autocast"}
_SCALER: Final = {"torch.amp.GradScaler", "torch.GradScaler", "torch.amp.grad_scaler.GradScaler"}
_NO_DEVICE: Final = {
    *("print", "getattr", "hasattr", "setattr", "isinstance", "startswith", "endswith", "get"),
    *("pop", "replace", "split", "append", "getenv", "add_argument", "warn", "warning", "info"),
    *("debug", "error", "format", "match", "compile", "search", "add", "join", "field", "skip"),
}
"""Functions whose arguments are text."""


def in_call(finder: Uses, call: cst.Call) -> None:
    """Look at one call."""
    name = finder.scope.qualified(call.func)
    if _method(finder, call, name) or _torch_device(finder, call, name):
        return
    if name in _AUTOCAST and _first_device(finder, call, "device_type", "autocast"):
        return
    if name in _SCALER and _first_device(finder, call, "device", "scaler"):
        return
    _options(finder, call)
    _devices(finder, call, name)
    _libraries(finder, call)
    _process_devices(finder, call, name)
    _keywords(finder, call, name)
    _vendor_options(finder, call, name)
    _name_as_text(finder, call)
    _pinned(finder, call, name)
    _batch_norm(finder, call, name)
    _rest(finder, call)


def _method(finder: Uses, call: cst.Call, name: str) -> bool:
    """``x.cuda(...)``."""
    method = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
    words = [each for each in finder.rules.words if each.device == method and each.module != name]
    if not words:
        return False
    rule = finder.rules.shapes["method"]
    if method in finder.scope.methods:
        finder.add(call, rule, left=f"this file defines a method {method} of its own")
        return True
    if any(arg.star for arg in call.args) or len(call.args) > 2:
        finder.add(call, rule, left="this line does not show its arguments")
        return True
    value = argument(call, 0, "device")
    if value is not None and any(
        string(value.value) == each.device or numbered(value.value, each.device) is not None
        for each in words
    ):
        finder.handled.add(value.value)
    finder.add(call, rule, lambda new: _to_device(finder, new, method))
    return True


def _to_device(finder: Uses, call: cst.Call, method: str) -> cst.Call:
    value, waits = argument(call, 0, "device"), argument(call, 1, "non_blocking")
    index = None if value is None or string(value.value) == method else value.value
    if index is not None:
        index = numbered(index, method) or index
    if isinstance(index, cst.Name) and index.value == "None":
        index = None
    new = [cst.Arg(finder.write.device(index))]
    if waits is not None and waits is not value:
        equal = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
        new[0] = new[0].with_changes(comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")))
        new.append(cst.Arg(waits.value, keyword=cst.Name("non_blocking"), equal=equal))
    assert isinstance(call.func, cst.Attribute)  # noqa: S101 - as where it was found
    return call.with_changes(func=call.func.with_changes(attr=cst.Name("to")), args=new)


def _torch_device(finder: Uses, call: cst.Call, name: str) -> bool:
    """``torch.device("cuda", i)``."""
    if name != "torch.device" or not call.args:
        return False
    first, second = argument(call, 0, "type"), argument(call, 1, "index")
    for words in finder.rules.words:
        device = words.device
        if first is None or finder.is_portable(first.value):
            break
        is_plain = string(first.value) == device
        if is_plain or numbered(first.value, device) is not None:
            finder.handled.add(first.value)

            def replace(new: cst.Call, device: str = device) -> cst.BaseExpression:
                place = argument(new, 1, "index") if second is not None else None
                inner = argument(new, 0, "type")
                found = None if inner is None else numbered(inner.value, device)
                return finder.write.device(found if place is None else place.value)

            finder.add(call, finder.rules.shapes["device text"], replace)
            return True
    if first is not None and second is None:
        if finder.scope.is_index(first.value):
            rule = finder.rules.shapes["device index"]
            finder.add(call, rule, lambda new: finder.write.device(new.args[0].value))
        else:
            in_device_place(finder, first.value)
    return True


def _first_device(finder: Uses, call: cst.Call, key: str, shape: str) -> bool:
    """``torch.autocast("cuda", ...)``, ``torch.amp.GradScaler("cuda", ...)``."""
    first = argument(call, 0, key)
    plain = first is not None and any(
        string(first.value) == each.device for each in finder.rules.words
    )
    if first is not None and not plain:
        return False
    if first is None and (key != "device" or any(arg.star for arg in call.args)):
        return False  # GradScaler alone has a default: the vendor's device
    if first is not None:
        finder.handled.add(first.value)

    def replace(new: cst.Call) -> cst.Call:
        gone = argument(new, 0, key) if first is not None else None
        arguments = new.args if gone is None else without(new.args, gone)
        to = finder.write.expression("pg.autocast" if shape == "autocast" else "pg.GradScaler")
        return new.with_changes(func=to, args=arguments)

    finder.add(call, finder.rules.shapes[shape], replace)
    finder.handled.add(call.func)
    return True


def _options(finder: Uses, call: cst.Call) -> None:
    """Defaults of argparse and click: ``add_argument("--device", default="cuda")``."""
    default = keyword(call, "default")
    if default is None or last_name(call.func) not in ("add_argument", "option"):
        return
    for arg in call.args:
        flag = string(arg.value) if arg.keyword is None or arg.keyword.value == "dest" else None
        in_named(finder, (flag or "").lstrip("-"), default.value)


def _devices(finder: Uses, call: cst.Call, name: str) -> None:
    """Positional devices: ``x.to("cuda")``, ``torch.load(path, "cuda")``."""
    last = last_name(call.func)
    is_torch = name.startswith("torch.")
    at = 0 if last == "to" or (is_torch and last in _DEVICE_FIRST) else None
    at = 1 if name == "torch.load" else at
    if at is None or len(call.args) <= at or call.args[at].keyword is not None:
        return
    in_device_place(finder, call.args[at].value, as_text=last != "to")


def _libraries(finder: Uses, call: cst.Call) -> None:
    """``init_process_group("nccl")``."""
    if last_name(call.func) == "init_process_group":
        first = argument(call, 0, "backend")
        if first is not None:
            in_library_place(finder, first.value)


def _keywords(finder: Uses, call: cst.Call, name: str) -> None:
    """``device=``, ``map_location=``, ``device_type=``, ``backend=`` of any function."""
    takes_object = name.startswith("torch.") or last_name(call.func) in ("to", "to_empty")
    for arg in call.args:
        key = "" if arg.keyword is None else arg.keyword.value
        if key == "map_location" or (DEVICE_NAME.fullmatch(key) and not key.endswith("type")):
            in_device_place(finder, arg.value, as_text=not takes_object)
        elif DEVICE_NAME.fullmatch(key):
            in_device_place(finder, arg.value)
        elif LIBRARY_NAME.fullmatch(key):
            in_library_place(finder, arg.value)


def _vendor_options(finder: Uses, call: cst.Call, name: str) -> None:
    """``Trainer(accelerator="gpu")``, and what else the tables have of keywords."""
    for arg in call.args:
        option = None if arg.keyword is None else finder.rules.options.get(arg.keyword.value)
        if option is None or (option.packages and name.partition(".")[0] not in option.packages):
            continue
        text = string(arg.value)
        if (code_of(arg.value) if text is None else repr(text)) in option.values:
            finder.add(
                arg.value, option.rule, left="this line does not show what else the program sets"
            )


def _name_as_text(finder: Uses, call: cst.Call) -> None:
    """``getattr(torch, "cuda")``."""
    if last_name(call.func) != "getattr" or len(call.args) < 2:
        return
    module, name = finder.scope.qualified(call.args[0].value), string(call.args[1].value)
    if module and name:
        finder.look_up(call, f"{module}.{name}")


def _process_devices(finder: Uses, call: cst.Call, name: str) -> None:
    """``device_ids=[i]`` and ``output_device=i`` of DistributedDataParallel and barrier."""
    is_wrapper = name.endswith(".DistributedDataParallel") and not name.startswith("apex.")
    if not is_wrapper and not name.endswith("distributed.barrier"):
        return
    rule = finder.rules.shapes["device ids"]
    for at, key in ((1, "device_ids"), (2, "output_device")):
        arg = argument(call, at, key) if is_wrapper else keyword(call, key)
        value = None if arg is None else arg.value
        if value is None or last_name(value) == "None" or finder.scope.is_own(value):
            continue
        one = isinstance(value, cst.List) and len(value.elements) == 1
        if key == "output_device" or one:
            code = f"pg.backend().comm.{key}"
            finder.add(value, rule, finder.write.instead(code))
        elif not (isinstance(value, cst.IfExp) and finder.scope.is_guard(value.test)):
            finder.add(value, rule, left="it is not a list of one device here")


def _pinned(finder: Uses, call: cst.Call, name: str) -> None:
    """``x.pin_memory()``, and ``pin_memory=True`` of a loader."""
    code = 'pg.supports("pinned-memory")'
    option = keyword(call, "pin_memory")
    if option is not None and last_name(option.value) == "True":
        is_tensor = name.startswith("torch.") and not name.startswith("torch.utils.data.")
        rule = finder.rules.shapes["pin" if is_tensor else "loader pin"]
        finder.add(option.value, rule, finder.write.instead(code))
    if last_name(call.func) != "pin_memory" or call.args:
        return
    rule = finder.rules.shapes["pin"]
    assert isinstance(call.func, cst.Attribute | cst.Name)  # noqa: S101 - it has a last name
    if isinstance(call.func, cst.Name):
        return
    if not is_simple(call.func.value):
        finder.add(call, rule, left="the tensor would be computed twice: give it a name first")
        return

    def replace(new: Any) -> cst.BaseExpression:
        tensor = new.func.value
        pinned = cst.Call(finder.write.expression("pg.pin"), [cst.Arg(tensor)])
        return _choice(pinned, finder.write.expression(code), tensor)

    finder.add(call, rule, replace)


def _choice(
    then: cst.BaseExpression, test: cst.BaseExpression, otherwise: cst.BaseExpression
) -> cst.BaseExpression:
    brackets = {"lpar": [cst.LeftParen()], "rpar": [cst.RightParen()]}
    return cst.IfExp(test=test, body=then, orelse=otherwise).with_changes(**brackets)


def _batch_norm(finder: Uses, call: cst.Call, name: str) -> None:
    """``SyncBatchNorm.convert_sync_batchnorm(model)``."""
    if not name.endswith("SyncBatchNorm.convert_sync_batchnorm") or not call.args:
        return
    rule = finder.rules.shapes["sync batch norm"]
    if not is_simple(call.args[0].value):
        finder.add(call, rule, left="the module would be made twice: give it a name first")
        return
    test = 'pg.device().type != "cpu"'
    finder.add(
        call,
        rule,
        lambda new: _choice(new, finder.write.expression(test), new.args[0].value),
    )


def _rest(finder: Uses, call: cst.Call) -> None:
    """A device or library as an argument of a function that is not known."""
    if last_name(call.func) in _NO_DEVICE:
        return
    for arg in call.args:
        text = None if arg.keyword is not None else string(arg.value)
        for words in finder.rules.words if text else ():
            shape = {words.device: "device text", words.library: "library text"}.get(text or "")
            if shape or numbered(arg.value, words.device) is not None:
                rule = finder.rules.shapes[shape or "device text"]
                finder.add(arg.value, rule, left="it is not known what the function does with it")


def in_assignment(finder: Uses, target: cst.CSTNode, value: cst.BaseExpression) -> None:
    """A value that is assigned, or is a parameter's default."""
    in_named(finder, last_name(target), value)
    in_any(finder, value)


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


def in_device_place(finder: Uses, value: cst.BaseExpression, *, as_text: bool = True) -> None:
    """An expression in a place for a device. A text stays a text where ``as_text``."""
    if finder.is_portable(value) or _in_branches(finder, value, in_device_place, as_text=as_text):
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


def in_library_place(finder: Uses, value: cst.BaseExpression) -> None:
    """An expression in a place for a communication library."""
    if finder.is_portable(value) or _in_branches(finder, value, in_library_place):
        return
    text = string(value) or ""
    for words in finder.rules.words:
        each = {part.rpartition(":")[2] for part in text.split(",")}
        if words.library in each:
            rule = finder.rules.shapes["library text"]
            finder.add(value, rule, finder.write.instead("pg.backend().comm.init_string"))


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

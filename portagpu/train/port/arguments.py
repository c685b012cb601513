"""Calls that belong to one vendor, and which values stand for its devices and libraries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from portagpu.train.port.expressions import (
    NOT_CPU,
    argument,
    code_of,
    dotted,
    is_simple,
    keyword,
    last_name,
    numbered,
    string,
)
from portagpu.train.port.places import (
    in_device_place,
    in_each,
    in_library_place,
    in_map_of_numbers,
    in_named,
    in_process_devices,
    unknown,
)
from portagpu.train.port.rules import DEVICE_NAME, LIBRARY_NAME, TAKE_DEVICE

if TYPE_CHECKING:
    from portagpu.train.port.uses import Uses


_DEVICE_FIRST: Final = {
    *("Generator", "set_default_device", "set_device", "init_device_mesh", "DeviceMesh"),
    "is_autocast_enabled",
    *("get_autocast_dtype", "is_autocast_available", "set_autocast_enabled", "set_autocast_dtype"),
}
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
    if last_name(call.func) == "parametrize" and len(call.args) > 1:
        in_each(finder, string(call.args[0].value) or "", call.args[1].value)
    _defaults(finder, call)
    _autocast_state(finder, call, name)
    _devices(finder, call, name)
    _libraries(finder, call)
    _process_devices(finder, call, name)
    _forked_generators(finder, call, name)
    _stream_of_tensor(finder, call)
    _keywords(finder, call, name)
    _vendor_options(finder, call, name)
    _name_as_text(finder, call, name)
    _numbers_of_functions(finder, call, name)
    _pinned(finder, call, name)
    _batch_norm(finder, call, name)
    _rest(finder, call)


def _method(finder: Uses, call: cst.Call, name: str) -> bool:
    """``x.cuda(...)``."""
    if isinstance(call.func, cst.Call) and last_name(call.func.func) == "getattr":
        named = argument(call.func, 1, "name")
        if named and string(named.value) in {each.device for each in finder.rules.words}:
            left = "the method is named by a text"
            finder.add(call, finder.rules.shapes["method"], left=left)
    if not isinstance(call.func, cst.Attribute):
        return False
    method = call.func.attr.value
    words = [each for each in finder.rules.words if each.device == method and each.module != name]
    if not words:
        return False
    rule = finder.rules.shapes["method"]
    if method in finder.scope.methods:
        finder.add(call, rule, left=f"this file defines a method {method} of its own")
        return True
    if finder.scope.own_methods:
        left = f"{finder.scope.own_methods} defines a method {method} of its own"
        finder.add(call, rule, left=left)
        return True
    owners = {f"torch.{each}.{method}" for each in _OWNERS}
    if (owners | ({dotted(call.func)} - {""})) & finder.scope.patched:
        finder.add(call, rule, left="the file puts another object there")
        return True
    if call.args and finder.scope.is_class(call.func.value):
        finder.add(call.func, rule, left="it is called on a class")
        return True
    if any(arg.star for arg in call.args) or len(call.args) > 2:
        finder.add(call, rule, left="this line does not show its arguments")
        return True
    if others := {arg.keyword.value for arg in call.args if arg.keyword} - _KEYWORDS:
        finder.add(call, rule, left=f"its argument {min(others)} has no place in another call")
        return True
    value = argument(call, 0, "device")
    is_storage = call.func.value in finder.scope.storages
    if value is not None and not is_storage and finder.scope.may_be_storage(call.func.value):
        finder.add(call, rule, left="a storage takes 0 for the current device, a tensor does not")
        return True
    if value is not None and any(
        string(value.value) == each.device or numbered(value.value, each.device) is not None
        for each in words
    ):
        finder.handled.add(value.value)
    is_storage |= finder.scope.may_be_storage(call.func.value)
    finder.add(call, rule, lambda new: _to_device(finder, new, method, is_storage=is_storage))
    return True


_OWNERS: Final = ("Tensor", "nn.Module")
_KEYWORDS: Final = {"device", "non_blocking"}


def _to_device(finder: Uses, call: cst.Call, method: str, *, is_storage: bool) -> cst.Call:
    assert isinstance(call.func, cst.Attribute)  # noqa: S101 - as where it was found
    value, waits = argument(call, 0, "device"), argument(call, 1, "non_blocking")
    index = None if value is None or string(value.value) == method else value.value
    if index is not None:
        index = numbered(index, method) or index
    if isinstance(index, cst.Name) and index.value == "None":
        index = None
    new = [cst.Arg(finder.write.device(index))]
    equal = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    if is_storage:
        if index is not None and not (isinstance(index, cst.Integer) and int(index.value)):
            # torch takes 0 for the current device here (torch 2.13, torch/storage.py)
            space = cst.SimpleWhitespace(" ")
            either = cst.Or(whitespace_before=space, whitespace_after=space)
            index = cst.BooleanOperation(index, either, cst.Name("None"))
        place = finder.write.device(index)
        new = [cst.Arg(place, keyword=cst.Name("device"), equal=equal)]
    if waits is not None and waits is not value:
        new[0] = new[0].with_changes(comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")))
        new.append(cst.Arg(waits.value, keyword=cst.Name("non_blocking"), equal=equal))
    return call.with_changes(func=call.func.with_changes(attr=cst.Name("to")), args=new)


def _torch_device(finder: Uses, call: cst.Call, name: str) -> bool:
    """``torch.device("cuda", i)``: a text without a number stays a device without one."""
    if name != "torch.device" or not call.args:
        return False
    first = argument(call, 0, "type") or keyword(call, "device")
    second = argument(call, 1, "index")
    devices = [each.device for each in finder.rules.words]
    if first is None or finder.is_portable(first.value):
        return True
    if second is None:
        in_device_place(finder, first.value, numbers=True)
    elif string(first.value) in devices:
        finder.handled.add(first.value)

        def replace(new: cst.Call) -> cst.BaseExpression:
            place = argument(new, 1, "index")
            assert place is not None  # noqa: S101 - it was there
            return new.with_changes(args=[cst.Arg(finder.write.device(place.value))])

        finder.add(call, finder.rules.shapes["device text"], replace)
    return True


def _first_device(finder: Uses, call: cst.Call, key: str, shape: str) -> bool:
    """``torch.autocast("cuda", ...)``, ``torch.amp.GradScaler("cuda", ...)``."""
    rule, first = finder.rules.shapes[shape], argument(call, 0, key)
    if first is not None:
        if any(string(first.value) == each.device for each in finder.rules.words):
            finder.add(first.value, rule, lambda _: finder.write.device())
        else:
            in_device_place(finder, first.value)
        return False
    if key == "device" and not any(arg.star for arg in call.args):  # its default is a device
        comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))

        def replace(new: cst.Call) -> cst.Call:
            place = cst.Arg(finder.write.device())
            return new.with_changes(
                args=[place.with_changes(comma=comma), *new.args] if new.args else [place]
            )

        finder.add(call, rule, replace)
        finder.handled.add(call.func)
    return False


def _options(finder: Uses, call: cst.Call) -> None:
    """Defaults of argparse and click: ``add_argument("--device", default="cuda")``."""
    default = keyword(call, "default")
    if default is None or last_name(call.func) not in ("add_argument", "option"):
        return
    for arg in call.args:
        flag = string(arg.value) if arg.keyword is None or arg.keyword.value == "dest" else None
        in_named(finder, (flag or "").lstrip("-"), default.value)
        words = (*_OF_A_DEVICE, *(each.device for each in finder.rules.words))
        if any(word in (flag or "").lower() for word in words):
            unknown(finder, default.value)


_OF_A_DEVICE: Final = ("gpu", "accel", "hardware", "platform")
"""Options whose value is of a device, in a way that the line does not show."""
_DEFAULTS: Final = {"getattr": 1, "get": 0, "getenv": 0, "pop": 0, "setdefault": 0}
"""Functions that return their next argument where there is no value of that name."""


def _defaults(finder: Uses, call: cst.Call) -> None:
    """``getattr(args, "device", "cuda")``, ``options.get("device", "cuda")``."""
    at = _DEFAULTS.get(last_name(call.func))
    if at is not None and len(call.args) > at + 1 and call.args[at + 1].keyword is None:
        name = string(call.args[at].value) or ""
        in_named(finder, name.rpartition(".")[2], call.args[at + 1].value)


_STATES: Final = {
    "torch.is_autocast_enabled": ("torch.is_autocast_enabled", 0),
    "torch.get_autocast_gpu_dtype": ("torch.get_autocast_dtype", 0),
    "torch.set_autocast_enabled": ("torch.set_autocast_enabled", 1),
    "torch.set_autocast_gpu_dtype": ("torch.set_autocast_dtype", 1),
}
"""Functions of torch that mean CUDA with this many arguments, and what takes a device first."""


def _autocast_state(finder: Uses, call: cst.Call, name: str) -> None:
    """``torch.is_autocast_enabled()``, which asks for CUDA's autocast."""
    to, count = _STATES.get(name, ("", -1))
    if len(call.args) != count or any(arg.star or arg.keyword for arg in call.args):
        return
    if not finder.scope.has_torch:
        left = "this file does not import torch by its name"
        finder.add(call, finder.rules.shapes["autocast"], left=left)
        return
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))

    def replace(new: cst.Call) -> cst.Call:
        first = cst.Arg(finder.write.device())
        arguments = [first.with_changes(comma=comma), *new.args] if new.args else [first]
        return new.with_changes(func=finder.write.expression(to), args=arguments)

    finder.add(call, finder.rules.shapes["autocast"], replace)
    finder.handled.add(call.func)


def _devices(finder: Uses, call: cst.Call, name: str) -> None:
    """Positional devices: ``x.to("cuda")``, ``torch.load(path, "cuda")``."""
    last = last_name(call.func)
    is_torch = name.startswith("torch.")
    at = 0 if last == "to" or (is_torch and last in _DEVICE_FIRST) else None
    at = 1 if name == "torch.load" else at
    if any(name.startswith(f"{each.module}.") for each in finder.rules.words):
        at = 0
    if at is None or len(call.args) <= at or call.args[at].keyword is not None:
        return
    in_device_place(finder, call.args[at].value, numbers=last == "to")


def _libraries(finder: Uses, call: cst.Call) -> None:
    """``init_process_group("nccl")``."""
    last = last_name(call.func)
    if last == "init_process_group":
        first = argument(call, 0, "backend")
        if first is not None:
            in_library_place(finder, first.value)
    bound = keyword(call, "device_id") if last in _GROUPS else None
    if bound is not None:
        in_process_devices(finder, bound.value)


_GROUPS: Final = {"init_process_group", "new_group", "split_group"}
"""Functions that bind a process group to a device, which torch refuses for a CPU."""


def _keywords(finder: Uses, call: cst.Call, name: str) -> None:
    """``device=``, ``map_location=``, ``device_type=``, ``backend=`` of any function."""
    takes_object = name.startswith("torch.") or last_name(call.func) in ("to", "to_empty")
    for arg in call.args:
        key = "" if arg.keyword is None else arg.keyword.value
        if key == "map_location" or DEVICE_NAME.fullmatch(key):
            numbers = takes_object and not key.endswith("type")
            in_device_place(finder, arg.value, numbers=numbers)
            if key == "device_map":
                in_map_of_numbers(finder, arg.value)
        elif LIBRARY_NAME.fullmatch(key):
            in_library_place(finder, arg.value)


_NO_GPU: Final = {"0", "False", "None"}


def _vendor_options(finder: Uses, call: cst.Call, name: str) -> None:
    """``Trainer(accelerator="gpu")``, and what else the tables have of keywords."""
    for arg in call.args:
        option = None if arg.keyword is None else finder.rules.options.get(arg.keyword.value)
        if option is None or (option.packages and name.partition(".")[0] not in option.packages):
            continue
        text = string(arg.value)
        value = code_of(arg.value) if text is None else repr(text)
        if value in option.values if option.values else value not in _NO_GPU:
            finder.add(
                arg.value, option.rule, left="this line does not show what else the program sets"
            )


_IMPORTS: Final = {"importlib.import_module", "importlib.__import__"}


def _name_as_text(finder: Uses, call: cst.Call, name: str) -> None:
    """``getattr(torch, "cuda")``, ``importlib.import_module("torch.cuda")``."""
    if name in _IMPORTS or dotted(call.func) == "__import__":
        named = argument(call, 0, "name")
        finder.imported_by_text(call, (named and string(named.value)) or "")
        return
    if last_name(call.func) != "getattr" or len(call.args) < 2:
        return
    module, part = finder.scope.qualified(call.args[0].value), string(call.args[1].value)
    if module and part:
        finder.look_up(call, f"{module}.{part}")


def _numbers_of_functions(finder: Uses, call: cst.Call, name: str) -> None:
    """``load(model, rank)`` of a function of the file with a parameter ``device``, and
    ``device=rank`` of any that is not torch's."""
    if name.startswith("torch."):
        return
    numbers = [arg for arg in call.args if finder.scope.is_index(arg.value)]
    names = finder.scope.parameters(call.func) if numbers else []
    for at, arg in enumerate(call.args):
        if arg.star:
            names = []  # what comes after it has another place
        key = arg.keyword.value if arg.keyword else names[at] if at < len(names) else ""
        if key in TAKE_DEVICE and arg in numbers:
            left = "whether the function counts on a number is not in this line"
            if not finder.is_portable(arg.value):
                finder.add(arg.value, finder.rules.shapes["device index"], left=left)


def _process_devices(finder: Uses, call: cst.Call, name: str) -> None:
    """``device_ids=[i]`` and ``output_device=i`` of DistributedDataParallel, barrier and others.

    A class that derives from torch's takes them too. DataParallel takes them on a CPU as well.
    """
    if name.startswith("apex.") or last_name(call.func) in ("DataParallel", "data_parallel"):
        return
    is_wrapper = name.endswith(".DistributedDataParallel") or finder.scope.is_wrapper(call.func)
    for at, key in ((1, "device_ids"), (2, "output_device")):
        arg = argument(call, at, key) if is_wrapper else keyword(call, key)
        if arg is not None:
            in_process_devices(finder, arg.value)


def _forked_generators(finder: Uses, call: cst.Call, name: str) -> None:
    """``fork_rng(devices=[...])``, which forks the CPU's generator in any case."""
    if name not in ("torch.random.fork_rng", "torch.fork_rng"):
        return
    arg = argument(call, 0, "devices")
    if arg is None or finder.scope.is_own(arg.value) or code_of(arg.value) in ("None", "[]", "()"):
        return
    rule = finder.rules.shapes["generators"]
    finder.add(arg.value, rule, finder.unless_cpu(arg.value, lambda _: cst.List([])))


def _stream_of_tensor(finder: Uses, call: cst.Call) -> None:
    """``x.record_stream(stream)``, which torch has on no CPU."""
    if last_name(call.func) != "record_stream" or len(call.args) != 1:
        return
    if isinstance(call.func, cst.Attribute):
        rule = finder.rules.shapes["stream of a tensor"]
        finder.add(call, rule, finder.unless_cpu(call, lambda _: cst.Name("None")))


def _pinned(finder: Uses, call: cst.Call, name: str) -> None:
    """``x.pin_memory()``, and ``pin_memory=True`` of a loader."""
    option = keyword(call, "pin_memory")
    if option is not None and last_name(option.value) == "True":
        is_tensor = name.startswith("torch.") and not name.startswith("torch.utils.data.")
        rule = finder.rules.shapes["pin" if is_tensor else "loader pin"]
        finder.add(option.value, rule, finder.write.instead(NOT_CPU))
    if last_name(call.func) != "pin_memory" or call.args:
        return
    rule = finder.rules.shapes["pin"]
    assert isinstance(call.func, cst.Attribute | cst.Name)  # noqa: S101 - it has a last name
    if isinstance(call.func, cst.Name):
        return
    if not is_simple(call.func.value):
        finder.add(call, rule, left="the tensor would be computed twice: give it a name first")
        return

    finder.add(call, rule, finder.unless_cpu(call, lambda new: new.func.value))


def _batch_norm(finder: Uses, call: cst.Call, name: str) -> None:
    """``SyncBatchNorm.convert_sync_batchnorm(model)``."""
    if not name.endswith("SyncBatchNorm.convert_sync_batchnorm") or not call.args:
        return
    rule = finder.rules.shapes["sync batch norm"]
    if not is_simple(call.args[0].value):
        finder.add(call, rule, left="the module would be made twice: give it a name first")
        return
    finder.add(call, rule, finder.unless_cpu(call, lambda new: new.args[0].value))


def _rest(finder: Uses, call: cst.Call) -> None:
    """A device or library as an argument of a function that is not known."""
    if last_name(call.func) in _NO_DEVICE:
        return
    for arg in call.args:
        if not arg.star:
            unknown(finder, arg.value)

"""Runs a program that was written for one vendor's GPUs, unchanged, on this backend.

For this process torch's names of that vendor answer with portagpu's, and its devices are this
backend's. It is for trying a program before it is rewritten: what was answered is counted by line
and reported at the end. It is refused where torch's own build for GPUs works. Processes of
multiprocessing are answered too, from before they import the program on. What it cannot answer
raises as it does without it: names that portagpu lacks, and other programs that a program starts.
"""

from __future__ import annotations

import atexit
import functools
import os
import re
import sys
from collections import Counter
from multiprocessing import spawn
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.errors import Unsupported
from portagpu.devices import registry
from portagpu.train.port.rules import load_rules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

answered: Final[Counter[tuple[str, int, str]]] = Counter()
"""How often each name was answered, by the file and line that asked."""

_MAX_LINES: Final = 40
_is_active = False
_kinds: tuple[str, ...] = ()
"""torch's types of the vendors' devices. The compiler reads it, and cannot trace the rules."""


def activate() -> None:
    """Answer for this process from now on; a second call changes nothing.

    Raises Unsupported where torch's own build for GPUs works, with what to do instead.
    """
    global _is_active, _kinds
    if _is_active:
        return
    import torch

    gpu = registry.backend()
    if torch.cuda.is_available() or gpu.plugin.unopened_module:
        raise Unsupported("torch's own build for GPUs works here: run the program as it is")
    _is_active, _kinds = True, tuple(each.device for each in load_rules().words)
    _say(
        f"portagpu bridge: the {gpu.name} backend answers for GPUs in this process. "
        "Try a program with it, and keep it out of libraries and measurements"
    )
    atexit.register(_report)
    _answer_names()
    _answer_torch()
    _answer_processes()


class _Answered:
    """Where it is unpickled, the bridge answers."""

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return activate, ()


def _answer_processes() -> None:
    """What a process that is spawned reads first is pickled next to this: before it imports the
    program, whose first lines may ask for a GPU."""
    prepared = spawn.get_preparation_data

    def data(name: str) -> dict[str, Any]:
        return {**prepared(name), "portagpu bridge": _Answered()}

    spawn.get_preparation_data = data


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def _report() -> None:
    for line in report():
        _say(line)


def report() -> Iterator[str]:
    """What was answered, by line of the program, and what to do next."""
    places = sorted(answered)
    for path, line, name in places[:_MAX_LINES]:
        times = answered[path, line, name]
        yield f"{path}:{line}: {name} answered {times} time{'' if times == 1 else 's'}"
    if len(places) > _MAX_LINES:
        yield f"and {len(places) - _MAX_LINES} more places"
    files = {path for path, _, _ in places}
    yield (
        f"portagpu bridge: {sum(answered.values())} answers at {len(places)} places of "
        f"{len(files)} files; to replace them: "
        f"portagpu port rewrite {' '.join(sorted(files)) or 'FILE'}"
    )


def note(name: str, *, through_torch: bool = False) -> None:
    """Count an answer for the line of the program that asked, if one did.

    :param name: what was answered.
    :param through_torch: whether a line counts that asked through a function of torch, as
        ``model.to("cuda")`` does; else what torch asks for itself counts for no line.
    """
    import torch

    if torch.compiler.is_compiling():  # a frame of the program is not traced
        return
    frame = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if not _OWN.search(path) and not (through_torch and _TORCH.search(path)):
            if not _TORCH.search(path):
                answered[path, frame.f_lineno, name] += 1
            return
        frame = frame.f_back  # type: ignore[assignment]


_OWN: Final = re.compile(r"[\\/]portagpu(?:_cpu)?[\\/]|<frozen|[\\/](?:contextlib|functools)\.py\Z")
_TORCH: Final = re.compile(r"[\\/](?:torch|site-packages)[\\/]|<string>")


def _answer_names() -> None:
    """Put portagpu's functions where the rules' names are."""
    import portagpu

    rules = load_rules()
    modules = tuple(f"{each.module}." for each in rules.words)
    questions = {f"{module}{name}" for module in modules for name in _QUESTIONS}
    for name, entry in rules.names.items():
        if entry.rule is rules.shapes.get("seed"):  # torch keeps it for a device that never comes
            setattr(_owner(name), name.rpartition(".")[2], _noted(_nothing, name))
            continue
        if entry.to is not None and not entry.to.startswith(".") and name.startswith(modules):
            owner, found = _owner(name), functools.reduce(getattr, entry.to.split("."), portagpu)
            if owner is not None:
                is_class = isinstance(found, type)
                value: Any = found if is_class else _noted(found, name)
                if name in questions:
                    value = _for_programs(value, getattr(owner, name.rpartition(".")[2]))
                setattr(owner, name.rpartition(".")[2], value)
    for words in rules.words:
        _answer_tensor_types(_owner(f"{words.module}.Tensor"))
        for name in words.available:
            owner = _owner(name)
            if owner is not None and name.startswith(modules):
                real = getattr(owner, name.rpartition(".")[2])
                answer = _for_programs(_noted(portagpu.is_available, name), real)
                setattr(owner, name.rpartition(".")[2], answer)


_QUESTIONS: Final = (
    *("_lazy_init", "current_device", "device_count", "get_device_properties", "is_initialized"),
)
"""What torch asks for itself, where it compiles or chooses."""


def _for_programs(answer: Any, real: Any) -> Callable[..., Any]:
    """``answer`` for a program; torch itself, which may compile for a GPU, gets the truth."""
    import torch

    own = f"{Path(torch.__file__).parent}{os.sep}"

    @functools.wraps(answer)
    def answered_for(*given: Any, **options: Any) -> Any:
        asks = sys._getframe(1).f_code.co_filename
        return (real if asks.startswith(own) else answer)(*given, **options)

    return answered_for


def _nothing(*given: Any, **options: Any) -> None:
    """A seed of devices that are not there."""


def _as_it_is(call: Callable[..., Any], module: Any, *given: Any, **options: Any) -> Any:
    """The module with its own statistics, as ranks of a CPU keep them."""
    return module


def _answer_tensor_types(owner: Any) -> None:
    """``FloatTensor`` and the others, which make tensors and name types."""
    import torch

    for name in dir(torch):
        if name.endswith("Tensor") and name != "Tensor" and hasattr(owner, name):
            setattr(owner, name, getattr(torch, name))


def _owner(name: str) -> Any:
    """The module that has the name, or None."""
    import torch

    found: Any = torch
    for part in name.split(".")[1:-1]:
        found = getattr(found, part, None)
    return found


def _noted(function: Any, name: str) -> Callable[..., Any]:
    if not callable(function):
        return function  # type: ignore[no-any-return]

    @functools.wraps(function)
    def answer(*given: Any, **options: Any) -> Any:
        note(name)
        given = tuple(map(_device, given))
        return function(*given, **{key: _device(each) for key, each in options.items()})

    return answer


def _device(value: Any) -> Any:
    """A vendor's device as this backend's; anything else as it is."""
    import torch

    text = value if isinstance(value, str) else None
    if isinstance(value, torch.device):
        text = str(value)
    kind, _, number = text.partition(":") if text is not None else ("", "", "")
    if kind and kind in _kinds and (not number or number.isdecimal()):
        place = registry.device_string(number or None)
        return torch.device(place) if isinstance(value, torch.device) else place
    return value


def _library(value: Any) -> Any:
    for words in load_rules().words:
        if isinstance(value, str) and words.library in re.split("[:,]", value):
            return registry.c10d_name()
    return value


def _answer_torch() -> None:
    """What takes a device or a library in torch itself."""
    import torch
    import torch.distributed as dist

    _moves().__enter__()
    here = registry.device_string()
    put: list[tuple[Any, str, Callable[..., Any]]] = [
        (torch.Tensor, "record_stream", lambda call, tensor, stream: None),
        (torch.Tensor, "pin_memory", lambda call, tensor, *given, **options: tensor),
        (torch.storage._StorageBase, "cuda", lambda call, each, *given, **options: each),
        (torch.autocast, "__init__", _mapped(_device, "device_type")),
        (torch.amp.GradScaler, "__init__", lambda call, each, device=here, *given, **options: call(
            each, _device(device), *given, **options)),
        (torch, "load", _loaded),
        (torch, "is_autocast_enabled", lambda call, kind=here: call(_device(kind))),
        (torch, "get_autocast_gpu_dtype", lambda call: torch.get_autocast_dtype(here)),
        (torch, "set_default_tensor_type", lambda call, kind: call(_tensor_type(kind))),
        (torch, "set_default_device", lambda call, device: call(_device(device))),
        (torch.nn.parallel.DistributedDataParallel, "__init__", _without_devices),
        (torch.nn.SyncBatchNorm, "convert_sync_batchnorm", _as_it_is),
    ]  # fmt: skip
    if dist.is_available():
        put += [
            (dist, "init_process_group", _group),
            (dist, "new_group", _group),
            (dist, "barrier", _without_devices),
        ]
    kind = "_get_available_device_type"  # DataParallel has the name of its own
    for owner in (torch._utils, sys.modules[torch.nn.DataParallel.__module__]):
        put.append((owner, kind, lambda call: None))
    for owner, name, answer in put:
        _put(owner, name, answer)
    torch.Generator = _generators(torch.Generator)  # type: ignore[misc]


def _generators(real: Any) -> Any:
    """A stand-in for the class of generators, which cannot be replaced in part."""

    class Generators(type):
        def __call__(cls, device: Any = "cpu") -> Any:
            place = _device(device)
            if place is not device:
                note("torch.Generator")
            return real(device=place)

        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, real)

    return Generators("Generator", (), {})


def _group(call: Callable[..., Any], *given: Any, **options: Any) -> Any:
    """A group of this backend's library; one on a CPU is not bound to a device."""
    if registry.device_string() == "cpu":
        options.pop("device_id", None)
    return _mapped(_library, "backend")(call, *given, **options)


def _put(owner: Any, name: str, answer: Callable[..., Any]) -> None:
    call = getattr(owner, name)

    @functools.wraps(call)
    def instead(*given: Any, **options: Any) -> Any:
        note(f"{getattr(owner, '__name__', 'torch')}.{name}".replace(".__init__", ""))
        return answer(call, *given, **options)

    setattr(owner, name, instead)


def _loaded(
    call: Callable[..., Any], file: Any, place: Any = None, *given: Any, **named: Any
) -> Any:
    place = named.pop("map_location", place)
    if place is None or isinstance(place, dict):
        place = registry.device_string()
    return call(file, _device(place), *given, **named)


def _mapped(change: Callable[[Any], Any], key: str) -> Callable[..., Any]:
    def answer(call: Callable[..., Any], *given: Any, **options: Any) -> Any:
        if key in options:
            options[key] = change(options[key])
        return call(*map(change, given), **options)

    return answer


def _without_devices(call: Callable[..., Any], *given: Any, **options: Any) -> Any:
    kept = {key: each for key, each in options.items() if key not in _DEVICES}
    return call(*given[:2], *(None for _ in given[2:4]), *given[4:], **kept)


_DEVICES: Final = ("device_ids", "output_device")


def _tensor_type(kind: Any) -> Any:
    if not isinstance(kind, str):
        return kind
    return functools.reduce(lambda text, each: text.replace(f".{each.device}.", "."),
                            load_rules().words, kind)  # fmt: skip


def _moves() -> Any:
    """The mode in which torch's functions put on this backend what a program puts on a GPU."""
    import torch
    from torch.overrides import TorchFunctionMode

    class Moves(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            name = getattr(func, "__name__", "")
            if name in _kinds:
                note(f"Tensor.{name}", through_torch=True)
                return args[0].to(registry.device_string())
            if func is torch.Tensor.to and len(args) > 1 and type(args[1]) is int:
                note("Tensor.to")
                args = (args[0], registry.device_string(args[1]), *args[2:])
            if name == "_parse_to" and args and type(args[0]) is int:
                note("Module.to", through_torch=True)
                args = (registry.device_string(args[0]), *args[1:])
            if func is torch.Tensor.type and len(args) > 1:
                args = (args[0], _tensor_type(args[1]), *args[2:])
            if kwargs.get("pin_memory"):
                kwargs = {**kwargs, "pin_memory": False}
            if type(kwargs.get("device")) is int:
                kwargs = {**kwargs, "device": registry.device_string(kwargs["device"])}
            if func is not torch.device:
                placed = tuple(map(_device, args))
                named = {key: _device(each) for key, each in kwargs.items()}
                pairs = [
                    *zip(args, placed, strict=True),
                    *zip(kwargs.values(), named.values(), strict=True),
                ]
                if any(one is not other for one, other in pairs):
                    note(name, through_torch=name == "_parse_to")
                args, kwargs = placed, named
            return func(*args, **kwargs)

    return Moves()

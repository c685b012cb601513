"""Chooses and opens backends.

The order of choice is: the requested name; ``PORTAGPU_BACKEND``, read once; the one backend that
the installed torch was built for and whose hardware is here; the CPU, when torch has no GPU build
or the machine has no GPU. A GPU that torch was built for but cannot use is an error.
"""

from __future__ import annotations

import copyreg
import logging
import os
import re
import threading
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, SupportsIndex

from portagpu.base.environment import shared_count
from portagpu.base.errors import BackendNotFound, MissingDependency, PortagpuError
from portagpu.base.plugins import install
from portagpu.base.text import error_line
from portagpu.devices.collectives.launcher import local_rank
from portagpu.devices.contract import Backend
from portagpu.devices.discovery import plugin, status, statuses
from portagpu.devices.training import run_by_the_compiler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

    from portagpu.devices.contract import Plugin

__all__ = [
    "VARIABLE",
    "answer",
    "available",
    "backend",
    "c10d_name",
    "count",
    "device_string",
    "handle_for",
    "plugin",
    "resolve",
    "select",
    "status",
    "statuses",
    "without_opening",
]

VARIABLE: Final = "PORTAGPU_BACKEND"
FALLBACK: Final = "cpu"

_log = logging.getLogger("portagpu")


class _NoDevice:
    """The value of ``_current`` until a device is opened.

    It is not None: torch.compile guards a function that opens the device by the value that it read,
    and accepts no other object in place of a None (torch 2.13, GuardBuilder.EQUALS_MATCH).
    """

    __slots__ = ()  # a guard on an attribute's absence would look for it in the device's __dict__

    @run_by_the_compiler
    def listens(self) -> bool:
        """Not known: the device has to be asked."""
        return True


_NO_DEVICE: Final = _NoDevice()

_handles: dict[tuple[str, int], Backend] = {}
_current: Backend | _NoDevice = _NO_DEVICE
_default_handles: dict[int, Backend] = {}
"""Handles of the default backend by index, as they are requested."""
_default_name: str | None = None
_lock = threading.RLock()


@run_by_the_compiler
def resolve(name: str | None = None) -> str:
    """The name of the backend to use: ``name``, else by the order of choice above.

    Raises BackendNotFound with every candidate's reason.
    """
    if name is not None:
        return _check_usable(name)
    wanted = os.environ.get(VARIABLE)
    if wanted:
        try:
            return _check_usable(wanted)
        except BackendNotFound as error:
            named = type(error)(f"{VARIABLE}={wanted}: {error}")
            named.reasons.update(error.reasons)
            raise named from None
    found_all = statuses()
    automatic = [key for key, value in found_all.items() if value.usable and value.automatic]
    if len(automatic) == 1:
        return automatic[0]
    reasons = {key: value.reason for key, value in found_all.items()}
    if len(automatic) > 1:
        names = " and ".join(sorted(automatic))
        raise BackendNotFound(f"{names} both fit this torch: set {VARIABLE} to one", reasons)
    blocked = _cpu_fallback_blocker()
    if blocked:
        raise BackendNotFound(f"{blocked}; PORTAGPU_BACKEND=cpu runs without it", reasons)
    fallback = found_all.get(FALLBACK)
    if fallback is None or not fallback.usable:
        if not _torch_is_installed():
            raise MissingDependency(
                f"portagpu needs torch to open a device: {install('torch')}, or your vendor's "
                "torch wheel"
            )
        raise BackendNotFound("no backend can be used", reasons)
    # one line for a world of ranks on this machine, not one for each
    if os.environ.get("LOCAL_RANK", "0") == "0":
        _log.warning("portagpu: using the CPU, because %s", _why_cpu())
    return FALLBACK


def _check_usable(name: str) -> str:
    """``name``, if that backend can be used; raises BackendNotFound with the reason."""
    plugin(name)
    found = status(name)
    if not found.usable:
        raise BackendNotFound(f"the backend {name!r} cannot be used", {name: found.reason})
    return name


def _torch_is_installed() -> bool:
    from portagpu.facts.torchbuild import torch_build

    return torch_build() is not None


def _cpu_fallback_blocker() -> str:
    """Why the CPU may not replace a GPU: torch's GPU build, and a GPU; "" where it may."""
    from portagpu.facts.host import gpus_on_machine
    from portagpu.facts.torchbuild import torch_build

    build = torch_build()
    if build is None or build.kind == "cpu":
        return ""
    gpus = gpus_on_machine()
    if not gpus:
        return ""
    vendors = " and ".join(sorted({gpu.vendor for gpu in gpus}))
    if build.kind is None:
        return f"this machine has {len(gpus)} GPU(s) of {vendors}, and {build.problem}"
    return (
        f"this machine has {len(gpus)} GPU(s) of {vendors} and torch {build.version} is a "
        f"{build.kind} build, but no backend can use them"
    )


def _why_cpu() -> str:
    from portagpu.facts.torchbuild import torch_build

    build = torch_build()
    if build is not None and build.kind == "cpu":
        return f"torch {build.version} has no GPU build"
    return "this machine has no GPU"


def backend(name: str | None = None, index: int | None = None) -> Backend:
    """The device to use: by default the current one, else that of the backend and index.

    The first call without arguments chooses the default backend. In a rank that a launcher started,
    and where torch has opened no device, it activates the one of the rank's number on its machine.
    Which device is current is torch's answer, in this thread, so that ``torch.cuda.set_device`` of
    a framework counts too; on a CPU it is the one of the last ``set_device``. Handles are made once
    for each device.

    :param name: a backend's name ("cpu", "cuda", "rocm"); None is the default backend.
    :param index: the number of the device among the visible ones; None is the current device, and
        with ``name`` device 0.
    :returns: the opened device.
    :raises BackendNotFound: with every candidate's reason.
    :raises IndexError: for an index that no device has.
    :raises TypeError: for an index that is not an int.
    :raises MissingDependency: where torch is not installed.
    """
    if name is None:
        if index is None:
            current = _current
            if isinstance(current, _NoDevice):
                return _open_default()
            current_index = type(current).current_index
            return current if current_index is None else _default_device_at(current_index())
        return _open(_name_of_default(), index)
    if index is None:
        handle = _handles.get((name, 0))
        if handle is not None:
            return handle
    return _open(resolve(name), 0 if index is None else index)


@run_by_the_compiler
def _open_default() -> Backend:
    """Open the default backend's current device, which is torch's where torch opened one."""
    global _current
    with _lock:
        if isinstance(_current, _NoDevice):
            name = _name_of_default()
            index = plugin(name).current_index()
            if index is not None:
                _current = _open(name, index)
                return _current
            _current = _open(name, _index_of_rank(name))
            if _current.index:
                _current.activate()
        return _current


def _index_of_rank(name: str) -> int:
    """The device of this rank, by its number on this machine: 0 without a launcher.

    A rank that sees one device has that one, whatever its number: launchers set masks. Raises
    BackendNotFound where several devices are visible, and not one for each rank.
    """
    found = local_rank(os.environ)
    if found is None or plugin(name).shared:
        return found[0] if found is not None else 0
    number, ranks = found
    devices = count(name)
    if devices == 1:
        return 0
    if max(number + 1, ranks or 0) > devices:
        raise BackendNotFound(
            f"{ranks or number + 1} ranks run on this machine and the {name} backend sees "
            f"{devices} devices: start no more ranks than devices, or call portagpu.set_device "
            "first"
        )
    return number


@run_by_the_compiler
def _default_device_at(index: int) -> Backend:
    """The device of that index of the default backend."""
    known = _default_handles.get(index)
    if known is None:
        known = _default_handles[index] = _open(_name_of_default(), index)
    return known


@run_by_the_compiler
def _name_of_default() -> str:
    """The default backend's name, chosen once without opening a device."""
    global _default_name
    with _lock:
        if not isinstance(_current, _NoDevice):
            return _current.name
        if _default_name is None:
            _default_name = resolve()
        return _default_name


def is_initialized() -> bool:
    """Whether this process has opened a device of the default backend; opens and raises nothing.

    A device that torch opened without this package counts too.
    """
    if not isinstance(_current, _NoDevice):
        return True
    try:
        return plugin(_name_of_default()).current_index() is not None
    except PortagpuError:
        return False


@run_by_the_compiler
def _open(name: str, index: int) -> Backend:
    with _lock:
        found = plugin(name)
        if isinstance(index, bool) or not isinstance(index, int):
            raise TypeError(f"a device index is an int, not {index!r}")
        if found.shared and index >= shared_count():
            index = 0
        handle = _handles.get((name, index))
        if handle is None:
            handle = _new_handle(found, name, index)
            _handles[name, index] = handle
        return handle


def count(name: str) -> int:
    """The number of devices of that backend; raises BackendNotFound with a reason without any."""
    with _errors_as_reasons(f"the backend {name!r} cannot count its devices", name):
        found = plugin(name).count()
    if type(found) is not int or found < 1:
        shown = found if type(found) is int else repr(found)
        reason = {name: f"it can be used, and counts {shown} devices"}
        raise BackendNotFound(f"the backend {name!r} has no device", reason)
    return found


@contextmanager
def _errors_as_reasons(what: str, name: str) -> Iterator[None]:
    """Turn what foreign code raises into a BackendNotFound with the message ``what``."""
    try:
        yield
    except PortagpuError:
        raise
    except (Exception, SystemExit) as error:
        raise BackendNotFound(what, {name: f"raised {error_line(error)}"}) from error


def _new_handle(found: Plugin, name: str, index: int) -> Backend:
    """A new handle from the plugin. Its failures become the reason of a BackendNotFound."""
    known = max(count(name), shared_count()) if found.shared else count(name)
    there = 0 <= index < known
    with _errors_as_reasons(f"the backend {name!r} cannot open device {index}", name):
        handle = found.open(index) if there else None
    if not there:
        raise IndexError(
            f"the {name} backend has no device {index}: it sees {known}, numbered from 0"
        )
    if not isinstance(handle, Backend):
        raise BackendNotFound(f"the backend {name!r} opened a {type(handle).__name__}")
    copyreg.pickle(type(handle), _pickle_by_name)
    return handle


def _pickle_by_name(handle: Backend) -> tuple[Callable[..., Backend], tuple[str, int]]:
    """The pickle of a handle: opening its device again, by name and index."""
    return backend, (handle.name, handle.index)


@run_by_the_compiler
def without_opening() -> Any:
    """What answers before a device is open, and opens none: ``Plugin.unopened_module``.

    None where a device is open, or where the default backend has no such module.
    """
    if not isinstance(_current, _NoDevice):
        return None
    found = plugin(_name_of_default())
    if not found.unopened_module or found.current_index() is not None:
        return None
    return import_module(found.unopened_module)


def answer(name: str, *given: Any) -> Any:
    """The call of that name by what opens no device, or by the current device."""
    unopened = without_opening()
    return getattr(backend() if unopened is None else unopened, name)(*given)


@run_by_the_compiler
def device_string(index: SupportsIndex | str | torch.device | None = None) -> str:
    """torch's text for a device of the default backend, which no device is opened for.

    It is "cuda" or "cuda:1" on a GPU, and "cpu" on a CPU, whatever the index, because all ranks
    share that device. Nothing is checked: torch raises for a device that is not there.

    :param index: the device's number, or a text of digits; None is a text without a number, which
        is the current device. A ``torch.device`` or its text stays as it is.
    """
    found = plugin(_name_of_default())
    kind = found.device_type or backend().device.type
    if index is None:
        return kind
    text = str(index)
    if not isinstance(index, SupportsIndex) and _DEVICE.fullmatch(text):
        return text
    is_number = isinstance(index, SupportsIndex) or text.removeprefix("-").isdecimal()
    return kind if found.shared and is_number else f"{kind}:{index}"


_DEVICE: Final = re.compile(r"[a-z]+(?::\d+)?")


@run_by_the_compiler
def c10d_name(*, host: bool = False) -> str:
    """The default backend's library in torch.distributed: "nccl" or "gloo"; opens no device.

    :param host: whether to add Gloo for tensors on the CPU: "cpu:gloo,cuda:nccl" on a GPU.
    :raises Unsupported: for a device without a library.
    """
    found = plugin(_name_of_default())
    name = found.c10d_name
    if not name:
        both = backend().comm.init_string
        return both if host else both.rpartition(":")[2]
    kind = device_string()
    return name if kind == "cpu" or not host else f"cpu:gloo,{kind}:{name}"


def select(device: int | str | torch.device) -> Backend:
    """Make that device of the current backend the one that ``backend()`` returns.

    ``device`` is an index, or a torch device or its string, whose type must be the backend's.
    """
    global _current
    chosen = handle_for(device)
    chosen.activate()
    _current = chosen
    return chosen


def handle_for(device: SupportsIndex | str | torch.device | None) -> Backend:
    """The handle for a ``device`` argument of torch's functions; None is the current device."""
    if device is None:
        return backend()
    current = _current
    if type(device) is int and not isinstance(current, _NoDevice):
        known = _handles.get((current.name, device))
        if known is not None:
            return known
    if isinstance(device, SupportsIndex):
        return _open(_name_of_default(), device if isinstance(device, int) else device.__index__())
    return _handle_for_torch_device(device)


@run_by_the_compiler
def _handle_for_torch_device(device: str | torch.device) -> Backend:
    name = _name_of_default()
    import torch

    wanted = torch.device(device)
    opened = not isinstance(_current, _NoDevice)
    if wanted.index is None or (opened and wanted.type != backend().device.type):
        found = backend()
    else:
        found = _open(name, wanted.index)
    if wanted.type != found.device.type:
        raise ValueError(
            f"{wanted} is not a device of the {name} backend, whose devices are "
            f"{found.device.type!r}: use portagpu.device()"
        )
    return found


def available() -> dict[str, Backend]:
    """A handle on the first device of every backend that can be used here, by name."""
    return {name: _open(name, 0) for name, value in statuses().items() if value.usable}

"""Choosing and opening backends: the order of choice, and every candidate's reason.

The order is: the name that was asked for; ``PORTAGPU_BACKEND``, read once; the one backend for
which the installed torch was built and whose hardware is here; the CPU, when torch has no GPU build
or the machine has no GPU at all. A GPU that torch was built for but cannot use is an error.
"""

from __future__ import annotations

import logging
import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from portagpu.candidates import plugin, status, statuses
from portagpu.contract import Backend
from portagpu.errors import BackendNotFound, MissingDependency, PortagpuError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from portagpu.contract import Plugin

__all__ = [
    "VARIABLE",
    "at",
    "available",
    "backend",
    "count",
    "plugin",
    "resolve",
    "select",
    "status",
    "statuses",
]

VARIABLE: Final = "PORTAGPU_BACKEND"
FALLBACK: Final = "cpu"

_log = logging.getLogger("portagpu")

_handles: dict[tuple[str, int], Backend] = {}
_current: Backend | None = None
_default_name: str | None = None
_lock = threading.RLock()


def resolve(name: str | None = None) -> str:
    """The name of the backend to use: ``name``, else by the order at the top of this module.

    Raises BackendNotFound with every candidate's reason.
    """
    if name is not None:
        return _usable(name)
    wanted = os.environ.get(VARIABLE)
    if wanted:
        try:
            return _usable(wanted)
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
    blocked = _why_not_cpu()
    if blocked:
        raise BackendNotFound(f"{blocked}; PORTAGPU_BACKEND=cpu runs without it", reasons)
    fallback = found_all.get(FALLBACK)
    if fallback is None or not fallback.usable:
        if not _torch_is_installed():
            raise MissingDependency(
                "portagpu needs torch to open a device: pip install 'portagpu[torch]', or your "
                "vendor's torch wheel"
            )
        raise BackendNotFound("no backend can be used", reasons)
    # one line for a world of ranks on this machine, not one for each
    if os.environ.get("LOCAL_RANK", "0") == "0":
        _log.warning("portagpu: using the CPU, because %s", _why_cpu())
    return FALLBACK


def _usable(name: str) -> str:
    """``name``, if that backend can be used; raises BackendNotFound with the reason."""
    plugin(name)
    found = status(name)
    if not found.usable:
        raise BackendNotFound(f"the backend {name!r} cannot be used", {name: found.reason})
    return name


def _torch_is_installed() -> bool:
    from portagpu.torchbuild import torch_build

    return torch_build() is not None


def _why_not_cpu() -> str:
    """Why falling back to the CPU would hide a fault: a GPU build of torch beside a GPU."""
    from portagpu.host import gpus_on_machine
    from portagpu.torchbuild import torch_build

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
    from portagpu.torchbuild import torch_build

    build = torch_build()
    if build is not None and build.kind == "cpu":
        return f"torch {build.version} has no GPU build"
    return "this machine has no GPU"


def backend(name: str | None = None, index: int | None = None) -> Backend:
    """The device to use: by default the current one, else the backend and index asked for.

    ``name`` is a backend's name ("cpu", "cuda", "rocm"); ``index`` counts the visible devices and
    is an int. The first call without arguments chooses the default, and later ones return it until
    ``set_device``. Handles are made once for each device.

    Raises BackendNotFound (with every candidate's reason), IndexError, or MissingDependency when
    torch is not installed.
    """
    if name is None:
        if index is None:
            current = _current
            return current if current is not None else _default()
        return _open(_name_of_default(), index)
    if index is None:
        handle = _handles.get((name, 0))
        if handle is not None:
            return handle
    return _open(resolve(name), 0 if index is None else index)


def _default() -> Backend:
    global _current
    with _lock:
        if _current is None:
            _current = _open(_name_of_default(), 0)
        return _current


def _name_of_default() -> str:
    """The default backend's name, chosen once: a rank that uses device 3 never opens device 0."""
    global _default_name
    with _lock:
        if _current is not None:
            return _current.name
        if _default_name is None:
            _default_name = resolve()
        return _default_name


def _open(name: str, index: int) -> Backend:
    with _lock:
        found = plugin(name)
        if isinstance(index, bool) or not isinstance(index, int):
            raise TypeError(f"a device index is an int, not {index!r}")
        if found.shared and index >= 0:
            index = 0
        handle = _handles.get((name, index))
        if handle is None:
            handle = _opened(found, name, index)
            _handles[name, index] = handle
        return handle


def count(name: str) -> int:
    """How many devices that backend can open; raises BackendNotFound with the reason where none."""
    with _reasons(f"the backend {name!r} cannot count its devices", name):
        found = plugin(name).count()
    if not found:
        reason = {name: "it can be used, and counts 0 devices"}
        raise BackendNotFound(f"the backend {name!r} has no device", reason)
    return found


@contextmanager
def _reasons(what: str, name: str) -> Iterator[None]:
    """Whatever foreign code raises is the reason of a BackendNotFound that says ``what``."""
    try:
        yield
    except PortagpuError:
        raise
    except (Exception, SystemExit) as error:
        text = " ".join(str(error).split())
        reason = f"raised {type(error).__name__}{': ' + text if text else ''}"
        raise BackendNotFound(what, {name: reason}) from error


def _opened(found: Plugin, name: str, index: int) -> Backend:
    """A new handle from the plugin, whose failures become a reason."""
    known = count(name)
    there = 0 <= index < known
    with _reasons(f"the backend {name!r} cannot open device {index}", name):
        handle = found.open(index) if there else None
    if not there:
        raise IndexError(
            f"the {name} backend has no device {index}: it sees {known}, numbered from 0"
        )
    if not isinstance(handle, Backend):
        raise BackendNotFound(f"the backend {name!r} opened a {type(handle).__name__}")
    return handle


def select(device: int | str | torch.device) -> Backend:
    """Make that device of the current backend the one that ``backend()`` returns.

    ``device`` is an index, or a torch device or its string, whose type must be the backend's.
    """
    global _current
    chosen = at(device)
    chosen.activate()
    _current = chosen
    return chosen


def at(device: int | str | torch.device | None) -> Backend:
    """The handle for what torch's functions take as ``device``; None is the current device."""
    if device is None:
        return backend()
    current = _current
    if current is not None and type(device) is int:
        known = _handles.get((current.name, device))
        if known is not None:
            return known
    name = _name_of_default()
    if isinstance(device, int):
        return _open(name, device)
    import torch

    wanted = torch.device(device)
    if wanted.index is None or (current is not None and wanted.type != current.device.type):
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

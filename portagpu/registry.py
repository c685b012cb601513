"""Finding and opening backends: entry points, the order of choice, and every candidate's reason.

The order is: the name that was asked for; ``PORTAGPU_BACKEND``, read once; the one backend for
which the installed torch was built and whose hardware is here; the CPU, when torch has no GPU build
or the machine has no GPU at all. A GPU that torch was built for but cannot use is an error.
"""

from __future__ import annotations

import difflib
import importlib.metadata
import logging
import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from portagpu.contract import CONTRACT, Backend, Plugin, Status
from portagpu.errors import BackendNotFound, MissingDependency, PortagpuError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

GROUP: Final = "portagpu.backends"
VARIABLE: Final = "PORTAGPU_BACKEND"
FALLBACK: Final = "cpu"

LOAD_LIMIT_S: Final = 10.0
"""An entry point that takes longer to load or to state its status is reported and passed over."""
_PATIENCE_S: Final = 1.0

_OWN_DISTRIBUTION: Final = "portagpu"
_log = logging.getLogger("portagpu")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Candidate:
    """One name in the entry point group, and where it comes from."""

    name: str
    distribution: str
    entry_point: importlib.metadata.EntryPoint | None
    problem: str = ""
    """Why it cannot even be tried: two distributions claim the name."""


_candidates: dict[str, Candidate] | None = None
_plugins: dict[str, Plugin] = {}
_handles: dict[tuple[str, int], Backend] = {}
_current: Backend | None = None
_lock = threading.RLock()


def candidates() -> Mapping[str, Candidate]:
    """Every backend that an installed distribution declares, by name; nothing is loaded."""
    global _candidates
    if _candidates is None:
        found: dict[str, dict[str, importlib.metadata.EntryPoint]] = {}
        for point in importlib.metadata.entry_points(group=GROUP):
            distribution = point.dist.name if point.dist is not None else "unknown"
            found.setdefault(point.name, {})[distribution] = point
        _candidates = {name: _one_of(name, points) for name, points in sorted(found.items())}
    return _candidates


def _one_of(name: str, points: dict[str, importlib.metadata.EntryPoint]) -> Candidate:
    """The entry point to use among those of one name: ours, the only one, or none."""
    if _OWN_DISTRIBUTION in points:
        others = sorted(set(points) - {_OWN_DISTRIBUTION})
        for other in others:
            _log.warning(
                "the distribution %s also declares the backend %r and is ignored: uninstall it or "
                "have it renamed",
                other,
                name,
            )
        return Candidate(name, _OWN_DISTRIBUTION, points[_OWN_DISTRIBUTION])
    if len(points) == 1:
        ((distribution, point),) = points.items()
        return Candidate(name, distribution, point)
    owners = ", ".join(sorted(points))
    return Candidate(
        name, owners, None, f"declared by several distributions ({owners}): uninstall all but one"
    )


def plugin(name: str) -> Plugin:
    """The plugin of that name; only its own entry point is loaded.

    Raises BackendNotFound, with the closest names or with the reason why it did not load.
    """
    known = _plugins.get(name)
    if known is not None:
        return known
    candidate = candidates().get(name)
    if candidate is None:
        names = sorted(candidates())
        close = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"installed are: {', '.join(names)}"
        if not names:
            hint = "none is installed; install portagpu with pip instead of copying its files"
        raise BackendNotFound(f"there is no backend {name!r}: {hint}")
    loaded, reason = _load(candidate)
    if loaded is None:
        raise BackendNotFound(f"the backend {name!r} cannot be used", {name: reason})
    _plugins[name] = loaded
    return loaded


def _load(candidate: Candidate) -> tuple[Plugin | None, str]:
    """The candidate's plugin, or the reason why it is unusable."""
    point = candidate.entry_point
    if point is None:
        return None, candidate.problem
    value, failure = bounded(point.load, f"the backend {candidate.name!r} to load")
    origin = f"from {candidate.distribution}"
    if failure:
        return None, f"{origin} {failure}"
    if not isinstance(value, Plugin):
        return None, f"{origin} names a {type(value).__name__} instead of a portagpu Plugin"
    written = value.contract
    if written[0] != CONTRACT[0] or written[1] > CONTRACT[1]:
        theirs, ours = (".".join(map(str, version)) for version in (written, CONTRACT))
        return None, (
            f"{origin} was written for contract {theirs}, this portagpu has {ours}: "
            f"upgrade {'portagpu' if tuple(written) > CONTRACT else candidate.distribution}"
        )
    return value, ""


def bounded(
    call: Callable[[], _T], what: str, limit_s: float | None = None
) -> tuple[_T | None, str]:
    """Run foreign code in a thread of its own: (its value, "") or (None, what went wrong).

    Anything that it raises, SystemExit included, is a reason and not an error of the caller's. A
    call that is still running at the limit is left behind in its daemon thread.
    """
    limit_s = LOAD_LIMIT_S if limit_s is None else limit_s
    outcome: dict[str, Any] = {}

    def work() -> None:
        try:
            outcome["value"] = call()
        except BaseException as error:  # noqa: BLE001 - a plugin's failure is reported as its reason
            text = " ".join(str(error).split())
            outcome["failure"] = f"raised {type(error).__name__}{': ' + text if text else ''}"

    thread = threading.Thread(target=work, name="portagpu-plugin", daemon=True)
    thread.start()
    thread.join(min(_PATIENCE_S, limit_s))
    if thread.is_alive():
        _log.warning("waiting for %s", what)
        thread.join(max(0.0, limit_s - _PATIENCE_S))
    if thread.is_alive():
        return None, f"did not answer within {limit_s:g} s"
    return outcome.get("value"), outcome.get("failure", "")


def status(name: str) -> Status:
    """Whether the backend of that name can be used here; a broken one is unusable with a reason."""
    try:
        found = plugin(name)
    except BackendNotFound as error:
        return Status(False, error.reasons.get(name, str(error)))
    value, failure = bounded(found.status, f"the backend {name!r} to answer")
    if value is None:
        return Status(False, f"its status {failure or 'is None'}")
    return value


def statuses() -> dict[str, Status]:
    """The status of every candidate, by name. Imports neither torch nor a vendor's package."""
    return {name: status(name) for name in candidates()}


def resolve(name: str | None = None) -> str:
    """The name of the backend to use: ``name``, else by the order at the top of this module.

    Raises BackendNotFound with every candidate's reason.
    """
    wanted = name if name is not None else os.environ.get(VARIABLE) or None
    if wanted is not None:
        found = status(wanted) if wanted in candidates() else None
        if found is None:
            plugin(wanted)
        elif not found.usable:
            asked = "" if name is not None else f"{VARIABLE}={wanted}: "
            raise BackendNotFound(
                f"{asked}the backend {wanted!r} cannot be used", {wanted: found.reason}
            )
        return wanted
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
    _log.warning("portagpu: using the CPU, because %s", _why_cpu())
    return FALLBACK


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
    if name is None and index is None:
        current = _current
        if current is not None:
            return current
        return _default()
    if name is None:
        return _open(_default().name, index or 0)
    return _open(resolve(name), index or 0)


def _default() -> Backend:
    global _current
    with _lock:
        if _current is None:
            _current = _open(resolve(), 0)
        return _current


def _open(name: str, index: int) -> Backend:
    with _lock:
        found = plugin(name)
        if isinstance(index, bool) or not isinstance(index, int):
            raise TypeError(f"a device index is an int, not {index!r}")
        if found.shared and index >= 0:
            index = 0
        handle = _handles.get((name, index))
        if handle is not None:
            return handle
        count = found.count()
        if not 0 <= index < count:
            raise IndexError(
                f"the {name} backend has no device {index}: it sees {count}, numbered from 0"
            )
        handle = found.open(index)
        if not isinstance(handle, Backend):
            raise PortagpuError(f"the backend {name!r} opened a {type(handle).__name__}")
        _handles[name, index] = handle
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
    current = backend()
    if device is None:
        return current
    if isinstance(device, int) and not isinstance(device, bool):
        return _open(current.name, device)
    import torch

    wanted = torch.device(device)
    if wanted.type != current.device.type:
        raise ValueError(
            f"{wanted} is not a device of the {current.name} backend, whose devices are "
            f"{current.device.type!r}: use portagpu.device()"
        )
    return current if wanted.index is None else _open(current.name, wanted.index)


def available() -> dict[str, Backend]:
    """A handle on the first device of every backend that can be used here, by name."""
    return {name: _open(name, 0) for name, value in statuses().items() if value.usable}

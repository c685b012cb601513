"""Finds backends: their entry points, plugins, and each one's status with a reason.

:mod:`portagpu.devices.registry` chooses the backend. A third party's entry point that is damaged,
slow, wrong or declared twice is unusable with a reason, and does not affect the others."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from portagpu.base.errors import BackendNotFound, UnknownBackend
from portagpu.base.patience import LIMITS, BusyMachine
from portagpu.base.plugins import (
    OWN_DISTRIBUTION,
    call_quietly,
    distribution_of,
    entry_points,
    start_call,
)
from portagpu.base.text import did_you_mean, one_line
from portagpu.devices.contract import CONTRACT, Override, Plugin, Status
from portagpu.facts.vendors import vendors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from importlib.metadata import EntryPoint

    from portagpu.devices.collectives.cost import CostModel
    from portagpu.devices.machine_code import Toolchain
    from portagpu.facts.readings.model import Findings, Source

GROUP: Final = "portagpu.backends"

MAX_START_S: Final = 3600.0
"""The most that a plugin may state as ``start_s``: time limits have to end."""

_log = logging.getLogger("portagpu")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Candidate:
    """One name in the entry point group, and where it comes from."""

    name: str
    distribution: str
    entry_point: EntryPoint | None
    problem: str = ""
    """Why it cannot be loaded: two distributions claim the name."""


_candidates: dict[str, Candidate] | None = None
_plugins: dict[str, Plugin] = {}
_load_failures: dict[str, str] = {}
"""Why entry points did not load. A hanging or broken one is waited for only once."""


def candidates() -> Mapping[str, Candidate]:
    """Every backend that an installed distribution declares, by name; nothing is loaded."""
    global _candidates
    if _candidates is None:
        found: dict[str, dict[str, EntryPoint]] = {}
        for point in entry_points(GROUP):
            found.setdefault(point.name, {})[distribution_of(point)] = point
        _candidates = {
            name: _preferred_candidate(name, points) for name, points in sorted(found.items())
        }
    return _candidates


def _preferred_candidate(name: str, points: dict[str, EntryPoint]) -> Candidate:
    """The candidate among entry points of one name: ours, the only one, or none."""
    if OWN_DISTRIBUTION in points:
        others = sorted(set(points) - {OWN_DISTRIBUTION})
        for other in others:
            _log.warning(
                "the distribution %s also declares the backend %r and is ignored: uninstall it or "
                "have it renamed",
                other,
                name,
            )
        return Candidate(name, OWN_DISTRIBUTION, points[OWN_DISTRIBUTION])
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
    if not isinstance(name, str):
        raise TypeError(f"a backend's name is a str, not {name!r}; a device is backend(index=...)")
    known = _plugins.get(name)
    if known is not None:
        return known
    candidate = candidates().get(name)
    if candidate is None:
        names = sorted(candidates())
        whose = _own_backend_for(name.strip().lower())
        hint = did_you_mean(whose or name, names, f"installed are: {', '.join(names)}")
        if {",", " "} & set(name.strip()):
            hint = f"name one backend; installed are: {', '.join(names)}"
        if not names:
            hint = "none is installed; install portagpu with pip instead of copying its files"
        raise UnknownBackend(f"unknown backend {name!r}: {hint}")
    loaded, reason = (None, _load_failures[name]) if name in _load_failures else _load(candidate)
    if loaded is None:
        if isinstance(reason, BusyMachine):
            raise BackendNotFound(f"the backend {name!r} was not ready in time", {name: reason})
        _load_failures[name] = reason
        raise BackendNotFound(f"the backend {name!r} cannot be used", {name: reason})
    _plugins[name] = loaded
    return loaded


def _own_backend_for(word: str) -> str | None:
    """The backend of this project for the vendor's GPUs, or None."""
    for name, candidate in candidates().items():
        if word and candidate.distribution == OWN_DISTRIBUTION:
            with contextlib.suppress(BackendNotFound):
                if plugin(name).vendor == word:
                    return name
    return None


def _load(candidate: Candidate) -> tuple[Plugin | None, str]:
    """The candidate's plugin, or the reason why it is unusable."""
    point = candidate.entry_point
    if point is None:
        return None, candidate.problem
    # what a plugin asks of vendors is loaded already: a quiet call must not wait for another
    vendors()
    value, failure = call_quietly(
        point.load, LIMITS.load_s, f"the backend {candidate.name!r} to load"
    )
    origin = f"from {candidate.distribution}"
    if failure:
        return None, type(failure)(f"{origin} {failure}")
    if not isinstance(value, Plugin):
        return None, f"{origin} names a {type(value).__name__} instead of a portagpu Plugin"
    stated, failure = call_with_limit(
        lambda: _declared_members(value), f"the backend {candidate.name!r} to answer"
    )
    if stated is None:
        return None, type(failure)(f"{origin} {failure}")
    named, written, overrides, vendor, start_s = stated
    if named != candidate.name:
        return None, f"{origin} calls itself {named!r}: entry point and plugin must agree"
    if not (
        isinstance(written, tuple) and len(written) == 2 and all(type(n) is int for n in written)
    ):
        return None, f"{origin} states its contract as {written!r} instead of two numbers"
    if written[0] != CONTRACT[0] or written[1] > CONTRACT[1]:
        theirs, ours = (".".join(map(str, version)) for version in (written, CONTRACT))
        return None, (
            f"{origin} was written for contract {theirs}, this portagpu has {ours}: "
            f"upgrade {'portagpu' if tuple(written) > CONTRACT else candidate.distribution}"
        )
    if not isinstance(overrides, tuple) or any(type(each) is not Override for each in overrides):
        shown = one_line(repr(overrides))
        return None, f"{origin} states its overrides as {shown} instead of a tuple of Override"
    for name, stated_value, fits, form in (
        ("vendor", vendor, _is_word(vendor), "a word in lower case, or an empty one"),
        ("start_s", start_s, _is_duration(start_s), "seconds from 0 to 3600"),
    ):
        if not fits:
            shown = one_line(repr(stated_value))
            return None, f"{origin} states its {name} as {shown} instead of {form}"
    return value, ""


def _is_word(vendor: object) -> bool:
    return vendor == "" or (
        isinstance(vendor, str)
        and vendor == vendor.lower()
        and vendor.isprintable()
        and " " not in vendor
    )


def _is_duration(seconds: object) -> bool:
    # a NaN is in no range
    return type(seconds) in (int, float) and 0 <= cast("float", seconds) <= MAX_START_S


def _declared_members(plugin: Plugin) -> tuple[Any, ...]:
    """Name, contract, overrides, vendor and start. Any code may answer."""
    name = getattr(plugin, "name", None)
    return name, plugin.contract, plugin.overrides, plugin.vendor, plugin.start_s


def call_with_limit(
    call: Callable[[], _T], what: str, limit_s: float | None = None
) -> tuple[_T | None, str]:
    """Run foreign code in a thread of its own: (its value, "") or (None, the problem).

    Anything that it raises, SystemExit included, becomes the problem. A call that is still running
    at the limit stays in its daemon thread.
    """
    return start_call(call, LIMITS.load_s if limit_s is None else limit_s)(what)


def status(name: str) -> Status:
    """Whether the backend of that name can be used here; a broken one is unusable with a reason."""
    try:
        found = plugin(name)
    except BackendNotFound as error:
        return Status(False, error.reasons.get(name, str(error)))
    value, failure = call_with_limit(found.status, f"the backend {name!r} to answer")
    if failure:
        return Status(False, f"its status {failure}")
    if not isinstance(value, Status):
        return Status(False, f"its status is {value!r} instead of a portagpu Status")
    return replace(value, reason=one_line(str(value.reason)))


def probes(limit_s: float | None = None) -> dict[str, Findings]:
    """The findings of every candidate's probe, by name. All probes run at the same time.

    A candidate that cannot be loaded has none, and its status says why. A probe that fails or does
    not answer within ``limit_s``, by default ``Limits.probe_s``, is a problem in its findings.
    """
    from portagpu.facts.readings.model import Findings

    limit_s = LIMITS.probe_s if limit_s is None else limit_s
    waits: dict[str, Callable[[str], tuple[Findings | None, str]]] = {}
    for name in candidates():
        try:
            waits[name] = start_call(plugin(name).probe, limit_s)
        except BackendNotFound:
            continue
    found: dict[str, Findings] = {}
    for name, wait in waits.items():
        value, failure = wait(f"the GPUs of the backend {name!r}")
        if not failure and not isinstance(value, Findings):
            failure = f"is {value!r} instead of portagpu Findings"
        if failure:
            value = Findings(kind=name, problems=(f"the probe of the backend {name!r} {failure}",))
        found[name] = value or Findings(kind=name)
    return found


def samplers() -> tuple[Source, ...]:
    """What reads the devices of every candidate again and again, for a stream; GPUs come first.

    A candidate that cannot be loaded, fails or has nothing to read is left out.
    """
    from portagpu.facts.readings.model import Source

    found: list[tuple[bool, Source]] = []
    for name in candidates():
        with contextlib.suppress(BackendNotFound):
            each = plugin(name)
            value, _ = call_with_limit(each.sampler, f"the sampler of the backend {name!r}")
            if isinstance(value, Source):
                found.append((each.shared, value))
    return tuple(source for _, source in sorted(found, key=lambda pair: pair[0]))


def statuses() -> dict[str, Status]:
    """The status of every candidate, by name. Imports neither torch nor a vendor's package."""
    return {name: status(name) for name in candidates()}


def cost_model_for(vendor: str) -> CostModel | None:
    """The cost model of a vendor's communication library; None where no backend has one."""
    for name in candidates():
        try:
            found = plugin(name)
        except BackendNotFound:
            continue
        if found.vendor == vendor and (model := found.cost_model()) is not None:
            return model
    return None


def toolchain_for(vendor: str) -> tuple[str, Toolchain] | None:
    """The backend with a toolchain for a vendor's machine code: its name and toolchain."""
    for name in candidates():
        try:
            found = plugin(name).toolchain()
        except BackendNotFound:
            continue
        if found is not None and found.vendor == vendor:
            return name, found
    return None

"""Entry points of installed distributions, and calls of their code with a time limit.

An entry point of the group ``portagpu.packages`` names a :class:`VendorPackage`, whose parts are
served as entry points of one group for each kind of part. A distribution with damaged metadata
hides no other one. Code of another distribution runs in a thread of its own; what it raises becomes
one line of text for the caller.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import sys
import threading
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from portagpu.base.errors import PortagpuError
from portagpu.base.patience import LIMITS, PATIENCE, BusyMachine, Patience
from portagpu.base.text import error_line, one_line

if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.metadata import EntryPoint


_log = logging.getLogger("portagpu")
_reported: set[str] = set()


@dataclass(frozen=True, slots=True, kw_only=True)
class VendorPackage:
    """The parts of a vendor's package, named by one entry point of ``portagpu.packages``.

    Each part is a reference, "module:attribute" or "module", and is imported at its first use,
    without the others. A part that the package does not have is empty. The entry point has the name
    of the backend. The module of this declaration imports none of the parts. Since contract 1.5.
    """

    backend: str = ""
    """Its devices: a ``Plugin``."""
    vendor: str = ""
    """Facts of the vendor: a ``Vendor``."""
    formats: str = ""
    """What its tools print: a package whose public modules are readers, or one such module."""
    captures: str = ""
    """What its profiler writes: a package whose public modules are readers."""
    profiler: str = ""
    """Command lines of its profiler: a ``Profiler``."""
    targets: str = ""
    """Facts of its products: a module whose folder has the form of ``matrix/targets``."""


PACKAGES: Final = "portagpu.packages"
PARTS: Final = {
    "portagpu.backends": "backend",
    "portagpu.vendors": "vendor",
    "portagpu.formats": "formats",
    "portagpu.captures": "captures",
    "portagpu.profilers": "profiler",
    "portagpu.targets": "targets",
}
"""The entry-point group of each part of a :class:`VendorPackage`. A distribution may declare its
parts in these groups instead."""
_REFERENCE: Final = re.compile(r"\w+(\.\w+)*(:\w+(\.\w+)*)?")
_packages: dict[str, VendorPackage | str] = {}
"""What each reference in the group ``portagpu.packages`` names, or what is wrong with it. One that
is broken or hangs is waited for once."""


def entry_points(group: str) -> list[EntryPoint]:
    """The entry points of ``group``, and the parts of vendor packages that belong there.

    Of one distribution, a part replaces the entry points with its name or its reference. No part is
    loaded. One that is wrong raises its reason when it is loaded. A distribution whose metadata
    cannot be read is reported once, as a warning, and left out.
    """
    if group not in PARTS:
        return _installed(group)
    found = _installed(group, PACKAGES)
    listed = [point for point in found if point.group == group]
    points = listed.copy()
    for package in found:
        part = _part(package, group) if package.group == PACKAGES else None
        if part is None:
            continue
        if isinstance(part, _BrokenPart) and any(each.dist is part.dist for each in listed):
            _warn_once(f"{part.problem}: its entry points of the group {group} are used instead")
            continue
        points = [
            each
            for each in points
            if each.dist is not part.dist or (each.name != part.name and each.value != part.value)
        ]
        points.append(part)
    return points


def _installed(*groups: str) -> list[EntryPoint]:
    """The entry points of these groups as distributions list them."""
    # imports the email package too, and most calls of the command line need neither
    from importlib import metadata

    try:
        every = metadata.entry_points()
        return [point for group in groups for point in every.select(group=group)]
    except Exception as error:  # noqa: BLE001 - one damaged distribution makes the whole call raise
        _log.debug("reading distributions one by one: %s", error)
    found: list[EntryPoint] = []
    for distribution in metadata.distributions():
        try:
            found.extend(point for point in distribution.entry_points if point.group in groups)
        except Exception as error:  # noqa: BLE001 - as above
            place = getattr(distribution, "_path", "it")
            _warn_once(
                "the metadata of an installed distribution cannot be read "
                f"({type(error).__name__}: {error}) and is ignored: reinstall {place}"
            )
    return found


class _BrokenPart:
    """Takes the place of an entry point of which only the problem is known."""

    def __init__(self, package: EntryPoint, group: str, problem: str) -> None:
        self.name, self.value, self.dist = package.name, package.value, package.dist
        self.group, self.problem, self._package = group, problem, package

    def load(self) -> Any:
        """Raise the problem; after one of a busy machine, try again first."""
        if not isinstance(self.problem, BusyMachine):
            raise PortagpuError(self.problem)
        # whoever loads a part of another distribution does so with a time limit
        part = _part_of(_checked(self._package.load()), self._package, self.group)
        if part is None:
            raise PortagpuError(f"the vendor package {self.value} has no {PARTS[self.group]}")
        return part.load()

    @property
    def module(self) -> str:
        """Raise the problem: for a caller that looks for the module's folder."""
        raise PortagpuError(self.problem)


def _part(package: EntryPoint, group: str) -> EntryPoint | None:
    """The entry point of ``group`` that ``package`` amounts to; None where it has no such part."""
    declared = _packages.get(package.value)
    if declared is None:
        what = f"the vendor package {package.name!r} to load"
        value, failure = call_quietly(package.load, LIMITS.load_s, what)
        declared = failure or _checked(value)
        if not isinstance(declared, BusyMachine):
            _packages[package.value] = declared
    return _part_of(declared, package, group)


def _checked(value: object) -> VendorPackage | str:
    """``value`` as it is, or what is wrong with it."""
    if not isinstance(value, VendorPackage):
        return f"is a {type(value).__name__} instead of a portagpu VendorPackage"
    if all(getattr(value, part) == "" for part in PARTS.values()):
        return f"has no part: state one of {', '.join(PARTS.values())}"
    return value


def _part_of(declared: VendorPackage | str, package: EntryPoint, group: str) -> EntryPoint | None:
    from importlib.metadata import EntryPoint

    title = f"the vendor package {package.value}"
    if isinstance(declared, str):
        # nobody knows which parts it has
        problem = type(declared)(f"{title} {declared}")
        return cast("EntryPoint", _BrokenPart(package, group, problem))
    reference = getattr(declared, PARTS[group])
    if reference == "":
        return None
    if not (isinstance(reference, str) and _REFERENCE.fullmatch(reference)):
        stated = one_line(repr(reference))
        form = "a reference such as 'acme.plugin:PLUGIN'"
        problem = f"{title} states its {PARTS[group]} as {stated} instead of {form}"
        return cast("EntryPoint", _BrokenPart(package, group, problem))
    part = EntryPoint(package.name, reference, group)
    # entry points refuse assignments; importlib.metadata sets their distribution in this way too
    vars(part)["dist"] = package.dist
    return part


def install(extra: str) -> str:
    """The command that installs what ``extra`` names in addition to this package, as it was
    installed.

    A folder is the user's own, and so its command is for that folder. Where pip took a package from
    is its ``direct_url.json``:
    https://packaging.python.org/en/latest/specifications/direct-url-data-structure.
    """
    origin = _origin()
    if origin is None:
        return f"pip install '.[{extra}]' (in the folder of portagpu's pyproject.toml)"
    url = str(origin.get("url", ""))
    if "dir_info" in origin:
        editable = "-e " if origin["dir_info"].get("editable") else ""
        where = "in the folder of portagpu's pyproject.toml"
        return f"pip install {editable}'.[{extra}]' ({where})"
    if "vcs_info" in origin:
        return f"pip install 'portagpu[{extra}] @ {origin['vcs_info'].get('vcs', 'git')}+{url}'"
    if url.startswith("file:"):
        return f"pip install '{PurePosixPath(url).name}[{extra}]' (in the folder of that file)"
    if url:
        return f"pip install 'portagpu[{extra}] @ {url}'"
    return f"pip install 'portagpu[{extra}]'"


def _origin() -> dict[str, Any] | None:
    """Where pip installed this package from: {} for an index, None if pip did not install it."""
    from importlib import metadata

    try:
        text = metadata.distribution("portagpu").read_text("direct_url.json")
        found = json.loads(text or "{}")
    except (metadata.PackageNotFoundError, OSError, ValueError):
        return None
    return found if isinstance(found, dict) else {}


def _warn_once(text: str) -> None:
    if text not in _reported:
        _reported.add(text)
        _log.warning("%s", text)


OWN_DISTRIBUTION: Final = "portagpu"
_QUIET_S: Final = 1.0
"""After this time a log line says what is waited for."""

_redirection: Final = threading.Lock()
_T = TypeVar("_T")


def distribution_of(point: EntryPoint) -> str:
    """The name of the distribution that declares ``point``."""
    try:
        name = point.dist.name if point.dist is not None else None
    except Exception:  # noqa: BLE001 - a distribution without its METADATA file
        name = None
    return name or "an unknown distribution"


def start_call(
    call: Callable[[], _T], limit_s: float, patience: Patience = PATIENCE
) -> Callable[[str], tuple[_T | None, str]]:
    """Start foreign code in a thread of its own.

    The returned function waits for the result: (value, "") or (None, the problem). Its argument
    says to a user what is being waited for. Anything that the code raises, SystemExit included,
    becomes the problem. A call that is still running at the limit is left in its daemon thread.
    What this process, all of it, waits for a CPU does not count: the call may need an import of
    another thread. Where it waited long, the problem is a ``BusyMachine``.
    """
    outcome: dict[str, Any] = {}
    watch = patience.watch(limit_s)

    def work() -> None:
        try:
            outcome["value"] = call()
        except BaseException as error:  # noqa: BLE001 - a plugin's failure is reported as its reason
            outcome["failure"] = f"raised {error_line(error)}"

    thread = threading.Thread(target=work, name="portagpu-plugin", daemon=True)
    thread.start()

    def ended(pause_s: float) -> bool:
        thread.join(pause_s)
        return not thread.is_alive()

    def wait(what: str) -> tuple[_T | None, str]:
        if not ended(min(_QUIET_S, limit_s)):
            _log.warning("waiting for %s", what)
            if not watch.wait(ended):
                late = watch.problem
                busy = isinstance(late, BusyMachine)
                return None, BusyMachine(f"{late}: try again") if busy else late
        return outcome.get("value"), outcome.get("failure", "")

    return wait


def call_quietly(
    call: Callable[[], _T], limit_s: float, what: str, patience: Patience = PATIENCE
) -> tuple[_T | None, str]:
    """Call foreign code as :func:`start_call` does, with its standard output on standard error.

    Standard output may be a document, which what a third party prints must not be part of. The
    redirection is the process's, so that one call runs at a time; ``call`` must not call this.
    """
    with _redirection, contextlib.redirect_stdout(sys.stderr):
        return start_call(call, limit_s, patience)(what)

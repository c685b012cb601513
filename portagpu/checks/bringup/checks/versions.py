"""The gate versions: are the versions known, and do they fit each other?"""

from __future__ import annotations

import importlib.metadata
from typing import TYPE_CHECKING, Final

from portagpu._version import __version__
from portagpu.devices.contract import CONTRACT
from portagpu.facts.torchbuild import torch_build
from portagpu.runs.results.run import Verdict
from portagpu.runs.results.wording import exactly

if TYPE_CHECKING:
    from collections.abc import Iterator

    from portagpu.checks.bringup.run import Context
    from portagpu.runs.results.run import Result

_ONE_DRIVER: Final = exactly(1, "versions of the driver")


def check(context: Context) -> Iterator[Result]:
    """This package, torch on disk against torch as it imports, driver and communication library."""
    yield _package(context)
    if not context.tested.devices:
        return
    facts = context.tested.devices[0].facts
    build = torch_build()
    on_disk = build.version if build is not None else None
    same = on_disk == facts["torch"]
    reason = (
        f"torch {facts['torch']}"
        if same
        else f"torch imports as {facts['torch']}, its files say {on_disk}: reinstall torch"
    )
    on_disk_too = exactly(on_disk or "no version", "torch's files")
    yield context.judge("torch", same, reason, value=facts["torch"], expected=on_disk_too)
    theirs = ".".join(map(str, facts["contract"]))
    ours = ".".join(map(str, CONTRACT))
    yield context.judge(
        "contract",
        facts["contract"][0] == CONTRACT[0],
        f"backend written for {theirs}, package has {ours}",
        value=theirs,
        expected=exactly(f"{CONTRACT[0]}.x", "the contract of this package"),
    )
    library, version = facts["comm_library"], facts["comm_version"]
    if facts["comm_available"] is None:
        yield context.result(
            "comm", Verdict.SKIP, f"the {context.tested.backend} backend claims no collectives"
        )
    else:
        named = f"{library} {version}" if version else f"{library}, which states no version"
        reason = named if facts["comm_available"] else f"this torch has no {library}"
        yield context.judge(
            "comm",
            facts["comm_available"],
            reason,
            value=library if facts["comm_available"] else "none",
            expected=exactly(library, "the backend's library for collectives"),
        )
    context.tested.versions.update(facts["versions"])
    context.tested.versions["comm"] = version
    yield from _drivers(context)


def replay(context: Context) -> Iterator[Result]:
    """The versions that files state; all devices have to have the same driver."""
    machine = context.tested.machine
    stated = {**machine.inventory().versions, **machine.libraries()}
    build = machine.torch()
    if build is not None and build.version is not None:
        stated["torch"] = build.version
    context.tested.versions.update(
        {name: text for name, text in stated.items() if name != "portagpu"}
    )
    if stated:
        listed = ", ".join(f"{name} {text}" for name, text in sorted(stated.items()))
        yield context.result("stated", Verdict.UNVERIFIED, listed)
    else:
        yield context.result("stated", Verdict.INCONCLUSIVE, "no version of software is stated")
    if context.tested.devices and context.tested.devices[0].facts["arch_vendor"] != "cpu":
        yield from _drivers(context)


def _package(context: Context) -> Result:
    """Whether the running files have the version that pip shows."""
    try:
        installed = importlib.metadata.version("portagpu")
    except importlib.metadata.PackageNotFoundError:
        return context.result(
            "portagpu", Verdict.UNVERIFIED, f"{__version__}, not installed by pip"
        )
    reason = f"portagpu {__version__}"
    if installed != __version__:
        reason = f"portagpu runs as {__version__}, pip installed {installed}: reinstall it"
    return context.judge(
        "portagpu",
        installed == __version__,
        reason,
        value=installed,
        expected=exactly(__version__, "the files that run"),
    )


def _drivers(context: Context) -> Iterator[Result]:
    """Whether all devices of a vendor have the same driver."""
    drivers = {
        device.name: device.facts["versions"].get("driver") for device in context.tested.devices
    }
    kinds = set(drivers.values())
    silent = [name for name, version in drivers.items() if version is None]
    if context.tested.from_files and len(kinds) == 2 and silent:
        (driver,) = kinds - {None}
        reason = f"driver {driver}; nothing states that of {silent[0]}"
        more = f" (and {len(silent) - 1} more)" if len(silent) > 1 else ""
        yield context.result("driver", Verdict.INCONCLUSIVE, f"{reason}{more}")
        return
    if context.tested.from_files:
        kinds -= {None} if len(kinds) > 1 else set()
    of_vendors = dict.fromkeys(
        (device.facts["arch_vendor"], drivers[device.name]) for device in context.tested.devices
    )
    if kinds == {None} and context.tested.from_files:
        yield context.result("driver", Verdict.INCONCLUSIVE, "no driver's version is stated")
    elif kinds == {None}:
        yield context.result(
            "driver", Verdict.SKIP, f"the {context.tested.backend} backend has no driver of its own"
        )
    elif len(kinds) == 1:
        (driver,) = kinds
        context.tested.versions.setdefault("driver", driver)
        yield context.judge(
            "driver", True, f"driver {driver}", value=1, unit="1", expected=_ONE_DRIVER
        )
    elif len(of_vendors) == len({vendor for vendor, _ in of_vendors}):
        listed = " and ".join(f"{driver} of {vendor}" for vendor, driver in of_vendors)
        yield context.judge(
            "driver", True, f"drivers {listed}", value=1, unit="1", expected=_ONE_DRIVER
        )
    else:
        listed = ", ".join(f"{name}: {version}" for name, version in drivers.items())
        reason = f"devices answer through different drivers ({listed})"
        yield context.judge(
            "driver", False, reason, value=len(kinds), unit="1", expected=_ONE_DRIVER
        )

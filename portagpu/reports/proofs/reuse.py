"""Whether an earlier result of an environment is what running it now would give."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from portagpu._version import __version__
from portagpu.base.errors import PortagpuError
from portagpu.base.installation import stated_gates
from portagpu.base.subprocesses import run_program
from portagpu.reports.bundles.result_ids import stated_areas, stated_name, stated_names
from portagpu.reports.proofs.evidence import target_of
from portagpu.runs.ledger import Device, account_of, devices_of
from portagpu.runs.results.run import new_run
from portagpu.train.kernels.cpp.sources import KERNELS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from portagpu.runs.results.run import Run


_VERBS: Final = {
    "compile": "compile",
    "conformance": "conform",
    "performance": "bench",
    "bringup": "bringup",
}
_NO_TORCH: Final = "compile"
"""The suite that opens no device."""


class UnknownMachine(PortagpuError, RuntimeError):
    """What the Python of the matrix sees cannot be read; the message says why."""


@dataclass(frozen=True, slots=True)
class Here:
    """This machine as the Python of the matrix sees it: its devices, torch and drivers."""

    host: str
    devices: tuple[Device, ...]
    names: tuple[str, ...]
    """The products of the devices."""
    torch: str | None
    drivers: frozenset[str]

    @classmethod
    def of_info(cls, document: Mapping[str, Any], host: str) -> Here:
        """From the document of ``portagpu info --json``."""
        devices = document["devices"]
        return cls(
            host=host,
            devices=tuple(devices_of(devices, None)),
            names=tuple(str(each["name"]) for each in devices),
            torch=(document.get("torch") or {}).get("version"),
            drivers=frozenset(
                each["driver_version"] for each in devices if each.get("driver_version")
            ),
        )


def ask_here(root: Path) -> Here:
    """What the Python sees that the environments of the checkout ``root`` run in.

    Raises UnknownMachine.
    """
    python = chosen_python(root)
    if python is None:
        raise UnknownMachine("there is no Python with torch")
    try:
        ended = run_program(
            python, "-P", "-m", "portagpu", "info", "--json", "-", environment=dict(os.environ)
        )
        return Here.of_info(json.loads(ended.stdout), platform.node())
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise UnknownMachine(f"{python} does not say what it sees: {error}") from error


def chosen_python(root: Path) -> str | None:
    """The Python in which tox runs the matrix of a checkout, as its ``toxfile.py`` chooses it."""
    spec = importlib.util.spec_from_file_location("toxfile", root / "toxfile.py")
    if spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    choose: Callable[[Path], str | None] = module.chosen_python
    return choose(Path(os.environ.get("TOX_WORK_DIR", root / ".tox")))


def why_again(
    run: Run, target: str, suite: str, options: Sequence[str], here: Callable[[], Here]
) -> str:
    """Why an earlier result does not stand for running the suite of the target now.

    One clause; empty where it does. ``here`` is asked for suites that open a device.
    """
    info = run.info
    if info.interrupted or info.error:
        return "it was interrupted" if info.interrupted else "it ended with an error"
    if info.host != platform.node():
        return f"it is of the host {info.host or 'without a name'}"
    if info.replay:
        return "it is of a recording"
    if info.target != target or target_of(run) is None:
        return f"it is of {info.target or 'no target'}"
    if {each.suite for each in run.results} != {suite}:
        return f"it is not of the suite {suite} alone"
    wanted = [_VERBS[suite], "--target", target, *options]
    if _options(info.command) != wanted:
        return f"it was run as: {' '.join(_options(info.command))}"
    if dict(info.switches) != dict(new_run().info.switches):
        return f"it ran under {', '.join(info.switches) or 'no variable for debugging'}"
    if info.versions.get("portagpu") != __version__:
        return f"it is of portagpu {info.versions.get('portagpu')}"
    if why := _other_cases(run, suite):
        return why
    return "" if suite == _NO_TORCH else _other_machine(run, suite, here)


def _options(command: Sequence[str]) -> list[str]:
    """The command of a run, without its program and where it wrote."""
    words = list(command[1:])
    if "--json" in words[:-1]:
        at = words.index("--json")
        del words[at : at + 2]
    return words


def _other_cases(run: Run, suite: str) -> str:
    """Why the cases are not those of now."""
    if suite == "bringup":
        known, found = set(stated_gates()), {each.area for each in run.results}
    elif suite == _NO_TORCH:
        names = {each.id.removeprefix("kernels/").partition("[")[0] for each in run.results}
        # one result stands for all kernels of a route that builds none
        known, found = set() if "cpp" in names else set(KERNELS), names
    else:
        known = {name for area in stated_areas(suite) for name in stated_names(suite, area)}
        found = {stated_name(suite, each.id) for each in run.results}
    if lacks := known - found:
        return f"it has {len(known & found)} of {len(known)} cases, not {min(lacks)}"
    return ""


def _other_machine(run: Run, suite: str, here: Callable[[], Here]) -> str:
    """Why the devices or their software are not those of now."""
    try:
        now = here()
    except UnknownMachine as error:
        return str(error)
    if run.info.versions.get("torch") != now.torch:
        return f"it is of torch {run.info.versions.get('torch')}, and {now.torch} is here"
    driver = run.info.versions.get("driver")
    if now.drivers and driver not in now.drivers:
        return f"it is of the driver {driver}, and {', '.join(sorted(now.drivers))} is here"
    there = {each.id for each in now.devices if each.lasting}
    devices = account_of(run).devices
    if gone := [each.title for each in devices if each.lasting and each.id not in there]:
        return f"its device {gone[0]} is not here"
    names = [str(each["name"]) for each in run.info.devices]
    if other := [name for name in names if name not in now.names]:
        return f"it is of {other[0]}, which is not here"
    here_of_kind = [name for name in now.names if name in names]
    if suite == "bringup" and len(here_of_kind) != len(names):
        return f"it is of {len(names)} devices, and {len(here_of_kind)} are here"
    return ""

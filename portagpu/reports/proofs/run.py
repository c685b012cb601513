"""Runs what this machine can of the matrix, and reuses what an earlier run gave."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import signal
import time
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from portagpu._version import __version__
from portagpu.base.environment import host_name
from portagpu.base.errors import PortagpuError, ResultError
from portagpu.base.files import write_atomic
from portagpu.base.installation import stated_gates
from portagpu.base.paths import matrix_dir
from portagpu.base.patience import LIMITS
from portagpu.base.subprocesses import run_program
from portagpu.base.subprocesses.start import children_of, kill_group, python_command
from portagpu.checks.info import collect
from portagpu.reports.bundles.check import stated_areas, stated_name, stated_names
from portagpu.reports.proofs.evidence import target_of
from portagpu.runs.ledger import Device, account_of, devices_of
from portagpu.runs.results.run import new_run, read_json
from portagpu.runs.results.verdicts import Verdict
from portagpu.train.kernels.cpp.sources import KERNELS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from portagpu.facts.targets import Target
    from portagpu.runs.results.run import Run


_VERBS: Final = {
    "compile": "compile",
    "conformance": "conform",
    "performance": "bench",
    "bringup": "bringup",
}
_FIXED: Final = {"conformance": ("--seed", "0")}
"""What the environments of a suite add, as ``toxfile.py`` has it: the same programs each time."""
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
        raise UnknownMachine("no Python with torch was found")
    try:
        ended = run_program(
            python, "-P", "-m", "portagpu", "info", "--json", "-", environment=dict(os.environ)
        )
        return Here.of_info(json.loads(ended.stdout), host_name())
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
    if info.host != host_name():
        return f"it is of the host {info.host or 'without a name'}"
    if info.replay:
        return "it is of a recording"
    if info.target != target or target_of(run) is None:
        return f"it is of {info.target or 'no target'}"
    if {each.suite for each in run.results} != {suite}:
        return f"it is not of the suite {suite} alone"
    wanted = [_VERBS[suite], "--target", target, *_FIXED.get(suite, ()), *options]
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


SUITES: Final = ("compile", "conformance", "performance", "bringup")
"""In the order in which they run."""
ALONE: Final = frozenset({"performance", "bringup"})
"""Suites whose measures other work would change: nothing else runs at the same time."""
_CLOSING: Final = re.compile(r"  \S+: (OK|FAIL|SKIP).*|.* :[()] \(.* seconds\)")
"""The lines with which tox closes."""


class CannotRun(PortagpuError, RuntimeError):
    """The matrix cannot run here; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class Environment:
    """One suite of one target, and the tox environment that runs it."""

    target: Target
    suite: str

    @property
    def name(self) -> str:
        """The name of the tox environment: "nvidia-t4-compile"."""
        return f"{self.target.id}-{self.suite}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an environment: its run, or in ``problem`` why there is none."""

    environment: Environment
    run: Run | None
    problem: str
    seconds: float
    kept: bool = False
    """Whether the run is an earlier one's."""

    @property
    def verdict(self) -> Verdict:
        """The run's verdict; ERROR without one."""
        return Verdict.ERROR if self.run is None else self.run.verdict


def reachable(targets: Sequence[Target], suites: Collection[str]) -> list[Environment]:
    """What this machine can run: machine code of every target, and all suites of its devices."""
    here = {device["target"] for device in collect()["devices"]}
    return [
        Environment(target, suite)
        for suite in SUITES
        for target in targets
        if suite in suites
        and (target.value("compile.routes") if suite == "compile" else target.id in here)
    ]


def run_environments(
    environments: Sequence[Environment],
    folder: Path,
    *,
    jobs: int,
    again: bool,
    options: Sequence[str] = (),
    on_outcome: Callable[[Outcome], None],
    on_rerun: Callable[[Environment, str], None] = lambda each, why: None,
) -> list[Outcome]:
    """Run each environment, at most ``jobs`` at once, and report each outcome as it ends.

    Environment E writes ``folder/E.json`` and ``folder/E.log``; ``options`` are further ones of its
    verb. An earlier result is kept unless ``again``, or where this machine, its software or the
    cases are others now: then ``on_rerun`` is called with the reason. Raises CannotRun without
    tox or a checkout. On Ctrl-C, and where a file cannot be written, what runs is stopped and the
    error raised again.
    """
    root = _checkout()
    outcomes, left = [], []
    here = cache(partial(ask_here, root))
    for each in environments:
        place = folder / f"{each.name}.json"
        earlier, why = (None, "") if again else _earlier(place, each, options, here)
        if earlier is not None and not why:
            outcomes.append(Outcome(each, earlier, "", 0.0, kept=True))
            on_outcome(outcomes[-1])
            continue
        if why:
            on_rerun(each, why)
        left.append(each)
    parallel = [each for each in left if each.suite not in ALONE]
    alone = [each for each in left if each.suite in ALONE]
    for some, workers in ((parallel, jobs), (alone, 1)):
        pool = ThreadPoolExecutor(workers)
        begun: list[Future[Any]] = []
        try:
            # environments that need the same packages share a folder: it is made once, before
            for each in _first(some):
                begun.append(pool.submit(_tox, root, folder, each, "--notest"))
                begun[-1].result()
            running = [pool.submit(_run_one, root, folder, each, options) for each in some]
            begun += running
            for future in as_completed(running):
                outcomes.append(future.result())
                on_outcome(outcomes[-1])
        except BaseException:  # Ctrl-C, or a full disk
            pool.shutdown(wait=False, cancel_futures=True)
            _stop_children(begun)
            raise
        finally:
            pool.shutdown()
    return outcomes


def _first(environments: Sequence[Environment]) -> Iterator[Environment]:
    """The first of each set of environments that install the same."""
    seen = set()
    for each in environments:
        packages = each.target.value("compile.packages")
        if each.suite == "compile" and packages not in seen:
            seen.add(packages)
            yield each


def _run_one(root: Path, folder: Path, environment: Environment, options: Sequence[str]) -> Outcome:
    started = time.monotonic()
    place = folder / f"{environment.name}.json"
    place.unlink(missing_ok=True)
    code, text = _tox(
        root, folder, environment, "--skip-pkg-install", "--", "--json", str(place), *options
    )
    seconds = time.monotonic() - started
    try:
        return Outcome(environment, read_json(place), "", seconds)
    except ResultError:
        lines = [
            line for line in text.splitlines() if line.strip() and not _CLOSING.fullmatch(line)
        ]
        problem = lines[-1] if lines else f"tox ended with {code} and printed nothing"
        return Outcome(environment, None, problem, seconds)


def _tox(root: Path, folder: Path, environment: Environment, *words: str) -> tuple[int, str]:
    """The exit code of tox, and what it printed, which is in the log too."""
    command = python_command("tox", "run", "-q", "-c", str(root / "tox.ini"), "-e")
    # a vendor's stack is steered by variables
    ended = run_program(*command, environment.name, *words, environment=dict(os.environ))
    text = (ended.stderr + ended.stdout).decode(errors="replace")
    write_atomic(folder / f"{environment.name}.log", text)
    return ended.returncode, text


def _earlier(
    place: Path, environment: Environment, options: Sequence[str], here: Callable[[], Here]
) -> tuple[Run | None, str]:
    """The run in the file, and why it does not stand for one of now; no run and no reason where
    the file does not exist."""
    if not place.exists():
        return None, ""
    try:
        run = read_json(place)
    except ResultError as error:
        return None, f"its file cannot be used: {str(error).removeprefix(f'{place}: ')}"
    target = environment.target.id
    return run, why_again(run, target, environment.suite, options, here)


def _checkout() -> Path:
    """The folder with tox.ini; raises CannotRun where there is none, or no tox."""
    root = matrix_dir().parent
    if not (root / "tox.ini").is_file():
        raise CannotRun(
            "the matrix runs from a checkout, and this is an installed wheel: install the checkout "
            "with pip install -e ."
        )
    if importlib.util.find_spec("tox") is None:
        raise CannotRun("the matrix runs through tox: install it with pip install tox")
    return root


def _stop_children(begun: Sequence[Future[Any]]) -> None:
    """Interrupt what runs, and end what is still there after a while.

    A thread may be about to start a process, so that they are listed until every thread is done.
    """
    asked = set()
    end_s = time.monotonic() + LIMITS.interrupt_s
    while not all(each.done() for each in begun):
        for pid in children_of(os.getpid()):
            if time.monotonic() > end_s:
                kill_group(pid)
            elif pid not in asked:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGINT)
                    asked.add(pid)
        time.sleep(0.1)

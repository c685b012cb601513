"""Which profiler runs: those of all vendors and torch's, what is installed, and which version."""

from __future__ import annotations

import glob
import json
import os
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from portagpu.base.errors import BackendNotFound
from portagpu.base.patience import LIMITS
from portagpu.base.plugins import OWN_DISTRIBUTION, call_quietly, distribution_of, entry_points
from portagpu.base.subprocesses.start import find_program, run_program
from portagpu.base.text import did_you_mean, one_line
from portagpu.facts.captures.profilers import GROUP, Launch, Profiler, Refused, Tool
from portagpu.facts.torchbuild import torch_build

if TYPE_CHECKING:
    from collections.abc import Mapping
    from importlib.metadata import EntryPoint

    from portagpu.facts.captures.profilers import Hint, Request

START: Final = Path(__file__).parent / "start"
"""The folder with the ``sitecustomize`` that runs in each Python of the command."""
VARIABLE: Final = "PORTAGPU_PROFILE"
_UNWRITABLE: Final = re.compile(r"[\n\\\ud800-\udfff]")
"""What Kineto drops from a path, and what torch cannot give it (tried with torch 2.13)."""


class TorchProfiler:
    """torch.profiler, with one trace for each process that did something."""

    name = "torch"
    backend = ""
    programs = ("proton",)
    """Triton's profiler records from the same sources."""
    places: tuple[str, ...] = ()
    version_pattern = ""
    hints: tuple[Hint, ...] = ()

    def attached(self, environment: Mapping[str, str]) -> str:
        """The variable of a launch around this one."""
        return VARIABLE if environment.get(VARIABLE) else ""

    def launch(self, request: Request, tool: Tool) -> Launch:
        """The command itself, with a start in each of its Pythons. Raises Refused."""
        del tool
        if _UNWRITABLE.search(str(request.folder)):
            raise Refused(f"torch cannot write to {str(request.folder)!r}: choose another folder")
        # processes without a rank may take one before they end
        pattern = request.pattern if request.rank is not None else "*."
        return Launch(argv=request.command, outputs=f"{pattern}pt.trace.json")


def start_environment(
    request: Request, tool: str, environment: Mapping[str, str], notes: Path | None
) -> dict[str, str]:
    """What to change in ``environment`` so that each Python of the command begins with START.

    Under any tool but torch's profiler it only writes ``notes``.
    """
    settings: dict[str, Any] = {
        "folder": str(request.folder),
        "tool": tool,
        "region": request.region,
        "delay_s": request.delay_s,
        "duration_s": request.duration_s,
        "gpu": bool(request.record & {"kernels", "copies", "runtime"}),
        "ranks_only": request.starts_ranks,
    }
    if notes is not None:
        settings["notes"] = str(notes)
    before = environment.get("PYTHONPATH", "")
    return {
        "PYTHONPATH": f"{START}{os.pathsep}{before}" if before else str(START),
        VARIABLE: json.dumps(settings),
    }


PROFILER: Final = TorchProfiler()


class Profilers(NamedTuple):
    by_name: Mapping[str, Profiler]
    problems: tuple[str, ...]
    """Why an entry point was left out, one sentence each."""


class Choice(NamedTuple):
    profiler: Profiler
    tool: Tool
    on_gpu: bool
    """Whether kernels are expected; else operations of the framework."""
    remark: str
    """Why it is not the vendor's profiler, or none of another distribution; else empty."""


@cache
def profilers() -> Profilers:
    """torch's profiler and those of all vendors, by name; ours come first."""
    found: dict[str, Profiler] = {PROFILER.name: PROFILER}
    problems = []

    def order(point: EntryPoint) -> tuple[bool, str, str]:
        return distribution_of(point) != OWN_DISTRIBUTION, point.name, point.value

    for point in sorted(set(entry_points(GROUP)), key=order):
        owner = distribution_of(point)
        if owner == OWN_DISTRIBUTION:
            value, reason = point.load(), ""
        else:
            what = f"the profiler {point.name!r} to load"
            value, reason = call_quietly(point.load, LIMITS.load_s, what)
        if not reason and not isinstance(value, Profiler):
            reason = f"is a {type(value).__name__} without a profiler's attributes"
        if not reason and value.name in found:
            reason = f"has the name {value.name!r}, which is taken"
        if reason:
            problems.append(f"the profiler {point.name!r} of {owner} is left out: it {reason}")
        else:
            found[value.name] = value
    return Profilers(found, tuple(problems))


def choose(name: str | None, version: str | None = None) -> Choice:
    """The profiler of that name, else that of the default backend's vendor, else torch's.

    ``version`` stands for a tool that is not installed. Raises Refused.
    """
    known, problems = profilers()
    if name is not None:
        if name not in known:
            hint = did_you_mean(name, known, f"there are {', '.join(known)}")
            raise Refused("; ".join([f"unknown profiler {name!r}: {hint}", *problems]))
        profiler = known[name]
        if version is not None:
            tool: Tool | None = Tool(profiler.name, version)
        else:
            tool = installed(profiler)
        if tool is None:
            raise Refused(
                f"{name} is not installed: it is neither in PATH nor in "
                f"{', '.join(profiler.places)}"
            )
        return Choice(profiler, tool, bool(profiler.backend) or _has_gpu(), "")
    if version is not None:
        raise Refused("give --tool-version together with --with, which names the tool")
    backend = _backend()
    missing = []
    for profiler in known.values():
        if profiler.backend and profiler.backend == backend:
            if (tool := installed(profiler)) is not None:
                return Choice(profiler, tool, True, "")
            missing.append(profiler.name)
    remarks = [*problems]
    if missing:
        remarks = [f"{' and '.join(missing)} is not installed: torch's profiler records", *problems]
    own = installed(PROFILER)
    assert own is not None  # noqa: S101 - it is found in the command, wherever that runs
    return Choice(PROFILER, own, _has_gpu(), "; ".join(remarks))


def installed(profiler: Profiler) -> Tool | None:
    """The profiler's program and its version; None without one. Raises Refused.

    torch's is that of this Python; the command's may be another.
    """
    if not profiler.version_pattern:
        build = torch_build()
        return Tool(profiler.name, (build and build.version) or "")
    places = [path for pattern in profiler.places for path in sorted(glob.glob(pattern))]  # noqa: PTH207 - patterns are absolute
    path = find_program(profiler.name) or next(reversed(places), None)
    if path is None:
        return None
    try:
        done = run_program(path, "--version", limit_s=LIMITS.program_s)
        printed = (done.stdout + done.stderr).decode(errors="replace")
    except (OSError, TimeoutError) as error:
        raise Refused(f"{path} --version failed: {one_line(str(error))}") from error
    match = re.search(profiler.version_pattern, printed)
    if match is None:
        shown = one_line(printed)[:120] or "nothing"
        raise Refused(f"cannot read a version from {path} --version, which printed: {shown}")
    return Tool(path, match[1])


@cache
def _backend() -> str:
    """The name of the default backend; empty where none can be used."""
    from portagpu.devices import registry

    try:
        return registry.resolve()
    except BackendNotFound:
        return ""


def _has_gpu() -> bool:
    return _backend() not in ("", "cpu")

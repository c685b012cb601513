"""torch's own profiler, which records on every device: started inside the command's processes."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from portagpu.facts.captures.profilers import Launch, Refused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from portagpu.facts.captures.profilers import Hint, Request, Tool

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

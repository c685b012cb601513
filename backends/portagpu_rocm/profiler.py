"""rocprofv3: its command line. It did not run on this project's machines.

Source: ROCm/rocm-systems, projects/rocprofiler-sdk, source/bin/rocprofv3.py @1b1610fc (1.0.0) and
@01610ac2 (2026), and source/lib/output for the names of files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from portagpu.facts.captures.profilers import Hint, Launch, Refused, plain_folder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from portagpu.facts.captures.profilers import Recorded, Request, Tool

OLDEST: Final = (1, 0)
"""The first that writes rocpd (CHANGELOG, "1.0.0 for ROCm release 7.0")."""
_OPTIONS: Final[dict[Recorded, str]] = {
    "kernels": "--kernel-trace",
    "copies": "--memory-copy-trace",
    "runtime": "--hip-runtime-trace",
    "ranges": "--marker-trace",
    "communication": "--rccl-trace",
}


class Rocprofv3:
    """``rocprofv3``."""

    name = "rocprofv3"
    backend = "rocm"
    programs = (
        "rocprofv3",
        "rocprof",
        "rocprofv2",
        "rocprof-compute",
        "rocprof-sys-run",
        "rocprof-sys-sample",
        "rocprof-sys-instrument",
        "omnitrace",
        "omniperf",
    )
    places = ("/opt/rocm/bin/rocprofv3", "/opt/rocm-*/bin/rocprofv3")
    # main() prints the table CONST_VERSION_INFO
    version_pattern = r"(?m)^\s*version:\s*(\d\S*)"
    hints = (
        Hint(
            pattern="permission denied|/dev/kfd",
            meaning="this user may not open /dev/kfd: add it to the groups render and video",
        ),
        Hint(
            pattern="already.*(registered|configured)|multiple tools|configuration.*locked",
            meaning="another tool had rocprofiler-sdk first, such as torch's profiler",
        ),
    )

    def attached(self, environment: Mapping[str, str]) -> str:
        """The variable with which rocprofv3 put its library into this process (its ``run``)."""
        if environment.get("ROCP_TOOL_LIBRARIES"):
            return "ROCP_TOOL_LIBRARIES"
        preloaded = environment.get("LD_PRELOAD", "")
        return "LD_PRELOAD" if "rocprofiler" in preloaded or "roctracer" in preloaded else ""

    def launch(self, request: Request, tool: Tool) -> Launch:
        """``rocprofv3 ... -- COMMAND``; what it starts inherits it. Raises Refused."""
        if tool.release < OLDEST:
            raise Refused(
                f"rocprofv3 {tool.version} writes no rocpd: install rocprofiler-sdk 1.0 (ROCm 7.0) "
                "or newer"
            )
        # output_key.cpp replaces %key% and {key}, format_path.cpp also $env{NAME}
        plain_folder(request, "%{$", "rocprofv3")
        # %rank% is of Slurm and MPI, and %q{} loses what follows it (format_path.cpp); without the
        # process its children write over each other
        rank = "%env{RANK}%" if request.starts_ranks else ""
        argv = [
            tool.path,
            *(option for kind, option in _OPTIONS.items() if kind in request.record),
            *("--output-format", "rocpd"),
            *("--output-directory", str(request.folder)),
            *("--output-file", f"{request.stem}{rank}.pid%pid%"),
        ]
        if request.region:
            argv.append("--selected-regions")
        if request.delay_s is not None or request.duration_s is not None:
            if request.duration_s is None:
                raise Refused("rocprofv3 takes a delay only with an end: add --duration SECONDS")
            # START_DELAY:COLLECTION_TIME:REPEAT in seconds
            argv += ["--collection-period", f"{request.delay_s or 0:g}:{request.duration_s:g}:1"]
        # get_output_filename: {output-file}_results.db
        return Launch(argv=(*argv, "--", *request.command), outputs=f"{request.pattern}_results.db")


PROFILER: Final = Rocprofv3()

"""Nsight Systems: the command line of ``nsys profile``. It did not run on this project's machines.

Read for each option and its values: the user guide (docs.nvidia.com/nsight-systems/UserGuide, "CLI
Profile Command Switch Options" and "CLI Export Command Switch Options") of a release that knows
Blackwell, and a newer text whose --capture-range-end is ``repeat[:N][:mode]``. Read as uses:
NVIDIA/JAX-Toolbox, docs/profiling.md and nsys_jax/tests (--capture-range=cudaProfilerApi,
--cuda-graph-trace=node, --cpuctxsw, --kill=none); NVIDIA/cudf#9543 of October 2021
(--capture-range-end=repeat). Public files found by search list the reports of such a run as
NAME.1.nsys-rep, NAME.2.nsys-rep.

Not checked, as no guide of an old release was read: the versions OLDEST and NODE_TRACE; whether
--delay and --duration take parts of a second ("in seconds"); the words of messages in ``hints``.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final

from portagpu.facts.captures.profilers import (
    Hint,
    Launch,
    Refused,
    Step,
    plain_folder,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from portagpu.facts.captures.profilers import Request, Tool

OLDEST: Final = (2021, 4)
"""The first that writes ``.nsys-rep``: not checked."""
NODE_TRACE: Final = (2023, 1)
"""From here on --cuda-graph-trace is given: not checked. The guide asks for a driver of 515.43."""
_VARIABLES: Final = ("NSYS_PROFILING_SESSION_ID", "NVPROF_ID", "CUDA_INJECTION64_PATH")
"""NSYS_PROFILING_SESSION_ID and NVPROF_ID as gromacs' gpu timing code tests them; the last names
the library that CUDA loads for whichever profiler set it (CUPTI documentation, "Injection")."""


class NsightSystems:
    """``nsys``."""

    name = "nsys"
    backend = "cuda"
    programs = ("nsys", "ncu", "nvprof", "nsight-sys", "compute-sanitizer")
    places = (
        "/usr/local/cuda/bin/nsys",
        "/opt/nvidia/nsight-systems/*/bin/nsys",
        "/opt/nvidia/nsight-systems-cli/*/bin/nsys",
    )
    version_pattern = r"version (\d{4}\.\d+\S*)"
    hints = (
        Hint(
            pattern="ERR_NVGPUCTRPERM|insufficient privilege|not have permission",
            meaning="the driver lets only administrators profile: load nvidia with "
            "NVreg_RestrictProfilingToAdminUsers=0, or run with CAP_SYS_ADMIN",
        ),
        Hint(
            pattern="perf_event_paranoid|paranoid level",
            meaning="the kernel keeps CPU samples from users (kernel.perf_event_paranoid); "
            "kernels and copies do not need them",
        ),
        Hint(
            pattern="multiple.subscribers|another profiler|CUPTI_ERROR_.*SUBSCRIBER",
            meaning="another profiler was attached: CUPTI serves one at a time",
        ),
        Hint(
            pattern="unsupported driver|driver .*(too old|not supported)|newer than",
            meaning="this nsys and this driver do not fit: install a newer nsys",
        ),
    )

    def attached(self, environment: Mapping[str, str]) -> str:
        """The variable of the session that records this process."""
        return next((name for name in _VARIABLES if environment.get(name)), "")

    def launch(self, request: Request, tool: Tool) -> Launch:
        """``nsys profile``, and ``nsys export`` afterwards. Raises Refused."""
        if tool.release < OLDEST:
            raise Refused(
                f"nsys {tool.version} is too old: install 2021.4 or newer, which writes .nsys-rep"
            )
        plain_folder(request, "%", "nsys")
        options = self._options(request, tool)
        output = f"--output={request.folder}/{request.stem}"
        profile = (tool.path, "profile", *options)
        export = Step(
            inputs=f"{request.pattern}nsys-rep",
            suffix=".sqlite",
            argv=(tool.path, "export", "--type=sqlite", "--output={output}", "{input}"),
        )
        outputs = f"{request.pattern}sqlite"
        if not request.starts_ranks:
            argv = (*profile, output, *request.command)
            return Launch(argv=argv, outputs=outputs, steps=(export,))
        if "--no-python" in request.command or "--no_python" in request.command:
            raise Refused(
                "torchrun --no-python hides where ranks start: run portagpu profile inside it "
                "(torchrun --no-python portagpu profile -- PROGRAM)"
            )
        # one report a rank: torchrun runs Python by PYTHON_EXEC (torch/distributed/run.py), and
        # nsys replaces %q{RANK} by the rank's own variable (guide, --output)
        name = "python-under-nsys"
        words = [*profile, f"{output}%q{{RANK}}", request.rank_python]
        script = f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n'
        return Launch(
            argv=request.command,
            outputs=outputs,
            environment={"PYTHON_EXEC": f"{request.folder}/{name}"},
            scripts={name: script},
            steps=(export,),
        )

    def _options(self, request: Request, tool: Tool) -> list[str]:
        traces = []
        if request.record & {"kernels", "copies", "runtime"}:
            # one trace holds them all
            traces.append("cuda")
        if request.record & {"ranges", "communication"}:
            # NCCL annotates its calls with NVTX
            traces.append("nvtx")
        # samples of the CPU may need rights, and without them context switches are still
        # collected (guide, --sample); by default --duration ends the command with the collection
        options = [f"--trace={','.join(traces)}", "--sample=none", "--cpuctxsw=none", "--kill=none"]
        if "cuda" in traces and tool.release >= NODE_TRACE:
            # by default a launch of a graph is one event, and its kernels are none (guide)
            options.append("--cuda-graph-trace=node")
        if request.region:
            # every region, each as a report NAME.N.nsys-rep; by default the first ends the session.
            # newer ones write them when the program ends, unless a mode is given (guide)
            options += ["--capture-range=cudaProfilerApi", "--capture-range-end=repeat"]
        for option, seconds in (("delay", request.delay_s), ("duration", request.duration_s)):
            if seconds is not None:
                if seconds != int(seconds):
                    raise Refused(f"nsys is given whole seconds: --{option} {seconds:g} is none")
                options.append(f"--{option}={int(seconds)}")
        return options


PROFILER: Final = NsightSystems()

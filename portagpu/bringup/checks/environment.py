"""Does the host give the run what it needs?"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from portagpu.host import gpus_on_machine, read_host, visibility
from portagpu.registry import statuses
from portagpu.results import Verdict
from portagpu.torchbuild import torch_build
from portagpu.visible import diagnose, runtimes_on, shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from portagpu.bringup.context import Context
    from portagpu.results import Result

_PYTHONS: Final = ((3, 11), (3, 13))
"""The first and the last Python this package is tested with."""
_SHM_BYTES: Final = 1 << 30
"""NCCL's troubleshooting page asks for --shm-size=1g where Docker's default is 64 MiB."""


def check(context: Context) -> Iterator[Result]:
    """Python, torch's build, the backend, CPUs, memory, shared memory and visibility variables."""
    yield _python(context)
    build = torch_build()
    if build is None or build.problem is not None:
        problem = "torch is not installed" if build is None else build.problem
        yield context.result("torch", Verdict.FAIL, f"{problem}: pip install 'portagpu[torch]'")
        return
    yield context.judge("torch", True, f"torch {build.version}, a {build.kind} build")
    yield from _backend(context)
    yield from _host(context)
    yield _untested_gpus(context)


def _python(context: Context) -> Result:
    version = ".".join(map(str, sys.version_info[:3]))
    first, last = (".".join(map(str, bound)) for bound in _PYTHONS)
    if _PYTHONS[0] <= sys.version_info[:2] <= _PYTHONS[1]:
        return context.judge("python", True, f"Python {version}")
    return context.result(
        "python",
        Verdict.UNVERIFIED,
        f"Python {version}; this package is tested on {first} to {last}",
    )


def _backend(context: Context) -> Iterator[Result]:
    for name, status in statuses().items():
        if name == context.backend:
            yield context.judge("backend", status.usable, f"{name}: {status.reason}")


def _host(context: Context) -> Iterator[Result]:
    host = read_host()
    cpus = host.usable_cpus
    allowed = f"this process may use {cpus} of {host.cpu.logical_cpus} CPUs"
    yield context.judge("cpus", bool(cpus), allowed, value=cpus, unit="1")
    free = host.memory.available_bytes
    if free is None:
        yield context.result(
            "memory", Verdict.INCONCLUSIVE, "the kernel does not state free memory"
        )
    else:
        total = host.usable_memory_bytes or 0
        reason = f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB are free"
        yield context.result("memory", Verdict.UNVERIFIED, reason, value=free, unit="B")
    shm = host.limits.shm_bytes
    if shm is None:
        yield context.result(
            "shm", Verdict.INCONCLUSIVE, "the size of shared memory cannot be read"
        )
    else:
        verdict = Verdict.PASS if shm >= _SHM_BYTES else Verdict.UNVERIFIED
        hint = (
            "" if verdict is Verdict.PASS else "; under 1 GiB NCCL may fail: docker --shm-size=1g"
        )
        reason = f"shared memory has {shm / 2**30:.2f} GiB{hint}"
        yield context.result("shm", verdict, reason, value=shm, unit="B")
    yield _visible(context)
    load = host.sensors.load_average
    if load is not None and cpus and load[0] > cpus:
        reason = f"load average {load[0]:.1f} on {cpus} CPUs: other work disturbs the measures"
        yield context.result("load", Verdict.UNVERIFIED, reason, value=load[0], unit="1")


def _visible(context: Context) -> Result:
    """Masks that the runtime and torch read otherwise than they were meant to be."""
    masks = visibility()
    if not masks:
        return context.judge("visible", True, "no variable hides devices")
    problems = [
        problem for name in runtimes_on(context.backend, ()) for problem in diagnose(masks, name)
    ]
    harmful = [problem.message for problem in problems if problem.harmful]
    if harmful:
        return context.result("visible", Verdict.FAIL, "; ".join(harmful))
    listed = ", ".join(f"{name}={shown(value)}" for name, value in masks.items())
    advice = "".join(f"; {problem.message}" for problem in problems)
    reason = f"devices may be hidden by {listed}{advice}"
    return context.result("visible", Verdict.UNVERIFIED, reason)


def _untested_gpus(context: Context) -> Result:
    """A machine with a GPU is not accepted by a run over its CPU."""
    gpus = gpus_on_machine()
    if gpus and context.shared:
        vendors = " and ".join(sorted({gpu.vendor for gpu in gpus}))
        return context.result(
            "gpus",
            Verdict.INCONCLUSIVE,
            f"{len(gpus)} GPU(s) of {vendors} are here and this run tests the {context.backend} "
            "backend: install a torch that was built for them and run bringup again",
        )
    return context.judge(
        "gpus", True, f"{len(gpus)} GPU(s) on this machine", value=len(gpus), unit="1"
    )

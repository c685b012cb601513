"""The gate environment: does the host have what the run needs?"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from portagpu.checks.diagnostics import install_torch, settings_diagnostics
from portagpu.facts.host import gpus_on_machine, read_host, unreadable_files, visibility
from portagpu.facts.host.machine import read_settings
from portagpu.facts.visible import diagnose, quoted, relevant_runtimes
from portagpu.runs.judges.gpu_health import declaration_problems
from portagpu.runs.results.run import Verdict
from portagpu.runs.results.wording import at_least, exactly

if TYPE_CHECKING:
    from collections.abc import Iterator

    from portagpu.checks.bringup.run import Context
    from portagpu.facts.host import Host
    from portagpu.runs.results.run import Result

_PYTHONS: Final = ((3, 11), (3, 13))
"""The first and the last Python this package is tested with."""
_MASKS: Final = exactly(0, "variables that hide devices otherwise than they were meant to")
_TORCH: Final = exactly("a torch that can be imported", "what a device is opened with")
_USABLE: Final = exactly("usable", "a backend whose torch sees devices")
_SHM_BYTES: Final = 1 << 30
"""NCCL's troubleshooting page asks for --shm-size=1g where Docker's default is 64 MiB."""


def check(context: Context) -> Iterator[Result]:
    """Python, torch's build, the backend, CPUs, memory, shared memory and visibility variables.

    A recording of hardware has no software; the output of one tool has nothing about the host.
    """
    if context.tested.from_files:
        yield recording(context)
    yield from declarations(context)
    if context.tested.machine.software_known:
        yield _python(context)
        torch = _torch(context)
        yield torch
        if context.tested.origins or not torch.failed:
            yield from _backend(context)
    else:
        yield context.result("software", Verdict.INCONCLUSIVE, "no software was recorded")
    yield from _host(context)
    if not context.tested.origins:
        yield _untested_gpus(context)


def recording(context: Context) -> Result:
    """List what was read of a recording, or of a machine without a backend, and what was not."""
    inventory = context.tested.machine.inventory()
    extra = {"sources": list(inventory.kinds), "problems": list(inventory.problems)}
    if inventory.problems:
        more = f" (and {len(inventory.problems) - 1} more)" if len(inventory.problems) > 1 else ""
        reason = f"{inventory.problems[0]}{more}"
        return context.result("recording", Verdict.INCONCLUSIVE, reason, extra=extra)
    unreadable = "" if context.tested.origins else unreadable_files(context.tested.machine.tree)
    if unreadable:
        return context.result("recording", Verdict.INCONCLUSIVE, unreadable, extra=extra)
    listed = ", ".join(inventory.kinds) or "nothing of GPUs"
    what = "recorded" if context.tested.origins else "read without a device"
    return context.result("recording", Verdict.PASS, f"{what}: {listed}", extra=extra)


def declarations(context: Context) -> Iterator[Result]:
    """INCONCLUSIVE if what a distribution declares cannot be used; nothing otherwise."""
    problems = declaration_problems()
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        yield context.result(
            "declarations",
            Verdict.INCONCLUSIVE,
            f"{problems[0]}{more}",
            extra={"problems": problems},
        )


def _python(context: Context) -> Result:
    version = context.tested.machine.libraries().get("python")
    if version is None:
        return context.result("python", Verdict.INCONCLUSIVE, "no Python was recorded")
    first, last = (".".join(map(str, bound)) for bound in _PYTHONS)
    numbers = re.match(r"(\d+)\.(\d+)", version)
    expected = exactly(f"{first} to {last}", "the Pythons that this package is tested on")
    if numbers and _PYTHONS[0] <= (int(numbers[1]), int(numbers[2])) <= _PYTHONS[1]:
        return context.judge("python", True, f"Python {version}", value=version, expected=expected)
    return context.result(
        "python",
        Verdict.UNVERIFIED,
        f"Python {version}; this package is tested on {first} to {last}",
        value=version,
        expected=expected,
    )


def _torch(context: Context) -> Result:
    build = context.tested.machine.torch()
    if build is None or build.problem is not None:
        problem = "torch is not installed" if build is None else build.problem
        return context.judge(
            "torch",
            False,
            f"{problem}: {install_torch()}",
            value=problem,
            expected=_TORCH,
        )
    reason = f"torch {build.version}, a {build.kind} build"
    return context.judge("torch", True, reason, value=build.version, expected=_TORCH)


def _backend(context: Context) -> Iterator[Result]:
    """Judge the tested backend; in a recording all backends, one of which has to be usable."""
    found = context.tested.machine.backends()
    if context.tested.unusable:
        yield _usable(context, False, context.tested.unusable)
        return
    if not context.tested.origins:
        for name, status in found.items():
            if name == context.tested.backend:
                yield _usable(context, status.usable, f"{name}: {status.reason}")
        return
    usable = [name for name, status in found.items() if status.usable]
    reasons = "; ".join(f"{name}: {status.reason}" for name, status in found.items())
    if not found:
        yield context.result("backend", Verdict.INCONCLUSIVE, "no backend was recorded")
    else:
        yield _usable(context, bool(usable), reasons)


def _usable(context: Context, good: bool, reason: str) -> Result:
    value = "usable" if good else "not usable"
    return context.judge("backend", good, reason, value=value, expected=_USABLE)


def _host(context: Context) -> Iterator[Result]:
    host = read_host(context.tested.machine.tree)
    if context.tested.origins and host.cpu.logical_cpus is None and host.memory.total_bytes is None:
        yield context.result("host", Verdict.INCONCLUSIVE, "no file of the host was recorded")
        return
    cpus = host.usable_cpus
    allowed = f"this process may use {cpus} of {host.cpu.logical_cpus} CPUs"
    least = at_least(1, "a process needs a CPU")
    yield context.judge("cpus", bool(cpus), allowed, value=cpus, unit="1", expected=least)
    yield _memory(context, host)
    yield _shared_memory(context, host)
    if context.tested.machine.software_known:
        yield _visible(context)
    if not context.tested.shared:
        yield from _settings(context, host)
    load = host.sensors.load_average
    if host.busy and load is not None:
        yield context.result("load", Verdict.UNVERIFIED, host.busy, value=load[0], unit="1")


def _memory(context: Context, host: Host) -> Result:
    free = host.memory.available_bytes
    if free is None:
        return context.result(
            "memory", Verdict.INCONCLUSIVE, "the kernel does not state free memory"
        )
    total = host.usable_memory_bytes or 0
    reason = f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB are free"
    return context.result("memory", Verdict.UNVERIFIED, reason, value=free, unit="B")


def _shared_memory(context: Context, host: Host) -> Result:
    shm = host.limits.shm_bytes
    if shm is None:
        return context.result(
            "shm", Verdict.INCONCLUSIVE, "the size of shared memory cannot be read"
        )
    verdict = Verdict.PASS if shm >= _SHM_BYTES else Verdict.UNVERIFIED
    hint = "" if verdict is Verdict.PASS else "; under 1 GiB NCCL may fail: docker --shm-size=1g"
    reason = f"shared memory has {shm / 2**30:.2f} GiB{hint}"
    least = at_least(_SHM_BYTES, "NCCL's troubleshooting page", "B")
    return context.result("shm", verdict, reason, value=shm, unit="B", expected=least)


def _settings(context: Context, host: Host) -> Iterator[Result]:
    """Kernel settings that slow the GPUs; nothing without a GPU."""
    gpus = context.tested.machine.inventory().gpus
    if not gpus:
        return
    addresses = (gpu.pci for gpu in gpus if gpu.pci is not None)
    settings = read_settings(context.tested.machine.tree, addresses)
    advice = list(settings_diagnostics(settings, gpus, len(host.cpu.numa_nodes)))
    known = {
        "the IOMMU": settings.iommu,
        "automatic NUMA balancing": settings.numa_balancing,
        "ACS above the GPUs": settings.acs_redirects,
    }
    unread = [name for name, value in known.items() if value is None]
    if advice:
        yield context.result("settings", Verdict.UNVERIFIED, "; ".join(advice))
    elif unread:
        reason = f"it cannot be read how {' and '.join(unread)} is set"
        yield context.result("settings", Verdict.UNVERIFIED, reason)
    else:
        yield context.judge(
            "settings",
            True,
            f"{', '.join(known)}: nothing slows the GPUs",
            value=0,
            unit="1",
            expected=exactly(0, "settings that slow GPUs"),
        )


def _visible(context: Context) -> Result:
    """Visible-device masks that the runtime or torch reads differently than intended."""
    masks = visibility(context.tested.machine.environment)
    if not masks:
        return context.judge(
            "visible", True, "no variable hides devices", value=0, unit="1", expected=_MASKS
        )
    build = context.tested.machine.torch() if context.tested.from_files else None
    runtime = context.tested.backend if build is None else build.kind
    problems = [
        problem for name in relevant_runtimes(runtime, ()) for problem in diagnose(masks, name)
    ]
    harmful = [problem.message for problem in problems if problem.harmful]
    if harmful:
        return context.judge(
            "visible", False, "; ".join(harmful), value=len(harmful), unit="1", expected=_MASKS
        )
    listed = ", ".join(f"{name}={quoted(value)}" for name, value in masks.items())
    advice = "".join(f"; {problem.message}" for problem in problems)
    reason = f"devices may be hidden by {listed}{advice}"
    return context.result("visible", Verdict.UNVERIFIED, reason)


def _untested_gpus(context: Context) -> Result:
    """INCONCLUSIVE if the machine has GPUs and the run tests its CPU."""
    gpus = gpus_on_machine()
    if gpus and (context.tested.shared or context.tested.backend is None):
        vendors = " and ".join(sorted({gpu.vendor for gpu in gpus}))
        backend = context.tested.backend
        what = f"tests the {backend} backend" if backend else "opens none"
        return context.result(
            "gpus",
            Verdict.INCONCLUSIVE,
            f"{len(gpus)} GPU(s) of {vendors} are here and this run {what}: install a torch that "
            "was built for them and run bringup again",
            value=len(gpus),
            unit="1",
            expected=exactly(0, "GPUs that this run does not test"),
        )
    unreadable = unreadable_files(context.tested.machine.tree)
    if not gpus and unreadable:
        return context.result("gpus", Verdict.INCONCLUSIVE, unreadable)
    return context.judge(
        "gpus",
        True,
        f"{len(gpus)} GPU(s) on this machine",
        value=0,
        unit="1",
        expected=exactly(0, "GPUs that this run does not test"),
    )

"""Whether the installed torch can use a vendor's GPUs on this machine, with a reason in one line.

The answer is from files and the environment: nothing is opened, and neither torch nor a vendor's
package is imported.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from itertools import compress
from typing import TYPE_CHECKING

from portagpu.devices.contract import Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from portagpu.facts.host import PciGpu
    from portagpu.facts.host.tree import Tree
    from portagpu.facts.visible import Visible


@dataclass(frozen=True, slots=True)
class Need:
    """What a backend needs: a build of torch of that kind, and a GPU of that vendor.

    ``kind`` is one of ``TorchBuild.kind`` and names the runtime in
    ``portagpu.facts.visible.RUNTIMES``; ``build`` is its name in messages. ``vendor`` is spelled as
    in ``gpus_on_machine``; ``maker`` is its name in messages."""

    kind: str
    build: str
    vendor: str
    maker: str

    @property
    def remedy(self) -> str:
        """The torch to install."""
        return f"a {self.build} build of torch (https://pytorch.org/get-started/locally)"


def availability(need: Need, root: Tree, driver_problem: Callable[[int], str]) -> Status:
    """The status of a backend with that need on a machine.

    :param need: the build of torch and the vendor of GPUs that the backend needs.
    :param root: the machine's files.
    :param driver_problem: called with the number of the vendor's GPUs; returns why this process
        cannot reach their driver, and an empty text where it can.
    :returns: whether the backend can be used, and why.
    """
    from portagpu.facts.host import gpus_on_machine
    from portagpu.facts.torchbuild import torch_build
    from portagpu.facts.visible import RUNTIMES, diagnose

    build = torch_build()
    gpus = [gpu for gpu in gpus_on_machine(root) if gpu.vendor == need.vendor]
    devices = f"{len(gpus)} {need.maker} GPU{'s' if len(gpus) > 1 else ''}"
    if build is None:
        return Status(False, f"torch is not installed: install {need.remedy}")
    if build.kind is None:
        return Status(False, build.problem or "the installed torch cannot be read")
    if build.kind != need.kind:
        stated = f"torch {build.version} is a {build.kind} build"
        if not gpus:
            return Status(False, f"{stated}, and this machine shows no {need.maker} GPU")
        return Status(False, f"{stated} and cannot use {devices}: install {need.remedy}")
    if not gpus:
        return Status(False, f"this machine shows no {need.maker} GPU")
    seen = visible(os.environ, gpus, need.kind)
    hidden = (
        _hiding_masks(os.environ, gpus, need.kind) if seen is not None and not seen.devices else ""
    )
    problem = driver_problem(len(gpus)) or hidden
    if problem:
        return Status(False, problem)
    reason = f"torch {build.version} is a {need.kind} build for {devices}"
    if seen is not None:
        problems = seen.problems
    else:
        problems = diagnose(os.environ, need.kind) if need.kind in RUNTIMES else ()
    harmful = [problem.message for problem in problems if problem.harmful]
    return Status(True, f"{reason}; {harmful[0]}" if harmful else reason, True)


def count_reachable(need: Need, root: Tree) -> int | None:
    """The number of visible GPUs and partitions whose device files may be opened.

    None where a device's file is unknown, and where the masks are wrong or name what the kernel's
    files do not show. Then only the runtime knows.
    """
    from portagpu.facts.host import gpus_on_machine

    reachable = []
    for gpu in gpus_on_machine(root):
        if gpu.vendor != need.vendor:
            continue
        files = [part.device_file for part in (gpu.partitions or (gpu,))]
        if None in files:
            return None
        ours = [os.access(file, os.R_OK | os.W_OK) for file in files if file]
        if any(ours):
            reachable.append(replace(gpu, partitions=tuple(compress(gpu.partitions, ours))))
    seen = visible(os.environ, reachable, need.kind)
    return None if seen is None or seen.harmful else len(seen.devices) or None


def visible(environment: Mapping[str, str], gpus: Iterable[PciGpu], runtime: str) -> Visible | None:
    """The devices of ``gpus`` that the masks leave; each partition is a device.

    None where a mask names a UUID and the kernel's files do not show every device's, as before the
    driver's first start, in some containers, and for MIG slices: only the runtime knows then. None
    as well for a runtime whose masks no vendor declares.
    """
    from portagpu.facts.visible import RUNTIMES, DeviceId, resolve

    if runtime not in RUNTIMES:
        return None
    variables = RUNTIMES[runtime].variables
    masks = [environment[name] for name in variables if name in environment]
    parts = [(gpu, part) for gpu in gpus for part in (gpu.partitions or (None,))]
    slices = [layer.slice_prefix for layer in RUNTIMES[runtime].layers if layer.slice_prefix]
    if any(prefix in text for prefix in slices for text in masks):
        return None
    uuids = [prefix for layer in RUNTIMES[runtime].layers for prefix in layer.uuid_prefixes]
    named = any(prefix.lower() in text.lower() for prefix in uuids for text in masks)
    if named and any(gpu.uuid is None for gpu, _ in parts):
        return None
    return resolve(
        environment,
        [DeviceId(index, gpu.uuid) for index, (gpu, _) in enumerate(parts)],
        runtime,
    )


def _hiding_masks(environment: Mapping[str, str], gpus: Sequence[PciGpu], runtime: str) -> str:
    """A sentence that names the mask that hides every device, or all masks together."""
    from portagpu.facts.visible import RUNTIMES, quoted

    masks = {name: environment[name] for name in RUNTIMES[runtime].variables if name in environment}
    alone = [{name: text} for name, text in masks.items()]
    for culprit in (*alone, masks):
        seen = visible(culprit, gpus, runtime)
        if seen is None or seen.devices:
            continue
        listed = " and ".join(f"{name}={quoted(text)}" for name, text in culprit.items())
        verb = "hides" if len(culprit) == 1 else "together hide"
        why = seen.harmful[0].message if seen.harmful else "unset it or name devices in it"
        return f"{listed} {verb} every GPU: {why.removeprefix(f'{listed}: ')}"
    return ""

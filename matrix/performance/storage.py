"""Files between storage and the device's memory: directly, and in turns the ordinary way.

The ordinary way is a read into host memory, page-locked where there is such, and a copy to the
device; or the other way round. The vendor's direct way comes from its plugin. On a CPU the memory
is the host's: direct is O_DIRECT, past the kernel's cache. The file is one that the case makes in
the folder for temporary files; TMPDIR names another. What the kernel keeps of it in memory is
dropped before each call (posix_fadvise(2), POSIX_FADV_DONTNEED).
"""

from __future__ import annotations

import ctypes
import os
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from portagpu.runs.results.verdicts import Verdict
from portagpu.suites.performance.cases import Absent, BenchCase
from portagpu.suites.performance.timing import Effort

if TYPE_CHECKING:
    import torch

    from portagpu.devices.plugin_parts import DirectFile
    from portagpu.facts.targets import Target
    from portagpu.runs.world import Rank
    from portagpu.suites.performance.device import MeasuredDevice
    from portagpu.suites.performance.timing import WrongValue

METRICS: Final = ("storage/read", "storage/write")

_SEED: Final = 20240311
_MIB: Final = 1 << 20
_BYTES: Final = {
    Effort.QUICK: {True: 16 * _MIB, False: 256 * _MIB},
    Effort.FULL: {True: 64 * _MIB, False: 1024 * _MIB},
}
"""Of the file, by whether the device is the CPU, whose machine may have a slow disk."""


def cases(
    *, device: MeasuredDevice, effort: Effort, world: int, target: Target | None
) -> list[BenchCase]:
    """Reading and writing one file."""
    del world, target
    size = _BYTES[effort][device.shared]
    absent = None
    if device.direct_storage is None:
        absent = Absent(Verdict.SKIP, f"the {device.backend} backend names no direct storage")
    limits = ["other sizes, several files at once, or another disk than that of TMPDIR"]
    if device.shared:
        limits.append("memory of a device: it is the host's, and direct is past its cache")
    return [
        BenchCase(
            id=metric,
            metric=metric,
            area="storage",
            unit="GB/s",
            function="direct",
            arguments={"way": metric.removeprefix("storage/"), "size": size},
            environment=device.direct_storage or {},
            shape={"bytes": size},
            counts="the bytes of the file, once; a write ends when the disk has them",
            checks="every byte",
            does_not_show="; ".join(limits),
            absent=absent,
            time_factor=3.0,
        )
        for metric in METRICS
    ]


class OrdinaryFile:
    """A file, and memory of the device that is reached through the host's."""

    def __init__(self, rank: Rank, path: Path, size: int) -> None:
        import torch

        gpu = rank.gpu
        self.memory = torch.zeros(size, dtype=torch.uint8, device=gpu.device)
        self._host = self.memory
        if not gpu.plugin.shared:
            host = torch.zeros(size, dtype=torch.uint8)
            self._host = gpu.pin(host) if "pinned-memory" in gpu.capabilities else host
        self._bytes = memoryview((ctypes.c_char * size).from_address(self._host.data_ptr()))
        self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._synchronize = gpu.synchronize

    def read(self) -> None:
        """Read into the host's memory, and copy where that is not the device's."""
        self._whole(os.preadv)
        if self._host is not self.memory:
            self.memory.copy_(self._host, non_blocking=True)

    def write(self) -> None:
        """Copy where the memory is not the host's, write, and have the disk keep it."""
        if self._host is not self.memory:
            self._host.copy_(self.memory)
            self._synchronize()
        self._whole(os.pwritev)
        os.fdatasync(self._descriptor)

    def forget(self) -> None:
        """Drop what the kernel keeps of the file in memory."""
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def _whole(self, move: Any) -> None:
        at, size = 0, self._bytes.nbytes
        while at < size:
            moved = move(self._descriptor, [self._bytes[at:]], at)
            if not moved:
                raise OSError(f"the file ends after {at} of {size} bytes")
            at += moved


def direct(rank: Rank, *, effort: str, way: str, size: int) -> dict[str, Any]:
    """Time transfers of a file directly and the ordinary way, in turns, and check the bytes."""
    import torch

    from portagpu.base.errors import Unsupported
    from portagpu.base.files import Scratch
    from portagpu.suites.performance.timing import (
        PACES,
        STABLE,
        RankSamples,
        Sampler,
        Stopwatch,
        Timing,
        take_turns,
    )

    stopwatch = Stopwatch(rank.gpu, host=True)
    reading = RankSamples.start(stopwatch)
    storage = rank.gpu.plugin.direct_storage()
    if storage is None:
        reading.skip = f"the {rank.gpu.name} backend names no direct storage"
        return reading.to_json()
    with ExitStack() as stack:
        path = stack.enter_context(Scratch("storage")) / "bytes"
        rank.step(f"writing a file of {size} bytes")
        generator = torch.Generator().manual_seed(_SEED)
        content = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator)
        path.touch()
        ordinary = stack.enter_context(closing(OrdinaryFile(rank, path, size)))
        try:
            ordinary.memory.copy_(content)
            ordinary.write()
            ordinary.forget()
            ours = stack.enter_context(closing(storage.open(rank.gpu.device, path, size)))
        except Unsupported as error:
            reading.skip = str(error)
            return reading.to_json()
        except OSError as error:
            reading.skip = f"no file of {size} bytes can be made: {error.strerror or error}"
            return reading.to_json()
        reading.notes = {
            "seed": _SEED,
            "library": storage.library,
            "proof": storage.proof,
            "file_system": file_system_of(path),
        }
        rank.step(f"checking a {way}")
        what = f"{way} of {size} bytes"
        check = partial(first_wrong, rank, way, ordinary, content)
        reading.reject(check(ours), what)
        reading.reject(check(ordinary), what)
        if reading.wrong:
            return reading.to_json()
        pace = PACES[Effort(effort)]
        calls = (getattr(ours, way), getattr(ordinary, way))
        rank.step(f"timing a {way}")
        before = storage.counters()
        first = max(stopwatch.time(calls[0], 1), stopwatch.resolution_s)
        after = storage.counters()
        reading.notes["counted"] = {name: after[name] - before.get(name, 0) for name in after}
        once = max(stopwatch.time(calls[0], 1), stopwatch.resolution_s)
        stable = abs(once - first) <= STABLE * first
        turns = int(min(max(pace.point_s / once, pace.least), pace.most))
        with Sampler(rank.gpu) as sampler:
            directly, indirectly = take_turns(stopwatch, calls, (1, 1), turns, ordinary.forget)
        reading.reject(check(ours), what)
        timing = Timing(tuple(directly), 1, turns + 2, stable, sampler.readings())
        reading.keep(timing, work=size, moved=size)
        ratios = [other / one for one, other in zip(directly, indirectly, strict=True)]
        reading.notes["ordinary_gb_per_s"] = median(size / each / 1e9 for each in indirectly)
        reading.notes["over_ordinary"] = median(ratios)
    return reading.to_json()


def first_wrong(
    rank: Rank, way: str, ordinary: OrdinaryFile, content: torch.Tensor, file: DirectFile
) -> WrongValue | None:
    """What is wrong after a transfer by ``file`` over bytes that were all others; None if nothing.

    A write is read back the ordinary way, after the kernel has dropped what it keeps.
    """
    from portagpu.suites.performance.timing import first_wrong_byte

    ordinary.memory.copy_(~content)
    if way == "write":
        ordinary.write()
        file.memory.copy_(content)
        rank.gpu.synchronize()
        file.write()
        ordinary.memory.zero_()
        ordinary.forget()
        ordinary.read()
    else:
        file.memory.copy_(~content)
        rank.gpu.synchronize()
        ordinary.forget()
        file.read()
    rank.gpu.synchronize()
    return first_wrong_byte((ordinary if way == "write" else file).memory, content)


def file_system_of(path: Path) -> str | None:
    """The kind of file system that ``path`` lies in ("ext4"), by proc_pid_mountinfo(5)."""
    device = path.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
    except OSError:
        return None
    kinds = [line.partition(" - ")[2].split()[0] for line in lines if number in line.split()]
    return kinds[-1] if kinds else None

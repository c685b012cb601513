"""When profilers record: ``torch.cuda.profiler``, and steps of training on a schedule."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import warnings
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from portagpu.base.errors import EmptyCapture, OutputError
from portagpu.base.files import Scratch
from portagpu.devices.annotations import LAUNCHED, annotate, region
from portagpu.devices.annotations import profiler_start as start
from portagpu.devices.annotations import profiler_stop as stop
from portagpu.devices.collectives.launcher import place_of_rank
from portagpu.devices.registry import backend

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    import torch

__all__ = ["Profiling", "Schedule", "profile", "profiling", "start", "stop"]

Phase = Literal["off", "warmup", "active", "last"]
Recorder = Literal["auto", "torch"]
_SUFFIXES: Final = (".json.gz", ".json")


@contextmanager
def profile() -> Iterator[None]:
    """Record inside the block."""
    start()
    try:
        yield
    finally:
        stop()


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Which steps are recorded: ``skip_first`` once, then cycles of wait, warm-up and active ones.

    ``repeat`` is the number of cycles, and 0 as many as there are steps for. Raises ValueError for
    numbers that make no schedule.
    """

    wait: int = 1
    warmup: int = 1
    active: int = 3
    repeat: int = 1
    skip_first: int = 0

    def __post_init__(self) -> None:
        for each in fields(self):
            number = getattr(self, each.name)
            least = 1 if each.name == "active" else 0
            if isinstance(number, bool) or not isinstance(number, int) or number < least:
                raise ValueError(
                    f"{each.name} is a number of {'cycles' if each.name == 'repeat' else 'steps'} "
                    f"from {least}, not {number!r}"
                )

    def phase(self, step: int) -> Phase:
        """The phase of that step, counted from 0; "last" is the last active one of a cycle."""
        step -= self.skip_first
        cycle, place = divmod(step, self.wait + self.warmup + self.active)
        if step < 0 or (self.repeat and cycle >= self.repeat) or place < self.wait:
            return "off"
        if place < self.wait + self.warmup:
            return "warmup"
        return "active" if place < self.wait + self.warmup + self.active - 1 else "last"

    @property
    def needed(self) -> int:
        """Steps until something is recorded."""
        return self.skip_first + self.wait + self.warmup + 1


class Profiling:
    """What :func:`profiling` returns; call :meth:`step` at the end of each step of training.

    :param output: the file to write, as in :func:`profiling`.
    :param schedule: the steps to record.
    :param recorder: "auto" or "torch".
    :param options: arguments of ``torch.profiler.profile``, by name.
    :raises ValueError: for "torch" in a process that a vendor's profiler started.
    """

    def __init__(
        self, output: str | os.PathLike[str], schedule: Schedule, recorder: Recorder, options: Any
    ) -> None:
        handle = backend()
        attached = handle.attached_profiler()
        if attached is not None and recorder == "torch":
            raise ValueError(
                f"{attached} records this process, and torch's profiler cannot run at the same "
                f"time: leave recorder='torch' out, or start the program without {attached}"
            )
        self.schedule: Final = schedule
        self.recorder: Final = attached or "torch"
        """Who records: "torch", or the vendor's profiler that this process was started with."""
        self.paths: list[Path] = []
        """The files that were written, one for each cycle; none where the vendor's tool records.

        In a process that ``portagpu profile`` started they are in its folder.
        """
        self.rank: int
        self.world_size: int
        self.rank, self.world_size, self._grouped = _rank()
        self._output = Path(output)
        self._device = handle.device.type
        self._step = 0
        self._recorded = 0
        self._failed = False
        self._thread = 0
        """The one that is inside the block; 0 outside."""
        self._launched: Any = None
        """``portagpu profile``, where it would record here with torch's profiler."""
        self._in_cycle = False
        self._block: annotate | None = None
        self._open = contextlib.ExitStack()
        self._torch = None if attached else _torch_profile(self, options)
        self._path(0)  # raises at once for an output without a name

    def __enter__(self) -> Profiling:
        if self._torch is not None:
            launched: Any = sys.modules.get(LAUNCHED)
            if launched is not None and launched.hand_over():
                self._launched = launched
            self._check_alone()
            self._torch.start()
        self._thread = threading.get_ident()
        self._begin_step()
        return self

    def step(self) -> None:
        """End a step of training and begin the next one.

        Raises EmptyCapture outside of the block, and on another thread than that of the block.
        """
        if self._thread != threading.get_ident():
            raise EmptyCapture("call step() inside the block, and on the thread that entered it")
        self._check_alone()
        self._end_step()
        self._step += 1
        if self._torch is not None:
            with warnings.catch_warnings():
                # that torch forgets a cycle when the next one begins: its file is written
                warnings.filterwarnings("ignore", "Warning: Profiler clears events")
                self._torch.step()
        self._begin_step()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._failed = error is not None
        self._check_alone()
        self._thread = 0
        self._end_step()
        self._open.close()
        if self._torch is not None:
            self._torch.stop()
        if not self._recorded and not self._failed:
            raise EmptyCapture(
                f"nothing was recorded: the block ended in step {self._step + 1}, and the schedule "
                f"records from step {self.schedule.needed} on; train longer, or wait for fewer "
                "steps"
            )

    def _check_alone(self) -> None:
        """Raise EmptyCapture where torch ignores what it was asked to record and would crash."""
        if self._torch is None:
            return
        import torch

        from portagpu.facts.captures.marked_blocks import torch_records

        autograd: Any = torch.autograd
        asked = self._thread and self._torch.current_action.name.startswith("RECORD")
        # the second is of this thread, and ends with any profiler
        if not (autograd._profiler_enabled() if asked else not torch_records()):
            # nothing is left that could be stopped or written
            self._torch = None
            if not self._failed:
                raise EmptyCapture(
                    "another profiler of torch ran inside this block or around it, and one at a "
                    "time records: leave one of them out"
                )

    def _begin_step(self) -> None:
        if self.schedule.phase(self._step) not in ("active", "last"):
            return
        begins, self._in_cycle = not self._in_cycle, True
        if self._torch is None:
            if begins:
                self._open.enter_context(region())
            self._recorded += 1
            self._block = annotate("step", step=self._step)
            self._block.__enter__()
        elif begins:
            place = {"rank": self.rank, "world_size": self.world_size}
            about = {**place, "first_step": self._step}
            self._torch.add_metadata_json("portagpu", json.dumps(about))
            alone = self._launched is not None and not self._launched.process.has_rank
            # of a process group torch itself says it
            if not self._grouped and not alone:
                self._torch.add_metadata_json("distributedInfo", json.dumps(place))

    def _end_step(self) -> None:
        if self._block is not None:
            self._block.__exit__(None, None, None)
            self._block = None
        if self.schedule.phase(self._step) == "last":
            self._open.close()
            self._in_cycle = False

    def _write(self, recorded: torch.profiler.profile) -> None:
        """Write what torch recorded in a cycle, and check that there is something in it."""
        path = self._path(len(self.paths))
        if self._launched is not None:
            path = Path(self._launched.next_file())
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with Scratch("trace", path.parent) as folder:
                # torch takes no name of any bytes, and reads the suffix
                written = folder / f"trace{path.suffix}"
                recorded.export_chrome_trace(str(written))
                written.replace(path)
        except (OSError, RuntimeError, ValueError, TypeError) as error:
            if self._failed:
                return
            raise OutputError(f"cannot write the trace to {path}: {error}") from error
        self.paths.append(path)
        if self._launched is not None:
            self._launched.was_written(str(path))
        self._recorded += 1
        if not self._failed:
            self._check(recorded, path)

    def _check(self, recorded: torch.profiler.profile, path: Path) -> None:
        """Raise EmptyCapture where the cycle has no event of the program or of its device."""
        found: Any = recorded.profiler
        events = found.kineto_results.events()
        if not any(not each.name().startswith("ProfilerStep#") for each in events):
            raise EmptyCapture(
                f"no event in the active steps of {path}: no operation of torch ran in them on the "
                "thread that called step(): train more steps, or profile where the training runs"
            )
        if self._shows_device() and not any(each.device_type().name != "CPU" for each in events):
            raise EmptyCapture(
                f"no event of the device in the active steps of {path}: nothing ran on it, this "
                "user may not read its activity, or another profiler holds it"
            )

    def _shows_device(self) -> bool:
        """Whether this build of torch records what runs on the device, not the host alone."""
        import torch

        known = {each.name.lower() for each in torch.profiler.supported_activities()} - {"cpu"}
        return self._device in known

    def _path(self, cycle: int) -> Path:
        """The file of a cycle of this rank."""
        name, suffix = self._output.name, _SUFFIXES[-1]
        for each in _SUFFIXES:
            if name.endswith(each):
                name, suffix = name.removesuffix(each), each
                break
        number = "" if self.schedule.repeat == 1 else f".cycle{cycle}"
        return self._output.with_name(f"{name}.rank{self.rank}{number}{suffix}")


def profiling(
    output: str | os.PathLike[str],
    *,
    wait: int = 1,
    warmup: int = 1,
    active: int = 3,
    repeat: int = 1,
    skip_first: int = 0,
    recorder: Recorder = "auto",
    record_shapes: bool = False,
    profile_memory: bool = False,
    with_stack: bool = False,
    with_flops: bool = False,
) -> Profiling:
    """Record steps of training on a schedule; ``with pg.profiling("trace.json") as steps:``.

    Call ``steps.step()`` at the end of each step. torch's profiler records, on every device, and
    each cycle is one file of this rank: "trace.rank0.json", with ".cycle0" before its suffix unless
    ``repeat`` is 1. In a process that ``portagpu profile --with torch`` started the files are in
    its folder under its names, and nothing but the schedule is recorded. In a process that a
    vendor's profiler started (nsys, rocprofv3) that one records the active steps instead, as in
    :func:`portagpu.region`, and writes its own file.

    :param output: the file to write; ".json.gz" is packed.
    :param wait: steps that begin each cycle and are not recorded.
    :param warmup: steps in which the profiler warms up, after those.
    :param active: steps to record, after those: at least 1.
    :param repeat: cycles; 0 until the block ends.
    :param skip_first: steps that are left out once, before the first cycle.
    :param recorder: "auto" or "torch", which a process of a vendor's profiler refuses.
    :param record_shapes: as in ``torch.profiler.profile``.
    :param profile_memory: as in ``torch.profiler.profile``.
    :param with_stack: as in ``torch.profiler.profile``.
    :param with_flops: as in ``torch.profiler.profile``.
    :returns: a context manager with ``step``.
    :raises ValueError: for numbers that are not a schedule, or a recorder that is refused.
    :raises EmptyCapture: where the block recorded nothing or a cycle has no event.
    :raises OutputError: where a file cannot be written.
    """
    schedule = Schedule(
        wait=wait, warmup=warmup, active=active, repeat=repeat, skip_first=skip_first
    )
    if recorder not in ("auto", "torch"):
        raise ValueError(f"recorder is 'auto' or 'torch', not {recorder!r}")
    options: Any = {
        "record_shapes": record_shapes,
        "profile_memory": profile_memory,
        "with_stack": with_stack,
        "with_flops": with_flops,
    }
    return Profiling(output, schedule, recorder, options)


def _torch_profile(run: Profiling, options: Any) -> torch.profiler.profile:
    import torch

    action = torch.profiler.ProfilerAction
    actions = {
        "off": action.NONE,
        "warmup": action.WARMUP,
        "active": action.RECORD,
        "last": action.RECORD_AND_SAVE,
    }
    return torch.profiler.profile(
        schedule=lambda step: actions[run.schedule.phase(step)],
        on_trace_ready=run._write,
        **options,
    )


def _rank() -> tuple[int, int, bool]:
    """(rank, world size) of the process group, else of the launcher, and whether there is a group.

    Without either the rank is 0 of 1.
    """
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size(), True
    place = place_of_rank(os.environ)
    return place.rank, place.world_size, False

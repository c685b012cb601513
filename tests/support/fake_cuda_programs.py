"""Runs a program under a fake CUDA build, and notes each call that reaches torch.cuda.

Tensors stay on the CPU: a move to a GPU is noted with the index of the device that torch would
take, and opens CUDA where it would. Two programs mean the same on CUDA if their notes are equal:
names, order, arguments, the line of the program, and where CUDA is opened for the first time.
It says nothing about any hardware.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import io
import re
import sys
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from torch.overrides import TorchFunctionMode

from portagpu.devices.contract import Status
from portagpu_cpu.plugin import CpuPlugin
from portagpu_cuda.plugin import CudaPlugin
from tests.support import fake_torch
from tests.support.recorded_gpus import CUDA
from tests.support.registry_state import forget, use_plugins

NAME: Final = "<program>"
_GPU: Final = next(each for each in CUDA if each.id == "h200")
_DEVICE: Final = re.compile(r"cuda(?::(\d+))?\Z")


@dataclass
class Ran:
    """What a program did: its notes as (line, name, arguments...), what it printed, its error."""

    notes: list[tuple[Any, ...]] = field(default_factory=list)
    printed: str = ""
    error: str = ""
    line: int = 0
    """The line of the program that raised."""
    opened: bool = False
    seeds: tuple[int, ...] = ()
    """Of each GPU's generator; 1 << 40 is one of the system's randomness."""


class _Usable(CudaPlugin):
    """The plugin, on a machine that lets it be used."""

    def status(self) -> Status:
        return Status(True, "a fake build", automatic=True)

    def count_without_opening(self) -> int:
        return int(torch.cuda.device_count())


class _Notes:
    def __init__(self) -> None:
        self.found: list[tuple[Any, ...]] = []

    def add(self, name: str, *arguments: Any) -> None:
        frame = sys._getframe()
        line = 0
        while frame is not None:
            if frame.f_code.co_filename == NAME:
                line = frame.f_lineno
                break
            frame = frame.f_back  # type: ignore[assignment]
        self.found.append((line, name, *arguments))


class _Moves(TorchFunctionMode):
    """Answers on the CPU whatever a program puts on a GPU."""

    def __init__(self, notes: _Notes) -> None:
        super().__init__()
        self.notes = notes

    def place(self, device: Any) -> torch.device:
        torch.cuda._lazy_init()
        index = device.index if isinstance(device, torch.device) else device
        self.notes.add("place", torch.cuda.current_device() if index is None else index)
        return torch.device("cpu")

    def on_cpu(self, value: Any, *, number: bool = False) -> Any:
        if isinstance(value, str) and _DEVICE.match(value):
            value = torch.device(value)
        if isinstance(value, torch.device) and value.type == "cuda":
            return self.place(value)
        is_number = number and isinstance(value, int) and not isinstance(value, bool)
        return self.place(value) if is_number else value

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if func is torch.device and len(args) == 1 and isinstance(args[0], int):
            return torch.device("cuda", args[0])  # what a CUDA build takes a number for
        if func is torch.device or name == "_parse_to":
            return func(*args, **kwargs)
        if func is torch.Tensor.cuda:
            device = args[1] if len(args) > 1 else kwargs.get("device")
            device = torch.device(device) if isinstance(device, str) else device
            waits = args[2] if len(args) > 2 else kwargs.get("non_blocking", False)
            self.place(device)
            self.notes.add("non_blocking", waits)
            return args[0]
        if name == "pin_memory":
            self.notes.add("pin_memory")
            return args[0]
        if "pin_memory" in kwargs:
            self.notes.add("pin_memory", kwargs.pop("pin_memory"))
        is_move = func is torch.Tensor.to
        waits = kwargs.get("non_blocking", any(each is True for each in args))
        before = len(self.notes.found)
        moved = tuple(self.on_cpu(each, number=is_move and at == 1) for at, each in enumerate(args))
        for key in ("device", "other"):
            if key in kwargs:
                kwargs[key] = self.on_cpu(kwargs[key], number=True)
        if is_move and len(self.notes.found) > before:
            self.notes.add("non_blocking", waits)
        return func(*moved, **kwargs)


def _patched(patch: pytest.MonkeyPatch, notes: _Notes, moves: _Moves) -> None:
    import torch.distributed as dist

    def to(storage: Any, *, device: Any, non_blocking: bool = False) -> Any:
        device = torch.device(device)
        if device.type == "cuda":
            moves.place(device)
        return storage

    patch.setattr(torch.storage._StorageBase, "to", to)

    def record_stream(tensor: Any, stream: Any) -> None:
        notes.add("record_stream", stream.stream_id)

    patch.setattr(torch.Tensor, "record_stream", record_stream)

    class Wrapped(torch.nn.Module):
        def __init__(self, module: Any, device_ids: Any = None, output_device: Any = None) -> None:
            super().__init__()
            self.module = module
            ids = None if device_ids is None else [_index(each) for each in device_ids]
            notes.add("DDP", ids, _index(output_device))

        def forward(self, *given: Any, **options: Any) -> Any:
            return self.module(*given, **options)

    for place in (torch.nn.parallel, torch.nn.parallel.distributed):
        patch.setattr(place, "DistributedDataParallel", Wrapped)

    def init_process_group(backend: Any = None, *given: Any, **options: Any) -> None:
        notes.add("init_process_group", backend, _index(options.get("device_id")))

    patch.setattr(dist, "init_process_group", init_process_group)
    patch.setattr(dist, "new_group", lambda *given, **o: notes.add("new_group", o.get("backend")))
    patch.setattr(dist, "barrier", lambda *given, **o: notes.add("barrier", o.get("device_ids")))
    autocast = torch.autocast.__init__

    def enter(self: Any, device_type: str, dtype: Any = None, *given: Any, **options: Any) -> None:
        autocast(self, device_type, dtype, *given, **options)
        notes.add("autocast", device_type, self.fast_dtype, self._enabled, self._cache_enabled)

    patch.setattr(torch.autocast, "__init__", enter)
    scaler = torch.amp.GradScaler.__init__

    def scale(self: Any, device: str = "cuda", *given: Any, **options: Any) -> None:
        scaler(self, device, *given, **options)
        state = (self._init_scale, self._growth_factor) if self._enabled else ()
        notes.add("GradScaler", device, self._enabled, state)

    patch.setattr(torch.amp.GradScaler, "__init__", scale)
    loader = torch.utils.data.DataLoader.__init__

    def load(self: Any, *given: Any, pin_memory: bool = False, **options: Any) -> None:
        notes.add("DataLoader", bool(pin_memory))
        loader(self, *given, **options)

    patch.setattr(torch.utils.data.DataLoader, "__init__", load)


def _patched_cpu(patch: pytest.MonkeyPatch) -> None:
    """What a process group refuses on a CPU, without one (torch 2.13, nn/parallel/distributed.py,
    and the libraries that a build for the CPU has)."""
    import torch.distributed as dist

    class Wrapped(torch.nn.Module):
        def __init__(self, module: Any, device_ids: Any = None, output_device: Any = None) -> None:
            super().__init__()
            if device_ids or output_device is not None:
                raise ValueError("device_ids can only be None or empty for modules on a CPU")

    for place in (torch.nn.parallel, torch.nn.parallel.distributed):
        patch.setattr(place, "DistributedDataParallel", Wrapped)

    def group(backend: Any = None, *given: Any, **options: Any) -> None:
        if options.get("device_id") is not None:
            raise ValueError("device_id parameter must be an accelerator with an index")
        if backend != "gloo" or options.get("device_ids"):
            raise RuntimeError("Distributed package doesn't have NCCL built in")

    patch.setattr(dist, "init_process_group", group)
    patch.setattr(dist, "new_group", group)
    patch.setattr(dist, "barrier", lambda **options: group("gloo", **options))


def _index(device: Any) -> int | None:
    if device is None or isinstance(device, int):
        return device
    return torch.device(device).index


def run(text: str, *, gpus: int = 2, env: dict[str, str] | None = None, own: str = "") -> Ran:
    """Run the program with this many GPUs; none is a CPU, where only what it prints is noted.

    ``own`` are lines that run before it and are not in its numbers: the import of portagpu.
    """
    ran, notes = Ran(), _Notes()
    moves = _Moves(notes)
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setenv("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(gpus))))
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
            patch.delenv(name, raising=False)
        for name, value in (env or {}).items():
            patch.setenv(name, value)
        forget(patch)
        driver = None
        if gpus:
            driver = fake_torch.install(patch, "cuda", [_GPU] * gpus)
            patch.setattr(driver, "call", notes.add)
            for name in ("set_device", "memory_stats", "init"):
                _noted(patch, driver, notes, name)
            for name in ("_exchange_device", "_maybe_exchange_device"):
                patch.setattr(torch.cuda, name, _exchanged(driver, notes))
            patch.setattr(
                torch._C._CudaStreamBase, "__new__", _opens(torch._C._CudaStreamBase.__new__)
            )
            tool = torch.cuda.nvtx._nvtx
            push = tool.rangePushA
            patch.setattr(
                tool, "rangePushA", lambda text: (notes.add("range", text), push(text))[1]
            )
            patch.delitem(sys.modules, "portagpu_torch_gpu.unopened", raising=False)
            use_plugins(patch, _Usable())
            _patched(patch, notes, moves)
        else:
            patch.setenv("PORTAGPU_BACKEND", "cpu")
            use_plugins(patch, CpuPlugin())
            _patched_cpu(patch)
        values: dict[str, Any] = {"__name__": "__main__", "__file__": NAME}
        state, names = torch.get_rng_state(), {**vars(torch.cuda)}
        try:
            exec(own, values)
            code = compile(text, NAME, "exec")
            with moves if gpus else contextlib.nullcontext(), contextlib.redirect_stdout(out):
                exec(code, values)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the program's
            ran.error = f"{type(error).__name__}: {error}"
            trace = error.__traceback__
            while trace is not None:
                if trace.tb_frame.f_code.co_filename == NAME:
                    ran.line = trace.tb_lineno
                trace = trace.tb_next
        finally:
            torch.set_rng_state(state)
            ran.opened = bool(gpus) and torch.cuda.is_initialized()
            ran.seeds = tuple(
                min(each.initial_seed(), 1 << 40) for each in torch.cuda.default_generators
            )
            vars(torch.cuda).update(names)  # what the program put there
    ran.notes, ran.printed = notes.found, out.getvalue()
    return ran


def _noted(patch: pytest.MonkeyPatch, driver: Any, notes: _Notes, name: str) -> None:
    """Calls that torch.cuda makes below itself; the fake build has them in its tables already."""
    below = {
        "init": "_cuda_init",
        "set_device": "_cuda_setDevice",
        "memory_stats": "_cuda_memoryStats",
    }
    call = getattr(driver, name)

    def noted(*given: Any) -> Any:
        if name == "init":
            notes.add("init")
        else:
            torch.cuda._lazy_init()  # as torch/csrc/cuda/Module.cpp
            if name == "set_device" and given == (driver.current,):
                return None  # c10::cuda::SetDevice does nothing then
        return call(*given)

    patch.setattr(torch._C, below[name], noted)


def _exchanged(driver: Any, notes: _Notes) -> Any:
    """The blocks of ``torch.cuda.device``, noted as the calls of set_device that they are."""

    def exchange(index: int) -> int:
        if index >= 0:
            torch.cuda._lazy_init()
            if index != driver.current:
                notes.add("set_device", index)
        return int(driver.exchange(index))

    return exchange


def _opens(call: Any) -> Any:
    """A new stream asks the driver for its device (torch/csrc/cuda/Stream.cpp)."""

    def opened(cls: type, *given: Any, **options: Any) -> Any:
        torch.cuda._lazy_init()
        return call(cls, *given, **options)

    return staticmethod(opened)


def as_the_original(ran: Ran, before: str, after: str) -> Ran:
    """``ran`` with the lines of ``before`` in place of those of ``after``."""
    old, new = before.splitlines(), after.splitlines()
    own = [at for at, line in enumerate(new) if not line.startswith("import portagpu")]
    kept, lines = [new[at] for at in own], {0: 0}
    for kind, i, j, k, m in difflib.SequenceMatcher(None, old, kept, autojunk=False).get_opcodes():
        if kind in ("equal", "replace"):
            for at in range(k, m):
                lines[own[at] + 1] = min(i + at - k, j - 1) + 1
    ran.notes = [(lines.get(line, line), *rest) for line, *rest in ran.notes]
    ran.line = lines.get(ran.line, ran.line)
    return ran


def main() -> None:
    """Compare a program of one file with its rewrite: ``PROGRAM [ARGUMENT...]``."""
    # optimisers import it, and then it would ask a CUDA build for more than the fake has
    importlib.import_module("torch._dynamo")
    from portagpu.train.port.reading import Source, read
    from portagpu.train.port.rewrite import Rewritten, rewrite_source
    from portagpu.train.port.rules import load_rules

    path = Path(sys.argv[1])
    source = read(path)
    assert isinstance(source, Source), source
    new = rewrite_source(source, load_rules(), unsafe=False)
    assert isinstance(new, Rewritten), new
    sys.argv[:] = sys.argv[1:]
    sys.path.insert(0, str(path.resolve().parent))
    before, after = run(source.text), as_the_original(run(new.text), source.text, new.text)
    same = sum(one == other for one, other in zip(before.notes, after.notes, strict=False))
    print(f"{same} of {max(len(before.notes), len(after.notes))} calls equal")
    print(f"original: {before.error or 'ends'}; rewritten: {after.error or 'ends'}")
    print(f"printed the same: {before.printed == after.printed}")


if __name__ == "__main__":
    main()

"""Runs when Python starts under ``portagpu profile``: it records with torch's profiler, and notes.

Python imports ``sitecustomize`` from PYTHONPATH (docs.python.org, module ``site``). This file is
read by the Python of the command, which need not be the one of portagpu: it imports the standard
library alone, and runs a ``sitecustomize`` of the user afterwards.

The variable PORTAGPU_PROFILE holds its settings as JSON:

- "folder": where traces go, one for each process that did something, whole or not at all;
- "tool": "torch" where torch's profiler records; any other is recorded from outside;
- "region": whether only regions are recorded;  "delay_s", "duration_s": when;
- "gpu": whether kernels and copies are asked for;
- "ranks_only": whether processes without a rank, such as the launcher, are left out;
- "notes": a folder that gets one small file about each process that imported torch or has a rank.

``sys.modules["portagpu_launched"]`` has ``open_region`` and ``close_region``; and for a program
that records on a schedule of its own ``hand_over``, ``next_file`` and ``was_written``.
"""

from __future__ import annotations

import json
import os
import sys
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    import re
    from collections.abc import Callable
    from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))
_RANKS = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)
"""Of rank and world size, in the order of ``devices.collectives.launcher``: mpirun runs in Slurm's
tasks, one for each machine."""
_EVENTS = rb'"cat":\s*"(?:cpu_op|kernel|gpu_memcpy|gpu_memset|user_annotation|cuda_runtime)"'
_CHUNK = 1 << 20


def _number(name: str) -> int | None:
    text = os.environ.get(name, "")
    return int(text) if text.isdigit() else None


class _Launched:
    """This process: its facts, and torch's profiler in it."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.pid = os.getpid()
        self.profile: Any = None
        self.starting = False
        self.handed_over = False
        self.forks_watched = False
        self.count = 0
        self.lock = threading.RLock()
        self.facts: dict[str, Any] = {
            "pid": self.pid,
            "torch": None,
            "ended": False,
            "regions": 0,
            "used_gpu": None,
            "own_profiler": False,
            "scheduled": False,
            "worker": False,
            "files": [],
            "empty": False,
            "problem": "",
        }
        self.find_rank()

    @property
    def records(self) -> bool:
        outside = self.settings.get("ranks_only") and self.facts["rank"] is None
        return self.settings.get("tool") == "torch" and not outside

    def find_rank(self) -> None:
        pairs = _RANKS[:1] if self.settings.get("ranks_only") else _RANKS
        found = [(_number(rank), _number(size)) for rank, size in pairs]
        known = [each for each in found if each[0] is not None]
        self.facts["rank"], self.facts["world_size"] = known[0] if known else (None, None)
        self.facts["local_world_size"] = _number("LOCAL_WORLD_SIZE")
        module = sys.modules.get("torch.distributed")
        try:
            if module is not None and module.is_available() and module.is_initialized():
                self.facts["rank"] = module.get_rank()
                self.facts["world_size"] = module.get_world_size()
        except Exception as error:
            self.problem(error)

    def problem(self, error: Exception) -> None:
        text = " ".join(f"{type(error).__name__}: {error}".split())
        self.facts["problem"] = self.facts["problem"] or text

    def note(self) -> None:
        folder = self.settings.get("notes")
        if not folder or os.getpid() != self.pid:
            return
        name = os.path.join(folder, f"{self.pid}.json")
        try:
            with open(name + ".part", "w", encoding="utf-8") as file:
                json.dump(self.facts, file)
            os.replace(name + ".part", name)
        except OSError:
            # the folder is gone: the launch was interrupted
            pass

    def torch_imported(self, torch: Any) -> None:
        import atexit

        self.facts["torch"] = str(getattr(torch, "__version__", "unknown"))
        atexit.register(self.end)
        try:
            self.watch_regions()
            self.watch_profilers()
            if self.records and not self.settings.get("region"):
                delay = self.settings.get("delay_s") or 0
                if delay:
                    self.later(delay, self.begin)
                else:
                    self.begin()
        except Exception as error:
            self.problem(error)
        self.note()

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), call)
        timer.daemon = True
        timer.start()

    def watch_regions(self) -> None:
        """Have ``torch.cuda.profiler``'s start and stop open and close regions too."""
        module = sys.modules.get("torch.cuda.profiler")
        for name, call in (("start", self.open_region), ("stop", self.close_region)):
            original = getattr(module, name, None)
            if original is not None:
                setattr(module, name, _followed(original, call))

    def watch_profilers(self) -> None:
        """Make way for a profiler that the program starts itself: two at a time crash torch."""
        module = sys.modules.get("torch.autograd.profiler")
        kind: Any = getattr(module, "profile", None)
        original = getattr(kind, "_prepare_trace", None)
        if original is not None:

            def prepare(*args: Any, **kwargs: Any) -> Any:
                if not self.starting and not self.handed_over:
                    self.facts["own_profiler"] = True
                    self.finish()
                return original(*args, **kwargs)

            kind._prepare_trace = prepare

    def open_region(self) -> None:
        """Begin to record; nothing where it already does."""
        with self.lock:
            if os.getpid() != self.pid or self.facts["torch"] is None:
                return
            self.facts["regions"] += 1
            if self.settings.get("region") and self.records:
                try:
                    self.begin()
                except Exception as error:
                    self.problem(error)

    def close_region(self) -> None:
        """Write what was recorded since the region was opened."""
        with self.lock:
            if os.getpid() == self.pid and self.settings.get("region"):
                self.finish()

    def hand_over(self) -> bool:
        """Let the program's own schedule record; False where torch's profiler does not record here.

        What was recorded until now without a region is left out: the schedule says what is wanted.
        """
        with self.lock:
            if not self.records or os.getpid() != self.pid or self.facts["torch"] is None:
                return False
            profile, self.profile = self.profile, None
            self.handed_over = self.facts["scheduled"] = True
            self.note()
            if profile is not None:
                profile.stop()
            return True

    def next_file(self) -> str:
        """Where the program's next trace goes."""
        with self.lock:
            self.find_rank()
            self.count += 1
            return os.path.join(self.settings["folder"], self.name(self.count))

    def was_written(self, path: str) -> None:
        """Note a trace that the program wrote."""
        self.facts["files"].append(os.path.basename(path))

    @property
    def has_rank(self) -> bool:
        return self.facts["rank"] is not None

    def name(self, number: int | None) -> str:
        stem = f"rank{self.facts['rank']}" if self.has_rank else "process"
        return f"{stem}.pid{self.pid}{'' if number is None else f'.{number}'}.pt.trace.json"

    def begin(self) -> None:
        with self.lock:
            if self.profile is not None or self.handed_over or os.getpid() != self.pid:
                return
            import torch

            kinds = [torch.profiler.ProfilerActivity.CPU]
            if self.settings.get("gpu", True):
                kinds = list(torch.profiler.supported_activities())
            self.starting = True
            try:
                profile = torch.profiler.profile(activities=kinds, experimental_config=_config())
                profile.start()
            finally:
                self.starting = False
            if not self.forks_watched:
                self.forks_watched = True
                os.register_at_fork(after_in_child=_leave_at_once)
            self.profile = profile
            if self.settings.get("duration_s"):
                self.later(self.settings["duration_s"], self.finish)

    def finish(self) -> None:
        with self.lock:
            profile, self.profile = self.profile, None
            if profile is None:
                return
            try:
                self.find_rank()
                if self.has_rank:
                    info = {"rank": self.facts["rank"], "world_size": self.facts["world_size"]}
                    profile.add_metadata_json("distributedInfo", json.dumps(info))
                # a process that ends while it runs crashes, so that it is stopped in workers too
                profile.stop()
                if not self.facts["worker"] or self.has_rank:
                    self.write(profile)
            except Exception as error:
                self.problem(error)

    def write(self, profile: Any) -> None:
        """Write the trace to its place; nothing for one without an event."""
        import re

        self.count += 1
        name = self.name(self.count if self.settings.get("region") else None)
        part = os.path.join(self.settings["folder"], "." + name)
        try:
            profile.export_chrome_trace(part)
            if not os.path.exists(part):
                raise OSError("torch could not write the trace: is there space for it?")
            if _contains(part, re.compile(_EVENTS)):
                os.replace(part, os.path.join(self.settings["folder"], name))
                self.facts["files"].append(name)
            else:
                self.facts["empty"] = True
        finally:
            # torch leaves the second where the disk is full
            for left in (part, part + ".tmp"):
                if os.path.exists(left):
                    os.unlink(left)

    def end(self) -> None:
        """At the end of the process: write the trace and the facts."""
        if os.getpid() != self.pid:
            # a fork, which has its parent's exit handlers
            return
        import torch

        try:
            processes = sys.modules.get("multiprocessing.process")
            self.facts["worker"] = processes is not None and processes.current_process().daemon
            self.facts["used_gpu"] = torch.cuda.is_initialized()
            self.find_rank()
        except Exception as error:
            self.problem(error)
        self.finish()
        self.facts["ended"] = True
        self.note()


def _leave_at_once() -> None:
    """In a fork: have exit(3) end it before torch's destructors, which wait for a lost thread.

    ``on_exit(3)`` calls ``_exit`` with the exit code. Python has ended by then.
    """
    import ctypes

    library = ctypes.CDLL(None)
    if hasattr(library, "on_exit"):
        library.on_exit(library._exit, None)


def _config() -> Any:
    """All threads, and no objects of Python for each event, where this torch can do so."""
    import torch

    make: Any = torch._C._profiler._ExperimentalConfig
    both = {"profile_all_threads": True, "trace_only": True}
    for options in (both, {"trace_only": True}, {"profile_all_threads": True}):
        try:
            return make(**options)
        except TypeError:
            continue
    return None


def _contains(path: str, pattern: re.Pattern[bytes]) -> bool:
    with open(path, "rb") as file:
        rest = b""
        while True:
            chunk = file.read(_CHUNK)
            if not chunk:
                return False
            if pattern.search(rest + chunk):
                return True
            rest = chunk[-256:]


def _followed(original: Callable[..., Any], call: Callable[[], None]) -> Callable[..., Any]:
    def both(*args: Any, **kwargs: Any) -> Any:
        call()
        return original(*args, **kwargs)

    return both


class _Watcher:
    """Finds torch as the others do, and reports when it is imported."""

    def __init__(self, launched: _Launched) -> None:
        self.launched = launched

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "torch":
            return None
        # some programs look for torch without importing it
        finders = [each for each in sys.meta_path if each is not self]
        found = (each.find_spec(name, path, target) for each in finders)
        spec = next((each for each in found if each is not None), None)
        loader: Any = getattr(spec, "loader", None)
        original = getattr(loader, "exec_module", None)
        if original is None:
            return spec

        def run(module: Any) -> None:
            del loader.exec_module
            original(module)
            if self.launched.facts["torch"] is None:
                self.launched.torch_imported(module)

        try:
            loader.exec_module = run
        except AttributeError as error:
            self.launched.problem(error)
        return spec


def _run_next() -> None:
    """Run the ``sitecustomize`` that this one hides."""
    import importlib.machinery
    import importlib.util

    sys.path[:] = [each for each in sys.path if os.path.abspath(each or ".") != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _begin() -> None:
    try:
        settings = json.loads(os.environ["PORTAGPU_PROFILE"])
        launched = _Launched(settings)
    except (KeyError, ValueError, TypeError, AttributeError):
        # not started by portagpu profile
        return
    module = type(sys)("portagpu_launched")
    calls = ("open_region", "close_region", "hand_over", "next_file", "was_written")
    vars(module).update({name: getattr(launched, name) for name in calls}, process=launched)
    sys.modules[module.__name__] = module
    sys.meta_path.insert(0, _Watcher(launched))
    if launched.facts["rank"] is not None:
        launched.note()


_begin()
_run_next()

"""What the package adds to torch's own calls, and to starting Python.

    python tests/benchmarks/overhead.py [--repeats N] [--json FILE]

Ours and torch's own call are timed in turn in one process, in both orders, and the medians are
compared; the time of an empty loop is taken off both. Where torch has no call for the device, the
right column names the work that ours cannot do without. Starting is timed in fresh interpreters, in
turn with a bare one. The figures belong to the machine and its load: nothing here passes or fails.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_ROUND_S = 0.002
"""How long one timed loop runs: far above the clock's resolution, far below a time slice."""

_CPU_OWN = {
    "Event(enable_timing=True)": "CpuEvent(True)",
    "Stream()": "CpuStream(device)",
    "annotate('x')": "torch.profiler.record_function('x')",
    "current_stream()": "torch.cpu.current_stream()",
    "empty_cache()": "memory.trim()",
    "get_device_properties()": None,
    "max_memory_allocated()": "memory.resident()",
    "max_memory_reserved()": "memory.resident()",
    "mem_get_info()": "memory.free_and_total()",
    "memory_allocated()": "memory.resident()",
    "memory_reserved()": "memory.resident()",
    "memory_stats()": "memory.resident()",
    "reset_peak_memory_stats()": "memory.reset_peak()",
    "synchronize()": "torch.cpu.synchronize()",
    "stream(side)": "torch.cpu.stream(cpu_side)",
    "current_device()": "torch.cpu.current_device()",
    "device_count()": "torch.cpu.device_count()",
    "get_device_name()": None,
    "is_bf16_supported()": None,
    "set_device(0)": "torch.cpu.set_device(0)",
    "get_rng_state()": "torch.get_rng_state()",
    "set_rng_state(state)": "torch.set_rng_state(state)",
    "initial_seed()": "torch.initial_seed()",
    "manual_seed(0)": "torch.default_generator.manual_seed(0)",
    "manual_seed_all(0)": "torch.default_generator.manual_seed(0)",
    "seed()": "torch.default_generator.seed()",
    "get_rng_state_all()": "[torch.get_rng_state()]",
    "set_rng_state_all([state])": "torch.set_rng_state(state)",
}
_GPU_OWN = {
    name: f"torch.cuda.{name}"
    for name in _CPU_OWN
    if name not in {"annotate('x')", "reset_peak_memory_stats()"}
} | {
    "annotate('x')": "torch.cuda.nvtx.range('x')",
    "reset_peak_memory_stats()": "torch.cuda.reset_peak_memory_stats()",
}
_ANY_OWN = {
    "autocast()": "torch.autocast(device.type)",
    "GradScaler(enabled=False)": "torch.amp.GradScaler(device.type, enabled=False)",
    "range_push('x'); {}range_pop()": "block = torch.profiler.record_function('x'); "
    "block.__enter__(); block.__exit__(None, None, None)",
}
_FUNCTIONS_ONLY = {
    "device()": "torch.device(device.type)",
    "is_available()": "torch.cpu.is_available()",
}
_ONLY_FUNCTIONS = ("set_device", "manual_seed_all", "get_rng_state_all", "set_rng_state_all")


@dataclass(frozen=True, slots=True)
class Row:
    """One comparison; ``own`` is None where there is nothing to compare with."""

    kind: str
    call: str
    own_call: str | None
    ours_ns: float
    own_ns: float | None

    @property
    def added_ns(self) -> float:
        """What ours takes more than the other."""
        return self.ours_ns - (self.own_ns or 0.0)


def compare(ours: str, own: str | None, names: dict[str, Any], repeats: int) -> tuple[float, float]:
    """Median nanoseconds of both statements, timed in turn in both orders."""
    timers = [timeit.Timer(ours, globals=names), timeit.Timer(own or "pass", globals=names)]
    empty = timeit.Timer("pass", globals=names)
    number = max(1, int(_ROUND_S / max(1e-8, timers[0].timeit(20) / 20)))
    found: tuple[list[float], list[float]] = ([], [])
    for repeat in range(repeats):
        base = empty.timeit(number)
        for which in (0, 1) if repeat % 2 else (1, 0):
            found[which].append((timers[which].timeit(number) - base) / number * 1e9)
    return statistics.median(found[0]), statistics.median(found[1])


def call_rows(repeats: int) -> list[Row]:
    """Every function and method of the training surface, ``backend()`` and the attributes."""
    import torch

    import portagpu as pg
    from portagpu.base.errors import Unsupported

    gpu = pg.backend()
    names: dict[str, Any] = {"torch": torch, "pg": pg, "gpu": gpu, "device": gpu.device}
    names |= {"side": gpu.Stream(), "state": gpu.get_rng_state()}
    own = _GPU_OWN
    if gpu.device.type == "cpu":
        from portagpu_cpu import memory
        from portagpu_cpu.backend import CpuEvent, CpuStream

        own = _CPU_OWN
        names |= {"memory": memory, "CpuEvent": CpuEvent, "CpuStream": CpuStream}
        names["cpu_side"] = torch.cpu.Stream()

    def row(kind: str, call: str, own_call: str | None) -> Row | None:
        try:
            exec(call, dict(names))
        except Unsupported:
            return None
        ours_ns, own_ns = compare(call, own_call, names, repeats)
        return Row(kind, call, own_call, ours_ns, None if own_call is None else own_ns)

    rows = [row("handle", "pg.backend()", None), row("handle", "pg.backend('cpu')", None)]
    rows += [
        row("attribute", f"gpu.{name}", None)
        for name in ("device", "arch", "arch.warp_size", "capabilities", "target", "comm", "sizing")
    ]
    for call, theirs in {**own, **_ANY_OWN}.items():
        if call.split("(")[0] not in _ONLY_FUNCTIONS:
            rows.append(row("method", f"gpu.{call.format('gpu.')}", theirs))
    for call, theirs in {**own, **_ANY_OWN, **_FUNCTIONS_ONLY}.items():
        rows.append(row("function", f"pg.{call.format('pg.')}", theirs))
    return [found for found in rows if found is not None]


def start_rows(repeats: int) -> list[tuple[str, float, float]]:
    """(what, milliseconds, milliseconds of a bare interpreter), medians of fresh processes."""
    script = shutil.which("portagpu", path=str(Path(sys.executable).parent))
    commands = {"import portagpu": [sys.executable, "-c", "import portagpu"]}
    if script is not None:
        commands["portagpu --version"] = [script, "--version"]
    bare = [sys.executable, "-c", "pass"]
    rows = []
    with tempfile.TemporaryDirectory() as cache:
        # an installed package is compiled; a checkout may not have been
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": cache}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for what, command in commands.items():
            found: tuple[list[float], list[float]] = ([], [])
            for repeat in range(repeats + 1):
                for which in (0, 1) if repeat % 2 else (1, 0):
                    started = time.perf_counter()
                    subprocess.run(
                        (command, bare)[which],
                        check=True,
                        stdout=subprocess.DEVNULL,
                        env=environment,
                    )
                    if repeat:  # the first one compiles
                        found[which].append((time.perf_counter() - started) * 1e3)
            rows.append((what, statistics.median(found[0]), statistics.median(found[1])))
    return rows


def main() -> int:
    """Print the table; with ``--json`` also write it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=41)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    starts = start_rows(max(5, options.repeats // 2))
    rows = call_rows(options.repeats)
    print(f"python {platform.python_version()}, medians of {options.repeats} rounds, both orders\n")
    print(f"{'starting':<34} {'ms':>9} {'bare ms':>9} {'added ms':>9}")
    for what, ours_ms, bare_ms in starts:
        print(f"{what:<34} {ours_ms:9.1f} {bare_ms:9.1f} {ours_ms - bare_ms:9.1f}")
    print(f"\n{'call':<34} {'ns':>9} {'own ns':>9} {'added ns':>9} {'ratio':>6}  compared with")
    for row in rows:
        own = "" if row.own_ns is None else f"{row.own_ns:.0f}"
        # below a few nanoseconds a quotient is noise
        ratio = "" if row.own_ns is None or row.own_ns < 5 else f"{row.ours_ns / row.own_ns:.2f}"
        print(
            f"{row.call:<34} {row.ours_ns:9.0f} {own:>9} {row.added_ns:9.0f} {ratio:>6}  "
            f"{row.own_call or 'nothing'}"
        )
    if options.json is not None:
        found = {"starts": starts, "calls": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

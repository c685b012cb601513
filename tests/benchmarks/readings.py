"""What a stream of readings costs: CPU time and memory of it and its children, at a rate.

    python tests/benchmarks/readings.py [--devices N ...] [--rate HZ ...] [--seconds S]

The CPU is read as it is. GPUs are stand-ins: a module that returns this many full readings at once,
so that the figures are of the stream alone, and none of a vendor's library. "of a core" is the CPU
time of this process and of its children over the time that went by. The figures belong to the
machine and its load: nothing here passes or fails.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import textwrap
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "backends")]

from portagpu.facts.readings.cpu import SOURCE as CPU
from portagpu.facts.readings.stream import Source, Stream

_LIBRARY = """
    from portagpu.facts.readings import *
    from portagpu.facts.readings.document import to_document
    def sample():
        return to_document(Findings(kind="stand-in", readings=tuple(
            Reading(
                source="stand-in", vendor="maker", index=i, pci=f"0000:{{i:02x}}:00.0",
                uuid=f"GPU-{{i:032x}}", name="Accelerator", memory_bytes=192 << 30,
                pcie=Pcie(generation=5, width=16, replays=0, errors={{"nak_sent": 0}}),
                memory=Memory(corrected=0, uncorrected=0, by_block={{"UMC": (0, 0)}}),
                state=GpuState(
                    temperatures_c={{"edge": 40.0, "hotspot": 55.0, "mem": 48.0}}, power_w=301.5,
                    power_limit_w=750.0, clock_mhz=1700.0, memory_clock_mhz=900.0,
                    utilization_percent=97.0, memory_utilization_percent=41.0,
                    memory_used_bytes=100 << 30, energy_j=1e6, throttling=(),
                    throttled_s={{"power": 1.0}}, processes=1,
                    process_list=(Process(pid=1, memory_bytes=1),),
                ),
            ) for i in range({count}))))
"""


def cpu_s(pid: int) -> float:
    """User and system time of a process so far (proc(5))."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def mebibytes(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    pss = next(line for line in lines if line.startswith("Pss:"))
    return int(pss.split()[1]) / 1024


def measure(devices: int, rate_hz: float, seconds: float) -> str:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "stand_in_library.py").write_text(
            textwrap.dedent(_LIBRARY.format(count=devices))
        )
        sys.path.insert(0, folder)
        sources = [CPU, *([Source(name="stand-in", module="stand_in_library")] if devices else [])]
        with Stream(sources) as stream:
            stream.read(60.0)
            pids = [os.getpid(), *(feed._child._caller._child.pid for feed in stream._feeds)]
            before, begun, longest = sum(map(cpu_s, pids)), time.monotonic(), 0.0
            count = 0
            while (now := time.monotonic()) - begun < seconds:
                sample = stream.read(60.0)
                longest = max(longest, time.monotonic() - now)
                count += 1
                if len(sample.readings) != devices + 1:
                    raise SystemExit(f"a sample lacks devices: {sample.problems}")
                time.sleep(max(0.0, begun + count / rate_hz - time.monotonic()))
            passed = time.monotonic() - begun
            share = (sum(map(cpu_s, pids)) - before) / passed
            held = sum(map(mebibytes, pids[1:]))
        sys.path.remove(folder)
    return (
        f"{devices:4} GPUs at {rate_hz:4.1f} Hz: {share:7.3%} of a core, longest sample "
        f"{longest * 1e3:6.1f} ms, children {held:5.1f} MiB, {count} samples"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, nargs="+", default=[0, 8, 64])
    parser.add_argument("--rate", type=float, nargs="+", default=[1.0, 10.0])
    parser.add_argument("--seconds", type=float, default=20.0)
    given = parser.parse_args()
    for devices in given.devices:
        for rate_hz in given.rate:
            print(measure(devices, rate_hz, given.seconds), flush=True)


if __name__ == "__main__":
    main()

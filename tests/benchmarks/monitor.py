"""What the monitor costs: CPU time of its processes per second, with a stand-in for NVML of 8 GPUs.

    python tests/benchmarks/monitor.py [--seconds N] [--gpus N] [--interval S ...] [--terminal]

The stand-in is a Python module, so that NVML's own time is left out, and that of reading and
handing on is not. A monitor runs with JSON lines and the endpoint, scraped every 5 s; its CPU time
and its children's are read from /proc after a warm-up. The budget is 1 % of one core at 1 s, with
the table on a pseudo-terminal (--terminal) too. The figures belong to the machine and its load.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pty
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_WARM_S = 4.0
_MONITOR = """
    import sys
    from portagpu import cli
    from portagpu.checks.monitor import run
    from portagpu.facts.readings.stream import Source
    from portagpu.facts.readings.cpu import SOURCE
    run.samplers = lambda: (Source(name="NVML", module="portagpu_cuda.gpus"), SOURCE)
    sys.exit(cli.main(sys.argv[1:]))
"""
_MANY = """
    GPUS = [f"gpu{{n}}" for n in range({count})]
    def nvmlDeviceGetPciInfo(gpu):
        return Struct(busId=f"00000000:{{int(gpu[3:]):02x}}:00.0", pciDeviceId=0x233510DE,
                      pciSubSystemId=0x18BE10DE)
    def nvmlDeviceGetUUID(gpu): return f"GPU-{{gpu}}"
    def nvmlDeviceGetName(gpu): return "NVIDIA H200"
    def nvmlDeviceGetMemoryInfo(gpu): return Struct(total=143771 << 20, used=3 << 20)
    def nvmlDeviceGetMigMode(gpu): return [0, 0]
"""


def cpu_seconds(pid: int) -> float:
    """User and system time of a process, its children, and those of its that have ended."""
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    own = sum(int(ticks) for ticks in stat[11:15]) * _TICK_S
    children = [
        child
        for task in Path(f"/proc/{pid}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]
    return own + sum(cpu_seconds(int(child)) for child in children)


def scrape_often(port: int, ended: threading.Event) -> None:
    """Read the endpoint every 5 s."""
    while not ended.wait(5):
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5).read()


def measure(folder: Path, interval: float, seconds: float, *, terminal: bool) -> tuple[float, int]:
    """(seconds of CPU per second, samples written)."""
    port, lines = 19400, folder / f"{interval}.jsonl"
    words = ["monitor", "--interval", str(interval), "--json", str(lines), "--serve", str(port)]
    path = os.pathsep.join(map(str, (folder, ROOT, ROOT / "backends")))
    leader, follower = pty.openpty() if terminal else (None, None)
    monitor = subprocess.Popen(
        [sys.executable, str(folder / "run_monitor.py"), *words],
        env={**os.environ, "PYTHONPATH": path, "TERM": "xterm-256color", "COLUMNS": "160"},
        stdout=follower if terminal else subprocess.DEVNULL,
        stderr=follower if terminal else subprocess.DEVNULL,
    )
    ended = threading.Event()
    scraper = threading.Thread(target=scrape_often, args=(port, ended), daemon=True)
    scraper.start()
    if leader is not None:
        threading.Thread(target=_swallow, args=(leader,), daemon=True).start()
    try:
        time.sleep(_WARM_S)
        before, begun = cpu_seconds(monitor.pid), time.monotonic()
        time.sleep(seconds)
        spent = cpu_seconds(monitor.pid) - before
        passed = time.monotonic() - begun
    finally:
        ended.set()
        monitor.terminate()
        monitor.wait(30)
        if follower is not None:
            os.close(follower)
    return spent / passed, lines.read_text().count("\n")


def _swallow(leader: int) -> None:
    with contextlib.suppress(OSError):
        while os.read(leader, 65536):
            pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--interval", type=float, nargs="*", default=[1.0, 0.1])
    parser.add_argument("--terminal", action="store_true")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    from tests.process.test_gpu_probes import nvml_changed

    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        many = textwrap.dedent(_MANY).format(count=options.gpus)
        (folder / "pynvml.py").write_text(nvml_changed(many))
        (folder / "run_monitor.py").write_text(textwrap.dedent(_MONITOR))
        for interval in options.interval:
            share, samples = measure(folder, interval, options.seconds, terminal=options.terminal)
            print(
                f"{options.gpus} GPUs every {interval:g} s{', terminal' * options.terminal}: "
                f"{100 * share:.2f} % of one core, {samples} samples"
            )


if __name__ == "__main__":
    main()

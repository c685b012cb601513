"""How long ``portagpu health`` takes over 8 and 64 replayed devices.

    python tests/benchmarks/health.py [--repeats N] [--recording PATH ...] [--json FILE]

The recordings are outputs of ``nvidia-smi -q -x`` of as many GPUs, synthetic trees of sysfs,
and those that are named. "judged" is in one process that has imported everything, with the reading
of the files; "command" is the whole ``portagpu health --gate prolog --replay``, two processes with
all their imports. The figures belong to the machine and its load: nothing here passes or fails.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "backends")]

from portagpu.checks.health.engine import health
from portagpu.checks.health.options import HealthOptions
from tests.support.gpu_trees import amd_gpu, machine, nvidia_gpu
from tests.support.host_trees import build, two_socket_x86

_PAGE = ROOT / "tests" / "vendor_texts" / "formats" / "nvidia_smi_xml" / "v13-lost.xml"


def page_of(count: int) -> str:
    """The page of nvidia-smi with its first GPU that many times, at addresses of their own."""
    text = "<?xml" + _PAGE.read_text(encoding="utf-8").partition("<?xml")[2]
    head, gpu, _ = re.split(r"(?s)(\t<gpu id=.*?</gpu>\n)", text, maxsplit=1)
    head = re.sub(r"(?<=<attached_gpus>)\d+", str(count), head)
    gpus = [
        gpu.replace("00000000:1A:00.0", f"00000000:{index:02X}:00.0").replace(
            "000000000001", f"{index:012d}"
        )
        for index in range(count)
    ]
    return f"{head}{''.join(gpus)}</nvidia_smi_log>\n"


def recordings(folder: Path) -> dict[str, Path]:
    """The recordings by name, written below ``folder``."""
    found = {}
    for count in (8, 64):
        path = folder / f"nvidia-smi-{count}.xml"
        path.write_text(page_of(count), encoding="utf-8")
        found[f"nvidia-smi, {count} x B200"] = path
    trees = {
        "8 x H200": (nvidia_gpu(each) for each in range(8)),
        "8 x MI300X as 64 CPX": (amd_gpu(each, parts=8) for each in range(8)),
    }
    for number, (name, gpus) in enumerate(trees.items()):
        files, links = machine(*gpus)
        found[name] = build(folder / str(number), two_socket_x86() | files, links)
    return found


def _ms(call: Any, repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def _command(path: Path) -> None:
    words = ("health", "--gate", "prolog", "--limit", "60", "--replay", str(path))
    done = subprocess.run(
        [sys.executable, "-m", "portagpu", *words],
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'backends'}"},
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    if done.returncode not in (0, 1):
        raise SystemExit(done.stderr)


def measure(repeats: int, named: list[Path]) -> list[dict[str, Any]]:
    """One row a recording, medians in milliseconds."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        found = recordings(Path(folder)) | {path.name: path for path in named}
        for name, path in found.items():
            options = HealthOptions(replay=[str(path)])
            run = health(options)
            row = {
                "recording": name,
                "devices": sum(each.id == "identity/device" for each in run.results),
                "results": len(run.results),
                "judged_ms": _ms(lambda: health(options), repeats),  # noqa: B023
                "command_ms": _ms(lambda: _command(path), repeats),  # noqa: B023
            }
            rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--recording", type=Path, action="append", default=[], metavar="PATH")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    rows = measure(options.repeats, options.recording)
    print(f"{'recording':<26}{'devices':>9}{'results':>9}{'judged':>11}{'command':>11}")
    for row in rows:
        print(
            f"{row['recording']:<26}{row['devices']:>9}{row['results']:>9}"
            f"{row['judged_ms']:>8.0f} ms{row['command_ms']:>8.0f} ms"
        )
    if options.json:
        options.json.write_text(json.dumps({"rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()

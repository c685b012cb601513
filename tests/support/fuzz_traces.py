"""Damaged traces for every reader of captures: nothing but FormatError, no hang, bounded memory.

    .venv/bin/python -m tests.support.fuzz_traces 20000          # all readers
    .venv/bin/python -m tests.support.fuzz_traces 2000 --only kineto --seed 7

Each input is a small trace of a format with bits turned, parts cut, doubled, swapped or removed,
numbers replaced by huge, negative and odd ones, names with markup, escape codes and bytes that are
no UTF-8, and other separators. The same seed gives the same inputs.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import re
import resource
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from tests.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from portagpu.facts.captures.model import Capture

RECORDINGS = ROOT / "tests/recordings"
MAX_S = 20.0
"""Of a processor for one input, which takes milliseconds; the machine may be busy."""
MAX_BYTES = 1 << 30
"""Of address space beyond what is in use before the first input."""
_NUMBERS = (
    b"-1",
    b"0",
    b"1e400",
    b"NaN",
    b"Infinity",
    b"-9223372036854775808",
    b"9223372036854775808",
    b"18446744073709551616",
    b"9" * 60,
    b"1.234,5",
    b"0x7fffffffffffffff",
    b"null",
    b'"7"',
    b"[]",
    b"{}",
    b"true",
    b"1e-9",
)
_NAMES = (
    b"<script>alert(1)</script>",
    b"\x1b[31mred\x1b[0m",
    b"\xff\xfe\xc3\x28",
    b"\\ud800",
    b"a\"b'c",
    b"\r\n",
    b"\x00",
    b"," * 40,
    "\u202e\U0001f600".encode(),
    b"A" * 5000,
    b"{[" * 2000,
)


def seeds(folder: Path) -> dict[str, list[tuple[str, bytes]]]:
    """Reader -> files (name, bytes) from which its inputs are made."""
    from tests.support.trace_samples import WRITERS, timeline
    from tests.unit.traces import test_trace_tables as texts
    from tests.vendor_texts import test_iprof, test_key_averages, test_nvprof, test_rpd

    found: dict[str, list[tuple[str, bytes]]] = {}
    made = timeline(kernels=40, devices=2)
    for name, write in WRITERS.items():
        path = write(made, folder / name)
        found[name] = [(name, path.read_bytes())]
    torch = RECORDINGS / "torch"
    for name in ("nv-cuda-event-sync", "mi250-minitoy-train-rocm62"):
        raw = gzip.decompress((torch / f"{name}.json.gz").read_bytes())
        found["kineto"].append((name, raw[:30_000]))
    found["kineto gzip"] = [("a", (torch / "cpu-only-rank34.json.gz").read_bytes())]
    rocprof = [RECORDINGS / "rocprof-compute" / "MI100-timestamps.csv"]
    rocprof += (RECORDINGS / "rocprofv2").glob("*.txt")
    found["rocprof"] = [(each.name, each.read_bytes()) for each in rocprof]
    csv = sorted((RECORDINGS / "rocprofv3").glob("*.csv"))
    found["rocprofv3 csv"] = [(each.name, each.read_bytes()) for each in csv]
    summary = (RECORDINGS / "rocprofv3" / "docs-summary.txt").read_bytes()
    found["rocprofv3 summary"] = [("summary.txt", summary[:9000])]
    packed = (RECORDINGS / "rocprofv3" / "mi350x-train.json.gz").read_bytes()
    document = json.loads(gzip.decompress(packed))
    process = document["rocprofiler-sdk-tool"][0]
    process["agents"] = process["agents"][1:4]
    process["strings"]["buffer_records"] = process["strings"]["buffer_records"][:14]
    process["buffer_records"]["kernel_dispatch"] = process["buffer_records"]["kernel_dispatch"][:30]
    found["rocprofv3 json"] = [("out.json", json.dumps(document).encode())]
    nsys = (texts.NSYS_TEXT, texts.NSYS_CSV, texts.GERMAN)
    found["nsys stats"] = [("stats.txt", each.encode()) for each in nsys]
    ncu = (texts.NCU_RAW, texts.NCU_DETAILS)
    found["ncu csv"] = [("ncu.csv", each.encode()) for each in ncu]
    nvprof = (test_nvprof.TEXT, test_nvprof.CSV, test_nvprof.OLD)
    found["nvprof"] = [("nvprof.txt", each.encode()) for each in nvprof]
    found["iprof"] = [("iprof.txt", test_iprof.TEXT.encode())]
    found["key averages"] = [("averages.txt", test_key_averages.TEXT.encode())]
    found["rpd"] = [("trace.rpd", test_rpd.write(folder / "trace.rpd").read_bytes())]
    return found


def damaged(data: bytes, made: random.Random) -> bytes:
    """``data`` with one to four damages."""
    for _ in range(made.choice((1, 1, 2, 4))):
        data = made.choice(_DAMAGES)(data, made) or b""
    return data[:2_000_000]


def _spot(data: bytes, made: random.Random) -> int:
    return made.randrange(len(data) + 1)


def _bits(data: bytes, made: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(made.choice((1, 3, 20))):
        if changed:
            changed[made.randrange(len(changed))] ^= 1 << made.randrange(8)
    return bytes(changed)


def _cut(data: bytes, made: random.Random) -> bytes:
    return data[: _spot(data, made)]


def _headless(data: bytes, made: random.Random) -> bytes:
    return data[_spot(data, made) // 4 :]


def _doubled(data: bytes, made: random.Random) -> bytes:
    start = _spot(data, made)
    part = data[start : start + made.choice((10, 300, 5000))]
    at = _spot(data, made)
    return data[:at] + part * made.choice((1, 2, 20)) + data[at:]


def _swapped(data: bytes, made: random.Random) -> bytes:
    a, b, c = sorted(_spot(data, made) for _ in range(3))
    return data[:a] + data[b:c] + data[a:b] + data[c:]


def _removed(data: bytes, made: random.Random) -> bytes:
    at = _spot(data, made)
    return data[:at] + data[at + made.choice((1, 20, 2000)) :]


def _numbered(data: bytes, made: random.Random) -> bytes:
    return _replaced(data, made, rb"\d+(?:\.\d+)?", _NUMBERS)


def _named(data: bytes, made: random.Random) -> bytes:
    return _replaced(data, made, rb"[A-Za-z_]{3,}", _NAMES)


def _separated(data: bytes, made: random.Random) -> bytes:
    old, new = made.choice(
        ((b",", b";"), (b".", b","), (b",", b"\t"), (b"\n", b"\r"), (b'"', b"'"))
    )
    return data.replace(old, new, made.choice((1, 20, -1)))


def _opened(data: bytes, made: random.Random) -> bytes:
    at = _spot(data, made)
    return data[:at] + made.choice((b'"', b"{", b"[", b"]", b"}", b",", b"[" * 5000)) + data[at:]


def _replaced(data: bytes, made: random.Random, pattern: bytes, others: tuple[bytes, ...]) -> bytes:
    places = list(re.finditer(pattern, data[:200_000]))
    for found in sorted(made.sample(places, min(len(places), 3)), key=lambda e: -e.start()):
        data = data[: found.start()] + made.choice(others) + data[found.end() :]
    return data


_DAMAGES: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    _bits,
    _cut,
    _headless,
    _doubled,
    _swapped,
    _removed,
    _numbered,
    _numbered,
    _named,
    _separated,
    _opened,
)


def inputs(
    files: dict[str, list[tuple[str, bytes]]], count: int, seed: int, only: str | None = None
) -> Iterator[tuple[str, str, bytes]]:
    """``count`` damaged files: reader, name and bytes; each reader gets as many."""
    kinds = [each for each in files if only in (None, each)]
    for number in range(count):
        made = random.Random(f"{seed}/{number}")  # noqa: S311
        kind = kinds[number % len(kinds)]
        name, data = made.choice(files[kind])
        yield kind, name, damaged(data, made)


def check(path: Path) -> str | None:
    """Read one file and what a user would do with it; what went wrong, or None."""
    from portagpu.facts.readings import FormatError
    from portagpu.traces.analysis import reading

    # allowed: of CPU time, and nothing comes near the limit
    began = time.process_time()
    try:
        wrong = _wrong(reading.read(path))
    except FormatError as error:
        wrong = "its error has several lines" if "\n" in str(error).strip() else None
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        wrong = traceback.format_exc()
    # allowed: of CPU time, and nothing comes near the limit
    took = time.process_time() - began
    return wrong or (f"took {took:.0f} s" if took > MAX_S else None)


def _wrong(capture: Capture) -> str | None:
    """What a capture must never have."""
    import pyarrow.compute as pc

    from portagpu.facts.captures.model import EVENT_COLUMNS, events
    from portagpu.traces.analysis.timeline import parts

    for part in capture.tables.values():
        if unknown := set(part.column_names) - EVENT_COLUMNS.keys():
            return f"columns that no schema has: {unknown}"
        part.validate(full=True)
        if part.num_rows and {"start_ns", "end_ns"} <= set(part.column_names):
            spans = pc.subtract(part.column("end_ns"), part.column("start_ns"))
            if (pc.min(spans).as_py() or 0) < 0:
                return "an event ends before it starts"
    if capture.dropped and not capture.problems:
        return "events were dropped, and no sentence says so"
    events(capture).validate(full=True)
    for each in (capture.totals, capture.metrics):
        if each is not None:
            each.validate(full=True)
    for _ in parts([capture]):
        pass
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=14)
    parser.add_argument("--only")
    options = parser.parse_args()
    failed = read = slowest = 0.0
    with tempfile.TemporaryDirectory() as folder:
        files = seeds(Path(folder))
        path = Path(folder) / "input"
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + 4 * MAX_BYTES, resource.RLIM_INFINITY))
        for number, (kind, name, data) in enumerate(
            inputs(files, options.count, options.seed, options.only)
        ):
            path = Path(folder) / f"input-{name}"
            path.write_bytes(data)
            began = time.monotonic()  # allowed: a figure that is printed
            wrong = check(path)
            slowest = max(slowest, time.monotonic() - began)  # allowed: a figure that is printed
            path.unlink()
            read += 1
            if wrong:
                failed += 1
                print(f"{number} {kind} {name}: {wrong}", flush=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"{read:.0f} inputs, {failed:.0f} failed, slowest {slowest:.2f} s, peak {peak} MiB")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

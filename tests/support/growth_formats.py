"""How long the readers of formats take with larger and larger inputs.

A sample of a format is pumped in one place: a line that is repeated, a line that grows by one kind
of character, all of it again and again with other devices, brackets in each other. It is read in a
child process with bounds; what takes longer than ``NOISE_S`` is read at a quarter and at half of
the size too. As a script it prints the slowest pump of every reader, and how its time grows:

    python tests/support/growth_formats.py                          # 256 KiB
    python tests/support/growth_formats.py --bytes 4194304 --only amd_smi_text --lines 100

A linear reader takes 4 times as long for 4 times the size, a quadratic one 16 times.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

# last, as for the tests: of an installed package the checkout next to them is not what is read
sys.path.append(str(Path(__file__).resolve().parents[2]))

from portagpu.facts.formats.cleaning import decode_text
from portagpu.facts.formats.reader import read_text, readers
from portagpu.facts.readings.model import FormatError
from tests.support.fuzz_formats import TooSlow, fixtures, format_modules, stop

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_GROWTH: Final = 9.0
"""CPU time at n bytes over that at a quarter of them."""
NOISE_S: Final = 0.5
"""CPU time that a text may take without a closer look."""
CPU_S: Final = 30.0
MEMORY_BYTES: Final = 1 << 30
LINES: Final = 6
"""Lines of a sample that are pumped."""

_RUNS: Final = (
    " ", "\t", "a", "A", "0", "-", ",", "|", ":", ".", "/", '"', "[", "{", "<", "(", "&", "=",
    "#", "\\",
    "\x1b[4m", "GPU0 ", "N/A ", "a_", "1,", "0:", " : ", "a-", "Gb/s ", "$ ", "\u00e9",
)  # fmt: skip
_NESTED: Final = ("<a>", '{"a":', "[", "<pci busid='0000:07:00.0'>", "<object type='Bridge'>")
_ADDRESS: Final = re.compile(
    r"\b([0-9a-fA-F]{4}|[0-9a-fA-F]{8}):[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.0\b"
)
_NUMBERED: Final = re.compile(r"(GPU[ \[:]{0,2}|\bcard|\"gpu\": )0(?=\D)", re.IGNORECASE)


class Growth(NamedTuple):
    """The slowest pump of a reader; ``seconds`` at n, and before at n/4 where it was looked at."""

    reader: str
    pump: str
    seconds: float
    quarter: float | None
    outcome: str

    @property
    def is_fault(self) -> bool:
        grown = self.quarter is not None and self.seconds > MAX_GROWTH * max(self.quarter, 0.02)
        return grown or self.outcome not in ("findings", "refused")


def samples(module: str) -> list[str]:
    """The project's own texts of a format."""
    return [decode_text(seed.data) for seed in fixtures(module)]


def pumps(text: str, size: int, most_lines: int) -> Iterator[tuple[str, str]]:
    """(name, text of about ``size`` characters) of every way to pump a sample."""
    lines = text.split("\n")
    step = max(1, len(lines) // most_lines)
    for at in list(range(0, len(lines), step))[:most_lines]:
        line = lines[at]
        many = (line + "\n") * (size // (len(line) + 1))
        yield f"line {at} again", "\n".join([*lines[: at + 1], many, *lines[at + 1 :]])
        middle = len(line) // 2
        for run in _RUNS:
            long = run * (size // len(run))
            for where, pumped in (
                ("after", line + long),
                ("in", line[:middle] + long + line[middle:]),
            ):
                name = f"line {at}: {run!r} {where}"
                yield name, "\n".join([*lines[:at], pumped, *lines[at + 1 :]])
    for opened in _NESTED:
        at = len(text) // 2
        yield f"nested {opened}", text[:at] + opened * (size // len(opened)) + text[at:]
        yield f"nested {opened} alone", opened * (size // len(opened))
    copies = max(2, size // (len(text) + 1))
    yield "all of it again", "\n".join([text] * copies)
    yield "other devices", "\n".join(_numbered(text, number) for number in range(copies))


def _numbered(text: str, number: int) -> str:
    """The sample with other addresses and numbers of GPUs."""
    bus = f"{number >> 8 & 0xFF:02x}:{number & 0xFF:02x}.0"
    moved = _ADDRESS.sub(lambda match: f"{match[1][:-4]}{number >> 16:04x}:{bus}", text)
    return _NUMBERED.sub(lambda match: f"{match[1]}{number}", moved)


# -- the child, which reads ----------------------------------------------------------------------


def _time(read: Any, text: str) -> tuple[float, str]:
    begun = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    outcome = "findings"
    signal.setitimer(signal.ITIMER_PROF, CPU_S)
    try:
        read(text)
    except FormatError:
        outcome = "refused"
    except MemoryError:
        outcome = "memory"
    except TooSlow:
        outcome = "slow"
    except Exception as error:  # noqa: BLE001 - whatever a reader raises is what is looked for
        outcome = f"{type(error).__name__}: {error}"[:200]
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return resource.getrusage(resource.RUSAGE_SELF).ru_utime - begun, outcome


def _child(module: str, size: int, most_lines: int) -> None:
    reader = readers()[module]

    def read(text: str) -> None:
        reader.matches(text)
        reader.parse(text)

    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    signal.signal(signal.SIGPROF, stop)
    for number, text in enumerate(samples(module)):
        smaller = dict(pumps(text, size // 4, most_lines))
        for name, pumped in pumps(text, size, most_lines):
            for how, function in (("", read), (" by any reader", read_text)):
                seconds, outcome = _time(function, pumped)
                quarter = None
                if seconds > NOISE_S:
                    quarter = min(_time(function, smaller[name])[0] for _ in range(2))
                print(
                    json.dumps([f"sample {number}, {name}{how}", seconds, quarter, outcome]),
                    flush=True,
                )


# -- the parent ----------------------------------------------------------------------------------


def growth(module: str, size: int, most_lines: int = LINES) -> tuple[int, list[Growth]]:
    """(texts read, the slowest pump and every fault) of one reader."""
    command = [sys.executable, str(Path(__file__).resolve()), "--child", module]
    command += ["--bytes", str(size), "--lines", str(most_lines)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3000, check=False)
    found = [Growth(module, *json.loads(line)) for line in done.stdout.splitlines()]
    if done.returncode or not found:
        died = f"exit code {done.returncode}: {done.stderr[-300:]}"
        found.append(Growth(module, "the child", 0.0, None, died))
    slowest = max(found, key=lambda each: each.seconds)
    faults = [each for each in found if each.is_fault and each is not slowest]
    return len(found), [slowest, *faults]


def main() -> int:
    parser = argparse.ArgumentParser(description="Read growing inputs with every format's reader.")
    parser.add_argument("--bytes", type=int, default=1 << 18)
    parser.add_argument("--lines", type=int, default=LINES)
    parser.add_argument("--only", action="append", help="a format's module name; may be repeated")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        _child(options.child, options.bytes, options.lines)
        return 0
    faults = 0
    for module in options.only or format_modules():
        count, found = growth(module, options.bytes, options.lines)
        print(f"{module:18} {count:5} texts", end="")
        for each in found[:6]:
            grown = "" if each.quarter is None else f", {each.quarter:.3f} s at a quarter"
            mark = "FAULT " if each.is_fault else ""
            print(f"  {mark}{each.seconds:.3f} s{grown} ({each.outcome}): {each.pump}")
        faults += sum(each.is_fault for each in found)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())

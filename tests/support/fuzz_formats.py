"""Mutated inputs for the readers in portagpu.facts.formats.

A reader may answer with findings or with FormatError, whatever it is given; anything else is a
fault: another exception, too much CPU time, too much memory, a value that no device can have. As a
script, over every format with the project's own fixtures, and the recordings where there are any:

    python tests/support/fuzz_formats.py 2000            # mutations in all, shared among the seeds
    python tests/support/fuzz_formats.py 2000 --only nvidia_smi_xml --seed 7
    python tests/support/fuzz_formats.py --show NAME NUMBER > input   # the bytes of one fault again

A test calls ``fuzz(seeds, 300)`` and asserts that ``report.faults`` is empty. A format's fixtures
are the files of ``tests/vendor_texts/formats/<module>/``; they are found by ``fixtures(module)``.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import random
import resource
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Final, TextIO

# last, as for the tests: of an installed package the checkout next to it is not what is read
sys.path.append(str(Path(__file__).resolve().parents[2]))

from portagpu.facts.formats.cleaning import decode_text
from portagpu.facts.formats.reader import readers
from portagpu.facts.readings import Findings, FormatError
from tests.conftest import ROOT

FIXTURES: Final = ROOT / "tests/vendor_texts/formats"
EXPECTED: Final = "expected.toml"
"""What the files of a folder state, written by hand."""
RECORDINGS: Final = Path(__file__).resolve().parents[3] / "shared" / "recordings"

CPU_S: Final = 5.0
"""CPU time that one input may take; the recordings take some hundredths of a second each."""
MEMORY_BYTES: Final = 512 << 20
"""Address space that a child may add to what Python and the reader's imports take."""
LARGEST: Final = 1 << 20
"""A mutation that would make an input larger than this is left out."""

Mutation = Callable[[bytearray, random.Random], bytes]


@dataclass(frozen=True, slots=True)
class Seed:
    """An input that is right, and the function ("package.module:name") that reads it."""

    name: str
    parse: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Fault:
    """Mutation ``number`` of the seed ``name`` made ``outcome``."""

    name: str
    number: int
    outcome: str
    detail: str


@dataclass(slots=True)
class Report:
    """How many inputs ended how, by format; ``slowest_s`` is CPU time of one input."""

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    faults: list[Fault] = field(default_factory=list)
    slowest_s: float = 0.0


def seed(name: str, parse: Callable[[str], object], text: str | bytes) -> Seed:
    """A seed of a reader that can be imported by its module and name."""
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    return Seed(name, f"{parse.__module__}:{parse.__qualname__}", data)


def fixtures(module: str) -> list[Seed]:
    """The files of ``tests/vendor_texts/formats/<module>/`` as seeds of the reader of that name."""
    parse = f"{readers()[module].__name__}:parse"
    return [
        Seed(f"{module}/{path.name}", parse, path.read_bytes())
        for path in sorted((FIXTURES / module).glob("*"))
        if path.name != EXPECTED
    ]


def format_modules() -> list[str]:
    """Names of the readers: public modules of the packages in the group ``portagpu.formats``."""
    return sorted(readers())


def recorded(module: str) -> Iterator[Seed]:
    """The recordings that the reader says are its own."""
    reader = readers()[module]
    for path in sorted(RECORDINGS.rglob("*")):
        if path.is_file() and path.name != "MANIFEST.md" and path.stat().st_size <= LARGEST:
            data = path.read_bytes()
            if reader.matches(decode_text(data)):
                name = f"{module}/{path.relative_to(RECORDINGS)}"
                yield Seed(name, f"{reader.__name__}:parse", data)


# -- mutations -----------------------------------------------------------------------------------


def _span(data: bytearray, rng: random.Random) -> tuple[int, int]:
    begin = rng.randrange(len(data) + 1)
    return begin, min(len(data), begin + int(rng.expovariate(1 / 60)) + 1)


def _truncate(data: bytearray, rng: random.Random) -> bytes:
    return bytes(data[: rng.randrange(len(data) + 1)])


def _flip(data: bytearray, rng: random.Random) -> bytes:
    for _ in range(rng.choice((1, 3, 20))):
        if data:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def _delete(data: bytearray, rng: random.Random) -> bytes:
    begin, end = _span(data, rng)
    del data[begin:end]
    return bytes(data)


def _repeat(data: bytearray, rng: random.Random) -> bytes:
    begin, end = _span(data, rng)
    return bytes(data[:end] + data[begin:end] * rng.choice((1, 2, 50)) + data[end:])


def _twice(data: bytearray, rng: random.Random) -> bytes:
    cut = rng.randrange(len(data) + 1)
    return bytes(data[:cut] + data[rng.randrange(len(data) + 1) :] + data[cut:])


def _lines(data: bytearray, rng: random.Random) -> bytes:
    lines = bytes(data).split(b"\n")
    first, second = rng.randrange(len(lines)), rng.randrange(len(lines))
    match rng.randrange(4):
        case 0:
            lines[first], lines[second] = lines[second], lines[first]
        case 1:
            del lines[min(first, second) : max(first, second)]
        case 2:
            lines[first:first] = lines[min(first, second) : max(first, second)]
        case _:
            rng.shuffle(lines)
    return b"\n".join(lines)


_VALUES: Final = (
    b"9" * 400, b"-1", b"1e999", b"nan", b"0x", b"0x" + b"f" * 40, b"9" * 5000,
    b"18446744073709551616", b"N/A", b"[Unknown Error]",
)  # fmt: skip
_INSERTED: Final = (
    *_VALUES,
    b"ERR!", b"\x00", b"\x1b[4m", b"\xff\xfe", b"\xed\xa0\x80", b":", b"|", b"\t", b"<", b"&lt;",
    b"<!ENTITY a 'b'>", b"{" * 3000, b"[" * 3000, b"<a>" * 3000, b" " * 3000, b"\n" * 500,
    "\u2028\u0663\ufeff\u00b2".encode(),
)  # fmt: skip


def _insert(data: bytearray, rng: random.Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    data[at:at] = rng.choice((rng.choice(_INSERTED), rng.randbytes(rng.randrange(1, 40))))
    return bytes(data)


def _number(data: bytearray, rng: random.Random) -> bytes:
    """Another value where digits stand."""
    at = rng.randrange(len(data) + 1)
    begin = next((i for i in range(at, len(data)) if 48 <= data[i] <= 57), len(data))
    end = next((i for i in range(begin, len(data)) if not 48 <= data[i] <= 57), len(data))
    data[begin:end] = rng.choice(_VALUES)
    return bytes(data)


def _encode(data: bytearray, rng: random.Random) -> bytes:
    text = bytes(data).decode("utf-8", "replace") + rng.choice(("", "é°"))
    encoding = rng.choice(("latin-1", "utf-16", "utf-16-be", "utf-8-sig", "utf-32", "crlf", "cr"))
    if encoding in ("crlf", "cr"):
        return text.replace("\n", "\r\n" if encoding == "crlf" else "\r").encode()
    return text.encode(encoding, "replace")


_MUTATIONS: Final[tuple[Mutation, ...]] = (
    _truncate, _truncate, _flip, _flip, _delete, _repeat, _twice, _lines, _insert, _insert, _number,
    _number, _encode,
)  # fmt: skip


def mutate(data: bytes, rng: random.Random) -> bytes:
    """``data`` with one to three mutations; empty is allowed, larger than LARGEST is not."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        changed = rng.choice(_MUTATIONS)(bytearray(data), rng)
        data = changed if len(changed) <= LARGEST else data
    return data


def mutation(origin: Seed, number: int, seed_number: int) -> bytes:
    """Mutation ``number`` of a seed: the same bytes every time. Number 0 is the seed itself."""
    rng = random.Random(f"{seed_number}:{origin.name}:{number}")  # noqa: S311 - no secret
    return mutate(origin.data, rng) if number else origin.data


# -- the child, which reads ----------------------------------------------------------------------


class TooSlow(BaseException):
    """Raised in the reader by the timer, past every handler of Exception."""


def stop(_signal: int, _frame: object) -> None:
    raise TooSlow


def _wrong(value: object) -> str | None:
    """What no findings may hold: a number that is not finite, a problem of many lines."""
    stack: list[object] = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, float) and not math.isfinite(item):
            return f"holds {item}"
        if is_dataclass(item):
            stack.extend(getattr(item, part.name) for part in fields(item))
        elif isinstance(item, dict):
            stack.extend((*item, *item.values()))
        elif isinstance(item, tuple):
            stack.extend(item)
    if isinstance(value, Findings):
        for problem in value.problems:
            if not problem or not problem.isprintable():
                return f"a problem is not one printable line: {problem[:80]!r}"
    return None


def _outcome(parse: Callable[[str], object], text: str, cpu_s: float) -> tuple[str, str]:
    try:
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        matches = getattr(sys.modules[parse.__module__], "matches", None)
        if matches is not None and not isinstance(matches(text), bool):
            return "wrong", "matches() does not answer with a bool"
        found = parse(text)
        signal.setitimer(signal.ITIMER_PROF, 0)
        wrong = _wrong(found)
    except FormatError as error:
        message = str(error)
        one_line = bool(message) and message.isprintable()
        return ("refused", "") if one_line else ("wrong", f"FormatError of many lines: {message!r}")
    except MemoryError:
        return "memory", f"more than {MEMORY_BYTES >> 20} MiB"
    except TooSlow:
        return "slow", f"more than {cpu_s:g} s of CPU time"
    except Exception as error:  # noqa: BLE001 - whatever a reader raises is what is looked for
        return "raised", f"{type(error).__name__}: {error}"[:300]
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return ("wrong", wrong) if wrong else ("findings", "")


def _child(stream: TextIO, out: TextIO) -> None:
    job = json.load(stream)
    signal.signal(signal.SIGPROF, stop)
    for entry in job["seeds"]:
        origin = Seed(entry["name"], entry["parse"], bytes.fromhex(entry["data"]))
        module, name = origin.parse.split(":")
        parse = getattr(importlib.import_module(module), name)
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        limit = pages * resource.getpagesize() + MEMORY_BYTES
        # the next seed may raise it again
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
        for number in range(entry["first"], job["last"]):
            text = decode_text(mutation(origin, number, job["seed"]))
            before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
            outcome, detail = _outcome(parse, text, job["cpu_s"])
            spent = resource.getrusage(resource.RUSAGE_SELF).ru_utime - before
            out.write(json.dumps([origin.name, number, outcome, detail, round(spent, 4)]) + "\n")
            out.flush()


# -- the parent ----------------------------------------------------------------------------------


def fuzz(seeds: Iterable[Seed], each: int, seed_number: int = 0, *, cpu_s: float = CPU_S) -> Report:
    """Read every seed and ``each`` mutations of it, in child processes with bounds.

    One child reads all of them; after one that dies another goes on, five times for a seed.
    """
    report = Report()
    firsts = dict.fromkeys(seeds, 0)
    deaths: Counter[Seed] = Counter()
    while waiting := [
        (origin, first) for origin, first in firsts.items() if first <= each and deaths[origin] < 5
    ]:
        _batch(waiting, each + 1, seed_number, cpu_s, report, firsts)
        died = next((origin for origin, _ in waiting if firsts[origin] <= each), None)
        if died is not None:
            # the child has ended in this one; those after it have not begun
            deaths[died] += 1
            firsts[died] += 1
    return report


def _batch(
    waiting: list[tuple[Seed, int]],
    last: int,
    seed_number: int,
    cpu_s: float,
    report: Report,
    firsts: dict[Seed, int],
) -> None:
    """Run one child, and note in ``firsts`` the number from which each seed is to go on."""
    entries = [
        {"name": origin.name, "parse": origin.parse, "data": origin.data.hex(), "first": first}
        for origin, first in waiting
    ]
    job = {"seeds": entries, "last": last, "seed": seed_number, "cpu_s": cpu_s}
    done = _run(json.dumps(job))
    by_name = {origin.name: origin for origin, _ in waiting}
    for line in done.stdout.splitlines():
        name, number, outcome, detail, spent = json.loads(line)
        report.outcomes[_kind(name), outcome] += 1
        report.slowest_s = max(report.slowest_s, spent)
        if outcome not in ("findings", "refused"):
            report.faults.append(Fault(name, number, outcome, detail))
        firsts[by_name[name]] = number + 1
    stopped = next((origin for origin, _ in waiting if firsts[origin] < last), None)
    if stopped is not None:
        report.outcomes[_kind(stopped.name), "died"] += 1
        detail = f"exit code {done.returncode}: {done.stderr[-300:]}"
        report.faults.append(Fault(stopped.name, firsts[stopped], "died", detail))


def _kind(name: str) -> str:
    """The format of a seed's name."""
    return name.split("/", 1)[0]


def _run(job: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(Path(__file__).resolve()), "--child"]
    try:
        return subprocess.run(
            command, input=job, capture_output=True, text=True, timeout=900, check=False
        )
    except subprocess.TimeoutExpired as error:
        output: Any = error.stdout or b""
        return subprocess.CompletedProcess(command, -1, output.decode(), "no answer in 900 s")


def main() -> int:
    parser = argparse.ArgumentParser(description="Read mutated inputs with every format's reader.")
    parser.add_argument("count", nargs="?", type=int, default=1000, help="mutations in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append", help="a format's module name; may be repeated")
    parser.add_argument("--show", nargs=2, metavar=("NAME", "NUMBER"), help="write one input")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        _child(sys.stdin, sys.stdout)
        return 0
    modules = options.only or format_modules()
    seeds = [seed for module in modules for seed in (*fixtures(module), *recorded(module))]
    if options.show:
        name, number = options.show
        origin = next(seed for seed in seeds if seed.name == name)
        sys.stdout.buffer.write(mutation(origin, int(number), options.seed))
        return 0
    without = sorted(set(modules) - {seed.name.split("/", 1)[0] for seed in seeds})
    report = fuzz(seeds, math.ceil(options.count / max(1, len(seeds))), options.seed)
    print(f"{len(seeds)} seeds, {sum(report.outcomes.values())} inputs, seed {options.seed}")
    for (kind, outcome), times in sorted(report.outcomes.items()):
        print(f"  {kind:24} {outcome:10} {times}")
    print(f"slowest input: {report.slowest_s:.3f} s of CPU time")
    for fault in report.faults:
        print(f"FAULT {fault.name} {fault.number}: {fault.outcome}: {fault.detail}")
    if without:
        print(f"no fixture and no recording: {', '.join(without)}")
    return 1 if report.faults else 0


if __name__ == "__main__":
    sys.exit(main())

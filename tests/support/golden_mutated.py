"""Golden files of damaged texts: what each reader still takes from mutations of its fixtures.

Which mutation is the fixture's and the number's alone. A digest that changes is one answer of a
reader that changed: ``python tests/support/fuzz_formats.py --show`` prints the text.
"""

from __future__ import annotations

import json
import random
import re
from typing import TYPE_CHECKING, Any, Final

from tests.support.golden import Calls, Golden, answer_of, digest_of, some_of
from tests.support.golden_verbs import TEXTS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NUMBERS: Final = range(8)
"""Of mutations of each fixture; 0 is the fixture."""
_LINES: Final = 20
"""How many lines of a text are left out, one at a time."""


def _without_unknown(value: Any) -> Any:
    """A document without what is unknown or empty, so that a new field changes nothing."""
    if isinstance(value, dict):
        found = {key: _without_unknown(each) for key, each in value.items()}
        return {key: each for key, each in found.items() if each not in (None, {}, [], "", False)}
    return [_without_unknown(each) for each in value] if isinstance(value, list) else value


def _said(found: Any) -> str:
    """How much findings say, and their digest; or the error."""
    from portagpu.base.documents import encode

    if isinstance(found, str):
        # where JSON is wrong, Python's versions say in different words
        found = found.partition("not JSON")[0] + "not JSON" if "not JSON" in found else found
        return found[:120].encode("ascii", "replace").decode()
    text = json.dumps(_without_unknown(encode(found)), sort_keys=True)
    counts = (len(found.readings), len(found.links), len(found.events), len(found.problems))
    return f"{' '.join(map(str, counts))} {digest_of(text)[:8]}"


def _mutated(_: Path) -> Iterator[str]:
    """Readings, links, events and problems of each mutation of each format's fixtures."""
    from portagpu.checks.recordings.anonymous import Anonymizer
    from portagpu.checks.recordings.anonymous_output import clean_output
    from portagpu.facts.formats.cleaning import decode_text
    from portagpu.facts.formats.reader import readers
    from tests.support.fuzz_formats import fixtures, format_modules, mutation

    for name in format_modules():
        parse = readers()[name].parse
        for origin in fixtures(name):
            texts = [decode_text(mutation(origin, number, 3)) for number in NUMBERS]
            said = [_said(answer_of(parse, text)) for text in texts]
            yield f"{origin.name}: {'; '.join(said)}"
            cleaned = [answer_of(clean_output, text, Anonymizer()) for text in texts[:2]]
            yield f"  cleaned {digest_of('|'.join(cleaned))}"


def _without_one_line(text: str) -> Iterator[str]:
    lines = text.split("\n")
    for number in range(0, len(lines), max(1, len(lines) // _LINES)):
        yield "\n".join(lines[:number] + lines[number + 1 :])


def _shortened(_: Path) -> Iterator[str]:
    """Fixtures without one of their lines: how many texts and answers, and their digest."""
    from portagpu.facts.formats.cleaning import decode_text
    from portagpu.facts.formats.reader import readers
    from portagpu.facts.nccl_tests.tables import read_tables
    from tests.support.fuzz_formats import fixtures, format_modules

    for name in format_modules():
        parse = readers()[name].parse
        for origin in fixtures(name):
            texts = _without_one_line(decode_text(origin.data))
            yield _counted(origin.name, [_said(answer_of(parse, each)) for each in texts])
    for path in sorted((TEXTS / "perf_tables").iterdir()):
        texts = _without_one_line(path.read_text(encoding="utf-8"))
        yield _counted(path.name, [str(answer_of(read_tables, each)) for each in texts])


def _counted(name: str, said: list[str]) -> str:
    return f"{name}: {len(said)} texts, {len(set(said))} answers, {digest_of('|'.join(said))}"


def _logs(folder: Path) -> Iterator[str]:
    """Findings in logs of libraries without one of their lines."""
    from tests.vendor_texts import test_doctor_logs as logs

    call = Calls(folder)
    both = [*logs.rank(0, 2), *logs.rank(1, 2, host="node2")]
    said = [logs.line(message) for message in logs.EVENTS]
    said += [logs.line(message, level="WARN") for message in logs.WARNINGS]
    said += [logs.timeout(0, 5), logs.timeout(1, 5, "BROADCAST"), logs.status(1, 5)]
    for number, text in enumerate(_without_one_line("\n".join([*both, *said]))):
        name = f"{number}.log"
        (folder / name).write_text(text)
        yield from call("collectives", "doctor", name, document=True, digest=True, timed=True)


def _machines(folder: Path) -> Iterator[str]:
    """Half of the pastes of machines, as ``info`` shows it."""
    call = Calls(folder)
    for path in some_of(sorted((TEXTS / "machines").glob("*.txt")), one_in=2):
        yield from call("info", "--replay", path, document=True, digest=True)


HOSTILE: Final = {
    "empty": b"",
    "zeros": b"\0" * 40,
    "latin": "schöne Grüße\n".encode("latin-1"),
    "list": b"[1, 2, 3]",
    "object": b'{"schema": "portagpu.other/9", "results": [{}]}',
    "deep.json": b'{"a":' * 30_000,
    "number.json": b'{"schema": "portagpu.result/1", "run": 1e999, "results": []}',
    "cut.json": b'{"schema": "portagpu.result/1", "verdict": "PA',
    "cut.xml": b"<nvidia_smi_log><gpu id='1'><product_name>x",
    "cut.toml": b'schema = "portagpu.target/1"\n[match\n',
    "cut.gz": b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\x01",
    "cut.zip": b"PK\x03\x04\x14\x00\x00\x00",
    "cut.sqlite": b"SQLite format 3\0" + b"\x10\x00" * 20,
    "rows.csv": b"index, name\n0, \n",
}
"""Files that are not what any verb reads."""
READING: Final = """
health --replay FILE
health --replay cut.xml --log FILE
collectives doctor FILE
collectives verify --replay FILE
collectives choose --ranks 8 --bytes 1M --measured FILE
collectives choose --ranks 8 --bytes 1M --profile FILE
collectives choose --ranks 8 --target nvidia-h100-sxm --backward-ms 5 --params FILE
plan --model FILE --batch 8 --target nvidia-h100-sxm --ranks 8
trace summary FILE
trace timeline FILE --out out.pftrace
port lint FILE
report FILE
matrix history import FILE --store new.sqlite
matrix history runs --store FILE
bench --peers FILE
targets check FILE
targets show ./FILE
monitor --replay FILE
conform --list --last-failed FILE
""".strip().splitlines()
"""Verbs that read a file."""


def _unreadable(folder: Path) -> Iterator[str]:
    """What each verb says of files that are not what it reads: the first line and the last."""
    call = Calls(folder)
    (folder / "folder").mkdir()
    (folder / "loop").symlink_to("loop")
    for name, data in HOSTILE.items():
        (folder / name).write_bytes(data)
    for verb in READING:
        for name in (*HOSTILE, "folder", "loop", "missing"):
            words = verb.replace("FILE", name).split()
            head, *lines = call(*words, timed=True)
            ends = [re.sub(r"\(char \d+\)", "", each)[:120] for each in (*lines[:1], *lines[-1:])]
            yield " | ".join([head.removeprefix("$ portagpu "), *dict.fromkeys(ends)])


def _captures(folder: Path) -> Iterator[str]:
    """Rows of the tables of damaged captures, and what could not be read."""
    from portagpu.traces.analysis import reading
    from tests.support.fuzz_traces import damaged, seeds

    for kind, files in seeds(folder).items():
        for place, (name, data) in enumerate(files):
            # the bytes of a database are of this machine's SQLite
            for number in NUMBERS if kind not in ("nsys", "rocpd", "rpd") else (0,):
                made = random.Random(f"{kind}/{name}/{place}/{number}")  # noqa: S311 - no secret
                path = folder / name
                path.write_bytes(damaged(data, made) if number else data)
                found = answer_of(reading.read, path)
                yield f"{kind} {name} {number}: {_rows(found, folder)}"


def _rows(found: Any, folder: Path) -> str:
    """The rows of each table of a capture, its devices, problems, and a digest; or the error."""
    if isinstance(found, str):
        # one place shows the list of formats: each new one would change a line of every file here
        found = found.replace(f"{folder}/", "").partition("; the known formats")[0]
        return found[:160].encode("ascii", "replace").decode()
    counts = {kind: found.count(kind) for kind in sorted(found.tables)}
    others = (found.totals, found.metrics)
    tables = [each.to_pylist() for each in (*found.tables.values(), *others) if each is not None]
    whole = (tables, found.devices, found.processes, found.span_ns, found.messages, found.details)
    said = f"{len(found.devices)} devices, {len(found.problems)} problems, {found.dropped} dropped"
    return f"{counts} {said} {digest_of(str(whole))}"


MUTATED: Final[dict[str, Golden]] = {
    "mutated.txt": Golden("vendor_texts", _mutated),
    "shortened.txt": Golden("vendor_texts", _shortened),
    "logs.txt": Golden("vendor_texts", _logs),
    "captures.txt": Golden("vendor_texts", _captures, ("pyarrow", "adbc_driver_sqlite")),
    "unreadable.txt": Golden(
        "unit", _unreadable, ("pyarrow", "sqlalchemy", "libcst", "networkx", "hypothesis")
    ),
    "machines.txt": Golden("vendor_texts", _machines),
}

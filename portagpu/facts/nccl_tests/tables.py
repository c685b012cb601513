"""What nccl-tests and rccl-tests print: read from their text and JSON, and written as both.

Sources: https://github.com/NVIDIA/nccl-tests from b188a15 (2017) to a0b82b2 (2.19.6),
``src/util.cu``, ``src/common.cu`` and ``print_header`` of older ``src/*.cu``;
https://github.com/ROCm/rccl-tests to ae3e635 (2024), the same files. Layouts of the text:

- 2017: ``bytes N type [op|root] time algbw busbw res``, times in ms;
- 2019: ``size count type [redop|root] time algbw busbw error``, times in µs; ``error`` is the
  largest deviation, and rccl-tests marks one out of bounds with an asterisk;
- since 2022: ``size count type redop root time algbw busbw #wrong``; ``#wrong`` counts elements,
  and is "N/A" where nothing was checked. Columns of options (``i_min``, ``sidebw``, ``timestamp``)
  are skipped, and columns that an author removed may be missing.

Each has a second half for the operation in place, or only that half. The environment in a JSON
document may hold secrets: it is neither read nor written.
"""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Final

from portagpu.base.text import printable
from portagpu.facts.formats.cleaning import clean_streams
from portagpu.facts.formats.json_xml import json_documents
from portagpu.facts.formats.prefixes import regular_prefixes, split_prefixes, without_json
from portagpu.facts.nccl_tests.model import (
    PLACES,
    REDUCTIONS,
    ROOTED,
    TYPE_NAMES,
    PerfTable,
    RankDevice,
    Row,
    Timing,
    few_problems,
    fitting_operations,
    item_bytes,
    operation_of,
    read_name,
    read_root,
)
from portagpu.facts.nccl_tests.text import HEADER, SETTINGS, TextReader
from portagpu.facts.readings.model import FormatError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


_JSON_VERSION: Final = 3
_PROGRAM_OF_JSON: Final = re.compile(r"(?:.*/)?([a-z_]{1,40}_perf)(?:\.exe|_mpi)?")
_DECIMALS: Final = 6
"""Places that ``%lf`` prints."""
_HALF_PLACE: Final = 0.5 * 10.0**-_DECIMALS


def read_json(text: str) -> PerfTable:
    documents, breaks_off = json_documents(text)
    document = documents[0]
    if not isinstance(document, dict) or not isinstance(document.get("config"), dict):
        raise FormatError("this JSON is not output of nccl-tests: it has no object 'config'")
    config = document["config"]
    settings = {key: value for key, value in config.items() if type(value) is int and value >= 0}
    problems: list[str] = []
    rows: list[Row] = []
    for number, each in enumerate(_items(document.get("results")), 1):
        try:
            rows.append(_row_of_json(each))
        except ValueError as error:
            problems.append(f"result {number} is not read, because {error}")
    if not rows:
        said = f": {problems[0]}" if problems else ""
        raise FormatError(f"this JSON of nccl-tests has no result{said}")
    devices = tuple(
        device for each in _items(config.get("devices")) if (device := _device_of_json(each))
    )
    average = _object(document, "average_bus_bandwidth") or _object(
        document, "average_bus_bandwidith"
    )
    ended = bool(average) and not breaks_off
    if not ended:
        problems.append("the document breaks off: its last objects are missing")
    arguments = _items(document.get("args"))
    command = _PROGRAM_OF_JSON.fullmatch(str(arguments[0])[:400]) if arguments else None
    program = command[1] if command is not None else None
    out_of_bounds = _object(document, "out_of_bounds").get("count")
    version = document.get("nccl_version")
    # a process lists its first device only
    each_process = settings.get("nthreads", 1) * settings.get("ngpus", 1)
    processes = sum(device.group == devices[0].group for device in devices)
    return PerfTable(
        rows=tuple(rows),
        program=program,
        operation=operation_of(program),
        ranks=processes * each_process or None,
        devices=devices,
        settings=settings,
        versions={"library": str(version)} if type(version) is int else {},
        out_of_bounds=out_of_bounds if type(out_of_bounds) is int else None,
        average_busbw_gbs=_json_number(average.get("bandwidth", average.get("bandwidith"))),
        ended=ended,
        problems=few_problems(problems),
    )


def _row_of_json(document: object) -> Row:
    if not isinstance(document, dict):
        raise FormatError("it is not an object")
    size, count = document.get("size"), document.get("count")
    if type(size) is not int or type(count) is not int or size < 0 or count < 0:
        raise ValueError("it has no whole numbers 'size' and 'count'")
    if "in_place" not in document:
        raise ValueError("it breaks off before 'in_place'")
    names = {key: document.get(key) for key in ("type", "redop", "root")}
    texts = {key: value.strip() for key, value in names.items() if isinstance(value, str)}
    halves = {place: _timing_of_json(document.get(place), place) for place in PLACES}
    if not any(halves.values()):
        raise ValueError("it has no times")
    return Row(
        size_bytes=size,
        count=count,
        type_name=read_name(texts.get("type")),
        redop=read_name(texts.get("redop")),
        root=read_root(texts.get("root")),
        out_of_place=halves["out_of_place"],
        in_place=halves["in_place"],
    )


def _timing_of_json(document: object, place: str) -> Timing | None:
    if document is None:
        return None
    if not isinstance(document, dict):
        raise FormatError(f"{place!r} is not an object")
    time = _json_number(document.get("time", document.get("cpu_time")))
    algbw, busbw = _json_number(document.get("alg_bw")), _json_number(document.get("bus_bw"))
    if time is None or algbw is None or busbw is None or "nwrong" not in document:
        raise ValueError(f"{place!r} lacks a number")
    wrong = _json_number(document["nwrong"])
    return Timing(
        time_us=time,
        algbw_gbs=algbw,
        busbw_gbs=busbw,
        wrong=None if wrong is None else round(wrong),
        rounding=(_HALF_PLACE,) * 3,
    )


def _device_of_json(document: object) -> RankDevice | None:
    if not isinstance(document, dict):
        return None
    numbers = [document.get(key) for key in ("rank", "device", "group", "pid")]
    rank, index, group, process = (each if type(each) is int else 0 for each in numbers)
    host, bus, name = (
        printable(str(document.get(key) or "")) for key in ("hostname", "device_hex", "device_info")
    )
    return RankDevice(
        rank=rank, name=name, index=index, host=host, bus=bus, group=group, process=process
    )


def _items(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _object(document: Mapping[str, object], key: str) -> dict[str, object]:
    value = document.get(key)
    return value if isinstance(value, dict) else {}


def _json_number(value: object) -> float | None:
    """A number from 0; None for the text "nan", which stands for what is not a number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        return None
    return float(value)


def write_json(table: PerfTable) -> str:
    """``table`` as the document that nccl-tests 2.19.6 writes with ``-J``, without environment."""
    each_process = max(1, table.settings.get("nthreads", 1) * table.settings.get("ngpus", 1))
    devices = [
        {
            "rank": each.rank,
            "group": each.group,
            "pid": each.process,
            "hostname": each.host,
            "device": each.index,
            "device_hex": each.bus,
            "device_info": each.name,
        }
        for each in table.devices
        if each.rank % each_process == 0
    ]
    document: dict[str, object] = {"version": _JSON_VERSION}
    document["args"] = [table.program] if table.program else []
    document["env"] = []
    if table.versions.get("library", "").isdigit():
        document["nccl_version"] = int(table.versions["library"])
    document["config"] = {**table.settings, "devices": devices}
    document["results"] = [
        {
            "size": row.size_bytes,
            "count": row.count if row.count is not None else 0,
            "type": row.type_name or "none",
            "redop": row.redop or "none",
            "root": f"{-1 if row.root is None else row.root:6d}",
            **{place: _timing_json(getattr(row, place)) for place in PLACES},
        }
        for row in table.rows
    ]
    if table.ended:
        bad, average = table.out_of_bounds or 0, table.average_busbw_gbs
        document["out_of_bounds"] = {"count": bad, "okay": "false" if bad else "true"}
        document["average_bus_bandwidth"] = {
            "bandwidth": "nan" if average is None else round(average, _DECIMALS),
            "okay": "unchecked",
        }
        document["errors"] = []
    return json.dumps(document, indent=2) + "\n"


def _timing_json(half: Timing | None) -> dict[str, float | None] | None:
    if half is None:
        return None
    return {
        "time": round(half.time_us, _DECIMALS),
        "alg_bw": round(half.algbw_gbs, _DECIMALS),
        "bus_bw": round(half.busbw_gbs, _DECIMALS),
        "nwrong": None if half.wrong is None else float(half.wrong),
    }


def write_text(table: PerfTable, note: str = "") -> str:
    """``table`` as nccl-tests 2.19.6 prints it, with ``note`` as a comment in the first line.

    Numbers have the places that the program gives them. A half that no row has is left out, as
    rccl-tests does with ``-O 0``; in another row it is blank.
    """
    lines = [f"# {note}"] if note else []
    if "tests" in table.versions:
        stated = [f"nccl-{key}={table.versions.get(key, '0')}" for key in ("headers", "library")]
        lines.append(f"# nccl-tests version {table.versions['tests']} {' '.join(stated)}")
    if table.program:
        lines.append(f"# Collective test starting: {table.program}")
    if table.settings:
        lines.append(_settings_line(table.settings))
    lines += ["#", "# Using devices"]
    lines += [
        f"#  Rank {each.rank:2d} Group {each.group:2d} Pid {each.process:6d} "
        f"on {each.host or _HERE:>10s} device {each.index:2d} [{each.bus}] {each.name}"
        for each in table.devices
    ]
    names, half = ("size", "count", "type", "redop", "root"), ("time", "algbw", "busbw", "#wrong")
    units = ("(us)", "(GB/s)", "(GB/s)", "")
    given = {place for row in table.rows for place, _ in row.timings}
    places = [place for place in PLACES if place in given]
    titles = "".join(_TITLES[place] for place in places)
    lines += [
        "#",
        f"# {_cells(('',) * 5, _HEAD_WIDTHS)}{titles}",
        f"# {_cells((*names, *half * len(places)), _HEAD_WIDTHS)} ",
        f"# {_cells(('(B)', '(elements)', '', '', '', *units * len(places)), _HEAD_WIDTHS)} ",
        *(_row_line(row, places) for row in table.rows),
    ]
    if table.ended:
        bad = table.out_of_bounds or 0
        average = table.average_busbw_gbs
        lines += [
            f"# {'Out of bounds values':<20s} : {bad} {'FAILED' if bad else 'OK'}",
            f"# {'Avg bus bandwidth':<20s} : {'-nan' if average is None else f'{average:g}'} ",
            "#",
        ]
        if table.program:
            lines.append(f"# Collective test concluded: {table.program}")
    return "\n".join(lines) + "\n"


_TITLES: Final = {
    "out_of_place": "           out-of-place            ",
    "in_place": "           in-place          ",
}
_HERE: Final = "localhost"
_HEAD_WIDTHS: Final = (10, 12, 8, 6, 6, 7, 6, 6, 6, 7, 6, 6, 6)
_ROW_WIDTHS: Final = (12, *_HEAD_WIDTHS[1:])


def _cells(values: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(f"{value:>{width}}" for value, width in zip(values, widths, strict=False))


def _settings_line(settings: Mapping[str, int]) -> str:
    step = next((key for key in ("step_factor", "step_bytes") if key in settings), None)
    words = [
        f"{word} {settings[SETTINGS[word]]}"
        for word in ("nThread", "nGpus", "minBytes", "maxBytes")
        if SETTINGS[word] in settings
    ]
    if step is not None:
        words.append(f"step: {settings[step]}({step.removeprefix('step_')})")
    words += [
        f"{word}: {settings[SETTINGS[word]]}"
        for word in ("warmup iters", "iters", "agg iters", "validation", "graph")
        if SETTINGS[word] in settings
    ]
    return f"# {' '.join(words)}"


def _row_line(row: Row, places: Sequence[str]) -> str:
    root = -1 if row.root is None else row.root
    count = row.count if row.count is not None else 0
    cells = [str(row.size_bytes), str(count), row.type_name or "none", row.redop or "none"]
    cells.append(str(root))
    for place in places:
        half: Timing | None = getattr(row, place)
        if half is None:
            cells += [""] * 4
            continue
        wrong = "N/A" if half.wrong is None else f"{half.wrong:g}"
        cells += [_fitting(half.time_us, 7), _fitting(half.algbw_gbs, 6)]
        cells += [_fitting(half.busbw_gbs, 6), wrong]
    return _cells(cells, _ROW_WIDTHS).rstrip()


def _fitting(value: float, width: int) -> str:
    """``value`` with as many places as ``width`` has room for: ``getFloatStr`` of nccl-tests."""
    for places in (2, 1, 0):
        if len(text := f"{value:.{places}f}") <= width:
            return text
    return f"{value:.{1 if width >= 7 else 0}e}"


__all__ = [
    "PLACES",
    "REDUCTIONS",
    "ROOTED",
    "TYPE_NAMES",
    "PerfTable",
    "RankDevice",
    "Row",
    "Timing",
    "fitting_operations",
    "item_bytes",
    "operation_of",
    "read_tables",
    "write_json",
    "write_text",
]


def read_tables(text: str) -> tuple[PerfTable, ...]:
    """Every table in ``text``, which is a program's output, several of them, or its JSON.

    Prefixes of lines (``srun --label``, ``mpirun --tag-output``) and lines of the library's log are
    removed. A line that breaks off is left out, with a sentence in ``problems``. Raises FormatError
    where no row can be read.
    """
    bare = without_json(text)
    if text.lstrip("\ufeff \t\r\n")[:1] == "{" and HEADER.search(bare) is None:
        return (read_json(text),)
    text = bare
    cut = "" if text.endswith("\n") else text[text.rfind("\n") + 1 :].rstrip()
    found: list[PerfTable] = []
    failure = ""
    if HEADER.search(text) is None and (plain := _without_prefixes(text)) is not None:
        text, cut = plain, ""
    for stream in clean_streams(text, lambda each: HEADER.search(each) is not None):
        reader = TextReader()
        found += reader.read(stream, cut)
        failure = failure or reader.failure
    if not any(table.rows for table in found):
        said = next((problem for table in found for problem in table.problems), "")
        said = next((table.failure for table in found if table.failure), failure) or said
        raise FormatError(
            f"there is no row of a table of nccl-tests or rccl-tests{': ' * bool(said)}{said}"
        )
    return tuple(table for table in found if table.rows)


def _without_prefixes(text: str) -> str | None:
    """The text without prefixes of several kinds at once; None where no table is in it then."""
    lines = text.split("\n")
    for regular in (*regular_prefixes(lines), None):
        bare = "\n".join(split_prefixes(line, regular)[1] for line in lines)
        if HEADER.search(bare) is not None:
            return bare
    return None

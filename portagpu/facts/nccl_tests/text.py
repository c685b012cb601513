"""Reads the text of nccl-tests and rccl-tests, whose layouts ``tables.py`` describes."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.text import excerpt, printable
from portagpu.facts.nccl_tests.model import (
    PLACES,
    PerfTable,
    RankDevice,
    Row,
    Timing,
    few_problems,
    operation_of,
    read_name,
    read_root,
    read_whole,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HEADER: Final = re.compile(
    r"^[ \t]{0,20}(?:#[ \t]{0,20})?(?:size|bytes)\b[^\n]{0,200}"
    r"\b(?:cpu)?time[ \t]{1,20}algbw[ \t]{1,20}busbw\b"
    r"[^\n]{0,400}$",
    re.MULTILINE,
)
_HEAD: Final = frozenset({"size", "count", "type", "redop", "root"})
_HALF: Final = ("time", "algbw", "busbw", "wrong", "deviation")
_COLUMNS: Final = {
    "size": "size", "bytes": "size", "count": "count", "n": "count", "type": "type",
    "redop": "redop", "op": "redop", "root": "root", "time": "time", "cputime": "time",
    "algbw": "algbw", "busbw": "busbw", "#wrong": "wrong", "error": "deviation",
    "res": "deviation", "sidebw": "", "i_min": "", "i_max": "", "i_p99": "", "i_cv%": "",
    "timestamp": "timestamp",
}  # fmt: skip
_LOG: Final = re.compile(r"\S{1,200}:\d{1,10}:\d{1,10} (?:\[\d{1,5}\] )?(?:\[[^\]]{0,60}\] )?"
                         r"[NR]CCL (?:INFO|WARN|TRACE|ABORT|VERSION)\b")  # fmt: skip
_PROGRAM: Final = re.compile(
    r"(?:^|[\s/])(?P<program>[a-z]{2,20}(?:_[a-z]{1,12}){0,3}_perf)(?:_mpi)?(?= |$)"
)
SETTINGS: Final = {
    "nThread": "nthreads", "nGpus": "ngpus", "minBytes": "minimum_bytes",
    "maxBytes": "maximum_bytes", "warmup iters": "warmup_iters", "warmupIters": "warmup_iters",
    "iters": "iterations", "agg iters": "aggregated_iterations", "validation": "validation",
    "graph": "graph",
}  # fmt: skip
_SETTING: Final = re.compile(
    r"\b(nThread|nGpus|minBytes|maxBytes|warmup iters|warmupIters|agg iters|iters"
    r"|validation|graph):? +(\d{1,18})\b"
)
_STEP: Final = re.compile(r"\bstep: ?(\d{1,18})\((factor|bytes)\)")
_DEVICE: Final = re.compile(
    r"#\s{1,4}Rank\s{1,6}(\d{1,7})\s+(?:Group\s{1,4}(\d{1,7})\s+)?(?:Pid\s{1,8}(\d{1,10})\s+)?"
    r"(?:on\s{1,20}(\S{1,256})\s+)?device\s{1,4}(\d{1,6})\s+\[([^\]]{0,128})\]\s*(.{0,200})"
)
_VERSIONS: Final = re.compile(r"# \w{2,6}-tests version (\S{1,40})(.{0,200})")
_GIT_VERSION: Final = re.compile(r"\w{2,6}-tests: Version (\S{1,60})")
_OUT_OF_BOUNDS: Final = re.compile(
    r"#? ?(?:Out of bounds values|Errors)\s{0,6}:\s{0,4}(\d{1,18})\b"
)
_AVERAGE: Final = re.compile(r"#? ?Avg bus bandwidth\s{0,6}:\s{0,4}(\S{1,40})")
_FAILURE: Final = re.compile(r"\bTest \w{2,8} failure \S{1,60}(?: '[^'\n]{0,200}')?")
_FLOAT: Final = re.compile(r"\d{1,20}(?:\.(\d{0,20}))?(?:[eE]([+-]?\d{1,2}))?")


@dataclass(slots=True)
class _Preamble:
    """What stands before a table; the next lines of this kind begin another one."""

    program: str | None = None
    devices: dict[int, RankDevice] = field(default_factory=dict)
    more_devices: bool = False
    settings: dict[str, int] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    processes: int | None = None
    """How many the command line starts; None where it does not say."""
    options: dict[str, int] = field(default_factory=dict)
    used: bool = False
    has_rows: bool = False
    runs_of_rank_0: int = 0
    """How often rank 0 was listed: each run lists it once."""

    @property
    def started(self) -> int | None:
        """How many ranks the command starts; None where it does not say."""
        if self.processes is None:
            return None
        threads = self.settings.get("nthreads", self.options.get("t", 1))
        return self.processes * threads * self.settings.get("ngpus", self.options.get("g", 1))

    @property
    def ranks(self) -> int | None:
        if self.runs_of_rank_0 > 1:
            return None
        if self.devices and not self.more_devices:
            groups = {each.group for each in self.devices.values()}
            if len(groups) > 1:
                # with NCCL_TESTS_SPLIT the rows are of the group of rank 0
                group = self.devices[min(self.devices)].group
                return sum(each.group == group for each in self.devices.values())
            # ranks count from 0, and pages often show some of their lines only
            return max(max(self.devices) + 1, self.started or 0)
        return self.started


class TextReader:
    """Reads one stream, a line at a time."""

    def __init__(self) -> None:
        self._tables: list[PerfTable] = []
        self._before = _Preamble()
        self._stated_place = self._only_place = PLACES[0]
        self._columns: list[str] = []
        self._ends: list[int] = []
        self._second_half_at = 0
        self._in_ms = False
        self._rows: list[Row] = []
        self._row_length = 0
        self._problems: list[str] = []
        self._end: dict[str, Any] = {}
        self._reading = False
        self.failure = ""
        """What the program said where it failed."""

    def read(self, text: str, cut: str) -> list[PerfTable]:
        """The tables in ``text``, which breaks off in a line that ends with ``cut``."""
        lines = text.rstrip("\n").split("\n")
        held = ""
        for number, line in enumerate(lines, 1):
            if (log := _LOG.search(line)) is not None:
                held += self._row_before(line, log)
                continue
            line, held = held + line, ""
            is_last = number == len(lines) and bool(cut) and cut.endswith(line.rstrip())
            self._read_line(line, number, is_last=is_last)
        self._close()
        return self._tables

    def _row_before(self, line: str, log: re.Match[str]) -> str:
        """The row in which a line of the log was written; it goes on in the next line."""
        if not self._reading or not line[: log.start()].strip():
            return ""
        # no blank stands between the last value of the part and the name of the host
        ends = [end for end in self._ends if log.start() < end < log.end()]
        return line[: ends[0] if ends else log.start()]

    def _read_line(self, line: str, number: int, *, is_last: bool) -> None:
        if " failure " in line and (failure := _FAILURE.search(line)) is not None:
            self.failure = self.failure or printable(failure[0])
        elif HEADER.match(line) is not None and (columns := _column_names(line)):
            if not is_last:
                self._begin_table(line, columns)
        elif self._reading and line.lstrip()[:1].isdigit():
            self._read_row(line, number, is_last=is_last)
        elif not self._read_footer(line, is_last=is_last):
            self._read_preamble(line)

    def _begin_table(self, line: str, columns: list[str]) -> None:
        self._close()
        # two runs whose outputs are mixed write two headers before any row
        if self._before.used and (self._before.has_rows or not self._before.runs_of_rank_0):
            self._before = _Preamble()
        times = [match.start() for match in re.finditer(r"\b(?:cpu)?time\b", line)]
        self._columns = columns
        self._ends = [match.end() for match in re.finditer(r"\S+", line)]
        self._second_half_at = times[1] if len(times) > 1 else 0
        self._in_ms = line.lstrip("# \t").startswith("bytes")
        self._only_place, self._stated_place = self._stated_place, PLACES[0]
        self._reading = self._before.used = True

    def _close(self) -> None:
        """End the table that is being read."""
        if not self._reading:
            return
        before = self._before
        before.has_rows |= bool(self._rows)
        ended = "average_busbw_gbs" in self._end
        if not ended:
            self._problems.append("the table breaks off: its last lines are missing")
        self._tables.append(
            PerfTable(
                rows=tuple(self._rows),
                program=before.program,
                operation=operation_of(before.program),
                ranks=before.ranks,
                devices=tuple(before.devices[rank] for rank in sorted(before.devices)),
                settings=before.settings,
                versions=before.versions,
                ended=ended,
                problems=few_problems(self._problems),
                are_more_ranks_possible=(before.started or 0) <= max(before.devices, default=-1),
                ranks_problem=_MIXED_RUNS.format(before.runs_of_rank_0)
                if before.runs_of_rank_0 > 1
                else "",
                failure=self.failure,
                **self._end,
            )
        )
        self._rows, self._problems, self._end, self._reading = [], [], {}, False
        self.failure = ""

    def _read_row(self, line: str, number: int, *, is_last: bool) -> None:
        cells = line.split()
        columns = self._columns
        width = len(columns)
        if columns[-1] == "timestamp" and len(cells) == width + 1:
            del cells[-1]
        first = columns.index("time")
        half = (width - first) // 2
        if "redop" in columns and len(cells) in (width - 1, width - 1 - half):
            # operations that reduce nothing left this column blank until 2022
            at = columns.index("redop")
            if cells[at][:1].isdigit():
                cells.insert(at, "")
        # blanks stand for a half that did not run; a line that breaks off is shorter
        in_place_only = len(line.rstrip()) > self._second_half_at + len("time")
        if self._second_half_at and len(cells) == width - half and in_place_only:
            cells[first:first] = [""] * half
        try:
            if len(cells) != width:
                raise ValueError(f"it has {len(cells)} values for {width} columns")
            if is_last and len(line) != self._row_length:
                raise ValueError("the text breaks off in it")
            self._rows.append(self._row(cells, number))
            self._row_length = len(line)
        except ValueError as error:
            self._problems.append(
                f"line {number} is not read, because {error}: {excerpt(line, 60)!r}"
            )

    def _row(self, cells: Sequence[str], number: int) -> Row:
        halves: list[dict[str, str]] = []
        values: dict[str, str] = {}
        for column, cell in zip(self._columns, cells, strict=True):
            if column == "time":
                halves.append({})
            if column in _HALF:
                halves[-1][column] = cell
            elif column:
                values[column] = cell
        parsed = [_timing(half, 1e3 if self._in_ms else 1.0) for half in halves]
        places = PLACES if len(parsed) == 2 else (self._only_place,)
        return Row(
            size_bytes=read_whole(values["size"]),
            count=read_whole(values["count"]) if "count" in values else None,
            type_name=read_name(values.get("type")),
            redop=read_name(values.get("redop") or None),
            root=read_root(values.get("root")),
            line=number,
            **dict(zip(places, parsed, strict=True)),
        )

    def _read_footer(self, line: str, *, is_last: bool) -> bool:
        if not self._reading:
            return False
        if (match := _OUT_OF_BOUNDS.match(line)) is not None:
            if not is_last:
                self._end["out_of_bounds"] = int(match[1])
        elif (match := _AVERAGE.match(line)) is not None:
            if is_last:
                # half a number is another one
                return True
            average = _number_or_none(match[1])
            if average is None:
                self._problems.append(f"the average bus bandwidth is {excerpt(match[1])!r}")
            self._end["average_busbw_gbs"] = average
            self._close()
        else:
            return False
        return True

    def _read_preamble(self, line: str) -> None:
        match: re.Match[str] | None
        if line.startswith("#") and ("in-place" in line or "out-of-place" in line):
            self._stated_place = PLACES[0] if "out-of-place" in line else PLACES[1]
        elif "Collective test concluded" in line:
            return
        elif line.endswith("...") and not self._reading and not self._before.used:
            # the program has room for this many lines only
            self._before.more_devices = True
        elif (match := _DEVICE.match(line)) is not None:
            rank, group, process, host, index, bus, name = match.groups(default="")
            self._new_preamble(of_a_run=False)
            self._before.runs_of_rank_0 += int(rank) == 0
            self._before.devices[int(rank)] = RankDevice(
                rank=int(rank),
                name=printable(name),
                index=int(index),
                host=host,
                bus=bus,
                group=int(group or 0),
                process=int(process or 0),
            )
        elif "nThread" in line:
            self._new_preamble(of_a_run=bool(self._before.settings))
            found = {key: int(value) for key, value in _SETTING.findall(line)}
            self._before.settings = {SETTINGS[key]: value for key, value in found.items()}
            if (match := _STEP.search(line)) is not None:
                self._before.settings[f"step_{match[2]}"] = int(match[1])
        elif (match := _VERSIONS.match(line)) is not None:
            self._new_preamble(of_a_run=bool(self._before.settings))
            stated = re.findall(r"(headers|library)=(\d{1,9})", match[2])
            self._before.versions = {"tests": match[1], **dict(stated)}
        elif (match := _GIT_VERSION.match(line)) is not None:
            self._new_preamble(of_a_run=False)
            self._before.versions["tests"] = match[1]
        elif len(line) < _MAX_COMMAND and (match := _PROGRAM.search(line)) is not None:
            starts = "Collective test starting" in line
            if line.startswith("#") and not starts and line[match.start()] != "/":
                return
            self._new_preamble(of_a_run=False)
            self._before.program = match["program"]
            if not starts:
                self._before.processes = _processes(line[: match.start()])
                self._before.options = {
                    key[0]: int(value) for key, value in _OPTION.findall(line[match.end() :])
                }

    def _new_preamble(self, *, of_a_run: bool) -> None:
        """A run begins if a table came since, or a line of which each run has one comes again."""
        if self._reading:
            self._close()
        if self._before.used or of_a_run:
            self._before = _Preamble()


_MAX_COMMAND: Final = 4000
_MIXED_RUNS: Final = (
    "rank 0 is listed {0} times: these are {0} runs side by side, as a program that was built "
    "without MPI makes them; build it with MPI=1"
)
_OPTION: Final = re.compile(r"(?:^| )-{1,2}(t|g|nthreads|ngpus)[ =]?(\d{1,5})(?= |$)")
_LAUNCHER: Final = re.compile(r"\b(?:mpirun|mpiexec|orterun|srun|prun|flux|torchrun|kubectl|ssh)\b")
_STARTED: Final = re.compile(r" (?:-np|--np|-n|--ntasks)[ =]?(\d{1,6})(?= |$)")
_NODES: Final = re.compile(r" (?:-N|--nodes)[ =]?(\d{1,6})(?= |$)")
_PER_NODE: Final = re.compile(r" --ntasks-per-node[ =](\d{1,6})(?= |$)")


def _processes(before: str) -> int | None:
    """How many processes the command line in front of the program starts; None if unknown."""
    if _LAUNCHER.search(before) is None:
        return 1
    if (match := _STARTED.search(before)) is not None:
        return int(match[1])
    nodes, each = _NODES.search(before), _PER_NODE.search(before)
    return int(nodes[1]) * int(each[1]) if nodes is not None and each is not None else None


def _column_names(line: str) -> list[str]:
    """The columns of a header line; empty if one is unknown, so that it is not a header."""
    words = line.strip().removeprefix("#").lower().split()
    columns = [_COLUMNS[word] for word in words if word in _COLUMNS]
    halves = columns.count("time")
    if len(columns) < len(words) or halves not in (1, 2):
        return []
    first = columns.index("time")
    head, tail = columns[:first], columns[first:]
    in_order = head[:1] == ["size"] and len({*head}) == len(head) and _HEAD.issuperset(head)
    same_halves = all(tail.count(each) == halves for each in ("algbw", "busbw"))
    return columns if in_order and same_halves and _HEAD.isdisjoint(tail) else []


def _timing(cells: Mapping[str, str], scale: float) -> Timing | None:
    if not any(cells.values()):
        return None
    (time, time_half), (algbw, algbw_half), (busbw, busbw_half) = (
        _printed(cells.get(column, "")) for column in ("time", "algbw", "busbw")
    )
    wrong = deviation = None
    marked = cells.get("deviation", "")
    if (printed := cells.get("wrong", "N/A")) != "N/A":
        wrong = round(_printed(printed)[0])
    if marked not in ("", "N/A"):
        deviation = _printed(marked.rstrip("*"))[0]
    return Timing(
        time_us=time * scale,
        algbw_gbs=algbw,
        busbw_gbs=busbw,
        wrong=wrong,
        deviation=deviation,
        beyond=marked.endswith("*"),
        rounding=(time_half * scale, algbw_half, busbw_half),
    )


def _printed(text: str) -> tuple[float, float]:
    """The number and half of its last place; raises ValueError for anything else."""
    match = _FLOAT.fullmatch(text)
    if match is None:
        raise ValueError(f"{excerpt(text, 30)!r} is not a number")
    return float(text), 0.5 * 10.0 ** (int(match[2] or 0) - len(match[1] or ""))


def _number_or_none(text: str) -> float | None:
    try:
        return _printed(text)[0]
    except ValueError:
        return None

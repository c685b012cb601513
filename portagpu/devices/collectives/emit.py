"""Files that a stack reads, from a profile: a tuner's configuration, variables, DDP's buckets."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from portagpu.base.text import one_line
from portagpu.base.units import number, size
from portagpu.devices.collectives.tuning import TABLE, holds
from portagpu.facts.readings.model import FormatError
from portagpu.facts.vendors import tables

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from portagpu.devices.collectives.buckets import BucketChoice
    from portagpu.devices.collectives.tuning import Profile, Range

ENVIRONMENT_FILE: Final = "environment.sh"
DDP_FILE: Final = "ddp.json"
_TUNER_COLUMNS: Final = (
    "Columns: collective, bytes from, bytes to, algorithm, protocol, channels, nodes, ranks, "
    "pipelined operations, registered buffers"
)


def files_of(
    profile: Profile, buckets: BucketChoice | None = None
) -> tuple[dict[str, str], list[str]]:
    """The texts by the name of their file, and a sentence for each file that is not written."""
    files: dict[str, str] = {}
    reasons: list[str] = []
    _add_tuner(profile, files, reasons)
    chosen = list(_chosen(profile))
    if any(each.candidate.environment for _, each in chosen):
        files[ENVIRONMENT_FILE] = _environment(profile, chosen)
    else:
        reasons.append(
            f"no {ENVIRONMENT_FILE}: what was chosen needs no variables of {profile.stack.library}"
        )
    if buckets is not None:
        files[DDP_FILE] = _ddp(profile, buckets)
    else:
        reasons.append(f"no {DDP_FILE}: bucket sizes need --params and --backward-ms")
    return files, reasons


def _add_tuner(profile: Profile, files: dict[str, str], reasons: list[str]) -> None:
    library = profile.stack.library
    form = next((each for each in tuner_forms().values() if each.library == library), None)
    if form is None:
        reasons.append(f"no configuration of a tuner: {library} reads none")
        return
    lines = lines_of(profile)
    if not lines:
        reasons.append(
            f"no {form.file}: no algorithm and protocol of {library} was chosen for any size"
        )
        return
    if not holds({"since": form.since}, profile.stack.version or ""):
        reasons.append(
            f"no {form.file}: a tuner of {library} reads it from {form.since} on, this is "
            f"{profile.stack.version}"
        )
        return
    notes = (
        f"For {library} from {form.since} on: {form.variable}=/path/of/this/file",
        *_head(profile),
        *form.remarks,
        _TUNER_COLUMNS,
    )
    files[form.file] = write_tuner(lines, form, notes)


def _head(profile: Profile) -> tuple[str, ...]:
    return (
        f"Valid for {profile.stack}, on {profile.machine}",
        f"Measured by portagpu {profile.portagpu}, {profile.made}",
    )


def _chosen(profile: Profile) -> Iterator[tuple[str, Range]]:
    """Every range with what it is for, in words."""
    for entry in profile.entries:
        for each in entry.ranges:
            sizes = f"{size(each.low_bytes)} to {size(each.high_bytes)}"
            best = max(point.ratio for point in each.points)
            words = (
                f"{entry.operation} of {sizes} on {entry.ranks} ranks: {each.candidate.name}, "
                f"up to {number(best, 3)} times as fast as the library's own choice"
            )
            yield words, each


def _environment(profile: Profile, chosen: list[tuple[str, Range]]) -> str:
    """Variables hold for every call of a process, so they are set only if all agree."""
    distinct = {tuple(sorted(each.candidate.environment.items())) for _, each in chosen}
    agreed = len(distinct) == 1
    lines = [f"# {each}" for each in _head(profile)]
    if not agreed:
        lines += [
            "# Sizes and operations differ, and a variable holds for all of them: nothing is set.",
            "# Take the lines of what your program mostly calls.",
        ]
    seen: set[tuple[tuple[str, str], ...]] = set()
    for words, each in chosen:
        lines.append(f"# {words}")
        variables = tuple(sorted(each.candidate.environment.items()))
        if agreed and variables in seen:
            continue
        seen.add(variables)
        lines += [f"{'' if agreed else '# '}export {name}={value}" for name, value in variables]
    return "\n".join([*lines, ""])


def _ddp(profile: Profile, buckets: BucketChoice) -> str:
    return (
        json.dumps(
            {
                "bucket_cap_mb": buckets.best.cap_mib,
                "predicted_step_us": buckets.best.step_us,
                "predicted_step_us_of_25_mib": buckets.default.step_us,
                "basis": profile.basis,
            },
            indent=1,
        )
        + "\n"
    )


_ANY: Final = -1
_NUMBER: Final = re.compile(r"-1|\d{1,19}")
_COUNT: Final = re.compile(r"# lines: (\d{1,9})")
_REQUIRED: Final = 8
_COLUMNS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class TunerForm:
    """The form of one library's file, from the table ``tuning`` of its vendor, at ``config``.

    ``operations`` are our names by the file's. ``keeps_channels`` are the numbers that leave the
    channels to the library, the first one to be written. ``remarks`` are what to know of it.
    """

    library: str
    file: str
    variable: str
    since: str
    operations: Mapping[str, str]
    algorithms: Sequence[str]
    protocols: Sequence[str]
    keeps_channels: Sequence[int]
    longest_line: int
    remarks: Sequence[str] = field(default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class TunerLine:
    """What calls of one kind take; None is any number, and of ``channels`` the library's own.

    ``registered`` is whether the buffers are registered by the user.
    """

    operation: str
    low_bytes: int
    high_bytes: int
    algorithm: str
    protocol: str
    channels: int | None
    nodes: int | None
    ranks: int | None
    pipelined: int | None = None
    registered: bool | None = None


def tuner_forms() -> dict[str, TunerForm]:
    """The form of every vendor whose table has one, by vendor."""
    return {
        vendor: TunerForm(library=table["library"], **table["config"])
        for vendor, table in tables(TABLE).items()
        if "config" in table
    }


def read_tuner(text: str, form: TunerForm) -> tuple[TunerLine, ...]:
    """The lines of a file in that form.

    Raises FormatError with the number of the line for what the library would skip or take for
    something else, and for a file of ours that is cut off.
    """
    found = []
    stated = None
    for at, line in enumerate(text.split("\n"), 1):
        bare = line.rstrip("\r")
        if count := _COUNT.fullmatch(bare):
            stated = int(count[1])
        if not bare.strip() or bare.lstrip().startswith("#"):
            continue
        try:
            if len(bare) > form.longest_line:
                raise ValueError(f"has more than {form.longest_line} characters")
            found.append(_line(bare, form))
        except ValueError as error:
            raise FormatError(one_line(f"line {at} {error}")) from error
    if stated is not None and (stated != len(found) or not text.endswith("\n")):
        raise FormatError(f"the file is cut off: it should have {stated} lines")
    if not found:
        raise FormatError(f"it has no line that the tuner of {form.library} reads")
    return tuple(found)


def _line(line: str, form: TunerForm) -> TunerLine:
    fields = [each.strip(" \t") for each in line.split(",")]
    if not _REQUIRED <= len(fields) <= _COLUMNS:
        raise ValueError(f"has {len(fields)} fields instead of {_REQUIRED} to {_COLUMNS}")
    operation, low, high, algorithm, protocol, *rest = fields
    known = (
        (operation, form.operations, "collective"),
        (algorithm, form.algorithms, "algorithm"),
        (protocol, form.protocols, "protocol"),
    )
    for word, words, kind in known:
        if word not in words:
            raise ValueError(f"has the unknown {kind} {word!r}")
    for each in (low, high, *rest):
        if not _NUMBER.fullmatch(each):
            raise ValueError(f"has {each!r} where a number belongs")
    if int(low) < 0 or int(high) < 0:
        raise ValueError("has a size below 0")
    if int(low) > int(high):
        raise ValueError(f"begins at {low} bytes and ends at {high}")
    channels, *others = map(int, rest)
    nodes, ranks, pipelined, registered = (
        None if each == _ANY else each for each in (*others, *([_ANY] * (_COLUMNS - len(fields))))
    )
    if registered not in (None, 0, 1):
        raise ValueError(f"has {registered} for registered buffers, which is 0, 1 or -1")
    return TunerLine(
        operation=form.operations[operation],
        low_bytes=int(low),
        high_bytes=int(high),
        algorithm=algorithm,
        protocol=protocol,
        channels=None if channels in form.keeps_channels else channels,
        nodes=nodes,
        ranks=ranks,
        pipelined=pipelined,
        registered=None if registered is None else bool(registered),
    )


def write_tuner(lines: Sequence[TunerLine], form: TunerForm, notes: Sequence[str] = ()) -> str:
    """The file with ``lines``, ``notes`` as comments above. Raises ValueError for what it cannot
    express, and without a line."""
    words = {ours: theirs for theirs, ours in form.operations.items()}
    rows = []
    for each in lines:
        if (
            each.operation not in words
            or each.algorithm not in form.algorithms
            or each.protocol not in form.protocols
        ):
            raise ValueError(
                f"the tuner of {form.library} knows no {each.algorithm} {each.protocol} for "
                f"{each.operation}"
            )
        keeps = form.keeps_channels[0]
        numbers = (
            keeps if each.channels is None else each.channels,
            *(
                _ANY if value is None else int(value)
                for value in (each.nodes, each.ranks, each.pipelined, each.registered)
            ),
        )
        rows.append(
            ",".join(
                map(
                    str,
                    (
                        words[each.operation],
                        each.low_bytes,
                        each.high_bytes,
                        each.algorithm,
                        each.protocol,
                        *numbers,
                    ),
                )
            )
        )
    if not rows:
        raise ValueError(f"there are no lines to write for the tuner of {form.library}")
    head = [f"# {one_line(each)}"[: form.longest_line] for each in notes]
    return "\n".join([*head, f"# lines: {len(rows)}", *rows, ""])


def lines_of(profile: Profile) -> tuple[TunerLine, ...]:
    """What a profile says of algorithms and protocols; empty if it compared none."""
    return tuple(
        TunerLine(
            operation=entry.operation,
            low_bytes=each.low_bytes,
            high_bytes=each.high_bytes,
            algorithm=each.candidate.algorithm,
            protocol=each.candidate.protocol,
            channels=each.candidate.channels,
            nodes=entry.nodes,
            ranks=entry.ranks,
        )
        for entry in profile.entries
        for each in entry.ranges
        if each.candidate.algorithm and each.candidate.protocol
    )

"""Configuration files of a library's tuner: lines of a CSV, whose form a vendor's table describes.

The forms have the same columns and differ in words and limits. The first line that fits a call
counts. Imports no torch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from portagpu.base.text import one_line
from portagpu.devices.collectives.tuning import TABLE
from portagpu.facts.readings.model import FormatError
from portagpu.facts.vendors import tables

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from portagpu.devices.collectives.tuning import Profile

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
    for number, line in enumerate(text.split("\n"), 1):
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
            raise FormatError(one_line(f"line {number} {error}")) from error
    if stated is not None and (stated != len(found) or not text.endswith("\n")):
        raise FormatError(f"the file is cut off: it should have {stated} lines")
    if not found:
        raise FormatError(f"there is no line of a tuner of {form.library}")
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
        raise ValueError(f"there is nothing to tell the tuner of {form.library}")
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

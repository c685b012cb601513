"""What ``portagpu collectives choose`` is asked: options and files, and the answers to them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final, TypeVar

import click

from portagpu.base.text import excerpt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from portagpu.devices.collectives.buckets import BucketChoice
    from portagpu.devices.collectives.choice import Choice
    from portagpu.devices.collectives.cost import CostModel, Fit, Graph, Hardware
    from portagpu.devices.collectives.tuning import Profile

_MAX_BYTES: Final = 64 << 20
"""Of a table or a list of parameters: larger files are something else."""
_T = TypeVar("_T")
_VERSION: Final = re.compile(r"\d{1,9}\.\d{1,9}(?:[.+~-][\w.+~-]{0,60})?$")
_GRAPH: Final = re.compile(r"(\w+)=(\d{1,3})x(\d+(?:\.\d+)?)(?:/(\d+(?:\.\d+)?))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The options of the verb but ``--json``. Bandwidths are in GB/s, the backward pass in ms."""

    operation: str
    size_bytes: int | None
    ranks: int
    nodes: int
    target: str | None
    nics: int | None
    nic_gbs: float | None
    graphs: tuple[str, ...]
    algorithms: tuple[str, ...]
    options: tuple[str, ...]
    library_version: str | None
    measured: str | None
    profile: str | None
    dtype: str
    params: str | None
    backward_ms: float | None

    def check(self) -> None:
        """Raise UsageError for options that exclude each other, or need another."""
        if (self.params is None) != (self.backward_ms is None):
            raise click.UsageError(
                "--params and --backward-ms need each other: give both or neither"
            )
        if self.size_bytes is None and self.params is None:
            raise click.UsageError("give the size of the buffer, such as --bytes 64M")
        if self.measured is not None and self.profile is not None:
            raise click.UsageError("give either --measured or --profile, not both")
        if self.dtype and self.profile is None:
            raise click.UsageError(
                "--dtype needs --profile: the times of a cost model do not depend on it"
            )
        if self.target is None and self.measured is None and self.profile is None:
            raise click.UsageError(
                "name the GPU with --target, or give measured times with --measured"
            )
        version = self.library_version
        if self.profile is None and version is not None and not _VERSION.match(version):
            raise click.UsageError(
                f"--library-version must be a version such as 2.27.3, not {excerpt(version)!r}"
            )
        self._check_model_options()

    def _check_model_options(self) -> None:
        of_model = {
            "--graph": self.graphs,
            "--algorithm": self.algorithms,
            "--set": self.options,
            "--nics": self.nics,
            "--nic-gbs": self.nic_gbs,
        }
        given = " and ".join(name for name, value in of_model.items() if value)
        if given and self.profile is not None:
            raise click.UsageError(f"--profile has the answer already: leave out {given}")
        if given and self.target is None:
            raise click.UsageError(f"{given} only applies to a cost model: give --target too")


class Answers:
    """Answers for sizes of a buffer, from a profile, measured times or a cost model.

    Raises UsageError for a file or a text of ``asked`` that cannot be used.
    """

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._hardware: Hardware | None = None
        self._model: CostModel | None = None
        if asked.target is not None:
            self._hardware, self._model = _model_of(asked.target)
        self._profile = (
            None
            if asked.profile is None
            else _profile(asked.profile, asked.target, asked.library_version)
        )
        self._graphs = _by_name("--graph", map(_graph, asked.graphs))
        self._settings = _by_name("--set", map(_setting, asked.options))
        self._fits = (
            None if asked.measured is None else _fits(asked.measured, asked.operation, asked.ranks)
        )

    def answer(self, operation: str, size_bytes: int) -> Choice:
        """What would run for one operation. Raises Unsupported and ValueError."""
        from portagpu.devices.collectives.choice import choose, tuned_choice
        from portagpu.devices.collectives.cost import Question

        asked = self._asked
        question = Question(
            operation=operation,
            size_bytes=size_bytes,
            ranks=asked.ranks,
            nodes=asked.nodes,
            hardware=self._hardware,
            nics=asked.nics,
            nic_gbs=asked.nic_gbs,
            graphs=self._graphs,
            algorithms=asked.algorithms,
            options=self._settings,
            dtype=asked.dtype,
        )
        if self._profile is not None:
            return tuned_choice(question, self._profile)
        fit = self._fit(operation)
        return choose(question, self._model, fit=fit, library_version=asked.library_version)

    def _fit(self, operation: str) -> Fit | None:
        if self._fits is None or operation in self._fits:
            return None if self._fits is None else self._fits[operation]
        raise ValueError(
            f"{self._asked.measured} has no table of {operation} on {self._asked.ranks} ranks: it "
            f"has {', '.join(sorted(self._fits)) or 'none for this many'}"
        )

    def buckets(self, path: str, backward_ms: float) -> tuple[list[BucketChoice], list[str], str]:
        """The buckets for DDP and FSDP, why one is missing, and what the times are based on."""
        overlap = self._profile is None or not self._profile.machine.shared
        return _buckets(parameter_sizes(path), 1e3 * backward_ms, self.answer, overlap=overlap)


def _model_of(target: str) -> tuple[Hardware, CostModel | None]:
    from portagpu.devices.collectives.cost import Hardware
    from portagpu.devices.discovery import cost_model_for
    from portagpu.facts.targets import load_target

    found = load_target(target)
    return Hardware.of_target(found), cost_model_for(found.vendor)


def _by_name(option: str, given: Iterable[tuple[str, _T]]) -> dict[str, _T]:
    found: dict[str, _T] = {}
    for name, value in given:
        if name in found:
            raise click.UsageError(f"{option} has {name} twice: give it once")
        found[name] = value
    return found


def _graph(text: str) -> tuple[str, Graph]:
    from portagpu.devices.collectives.cost import Graph

    parts = _GRAPH.fullmatch(text)
    if parts is None:
        raise click.UsageError(
            f"--graph must be ALGORITHM=CHANNELSxGB/S, such as Ring=12x30, not {excerpt(text)!r}"
        )
    name, channels, intra, inter = parts.groups()
    graph = Graph(int(channels), float(intra), float(inter or intra))
    if not (graph.channels and graph.intra_gbs and graph.inter_gbs):
        raise click.UsageError(
            f"--graph {excerpt(text)} has no bandwidth: its numbers must be above 0"
        )
    return name, graph


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise click.UsageError(
            f"--set must be NAME=VALUE, such as cpu=other, not {excerpt(text)!r}"
        )
    return name, value


def _read(path: str) -> str:
    from portagpu.base.files import read_bounded

    try:
        return read_bounded(path, _MAX_BYTES).decode("utf-8", "replace")
    except OSError as error:
        raise click.UsageError(f"cannot read {path}: {error.strerror or error}") from error


def _profile(path: str, target: str | None, library_version: str | None) -> Profile:
    """The profile in a file, which has to be of what else the options name."""
    from portagpu.devices.collectives.tuning import read_profile

    try:
        found = read_profile(path)
    except OSError as error:
        raise click.UsageError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if target is not None and target != found.machine.target:
        raise click.UsageError(
            f"profile of another machine: {path} was measured on {found.machine.target or 'none'}, "
            f"and --target is {target}"
        )
    if library_version is not None and library_version != found.stack.version:
        raise click.UsageError(
            f"profile of another version: {path} was measured with {found.stack}, and "
            f"--library-version is {library_version}"
        )
    return found


def _fits(path: str, operation: str, ranks: int) -> dict[str, Fit]:
    """The line of every operation in the tables of that many ranks.

    A table that names neither its program nor its ranks is taken for what was asked.
    """
    from portagpu.devices.collectives.cost import fit_line
    from portagpu.facts.nccl_tests.tables import read_tables
    from portagpu.facts.readings.model import FormatError

    try:
        tables = read_tables(_read(path))
    except FormatError as error:
        raise click.UsageError(f"{path}: {error}") from error
    points: dict[str, list[tuple[int, float]]] = {}
    for table in tables:
        if table.ranks not in (None, ranks):
            continue
        for row in table.rows:
            if row.timings and row.size_bytes > 0:
                timing = row.timings[0][1]
                of = points.setdefault(table.operation or operation, [])
                of.append((row.size_bytes, timing.time_us))
    if not points:
        seen = sorted({f"{each.ranks} ranks" for each in tables})
        raise click.UsageError(f"{path} has no table of {ranks} ranks: it has {', '.join(seen)}")
    try:
        return {name: fit_line(name, ranks, measured) for name, measured in points.items()}
    except ValueError as error:
        raise click.UsageError(f"{path}: {error}") from error


def parameter_sizes(path: str) -> list[int]:
    """The bytes of every parameter in a file; raises UsageError and ValueError."""
    text = _read(path)
    try:
        found = json.loads(text) if text.lstrip()[:1] == "[" else [int(x) for x in text.split()]
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} is not a list of bytes: write a JSON list of numbers, or one number a line"
        ) from error
    if not found or not all(type(each) is int and each > 0 for each in found):
        raise ValueError(f"{path} is not a list of bytes: each must be a whole number above 0")
    return list(found)


def _buckets(
    sizes: list[int],
    backward_us: float,
    answer: Callable[[str, int], Choice],
    *,
    overlap: bool,
) -> tuple[list[BucketChoice], list[str], str]:
    """The choices for DDP and FSDP, why one is missing, and what the times are based on."""
    from portagpu.devices.collectives.buckets import choose_ddp, choose_fsdp
    from portagpu.devices.collectives.tuning import DEFAULT

    bases: dict[str, None] = {}

    @cache  # the layers of a model have few different sizes
    def time(operation: str, size_bytes: int) -> float:
        found = answer(operation, size_bytes)
        bases[str(found.basis)] = None
        # DDP and FSDP make the library's own call, which a profile has next to its choice
        plain = next((each for each in found.alternatives if each.algorithm == DEFAULT), found.best)
        return plain.time_us

    found, notes = [], []
    for kind, chooser in (("DDP", choose_ddp), ("FSDP", choose_fsdp)):
        try:
            found.append(chooser(sizes, backward_us, time, overlap=overlap))
        except ValueError as error:
            notes.append(f"no buckets for {kind}: {error}")
    if not found:
        raise ValueError(notes[0])
    return found, notes, "; ".join(bases)

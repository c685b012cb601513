"""What a vendor says of its profiler: how to launch it, and what its absence of data can mean.

The part ``profiler`` of a vendor's package is an object with :class:`Profiler`'s attributes. It
builds command lines and starts nothing: ``portagpu.traces.profile`` finds it, asks for the version,
runs the command, and reads what was written."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, Protocol, runtime_checkable

from portagpu.base.errors import PortagpuError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

GROUP: Final = "portagpu.profilers"
"""The entry-point group of vendors' profilers."""

Recorded = Literal["kernels", "copies", "runtime", "ranges", "communication"]
RECORDED: Final[tuple[Recorded, ...]] = (
    "kernels",
    "copies",  # copies and sets of memory
    "runtime",  # calls of the vendor's runtime on the host
    "ranges",  # annotations of the program
    "communication",  # calls of the communication library on the host
)


class Refused(PortagpuError, ValueError):
    """A command cannot be profiled as asked; the message is one line that says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked of a profiler.

    ``command`` begins with the absolute path of its program. ``folder`` is the absolute one that
    gets the output. With ``region``, only what the program marks is recorded, else all, or from
    ``delay_s`` seconds after the start for ``duration_s`` seconds.
    """

    command: tuple[str, ...]
    folder: Path
    record: frozenset[Recorded] = frozenset(RECORDED)
    region: bool = False
    delay_s: float | None = None
    duration_s: float | None = None
    rank: int | None = None
    """The rank of the process that is launched, where its launcher said so."""
    rank_python: str = ""
    """The Python that runs the ranks which the command starts; empty where it starts none. They
    find their number in RANK."""

    @property
    def starts_ranks(self) -> bool:
        """Whether the command starts ranks."""
        return bool(self.rank_python)

    @property
    def stem(self) -> str:
        """How the names of this launch's files begin: "rank3", or "rank" where each adds its own.

        A command without ranks writes "process".
        """
        if self.starts_ranks:
            return "rank"
        return "process" if self.rank is None else f"rank{self.rank}"

    @property
    def pattern(self) -> str:
        """Matches the names of this launch's files, but for how they end."""
        return "rank*.*" if self.starts_ranks else f"{self.stem}.*"


@dataclass(frozen=True, slots=True)
class Tool:
    """An installed profiler."""

    path: str
    version: str

    @property
    def release(self) -> tuple[int, ...]:
        """(2025, 6, 3) of "2025.6.3.541-256337736014v0"."""
        found = []
        for part in self.version.split("."):
            digits = part[: len(part) - len(part.lstrip("0123456789"))]
            if not digits:
                break
            found.append(int(digits))
            if digits != part:
                break
        return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A program to run after the command, once for each file of the pattern ``inputs``.

    ``{input}`` and ``{output}`` in ``argv`` are the file, and the same with ``suffix`` instead of
    its own.
    """

    inputs: str
    suffix: str
    argv: tuple[str, ...]

    def command(self, file: str, output: str) -> list[str]:
        """``argv`` for one file.

        :param file: the path that replaces "{input}".
        :param output: the path that replaces "{output}".
        """
        return [word.replace("{input}", file).replace("{output}", output) for word in self.argv]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How to run a command under a profiler. Patterns are of files in the request's folder."""

    argv: tuple[str, ...]
    outputs: str
    """Files to read, after ``steps``."""
    environment: Mapping[str, str] = field(default_factory=dict)
    scripts: Mapping[str, str] = field(default_factory=dict)
    """Name in the folder -> text of an executable file that must be there before."""
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """What a message of the tool means: ``pattern`` is searched in it, whatever its case."""

    pattern: str
    meaning: str


@runtime_checkable
class Profiler(Protocol):
    """A profiler of one vendor, or of torch."""

    @property
    def name(self) -> str:
        """The program's name, and the value of ``--with``."""

    @property
    def backend(self) -> str:
        """The backend whose devices it records; empty for any."""

    @property
    def programs(self) -> tuple[str, ...]:
        """Programs that are such a profiler: one inside another loses data."""

    @property
    def places(self) -> tuple[str, ...]:
        """Patterns of files in which it may be installed outside of PATH."""

    @property
    def version_pattern(self) -> str:
        """A regular expression with one group: the version in the output of ``--version``."""

    @property
    def hints(self) -> tuple[Hint, ...]:
        """What its messages mean."""

    def attached(self, environment: Mapping[str, str]) -> str:
        """The variable that says that it, or a relative, records this process; else empty."""

    def launch(self, request: Request, tool: Tool) -> Launch:
        """How the profiler runs a request.

        :param request: the command and what to record of it.
        :param tool: the installed profiler.
        :returns: the command line, and what must be there before and run after.
        :raises Refused: where it cannot be profiled as asked.
        """


def plain_folder(request: Request, special: str, tool: str) -> None:
    """Raise Refused if the folder's path has a character that ``tool`` replaces."""
    found = next((each for each in str(request.folder) if each in special), "")
    if found:
        raise Refused(
            f"{tool} replaces what follows {found!r} in the name of its output: choose another "
            f"folder than {request.folder}"
        )

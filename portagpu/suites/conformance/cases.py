"""The declaration of a case, its id, and the exceptions by which it reports what the device did."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

from portagpu.base.documents import rule_of, values_of
from portagpu.base.environment import CHANGED
from portagpu.base.errors import Unsupported
from portagpu.base.paths import matrix_dir
from portagpu.facts.capability import Capability
from portagpu.runs.results.verdicts import Evidence

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


SUITE: Final = "conformance"
"""The suite that results of cases name."""
AREAS: Final = (
    "identity",
    "visibility",
    "memory",
    "rng",
    "streams",
    "graphs",
    "precision",
    "operators",
    "attention",
    "kernels",
    "collectives",
    "parallel",
    "failures",
    "profiling",
    "telemetry",
)

ATTRIBUTE: Final = "portagpu_case"
"""Where a pytest function keeps its case."""

GUARDED: Final[Mapping[str, Capability]] = {
    "Stream": Capability.STREAMS,
    "stream": Capability.STREAMS,
    "current_stream": Capability.STREAMS,
    "set_stream": Capability.STREAMS,
    "default_stream": Capability.STREAMS,
    "Event": Capability.EVENTS,
    "Graph": Capability.GRAPHS,
    "graph": Capability.GRAPHS,
    "graph_pool_handle": Capability.GRAPHS,
    "reset_peak_memory_stats": Capability.PEAK_MEMORY,
    "pin": Capability.PINNED_MEMORY,
    "autocast": Capability.AUTOCAST,
    "GradScaler": Capability.AUTOCAST,
    "ExternalStream": Capability.EXTERNAL_STREAMS,
    "ipc_collect": Capability.IPC,
    "memory_snapshot": Capability.ALLOCATOR,
    "record_memory_history": Capability.ALLOCATOR,
    "dump_memory_snapshot": Capability.ALLOCATOR,
    "MemPool": Capability.ALLOCATOR,
    "use_mem_pool": Capability.ALLOCATOR,
    "set_per_process_memory_fraction": Capability.ALLOCATOR,
}
"""Call -> its capability: a case that covers the call has to declare the capability."""

EARNS: Final[Mapping[str, Evidence | None]] = {
    "gpu": Evidence.EXECUTED,
    "ranks": Evidence.EXECUTED,
    "backend": Evidence.LOADED,
    "torch": Evidence.LOADED,
    "installed": None,
}
"""The evidence a case can earn by each fixture that ties it to the machine, strongest first.

``comm``, ``target`` and ``world`` are made from these. A case without any of them has the same
result on every machine: it is a test of this package and not a conformance case.
"""

_PLAIN_OUTCOMES: Final = ("exact", "unsupported", "undefined")
_BOUNDED: Final = "bounded: "
_F = TypeVar("_F", bound="Callable[..., None]")


class WrongError(AssertionError):
    """Raised by :func:`refused` for an error of another type: not a question of values."""


class NotHere(Exception):
    """Raised by a case that this machine cannot judge; the result is INCONCLUSIVE."""


class NotClaimed(Exception):
    """Raised by a case about something that the backend does not claim; the result is SKIP."""


class RankFailed(AssertionError):
    """A rank failed without a wrong value: ``kind`` is the kind of the case's outcome."""

    def __init__(self, sentence: str, kind: str) -> None:
        super().__init__(sentence)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Search:
    """That a case runs random programs: of which area, and for how many seconds by default.

    The area's name may hold a parameter of the case: "operators-{kind}". The seconds may be by the
    value of a case's only parameter.
    """

    area: str
    seconds: float | Mapping[Any, float]

    def area_of(self, params: Mapping[str, Any]) -> str:
        """The area's name for the form of the case with those parameters."""
        return self.area.format(**params)

    def seconds_of(self, params: Mapping[str, Any]) -> float:
        """The seconds of the form of the case with those parameters."""
        if isinstance(self.seconds, (int, float)):
            return self.seconds
        (value,) = params.values()
        return self.seconds[value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One case before its parameters are filled in: the arguments of :func:`case`."""

    id: str
    spec: str
    capability: tuple[Capability, ...] = ()
    outcome: str = "exact"
    traps: tuple[str, ...] = ()
    covers: tuple[str, ...] = ()
    smoke: bool | Mapping[str, Any] = False
    default: bool | Mapping[str, Any] = True
    params: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    timeout_s: float | None = None
    does_not_show: str = ""
    search: Search | None = None
    unaltered: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        problem = _problem(self)
        if problem:
            raise ValueError(f"case {self.id!r}: {problem}")

    @property
    def area(self) -> str:
        """The part of the id before the slash."""
        return self.id.partition("/")[0]

    def in_smoke(self, arguments: Mapping[str, Any]) -> bool:
        """Whether the case is in the smoke selection with these arguments."""
        return _among(self.smoke, arguments)

    def at_default(self, arguments: Mapping[str, Any]) -> bool:
        """Whether the case runs at the default level with these arguments."""
        return _among(self.default, arguments)


def _among(chosen: bool | Mapping[str, Any], arguments: Mapping[str, Any]) -> bool:
    if isinstance(chosen, bool):
        return chosen
    return all(arguments.get(name) == value for name, value in chosen.items())


def _problem(case: Case) -> str:
    """The problem of a declaration; empty if there is none."""
    area, slash, name = case.id.partition("/")
    if area not in AREAS:
        return f"{area!r} is not an area: {', '.join(AREAS)}"
    if not slash or not name or not name.replace("-", "").isalnum() or not name.islower():
        return "the name after the area is lower case words with hyphens"
    if not case.spec.strip() or not case.spec.endswith(".") or "\n" in case.spec:
        return "it needs a spec: one sentence that ends with a full stop"
    if case.outcome not in _PLAIN_OUTCOMES and not case.outcome.startswith(_BOUNDED):
        return f"the outcome is {', '.join(_PLAIN_OUTCOMES)} or '{_BOUNDED}FORMULA'"
    if case.outcome.startswith(_BOUNDED) and not case.outcome.removeprefix(_BOUNDED).strip():
        return "a bounded outcome states the formula of its bound"
    unknown = [each for each in case.unaltered if each not in CHANGED]
    if unknown:
        return f"no variable changes {unknown[0]!r}, only {', '.join(CHANGED)}"
    # a search draws no call that the device does not claim
    for covered in case.covers if case.search is None else ():
        of_library = Capability.COLLECTIVES if covered.startswith("Comm.") else None
        needed = of_library or GUARDED.get(covered.rpartition(".")[2])
        if needed is not None and needed not in case.capability:
            return f"it covers {covered} and does not declare the capability {needed}"
    return ""


def case(
    id: str,  # noqa: A002 - the word that results and the command line use
    *,
    spec: str,
    capability: Capability | Sequence[Capability] | None = None,
    outcome: str = "exact",
    traps: Sequence[str] = (),
    covers: Sequence[str] = (),
    smoke: bool | Mapping[str, Any] = False,
    default: bool | Mapping[str, Any] = True,
    params: Mapping[str, Sequence[Any]] | None = None,
    search: Search | None = None,
    timeout_s: float | None = None,
    does_not_show: str = "",
    unaltered: Sequence[str] = (),
) -> Callable[[_F], _F]:
    """Declare a pytest function to be a case.

    :param id: Area and name, ``area/name-in-lower-case``. An id is never used for another case.
    :param spec: What has to hold, in one sentence with a full stop.
    :param capability: A backend that claims all of these has to pass; any other has to raise
        Unsupported.
    :param outcome: "exact", "bounded: FORMULA", "unsupported" (a typed error) or "undefined"
        (recorded, never judged).
    :param traps: The ids of traps in ``matrix/conformance/traps.toml`` that the case looks for.
    :param covers: What it exercises, for instance "Backend.Stream" or "portagpu.seed".
    :param smoke: Whether it is in the smoke selection, or the argument values with which it is.
    :param default: Whether it runs at the default level, or the argument values with which it does.
        What does not runs at the deep level, and where ``--only`` has its whole name.
    :param params: The values of each argument; all combinations run. Their labels are appended to
        the id: text as it is, a number after the argument's name, as in ``[float32-n4]``.
    :param search: The random programs that the case runs.
    :param timeout_s: The limit of the case in seconds, by default that of the run.
    :param does_not_show: What a PASS does not show, as the end of a sentence.
    :param unaltered: What the case can only judge as it is by itself
        (``portagpu.base.environment.CHANGED``): under a variable that changes it the result is
        INCONCLUSIVE.
    :returns: The decorator, which returns the function as it is.
    :raises ValueError: The declaration is incomplete.
    """
    if capability is None:
        needed: tuple[Capability, ...] = ()
    elif isinstance(capability, str):
        needed = (Capability(capability),)
    else:
        needed = tuple(Capability(each) for each in capability)
    declared = Case(
        id=id,
        spec=spec,
        capability=needed,
        outcome=outcome,
        traps=tuple(traps),
        covers=tuple(covers),
        smoke=smoke,
        default=default,
        params=tuple((name, tuple(values)) for name, values in (params or {}).items()),
        timeout_s=timeout_s,
        does_not_show=does_not_show,
        search=search,
        unaltered=tuple(unaltered),
    )

    def mark(function: _F) -> _F:
        setattr(function, ATTRIBUTE, declared)
        return function

    return mark


def label(name: str, value: object) -> str:
    """A parameter's value as it is written in an id."""
    return value if isinstance(value, str) else f"{name}{value}"


def refused(
    call: Callable[[], object], kinds: type[Exception] | tuple[type[Exception], ...], what: str
) -> Exception:
    """Return the error with which a call refuses what it is given.

    :param call: Called without arguments.
    :param kinds: The types of errors that are a refusal.
    :param what: What is refused, as the beginning of a sentence: "a negative size".
    :returns: The error that ``call`` raised.
    :raises AssertionError: ``call`` raised nothing.
    :raises WrongError: ``call`` raised an error of another type; Unsupported passes through.
    """
    try:
        value = call()
    except kinds as error:
        return error
    except Unsupported:
        raise
    except Exception as error:
        raise WrongError(
            f"{what} was refused with {type(error).__name__} instead of {_names(kinds)}: {error}"
        ) from error
    raise AssertionError(f"{what} was not refused with {_names(kinds)}: it gave {value!r}")


def _names(kinds: type[Exception] | tuple[type[Exception], ...]) -> str:
    several = kinds if isinstance(kinds, tuple) else (kinds,)
    return " or ".join(kind.__name__ for kind in several)


@dataclass(frozen=True, slots=True)
class RetiredCase:
    """A former case, by what replaced it, and the traps that a test in its place looks for."""

    test: str = ""
    """The test of this package that it became; empty if random programs do what it did."""
    traps: tuple[str, ...] = ()
    case: str = ""
    """The case whose random programs cover it; empty if it became a test."""


@cache
def retired_cases() -> Mapping[str, RetiredCase]:
    """The former cases, by ids that are never used again."""
    file = matrix_dir() / "conformance" / "retired.toml"
    rows = tomllib.loads(file.read_text(encoding="utf-8"))
    cases: Mapping[str, RetiredCase] = values_of(rule_of(RetiredCase)).read(rows, file.name)
    return cases


def base_id(full: str) -> str:
    """The id without the labels of its parameters."""
    return full.partition("[")[0]


def matches(pattern: str, full: str) -> bool:
    """Whether a pattern with ``*`` and ``?`` fits a case's area, or its id with or without labels.

    Brackets have no special meaning, because ids contain them.
    """
    names = (full, base_id(full), full.partition("/")[0])
    return any(_expression(pattern).fullmatch(name) for name in names)


@cache
def _expression(pattern: str) -> re.Pattern[str]:
    return re.compile("".join({"*": ".*", "?": "."}.get(char, re.escape(char)) for char in pattern))

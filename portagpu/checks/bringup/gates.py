"""The gates, read from ``matrix/bringup/gates.toml`` and validated."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.documents import (
    each,
    flag,
    is_number,
    matching,
    object_of,
    one_of,
    read_toml,
    text,
    that,
    wrong,
)
from portagpu.base.errors import PortagpuError
from portagpu.base.installation import WRITE_PAGES, DamagedInstallation, stated_gates
from portagpu.base.paths import matrix_dir
from portagpu.base.text import did_you_mean
from portagpu.runs.results.verdicts import Evidence

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


SCHEMA: Final = "portagpu.gates/1"
EFFORTS: Final = ("quick", "full")
_EARNS: Final = {
    "nothing": None,
    **{str(each): each for each in (Evidence.LOADED, Evidence.EXECUTED)},
}
_SECONDS: Final = that("a number of seconds above 0", lambda value: is_number(value) and value > 0)
_FUNCTION: Final = matching(r"[\w.]+:\w+", "'module:function'")
_AMOUNTS: Final = object_of(
    {"limit_s": _SECONDS, "device_s": _SECONDS, "usual_s": _SECONDS},
    frozenset({"device_s", "usual_s"}),
    others=True,
)
_GATE: Final = object_of(
    {
        "id": matching(r"[a-z][a-z0-9-]*", "a word in lower case and hyphens"),
        "title": text,
        "spec": text,
        "check": _FUNCTION,
        "needs": each(text),
        "earns": one_of(*_EARNS),
        **dict.fromkeys(EFFORTS, _AMOUNTS),
        "replay": _FUNCTION,
        "opens_devices": flag,
    },
    frozenset({"replay", "opens_devices"}),
)
_FILE: Final = object_of({"gate": each(_GATE)}, others=True)


@dataclass(frozen=True, slots=True)
class Gate:
    """One gate of the checklist.

    ``check`` names a generator function "module:name" that takes a Context and yields Results.
    ``needs`` are the ids of gates that have to succeed before this one runs. ``amounts`` holds, for
    each effort, ``limit_s`` (the gate's time limit in seconds), for a gate that goes by devices
    ``device_s`` (additional seconds for each device after the first), ``usual_s`` (what it took on
    one machine, for the time left), and what its check reads.
    ``replay`` names the function that judges a recording, None if only a machine can be judged.
    ``opens_devices`` says that later gates test the devices that this one opened. ``earns`` is the
    evidence of its results: executed if devices work, loaded if their library answers, None if
    files and tools are read.
    """

    id: str
    title: str
    spec: str
    check: str
    needs: tuple[str, ...]
    amounts: Mapping[str, Mapping[str, Any]]
    replay: str | None = None
    opens_devices: bool = False
    earns: Evidence | None = None


def load_gates(path: Path | None = None) -> tuple[Gate, ...]:
    """The gates in order; by default those of the matrix.

    Raises PortagpuError with the file, the gate and the rule that it breaks.
    """
    own = path is None
    path = path or matrix_dir() / "bringup" / "gates.toml"
    gates: list[Gate] = []
    for number, given in enumerate(read_toml(path, SCHEMA, _FILE)["gate"]):
        gates.append(_gate(given, f"{path}: gate[{number}]", [gate.id for gate in gates]))
    if not gates:
        raise wrong(str(path), "the file has no gate; a checklist needs at least one")
    if own and (missing := [name for name in stated_gates() if name not in {g.id for g in gates}]):
        raise DamagedInstallation(
            f"{path}: the gate {missing[0]} is missing: reinstall portagpu, or, after a change of "
            f"gates, {WRITE_PAGES}"
        )
    return tuple(gates)


def _gate(given: dict[str, Any], path: str, earlier: list[str]) -> Gate:
    earns = _EARNS[given["earns"]]
    if given["id"] in earlier:
        raise wrong(f"{path}.id", f"{given['id']!r} is the id of an earlier gate")
    if "replay" in given and earns == Evidence.EXECUTED:
        raise wrong(
            f"{path}.earns",
            "must not be executed for a gate that judges recordings, where nothing runs",
        )
    if strange := [need for need in given["needs"] if need not in earlier]:
        raise wrong(f"{path}.needs", f"{strange[0]!r} is not an earlier gate")
    amounts = {effort: given[effort] for effort in EFFORTS}
    rest = {key: value for key, value in given.items() if key not in EFFORTS}
    return Gate(**rest | {"needs": tuple(given["needs"]), "amounts": amounts, "earns": earns})


class UnknownGate(PortagpuError, LookupError):
    """No gate has that id; the message suggests the closest one."""


def fitting(gates: Sequence[Gate], names: Sequence[str]) -> tuple[str, ...]:
    """``names``, each pattern with * and ? replaced by the gates that it fits, if there are any."""
    found: dict[str, None] = {}
    for name in names:
        fits = [gate.id for gate in gates if fnmatchcase(gate.id, name)]
        found |= dict.fromkeys(fits or [name])
    return tuple(found)


def left_out_gates(
    gates: Sequence[Gate], only: Sequence[str] = (), skip: Sequence[str] = (), asked: str = ""
) -> dict[str, str]:
    """The gates that do not run, each with the reason; raises UnknownGate.

    With ``only``, the gates that those need run too, except those in ``skip``. ``asked`` is the
    option that chose ``only``, by default each of its names.
    """
    known = {gate.id: gate for gate in gates}
    for name in (*only, *skip):
        if name not in known:
            hint = did_you_mean(name, known, f"gates are {', '.join(known)}")
            raise UnknownGate(f"unknown gate {name!r}: {hint}")
    wanted: set[str] = set()
    pending = list(only or known)
    while pending:
        name = pending.pop()
        if name not in skip and name not in wanted:
            wanted.add(name)
            pending.extend(known[name].needs)
    if not wanted:
        raise UnknownGate("no gate is left to run")
    named = " ".join(f"--only {name}" for name in only)
    reason = f"{asked or named} leaves it out"
    return {
        name: "--skip leaves it out" if name in skip else reason
        for name in known
        if name not in wanted
    }


def with_load_duration(gate: Gate, seconds: float) -> Gate:
    """The gate with its load, if any, lasting that long; its time limit grows as needed, and so
    does its usual time."""
    amounts = {}
    for effort, has in gate.amounts.items():
        changed = dict.fromkeys(has.keys() & {"seconds", "shared_seconds"}, seconds)
        if changed:
            changed["limit_s"] = has["limit_s"] + max(0.0, seconds - has["seconds"])
            if "usual_s" in has:
                changed["usual_s"] = max(1.0, has["usual_s"] + seconds - has["seconds"])
        amounts[effort] = {**has, **changed}
    return replace(gate, amounts=amounts)

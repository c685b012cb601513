"""The gates, read from ``matrix/bringup/gates.toml`` and validated."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from portagpu.contents import WRITE_ANEW, DamagedInstallation, stated_gates
from portagpu.errors import PortagpuError
from portagpu.paths import matrix_dir
from portagpu.results.verdicts import Evidence
from portagpu.text import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from portagpu.bringup.context import Context
    from portagpu.results.run import Result

SCHEMA: Final = "portagpu.gates/1"
EFFORTS: Final = ("quick", "full")
_NAMED: Final = ("replay",)
_OPTIONAL: Final = (*_NAMED, "opens_devices")
_KEYS: Final = {"id": str, "title": str, "spec": str, "check": str, "needs": list, "earns": str}
_EARNS: Final = {
    "nothing": None,
    **{str(each): each for each in (Evidence.LOADED, Evidence.EXECUTED)},
}


@dataclass(frozen=True, slots=True)
class Gate:
    """One gate of the checklist.

    ``check`` names a generator function "module:name" that takes a Context and yields Results.
    ``needs`` are the ids of gates that have to succeed before this one runs. ``amounts`` holds, for
    each effort, ``limit_s`` (the gate's time limit in seconds), for a gate that goes by devices
    ``device_s`` (additional seconds for each device after the first), and what its check reads.
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

    def load(self, *, replay: bool = False) -> Callable[[Context], Iterator[Result]] | None:
        """The gate's check, or with ``replay`` its check of recordings, if it has one."""
        named = self.replay if replay else self.check
        if named is None:
            return None
        module, _, name = named.partition(":")
        check: Callable[[Context], Iterator[Result]] = getattr(import_module(module), name)
        return check


def load_gates(path: Path | None = None) -> tuple[Gate, ...]:
    """The gates in order; by default those of the matrix.

    Raises PortagpuError with the file, the gate and the rule that it breaks.
    """
    own = path is None
    path = path or matrix_dir() / "bringup" / "gates.toml"
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PortagpuError(f"{path}: cannot be read as TOML: {error}") from error
    if document.get("schema") != SCHEMA:
        raise PortagpuError(f"{path}: schema must be {SCHEMA!r}, not {document.get('schema')!r}")
    gates: list[Gate] = []
    for number, entry in enumerate(document.get("gate", ())):
        gates.append(_gate(entry, f"{path}: gate[{number}]", [gate.id for gate in gates]))
    if not gates:
        raise PortagpuError(f"{path}: there is no gate; a checklist needs at least one")
    if own and (missing := [name for name in stated_gates() if name not in {g.id for g in gates}]):
        raise DamagedInstallation(
            f"{path}: the gate {missing[0]} is missing: reinstall portagpu, or, after a change of "
            f"gates, {WRITE_ANEW}"
        )
    return tuple(gates)


def _gate(entry: Mapping[str, Any], where: str, earlier: list[str]) -> Gate:
    for key, kind in _KEYS.items():
        if not isinstance(entry.get(key), kind):
            raise PortagpuError(f"{where}.{key} must be a {kind.__name__}")
    unknown = sorted(set(entry) - set(_KEYS) - set(_OPTIONAL) - set(EFFORTS))
    if unknown:
        raise PortagpuError(f"{where}.{unknown[0]} is not a key of a gate")
    if not re.fullmatch(r"[a-z][a-z0-9-]*", entry["id"]) or entry["id"] in earlier:
        raise PortagpuError(f"{where}.id {entry['id']!r} must be new, in lower case and hyphens")
    opens = entry.get("opens_devices", False)
    if not isinstance(opens, bool):
        raise PortagpuError(f"{where}.opens_devices must be true or false")
    for key in ("check", *_NAMED):
        named = entry.get(key, entry["check"])
        if not isinstance(named, str) or not re.fullmatch(r"[\w.]+:\w+", named):
            raise PortagpuError(f"{where}.{key} must be 'module:function', not {named!r}")
    if entry["earns"] not in _EARNS:
        raise PortagpuError(f"{where}.earns must be {', '.join(_EARNS)}, not {entry['earns']!r}")
    if "replay" in entry and entry["earns"] == Evidence.EXECUTED:
        raise PortagpuError(f"{where}.earns is executed, and it judges recordings: nothing runs")
    for need in entry["needs"]:
        if need not in earlier:
            raise PortagpuError(f"{where}.needs {need!r}, which is no earlier gate")
    for effort in EFFORTS:
        amounts = entry.get(effort, {})
        for key in ("limit_s", *({"device_s"} & set(amounts))):
            limit = amounts.get(key)
            if isinstance(limit, bool) or not isinstance(limit, int | float) or limit <= 0:
                raise PortagpuError(f"{where}.{effort}.{key} must be a number of seconds above 0")
    return Gate(
        id=entry["id"],
        title=entry["title"],
        spec=entry["spec"],
        check=entry["check"],
        needs=tuple(entry["needs"]),
        amounts={effort: dict(entry[effort]) for effort in EFFORTS},
        replay=entry.get("replay"),
        opens_devices=opens,
        earns=_EARNS[entry["earns"]],
    )


class UnknownGate(PortagpuError, LookupError):
    """No gate has that id; the message suggests the closest one."""


def left_out_gates(
    gates: Sequence[Gate], only: Sequence[str] = (), skip: Sequence[str] = ()
) -> dict[str, str]:
    """The gates that do not run, each with the reason; raises UnknownGate.

    With ``only``, the gates that those need run too, except those in ``skip``.
    """
    known = {gate.id: gate for gate in gates}
    for name in (*only, *skip):
        if name not in known:
            hint = did_you_mean(name, known, f"gates are {', '.join(known)}")
            raise UnknownGate(f"there is no gate {name!r}: {hint}")
    wanted: set[str] = set()
    pending = list(only or known)
    while pending:
        name = pending.pop()
        if name not in skip and name not in wanted:
            wanted.add(name)
            pending.extend(known[name].needs)
    if not wanted:
        raise UnknownGate("no gate is left to run")
    asked = f"--only {' --only '.join(only)} leaves it out"
    return {
        name: "--skip leaves it out" if name in skip else asked
        for name in known
        if name not in wanted
    }


def with_load_duration(gate: Gate, seconds: float) -> Gate:
    """The gate with its load, if any, lasting that long; its time limit grows as needed."""
    amounts = {
        effort: dict(has)
        | (
            {"seconds": seconds, "limit_s": has["limit_s"] + max(0.0, seconds - has["seconds"])}
            if "seconds" in has
            else {}
        )
        for effort, has in gate.amounts.items()
    }
    return replace(gate, amounts=amounts)

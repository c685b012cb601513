"""A run as the ledger keeps it: what it states of which device."""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from portagpu.runs.ledger.model import Account, Device, Fact, Statement, same_id
from portagpu.runs.results.actions import Action, action_of
from portagpu.runs.results.advice import severity_of
from portagpu.runs.results.verdicts import GRAVITY, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from portagpu.runs.results.run import Result, Run

_WHOLE_MACHINE: Final = frozenset({"bringup", "health"})
"""Suites that look at every device of a machine."""
_DRAWS: Final = "conformance"
"""The suite whose cases draw programs."""
COUNT: Final = "identity/count"
_PLACE: Final = re.compile(r"(?:rank |\w+ device |[a-z]\w*:)(\d{1,6})")
"""The names of devices by their index: "cuda:1", "cuda device 1", "rank 1"."""
_SEED: Final = re.compile(r"\bseed (\d+)")


def instant(text: str) -> float:
    """Seconds since 1970, UTC, of an RFC 3339 time with its zone."""
    return datetime.fromisoformat(text).timestamp()


def account_of(run: Run) -> Account:
    """What the ledger keeps of ``run``."""
    info = run.info
    devices = tuple(devices_of(info.devices, info.backend))
    statements: dict[Fact, Statement] = {}
    known_devices: dict[str | None, str] = {}
    made: dict[Statement, Statement] = {}
    for result in run.results:
        fact = fact_of(result, run, devices, known_devices)
        wrong = result.verdict is Verdict.FAIL and wrong_value(result, fact.seed)
        stated = Statement(result.verdict, (result.suite, result.area), wrong)
        # equal ones are one object, which travels once between processes
        stated = made.setdefault(stated, stated)
        known = statements.get(fact)
        if known is None or GRAVITY(stated.verdict) > GRAVITY(known.verdict):
            statements[fact] = stated
    unfinished = info.interrupted or info.error is not None
    masked = {each.verdict for each in run.results if each.id == "environment/visible"}
    return Account(
        run=info.id,
        at_s=instant(info.started),
        backend=info.backend,
        replayed=bool(info.replay),
        interrupted=unfinished,
        broken=unfinished and run.verdict is Verdict.ERROR,
        strict=info.strict,
        statements=statements,
        devices=devices,
        lists_all=not unfinished
        and _option(info.command, "--index") is None
        and any(each.suite in _WHOLE_MACHINE for each in run.results)
        # a run that counted devices and lists none has lost all of them
        and (bool(devices) or any(each.id == COUNT for each in run.results))
        and masked <= {Verdict.PASS},
    )


def fact_of(
    result: Result, run: Run, devices: Sequence[Device], known: dict[str | None, str] | None = None
) -> Fact:
    """What ``result`` of ``run``, which describes ``devices``, is about.

    ``known`` keeps the identities of the devices that the results of the run name.
    """
    info = run.info
    known = {} if known is None else known
    device = known.get(result.device)
    if device is None:
        device = _device_id(result.device, info.command, info.backend, devices)
        known[result.device] = device
    suite, area = result.origin
    seed = _seed(result, info.command) if suite == _DRAWS else ""
    return Fact(device, info.backend, info.target, suite, area, result.id, seed)


def wrong_value(result: Result, seed: str = "") -> bool:
    """Whether a failure is a value that was wrong without an error.

    Those are the checks of severity "wrong" that take the device out of use, and drawn programs.
    """
    if result.verdict is not Verdict.FAIL or severity_of(result).id != "wrong":
        return False
    return bool(seed) or action_of(result) >= Action.ISOLATE


def devices_of(entries: Sequence[Mapping[str, Any]], backend: str | None) -> Iterable[Device]:
    """The devices that objects of ``info --json`` describe."""
    for place, entry in enumerate(entries):
        parent = same_id(str(entry.get("parent") or ""))
        is_whole = not parent and "cpu" not in (entry.get("kind"), entry.get("vendor"))
        uuid, pci = (same_id(str(entry.get(key) or "")) for key in ("uuid", "pci"))
        index = entry.get("index", place if len(entries) > 1 else None)
        lasting = is_whole and bool(uuid or pci)
        named = f"{backend or ''}:{index}" if is_whole and index is not None else ""
        yield Device(
            id=(uuid or pci) if lasting else named,
            pci=pci,
            vendor=str(entry.get("vendor") or ""),
            number=index,
            lasting=lasting,
            parent=parent,
            is_whole=is_whole,
        )


def _device_id(
    name: str | None, command: Sequence[str], backend: str | None, devices: Sequence[Device]
) -> str:
    """The identity of the device that a result names; empty for the whole node."""
    lasting = [each for each in devices if each.lasting]
    asked = _option(command, "--index")
    if name is None and asked is not None:
        name = f"{backend or ''}:{asked}"
    found = _PLACE.fullmatch(name or "")
    number = None if found is None else int(found[1])
    only = lasting[0] if len(devices) == 1 and lasting else None
    unnamed = name in (None, backend)
    if only is not None and (unnamed or (number is not None and only.number in (None, number))):
        return only.id
    if unnamed or (len(devices) < 2 and not lasting and number == 0):
        # one device whatever it is called; 0 is the default
        return ""
    by_name = same_id(str(name))
    for each in lasting:
        if each.number == number is not None or by_name in (each.id, each.pci):
            return each.id
    is_index = number is not None and backend is not None and not by_name.startswith("rank")
    return f"{backend}:{number}" if is_index else by_name


def _option(command: Sequence[str], name: str) -> str | None:
    """The value of an option in a command, in either of its forms."""
    for place, word in enumerate(command):
        if word == name and place + 1 < len(command):
            return command[place + 1]
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
    return None


def _seed(result: Result, command: Sequence[str]) -> str:
    """The seed from which a result's programs were drawn; empty where none were."""
    if (stated := result.extra.get("seed")) is not None and "case" in result.extra:
        return str(stated)
    observed = result.extra.get("observed", ())
    if isinstance(observed, list) and (found := _SEED.search(" ".join(map(str, observed)))):
        return found[1]
    # a result without its case does not say whether programs were drawn
    return "" if "case" in result.extra else _option(command, "--seed") or ""

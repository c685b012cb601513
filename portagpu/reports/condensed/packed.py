"""Condensed results as a store keeps them, so that a report of many nodes reads no result again.

Nodes of a fleet ran the same checks: what they have in common, the ``form``, is kept once. Each run
has its own names, failures and numbers. Facts are made when somebody asks for them: a node with one
run needs its statements alone.
"""

from __future__ import annotations

import json
import os
import sys
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from portagpu._version import __version__
from portagpu.base.documents import encode
from portagpu.reports.condensed.nodes import (
    HEAD_BYTES,
    Failure,
    MeasureId,
    NodeRun,
    made_measures,
    mark_of,
    place_of,
)
from portagpu.runs.ledger import Account, Device, Fact, LateStatements, Owner, Statement
from portagpu.runs.results.verdicts import Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from portagpu.reports.condensed.nodes import Layout

MADE_BY: Final = f"1 {__version__}"
"""The first line of a form: another version of portagpu may condense otherwise."""
_FLAGS: Final = ("replayed", "interrupted", "broken", "strict", "lists_all")


class Packed(NamedTuple):
    """A condensed run: ``form`` may be that of many, ``own`` is JSON, ``numbers`` are columns."""

    form: bytes
    own: bytes
    numbers: bytes


def pack(run: NodeRun) -> Packed:
    """The run without its file and its owner, of whom the host alone is kept."""
    account = run.account
    names: dict[str, int] = {}
    stated: dict[Statement, int] = {}

    def place(text: str) -> int:
        return names.setdefault(text, len(names))

    facts = [
        [
            place(fact.device),
            fact.suite,
            fact.area,
            fact.id,
            place(fact.seed),
            stated.setdefault(statement, len(stated)),
        ]
        for fact, statement in account.statements.items()
    ]
    first = next(iter(account.statements), None)
    places = {fact: number for number, fact in enumerate(account.statements)}
    form = {
        "hardware": run.hardware,
        "verdict": run.verdict,
        "action": run.action,
        "versions": dict(run.versions),
        "backend": account.backend,
        "target": first.target if first is not None else None,
        "flags": [getattr(account, each) for each in _FLAGS],
        "stated": [[each.verdict, *each.gate, each.wrong] for each in stated],
        "facts": facts,
        "layout": [[*what, device, unit] for what, device, unit in run.measures.layout],
    }
    own = [
        account.run,
        account.at_s,
        run.started,
        run.owner.host,
        list(names),
        [list(each) for each in account.devices],
        encode(run.failure),
        [[places[fact], encode(each)] for fact, each in run.failures.items()],
    ]
    columns = [_little(run.measures.values), _little(run.measures.spreads)]
    head = f"{MADE_BY}\n".encode()
    return Packed(head + _json(form), _json(own), b"".join(columns))


class Unpacker:
    """Reads packed runs; each form once."""

    def __init__(self) -> None:
        self._forms: dict[bytes, _Form | None] = {}

    def read(self, packed: Packed, path: Path) -> NodeRun | None:
        """The run, as the file at ``path`` gives it; None where another version packed it.

        Raises ValueError, LookupError or TypeError for what :func:`pack` does not make.
        """
        if packed.form not in self._forms:
            self._forms[packed.form] = _form(packed.form)
        form = self._forms[packed.form]
        return None if form is None else form.run(packed, path)


class KnownFiles:
    """Files whose runs are packed somewhere, by their marks (``mark_of``).

    A file with the size and the beginning of one of them is taken for it, and not read further.
    """

    def __init__(self, packed: Mapping[str, Packed]) -> None:
        self._packed = packed
        self._unpacker = Unpacker()

    def __call__(self, path: Path) -> NodeRun | None:
        """The run of a file; None where it is not one of them, or cannot be read."""
        try:
            with path.open("rb", buffering=0) as file:
                mark = mark_of(file.read(HEAD_BYTES), os.fstat(file.fileno()).st_size)
        except OSError:
            return None
        packed = self._packed.get(mark)
        return None if packed is None else self._unpacker.read(packed, path)


@dataclass(frozen=True, slots=True)
class _Form:
    """What runs have in common."""

    hardware: str
    verdict: Verdict
    action: str
    versions: Mapping[str, str | None]
    backend: str | None
    target: str | None
    flags: Mapping[str, bool]
    stated: tuple[Statement, ...]
    facts: Sequence[tuple[int, str, str, str, int, int]]
    layout: Layout

    def run(self, packed: Packed, path: Path) -> NodeRun:
        run, at_s, started, host, names, devices, failure, failures = json.loads(packed.own)
        half = len(packed.numbers) // 2
        values, spreads = array("d"), array("d")
        values.frombytes(packed.numbers[:half])
        spreads.frombytes(packed.numbers[half:])
        if len(values) != len(self.layout):
            raise ValueError("has other numbers than measures")
        account = Account(
            run=run,
            at_s=at_s,
            backend=self.backend,
            statements=LateStatements(self.stated, lambda: self._statements(names)),
            devices=tuple(Device(*each) for each in devices),
            **self.flags,
        )
        return NodeRun(
            path=path,
            owner=Owner("", host, place_of(path)),
            started=started,
            hardware=self.hardware,
            verdict=self.verdict,
            failure=None if failure is None else Failure(**failure),
            action=self.action,
            versions=self.versions,
            account=account,
            failures={self._fact(at, names): Failure(**each) for at, each in failures},
            measures=made_measures(self.layout, _little(values), _little(spreads)),
        )

    def _fact(self, at: int, names: Sequence[str]) -> Fact:
        device, suite, area, id_, seed, _ = self.facts[at]
        return Fact(names[device], self.backend, self.target, suite, area, id_, names[seed])

    def _statements(self, names: Sequence[str]) -> dict[Fact, Statement]:
        return {self._fact(at, names): self.stated[each[-1]] for at, each in enumerate(self.facts)}


def _form(data: bytes) -> _Form | None:
    made_by, _, text = data.partition(b"\n")
    if made_by != MADE_BY.encode():
        return None
    read: dict[str, Any] = json.loads(text)
    read["verdict"] = Verdict(read["verdict"])
    read["flags"] = dict(zip(_FLAGS, read["flags"], strict=True))
    read["stated"] = tuple(
        Statement(Verdict(verdict), (suite, area), wrong)
        for verdict, suite, area, wrong in read["stated"]
    )
    read["layout"] = tuple(
        (MeasureId(id_, shape), device, unit) for id_, shape, device, unit in read["layout"]
    )
    return _Form(**read)


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def _little(column: array[float]) -> array[float]:
    """The column as a little-endian machine has it."""
    if sys.byteorder == "big":
        column = column[:]
        column.byteswap()
    return column

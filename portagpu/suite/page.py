"""The page that lists the suite: every case with its sentence, and the cases for every trap.

``python -m portagpu.suite.page > docs/cases.md`` writes it; a test fails when it is out of date.
"""

from __future__ import annotations

import sys
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from portagpu.paths import matrix_dir
from portagpu.suite.case_ids import base_id, retired_cases
from portagpu.suite.cases import AREAS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from portagpu.suite.messages import ListedCase

_HEAD: Final = """\
# The cases

Written by `python -m portagpu.suite.page > docs/cases.md`.
[conformance.md](conformance.md) says what a verdict means and how a case is added.
"""
_TRAPS: Final = """
## Traps

What is known to go wrong between vendors, where it can be seen, and the cases that look for it.
Those seen in a program's text alone ("source") are not for a suite that runs. Where the answer is
the same on every machine, a test of this package looks for the trap.

| trap | about | seen on | cases | tests |
|---|---|---|---|---|
"""


@dataclass(frozen=True, slots=True)
class Trap:
    """A known difference between vendors; ``on`` is where a case can observe it."""

    id: str
    about: str
    on: tuple[str, ...]


def traps(folder: Path | None = None) -> tuple[Trap, ...]:
    """The known traps, of the suite or of the case files in ``folder``."""
    file = (folder or matrix_dir() / "conformance") / "traps.toml"
    rows = tomllib.loads(file.read_text(encoding="utf-8"))
    return tuple(Trap(name, row["about"], tuple(row["on"])) for name, row in rows.items())


def page(cases: Sequence[ListedCase], known: Iterable[Trap]) -> str:
    """The page about these cases, in Markdown."""
    functions: dict[str, list[ListedCase]] = {}
    for each in cases:
        functions.setdefault(base_id(each.id), []).append(each)
    found = [_HEAD, _summary(functions)]
    for area in AREAS:
        mine = {name: forms for name, forms in functions.items() if forms[0].area == area}
        if mine:
            found.append(f"\n## {area}\n\n{_area(mine)}")
    found.append(_TRAPS + "".join(_trap_row(trap, functions) for trap in known))
    return "".join(found)


def _summary(functions: dict[str, list[ListedCase]]) -> str:
    total = sum(len(forms) for forms in functions.values())
    rows = [f"| all | {len(functions)} | {total} |\n"]
    for area in AREAS:
        forms = [forms for forms in functions.values() if forms[0].area == area]
        if forms:
            rows.append(f"| {area} | {len(forms)} | {sum(map(len, forms))} |\n")
    return "\n| area | cases | with their parameters |\n|---|---|---|\n" + "".join(rows)


def _area(functions: dict[str, list[ListedCase]]) -> str:
    head = ("case", "forms", "says", "needs", "outcome", "earns", "traps")
    rows = [f"| {' | '.join(head)} |\n|{'---|' * len(head)}\n"]
    for name, forms in functions.items():
        first = forms[0]
        cells = (
            f"`{name.partition('/')[2]}`",
            str(len(forms)),
            _cell(first.spec),
            ", ".join(first.capability),
            _cell(first.outcome),
            str(first.evidence or "nothing"),
            ", ".join(first.traps),
        )
        rows.append(f"| {' | '.join(cells)} |\n")
    return "".join(rows)


def _trap_row(trap: Trap, functions: dict[str, list[ListedCase]]) -> str:
    names = [f"`{name}`" for name, forms in functions.items() if trap.id in forms[0].traps]
    tests = [f"`{each.test}`" for each in retired_cases().values() if trap.id in each.traps]
    cells = (trap.id, _cell(trap.about), ", ".join(trap.on), ", ".join(names), ", ".join(tests))
    return f"| {' | '.join(cells)} |\n"


def _cell(text: str) -> str:
    """``text`` inside a table of Markdown."""
    return text.replace("|", "\\|").replace("*", "\\*").replace("_", "\\_")


if __name__ == "__main__":
    from portagpu.suite import list_cases

    sys.stdout.write(page(list_cases(), traps()))

"""The part of docs/health.md that maps others' expectations of a node to the checks here."""

from __future__ import annotations

import tomllib
from typing import Any, Final

from tests.conftest import ROOT

DATA: Final = ROOT / "tests/support/health_expectations.toml"
VENDORS: Final = ("nvidia", "amd")
_HEAD: Final = """\

The rows are in `tests/support/health_expectations.toml`.

Four lists say what a GPU node should pass: ClusterMAX's health checks, NVIDIA's DCGM diagnostics,
AMD's RVS, and AMD's system acceptance. This page maps each of their items to the checks here, for
both vendors. It is a map and no certificate: **no GPU has run PortaGPU yet**, and a vendor's own
tool tests its hardware more deeply. Run it as well.

| word | meaning |
|---|---|
| recorded | each of the checks judged published output of machines of that vendor |
| partly recorded | some of them did; the others are as in the next row |
| asked | they ask or load the device itself; no machine of that vendor has run them or was read |
| not covered | there is no such check |

Ids are those of [when a check fails](when-it-fails.md) and [performance](performance.md). A check
may ask for less than the item next to it; the last column says what is missing. Which
figures judge is in [targets](targets.md#what-a-figure-judges).
"""


def read_data() -> dict[str, Any]:
    return tomllib.loads(DATA.read_text("utf-8"))


def status(checks: list[str], recorded: list[str]) -> str:
    """The word of a row for one vendor, whose checks with a recording are ``recorded``."""
    if not checks:
        return "not covered"
    found = [each for each in checks if each in recorded]
    if not found:
        return "asked"
    return "recorded" if found == checks else "partly recorded"


def expectations_table() -> str:
    """docs/health.md: the lists of others, item by item."""
    data = read_data()
    parts = [_HEAD]
    for group in data["lists"]:
        rows = [
            "| expected | checks | NVIDIA | AMD | missing |",
            "|---|---|---|---|---|",
        ]
        for row in group["rows"]:
            checks = row["checks"]
            words = [status(checks, data["recorded"][vendor]) for vendor in VENDORS]
            ids = ", ".join(f"`{each}`" for each in checks) or "none"
            rows.append(
                f"| {row['expected']} | {ids} | {' | '.join(words)} | {row.get('missing', '')} |"
            )
        parts.append(f"### {group['title']}\n\n{group['source']}\n\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)

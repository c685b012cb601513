"""``python -m portagpu.doctor.page`` prints the table of all findings in docs/collectives.md."""

from __future__ import annotations

import sys

from portagpu.doctor.findings import known_findings


def page_table() -> str:
    """The table of all findings, in Markdown."""
    rows = ["| finding | verdict | means | usual cause | remedy |", "|---|---|---|---|---|"]
    rows += [
        f"| `{each.id}` | {each.verdict} | {each.means} | {each.cause} | {each.remedy} |"
        for each in known_findings().values()
    ]
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page_table())

"""The page that lists the faults which tests seed, and the case that catches each.

``python -m tests.faults_page > docs/faults.md`` writes it anew; a test says when that is due.
"""

from __future__ import annotations

import sys

from tests import broken_collectives, suite_patches, test_suite_faults

_HEAD = """\
# What the suite catches

Written by `python -m tests.faults_page > docs/faults.md`. Each fault is seeded into a good backend
or beside it, and the named case fails with a sentence that fits; without the fault it passes.
"""


def faults() -> dict[str, dict[str, str]]:
    """The case for every fault, by what is broken."""
    return {
        "A backend that": {name: row[2] for name, row in test_suite_faults.FAULTS.items()},
        "Software beside the device that": {
            name: patch.case for name, patch in suite_patches.PATCHES.items()
        },
        "A communication library that": {
            name: row[0] for name, row in broken_collectives.FAULTS.items()
        },
    }


def page() -> str:
    """The page in Markdown."""
    found = faults()
    text = f"{_HEAD}\n{sum(map(len, found.values()))} faults.\n"
    for heading, rows in found.items():
        text += f"\n## {heading}\n\n| fault | case |\n|---|---|\n"
        text += "".join(f"| {name} | `{case}` |\n" for name, case in rows.items())
    return text


if __name__ == "__main__":
    sys.stdout.write(page())

"""``python -m portagpu.reports.bundles FILE ...`` validates bundles.

``--table DIR`` prints the badges of those in a folder.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from portagpu.base.errors import BundleError
from portagpu.base.text import one_line
from portagpu.reports.bundles import read_bundle, table
from portagpu.reports.bundles.badges import unearned_ids

if TYPE_CHECKING:
    from collections.abc import Callable


def main(arguments: list[str]) -> int:
    """Say for each file that it is valid, or in one line what is wrong; 0, 1 or 2 (usage)."""
    options = [each for each in arguments if each.startswith("-") and each != "--table"]
    if not arguments or options or ("--table" in arguments and len(arguments) != 2):
        print(
            "usage: python -P -m portagpu.reports.bundles FILE ... | --table DIR", file=sys.stderr
        )
        return 2
    if arguments[0] == "--table":
        return _say(partial(table, Path(arguments[1])))
    return max(_say(partial(_valid, name)) for name in arguments)


def _valid(name: str) -> str:
    bundle = read_bundle(name)
    result, unearned = bundle["result"], unearned_ids(bundle)
    ran = f"{result['run']['target']}, {result['verdict']}, {len(result['results'])} results"
    if unearned:
        more = f" and {len(unearned) - 1} more" if unearned[1:] else ""
        ran += f"; evidence is stated that earns no badge: {one_line(unearned[0])}{more}"
    return f"{one_line(name)}: valid, {ran}"


def _say(sentence: Callable[[], str]) -> int:
    try:
        print(sentence())
    except BundleError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

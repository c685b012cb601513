"""``python -m portagpu.target FILE ...``: check target files while they are written."""

from __future__ import annotations

import sys
from pathlib import Path

from portagpu.errors import TargetError
from portagpu.target import parse_target
from portagpu.text import printable


def main(arguments: list[str]) -> int:
    """Say for each file that it is a target, or in one line what is wrong; 0, 1 or 2 (usage)."""
    if not arguments:
        print("usage: python -m portagpu.target FILE ...", file=sys.stderr)
        return 2
    wrong = 0
    for name in arguments:
        try:
            target = parse_target(Path(name))
        except TargetError as error:
            wrong = 1
            print(printable(str(error)), file=sys.stderr)
        else:
            print(printable(f"{name}: {target.id}, {len(target.facts)} facts"))
    return wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

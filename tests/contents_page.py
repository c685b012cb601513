"""What a whole installation holds: ``python -m tests.contents_page > matrix/contents.toml``."""

from __future__ import annotations

import sys
from collections import Counter

from portagpu.bringup import load_gates
from portagpu.contents import SCHEMA
from portagpu.suite import list_cases


def contents_page() -> str:
    """``matrix/contents.toml`` for the gates and cases that are here."""
    gates = "".join(f'  "{gate.id}",\n' for gate in load_gates())
    counted = Counter(case.area for case in list_cases())
    cases = "".join(f"{area} = {count}\n" for area, count in counted.items())
    head = "# What a whole installation holds: the gates of a bring-up, and the cases of each area."
    again = "# Written by python -m tests.contents_page > matrix/contents.toml"
    return f'{head}\n{again}\nschema = "{SCHEMA}"\ngates = [\n{gates}]\n\n[conformance]\n{cases}'


if __name__ == "__main__":
    sys.stdout.write(contents_page())

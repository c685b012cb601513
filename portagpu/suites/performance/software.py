"""Whether the software here is what an expectation was obtained with."""

from __future__ import annotations

import re
from itertools import zip_longest
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from portagpu.facts.targets import Expectation


def other_software(expectation: Expectation, versions: Mapping[str, str | None]) -> str:
    """In what the software here differs from the expectation's; empty where it does not."""
    for name, range_ in expectation.software:
        version = versions.get(name)
        if version is None:
            return f"it was obtained with {name} {range_}, and the version here is unknown"
        if not within(version, range_):
            return f"it was obtained with {name} {range_}, and here is {version}"
    return ""


def within(version: str, specifier: str) -> bool:
    """Whether ``version`` ("2.13.0+cpu") is in ``specifier`` (">=2.9,<3", "==6.3.*").

    Compares the numbers of the release only, with zeros for those that are missing.
    """
    release = _release(version)
    for part in specifier.split(","):
        match = re.fullmatch(r"\s*(==|!=|>=|<=|>|<)\s*([\d.]+?)(\.\*)?\s*", part)
        if match is None or not release:
            return False
        wanted = _release(match[2])
        here = release[: len(wanted)] if match[3] else release
        if not _HOLDS[match[1]](_compare_versions(here, wanted)):
            return False
    return True


_HOLDS: Final = {
    "==": lambda order: order == 0,
    "!=": lambda order: order != 0,
    ">=": lambda order: order >= 0,
    "<=": lambda order: order <= 0,
    ">": lambda order: order > 0,
    "<": lambda order: order < 0,
}


def _release(version: str) -> tuple[int, ...]:
    match = re.match(r"v?(\d+(?:\.\d+)*)", version.strip())
    return tuple(int(part) for part in match[1].split(".")) if match else ()


def _compare_versions(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    pairs = list(zip_longest(one, other, fillvalue=0))
    left, right = [a for a, _ in pairs], [b for _, b in pairs]
    return (left > right) - (left < right)

"""How the patterns are found whose growth tests/deep measures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.support.regex_growth import hidden, patterns

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType


def test_patterns_are_found_wherever_a_module_has_them(
    stand_in: Callable[[str, str], None],
) -> None:
    stand_in("module_of_patterns", SOURCE)
    from importlib import import_module

    module: ModuleType = import_module("module_of_patterns")
    assert {pattern.pattern for _, pattern in patterns(module)} == {"one", "two", "three", "four"}
    assert len(list(hidden(module))) == 1


SOURCE: Final = """
import re
ONE = re.compile("one")
PAIRS = (("kind", re.compile("two")), [re.compile("three")])
TABLE = {"a": re.compile("four")}
def looks(text):
    return re.search("five", text)
"""

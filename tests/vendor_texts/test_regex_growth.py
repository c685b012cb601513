"""Every pattern that meets a stranger's text takes time that grows as the text does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.support.regex_growth import grows, hidden, patterns

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType


def test_work_that_only_long_texts_get_does_not_grow() -> None:
    slow_from = 3000

    def work(text: str) -> None:
        for _ in range(1_000_000 if len(text) > slow_from else 0):
            pass

    assert grows(work, "a", 1000, step=50)[1] == {}


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

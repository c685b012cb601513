"""The line of progress that verbs show on a terminal."""

from __future__ import annotations

import io

import pytest

pytest.importorskip("rich")

from rich.console import Console

from portagpu.cli._running import Progress


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("precision/cast[float16]", "3/7 precision/cast[float16]"),
        ("a[/b]", "3/7 a[/b]"),
        ("a\x9b31m\u202eb", "3/7 a 31m b"),
    ],
)
def test_the_name_of_a_case_is_shown_as_it_is(name: str, shown: str) -> None:
    written = io.StringIO()
    with Progress(Console(file=written, force_terminal=True, width=80)) as progress:
        progress.show(name, 3, 7)
    assert shown in written.getvalue()

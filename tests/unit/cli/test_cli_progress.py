"""The line of progress that verbs show on a terminal."""

from __future__ import annotations

import io

import pytest

pytest.importorskip("rich")

from rich.console import Console

from portagpu.cli import _run_output
from portagpu.runs.results.run import new_run


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("precision/cast[float16]", "3/7 precision/cast[float16]"),
        ("a[/b]", "3/7 a[/b]"),
        ("a\x9b31m\u202eb", "3/7 a 31m b"),
    ],
)
def test_the_name_of_a_case_is_shown_as_it_is(
    name: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = io.StringIO()
    console = Console(file=written, force_terminal=True, width=80)
    monkeypatch.setattr(_run_output, "live_console", lambda stream: console)
    view = _run_output.View(_run_output.Files())
    view.begin(new_run())
    view.item_begins(name, 3, 7)
    view.end()
    assert shown in written.getvalue()

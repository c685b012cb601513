"""The examples of docs/planning.md run, and its tables are of the rules that there are."""

from __future__ import annotations

import re

import pytest

from portagpu.cli import main
from tests.pages.test_planning_page import PAGE

CONSOLES = re.findall(r"```console\n\$ portagpu (.*?)\n(.*?)```", PAGE, re.DOTALL)


EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(("command", "shown"), CONSOLES, ids=["one target", "several"])
def test_a_command_prints_what_the_page_shows(
    command: str, shown: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(command.split()) == 0
    said = [" ".join(line.split()) for line in capfd.readouterr().out.splitlines()]
    for line in shown.splitlines():
        assert line == "..." or " ".join(line.split()) in said


@pytest.mark.parametrize("code", EXAMPLES, ids=["estimate", "track", "plan"])
def test_an_example_runs(code: str) -> None:
    if "torch" in code:
        pytest.importorskip("torch")
    exec(compile(code, "docs/planning.md", "exec"), {})

"""The examples of docs/planning.md run, and its tables are of the rules that there are."""

from __future__ import annotations

import re

import pytest

from portagpu.cli import main
from portagpu.train.planning.plans import MEMORY, RULES
from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "planning.md").read_text("utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
CONSOLES = re.findall(r"```console\n\$ portagpu (.*?)\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("code", EXAMPLES, ids=["estimate", "track", "plan"])
def test_an_example_runs(code: str) -> None:
    if "torch" in code:
        pytest.importorskip("torch")
    exec(compile(code, "docs/planning.md", "exec"), {})


@pytest.mark.parametrize(("command", "shown"), CONSOLES, ids=["one target", "several"])
def test_a_command_prints_what_the_page_shows(
    command: str, shown: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(command.split()) == 0
    said = [" ".join(line.split()) for line in capfd.readouterr().out.splitlines()]
    for line in shown.splitlines():
        assert line == "..." or " ".join(line.split()) in said


def test_every_rule_is_on_the_page() -> None:
    rows = re.findall(r"^\| (`[^|]*`) \| [^|]* \|$", PAGE.partition("| rule |")[2], re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`([\w-]+)`", row)}
    assert named == {*RULES, MEMORY}

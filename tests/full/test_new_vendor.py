"""A vendor of which no file of the project knows: a distribution brings all there is of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.process.test_new_vendor import _info
from tests.process.test_new_vendor import acme as acme
from tests.process.test_new_vendor import read as read

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.forked_verbs import ForkedVerbs


TAKES = "matches = lambda text: text.startswith('aaa')\n"

RETURNS = (
    "from portagpu.facts.readings import *\nfrom portagpu.facts.formats import Shape\nimport re\n"
    + TAKES
)


def test_its_tool_is_recorded_and_replayed(verbs: ForkedVerbs, acme: Path, tmp_path: Path) -> None:
    recording = tmp_path / "recording"
    verbs("record", str(recording), path=[acme]).ok()
    printed = [file.read_text("utf-8") for file in recording.glob("outputs/*.txt")]
    assert any(text.startswith("acme-smi: ") for text in printed), f"recorded are {printed}"
    replayed = _info(verbs, acme, "--replay", str(recording))
    boards = [each["target"] for each in replayed["devices"] if each["vendor"] == "acme"]
    assert boards == ["acme-one"] * 2


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise SystemExit(3)", "raised SystemExit: 3"),
        ("raise KeyboardInterrupt", "raised KeyboardInterrupt"),
        ("matches = lambda text: 1 / 0\nparse = len", "raised ZeroDivisionError: division by zero"),
        ("matches = lambda text: True", "is left out: it needs matches and parse"),
        ("matches = parse = len", "raised TypeError: parse gave a int instead of portagpu"),
        (TAKES + "import time\nparse = lambda text: time.sleep(9)", "did not answer within 0.5 s"),
        (
            RETURNS + "parse = lambda text: Findings(kind='aaa', readings=(5,))",
            "raised ValueError: parse gave findings.readings[0]: must be an object with keys",
        ),
        (
            RETURNS + "parse = lambda text: Findings(kind='aaa', problems=('a\\nb',))",
            "parse gave findings.problems[0]: must be text of one line",
        ),
        (
            RETURNS + "parse = len\nSHAPES = (5,)",
            "its SHAPES are not a tuple of portagpu.facts.formats.Shape",
        ),
        (RETURNS + "parse = len\nSHAPES = (Shape('a', 'b'),)", "a pattern that is not compiled"),
        (
            RETURNS + "parse = len\nSHAPES = (Shape('(a)', re.compile('b')),)",
            "'(a)' must have no groups that capture",
        ),
        (RETURNS + "parse = len\nSHAPES = (Shape('.*', re.compile('b')),)", "fits any text"),
        (RETURNS + "parse = len\nROOT = '['", "'[' is not a regular expression"),
    ],
)
def test_a_broken_reader_is_named_with_its_distribution(
    read: Callable[[str, str], str], code: str, said: str
) -> None:
    found = read(code, "aaa 1")
    assert said in found
    assert "aaa.aaa of aaa-dist" in found
    assert found.count("\n") == 1

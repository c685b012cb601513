"""``portagpu docs``: what an error names can be read where portagpu is installed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from portagpu.cli._verbs import GROUPS, VERBS
from tests.conftest import ROOT

if TYPE_CHECKING:
    from tests.support.forked_verbs import ForkedVerbs


def test_every_page_is_listed_with_its_title(verbs: ForkedVerbs) -> None:
    lines = verbs("docs").ok().splitlines()
    listed = dict(line.split(maxsplit=1) for line in lines)
    assert {path.stem for path in (ROOT / "docs").glob("*.md")} <= set(listed)
    assert listed["bringup"] == "Bring-up"


@pytest.mark.parametrize("words", ["health", "health.md", "docs/health.md"])
def test_a_page_is_printed_as_it_is(verbs: ForkedVerbs, words: str) -> None:
    assert verbs("docs", words).ok().rstrip() == (ROOT / "docs/health.md").read_text().rstrip()


def test_a_section_is_printed_alone(verbs: ForkedVerbs) -> None:
    lines = verbs("docs", "docs/health.md#actions").ok().splitlines()
    assert lines[0] == "## Actions"
    assert not [line for line in lines[1:] if line.startswith("## ")]
    assert len(lines) > 5


@pytest.mark.parametrize(
    ("words", "said"), [("helth", "did you mean 'health'?"), ("health#acton", "'actions'")]
)
def test_a_page_that_is_not_there_is_one_line_with_the_closest(
    verbs: ForkedVerbs, words: str, said: str
) -> None:
    ended = verbs("docs", words)
    assert ended.code == 2
    assert said in ended.err.splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("identity/count", "find the missing one with lspci and dmesg"),
        ("versions/left-out", "the run is partial"),
    ],
)
def test_the_id_of_a_check_is_explained(verbs: ForkedVerbs, words: str, said: str) -> None:
    lines = verbs("docs", words).ok().splitlines()
    assert lines[0].startswith(f"{words} of bringup: ")
    assert said in "\n".join(lines)
    page = (ROOT / "docs/when-it-fails.md").read_text("utf-8")
    assert lines[2].removeprefix("  next: ") in page, "the page says the same"


def test_an_id_that_no_check_has_is_one_line(verbs: ForkedVerbs) -> None:
    ended = verbs("docs", "no/such-check")
    assert (ended.code, ended.err.count("\n")) == (2, 1)


def test_every_page_that_the_product_names_is_there(verbs: ForkedVerbs) -> None:
    named = {
        page
        for folder in ("portagpu", "backends")
        for path in (ROOT / folder).rglob("*.*")
        if path.suffix in (".py", ".toml")
        for page in re.findall(r"(?<![\w/])docs/((?:book/)?[\w-]+)\.md", path.read_text("utf-8"))
    }
    assert len(named) > 10
    named.discard("composability")  # a page of torchtitan's
    missing = sorted(each for each in named if not (ROOT / f"docs/{each}.md").is_file())
    assert not missing


def test_the_groups_of_the_help_have_every_verb_once(verbs: ForkedVerbs) -> None:
    listed = [name for names in GROUPS.values() for name in names]
    assert sorted(listed) == sorted(VERBS)
    helped = verbs("--help").ok()
    assert [title for title in GROUPS if f"\n{title}:\n" in helped] == list(GROUPS)

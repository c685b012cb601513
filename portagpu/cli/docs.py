"""``portagpu docs``: the pages that errors and reports name."""

from __future__ import annotations

import re
import sys
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

import click

from portagpu._version import ADDRESS
from portagpu.base.paths import docs_dir
from portagpu.base.text import did_you_mean
from portagpu.cli._common import print_lines, terminal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_FENCE: Final = "```"
_MAX_SECTIONS: Final = 3


@click.command()
@click.argument("page", required=False, metavar="[PAGE[#SECTION]|ID]")
def docs(page: str | None) -> None:
    """Print a page of the documentation, or a section of one; without PAGE, list the pages.

    PAGE is written as an error names it, such as docs/health.md#actions, or in short: health. With
    the ID of a check, such as identity/count, print what its failure means and what to do.
    """
    pages = {path.stem: path for path in sorted(docs_dir().rglob("*.md"))}
    if page is None:
        width = max(map(len, pages))
        print_lines(
            [
                *(f"{name:<{width}}  {_title(path)}" for name, path in pages.items()),
                *([f"also at {ADDRESS}"] if ADDRESS else []),
            ],
            sys.stdout,
        )
        return
    place, _, section = page.partition("#")
    name = PurePosixPath(place).name.removesuffix(".md")
    if name not in pages and (lines := _check_lines(page)):
        print_lines(lines, sys.stdout)
        return
    if name not in pages:
        offer = _sections_about(name, pages) or did_you_mean(
            name, pages, "'portagpu docs' lists the pages"
        )
        no = (
            f"no page {name!r}"
            if place.endswith(".md") or "/" not in page
            else f"no page and no check {page!r}"
        )
        raise click.UsageError(f"there is {no}: {offer}")
    text = pages[name].read_text("utf-8")
    if section:
        text = _section(text, section, name)
    console = terminal()
    if console is None:
        click.echo(text.rstrip())
    else:
        from rich.markdown import Markdown

        console.print(Markdown(text, hyperlinks=False))


def _check_lines(identifier: str) -> list[str]:
    """What the failure of a check means and what to do; empty for what no check is called."""
    if "/" not in identifier:
        return []
    from portagpu.runs.results.advice import checks, find_check

    suites = dict.fromkeys(each.suite for each in checks())
    found = {each: None for suite in suites if (each := find_check(suite, identifier)) is not None}
    exact = [each for each in found if identifier in each.ids]
    lines = [
        line
        for each in exact or found
        for line in (
            f"{identifier} of {each.suite}: {each.means}",
            f"  a failure is: {each.severity.title}; action {each.action}",
            f"  next: {each.do}",
        )
    ]
    return [*lines, "'portagpu docs when-it-fails' has all checks and actions"] if lines else []


def _sections_about(word: str, pages: Mapping[str, Path]) -> str:
    """The sections whose heading has the word, for the page that somebody looked for."""
    wanted = "-".join(re.findall(r"\w+", word.lower()))
    found = [
        f"'portagpu docs {name}#{anchor}'"
        for name, path in pages.items()
        for _, level, anchor in _headings(path.read_text("utf-8").splitlines())
        if wanted and level > 1 and f"-{wanted}-" in f"-{anchor}-"
    ]
    return f"see {' or '.join(found[:_MAX_SECTIONS])}" if found else ""


def _title(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        return next((line.removeprefix("# ").strip() for line in file if line.startswith("# ")), "")


def _section(text: str, anchor: str, name: str) -> str:
    """The part under the heading that a link with ``#anchor`` leads to."""
    lines = text.splitlines()
    headings = list(_headings(lines))
    at = next((each for each in headings if each[2] == anchor), None)
    if at is None:
        offer = did_you_mean(anchor, [each[2] for each in headings], "leave the section out", 3)
        raise click.UsageError(f"the page {name} has no section {anchor!r}: {offer}")
    first, level, _ = at
    last = (number for number, depth, _ in headings if number > first and depth <= level)
    return "\n".join(lines[first : next(last, len(lines))])


def _headings(lines: list[str]) -> Iterator[tuple[int, int, str]]:
    """Line number, level and anchor of each heading."""
    fenced = False
    for number, line in enumerate(lines):
        fenced ^= line.startswith(_FENCE)
        found = re.match(r"(#+) (.+)", line)
        if found and not fenced:
            plain = re.sub(r"[`*]|\[([^]]*)\]\([^)]*\)", r"\1", found[2]).strip().lower()
            yield number, len(found[1]), re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")

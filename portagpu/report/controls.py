"""What a script adds to a page: filters and search over the checks, and how the page holds it."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from portagpu.report.markup import Markup, tag

FACETS = ("verdict", "suite", "area", "target", "run", "device")
"""What can be chosen, in order; the script leaves out what all results share."""


@cache
def script() -> str:
    """The script of every report: ``filter.js``."""
    return files("portagpu.report").joinpath("filter.js").read_text("utf-8")


def filter_controls() -> Markup:
    """The controls above the checks; hidden until the script shows them.

    The script fills the lists, and says in the status how many results are left.
    """
    search = tag(
        "label",
        tag("span", "Search"),
        tag("input", type="search", name="q", placeholder="an id or a reason", autocomplete="off"),
    )
    lists = [
        tag("label", tag("span", name.capitalize()), tag("select", name=name)) for name in FACETS
    ]
    clear = tag("button", "Show all", type="button")
    status = tag("p", role="status", aria_live="polite")
    return tag(
        "div",
        search,
        *lists,
        clear,
        status,
        class_="filter card",
        role="search",
        aria_label="Filter the checks",
        hidden=True,
    )

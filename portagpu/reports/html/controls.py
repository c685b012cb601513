"""What a script adds to a page: filters and search over the checks, and how the page holds it."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from portagpu.reports.html.markup import Markup, tag

if TYPE_CHECKING:
    from collections.abc import Sequence

FACETS = ("verdict", "suite", "area", "target", "run", "device")
"""What can be chosen, in order; the script leaves out what all results share."""


@cache
def script() -> str:
    """The script of every report: ``filter.js``."""
    return _script("filter.js")


@cache
def fleet_script() -> str:
    """The script of a fleet's page: ``fleet.js`` has the rows of its nodes, for ``filter.js``."""
    return _script("fleet.js") + _script("filter.js")


def _script(name: str) -> str:
    return files("portagpu.reports.html").joinpath(name).read_text("utf-8")


def filter_controls(
    facets: Sequence[str] = FACETS,
    *,
    label: str = "Filter the checks",
    hint: str = "an id or a reason",
    noun: str = "results",
) -> Markup:
    """The controls above the checks, or above other rows; hidden until the script shows them.

    The script fills the lists, and says in the status how many results, or other ``noun``, are
    left.
    """
    search = tag(
        "label",
        tag("span", "Search"),
        tag("input", type="search", name="q", placeholder=hint, autocomplete="off"),
    )
    lists = [
        tag("label", tag("span", name.capitalize()), tag("select", name=name)) for name in facets
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
        aria_label=label,
        data_noun=noun,
        hidden=True,
    )

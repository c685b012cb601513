"""What all parts of a text say, as one, for tests that look for something in any of them."""

from __future__ import annotations

from portagpu.facts.formats.reader import UNREAD, read_text
from portagpu.facts.readings.model import Findings


def read_all(text: str) -> Findings:
    """The findings of every part put together, which no other than a test does."""
    found = read_text(text)
    return Findings(
        kind=", ".join(each.kind for each in found if each.kind != UNREAD),
        readings=tuple(reading for each in found for reading in each.readings),
        links=tuple(link for each in found for link in each.links),
        events=tuple(event for each in found for event in each.events),
        versions={name: value for each in found for name, value in each.versions.items()},
        taken=next((each.taken for each in found if each.taken), None),
        problems=tuple(problem for each in found for problem in each.problems),
        breaks_off=any(each.breaks_off for each in found),
    )

"""What installed distributions declare; one with damaged metadata hides no other."""

from __future__ import annotations

import importlib.metadata
import logging

_log = logging.getLogger("portagpu")
_reported: set[str] = set()


def entry_points(group: str) -> list[importlib.metadata.EntryPoint]:
    """The entry points of ``group``. Nothing is loaded.

    A distribution whose metadata cannot be read is reported once, as a warning, and left out.
    """
    try:
        return list(importlib.metadata.entry_points(group=group))
    except Exception as error:  # noqa: BLE001 - one damaged distribution makes the whole call raise
        _log.debug("reading distributions one by one: %s", error)
    found: list[importlib.metadata.EntryPoint] = []
    for distribution in importlib.metadata.distributions():
        try:
            found.extend(distribution.entry_points.select(group=group))
        except Exception as error:  # noqa: BLE001 - as above
            _report(str(getattr(distribution, "_path", "it")), error)
    return found


def _report(place: str, error: Exception) -> None:
    if place not in _reported:
        _reported.add(place)
        _log.warning(
            "the metadata of an installed distribution cannot be read (%s: %s) and is ignored: "
            "reinstall %s",
            type(error).__name__,
            error,
            place,
        )

"""What installed distributions declare; one with damaged metadata hides no other."""

from __future__ import annotations

import json
import logging
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_log = logging.getLogger("portagpu")
_reported: set[str] = set()


def entry_points(group: str) -> list[EntryPoint]:
    """The entry points of ``group``. Nothing is loaded.

    A distribution whose metadata cannot be read is reported once, as a warning, and left out.
    """
    # imports the email package too, and most calls of the command line need neither
    from importlib import metadata

    try:
        return list(metadata.entry_points(group=group))
    except Exception as error:  # noqa: BLE001 - one damaged distribution makes the whole call raise
        _log.debug("reading distributions one by one: %s", error)
    found: list[EntryPoint] = []
    for distribution in metadata.distributions():
        try:
            found.extend(distribution.entry_points.select(group=group))
        except Exception as error:  # noqa: BLE001 - as above
            _report(str(getattr(distribution, "_path", "it")), error)
    return found


def install(extra: str) -> str:
    """The command that installs what ``extra`` names beside this package, as it was installed.

    A folder is the user's own, and so its command is for that folder. Where pip took a package from
    is its ``direct_url.json``:
    https://packaging.python.org/en/latest/specifications/direct-url-data-structure.
    """
    origin = _origin()
    if origin is None:
        return f"pip install '.[{extra}]' (in the folder of portagpu's pyproject.toml)"
    url = str(origin.get("url", ""))
    if "dir_info" in origin:
        editable = "-e " if origin["dir_info"].get("editable") else ""
        where = "in the folder of portagpu's pyproject.toml"
        return f"pip install {editable}'.[{extra}]' ({where})"
    if "vcs_info" in origin:
        return f"pip install 'portagpu[{extra}] @ {origin['vcs_info'].get('vcs', 'git')}+{url}'"
    if url.startswith("file:"):
        return f"pip install '{PurePosixPath(url).name}[{extra}]' (in the folder of that file)"
    if url:
        return f"pip install 'portagpu[{extra}] @ {url}'"
    return f"pip install 'portagpu[{extra}]'"


def _origin() -> dict[str, Any] | None:
    """Where pip installed this package from: {} for an index, None if pip did not install it."""
    from importlib import metadata

    try:
        text = metadata.distribution("portagpu").read_text("direct_url.json")
        found = json.loads(text or "{}")
    except (metadata.PackageNotFoundError, OSError, ValueError):
        return None
    return found if isinstance(found, dict) else {}


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

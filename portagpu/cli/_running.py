"""What verbs that run a suite on a device share: checks of their options, and a progress line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from portagpu.text import printable

if TYPE_CHECKING:
    from rich.console import Console


def check_device(backend: str | None, index: int) -> None:
    """Raise UsageError for a device that the backend does not see.

    A name that no distribution declares raises UnknownBackend; a backend that is there and cannot
    be used raises BackendNotFound, with the reason.
    """
    from portagpu import registry
    from portagpu.sharing import shared_count

    name = registry.resolve(backend)
    count = registry.count(name)
    if registry.plugin(name).shared:
        count = max(count, shared_count())
    if index >= count:
        raise click.UsageError(
            f"the {name} backend has no device {index}: it sees {count}, numbered from 0"
        )


class Progress:
    """What is at hand, on the last line of a terminal; nothing anywhere else."""

    def __init__(self, console: Console | None) -> None:
        self._status: Any = None if console is None else console.status("starting")

    def __enter__(self) -> Progress:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._status is not None:
            self._status.stop()

    def show(self, name: str, number: int, total: int) -> None:
        """Say which of ``total`` begins."""
        if self._status is not None:
            from rich.text import Text

            # not as rich's markup, which ids with brackets look like
            self._status.update(Text(f"{number}/{total} {printable(name)}"))

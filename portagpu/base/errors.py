"""The exceptions of this package. A caller can act on each of them.

Each message is one line that says what was wrong and what to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class PortagpuError(Exception):
    """The base of every error that this package raises on purpose."""


class Unsupported(PortagpuError, NotImplementedError):
    """The device lacks the requested feature; its capabilities state this in advance."""


class BackendNotFound(PortagpuError, RuntimeError):
    """No backend can be opened.

    :param message: what could not be done, without the reasons.
    :param reasons: the name of every candidate, and why it was not chosen.
    """

    def __init__(self, message: str, reasons: Mapping[str, str] | None = None) -> None:
        self.reasons: dict[str, str] = dict(reasons or {})
        detail = "; ".join(f"{name}: {reason}" for name, reason in self.reasons.items())
        super().__init__(f"{message} ({detail})" if detail else message)


class UnknownBackend(BackendNotFound, LookupError):
    """No installed distribution declares a backend of that name; the message offers the closest."""


class TargetError(PortagpuError, ValueError):
    """A target's file is wrong; the message names file, key and rule."""


class TargetNotFound(PortagpuError, LookupError):
    """No target has that id; the message offers the closest ones."""


class LimitExceeded(PortagpuError, ValueError):
    """A request exceeds a limit of the hardware; the message names the limit and its source.

    ``limit`` is the fact's key ("exec.max_threads_per_block"), ``most`` its value and ``source``
    the ids of its sources.
    """

    def __init__(self, message: str, *, limit: str, most: int, source: tuple[str, ...]) -> None:
        super().__init__(message)
        self.limit = limit
        self.most = most
        self.source = source


class ResultError(PortagpuError, ValueError):
    """A result document does not follow its schema; the message names the key."""


class StoreError(PortagpuError, RuntimeError):
    """A store of runs cannot be read or written; nothing was left half-written."""


class StoreNotFound(StoreError, LookupError):
    """No store at this path, or the file there is not a store."""


class BundleError(ResultError):
    """A run gives no bundle, or a bundle is not valid; the message is one line that says why."""


class OutputError(PortagpuError, OSError):
    """A file could not be written; nothing was left half-written."""


class EmptyCapture(PortagpuError, RuntimeError):
    """A profiler ran and captured nothing; the message says why."""


class RecordingError(PortagpuError, ValueError):
    """A path is not a recording of a machine, or nothing in it can be read."""


class MissingDependency(PortagpuError, RuntimeError):
    """A dependency is not installed; the message says what to install."""


class CollectiveError(PortagpuError, RuntimeError):
    """Ranks could not join, or a collective of a checked group failed, which is of no use then."""


class CollectiveMismatch(CollectiveError):
    """The ranks of a group called different collectives; the message names both sides."""


class RankLost(CollectiveError):
    """A rank did not join, call a collective or come back from it, or ended before shutdown.

    :param message: one line that names the ranks, and the collective.
    :param ranks: the numbers of the lost ranks.
    """

    def __init__(self, message: str, ranks: tuple[int, ...]) -> None:
        self.ranks = ranks
        super().__init__(message)


class SilentCorruption(PortagpuError, RuntimeError):
    """A device computed a wrong result, or ranks that should hold the same bits do not.

    :param message: One line that says what is wrong and what to do.
    :param ranks: The ranks that it names.
    """

    def __init__(self, message: str, ranks: tuple[int, ...]) -> None:
        self.ranks = ranks
        super().__init__(message)

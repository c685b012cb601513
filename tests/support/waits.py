"""Waiting for what another process or thread does: the one place where tests sleep."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

MIN_S: Final = 60.0
"""A limit for what should never happen."""
LOST_S: Final = 5.0
"""A limit for what never ends, while others have to come: above what load delays those by."""
_PAUSE_S: Final = 0.01
_MAX_PAUSE_S: Final = 0.1

Found = TypeVar("Found")


def wait_until(
    condition: Callable[[], Found], what: str | Callable[[], str], limit_s: float = 2 * MIN_S
) -> Found:
    """Call ``condition`` until what it returns is true, and return that.

    Fails the test with ``what`` after ``limit_s``, which is ``MIN_S`` or more.
    """
    assert limit_s >= MIN_S, f"a limit of {limit_s:g} s depends on the load"
    until = time.monotonic() + limit_s
    pause_s = _PAUSE_S
    while not (found := condition()):
        assert time.monotonic() < until, what if isinstance(what, str) else what()
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _MAX_PAUSE_S)
    return found

"""Single keys of the terminal, which ``portagpu monitor`` reads while it waits for a look."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self


class Keys:
    """Gives each key to ``press``, which returns whether to go on waiting.

    Nothing is read where standard input is no terminal, or this process is not in its foreground.
    """

    def __init__(self, press: Callable[[str], bool]) -> None:
        self._press = press
        self._before: list[Any] | None = None
        self._terminal = -1

    @property
    def are_read(self) -> bool:
        """Whether there is a terminal whose keys are read."""
        return self._before is not None

    def __enter__(self) -> Self:
        import termios
        import tty

        with contextlib.suppress(OSError, ValueError, termios.error):
            terminal = sys.stdin.fileno()
            if os.isatty(terminal) and os.tcgetpgrp(terminal) == os.getpgrp():
                self._before, self._terminal = termios.tcgetattr(terminal), terminal
                # Ctrl-C stays a signal
                tty.setcbreak(terminal, termios.TCSANOW)
        return self

    def __exit__(self, *_: object) -> None:
        import termios

        if self._before is not None:
            with contextlib.suppress(OSError, termios.error):
                termios.tcsetattr(self._terminal, termios.TCSADRAIN, self._before)
            self._before = None

    def sleep(self, seconds: float) -> None:
        """Wait so long, or until a key ends the waiting."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if self._before is None or self._terminal < 0:
                time.sleep(left)
                return
            if not select.select([self._terminal], [], [], left)[0]:
                return
            typed = os.read(self._terminal, 64)
            if not typed:
                # the terminal was closed
                self._terminal = -1
                continue
            if not all(self._press(key) for key in typed.decode("ascii", "ignore")):
                return

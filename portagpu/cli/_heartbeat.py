"""How far long work is: in words, and as a line every few seconds where nothing can be redrawn."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

from portagpu.base.text import printable
from portagpu.base.units import duration
from portagpu.runs.results.verdicts import FAILING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from portagpu.runs.results.run import Result

EVERY_S: Final = 10.0
MIN_DONE: Final = 3
"""How many items must have ended before the time left is estimated from them."""
_KNOWN_SHARE: Final = 0.05


def left_words(seconds: float) -> str:
    """ "about 40 s left"."""
    whole = max(1, round(seconds))
    return f"about {f'{whole} s' if whole < 60 else duration(whole)} left"


class Pace:
    """Counts items and results of a run, and says how far it is."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        *,
        even: bool = True,
        lasts_s: float | None = None,
        usual_s: Sequence[float] = (),
    ) -> None:
        """The time left is known where the run ``lasts_s``, or its items take ``even`` times.

        A run that lasts longer is known by its items too.

        Items of other lengths may have those of another machine, ``usual_s``: how this one compares
        is known from the items that are over, once they are a twentieth of the work.
        """
        self._clock = clock
        self._usual_s = usual_s
        self._even = even
        self._lasts_s = lasts_s
        self._begun_s = self._item_begun_s = clock()
        self._item: tuple[str, int, int] | None = None
        self._bad: Counter[str] = Counter()

    def begin(self) -> None:
        """The first item is about to begin."""
        self._begun_s = self._clock()

    def item_begins(self, name: str, number: int, total: int) -> None:
        """Item ``number`` of ``total`` begins, counted from 1; a step of it may begin again."""
        if self._item is None or number != self._item[1]:
            self._item_begun_s = self._clock()
        self._item = (name, number, total)

    def result_added(self, result: Result) -> None:
        """There is one more result."""
        if result.verdict in FAILING:
            self._bad[str(result.verdict)] += 1

    def words(self) -> str:
        """ "12/80 gemm/bf16[4096], 1 FAIL, about 40 s left"; empty before the first item."""
        if self._item is None:
            return ""
        name, number, total = self._item
        parts = [f"{number}/{total} {printable(name)}"]
        parts += [f"{count} {verdict}" for verdict, count in self._bad.items()]
        parts.append(self.left_in_words())
        return ", ".join(filter(None, parts))

    def left_in_words(self) -> str:
        """ "about 40 s left"; empty where that is not known."""
        if self._item is None:
            return ""
        _, number, total = self._item
        left_s = self._left_s(number - 1, total)
        return "" if left_s is None else left_words(left_s)

    def _left_s(self, done: int, total: int) -> float | None:
        passed_s = self._clock() - self._begun_s
        if self._lasts_s is not None and passed_s < self._lasts_s:
            return self._lasts_s - passed_s
        if self._usual_s:
            over_s, all_s = sum(self._usual_s[:done]), sum(self._usual_s)
            if over_s < _KNOWN_SHARE * all_s:
                return None
            pace = (self._item_begun_s - self._begun_s) / over_s
            item_s = pace * self._usual_s[done] - (self._clock() - self._item_begun_s)
            return max(item_s, 0.0) + pace * sum(self._usual_s[done + 1 :])
        if not self._even or not MIN_DONE <= done < total:
            return None
        return passed_s / done * (total - done)


class Heartbeat:
    """Prints what ``words`` gives to standard error every ten seconds, from ``start`` to ``stop``.

    Where nothing is known, and where nobody reads standard error, it prints nothing.
    """

    def __init__(
        self, words: Callable[[], str], wait: Callable[[float], bool] | None = None
    ) -> None:
        self._words = words
        self._over = threading.Event()
        self._wait = wait or self._over.wait
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to print."""
        self._thread = threading.Thread(target=self.run, name="progress", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Print nothing more."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def run(self) -> None:
        """Print until ``wait`` says that it is over."""
        while not self._wait(EVERY_S):
            if words := self._words():
                with contextlib.suppress(OSError, ValueError):
                    print(f"portagpu: {words}", file=sys.stderr, flush=True)

"""Clocks, power, temperature and throttling of a device, read while a load runs on it."""

from __future__ import annotations

import threading
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self

    from portagpu.devices.contract import Backend

PAUSE_S: Final = 0.1
"""Between two readings beside a measure: a reading takes about a millisecond of one core."""
_COUNT: Final = "_count"


class Sampler(threading.Thread):
    """Reads telemetry beside the load, which does not wait for it: an idle device clocks down.

    What is still being read when the load ends is of an idle device, and is left out.
    """

    def __init__(self, gpu: Backend, pause_s: float = PAUSE_S) -> None:
        super().__init__(name="telemetry", daemon=True)
        self._read = partial(gpu.plugin.telemetry, gpu.index)
        self._pause_s = pause_s
        self._latest: dict[str, float] = {}
        self._readings: list[dict[str, float]] = []
        self._ended = threading.Event()
        self._error: Exception | None = None

    def run(self) -> None:
        try:
            while not self._ended.is_set():
                found = dict(self._read())
                if found and not self._ended.is_set():
                    self._latest = found
                    self._readings.append(found)
                self._ended.wait(self._pause_s)
        except Exception as error:  # noqa: BLE001 - raised where the load runs
            self._error = error

    def latest(self) -> dict[str, float]:
        """What was read last, once; empty where nothing was since. Raises what reading raised."""
        self._raise_error()
        found, self._latest = self._latest, {}
        return found

    def readings(self) -> list[dict[str, float]]:
        """Everything that was read so far, in order. Raises what reading raised."""
        self._raise_error()
        return list(self._readings)

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()


def summary(readings: Sequence[Mapping[str, float]]) -> dict[str, Any] | str:
    """Minimum, median and maximum of each reading by name, or why there is none.

    Of a count of events ("throttle_count") it is how many there were in between.
    """
    names = sorted({name for each in readings for name in each})
    if not names:
        return "not shown: the device gave no reading while the load ran"
    found: dict[str, Any] = {"readings": len(readings)}
    for name in names:
        values = [each[name] for each in readings if name in each]
        if name.endswith(_COUNT):
            found[name] = max(values) - min(values)
        else:
            found[name] = {"min": min(values), "median": median(values), "max": max(values)}
    return found

"""The options of a screen, and the probes and devices that they name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.environment import shared_count
from portagpu.base.errors import PortagpuError
from portagpu.base.patience import LIMITS
from portagpu.base.text import did_you_mean, fits
from portagpu.devices import registry
from portagpu.runs.engine import RunOptions, UnknownDevice
from portagpu.runs.world.rank import load_function

if TYPE_CHECKING:
    from collections.abc import Sequence

    from portagpu.train.exact.probe import Probe

SUITE: Final = "screen"
DEFAULT_S: Final = 60.0
RUNS: Final = 4
"""How often a batch computes with its operands, which are dearer to make than to use."""
TOGETHER: Final = "collectives"
"""The area whose probes all devices run at the same time."""
PROBES: Final = "portagpu.train.exact.probes:PROBES"
"""Where the probes are."""


class UnknownProbe(PortagpuError, LookupError):
    """No probe has a name like that; the message suggests the closest one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScreenOptions(RunOptions):
    """The options of a screen.

    :param seconds: How long it computes, of wall time, after devices are open.
    :param batches: How many batches each probe has on each device, whatever time that takes; None
        for as many as the time allows. The one with a published digest comes before them.
    :param runs: How often each batch computes with its operands.
    :param threads: How many CPU threads each rank has; None for as many as torch takes. With one,
        a number of batches costs the same CPU seconds on every CPU.
    :param seed: The number that all devices have in common, by default that of the day in UTC.
    :param probes: Names or patterns ("products/*") of probes; without any, all run.
    :param backend: The backend's name, by default the one for this machine.
    :param indices: The devices; None for all, and one where all ranks share it.
    :param place: Where the probes are, as "package.module:NAME" or "/path/file.py:NAME".
    :param silence_s: How long a device may be silent before it counts as hung.
    :param count_errors: Whether errors of memory that the machine counts meanwhile are a result.
    """

    seconds: float = DEFAULT_S
    batches: int | None = None
    runs: int = RUNS
    threads: int | None = None
    seed: int | None = None
    probes: Sequence[str] = ()
    backend: str | None = None
    indices: Sequence[int] | None = None
    place: str = PROBES
    silence_s: float = LIMITS.device_s
    count_errors: bool = True


def selected_probes(options: ScreenOptions) -> list[Probe]:
    """The probes that ``options`` name, in order; raises UnknownProbe."""
    place: Any = load_function(options.place)
    known: list[Probe] = list(place)
    names = [each.name for each in known]
    for wanted in options.probes:
        if not any(fits(wanted, name) for name in names):
            hint = did_you_mean(wanted, names, f"probes are such as {names[0]}")
            raise UnknownProbe(f"there is no probe {wanted!r}: {hint}")
    return [
        each
        for each in known
        if not options.probes or any(fits(wanted, each.name) for wanted in options.probes)
    ]


def chosen_indices(options: ScreenOptions) -> list[int]:
    """The devices of a screen. Raises UnknownDevice where the backend sees none."""
    if options.indices is not None:
        return list(options.indices)
    name = registry.resolve(options.backend)
    count = registry.count(name)
    if registry.plugin(name).shared:
        return list(range(max(1, shared_count())))
    if count < 1:
        raise UnknownDevice(f"the {name} backend has no device")
    return list(range(count))

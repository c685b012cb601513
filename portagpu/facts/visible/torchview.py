"""How ``torch.cuda.device_count`` reads the masks before the runtime starts."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from portagpu.facts.vendors import Runtime
    from portagpu.facts.visible.model import DeviceId

_UUID_PREFIXES: Final = ("GPU-", "MIG-")
_MOST_DEVICES: Final = 64
"""torch's list where no variable is set has this many numbers."""


@dataclass(frozen=True, slots=True)
class TorchView:
    """torch's own reading, which may differ from the runtime's.

    ``entries`` is its list of numbers or of UUIDs, None where it takes every device. ``count`` is
    its number of devices, None where it asks the runtime or raises; ``error`` is what it raises.
    Both are true where the management library answers. Otherwise torch asks the runtime.
    """

    entries: tuple[int, ...] | tuple[str, ...] | None = None
    count: int | None = None
    error: str | None = None


def torch_list(environment: Mapping[str, str], runtime: Runtime) -> TorchView:
    """torch's list of devices, without ``count``, which needs the devices."""
    rules = runtime.torch
    if rules is None:
        return TorchView()
    counted = None if rules.counted is None else environment.get(rules.counted)
    if counted is not None:
        left = len(counted.split(","))
        mask = environment.get(rules.variables[0])
        if mask is None:
            return TorchView(tuple(range(left)))
        if len(mask.split(",")) > left:
            return TorchView(
                error=f"{rules.variables[0]} contains more devices than {rules.counted}"
            )
    else:
        mask = next((environment[name] for name in rules.variables if name in environment), None)
    if mask is None:
        return TorchView()
    try:
        return TorchView(_torch_entries(mask))
    except ValueError as error:
        return TorchView(error=str(error))


def torch_view(
    environment: Mapping[str, str], devices: Sequence[DeviceId], runtime: Runtime
) -> TorchView:
    """torch's list and number of devices on a machine with ``devices``."""
    view = torch_list(environment, runtime)
    if view.error is not None or runtime.torch is None:
        return view
    whole = {device.index: device.parent or device.uuid for device in devices}
    if view.entries is None:
        return TorchView(None, min(_MOST_DEVICES, len(whole)))
    if not view.entries:
        return TorchView(view.entries, 0)
    names = [entry for entry in view.entries if isinstance(entry, str)]
    if not names:
        return TorchView(view.entries, _count_numbers(view.entries, len(whole)))
    if names[0].startswith(runtime.torch.asks_for or ("\0",)):
        return TorchView(view.entries)
    uuids = [uuid or "" for _, uuid in sorted(whole.items())]
    if runtime.torch.bare_uuids:
        names = [name.replace("GPU-", "", 1) for name in names]
        uuids = [uuid.removeprefix("GPU-").lower() for uuid in uuids]
    return TorchView(view.entries, _count_names(names, uuids))


def _torch_entries(mask: str) -> tuple[int, ...] | tuple[str, ...]:
    prefix = next((each for each in _UUID_PREFIXES if mask.startswith(each)), None)
    if prefix is not None:
        kept = tuple(takewhile(lambda each: each.startswith(prefix), mask.split(",")))
        return kept if len(set(kept)) == len(kept) else ()
    numbers: dict[int, None] = {}
    for token in mask.split(","):
        number = _torch_number(token.strip())
        if number in numbers:
            return ()
        if number < 0:
            break
        numbers[number] = None
    return tuple(numbers)


def _torch_number(text: str) -> int:
    """torch's number of an entry, -1 for none; raises ValueError where torch does."""
    sign = text[:1] if text[:1] in ("+", "-") else ""
    digits = "".join(takewhile(str.isdigit, text[len(sign) :]))
    return int(sign + digits) if sign or digits else -1


def _count_numbers(numbers: Sequence[object], devices: int) -> int:
    return sum(1 for _ in takewhile(lambda each: isinstance(each, int) and each < devices, numbers))


def _count_names(names: Sequence[str], uuids: Sequence[str]) -> int:
    found: set[int] = set()
    for name in names:
        matching = [at for at, uuid in enumerate(uuids) if uuid.startswith(name)]
        if len(matching) != 1:
            break
        if matching[0] in found:
            return 0
        found.add(matching[0])
    return len(found)

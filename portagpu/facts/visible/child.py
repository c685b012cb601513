"""Masks for a child process that is to see certain devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from portagpu.facts.visible.diagnosis import layers_of
from portagpu.facts.visible.model import DeviceId, Index, VisibilityError
from portagpu.facts.visible.resolution import check_devices, matches
from portagpu.facts.visible.tables import runtime_named

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from portagpu.facts.vendors import Runtime
    from portagpu.facts.visible.diagnosis import Layer

HIDE_ALL = "-1"
"""Hides every device from every layer and from torch; an empty value does not."""


def environment_for(
    devices: Iterable[DeviceId],
    runtime: str,
    base_environment: Mapping[str, str] | None = None,
) -> dict[str, str | None]:
    """What to change in a child's environment so that it sees these devices, in this order.

    The values of the variables to set, and None for those to unset; everything else is the
    caller's. One variable is set and the others of the runtime are unset, so that neither torch nor
    the runtime can read another. Devices are named as on the whole machine, and so replace a mask
    of ``base_environment`` instead of counting among what it leaves; one that it hides is refused.
    With no device all are hidden.

    Raises VisibilityError for devices that cannot be visible together, that the base hides, or a
    runtime that is not known.

    Example::

        mine = resolve(os.environ, machine, "rocm").devices[rank]
        changes = environment_for([mine], "rocm", os.environ)
        child = {k: v for k, v in {**os.environ, **changes}.items() if v is not None}
    """
    table = runtime_named(runtime)
    wanted = check_devices(devices)
    _refuse_slices(wanted, table)
    if base_environment is not None:
        _refuse_hidden(wanted, base_environment, table)
    names = [str(each.index) if each.parent is None else each.uuid or "" for each in wanted]
    changes: dict[str, str | None] = dict.fromkeys(table.variables)
    changes[table.child_variable] = ",".join(names) or HIDE_ALL
    return changes


def _refuse_slices(wanted: tuple[DeviceId, ...], runtime: Runtime) -> None:
    if all(device.parent is None for device in wanted):
        return
    rules = runtime.layers[-1]
    if rules.slice_prefix is None:
        raise VisibilityError(f"{runtime.name} has no slices with a UUID: give devices by index")
    if len(wanted) > rules.most_slices:
        raise VisibilityError(
            f"{rules.layer} gives a process {rules.most_slices} slice and no other GPU beside "
            f"it, not {len(wanted)} devices: start a process for each"
        )
    if not all((device.uuid or "").startswith(rules.slice_prefix) for device in wanted):
        raise VisibilityError(f"a slice's UUID must start with {rules.slice_prefix}")


def _refuse_hidden(wanted: tuple[DeviceId, ...], base: Mapping[str, str], runtime: Runtime) -> None:
    layers = layers_of(base, runtime)
    for device in wanted:
        for at, layer in enumerate(layers):
            if layer.mask.entries is not None and not _may_see(device, layers[: at + 1]):
                raise VisibilityError(
                    f"device {device.index} is hidden from this process by "
                    f"{layer.label}: choose among what it shows"
                )


def _may_see(device: DeviceId, layers: tuple[Layer, ...]) -> bool:
    """Whether the last layer names a device, whose number depends on the earlier layers.

    Decided without the other devices: a number that does not exist ends no list here.
    """
    *before, layer = layers
    masked = [each for each in before if each.mask.entries is not None]
    for entry in layer.mask.entries or ():
        if not isinstance(entry, Index):
            if matches(entry.text, device, layer.rules) and (
                not masked or _may_see(device, tuple(before))
            ):
                return True
        elif not masked:
            if entry.number == device.index:
                return True
        else:
            names = masked[-1].mask.entries or ()
            if entry.number < len(names):
                only = names[entry.number]
                rules = masked[-1].rules
                if isinstance(only, Index):
                    if only.number == device.index:
                        return True
                elif matches(only.text, device, rules):
                    return True
    return False

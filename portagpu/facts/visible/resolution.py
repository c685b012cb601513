"""Which devices of a machine the runtime and torch see, what is wrong with the masks, and masks
for a child process."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from portagpu.facts.vendors import MaskRules, Repeated, UuidMatch
from portagpu.facts.visible.mask import (
    DeviceId,
    Index,
    Mask,
    Problem,
    ProblemId,
    TorchView,
    Uuid,
    VisibilityError,
    parse,
    quoted,
    repeated_text,
    runtime_named,
    torch_list,
    torch_view,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from portagpu.facts.vendors import MaskRules, Runtime


_ERROR_CHARACTERS: Final = 80


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer with the mask it read; ``variable`` and ``label`` are "" where none is set."""

    rules: MaskRules
    mask: Mask
    variable: str
    label: str
    """The variable with its value, for messages."""


def layers_of(environment: Mapping[str, str], runtime: Runtime) -> tuple[Layer, ...]:
    """Every layer of a runtime with its mask."""
    return tuple(_layer(environment, rules) for rules in runtime.layers)


def _layer(environment: Mapping[str, str], rules: MaskRules) -> Layer:
    found = Layer(rules, Mask(None), "", "")
    for name in rules.variables:
        if name in environment:
            text = environment[name]
            mask = parse(text, rules, name)
            mask = replace(mask, problems=(*found.mask.problems, *mask.problems))
            found = Layer(rules, mask, name, f"{name}={quoted(text)}")
            # a value of two quotes alone hides nothing, and the next variable is read
            if mask.entries is not None:
                break
    return found


def diagnose(environment: Mapping[str, str], runtime: str) -> tuple[Problem, ...]:
    """All problems of an environment's masks. Needs no device.

    Numbers beyond the last device and unknown UUIDs are for :func:`resolve`.

    :param environment: the variables of the process.
    :param runtime: the name of its torch build ("cuda", "rocm").
    :raises VisibilityError: for an unknown runtime.
    """
    table = runtime_named(runtime)
    return (*mask_problems(environment, table), *_torch_problems(environment, table))


def mask_problems(environment: Mapping[str, str], runtime: Runtime) -> tuple[Problem, ...]:
    """Problems of the masks themselves, without torch's reading."""
    layers = layers_of(environment, runtime)
    found = [problem for layer in layers for problem in layer.mask.problems]
    for layer in layers:
        found.extend(_layer_problems(environment, layer, runtime))
    found.extend(_leaving_problem(layers, runtime))
    found.extend(_stacked_masks(layers, runtime))
    found.extend(_unread_variables(environment, runtime))
    return tuple(found)


def torch_raises(error: str, runtime: Runtime) -> Problem:
    """The problem that torch raises at the first call."""
    message = (
        f"{runtime.torch_module} raises {error[:_ERROR_CHARACTERS]!a}: set {_only_mask(runtime)}"
    )
    return Problem(ProblemId.TORCH_RAISES, message)


def torch_disagrees(by_torch: int, by_runtime: int, runtime: Runtime) -> Problem:
    """The problem that torch and the runtime count different numbers of devices."""
    return Problem(
        ProblemId.TORCH_DISAGREES,
        f"{runtime.torch_module}.device_count() says {by_torch} before "
        f"{runtime.layers[-1].layer} starts, which shows {by_runtime}: set {_only_mask(runtime)}",
    )


def _only_mask(runtime: Runtime) -> str:
    return f"{runtime.child_variable} alone, to numbers with commas between them"


def _layer_problems(
    environment: Mapping[str, str], layer: Layer, runtime: Runtime
) -> Iterator[Problem]:
    first = layer.variable
    names = layer.rules.variables
    for name in names[names.index(first) + 1 :] if first else ():
        if name in environment and environment[name] != environment[first]:
            yield Problem(
                ProblemId.SHADOWED,
                f"{name}={quoted(environment[name])} is not read because "
                f"{first}={quoted(environment[first])} is set: give them one value or unset one",
            )
    prefix = layer.rules.slice_prefix
    if prefix is not None:
        slices = [
            each
            for each in layer.mask.entries or ()
            if isinstance(each, Uuid) and each.text.startswith(prefix)
        ]
        if len(slices) > layer.rules.most_slices:
            yield slices_problem(layer.rules, len(slices))


def _leaving_problem(layers: tuple[Layer, ...], runtime: Runtime) -> Iterator[Problem]:
    names = [layer.variable for layer in layers if layer.variable]
    if len(names) == 1 and names[0] in runtime.leaving:
        message = f"{names[0]} is the only mask, {runtime.leaving[names[0]]}: set "
        yield Problem(
            ProblemId.LEAVING_VARIABLE,
            f"{message}{runtime.child_variable} to the same",
            harmful=False,
        )


def slices_problem(rules: MaskRules, count: int) -> Problem:
    """The problem that a mask has more slices than a process gets."""
    return Problem(
        ProblemId.SLICES,
        f"{rules.layer} gives a process {rules.most_slices} slice and no other GPU with it, not "
        f"{count} devices: start a process for each, with the slice's UUID",
    )


def _stacked_masks(layers: tuple[Layer, ...], runtime: Runtime) -> Iterator[Problem]:
    masked = [layer for layer in layers if layer.mask.entries is not None]
    for before, after in pairwise(masked):
        left = len(before.mask.entries or ())
        first, second = before.label, after.label
        beyond = [
            each.number
            for each in after.mask.entries or ()
            if isinstance(each, Index) and each.number >= left
        ]
        if beyond:
            yield Problem(
                ProblemId.RENUMBERED,
                f"{first} leaves {left} device(s), numbered from 0, and {second} then asks for "
                f"{beyond[0]}, which hides it and all after it: set {runtime.child_variable} alone",
            )
        else:
            yield Problem(
                ProblemId.TWO_MASKS,
                f"{second} counts among the {left} device(s) that {first} leaves, not among all: "
                f"set {runtime.child_variable} alone",
                harmful=False,
            )


def _unread_variables(environment: Mapping[str, str], runtime: Runtime) -> Iterator[Problem]:
    own = runtime.child_variable
    for name, why in runtime.unread.items():
        if name in environment:
            message = f"{name}={quoted(environment[name])} hides nothing: {why}; set {own}"
            yield Problem(ProblemId.UNREAD_VARIABLE, message)
    if any(name in environment for name in runtime.variables):
        return
    for name in runtime.foreign:
        if name in environment:
            message = f"{name}={quoted(environment[name])} hides nothing from {runtime.name}: "
            yield Problem(ProblemId.FOREIGN_VARIABLE, f"{message}set {own}")
            return


def _torch_problems(environment: Mapping[str, str], runtime: Runtime) -> Iterator[Problem]:
    if runtime.torch is None:
        return
    view = torch_list(environment, runtime)
    if view.error is not None:
        yield torch_raises(view.error, runtime)
        return
    shows = _count_left(layers_of(environment, runtime))
    if view.entries is None or shows is None:
        return
    first = view.entries[0] if view.entries else None
    if isinstance(first, str) and first.startswith(runtime.torch.asks_for or ("\0",)):
        return
    if len(view.entries) != shows:
        yield torch_disagrees(len(view.entries), shows, runtime)


def _count_left(layers: tuple[Layer, ...]) -> int | None:
    """The number of devices that the masks name, if all exist; None without a mask."""
    left: int | None = None
    for layer in layers:
        if layer.mask.entries is None:
            continue
        named = 0
        for each in layer.mask.entries:
            if left is not None and isinstance(each, Index) and each.number >= left:
                break
            named += 1
        left = 0 if layer.mask.fails else named
    return left


@dataclass(frozen=True, slots=True)
class Visible:
    """The devices that a process sees: ``devices[0]`` is its runtime's device 0.

    ``by_torch`` is torch's answer before it starts the runtime. ``problems`` is empty where both
    see what the masks ask for, and there is no advice.
    """

    devices: tuple[DeviceId, ...]
    by_torch: TorchView
    problems: tuple[Problem, ...]

    @property
    def harmful(self) -> tuple[Problem, ...]:
        """The problems with which a run may use other devices than intended."""
        return tuple(problem for problem in self.problems if problem.harmful)


def resolve(environment: Mapping[str, str], devices: Iterable[DeviceId], runtime: str) -> Visible:
    """The devices that a process with this environment sees, in the order it numbers them.

    Reads and opens nothing.

    :param environment: the variables of the process.
    :param devices: all devices of the machine, with slices in place of their GPU.
    :param runtime: the name of its torch build ("cuda", "rocm").
    :returns: the devices, what torch makes of them, and the problems that were found.
    :raises VisibilityError: for an unknown runtime and for devices that contradict each other.
    """
    table = runtime_named(runtime)
    everything = check_devices(devices)
    seen: tuple[DeviceId, ...] = everything
    numbers: dict[int, DeviceId] = {}
    for device in everything:
        numbers.setdefault(device.index, device)
    problems: dict[ProblemId, Problem] = {}
    layers = layers_of(environment, table)
    for layer in layers:
        if layer.mask.entries is not None:
            seen = _apply_mask(layer, seen, numbers, problems)
            numbers = dict(enumerate(seen))
        seen = _visible_slices(layer.rules, seen, problems)
    by_will = any(layer.mask.deliberate for layer in layers)
    if everything and not seen and not by_will:
        message = f"no device is left of {len(everything)}: correct or unset the masks"
        problems[ProblemId.NOTHING_LEFT] = Problem(ProblemId.NOTHING_LEFT, message)
    view = torch_view(environment, everything, table)
    if view.error is not None:
        problems[ProblemId.TORCH_RAISES] = torch_raises(view.error, table)
    elif view.count is not None and view.count != len(seen):
        problems[ProblemId.TORCH_DISAGREES] = torch_disagrees(view.count, len(seen), table)
    masks = mask_problems(environment, table)
    reported = {problem.id for problem in masks}
    if ProblemId.RENUMBERED in reported:
        reported.add(ProblemId.OUT_OF_RANGE)
    return Visible(
        seen, view, (*masks, *(each for each in problems.values() if each.id not in reported))
    )


def check_devices(devices: Iterable[DeviceId]) -> tuple[DeviceId, ...]:
    """The devices. Raises VisibilityError where two of them cannot be distinguished."""
    found = tuple(devices)
    whole: set[int] = set()
    slices: set[str] = set()
    for device in found:
        if device.index < 0:
            raise VisibilityError(f"device {device.index} has a negative index: count from 0")
        if device.parent is None:
            if device.index in whole:
                raise VisibilityError(f"device {device.index} is given twice: give each once")
            whole.add(device.index)
        elif device.uuid is None or device.uuid in slices:
            raise VisibilityError(
                f"a slice of {quoted(device.parent)} has no UUID of its own: only that names it"
            )
        else:
            slices.add(device.uuid)
    return found


def matches(name: str, device: DeviceId, rules: MaskRules) -> bool:
    """Whether a UUID of a mask, or a prefix of one, can be this device's."""
    if device.uuid is None:
        return False
    if rules.uuid_case_counts:
        return device.uuid.startswith(name)
    return device.uuid.upper().startswith(name.upper())


def _apply_mask(
    layer: Layer,
    before: Sequence[DeviceId],
    numbers: Mapping[int, DeviceId],
    problems: dict[ProblemId, Problem],
) -> tuple[DeviceId, ...]:
    """The devices of ``before`` that a layer's mask leaves."""
    rules = layer.rules
    kept: dict[DeviceId, None] = {}
    for entry in layer.mask.entries or ():
        named = quoted(entry.text) if isinstance(entry, Uuid) else str(entry.number)

        def report(kind: ProblemId, text: str, named: str = named) -> None:
            problems.setdefault(kind, Problem(kind, f"{layer.variable} names {named}, {text}"))

        device = _find_device(entry, before, numbers, rules, report)
        if device is None:
            break
        if device in kept:
            report(ProblemId.REPEATED, f"which {repeated_text(rules)}")
            if rules.repeated is Repeated.HIDES_ALL:
                return ()
            if rules.repeated is Repeated.ENDS:
                break
        kept[device] = None
    else:
        if layer.mask.fails and len(kept) < len(before):
            return ()
    return tuple(kept)


def _find_device(
    entry: Index | Uuid,
    before: Sequence[DeviceId],
    numbers: Mapping[int, DeviceId],
    rules: MaskRules,
    report: Callable[[ProblemId, str], None],
) -> DeviceId | None:
    if isinstance(entry, Index):
        device = numbers.get(entry.number)
        if device is None:
            text = f"of {len(numbers)} counted from 0, and hides it and all after it: name those"
            report(ProblemId.OUT_OF_RANGE, text)
        elif device.parent is not None:
            text = f"of whose slices {rules.layer} chooses one: name the slice by its UUID"
            report(ProblemId.SLICE_BY_INDEX, text)
        return device
    found = [device for device in before if matches(entry.text, device, rules)]
    if not found:
        report(
            ProblemId.UNKNOWN_UUID,
            "which no device has, and hides it and all after it: name what is there",
        )
        return None
    if len(found) > 1:
        if rules.uuid_match is UuidMatch.ONE_THAT_STARTS:
            text = f"which {len(found)} devices share, and hides it and all after it: use numbers"
            report(ProblemId.AMBIGUOUS_UUID, text)
            return None
        text = f"which {len(found)} devices share, and {rules.layer} takes the first: use numbers"
        report(ProblemId.AMBIGUOUS_UUID, text)
    return found[0]


def _visible_slices(
    rules: MaskRules, seen: tuple[DeviceId, ...], problems: dict[ProblemId, Problem]
) -> tuple[DeviceId, ...]:
    """The devices that a process gets, which may be only some of the selected slices."""
    if rules.slice_prefix is None:
        return seen
    slices = tuple(device for device in seen if device.parent is not None)
    if not slices or len(seen) <= rules.most_slices:
        return seen
    problems[ProblemId.SLICES] = slices_problem(rules, len(seen))
    return slices[: rules.most_slices]


HIDE_ALL = "-1"
"""Hides every device from every layer and from torch; an empty value does not."""


def environment_for(
    devices: Iterable[DeviceId],
    runtime: str,
    base_environment: Mapping[str, str] | None = None,
) -> dict[str, str | None]:
    """What to change in a child's environment so that it sees these devices, in this order.

    One variable is set and the others of the runtime are unset, so that neither torch nor the
    runtime can read another. Devices are named as on the whole machine, and so replace a mask of
    ``base_environment`` instead of counting among what it leaves; one that it hides is refused.

    Example::

        mine = resolve(os.environ, machine, "rocm").devices[rank]
        changes = environment_for([mine], "rocm", os.environ)
        child = {k: v for k, v in {**os.environ, **changes}.items() if v is not None}

    :param devices: what the child sees; with none, all are hidden.
    :param runtime: the name of the child's torch build ("cuda", "rocm").
    :param base_environment: the variables that the child would have without the changes.
    :returns: the values of the variables to set, and None for those to unset; everything else is
        the caller's.
    :raises VisibilityError: for devices that cannot be visible together, that the base hides, or a
        runtime that is not known.
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
            f"{rules.layer} gives a process {rules.most_slices} slice and no other GPU with "
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

"""Which devices of a machine are visible, to the runtime and to torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from portagpu.facts.vendors import MaskRules, Repeated, UuidMatch
from portagpu.facts.visible.diagnosis import (
    Layer,
    layers_of,
    mask_problems,
    slices_problem,
    torch_disagrees,
    torch_raises,
)
from portagpu.facts.visible.mask import repeated_text
from portagpu.facts.visible.model import (
    DeviceId,
    Index,
    Problem,
    ProblemId,
    Uuid,
    VisibilityError,
    quoted,
)
from portagpu.facts.visible.tables import runtime_named
from portagpu.facts.visible.torchview import TorchView, torch_view

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Visible:
    """The devices that a process sees: ``devices[0]`` is its runtime's device 0.

    ``by_torch`` is torch's answer before it starts the runtime. ``problems`` is empty where both
    see what the masks ask for and there is no advice.
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

    ``devices`` are all devices of the machine, with slices in place of their GPU. ``runtime`` is
    the name of its torch build ("cuda", "rocm"). Reads and opens nothing. Raises VisibilityError
    for an unknown runtime and for devices that contradict each other.
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

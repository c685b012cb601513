"""Problems of a set of masks that can be found without the devices."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from portagpu.facts.visible.mask import parse
from portagpu.facts.visible.model import Index, Mask, Problem, ProblemId, Uuid, quoted
from portagpu.facts.visible.tables import runtime_named
from portagpu.facts.visible.torchview import torch_list

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

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
    """All problems of an environment's masks for a runtime ("cuda", "rocm").

    Needs no device. Numbers beyond the last device and unknown UUIDs are for ``resolve``. Raises
    VisibilityError for an unknown runtime.
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
        f"{rules.layer} gives a process {rules.most_slices} slice and no other GPU beside it, not "
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

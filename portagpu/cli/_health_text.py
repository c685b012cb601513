"""A judged node as lines of text: devices, findings by gravity, one line at the end."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from portagpu.facts.formats import pci_address
from portagpu.runs.results.advice import OWN_SOURCE, Action, action_of, action_source, worst_action
from portagpu.runs.results.run import verdict_of
from portagpu.runs.results.verdicts import Verdict
from portagpu.runs.results.wording import (
    content_key,
    found_in_words,
    ids_and_devices,
    without_device,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from portagpu.runs.results.run import Result, Run


_EVENTS: Final = "health/events"


def health_text(run: Run) -> list[str]:
    """Lines of the devices, the findings with action and source, and what was not judged."""
    return [*_devices(run), *_findings(run), *_quiet(run), *_unjudged(run)]


def summary(run: Run) -> str:
    """ "FAIL, action isolate: health/events on ...: ... (and 2 more findings)"."""
    found = _found(run)
    worst = worst_action(run.results)
    if not found:
        why = run.why if run.verdict is not Verdict.PASS else ""
        return f"{run.verdict}, action {worst}{f': {why}' if why else ''}"
    more = len(found) - 1
    others = f" (and {more} more finding{'s' if more > 1 else ''})" if more else ""
    first = found[0]
    what = f"{ids_and_devices([first])}: {without_device(first)}"
    return f"{run.verdict}, action {worst}: {what}{others}"


def _found(run: Run) -> list[Result]:
    """The results that ask for something or failed, the gravest action first."""
    found = [each for each in run.results if each.failed or action_of(each) is not Action.NONE]
    return sorted(found, key=lambda each: (action_of(each), each.failed), reverse=True)


def _devices(run: Run) -> list[str]:
    """A line for each GPU with a finding, also in a part, and one for all others of a kind."""
    names = [each.device for each in run.results if each.id == "identity/device" and each.device]
    products: dict[str, str] = {}
    for name, device in zip(names, run.info.devices, strict=False):
        products.setdefault(_gpu(name), str(device["name"]))
    # a finding may name a device that no source lists any more
    blamed = {_gpu(each.device, products) for each in _found(run) if each.device}
    lines, well = [], dict.fromkeys(products.values(), 0)
    for name in dict.fromkeys([*products, *sorted(blamed)]):
        own = [each for each in run.results if each.device and _gpu(each.device, products) == name]
        if name not in blamed:
            well[products[name]] += 1
            continue
        product = products.get(name, "listed by no other source")
        lines.append(f"  {name}  {product}  {verdict_of(own)}  {worst_action(own)}")
    unplaced = any(
        each.id == _EVENTS and each.device not in products and pci_address(each.device) is None
        for each in _found(run)
    )
    none = "no finding that names it; a finding below has no address" if unplaced else "no finding"
    lines += [f"  {count} x {name}: {none}" for name, count in well.items() if count]
    return ["devices:", *lines] if lines else ["no device was found"]


def _gpu(device: str, known: Collection[str] = ()) -> str:
    """The device of which this is a part, as ``known`` names it.

    Judges call a GPU without address and UUID by its number in a source: "nvidia-smi -q GPU 0".
    """
    whole = device.partition(" part ")[0]
    numbered = re.fullmatch(r".+ GPU (\d+)", whole)
    name = whole if numbered is None else f"GPU{numbered[1]}"
    return name if name in known else whole


def _findings(run: Run) -> list[str]:
    groups: dict[tuple[str, ...], list[Result]] = {}
    for each in _found(run):
        key = (action_of(each), action_source(each), *content_key(each))
        groups.setdefault(key, []).append(each)
    if not groups:
        return []
    lines = ["", f"findings, the gravest action first (by {OWN_SOURCE}, if no other is named):"]
    for members in groups.values():
        first = members[0]
        text = f"{ids_and_devices(members)}: {without_device(first)}"
        lines.append(f"  {action_of(first):<8} {first.verdict} {text}")
        source = action_source(first)
        seen = [found_in_words(first), f"action by {source}" if source != OWN_SOURCE else ""]
        if detail := "; ".join(filter(None, seen)):
            lines.append(f"           {detail}")
    return lines


def _quiet(run: Run) -> list[str]:
    """What a log says next to the findings, with counts: an error of an application (Xid 13)."""
    lines = []
    for each in (result for result in run.results if result.id == _EVENTS):
        if each.verdict is Verdict.UNVERIFIED and action_of(each) is Action.NONE:
            lines.append(_line([each]))
        elif also := each.extra.get("also"):
            lines.append(_line([replace(each, reason=str(also))]))
    return ["", "also in the log:", *(f"  {line}" for line in lines)] if lines else []


def _unjudged(run: Run) -> list[str]:
    left = [each for each in run.results if each.verdict is Verdict.INCONCLUSIVE]
    if not left:
        return []
    return ["", "not judged:", *(f"  {_line([each])}" for each in left)]


def _line(results: Sequence[Result]) -> str:
    return f"{ids_and_devices(results)}: {without_device(results[0])}"

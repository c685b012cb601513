"""GPU health, judged from an inventory alone.

Each judgement names the GPU and what to do. A value that the target claims, or that a peer states,
and a GPU does not, is INCONCLUSIVE. A value that no source states is not judged, and never a PASS.
Present clocks are not judged: an idle GPU lowers them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from portagpu.base.text import excerpt
from portagpu.facts.formats.host.kernel_log import KIND, from_the_driver, process_codes
from portagpu.facts.targets import Scope
from portagpu.facts.targets.model import normalise
from portagpu.machine.inventory.gpu import product_target
from portagpu.runs.judges.gpu_health import (
    corrected_errors,
    device_answers,
    ecc,
    lifetime_errors,
    pcie_replays,
    pending_repair,
    power_limit,
    retired_pages,
    row_remapping,
    temperature,
    throttling,
    uncorrected_errors,
)
from portagpu.runs.judges.peers import gpu_key, judge_peer_consistency, product_key
from portagpu.runs.results.advice import Action, severity_of_event
from portagpu.runs.results.judgement import Judgement
from portagpu.runs.results.verdicts import Verdict
from portagpu.runs.results.wording import at_most, exactly

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from portagpu.facts.host.sensors import MemoryController, Sensors, Temperature
    from portagpu.facts.readings.model import Event
    from portagpu.facts.targets import Target
    from portagpu.machine.inventory.gpu import Gpu, Inventory


@dataclass(frozen=True, slots=True)
class _Rule:
    """``apply`` returns None for a GPU whose sources do not state the value.

    ``claim`` is the target's fact that says that its GPUs have the value.
    """

    name: str
    good: str
    apply: Callable[[Gpu, Sequence[Gpu], Target | None], Judgement | None]
    claim: str | None = None


_NO_LIBRARY: Final = " does not answer: "
"""In a problem of a vendor's library, before the reason and what to install."""
_SHOWN: Final = frozenset({"driver message", "driver in doubt"})
"""Codes of lines that no table knows: their reasons show the line."""
_LINE_CHARS: Final = 160
_OF_PROCESS: Final = re.compile(r"\b(?:pid|[Pp]rocess|comm|name|thread)\b", re.ASCII)
_RULES: Final = (
    _Rule("ecc", "ECC is as it should be", ecc, "memory.ecc"),
    _Rule(
        "uncorrected-errors",
        "no uncorrected memory error since the driver was loaded",
        uncorrected_errors,
        "memory.ecc",
    ),
    _Rule("corrected-errors", "as few corrected memory errors as the peers", corrected_errors),
    _Rule("lifetime-errors", "no uncorrected memory error in the GPU's life", lifetime_errors),
    _Rule("pending-repair", "no memory waits for a reset to be taken out of use", pending_repair),
    _Rule("row-remapping", "rows can be remapped", row_remapping),
    _Rule("retired-pages", "fewer retired pages than the vendor allows", retired_pages),
    _Rule("pcie-replays", "hardly any packet was sent again", pcie_replays),
    _Rule("throttling", "no fault slows the clocks", throttling),
    _Rule("temperature", "below the limits", temperature),
    _Rule("power-limit", "the target's power limit", power_limit, "power.limit"),
)


def judge_health(inventory: Inventory, target: Target | None = None) -> Iterator[Judgement]:
    """Judgements of the GPUs' health from the readings and events of ``inventory``.

    ``target`` states the product's facts. Without one, GPUs are judged by their own limits and by
    their peers. A machine without GPUs and events has no judgements.
    """
    silent: list[Gpu] = []
    able: list[Gpu] = []
    for gpu in inventory.gpus:
        (silent if device_answers(gpu) is None else able).append(gpu)
    yield from _answers(able, silent, inventory.problems)
    for rule in _RULES:
        yield from _apply(rule, able, target)
    yield from _events(inventory)
    yield from judge_peer_consistency(able)


def _answers(
    able: Sequence[Gpu], silent: Sequence[Gpu], problems: Sequence[str]
) -> Iterator[Judgement]:
    bad = 0
    for gpu in able:
        seen = device_answers(gpu)
        if seen is not None and seen.verdict is not Verdict.PASS:
            bad += 1
            reason = f"{gpu_key(gpu)}: {seen.reason}"
            yield replace(seen, name="answers", device=gpu_key(gpu), reason=reason)
    if silent:
        reason = f"no source states any value of the health of {_and_more(silent)}"
        missing = [each for each in problems if _NO_LIBRARY in each]
        if missing:
            reason = f"{reason}: {'; '.join(missing)}"
        yield Judgement(Verdict.INCONCLUSIVE, reason, name="answers", device=gpu_key(silent[0]))
    elif able and not bad:
        yield Judgement(Verdict.PASS, f"{len(able)} GPU(s) state their health", name="answers")


def _apply(rule: _Rule, gpus: Sequence[Gpu], target: Target | None) -> Iterator[Judgement]:
    """One judgement for each GPU that fails, and one for each other verdict."""
    targets = {gpu_key(gpu): _own_target(gpu, target) for gpu in gpus}
    seen = {gpu_key(gpu): rule.apply(gpu, gpus, targets[gpu_key(gpu)]) for gpu in gpus}
    known = {key: found for key, found in seen.items() if found is not None}
    for key, found in known.items():
        if found.verdict is Verdict.FAIL:
            yield replace(found, name=rule.name, device=key, reason=f"{key}: {found.reason}")
    doubtful = {key: f for key, f in known.items() if f.verdict is Verdict.UNVERIFIED}
    for key, found in list(doubtful.items())[:1]:
        more = f" (and {len(doubtful) - 1} more)" if len(doubtful) > 1 else ""
        reason = f"{key}{more}: {found.reason}"
        yield replace(found, name=rule.name, device=key, reason=reason)
    missing = [gpu for gpu in gpus if seen[gpu_key(gpu)] is None]
    stating = {product_key(gpu) for gpu in gpus if seen[gpu_key(gpu)] is not None}
    claiming = [
        gpu
        for gpu in missing
        if rule.claim is not None and _claims(targets[gpu_key(gpu)], rule.claim)
    ]
    lacking = [gpu for gpu in missing if gpu in claiming or product_key(gpu) in stating]
    if lacking:
        by = f"{target.id} has it" if claiming and target is not None else "its peers state it"
        reason = f"no source states {rule.name} of {_and_more(lacking)}, and {by}"
        yield Judgement(Verdict.INCONCLUSIVE, reason, name=rule.name, device=gpu_key(lacking[0]))
    well = [found for found in known.values() if found.verdict is Verdict.PASS]
    if well and len(well) + len(doubtful) == len(known) and not lacking:
        of = f"{len(well)} of {len(gpus)} GPUs" if len(well) < len(gpus) else f"{len(gpus)} GPU(s)"
        detail = f" ({well[0].reason})" if well[0].reason and len(well) == 1 else ""
        yield Judgement(Verdict.PASS, f"{rule.good}: {of}{detail}", name=rule.name)


def _own_target(gpu: Gpu, target: Target | None) -> Target | None:
    """The target to compare the GPU with: another product in the machine has its own or none."""
    if target is None or gpu.name is None or normalise(gpu.name) in target.match.names:
        return target
    own = product_target(gpu)
    return own if own is None or own.scope is Scope.PRODUCT or own is target else None


def _claims(target: Target | None, fact: str) -> bool:
    """Whether the target claims the fact: it is known and not "off"."""
    return target is not None and target.value(fact) not in (None, "off")


def _and_more(gpus: Sequence[Gpu]) -> str:
    return gpu_key(gpus[0]) + (f" and {len(gpus) - 1} more" if len(gpus) > 1 else "")


def with_placed_events(inventory: Inventory) -> Inventory:
    """``inventory`` with its only GPU of a vendor as the device of log lines that name none.

    A line without an address, or with a number of the driver's own, is of that GPU if the sources
    list the vendor's GPUs, whole, and there is one, and no line names another one.
    """
    known: dict[str, set[str | None]] = {}
    for vendor, pci in (
        *((gpu.vendor, gpu.pci) for gpu in inventory.gpus),
        *((event.vendor, event.pci) for event in inventory.events if event.pci is not None),
    ):
        known.setdefault(vendor, set()).add(pci)
    listed = {gpu.vendor for gpu in inventory.gpus}
    places = {
        vendor: next(iter(addresses))
        for vendor, addresses in known.items()
        if vendor in listed and len(addresses) == 1
    }
    inventory = _placed_by_uuid(inventory)
    if inventory.breaks_off or not any(places.values()):
        return inventory
    about_processes = process_codes()

    def placed(event: Event) -> Event:
        pci = places.get(event.vendor) if event.source == KIND and event.pci is None else None
        unknown = pci is None or event.code in about_processes
        return event if unknown else replace(event, pci=pci, device=None)

    return replace(inventory, events=tuple(placed(event) for event in inventory.events))


def _placed_by_uuid(inventory: Inventory) -> Inventory:
    """``inventory`` with the address of each event's GPU that one source names and one lists."""
    places = {gpu.uuid: gpu.pci for gpu in inventory.gpus if gpu.uuid and gpu.pci}

    def placed(event: Event) -> Event:
        pci = places.get(event.device or "") if event.pci is None else None
        return event if pci is None else replace(event, pci=pci, device=None)

    return replace(inventory, events=tuple(map(placed, inventory.events)))


def _events(inventory: Inventory) -> Iterator[Judgement]:
    """One judgement for each kind of event of a device, with its vendor's action."""
    if not inventory.events:
        if KIND in inventory.kinds:
            reason = "the kernel's log has no error of a GPU or of the host"
            none = exactly(0, "errors of a GPU or of the host")
            yield Judgement(Verdict.PASS, reason, 0, "1", none, name="events")
        elif inventory.gpus:
            reason = "no log of the kernel was read: look for errors with dmesg"
            yield Judgement(Verdict.SKIP, reason, name="events")
    kinds: dict[tuple[str | None, str], list[Event]] = {}
    for event in inventory.events:
        kinds.setdefault((event.pci or event.device, event.code), []).append(event)
    for (device, code), events in kinds.items():
        last = events[-1]
        fatal = next((e for e in reversed(events) if e.fatal), None)
        unsettled = next((e for e in reversed(events) if e.unsettled), None)
        worst = fatal or unsettled or last
        words = [code]
        if worst.meaning:
            words.append(f" ({worst.meaning})")
        if len(events) > 1:
            words.append(f", {len(events)} times")
        if last.time:
            words.append(f", last at {last.time}")
        words.append(f": {worst.action or 'the vendor states no action'}")
        if code in _SHOWN:
            words.append(f": {_sentence(worst.line)!r}")
        reason = "".join(words)
        asking = max(events, key=lambda each: Action(each.todo or Action.NONE))
        verdict = Verdict.INCONCLUSIVE if unsettled else Verdict.UNVERIFIED
        yield Judgement(
            Verdict.FAIL if fatal else verdict,
            f"{device}: {reason}" if device else reason,
            len(events),
            "1",
            exactly(0, "errors of a GPU in the kernel's log"),
            name="events",
            device=device,
            severity=severity_of_event(code, worst.meaning) if fatal else None,
            action=Action(asking.todo) if asking.todo is not None else None,
            action_source=asking.reference if asking.todo is not None else None,
        )


def _sentence(line: str) -> str:
    """What a driver says in a line of a log: no time, no host, and nothing of a process."""
    said = _OF_PROCESS.split(from_the_driver(line), maxsplit=1)[0]
    return excerpt(said.rstrip(" ,(["), _LINE_CHARS)


_HOST_IN_ORDER: Final = exactly(0, "a host in order")


def judge_host(controllers: Sequence[MemoryController], sensors: Sensors) -> Iterator[Judgement]:
    """Memory errors, temperatures and thermal throttling; SKIP where the host counts none."""
    yield from _memory(controllers)
    yield from _temperatures(sensors.temperatures)
    yield _throttling(sensors)


def _memory(controllers: Sequence[MemoryController]) -> Iterator[Judgement]:
    counted = [c for c in controllers if c.uncorrected is not None]
    if not counted:
        reason = "no driver of the kernel counts errors of the host's memory here"
        yield Judgement(Verdict.SKIP, reason, name="host-memory-errors")
        return
    bad = False
    for each in counted:
        bad = bad or bool(each.uncorrected or each.corrected)
        if each.uncorrected:
            who = _culprit(each, corrected=False)
            reason = f"{who}: {each.uncorrected} uncorrected memory errors: replace the module"
            yield Judgement(
                Verdict.FAIL,
                reason,
                each.uncorrected,
                "1",
                _HOST_IN_ORDER,
                name="host-memory-errors",
                device=who,
            )
        elif each.corrected:
            who = _culprit(each, corrected=True)
            reason = f"{who}: {each.corrected} corrected memory errors: see whether they grow"
            yield Judgement(
                Verdict.UNVERIFIED,
                reason,
                each.corrected,
                "1",
                _HOST_IN_ORDER,
                name="host-memory-errors",
                device=who,
            )
    if not bad:
        reason = f"no memory error since {len(counted)} memory controllers began to count"
        yield Judgement(Verdict.PASS, reason, 0, "1", _HOST_IN_ORDER, name="host-memory-errors")


def _culprit(controller: MemoryController, *, corrected: bool) -> str:
    """The memory modules that have errors, else their controller."""
    dimms = [
        dimm.label
        for dimm in controller.dimms
        if (dimm.corrected if corrected else dimm.uncorrected)
    ]
    return ", ".join(dimms) or controller.name


def _temperatures(temperatures: Sequence[Temperature]) -> Iterator[Judgement]:
    limited = [t for t in temperatures if t.critical_celsius is not None]
    if not limited:
        reason = "no sensor of the host states a temperature and its limit"
        yield Judgement(Verdict.SKIP, reason, name="host-temperature")
        return
    over = [t for t in limited if t.critical_celsius and t.celsius >= t.critical_celsius]
    for each in over:
        name = each.label or each.sensor
        reason = f"{name} is at {each.celsius:g} °C, its limit at {each.critical_celsius:g} °C: "
        yield Judgement(
            Verdict.FAIL,
            f"{reason}check the cooling",
            each.celsius,
            "°C",
            at_most(each.critical_celsius or 0.0, "the sensor's own limit", "°C"),
            name="host-temperature",
            device=name,
        )
    if not over:
        reason = f"{len(limited)} sensors are below their limits"
        yield Judgement(Verdict.PASS, reason, name="host-temperature")


def _throttling(sensors: Sensors) -> Judgement:
    counts = (sensors.throttling.core_count, sensors.throttling.package_count)
    known = [count for count in counts if count is not None]
    if not known:
        reason = "the kernel does not count thermal throttling of this CPU"
        return Judgement(Verdict.SKIP, reason, name="host-throttling")
    if any(known):
        reason = f"the CPU was slowed {max(known)} times since boot by its temperature"
        return Judgement(
            Verdict.UNVERIFIED, reason, max(known), "1", _HOST_IN_ORDER, name="host-throttling"
        )
    reason = "the CPU was never slowed by its temperature since boot"
    return Judgement(Verdict.PASS, reason, 0, "1", _HOST_IN_ORDER, name="host-throttling")

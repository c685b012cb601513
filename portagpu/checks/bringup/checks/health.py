"""The gate health: do the devices and the host report errors?"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from portagpu.facts.formats import pci_address
from portagpu.facts.host.sensors import read_memory_controllers, read_sensors
from portagpu.machine.inventory.gpu import Inventory
from portagpu.runs.judges.health import judge_health, judge_host, with_placed_events
from portagpu.runs.results.judgement import Judgement, combine
from portagpu.runs.results.run import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from portagpu.checks.bringup.run import Context
    from portagpu.runs.results.run import Result


_HOST: Final = "host"
"""The vendor of the host's events in a log (portagpu/facts/formats/kernel_log.toml)."""


def check(context: Context) -> Iterator[Result]:
    """The host and the devices under test, by the rules of docs/health.md."""
    for each in combine(_judgements(context)):
        yield context.result(each.name, **each.fields)


def check_host(context: Context) -> Iterator[Result]:
    """The host and the kernel's log alone, which no library of a vendor can hold up."""
    log = context.tested.machine.log()
    events = () if log is None else log.events
    logged = Inventory(events=events, kinds=() if log is None else (log.kind,))
    for each in combine([*_host(context), *judge_health(logged)]):
        yield context.result(each.name, **each.fields)


def _host(context: Context) -> Iterator[Judgement]:
    tree = context.tested.machine.tree
    host = judge_host(read_memory_controllers(tree), read_sensors(tree))
    # in a recording, SKIP would mean "not recorded" and not "this kernel has no such counter"
    yield from (
        each for each in host if not context.tested.origins or each.verdict is not Verdict.SKIP
    )


def _judgements(context: Context) -> Iterator[Judgement]:
    yield from _host(context)
    if context.tested.from_files or not context.tested.shared:
        yield from _gpus(context)
    else:
        # ranks that share a device run on the host itself
        yield from _host_events(context)


def _host_events(context: Context) -> Iterator[Judgement]:
    """The host's errors in the kernel log, if there are any; GPUs are not tested."""
    log = context.tested.machine.log()
    host_events = tuple(e for e in log.events if e.vendor == _HOST) if log is not None else ()
    if log is None or not host_events:
        return
    own = replace(
        context.tested.machine.inventory(), gpus=(), events=host_events, kinds=(log.kind,)
    )
    yield from (each for each in judge_health(own) if each.name == "events")


def _gpus(context: Context) -> Iterator[Judgement]:
    """Judgements of the devices under test only: a neighbour's fault is not theirs.

    If no device is opened, every GPU is judged, with the log's events of others.
    """
    inventory = context.tested.machine.inventory()
    log = context.tested.machine.log()
    if log is not None:
        events, kinds = (*inventory.events, *log.events), (*inventory.kinds, log.kind)
        inventory = replace(inventory, events=events, kinds=kinds)
    inventory = with_placed_events(inventory)
    if context.tested.from_files:
        yield from judge_health(inventory, context.tested.target)
        return
    stated = (pci_address(device.facts.get("pci")) for device in context.tested.devices)
    addresses = {address for address in stated if address is not None}
    own = replace(
        inventory,
        gpus=tuple(gpu for gpu in inventory.gpus if gpu.pci in addresses),
        events=tuple(e for e in inventory.events if e.pci is None or e.pci in addresses),
    )
    missing = addresses - {gpu.pci for gpu in own.gpus}
    if missing or not addresses:
        who = min(missing, default="the devices under test, which have no address")
        yield Judgement(Verdict.INCONCLUSIVE, f"no source knows {who}", name="answers")
    yield from judge_health(own, context.tested.target)

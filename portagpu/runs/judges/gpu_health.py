"""Health rules for one GPU, and what installed distributions declare and cannot be used, so that a
judgement may be missing. The table in docs/health.md has the sources of the rules.

A rule takes the GPU, all GPUs of the machine and the target. It returns None where no source states
the value that it judges.
"""

from __future__ import annotations

import math
import tomllib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.documents import (
    DocumentError,
    filled,
    flag,
    object_of,
    one_of,
    positive,
    values_of,
)
from portagpu.base.errors import TargetError
from portagpu.facts.formats.events import table
from portagpu.facts.formats.foreign_readers import foreign_readers
from portagpu.facts.readings.model import GpuState, Memory
from portagpu.facts.targets import target_problems, wrong_files
from portagpu.facts.vendors import leave_out_table, problems, tables
from portagpu.runs.judges.peers import (
    MIN_PEERS,
    compare_peers,
    gpu_key,
    peer_expectation,
    product_key,
)
from portagpu.runs.results.advice import Action
from portagpu.runs.results.judgement import Judgement
from portagpu.runs.results.verdicts import Verdict
from portagpu.runs.results.wording import at_least, at_most, exactly

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from portagpu.facts.targets import Target
    from portagpu.machine.inventory.gpu import Gpu


_TABLE: Final = Path(__file__).resolve().parent / "health.toml"
_UNUSUAL_C: Final = 95.0
"""A temperature that is reported though no source states its limit: this project's."""
_NEAR_C: Final = 5.0
"""Temperatures this many degrees below a limit are reported: this project's own choice."""
_WATT: Final = 1.0
"""Power limits are set in whole watts: smaller differences are ignored."""
_LIMITS: Final = ("max-operating", "slowdown", "critical", "shutdown")
_UNRESERVED: Final = "unreservable"
_ANSWERS: Final = exactly("answers and asks for nothing", "the vendor's tool")
_NOT_PENDING: Final = exactly("nothing", "memory that waits for a reset")
_REPAIRED: Final = exactly("every row remapped", "docs/health.md")
_NOT_SLOWED: Final = exactly("no fault", "reasons that slow the clocks")
_NO_ERROR: Final = exactly(0, "docs/health.md")


@cache
def health_terms() -> Mapping[str, Any]:
    """``portagpu/runs/judges/health.toml`` with the tables of the vendors, by vendor."""
    found: dict[str, Any] = tomllib.loads(_TABLE.read_text(encoding="utf-8"))
    counter = object_of({"fault": flag, "action": filled}, others=True)
    rules = {
        "throttling": values_of(one_of(*found["kinds"])),
        "pages": values_of(positive),
        "rows": values_of(positive),
        "link_errors": values_of(counter),
    }
    found |= {key: {} for key in rules}
    for vendor, stated in [*tables("health").items()]:
        try:
            checked = {key: rule.read(stated.get(key, {}), key) for key, rule in rules.items()}
        except DocumentError as error:
            leave_out_table(vendor, "health", error)
        else:
            for key, own in checked.items():
                found[key][vendor] = own
    return found


def device_answers(gpu: Gpu) -> Judgement | None:
    """Whether the GPU answers and needs no recovery; None where its health is unknown."""
    if gpu.state.error is not None:
        reason = f"does not answer ({gpu.state.error}): restart the machine"
        return Judgement(Verdict.FAIL, reason, gpu.state.error, expected=_ANSWERS)
    if gpu.state.recovery is not None:
        reason = f"asks for: {gpu.state.recovery}"
        return Judgement(Verdict.FAIL, reason, gpu.state.recovery, expected=_ANSWERS)
    if gpu.state.fabric_error is not None:
        reason = f"its fabric is not in order ({gpu.state.fabric_error}): see its manager's log"
        return Judgement(Verdict.FAIL, reason, gpu.state.fabric_error, expected=_ANSWERS)
    if gpu.state.fabric_wait is not None:
        reason = f"has not joined its fabric ({gpu.state.fabric_wait}): see that its manager runs"
        wait = gpu.state.fabric_wait
        return Judgement(Verdict.INCONCLUSIVE, reason, wait, action=Action.MONITOR)
    nothing = gpu.memory == Memory() and gpu.state == GpuState() and gpu.pcie.replays is None
    return None if nothing else Judgement(Verdict.PASS)


def ecc(gpu: Gpu, gpus: Sequence[Gpu], target: Target | None) -> Judgement | None:
    """ECC against the target's setting as delivered; without one, "off" is only reported."""
    on = gpu.memory.ecc_enabled
    if on is None:
        return None
    wanted = target.value("memory.ecc") if target is not None else None
    delivered = exactly(str(wanted), f"{target.id}: memory.ecc") if target and wanted else None
    if on:
        # on is never worse than what is delivered
        expected = delivered if wanted == "on" else None
        return Judgement(Verdict.PASS, value="on", expected=expected)
    if wanted == "on":
        reason = "ECC is off: turn it on and restart the machine"
        return Judgement(Verdict.FAIL, reason, "off", expected=delivered)
    if wanted == "off":
        reason = "ECC is off, as the product is delivered"
        return Judgement(Verdict.PASS, reason, "off", expected=delivered)
    return Judgement(Verdict.UNVERIFIED, "ECC is off: errors in its memory are not seen")


def uncorrected_errors(gpu: Gpu, gpus: Sequence[Gpu], target: Target | None) -> Judgement | None:
    """Errors since the driver was loaded that ECC could not correct; the limit is 0."""
    blocks = {name: counts[1] for name, counts in gpu.memory.by_block.items() if counts[1]}
    known = [count for _, count in gpu.memory.by_block.values() if count is not None]
    count = gpu.memory.uncorrected
    if count is None and known:
        count = sum(known)
    if count is None:
        return None
    count = max(count, *blocks.values()) if blocks else count
    if not count:
        return Judgement(Verdict.PASS, value=0, unit="1", expected=_NO_ERROR)
    where = ", ".join(f"{name} {number}" for name, number in blocks.items())
    return Judgement(
        Verdict.FAIL,
        f"{count} uncorrected errors since the driver was loaded{f' ({where})' if where else ''}: "
        "reset the GPU, test its memory, and replace it if they return",
        count,
        "1",
        _NO_ERROR,
    )


def corrected_errors(gpu: Gpu, gpus: Sequence[Gpu], target: Target | None) -> Judgement | None:
    """Corrected errors need no action; outliers among the peers are reported.

    The rule is that of ``portagpu.runs.judges.peers``: vendors state no number.
    """
    count = gpu.memory.corrected
    if count is None:
        return None
    if count == 0:
        return Judgement(Verdict.PASS, value=0, unit="1")
    counts = {
        gpu_key(each): float(each.memory.corrected)
        for each in gpus
        if product_key(each) == product_key(gpu) and each.memory.corrected is not None
    }
    compared = compare_peers(counts)
    if not compared.judged:
        reason = (
            f"{count} corrected errors, and fewer than {MIN_PEERS} GPUs of its kind to compare with"
        )
        return Judgement(Verdict.UNVERIFIED, reason, count, "1")
    if any(each.name == gpu_key(gpu) and each.relative > 0 for each in compared.outliers):
        reason = f"{count} corrected errors since the driver was loaded, {compared.median:g} at "
        reason = f"{reason}the median of its peers: watch it"
        return Judgement(Verdict.UNVERIFIED, reason, count, "1", peer_expectation(compared, "1"))
    # of peers that differ by little either side is well
    return Judgement(Verdict.PASS, f"{count} corrected errors", count, "1")


def lifetime_errors(gpu: Gpu, gpus: Sequence[Gpu], target: Target | None) -> Judgement | None:
    """Uncorrected errors in the GPU's life do not describe its present state: reported only."""
    count = gpu.memory.uncorrected_total
    if count is None:
        return None
    if count == 0:
        return Judgement(Verdict.PASS, value=0, unit="1")
    reason = f"{count} uncorrected errors in its life: see its retired pages and remapped rows"
    return Judgement(Verdict.UNVERIFIED, reason, count, "1")


def pending_repair(gpu: Gpu, gpus: Sequence[Gpu], target: Target | None) -> Judgement | None:
    """Bad memory that is still in use until the GPU is reset."""
    if gpu.memory.pending is None:
        return None
    if gpu.memory.pending:
        reason = "bad memory waits to be taken out of use: reset the GPU"
        return Judgement(Verdict.FAIL, reason, "pending", expected=_NOT_PENDING)
    return Judgement(Verdict.PASS, value="nothing", expected=_NOT_PENDING)


def row_remapping(gpu: Gpu, gpus: Sequence[Gpu], target: Target | None) -> Judgement | None:
    """A row that could not be remapped, or memory beyond repair: the vendor replaces such GPUs."""
    memory = gpu.memory
    rows = memory.remapped_rows.get("uncorrectable")
    if memory.beyond_repair:
        reason = "states that its memory is beyond repair: replace the GPU"
        return Judgement(Verdict.FAIL, reason, "beyond repair", expected=_REPAIRED)
    if memory.remap_failed:
        reason = "a row could not be remapped: replace the GPU"
        return Judgement(Verdict.FAIL, reason, "a row could not be remapped", expected=_REPAIRED)
    limit = health_terms()["rows"].get(gpu.vendor, {}).get("limit")
    if rows is not None and limit is not None and rows >= limit:
        reason = f"{rows} rows are remapped, and the GPU has {limit} for it: replace the GPU"
        return Judgement(Verdict.FAIL, reason, rows, "1", at_most(limit - 1, "docs/health.md"))
    if memory.exhausted_banks:
        reason = f"{memory.exhausted_banks} banks have no spare row left: watch it"
        return Judgement(Verdict.UNVERIFIED, reason, memory.exhausted_banks, "1", _NO_ERROR)
    if memory.remap_failed is None and memory.beyond_repair is None:
        return None
    return Judgement(Verdict.PASS, f"{rows} rows are remapped" if rows else "", rows, "1")


def retired_pages(gpu: Gpu, gpus: Sequence[Gpu], target: Target | None) -> Judgement | None:
    """Retired pages, against the vendor's limits."""
    retired = gpu.memory.retired_pages
    if not retired:
        return None
    count = sum(retired.values())
    limits = health_terms()["pages"].get(gpu.vendor, {})
    limit = limits.get("limit")
    if limit is None and "limit_bytes" in limits and gpu.memory_bytes:
        limit = gpu.memory_bytes // limits["limit_bytes"]
    causes = ", ".join(f"{name} {number}" for name, number in retired.items() if number)
    expected = at_most(max(limit - 1, 0), "docs/health.md") if limit is not None else None
    if limit is not None and count >= limit:
        reason = f"{count} pages are retired ({causes}), and {limit} are the limit: replace the GPU"
        return Judgement(Verdict.FAIL, reason, count, "1", expected)
    if retired.get(_UNRESERVED):
        reason = f"{retired[_UNRESERVED]} bad pages could not be taken out of use: reset the GPU"
        return Judgement(Verdict.UNVERIFIED, reason, count, "1", action=Action.RESET)
    if count >= limits.get("notice", math.inf):
        return Judgement(
            Verdict.UNVERIFIED, f"{count} pages are retired ({causes}): watch it", count, "1"
        )
    if count and limit is None:
        reason = f"{count} pages are retired ({causes}), and no limit is known"
        return Judgement(Verdict.UNVERIFIED, reason, count, "1")
    reason = f"{count} pages are retired" if count else ""
    return Judgement(Verdict.PASS, reason, count, "1", expected)


def pcie_replays(gpu: Gpu, gpus: Sequence[Gpu], target: Target | None) -> Judgement | None:
    """PCI Express replays; vendors limit them per minute, and one reading has no duration."""
    count, limit = gpu.pcie.replays, health_terms()["replays"]["per_minute"]
    if count is None:
        return None
    expected = at_most(limit, "docs/health.md")
    if count <= limit:
        return Judgement(Verdict.PASS, f"{count} since the counter began", count, "1", expected)
    reason = f"{count} packets were sent again since the counter began; vendors allow {limit} a "
    return Judgement(
        Verdict.UNVERIFIED, f"{reason}minute: see whether it grows", count, "1", expected
    )


def throttling(gpu: Gpu, gpus: Sequence[Gpu], target: Target | None) -> Judgement | None:
    """Active throttle reasons, by kind; power limits and settings are not faults."""
    active = gpu.state.throttling
    if active is None:
        return None
    words, kinds = health_terms()["throttling"].get(gpu.vendor, {}), health_terms()["kinds"]
    unknown = [reason for reason in active if reason.lower() not in words]
    faults = [r for r in active if r not in unknown and kinds[words[r.lower()]]["fault"]]
    if faults:
        action = kinds[words[faults[0].lower()]]["action"]
        value = ", ".join(faults)
        return Judgement(Verdict.FAIL, f"slowed by {value}: {action}", value, expected=_NOT_SLOWED)
    if unknown:
        return Judgement(Verdict.UNVERIFIED, f"slowed by {', '.join(unknown)}, of no known kind")
    reason = f"slowed by {', '.join(active)}, as designed" if active else ""
    return Judgement(Verdict.PASS, reason, "no fault", expected=_NOT_SLOWED)


def temperature(gpu: Gpu, gpus: Sequence[Gpu], target: Target | None) -> Judgement | None:
    """Each sensor against its limits, or the margin that the GPU states instead."""
    found = [seen for seen in _temperature_judgements(gpu) if seen is not None]
    order = (Verdict.FAIL, Verdict.UNVERIFIED, Verdict.PASS)
    worst = min(found, key=lambda seen: order.index(seen.verdict), default=None)
    if worst is None and gpu.state.temperatures_c:
        name, value = max(gpu.state.temperatures_c.items(), key=lambda pair: pair[1])
        if value < _UNUSUAL_C:
            return None
        reason = f"{name} is at {value:g} °C, and no source states its limit"
        return Judgement(Verdict.UNVERIFIED, reason, value, "°C")
    return worst


def _temperature_judgements(gpu: Gpu) -> Iterable[Judgement | None]:
    state = gpu.state
    if state.margin_c is not None and math.isfinite(state.margin_c):
        what = f"{state.margin_c:g} °C are left until it slows down"
        least = at_least(0, "the margin that the GPU states", "°C")
        yield _judge_margin(
            state.margin_c, what, "it is too hot, and slows down", state.margin_c, least
        )
    for name, value in state.temperatures_c.items():
        prefix = health_terms()["sensors"].get(name)
        limits = {what: state.limits_c.get(f"{prefix}{what}") for what in _LIMITS}
        known = {what: at for what, at in limits.items() if at is not None and at > 0}
        if prefix is None or not known or not math.isfinite(value):
            continue
        reached = [what for what, at in known.items() if value >= at]
        what = reached[-1] if reached else min(known, key=lambda each: known[each])
        words = f"{name} is at {value:g} °C, and its limit ({what}) at {known[what]:g} °C"
        most = at_most(known[what], f"the limit ({what}) that the GPU states", "°C")
        yield _judge_margin(known[what] - value, words, words, value, most)


def _judge_margin(
    left: float, near: str, over: str, value: float, expected: Mapping[str, Any]
) -> Judgement:
    if left <= 0:
        return Judgement(Verdict.FAIL, f"{over}: check the cooling", value, "°C", expected)
    if left < _NEAR_C:
        return Judgement(Verdict.UNVERIFIED, f"{near}: check the cooling", value, "°C", expected)
    return Judgement(Verdict.PASS, near, value, "°C", expected)


def power_limit(gpu: Gpu, gpus: Sequence[Gpu], target: Target | None) -> Judgement | None:
    """The power limit against the product's; a lower one is a setting, and is reported."""
    wanted = target.value("power.limit") if target is not None else None
    limit = gpu.state.power_limit_w
    # a die that shares its package's limit states 0
    if wanted is None or not limit or limit < 0:
        return None
    assert target is not None  # noqa: S101 - it states what is wanted
    expected = at_least(wanted, f"{target.id}: power.limit", "W")
    if limit < wanted - _WATT:
        reason = f"may draw {limit:g} W, and the product {wanted:g} W: it will be slower"
        return Judgement(Verdict.UNVERIFIED, reason, limit, "W", expected)
    return Judgement(Verdict.PASS, f"{limit:g} W", limit, "W", expected)


def declaration_problems() -> list[str]:
    """Why targets, vendors, their tables and their readers are left out, one sentence each.

    Reads all that packages declare, which is otherwise done when each is first used. Of this
    distribution's targets it reports what the process has asked for: all were checked at the build.
    """
    try:
        of_targets = [
            f"the targets of {each.entry_point}: {each.reason}" for each in target_problems()
        ]
        of_targets += [f"no target is matched: {each}" for each in wrong_files()]
    except TargetError as error:
        of_targets = [f"no target is matched: {error}"]
    for name in ("kernel_log", "answers"):
        table(name)
    health_terms()
    return [*of_targets, *problems(), *foreign_readers().problems]

"""Cross-checks between facts: what a number must be, given the others.

Each rule checks one relation that a copied figure often breaks: a rate with sparsity entered as
dense, both directions of a link entered as one, one chiplet's cache entered as the total. A rule
whose facts are missing reports nothing.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from portagpu.facts.pcie import LANE_GB_S
from portagpu.facts.targets.model import DTYPE_BITS, peak_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from portagpu.facts.targets.model import Fact


@dataclass(frozen=True, slots=True)
class Violation:
    """``key`` breaks ``rule``; ``message`` gives both numbers."""

    key: str
    rule: str
    message: str


class Facts:
    """Facts by key, with numbers that are None where a fact is missing or not a number."""

    number: Callable[[str], float | None]

    def __init__(self, facts: Mapping[str, Fact]) -> None:
        self._facts = facts
        numbers: dict[str, float] = {
            key: fact.value
            for key, fact in facts.items()
            if isinstance(fact.value, int | float) and not isinstance(fact.value, bool)
        }
        # the rules ask for hundreds of numbers of every target
        self.number = numbers.get

    def items(self, key: str) -> tuple[int | str, ...] | None:
        fact = self._facts.get(key)
        return fact.value if fact is not None and isinstance(fact.value, tuple) else None

    def text(self, key: str) -> str | None:
        fact = self._facts.get(key)
        return fact.value if fact is not None and isinstance(fact.value, str) else None

    def __contains__(self, key: str) -> bool:
        return key in self._facts


def _unequal_product(
    facts: Facts, rule: str, key: str, tolerance: float, text: str, *factors: str
) -> Iterator[Violation]:
    """``key`` must be the product of ``factors`` within ``tolerance``."""
    value = facts.number(key)
    numbers = [facts.number(each) for each in factors]
    if value is None or any(each is None for each in numbers):
        return
    right = math.prod(each for each in numbers if each is not None)
    if abs(value - right) > tolerance * right:
        yield Violation(key, rule, f"{value:g} must be {text}, which is {right:g}")


def _above_limit(facts: Facts, rule: str, key: str, other: str) -> Iterator[Violation]:
    low, high = facts.number(key), facts.number(other)
    if low is not None and high is not None and low > high:
        yield Violation(key, rule, f"{low:g} must not exceed {other}, which is {high:g}")


def _threads(facts: Facts) -> Iterator[Violation]:
    waves, simds = "exec.max_waves_per_unit", "exec.simds_per_unit"
    per_simd, size = "exec.max_waves_per_simd", "exec.wave_size_default"
    yield from _unequal_product(
        facts, "waves-per-unit", waves, 0, f"{per_simd} x {simds}", per_simd, simds
    )
    threads = "exec.max_threads_per_unit"
    yield from _unequal_product(
        facts, "threads-per-unit", threads, 0, f"{waves} x {size}", waves, size
    )
    yield from _above_limit(facts, "threads-per-block", "exec.max_threads_per_block", threads)
    sizes, default = facts.items("exec.wave_sizes_supported"), facts.number(size)
    if sizes is not None and default is not None and default not in sizes:
        yield Violation(size, "wave-size", f"{default:g} is not in exec.wave_sizes_supported")


def _registers(facts: Facts) -> Iterator[Violation]:
    file = "register.file_per_unit"
    factors = ("register.entries_per_simd", "exec.simds_per_unit", "exec.wave_size_default")
    yield from _unequal_product(facts, "register-file", file, 0, " x ".join(factors), *factors)
    yield from _above_limit(facts, "register-file", "register.max_per_block", file)


def _scalar_registers(facts: Facts) -> Iterator[Violation]:
    """Check that each step allows one wave more than the next, up to a full SIMD."""
    least, steps = "register.scalar_least_waves", facts.items("register.scalar_steps")
    lowest, most = facts.number(least), facts.number("exec.max_waves_per_simd")
    if steps is None or lowest is None or most is None:
        return
    if lowest + len(steps) != most:
        yield Violation(
            least,
            "scalar-steps",
            f"{lowest:g} and {len(steps)} steps must be exec.max_waves_per_simd, which is {most:g}",
        )


def _shared_memory(facts: Facts) -> Iterator[Violation]:
    rule, optin = "shared-memory-order", "shared_memory.per_block_optin"
    unit = "shared_memory.per_unit"
    yield from _above_limit(facts, rule, "shared_memory.per_block_default", optin)
    yield from _above_limit(facts, rule, optin, unit)
    most, reserved, have = (
        facts.number(optin),
        facts.number("shared_memory.reserved_per_block"),
        facts.number(unit),
    )
    if most is not None and reserved is not None and have is not None and most + reserved > have:
        yield Violation(
            optin, rule, f"{most:g} and the {reserved:g} reserved for a block exceed {have:g}"
        )
    carveouts = facts.items("shared_memory.carveouts")
    if carveouts and have is not None and max(int(each) for each in carveouts) * 1024 != have:
        yield Violation(
            "shared_memory.carveouts",
            "shared-memory-carveout",
            f"the greatest must be {unit}, {have / 1024:g} KiB",
        )


def _sparsity(facts: Facts) -> Iterator[Violation]:
    """Check that 2:4 sparsity has twice the dense rate, because it skips half of the products.

    Within 2 %: data sheets round the two figures apart (362.05 and 733 for one product).
    """
    stated = facts.items("matrix.sparse_dtypes")
    for dtype in DTYPE_BITS:
        for matrix in (True, False):
            dense_key = peak_key(dtype, sparse=False, matrix=matrix)
            sparse_key = peak_key(dtype, sparse=True, matrix=matrix)
            dense, sparse = facts.number(dense_key), facts.number(sparse_key)
            if sparse is not None and dense is None:
                yield Violation(
                    sparse_key, "sparse-needs-dense", f"state {dense_key} too: it is half of this"
                )
            elif sparse is not None and dense is not None:
                if abs(sparse - 2 * dense) > 0.02 * 2 * dense:
                    yield Violation(
                        dense_key,
                        "sparse-is-twice-dense",
                        f"{dense:g} must be half of {sparse_key}, which is {sparse:g}; "
                        "is one of them quoted in the other's place?",
                    )
            elif dense is not None and matrix and stated is not None and dtype in stated:
                yield Violation(
                    dense_key,
                    "sparsity-stated",
                    f"state {sparse_key} too: this architecture has both, and quoted figures "
                    "mix them up",
                )


def _matrix_dtypes(facts: Facts) -> Iterator[Violation]:
    dtypes = facts.items("matrix.dtypes")
    flavour = "matrix.fp8_flavour"
    if dtypes is None:
        return
    if ("fp8" in dtypes) != (flavour in facts):
        yield Violation(flavour, "fp8-flavour", "state it exactly when matrix.dtypes has fp8")
    for dtype in facts.items("matrix.sparse_dtypes") or ():
        if dtype not in dtypes:
            yield Violation(
                "matrix.sparse_dtypes", "matrix-dtype", f"{dtype} is not in matrix.dtypes"
            )
    for dtype in DTYPE_BITS:
        key = peak_key(dtype, sparse=False, matrix=True)
        for each in (key, f"matrix.rate.{dtype}", f"matrix.tile.{dtype}"):
            if each in facts and dtype.removesuffix("_acc16") not in dtypes:
                yield Violation(
                    each, "matrix-dtype", f"the matrix unit has no {dtype} (matrix.dtypes)"
                )


def _compile(facts: Facts) -> Iterator[Violation]:
    """Check that a target has Triton's route or a reason, and patterns only for its dtypes."""
    routes, without = "compile.routes", "compile.without"
    triton = "triton" in (facts.items(routes) or ())
    if triton and without in facts:
        yield Violation(without, "compile-routes", f"leave it out: {routes} has triton")
    if routes in facts and not triton and without not in facts:
        yield Violation(without, "compile-routes", f"say why {routes} has no triton")
    dtypes = facts.items("matrix.dtypes") or ()
    for dtype in DTYPE_BITS:
        key = f"compile.matrix.{dtype}"
        pattern = facts.text(key)
        if pattern is None:
            continue
        if dtype not in dtypes:
            yield Violation(key, "compile-dtype", f"the matrix unit has no {dtype} (matrix.dtypes)")
        try:
            re.compile(pattern)
        except re.error as error:
            yield Violation(key, "compile-pattern", f"is not a regular expression: {error}")


def _slower_when_narrower(facts: Facts) -> Iterator[Violation]:
    """Check that a narrower float is never slower on a unit. Not integers: some parts drop int8."""
    floats = [dtype for dtype in DTYPE_BITS if not dtype.startswith("int") and "_acc" not in dtype]
    for sparse in (False, True):
        for matrix in (True, False):
            rates = [
                (DTYPE_BITS[dtype], key, rate)
                for dtype in floats
                if (rate := facts.number(key := peak_key(dtype, sparse=sparse, matrix=matrix)))
            ]
            for bits, key, rate in rates:
                for wider_bits, wider, wider_rate in rates:
                    if bits < wider_bits and rate < 0.99 * wider_rate:
                        yield Violation(
                            key,
                            "narrower-not-slower",
                            f"{rate:g} is below the wider {wider}, which is {wider_rate:g}",
                        )


def _peak_from_clock(facts: Facts) -> Iterator[Violation]:
    """Check dense peak = units x operations per clock x clock, which finds sparse peaks."""
    units = facts.number("exec.unit_count")
    for unit in ("matrix", "vector"):
        clock = facts.number(f"peak.clock.{unit}")
        if units is None or clock is None:
            continue
        for dtype in DTYPE_BITS:
            rate = facts.number(f"{unit}.rate.{dtype}")
            key = peak_key(dtype, sparse=False, matrix=unit == "matrix")
            peak = facts.number(key)
            if rate is None or peak is None:
                continue
            computed = units * rate * clock * 1e6 / 1e12
            if abs(peak - computed) > 0.02 * computed:
                yield Violation(
                    key,
                    "peak-from-clock",
                    f"{peak:g} must be exec.unit_count x {unit}.rate.{dtype} x "
                    f"peak.clock.{unit}, which is {computed:g}",
                )


def _links(facts: Facts) -> Iterator[Violation]:
    for part in ("per_link", "total"):
        one, both = f"link.{part}_per_direction", f"link.{part}_bidirectional"
        one_way, both_ways = facts.number(one), facts.number(both)
        if (one_way is None) != (both_ways is None):
            have, lack = (both, one) if one_way is None else (one, both)
            yield Violation(
                have, "link-directions", f"state {lack} too, so that neither is taken for the other"
            )
        elif (
            one_way is not None
            and both_ways is not None
            and abs(both_ways - 2 * one_way) > 0.01 * both_ways
        ):
            yield Violation(
                both, "link-directions", f"{both_ways:g} must be twice {one}, which is {one_way:g}"
            )
    for direction in ("per_direction", "bidirectional"):
        total, each = f"link.total_{direction}", f"link.per_link_{direction}"
        yield from _unequal_product(
            facts, "link-total", total, 0.01, f"link.count x {each}", "link.count", each
        )


def _caches(facts: Facts) -> Iterator[Violation]:
    total, each, count = "cache.l2_total", "cache.l2_per_chiplet", "exec.chiplet_count"
    yield from _unequal_product(facts, "l2-total", total, 0.01, f"{count} x {each}", count, each)
    chiplets = facts.number(count)
    if total in facts and each not in facts and chiplets is not None and chiplets > 1:
        yield Violation(
            total, "l2-total", f"state {each} too: devices with chiplets report one chiplet's cache"
        )


def _host_link(facts: Facts) -> Iterator[Violation]:
    generation = facts.number("host_link.pcie_generation")
    lanes, rate = facts.number("host_link.pcie_lanes"), facts.number("host_link.per_direction")
    per_lane = None if generation is None else LANE_GB_S.get(int(generation))
    if lanes is None or rate is None or per_lane is None:
        return
    computed = per_lane * lanes
    # 3 %: the round figures in use (64 for 63.0) pass, a factor of 2 or 8 does not
    if abs(rate - computed) > 0.03 * computed:
        yield Violation(
            "host_link.per_direction",
            "pcie-rate",
            f"{rate:g} must be what PCIe {generation:g} x{lanes:g} carries one way, {computed:.1f}",
        )


def fits_sold(reported_bytes: float, sold_gb: float) -> bool:
    """Whether a device that reports this many bytes can be sold as one of ``sold_gb``.

    A seller's GB is 1e9 or 2^30 bytes. A device reports less what the driver and, where it lies in
    the same memory, error correction keep (6.25 % of it on boards with GDDR6).
    """
    return 0.85 * sold_gb * 1e9 <= reported_bytes <= 1.01 * sold_gb * 2**30


def _memory(facts: Facts) -> Iterator[Violation]:
    """Check that one fact states the sold memory, and that the reported memory fits it."""
    one, several = "memory.size", "memory.sizes"
    if one in facts and several in facts:
        yield Violation(several, "memory-size", f"leave it out: {one} says that there is one")
    size, sizes = facts.number(one), facts.items(several)
    sold = [size] if size is not None else [float(each) for each in sizes or ()]
    reported = facts.number("memory.reported")
    if not sold or reported is None:
        return
    if not any(fits_sold(reported, each) for each in sold):
        stated = " or ".join(f"{each:g}" for each in sold)
        yield Violation(
            "memory.reported", "memory-size", f"{reported:g} B does not fit {stated} GB of memory"
        )


RULES: Final[tuple[Callable[[Facts], Iterator[Violation]], ...]] = (
    _threads,
    _registers,
    _scalar_registers,
    _shared_memory,
    _matrix_dtypes,
    _compile,
    _peak_from_clock,
    _sparsity,
    _slower_when_narrower,
    _links,
    _caches,
    _host_link,
    _memory,
)


def violations(facts: Mapping[str, Fact]) -> Iterator[Violation]:
    """Every relation between ``facts`` that does not hold."""
    view = Facts(facts)
    for rule in RULES:
        yield from rule(view)

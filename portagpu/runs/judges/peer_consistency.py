"""Peer consistency: GPUs of one product must be alike; the outlier of a majority is named."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from portagpu.runs.judges.peers import majority
from portagpu.runs.results.expectations import exactly
from portagpu.runs.results.judgement import Judgement
from portagpu.runs.results.verdicts import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

    from portagpu.machine.inventory.gpu import Gpu

_MEMORY: Final = 0.02
"""Tolerance: sources state memory with or without the driver's share (``inventory/merge.py``)."""


@dataclass(frozen=True, slots=True)
class _Trait:
    """One property to compare. ``verdict`` is the outlier's: UNVERIFIED where it may be intended.

    Numbers agree if they differ by no more than ``tolerance`` of the larger one.
    """

    what: str
    value: Callable[[Gpu], Any]
    verdict: Verdict
    shown: Callable[[Any], str] = str
    tolerance: float = 0.0

    def agrees(self, one: Any, two: Any) -> bool:
        if not self.tolerance:
            return bool(one == two)
        return bool(abs(one - two) <= self.tolerance * max(abs(one), abs(two)))


def _on_or_off(flag: bool) -> str:
    return "on" if flag else "off"


def _whole_memory(gpu: Gpu) -> int | None:
    return None if gpu.mig_enabled or gpu.parts else gpu.memory_bytes


_TRAITS: Final = (
    _Trait("memory", _whole_memory, Verdict.FAIL, lambda size: f"{size / 2**30:.1f} GiB", _MEMORY),
    _Trait("driver's version", lambda gpu: gpu.driver_version, Verdict.FAIL),
    _Trait("ECC", lambda gpu: gpu.memory.ecc_enabled, Verdict.FAIL, _on_or_off),
    # a die that shares its package's limit states 0
    _Trait(
        "power limit",
        lambda gpu: gpu.state.power_limit_w or None,
        Verdict.FAIL,
        lambda watts: f"{watts:g} W",
    ),
    _Trait(
        "highest clock", lambda gpu: gpu.state.max_clock_mhz, Verdict.FAIL, lambda f: f"{f:g} MHz"
    ),
    _Trait(
        "highest memory clock",
        lambda gpu: gpu.state.max_memory_clock_mhz,
        Verdict.FAIL,
        lambda f: f"{f:g} MHz",
    ),
    _Trait("number of PCIe lanes", lambda gpu: gpu.pcie.width, Verdict.FAIL),
    _Trait("MIG mode", lambda gpu: gpu.mig_enabled, Verdict.UNVERIFIED, _on_or_off),
    _Trait("compute partitioning", lambda gpu: gpu.compute_partition, Verdict.UNVERIFIED),
    _Trait("memory partitioning", lambda gpu: gpu.memory_partition, Verdict.UNVERIFIED),
)


def gpu_key(gpu: Gpu) -> str:
    """The GPU's name in results: its address, else its UUID, else its number in a source."""
    if gpu.pci or gpu.uuid:
        return gpu.pci or gpu.uuid or ""
    source, index = next(iter(gpu.indices.items()), (gpu.vendor, None))
    return f"{source} GPU" if index is None else f"{source} GPU {index}"


def product_key(gpu: Gpu) -> Hashable:
    """A key that GPUs of one product share."""
    return gpu.vendor, gpu.device_id or gpu.name or gpu.arch


def judge_peer_consistency(gpus: Sequence[Gpu]) -> Iterator[Judgement]:
    """One judgement for each difference from the majority, for two or more GPUs of a product.

    Different products of a vendor may be intended, and are UNVERIFIED. So is a difference without a
    majority, which blames no GPU.
    """
    found: list[Judgement] = []
    compared: list[str] = []
    vendors: dict[str, list[Gpu]] = {}
    products: dict[Hashable, list[Gpu]] = {}
    for gpu in gpus:
        vendors.setdefault(gpu.vendor, []).append(gpu)
        products.setdefault(product_key(gpu), []).append(gpu)
    name = _Trait("product", lambda gpu: gpu.name, Verdict.UNVERIFIED)
    for group in vendors.values():
        found += _differences(name, group, compared)
    for group in products.values():
        kinds = dict.fromkeys(kind for gpu in group for kind in gpu.firmware)
        firmware = [
            _Trait(
                f"firmware ({kind})",
                lambda gpu, kind=kind: gpu.firmware.get(kind),  # type: ignore[misc]
                Verdict.UNVERIFIED,
            )
            for kind in kinds
        ]
        for trait in (*_TRAITS, *firmware):
            found += _differences(trait, group, compared)
    yield from found
    if compared and not found:
        what = ", ".join(dict.fromkeys(compared))
        reason, none = f"{len(gpus)} GPUs are alike: {what}", exactly(0, "differences of peers")
        yield Judgement(Verdict.PASS, reason, 0, "1", none, name="peers")


def _differences(trait: _Trait, gpus: Sequence[Gpu], compared: list[str]) -> Iterator[Judgement]:
    stated = [(gpu, value) for gpu in gpus if (value := trait.value(gpu)) is not None]
    if len(stated) < 2:
        return
    compared.append(trait.what)
    usual, count, decided = majority([value for _, value in stated], trait.agrees)
    if count == len(stated):
        return
    if not decided:
        (one, has), (other, differs) = (
            stated[0],
            next(each for each in stated if not trait.agrees(stated[0][1], each[1])),
        )
        yield Judgement(
            Verdict.UNVERIFIED,
            f"the {trait.what} of {gpu_key(one)} is {trait.shown(has)} and that of "
            f"{gpu_key(other)} {trait.shown(differs)}; without a majority nobody can say which is "
            "wrong",
            name="peers",
        )
        return
    for gpu, value in stated:
        if not trait.agrees(usual, value):
            reason = f"{gpu_key(gpu)}: {trait.what} {trait.shown(value)}"
            reason += f", {count} peers {trait.shown(usual)}"
            yield Judgement(
                trait.verdict,
                reason,
                f"{trait.what} {trait.shown(value)}",
                expected=exactly(f"{trait.what} {trait.shown(usual)}", "what most peers have"),
                name="peers",
                device=gpu_key(gpu),
            )

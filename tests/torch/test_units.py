"""A wrong product again by a kernel that records units, which stands here for the one in Triton."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

torch: Any = pytest.importorskip("torch")

from portagpu.devices import registry
from portagpu.devices.machine_code import UnitPart, UnitReading
from portagpu.runs.results.verdicts import Verdict
from portagpu.suites.screen.judge import Screened
from portagpu.suites.screen.ranks import _Share, _Slot
from portagpu.suites.screen.tally import Tally
from portagpu.train.exact.draws import Draws
from portagpu.train.exact.probes import PROBES
from portagpu.train.exact.units import RUNS, find_units
from portagpu.train.kernels.by_unit import ByUnit, copies_for
from portagpu.train.kernels.plan import BY_UNIT

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.torch

UNITS = 7
TILE = (64, 64)
READING = UnitReading(
    assembly=("read $0",),
    constraint="=r",
    registers=("UNIT",),
    parts=(UnitPart("SM", 0, 32),),
    source="this test",
)


class GpuOfUnits:
    """The CPU, with units that can be read."""

    def __init__(self, reading: UnitReading | None = READING) -> None:
        cpu = registry.backend("cpu")
        self.cpu, self.arch = cpu, SimpleNamespace(name="sm_1", warp_size=None)
        self.sizing = SimpleNamespace(unit_count=UNITS)
        toolchain = SimpleNamespace(unit_reading=lambda arch: reading)
        self.plugin = SimpleNamespace(toolchain=lambda: toolchain)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cpu, name)


def product_with(fault: Callable[[Any, int], None]) -> Callable[..., ByUnit]:
    """A product whose program ``p`` runs on unit ``p % UNITS``; ``fault`` has tile and unit."""

    def product(a: Any, b: Any, reading: Any, *, copies: int = 1, shift: int = 0) -> ByUnit:
        wide = torch.int64 if a.dtype is torch.int8 else torch.float64
        exact = a.to(wide) @ b.to(wide)
        results = exact.to(torch.int32 if a.dtype is torch.int8 else torch.float32)
        results = results.expand(copies, *exact.shape).clone()
        rows, columns = (-(-size // side) for size, side in zip(exact.shape, TILE, strict=True))
        units = torch.zeros((copies, rows, columns), dtype=torch.int64)
        for program in range(units.numel()):
            tile, unit = (program + shift) % units.numel(), program % UNITS
            units.view(-1)[tile] = unit
            copy, place = divmod(tile, rows * columns)
            row, column = (place // columns) * TILE[0], (place % columns) * TILE[1]
            fault(results[copy, row : row + TILE[0], column : column + TILE[1]], unit)
        return ByUnit(results, units, TILE)

    return product


def unit_3_is_wrong(tile: Any, unit: int) -> None:
    if unit == 3:
        tile[5 % tile.shape[0]].add_(1)


def after(runs: int) -> Callable[[], bool]:
    """What is false after that many runs."""
    left = iter(range(1, runs))
    return lambda: next(left, None) is not None


def made(name: str, gpu: Any) -> Any:
    (probe,) = [each for each in PROBES if each.name == name]
    return probe.make(gpu, Draws(1, gpu.device), 1)


@pytest.mark.parametrize(
    "name",
    [
        "products/float16[square]",
        "products/bfloat16[square,float32]",
        "products/float32[odd]",
        "products/float32[full]",
        "products/int8[square]",
    ],
)
def test_a_faulty_unit_is_found_by_each_kind_of_product(name: str) -> None:
    gpu: Any = GpuOfUnits()
    work = made(name, gpu)
    found = find_units(gpu, work, after(4), product_with(unit_3_is_wrong))
    assert found is not None
    assert found.sentence == "wrong tiles ran on SM 3 in 4 of 4 runs; consistent with one unit"
    right = find_units(gpu, work, lambda: False, product_with(lambda tile, unit: None))
    assert right is not None
    assert "this kernel does not show it" in right.sentence


def test_runs_end_by_themselves() -> None:
    gpu: Any = GpuOfUnits()
    work = made("products/float32[thin]", gpu)
    found = find_units(gpu, work, lambda: True, product_with(unit_3_is_wrong))
    assert found is not None
    assert (found.runs, found.wrong_runs) == (RUNS, RUNS)


def test_a_wrong_place_on_every_unit_is_not_one_unit() -> None:
    gpu: Any = GpuOfUnits()
    work = made("products/float32[square]", gpu)
    # no copy is right, so that each is judged by the row check
    found = find_units(gpu, work, lambda: False, product_with(lambda tile, unit: tile[0].add_(1)))
    assert found is not None
    assert (found.runs, found.wrong_runs) == (1, 1)
    assert f"{UNITS} of {UNITS} units" in found.sentence


def test_every_product_of_a_probe_is_computed_or_says_why_not() -> None:
    gpu: Any = GpuOfUnits()
    for probe in PROBES:
        if probe.area != "products" or probe.refuses(gpu.cpu):
            continue
        work = probe.make(gpu, Draws(1, gpu.device), 1)
        found = find_units(gpu, work, lambda: False, product_with(lambda tile, unit: None))
        assert found is not None, probe.name
        kind = probe.name.removeprefix("products/").partition("[")[0]
        assert (found.runs == 1) == (kind in BY_UNIT), found.sentence
        if kind not in BY_UNIT:
            assert kind in found.sentence


def test_other_work_and_devices_without_a_toolchain_say_nothing() -> None:
    gpu: Any = GpuOfUnits()
    work = made("vectors/float32[add]", gpu)
    assert find_units(gpu, work, lambda: True) is None
    assert find_units(gpu.cpu, made("products/float32[thin]", gpu), lambda: True) is None


def test_without_a_reading_and_without_triton_it_says_so() -> None:
    gpu: Any = GpuOfUnits(reading=None)
    found = find_units(gpu, made("products/float32[thin]", gpu), lambda: True)
    assert found is not None
    assert "the unit is not known; no document says how code reads it" in found.sentence
    gpu = GpuOfUnits()
    found = find_units(gpu, made("products/float32[thin]", gpu), lambda: True)
    assert found is not None
    assert found.sentence.startswith("the unit is not known; Unsupported: ")


def test_copies_fill_the_device_within_their_memory() -> None:
    a, b = torch.zeros((130, 8), dtype=torch.float16), torch.zeros((8, 64), dtype=torch.float16)
    # three tiles of 64 rows a copy
    assert copies_for(a, b, 100, max_bytes=1 << 30) == 34
    assert copies_for(a, b, 100, max_bytes=2 * 4 * 130 * 64) == 2
    assert copies_for(a, b, 100, max_bytes=1) == 1


def asking(gpu: Any, name: str) -> tuple[_Share, list[tuple[str, dict[str, Any]]]]:
    """The share of a screen that has one probe, and the steps that its rank reports."""
    steps: list[tuple[str, dict[str, Any]]] = []
    rank: Any = SimpleNamespace(
        gpu=gpu, tell_alive=lambda: None, step=lambda step, **data: steps.append((step, data))
    )
    (probe,) = [each for each in PROBES if each.name == name]
    sampler: Any = SimpleNamespace(latest=dict)
    share = _Share(
        rank=rank,
        campaign=1,
        published_seed=0,
        seconds=None,
        batches=1,
        runs=4,
        together=False,
        sampler=sampler,
        slots=[_Slot(probe, 0, -1)],
        free_bytes=1 << 30,
    )
    return share, steps


def test_a_screen_reports_a_wrong_product_before_it_asks_for_its_units() -> None:
    """With the kernel in Triton, which does not run on a CPU, and says so."""
    gpu: Any = GpuOfUnits()
    name = "products/float32[thin]"
    share, steps = asking(gpu, name)
    said = share.units(name, made(name, gpu), {"count": 3})["units"]["sentence"]
    assert said.startswith("the unit is not known; Unsupported: ")
    assert steps == [(name, {"record": {"failure": {"count": 3}}}), (f"{name} by unit", {})]
    tally = Tally()
    for _, data in steps[:1]:
        tally.add(data["record"])
    device = Screened("cuda:0", 0, tallies={name: tally})
    device.lose({"verdict": Verdict.FAIL}, "it died", f"{name} by unit")
    assert tally.failure == {"count": 3}
    assert tally.ended is None


def test_a_screen_asks_for_no_units_of_other_work_and_of_collectives() -> None:
    gpu: Any = GpuOfUnits()
    share, steps = asking(gpu, "products/float32[thin]")
    assert share.units("vectors/a", made("vectors/float32[add]", gpu), {}) == {}
    share.together = True
    assert share.units("products/a", made("products/float32[thin]", gpu), {}) == {}
    assert not steps

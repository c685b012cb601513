"""On which units wrong tiles ran: names of units, tiles, and what is said of them."""

from __future__ import annotations

from typing import Any

import pytest

from portagpu.suites.screen.judge import Screened, results_of
from portagpu.suites.screen.tally import Tally
from portagpu.train.exact.units import Found, Tile, tiles_of
from portagpu_cuda_build import machine_code as cuda
from portagpu_rocm_build import machine_code as rocm

UNITS = 8
PLACES = 4


def word(arch: str, registers: dict[str, int]) -> int:
    """What the instructions of an architecture read of registers with these bits."""
    reading = rocm.TOOLCHAIN.unit_reading(arch)
    assert reading is not None
    words = 0
    for number, text in enumerate(reading.registers):
        name, low, bits = text.removeprefix("hwreg(").removesuffix(")").split(", ")
        words |= (registers[name] >> int(low) & ((1 << int(bits)) - 1)) << (32 * number)
    return words


def named(arch: str, words: int) -> str:
    reading = rocm.TOOLCHAIN.unit_reading(arch)
    assert reading is not None
    return reading.name(words)


# the bits that HIP's header and Linux's gc_12_0_0_sh_mask.h state; all others are set
@pytest.mark.parametrize(
    ("arch", "registers", "said"),
    [
        ("gfx906", {"HW_REG_HW_ID": ~0xFF00 | 11 << 8 | 1 << 12 | 3 << 13}, "SE 3 SH 1 CU 11"),
        ("gfx908", {"HW_REG_HW_ID": ~0xFF00 | 5 << 8 | 7 << 13}, "SE 7 SH 0 CU 5"),
        ("gfx90a", {"HW_REG_HW_ID": ~0xFF00 | 15 << 8 | 4 << 13}, "SE 4 SH 0 CU 15"),
        (
            "gfx942",
            {"HW_REG_HW_ID": ~0xFF00 | 9 << 8 | 2 << 13, "HW_REG_XCC_ID": ~0xF | 6},
            "XCC 6 SE 2 SH 0 CU 9",
        ),
        (
            "gfx950",
            {"HW_REG_HW_ID": ~0xFF00 | 3 << 8 | 1 << 13, "HW_REG_XCC_ID": ~0xF | 7},
            "XCC 7 SE 1 SH 0 CU 3",
        ),
        ("gfx1030", {"HW_REG_HW_ID1": ~0xD3C00 | 4 << 10 | 2 << 18}, "SE 2 SA 0 WGP 4"),
        ("gfx1100", {"HW_REG_HW_ID1": ~0x1D3C00 | 7 << 10 | 1 << 16 | 5 << 18}, "SE 5 SA 1 WGP 7"),
        ("gfx1201", {"HW_REG_HW_ID1": ~0x1D3C00 | 2 << 10 | 1 << 16 | 3 << 18}, "SE 3 SA 1 WGP 2"),
    ],
)
def test_a_unit_has_the_numbers_of_the_vendor_s_registers(
    arch: str, registers: dict[str, int], said: str
) -> None:
    words = word(arch, registers)
    assert named(arch, words) == said
    # as an int64 of torch has them, where the highest bit is set
    assert named(arch, words - (1 << 64)) == said


def test_an_sm_has_the_number_of_smid() -> None:
    reading = cuda.TOOLCHAIN.unit_reading("sm_90")
    assert reading is not None
    assert reading.name(17) == "SM 17"
    assert "%smid" in reading.assembly[0]


def test_without_documented_bits_there_is_no_reading() -> None:
    assert rocm.TOOLCHAIN.unit_reading("gfx1250") is None


def test_elements_belong_to_the_tile_that_has_them() -> None:
    """Two copies of 3 x 5 in tiles of 2 x 2: two rows of three tiles a copy."""
    units = list(range(12))
    # (row 2, column 4) of the first copy is its last tile; (row 0, column 2) of the second one
    found = tiles_of([14, 15 + 2], (3, 5), (2, 2), units, "unit {}".format)
    assert [each.unit for each in found if each.wrong] == ["unit 5", "unit 7"]
    assert [each.place for each in found] == [*range(6), *range(6)]


def runs(faulty: dict[int, set[int]], *, count: int = 40, units: int = UNITS) -> Found:
    """Runs in which each unit computes each place; ``faulty`` has the runs that a unit spoils."""
    found = Found()
    for run in range(count):
        found.add(
            [
                Tile(place, f"SM {unit}", run in faulty.get(unit, ()) and place != 0)
                for unit in range(units)
                for place in range(PLACES)
            ]
        )
    return found


def test_one_faulty_unit_is_named_and_never_proved() -> None:
    found = runs({5: {*range(40)}})
    assert found.sentence == "wrong tiles ran on SM 5 in 40 of 40 runs; consistent with one unit"
    assert found.to_json()["units"] == {
        "SM 5": {"wrong_runs": 40, "wrong_tiles": 120, "tiles": 160}
    }
    assert found.to_json()["units_used"] == UNITS


def test_a_unit_that_is_wrong_at_times_has_its_number_of_runs() -> None:
    said = runs({5: {3, 4, 30}}).sentence
    assert said == "wrong tiles ran on SM 5 in 3 of 40 runs; consistent with one unit"


def test_several_units_are_not_one() -> None:
    found = runs({5: {*range(40)}, 2: {7}})
    assert (
        found.sentence
        == "wrong tiles ran on 2 of 8 units (SM 5 in 40, SM 2 in 1 of 40 runs); not one unit"
    )
    everywhere = runs({unit: {*range(40)} for unit in range(UNITS)})
    assert "8 of 8 units" in everywhere.sentence
    assert not everywhere.is_consistent


def test_a_right_product_says_that_it_does_not_show_the_fault() -> None:
    said = runs({}).sentence
    assert "was right in 40 runs: this kernel does not show it" in said


def test_one_wrong_tile_names_no_unit() -> None:
    found = Found()
    found.add([Tile(0, "SM 1", True), *(Tile(0, f"SM {unit}", False) for unit in range(2, 9))])
    assert found.sentence == "wrong tiles ran on SM 1 in 1 of 1 run (1 tile); that names no unit"


def test_a_place_that_no_other_unit_had_right_names_no_unit() -> None:
    """The fault may be of the place in the product: of its operands, or of the program."""
    found = Found()
    for _ in range(40):
        found.add([Tile(place, f"SM {place}", place == 3) for place in range(UNITS)])
    assert not found.is_consistent
    assert "names no unit" in found.sentence
    # with another unit that has it right
    found.add([Tile(place, f"SM {(place + 1) % UNITS}", place == 2) for place in range(UNITS)])
    assert found.is_consistent


def test_a_device_of_one_unit_has_no_other_to_compare_with() -> None:
    assert not runs({0: {*range(40)}}, units=1).is_consistent


def test_why_there_were_no_runs_is_said() -> None:
    assert Found(problem="Triton is missing").sentence == "the unit is not known; Triton is missing"
    found = runs({}, count=2)
    found.problem = "out of memory"
    assert found.sentence.endswith("right in 2 runs: this kernel does not show it; out of memory")


def test_a_failure_of_a_screen_says_it() -> None:
    failure: dict[str, Any] = {
        "batch": 1,
        "seed": 2,
        "scale": 1,
        "count": 8,
        "of": 256,
        "where": None,
        "repeated": 100,
        "repeated_wrong": 100,
        "outcomes": 1,
        "digest": "ab",
    }
    reasons = []
    for units in ({}, {"units": runs({5: {*range(40)}}).to_json()}):
        device = Screened("cuda:0", 0, tallies={"products/a": Tally()})
        device.tallies["products/a"].add({"results": 256, "failure": {**failure, **units}})
        (result,) = [each for each in results_of([device], 1) if each.id == "screen/products/a"]
        reasons.append(result.reason)
        assert result.extra["wrong"].get("units") == units.get("units")
    assert "SM" not in reasons[0]
    assert "; wrong tiles ran on SM 5 in 40 of 40 runs; consistent with one unit" in reasons[1]

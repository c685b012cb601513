"""Readings of several sources joined to one machine."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from portagpu.facts.readings import Findings, GpuPart, GpuState, Pcie, Reading
from portagpu.machine.inventory.gpu import PCI_ID, product_name
from portagpu.machine.inventory.join import join
from portagpu.machine.inventory.kernel import KIND as PCI

GIB = 1 << 30
A, B = "0000:05:00.0", "0000:c6:00.0"


def says(source: str, *readings: dict[str, Any], vendor: str = "amd", **values: Any) -> Findings:
    """Findings of one source, its readings with that vendor unless they name another."""
    made = tuple(Reading(source=source, **{"vendor": vendor, **each}) for each in readings)
    return Findings(kind=source, readings=made, **values)


# --- which readings are of one GPU


def test_orders_differ_and_addresses_join() -> None:
    kernel = says("kfd", {"index": 1, "pci": A, "arch": "gfx90a"}, {"index": 2, "pci": B})
    tool = says("amdsmi", {"index": 1, "pci": A, "name": "x"}, {"index": 0, "pci": B, "name": "y"})
    first, second = join([tool, kernel]).gpus
    assert (first.pci, first.name, first.arch) == (A, "x", "gfx90a")
    assert first.indices == {"amdsmi": 1, "kfd": 1}
    assert second.indices == {"amdsmi": 0, "kfd": 2}
    assert first.sources == ("amdsmi", "kfd")


def test_a_uuid_joins_what_has_no_address() -> None:
    found = join(
        [
            says("torch", {"uuid": "GPU-Aa", "unit_count": 132}, vendor="nvidia"),
            says(
                "nvml", {"uuid": "GPU-aA", "pci": A}, {"uuid": "GPU-b", "pci": B}, vendor="nvidia"
            ),
        ]
    )
    assert [(gpu.pci, gpu.unit_count) for gpu in found.gpus] == [(A, 132), (B, None)]


def test_the_hardwares_number_joins_its_spelling_as_a_uuid() -> None:
    (gpu,) = join(
        [
            says("rocminfo", {"uuid": "GPU-e3aa140f9a5f9e31", "name": "AMD Instinct MI300X"}),
            says("drm", {"unique_id": 0xE3AA140F9A5F9E31, "pci": A}),
        ]
    ).gpus
    assert (gpu.pci, gpu.name) == (A, "AMD Instinct MI300X")


def test_a_later_reading_unites_what_was_apart() -> None:
    (gpu,) = join(
        [
            says("a", {"uuid": "GPU-x", "name": "N"}, vendor="nvidia"),
            says("b", {"pci": A, "memory_bytes": GIB}, vendor="nvidia"),
            says("c", {"uuid": "GPU-x", "pci": A}, vendor="nvidia"),
        ]
    ).gpus
    assert (gpu.pci, gpu.name, gpu.memory_bytes) == (A, "N", GIB)
    assert gpu.sources == ("a", "b", "c")


def test_an_index_joins_readings_of_one_tool_alone() -> None:
    found = join(
        [
            says("rocm-smi --json", {"index": 0, "state": GpuState(power_w=41.0)}),
            says("rocm-smi --showbus", {"index": 0, "pci": B}, {"index": 1, "pci": A}),
            says("kfd", {"index": 0, "pci": A}),
        ]
    )
    assert [(gpu.pci, gpu.state.power_w) for gpu in found.gpus] == [(A, None), (B, 41.0)]


def test_two_vendors_share_no_number() -> None:
    found = join([says("a", {"unique_id": 7}), says("b", {"unique_id": 7}, vendor="nvidia")])
    assert [gpu.vendor for gpu in found.gpus] == ["amd", "nvidia"]


def test_device_files_of_known_gpus_add_no_gpus() -> None:
    files = says("dev", *({"device_file": f"/dev/nvidia{n}"} for n in range(3)), vendor="nvidia")
    known = says("proc", {"pci": A, "device_file": "/dev/nvidia2"}, vendor="nvidia")
    bus = says(PCI, {"pci": A}, {"pci": B}, vendor="nvidia")
    assert len(join([known, bus, files]).gpus) == 3, "one file is of no GPU that is known"
    assert len(join([files]).gpus) == 3


def test_readings_that_nothing_joins_are_counted_once() -> None:
    eight = says("torch", *({"name": "NVIDIA H200"} for _ in range(8)), vendor="nvidia")
    bus = says(PCI, *({"pci": f"0000:{n:02x}:00.0"} for n in range(8)), vendor="nvidia")
    found = join([bus, eight, replace(eight, kind="other")])
    assert len(found.gpus) == 8
    assert {gpu.name for gpu in found.gpus} == {"NVIDIA H200"}, "all say the same of each"


def test_readings_that_differ_are_of_nobody_in_particular() -> None:
    torch = says("torch", {"name": "NVIDIA H200"}, {"name": "NVIDIA L4"}, vendor="nvidia")
    bus = says(PCI, {"pci": A}, {"pci": B}, vendor="nvidia")
    assert [gpu.name for gpu in join([bus, torch]).gpus] == [None, None]


# --- parts


def test_partitions_with_functions_of_one_address_are_one_gpu() -> None:
    listed = [{"index": n, "pci": f"0000:05:00.{n}", "memory_bytes": 24 * GIB} for n in range(8)]
    bus = says(PCI, {"pci": A})
    (gpu,) = join([says("amd-smi list", *listed), bus]).gpus
    assert (gpu.pci, len(gpu.parts), gpu.memory_bytes) == (A, 8, 192 * GIB)


def test_functions_that_pci_lists_are_gpus_of_their_own() -> None:
    bus = says(PCI, {"pci": A}, {"pci": "0000:05:00.1"}, vendor="nvidia")
    tool = says(
        "nvml", {"index": 0, "pci": A}, {"index": 1, "pci": "0000:05:00.1"}, vendor="nvidia"
    )
    assert [gpu.pci for gpu in join([bus, tool]).gpus] == [A, "0000:05:00.1"]


def test_agents_of_one_number_are_its_partitions() -> None:
    agents = [{"index": n, "uuid": "GPU-00000000000000aa", "unit_count": 38} for n in range(8)]
    (gpu,) = join([says("rocminfo", *agents)]).gpus
    assert ([part.unit_count for part in gpu.parts], gpu.unit_count) == ([38] * 8, 304)


def test_the_whole_memory_said_of_each_partition_is_not_a_partitions_memory() -> None:
    each = [{"index": n, "unique_id": 9, "memory_bytes": 192 * GIB} for n in range(8)]
    whole = says("drm", {"unique_id": 9, "memory_bytes": 192 * GIB, "compute_partition": "CPX"})
    (gpu,) = join([says("amdsmi", *each), whole]).gpus
    assert (gpu.memory_bytes, gpu.parts[0].memory_bytes) == (192 * GIB, None)
    assert gpu.disagreements == ()


def test_a_reading_that_is_repeated_is_not_a_partition() -> None:
    twice = [{"index": 0, "pci": A, "name": "NVIDIA H200"}, {"index": 0, "pci": A, "driver": "n"}]
    (gpu,) = join([says("nvml", *twice, vendor="nvidia")]).gpus
    assert (gpu.parts, gpu.name, gpu.driver) == ((), "NVIDIA H200", "n")


def test_a_reading_without_a_number_is_not_a_partition_of_the_numbered_gpu() -> None:
    processes = {"pci": A, "state": GpuState(processes=2)}
    (gpu,) = join([says("smi", {"index": 0, "pci": A}, processes, vendor="nvidia")]).gpus
    assert (gpu.parts, gpu.state.processes) == ((), 2)


def test_parts_are_completed_by_others_of_the_same_number() -> None:
    a = says(
        "a", {"pci": A, "parts": (GpuPart(index=0, uuid="MIG-1"), GpuPart(index=1, uuid="MIG-2"))}
    )
    b = says("b", {"pci": A, "parts": (GpuPart(profile="1g"), GpuPart(profile="2g"))})
    c = says("c", {"pci": A, "parts": (GpuPart(profile="wrong"),)})
    (gpu,) = join([a, b, c]).gpus
    assert [(part.uuid, part.profile) for part in gpu.parts] == [("MIG-1", "1g"), ("MIG-2", "2g")]
    assert gpu.disagreements == ("its number of parts is 2 by a and b and 1 by c",)


# --- contradictions


def test_one_identity_at_two_addresses_stays_two_gpus() -> None:
    found = join([says("drm", {"pci": A, "unique_id": 5}, {"pci": B, "unique_id": 5})])
    assert [gpu.pci for gpu in found.gpus] == [A, B]
    (problem,) = found.problems
    assert A in problem
    assert B in problem
    assert "kept apart by address" in problem


def test_a_reading_between_two_gpus_is_a_problem() -> None:
    known = says("drm", {"pci": A, "unique_id": 5}, {"pci": B, "unique_id": 6})
    found = join([known, says("x", {"uuid": "GPU-0000000000000005", "unique_id": 6})])
    assert [gpu.pci for gpu in found.gpus] == [A, B]
    assert len(found.problems) == 1


@pytest.mark.parametrize(
    ("one", "two", "sentence"),
    [
        (
            {"memory_bytes": 80 * GIB},
            {"memory_bytes": 94 * GIB},
            "its memory is 80.0 GiB by a and 94.0 GiB by b",
        ),
        ({"memory_bytes": 85520809984}, {"memory_bytes": 85018279936}, None),
        ({"arch": "gfx942"}, {"arch": "gfx90a"}, "its architecture is gfx942 by a and gfx90a by b"),
        ({"arch": "gfx942"}, {"arch": "gfx942:sramecc+:xnack-"}, None),
        ({"arch": "sm_90a"}, {"arch": "sm_90"}, None),
        (
            {"name": "AMD Instinct MI300X"},
            {"name": "AMD Instinct MI210"},
            "its name is AMD Instinct MI300X by a and AMD Instinct MI210 by b",
        ),
        ({"name": "AMD Instinct MI300X"}, {"name": "Instinct MI300X OAM"}, None),
        ({"name": "AMD Instinct MI300X"}, {"name": "AMD Radeon Graphics"}, None),
        (
            {"name": "AMD Instinct MI300X OAM", "arch": "gfx942"},
            {"name": "MI300X-O", "arch": "gfx942"},
            None,
        ),
        ({"device_id": 0x74A1}, {"device_id": 0x740F}, "its PCI device id is 0x74a1 by a and"),
        ({"compute_partition": "CPX"}, {"compute_partition": "SPX"}, "compute partitioning"),
        ({"unit_count": 304}, {"unit_count": None}, None),
    ],
)
def test_what_contradicts_is_a_sentence_and_what_only_differs_is_not(
    one: dict[str, Any], two: dict[str, Any], sentence: str | None
) -> None:
    (gpu,) = join([says("a", {"pci": A, **one}), says("b", {"pci": A, **two})]).gpus
    if sentence is None:
        assert gpu.disagreements == ()
    else:
        (found,) = gpu.disagreements
        assert sentence in found


def test_the_earlier_source_counts() -> None:
    two = [says("a", {"pci": A, "unit_count": 1}), says("b", {"pci": A, "unit_count": 2})]
    assert join(two).gpus[0].unit_count == 1
    assert join(two[::-1]).gpus[0].unit_count == 2


def test_drivers_of_two_versions_are_a_sentence() -> None:
    library = says("nvml", {"pci": A}, vendor="nvidia", versions={"driver": "575.1", "nvml": "12"})
    kernel = says("proc", {"pci": A}, vendor="nvidia", versions={"driver": "570.2"})
    found = join([library, kernel])
    assert found.gpus[0].driver_version == "575.1"
    assert found.gpus[0].disagreements == (
        "its driver's version is 575.1 by nvml and 570.2 by proc",
    )
    assert found.versions == {"nvml": "12"}


def test_groups_of_values_are_put_together_key_by_key() -> None:
    one = {"pci": A, "pcie": Pcie(width=16), "state": GpuState(temperatures_c={"gpu": 40})}
    two = {
        "pci": A,
        "pcie": Pcie(width=8, generation=5),
        "state": GpuState(temperatures_c={"gpu": 50, "memory": 60}, power_w=100),
    }
    (gpu,) = join([says("a", one), says("b", two)]).gpus
    assert gpu.pcie == Pcie(width=16, generation=5)
    assert (gpu.state.temperatures_c, gpu.state.power_w) == ({"gpu": 40, "memory": 60}, 100)


# --- names


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "N/A",
        "AMD Radeon Graphics",
        "Radeon Graphics",
        "NVIDIA",
        "Device 74a1",
        "0x740c",
        "NVIDIA Graphics Device",
        "3D controller",
        "Advanced Micro Devices, Inc. [AMD/ATI]",
    ],
)
def test_what_is_not_a_products_name(text: str) -> None:
    assert product_name(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "NVIDIA A100-SXM4-40GB",
        "NVIDIA B200",
        "NVIDIA A100",
        "AMD Radeon 780M Graphics",
        "MI300X-O",
        "Tesla T4",
        "AMD Instinct MI300X VF",
        "NVIDIA GB200",
    ],
)
def test_what_is_a_products_name(text: str) -> None:
    assert product_name(f" {text}  ") == text


def test_a_looked_up_name_is_the_last_and_contradicts_nobody() -> None:
    asked = says("drm", {"pci": A, "name": "Custom board", "arch": "gfx942"})
    looked_up = says(PCI_ID, {"pci": A, "name": "AMD Instinct MI300X", "arch": "gfx942"})
    assert join([asked, looked_up]).gpus[0].name == "Custom board"
    assert join([asked, looked_up]).gpus[0].disagreements == ()
    nameless = says("drm", {"pci": A, "name": "AMD Radeon Graphics"})
    assert join([nameless, looked_up]).gpus[0].name == "AMD Instinct MI300X"


# --- robustness


def test_the_order_of_findings_changes_no_grouping() -> None:
    random.seed(11)
    findings = [
        says("amdsmi", *({"index": 7 - n, "pci": f"0000:0{n}:00.0"} for n in range(8))),
        says("drm", *({"pci": f"0000:0{n}:00.0", "unique_id": 100 + n} for n in range(8))),
        says("rocminfo", *({"index": n, "uuid": f"GPU-{100 + n:016x}"} for n in range(8))),
        says("torch", *({"name": "x"} for _ in range(8))),
    ]
    for _ in range(20):
        random.shuffle(findings)
        found = join(findings)
        assert [gpu.pci for gpu in found.gpus] == [f"0000:0{n}:00.0" for n in range(8)]
        assert found.problems == ()


def test_random_readings_never_raise_and_lose_no_address() -> None:
    random.seed(5)

    def some(*values: Any) -> Any:
        return random.choice((None, *values))  # noqa: S311 - not for secrets

    for _ in range(300):
        findings = [
            says(
                source,
                *(
                    {
                        "vendor": random.choice(("amd", "nvidia")),  # noqa: S311
                        "index": some(0, 1, 2),
                        "pci": some(A, B, "0000:05:00.1", "0000:05:00.7"),
                        "uuid": some("GPU-a", "GPU-0000000000000001", "MIG-2"),
                        "unique_id": some(1, 2),
                        "device_file": some("/dev/nvidia0", "/dev/dri/renderD128"),
                        "memory_bytes": some(1, GIB),
                        "compute_partition": some("SPX", "CPX"),
                    }
                    for _ in range(4)
                ),
            )
            for source in (PCI, "nvml", "amd-smi list", "dev")
        ]
        found = join(findings)
        wanted = {r.pci for each in findings for r in each.readings if r.pci}
        shown = {gpu.pci for gpu in found.gpus}
        assert {pci[:-1] for pci in wanted} == {pci[:-1] for pci in shown if pci}
        assert len([pci for pci in shown if pci]) <= len(wanted)


def test_five_hundred_gpus_take_as_many_steps_each_as_ten(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = 0
    from portagpu.machine.inventory import join as module

    original = module._identities

    def counted(reading: Reading) -> Any:
        nonlocal steps
        steps += 1
        return original(reading)

    monkeypatch.setattr(module, "_identities", counted)

    def steps_for(count: int) -> float:
        nonlocal steps
        steps = 0
        places = [f"{n // 256:04x}:{n % 256:02x}:00.0" for n in range(count)]
        one = says("drm", *({"pci": p, "unique_id": n + 1} for n, p in enumerate(places)))
        two = says("smi", *({"index": n, "unique_id": count - n} for n in range(count)))
        assert len(join([one, two]).gpus) == count
        return steps / count

    assert steps_for(500) == steps_for(10)

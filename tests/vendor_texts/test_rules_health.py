"""What GPUs say of their health, and what that means; what nobody states is never a PASS."""

from __future__ import annotations

import dataclasses
import random
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from portagpu.facts.formats.cleaning import decode_text
from portagpu.facts.formats.reader import read_text
from portagpu.facts.readings import Event, Findings, GpuState, Memory, Pcie
from portagpu.facts.targets import load_target
from portagpu.machine.inventory import Gpu, Inventory
from portagpu.machine.inventory.join import join
from portagpu.runs.judges.gpu_health import health_terms
from portagpu.runs.judges.health import judge_health
from portagpu.runs.results.verdicts import Verdict, fold

if TYPE_CHECKING:
    from collections.abc import Sequence

    from portagpu.runs.results.judgement import Judgement

RECORDINGS = Path(__file__).resolve().parents[3] / "shared" / "recordings"

MEMORY = Memory(
    ecc_enabled=True,
    corrected=0,
    uncorrected=0,
    corrected_total=0,
    uncorrected_total=0,
    by_block={"DRAM": (0, 0), "SRAM": (0, 0)},
    remapped_rows={"correctable": 0, "uncorrectable": 0},
    pending=False,
    remap_failed=False,
    exhausted_banks=0,
)
STATE = GpuState(
    temperatures_c={"gpu": 41.0, "memory": 48.0},
    limits_c={"shutdown": 92.0, "slowdown": 89.0, "max-operating": 85.0, "memory-slowdown": 95.0},
    power_limit_w=700.0,
    clock_mhz=345.0,
    max_clock_mhz=1980.0,
    throttling=(),
)
PCIE = Pcie(generation=1, width=16, max_width=16, replays=0)


def gpu(number: int = 0, **values: Any) -> Gpu:
    """A healthy one, except as ``values`` have it; fields of its parts may be given by name."""
    parts: dict[str, Any] = {"memory": MEMORY, "state": STATE, "pcie": PCIE}
    for name, part in parts.items():
        own = {f.name for f in dataclasses.fields(part)} & set(values)
        own -= {"memory_bytes"}
        parts[name] = dataclasses.replace(part, **{key: values.pop(key) for key in own})
    fields = {
        "vendor": "nvidia",
        "pci": f"0000:{number:02x}:00.0",
        "name": "NVIDIA H100 80GB HBM3",
        "memory_bytes": 81559 << 20,
        "firmware": {"vbios": "96.00"},
        "driver_version": "590.48",
    }
    return Gpu(**{**fields, **parts, **values})


def judged(*gpus: Gpu, target: str | None = None, **inventory: Any) -> list[Judgement]:
    wanted = load_target(target) if target else None
    return list(judge_health(Inventory(gpus=gpus, **inventory), wanted))


def of(name: str, found: Sequence[Judgement]) -> list[Judgement]:
    return [each for each in found if each.name == name]


def bad(found: Sequence[Judgement]) -> list[Judgement]:
    return [each for each in found if each.verdict not in (Verdict.PASS, Verdict.SKIP)]


def test_healthy_gpus_pass_every_rule():
    found = judged(*(gpu(n) for n in range(8)), target="nvidia-h100-sxm", kinds=("kernel log",))
    assert bad(found) == []
    assert {each.name for each in found} == {
        "answers",
        "ecc",
        "uncorrected-errors",
        "corrected-errors",
        "lifetime-errors",
        "pending-repair",
        "row-remapping",
        "pcie-replays",
        "throttling",
        "temperature",
        "power-limit",
        "events",
        "peers",
    }
    assert all(each.device is None for each in found)


FAULTS: dict[str, tuple[dict[str, Any], str, Verdict, str]] = {
    "an uncorrected error": (
        {"uncorrected": 2, "by_block": {"DRAM": (0, 2), "SRAM": (0, 0)}},
        "uncorrected-errors",
        Verdict.FAIL,
        "2 uncorrected errors since the driver was loaded (DRAM 2)",
    ),
    "an uncorrected error of a block alone": (
        {"uncorrected": None, "by_block": {"XGMI": (None, 3)}},
        "uncorrected-errors",
        Verdict.FAIL,
        "XGMI 3",
    ),
    "errors of the past": ({"uncorrected_total": 3}, "lifetime-errors", Verdict.UNVERIFIED, "3 un"),
    "corrected errors without peers": (
        {"corrected": 5},
        "corrected-errors",
        Verdict.UNVERIFIED,
        "fewer than 4",
    ),
    "ECC turned off": ({"ecc_enabled": False}, "ecc", Verdict.FAIL, "turn it on"),
    "a pending page": ({"pending": True}, "pending-repair", Verdict.FAIL, "reset the GPU"),
    "a row that could not be remapped": (
        {"remap_failed": True},
        "row-remapping",
        Verdict.FAIL,
        "replace the GPU",
    ),
    "memory beyond repair": (
        {"beyond_repair": True},
        "row-remapping",
        Verdict.FAIL,
        "beyond repair",
    ),
    "all rows remapped": (
        {"remapped_rows": {"uncorrectable": 512}},
        "row-remapping",
        Verdict.FAIL,
        "512 rows",
    ),
    "banks without spare rows": (
        {"exhausted_banks": 2},
        "row-remapping",
        Verdict.UNVERIFIED,
        "2 banks",
    ),
    "too many retired pages": (
        {"retired_pages": {"single-bit": 60, "double-bit": 3}},
        "retired-pages",
        Verdict.FAIL,
        "63 pages are retired (single-bit 60, double-bit 3)",
    ),
    "many retired pages": (
        {"retired_pages": {"single-bit": 15, "double-bit": 0}},
        "retired-pages",
        Verdict.UNVERIFIED,
        "15 pages are retired (single-bit 15): watch",
    ),
    "replays": ({"replays": 9}, "pcie-replays", Verdict.UNVERIFIED, "vendors allow 8 a minute"),
    "a hardware slowdown": ({"throttling": ("hw_slowdown",)}, "throttling", Verdict.FAIL, "power"),
    "heat": (
        {"throttling": ("sw_power_cap", "sw_thermal_slowdown")},
        "throttling",
        Verdict.FAIL,
        "slowed by sw_thermal_slowdown: check air flow",
    ),
    "a power brake": (
        {"throttling": ("hw_power_brake_slowdown",)},
        "throttling",
        Verdict.FAIL,
        "check the power supply of the machine",
    ),
    "a reason that nobody knows": (
        {"throttling": ("moon_phase",)},
        "throttling",
        Verdict.UNVERIFIED,
        "moon_phase, of no known kind",
    ),
    "a GPU at its limit": (
        {"temperatures_c": {"gpu": 89.0}},
        "temperature",
        Verdict.FAIL,
        "gpu is at 89 °C, and its limit (slowdown) at 89 °C: check the cooling",
    ),
    "a GPU near its limit": (
        {"temperatures_c": {"gpu": 81.0}},
        "temperature",
        Verdict.UNVERIFIED,
        "(max-operating) at 85 °C",
    ),
    "memory at its limit": (
        {"temperatures_c": {"gpu": 40.0, "memory": 96.0}},
        "temperature",
        Verdict.FAIL,
        "memory is at 96 °C",
    ),
    "no margin left": ({"limits_c": {}, "margin_c": 0.0}, "temperature", Verdict.FAIL, "too hot"),
    "little margin left": (
        {"limits_c": {}, "margin_c": 3.0},
        "temperature",
        Verdict.UNVERIFIED,
        "3 °C are left",
    ),
    "a high temperature without a limit": (
        {"limits_c": {}, "temperatures_c": {"gpu": 96.0}},
        "temperature",
        Verdict.UNVERIFIED,
        "no source states its limit",
    ),
    "a lowered power limit": (
        {"power_limit_w": 500.0},
        "power-limit",
        Verdict.UNVERIFIED,
        "500 W, and the product 700 W",
    ),
    "a GPU that asks for a reset": ({"recovery": "Reset"}, "answers", Verdict.FAIL, "Reset"),
    "a GPU without its fabric": (
        {"fabric_error": "Insufficient Resources"},
        "answers",
        Verdict.FAIL,
        "its fabric is not in order",
    ),
    "a GPU that waits for its fabric": (
        {"fabric_wait": "In Progress"},
        "answers",
        Verdict.INCONCLUSIVE,
        "has not joined its fabric (In Progress)",
    ),
    "a GPU that is lost": ({"error": "GPU is lost"}, "answers", Verdict.FAIL, "restart"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_with_its_gpu_and_what_to_do(fault):
    values, name, verdict, said = FAULTS[fault]
    found = bad(judged(gpu(3, **values), target="nvidia-h100-sxm"))
    assert [(each.name, each.verdict, each.device) for each in found] == [
        (name, verdict, "0000:03:00.0")
    ]
    assert said in found[0].reason


GOOD: dict[str, dict[str, Any]] = {
    "a power cap": {"throttling": ("sw_power_cap",)},
    "a setting": {"throttling": ("applications_clocks_setting", "sync_boost")},
    "few retired pages": {"retired_pages": {"single-bit": 13, "double-bit": 1}},
    "remapped rows": {"remapped_rows": {"correctable": 4, "uncorrectable": 511}},
    "as many replays as a minute may have": {"replays": 8},
    "5 degrees of margin": {"limits_c": {}, "margin_c": 5.0},
    "80 degrees": {"temperatures_c": {"gpu": 80.0, "memory": 90.0}},
    "the product's power limit": {"power_limit_w": 699.5},
    "low clocks, as an idle GPU has": {"clock_mhz": 210.0, "memory_clock_mhz": 405.0},
}


@pytest.mark.parametrize("case", GOOD)
def test_what_is_not_a_fault_passes(case):
    assert bad(judged(gpu(**GOOD[case]), target="nvidia-h100-sxm")) == []


def test_ecc_that_is_off_fails_only_where_it_is_delivered_on():
    off = gpu(ecc_enabled=False)
    assert of("ecc", judged(off, target="nvidia-h100-sxm"))[0].verdict is Verdict.FAIL
    board = gpu(ecc_enabled=False, name="NVIDIA GeForce RTX 4090")
    assert of("ecc", judged(board, target="nvidia-rtx4090"))[0].verdict is Verdict.PASS
    assert of("ecc", judged(off))[0].verdict is Verdict.UNVERIFIED


def test_what_the_target_claims_and_nobody_states_is_inconclusive():
    silent = gpu(ecc_enabled=None, uncorrected=None, by_block={}, power_limit_w=None)
    found = bad(judged(silent, target="nvidia-h100-sxm"))
    assert {each.name for each in found} == {"ecc", "uncorrected-errors", "power-limit"}
    assert {each.verdict for each in found} == {Verdict.INCONCLUSIVE}
    assert bad(judged(silent)) == [], "without a claim it is not a judgement at all"
    assert of("ecc", judged(silent)) == []


def test_what_a_peer_states_and_a_gpu_does_not_is_inconclusive():
    found = bad(judged(gpu(0), gpu(1), gpu(2, replays=None)))
    assert [(each.name, each.verdict, each.device) for each in found] == [
        ("pcie-replays", Verdict.INCONCLUSIVE, "0000:02:00.0")
    ]


def test_a_machine_that_states_no_health_does_not_pass():
    found = judged(*(Gpu(vendor="amd", pci=f"0000:0{n}:00.0") for n in range(2)))
    assert fold(each.verdict for each in found) is Verdict.INCONCLUSIVE
    assert "0000:00:00.0 and 1 more" in found[0].reason
    assert judged() == []


def test_corrected_errors_are_reported_where_they_are_more_than_those_of_the_peers():
    seven = [gpu(n, corrected=n) for n in range(7)]
    assert bad(judged(*seven)) == []
    found = bad(judged(*seven, gpu(7, corrected=4000)))
    assert [(each.device, each.verdict, each.value) for each in found] == [
        ("0000:07:00.0", Verdict.UNVERIFIED, 4000)
    ]
    assert "3.5 at the median of its peers" in found[0].reason


def test_amd_pages_are_bounded_by_its_memory_and_words_are_its_own():
    pages = {"vendor": "amd", "memory_bytes": 192 << 30, "name": "AMD Instinct MI300X"}
    limit = (192 << 30) // (100 << 20)
    for count, verdict in (
        (127, Verdict.PASS),
        (128, Verdict.UNVERIFIED),
        (limit - 1, Verdict.UNVERIFIED),
        (limit, Verdict.FAIL),
    ):
        found = of("retired-pages", judged(gpu(**pages, retired_pages={"retired": count})))
        assert (count, found[0].verdict) == (count, verdict)
    unreserved = judged(gpu(**pages, retired_pages={"retired": 1, "unreservable": 1}))
    assert "could not be taken out of use" in of("retired-pages", unreserved)[0].reason
    for reasons, verdict in (
        (("ppt",), Verdict.PASS),
        (("TDC_GFX", "PPT0"), Verdict.PASS),
        (("ppt", "hbm_thermal"), Verdict.FAIL),
        (("PROCHOT_GFX",), Verdict.FAIL),
        (("throttled",), Verdict.UNVERIFIED),
    ):
        found = of("throttling", judged(gpu(**pages, throttling=reasons)))
        assert (reasons, found[0].verdict) == (reasons, verdict)


def test_an_amd_sensor_has_the_limits_of_its_place():
    limits = {"slowdown": 100.0, "edge-slowdown": 90.0, "memory-slowdown": 85.0}
    for sensors, verdict in (
        ({"hotspot": 92.0, "edge": 80.0, "mem": 79.0}, Verdict.PASS),
        ({"hotspot": 92.0, "edge": 92.0, "mem": 79.0}, Verdict.FAIL),
        ({"hotspot": 92.0, "edge": 80.0, "mem": 85.0}, Verdict.FAIL),
        ({"hotspot": 96.0}, Verdict.UNVERIFIED),
        ({"hbm 3": 300.0}, Verdict.UNVERIFIED),
    ):
        found = judged(gpu(vendor="amd", temperatures_c=sensors, limits_c=limits))
        assert (sensors, of("temperature", found)[0].verdict) == (sensors, verdict)


DIFFERENT: dict[str, tuple[dict[str, Any], Verdict, str]] = {
    "memory": ({"memory_bytes": 64 << 30}, Verdict.FAIL, "memory 64.0 GiB, 7 peers 79.6 GiB"),
    "ecc": ({"ecc_enabled": False}, Verdict.FAIL, "ECC off, 7 peers on"),
    "driver": ({"driver_version": "580.1"}, Verdict.FAIL, "580.1, 7 peers 590.48"),
    "power": ({"power_limit_w": 690.0}, Verdict.FAIL, "power limit 690 W, 7 peers 700 W"),
    "clock": ({"max_clock_mhz": 1755.0}, Verdict.FAIL, "highest clock 1755 MHz"),
    "lanes": ({"width": 8}, Verdict.FAIL, "number of PCIe lanes 8, 7 peers 16"),
    "vbios": ({"firmware": {"vbios": "95.00"}}, Verdict.UNVERIFIED, "firmware (vbios) 95.00"),
    "mode": ({"compute_partition": "CPX"}, Verdict.UNVERIFIED, "CPX, 7 peers SPX"),
    "product": ({"name": "NVIDIA H100 PCIe"}, Verdict.UNVERIFIED, "product NVIDIA H100 PCIe"),
}


@pytest.mark.parametrize("trait", DIFFERENT)
def test_the_odd_one_out_of_a_majority_is_named(trait):
    values, verdict, said = DIFFERENT[trait]
    gpus = [gpu(n, **{"compute_partition": "SPX"} | (values if n == 5 else {})) for n in range(8)]
    found = of("peers", judged(*gpus))
    assert [(each.verdict, each.device) for each in found] == [(verdict, "0000:05:00.0")]
    assert said in found[0].reason


def test_of_two_that_differ_nobody_is_blamed():
    found = of("peers", judged(gpu(0), gpu(1, max_clock_mhz=1755.0)))
    assert [(each.verdict, each.device) for each in found] == [(Verdict.UNVERIFIED, None)]
    assert "0000:00:00.0 is 1980 MHz and that of 0000:01:00.0 1755 MHz" in found[0].reason
    split = [gpu(n, power_limit_w=500.0 if n % 2 else 700.0) for n in range(8)]
    assert [each.device for each in of("peers", judged(*split))] == [None]


def test_dies_that_share_a_power_limit_and_nearly_equal_memories_are_the_same():
    dies = [gpu(n, power_limit_w=0.0 if n % 2 else 560.0) for n in range(8)]
    assert bad(judged(*dies)) == []
    sizes = [gpu(n, memory_bytes=(81559 << 20) - (500 << 20) * (n == 2)) for n in range(4)]
    assert bad(judged(*sizes)) == []
    assert of("peers", judged(gpu(0))) == [], "one GPU has no peers"


def event(code: str, fatal: bool | None, pci: str | None = "0000:03:00.0", **more: Any) -> Event:
    return Event(source="kernel log", vendor="nvidia", code=code, pci=pci, fatal=fatal, **more)


def test_events_are_reported_with_their_meaning_and_action_and_fail_where_they_are_fatal():
    lost = {"meaning": "GPU has fallen off the bus", "action": "restart the machine"}
    found = judged(
        gpu(3),
        events=(
            event("Xid 79", True, time="10.5", **lost),
            event("Xid 79", True, time="11.5", **lost),
            event("Xid 31", False, meaning="GPU memory page fault", action="restart it"),
            event("fabric manager error", None, pci=None),
        ),
    )
    assert [(each.verdict, each.device, each.value) for each in of("events", found)] == [
        (Verdict.FAIL, "0000:03:00.0", 2),
        (Verdict.UNVERIFIED, "0000:03:00.0", 1),
        (Verdict.UNVERIFIED, None, 1),
    ]
    assert of("events", found)[0].reason == (
        "0000:03:00.0: Xid 79 (GPU has fallen off the bus), 2 times, last at 11.5: "
        "restart the machine"
    )


def test_a_log_without_events_passes_and_no_log_does_not():
    assert of("events", judged(gpu(), kinds=("kernel log",)))[0].verdict is Verdict.PASS
    assert of("events", judged(gpu()))[0].verdict is Verdict.SKIP


def test_every_word_of_the_table_is_of_a_kind_that_says_what_to_do():
    kinds = health_terms()["kinds"]
    for words in health_terms()["throttling"].values():
        assert set(words.values()) <= set(kinds)
        assert all(word == word.lower() for word in words)
    assert all("action" in kind for kind in kinds.values() if kind["fault"])


def test_no_reading_makes_the_judge_raise():
    chosen = random.Random(20_260_102)  # noqa: S311 - inputs of a test
    floats = [None, 0.0, -40.0, 85.0, 1e9, float("nan"), float("inf")]
    counts = [None, 0, 1, 15, 64, 512, 2**63]
    flags = [None, True, False]
    names = ["gpu", "edge", "junction", "mem", "slowdown", "memory-slowdown", "critical", ""]
    pick = chosen.choice
    known = [value for value in floats if value is not None]

    def mapping(values: Sequence[Any]) -> dict[str, Any]:
        return {pick(names): pick(values) for _ in range(chosen.randrange(3))}

    for _ in range(300):
        gpus = [
            gpu(
                number,
                vendor=pick(["nvidia", "amd", "other"]),
                pci=pick([None, f"0000:0{number}:00.0"]),
                name=pick([None, "A", "B"]),
                memory_bytes=pick(counts),
                ecc_enabled=pick(flags),
                corrected=pick(counts),
                uncorrected=pick(counts),
                uncorrected_total=pick(counts),
                by_block={"X": (pick(counts), pick(counts))} if pick([True, False]) else {},
                retired_pages=mapping(counts[1:]),
                remapped_rows=mapping(counts[1:]),
                pending=pick(flags),
                remap_failed=pick(flags),
                beyond_repair=pick(flags),
                exhausted_banks=pick(counts),
                temperatures_c=mapping(known),
                limits_c=mapping(known),
                margin_c=pick(floats),
                power_limit_w=pick(floats),
                max_clock_mhz=pick(floats),
                throttling=pick([None, (), ("ppt",), ("hw_slowdown", "?")]),
                replays=pick(counts),
                error=pick([None, "GPU is lost"]),
            )
            for number in range(chosen.randrange(9))
        ]
        target = pick([None, "nvidia-h100-sxm", "amd-mi300x"])
        for each in judged(*gpus, target=target):
            assert each.reason
            assert each.verdict in Verdict


def recorded(path: str) -> tuple[Findings, ...]:
    return read_text(decode_text((RECORDINGS / path).read_bytes()))


recordings = pytest.mark.skipif(not RECORDINGS.is_dir(), reason="no recordings next to the project")
H100 = "nvidia-smi-capture/linux-x86_64__nvidia-h100-80gb-hbm3__590.48.01.txt"
H100_MIG = "nvidia-smi-capture/linux-x86_64__nvidia-h100-mig__590.48.01.txt"
H200 = "nvidia-smi-capture/linux-x86_64__nvidia-h200__590.48.01.txt"
L40S = "nvidia-smi-capture/linux-x86_64__nvidia-l40s__595.80.txt"
HEALTHY: list[tuple[str, str | None, set[str]]] = [
    # 9 replays since the last reset, of which nobody knows when it was
    (H100, "nvidia-h100-sxm", {"pcie-replays"}),
    (H100_MIG, "nvidia-h100-sxm", {"pcie-replays"}),
    (H200, "nvidia-h200-sxm", set()),
    (L40S, "nvidia-l40s", set()),
    ("nvidia-smi-xml/a100-sxm4-v12.xml", "nvidia-a100-sxm-80gb", set()),
    ("nvidia-smi-xml/netdata-rtx-4090-driver-535.xml", "nvidia-rtx4090", set()),
    ("nvidia-smi-xml/tesla-t4.xml", "nvidia-t4", set()),
    ("nvidia-smi-xml/rtx-3080-v13.xml", None, set()),
    # rocm-smi states temperatures and no limits
    # and this machine's power was limited to 290 W of the product's 300 W
    (
        "rocm-smi/json-mi100_rocm571.json",
        "amd-mi100",
        {"power-limit"},
    ),
    ("rocm-smi/concise-8xmi300x-rocm61.txt", "amd-mi300x", set()),
    ("rocm-smi/concise-mi210-node-affinity-blog.txt", "amd-mi210", set()),
]


@recordings
@pytest.mark.parametrize(
    ("path", "target", "reported"), HEALTHY, ids=[path for path, *_ in HEALTHY]
)
def test_recorded_machines_without_a_fault_do_not_fail(path, target, reported):
    found = list(judge_health(join(recorded(path)), load_target(target) if target else None))
    assert [each for each in found if each.verdict is Verdict.FAIL] == []
    assert {each.name for each in found if each.verdict is Verdict.UNVERIFIED} == reported
    assert [each for each in found if each.verdict is Verdict.INCONCLUSIVE] == []
    assert of("answers", found)[0].verdict is Verdict.PASS
    # rocm-smi states no limit of a temperature
    assert bool(of("temperature", found)) != path.startswith("rocm-smi/")


@recordings
@pytest.mark.parametrize("path", [H100, H100_MIG, H200, L40S])
def test_each_state_of_a_recorded_gpu_is_well_on_its_own(path):
    """The join keeps the first of several states: under load it is judged alone here."""
    kinds = [r for each in recorded(path) for r in each.readings if "-q (" in r.source]
    assert {r.source for r in kinds} == {"nvidia-smi -q (idle)", "nvidia-smi -q (load)"}
    for reading in kinds:
        found = list(judge_health(join([Findings(kind="one", readings=(reading,))])))
        assert [each for each in found if each.verdict is Verdict.FAIL] == []
        names = {each.name for each in found if each.verdict is Verdict.PASS}
        assert {"ecc", "uncorrected-errors", "row-remapping", "throttling", "temperature"} <= names


@recordings
@pytest.mark.parametrize(
    ("line", "becomes", "name", "said"),
    [
        ("Remapping Failure Occurred : No", "Yes", "row-remapping", "replace the GPU"),
        ("Channel Repair Pending : No", "Yes", "pending-repair", "reset the GPU"),
        ("Unrepairable Memory : No", "Yes", "row-remapping", "beyond repair"),
        ("SRAM Threshold Exceeded : No", "Yes", "row-remapping", "beyond repair"),
        ("DRAM Uncorrectable : 0", "2", "uncorrected-errors", "(DRAM 2)"),
        ("HW Power Brake Slowdown : Not Active", "Active", "throttling", "power supply"),
        ("GPU T.Limit Temp : 46 C", "-1 C", "temperature", "too hot"),
        ("GPU Recovery Action : None", "Reset", "answers", "asks for: Reset"),
        ("None : 0 bank(s)", "3 bank(s)", "row-remapping", "3 banks have no spare row"),
    ],
)
def test_a_fault_put_into_a_recording_is_found(line, becomes, name, said):
    label, _, old = line.partition(" : ")
    text = decode_text((RECORDINGS / H100).read_bytes())
    worse, changed = re.subn(
        rf"(?m)^( *{re.escape(label)} +: ){re.escape(old)}$", rf"\g<1>{becomes}", text
    )
    assert changed
    found = list(judge_health(join(read_text(worse))))
    reported = {"pcie-replays", "lifetime-errors"}
    assert {each.name for each in bad(found)} - reported == {name}
    assert said in of(name, found)[0].reason


@recordings
def test_recorded_logs_are_reported_with_their_meaning():
    found = list(judge_health(join(recorded("kernel-logs/dmesg-xid-119.log"))))
    timeout = next(each for each in found if "Xid 119" in each.reason)
    assert (timeout.verdict, timeout.device, timeout.value) == (Verdict.FAIL, "0000:9b:00.0", 5)
    assert "GSP RPC Timeout" in timeout.reason
    assert "reset it" in timeout.reason
    found = list(judge_health(join(recorded("kernel-logs/xid-lines-a.txt"))))
    assert {each.name for each in found} == {"events"}
    assert sum(int(each.value or 0) for each in found) == 36  # two of no readable number
    lost = [each for each in found if "Xid 79 " in each.reason]
    assert [(each.verdict, each.device, each.value) for each in lost] == [
        (Verdict.FAIL, "0000:01:00.0", 1),
        (Verdict.FAIL, "0000:05:00.0", 2),
    ]
    assert all("restart the machine" in each.reason for each in lost)

"""The checks of the gates on the CPU: what they catch, and what they say."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from portagpu.checks.bringup import BringupOptions, Gate, bringup
from portagpu.checks.bringup.checks import (
    collectives,
    environment,
    health,
    identity,
    links,
    versions,
)
from portagpu.checks.bringup.device import CheckedDevice, check_memory
from portagpu.checks.bringup.run import Context, MachineUnderTest
from portagpu.devices.contract import CONTRACT
from portagpu.facts.host.gpus import PciGpu
from portagpu.facts.readings import Event, Findings, Memory, Reading
from portagpu.facts.targets import load_target
from portagpu.machine.inventory.sources import Live
from portagpu.runs.results.run import Verdict, validate
from portagpu.runs.world import Ranks
from tests.support.host_trees import build as write_tree

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("forked")]

AMOUNTS = {
    effort: {"limit_s": 60, "fraction": 0.01, "maximum_bytes": 1 << 20, "smoke": True}
    for effort in ("quick", "full")
}
FACTS = {
    "count": 1,
    "device": "cuda:0",
    "product": "Example 9000",
    "arch_vendor": "nvidia",
    "vendor": "nvidia",
    "arch": "sm_90",
    "warp_size": 32,
    "unit_count": 132,
    "memory_bytes": 80 * 2**30,
    "reported": {"multi_processor_count": 132},
    "part": None,
    "capabilities": [],
    "target": None,
    "target_scope": None,
    "versions": {"driver": "590.48.01"},
}


def gate(name, *needs):
    return Gate(
        name, name, "One sentence.", f"portagpu.checks.bringup.checks.{name}:check", needs, AMOUNTS
    )


def context_of(name, devices=(), **fields):
    tested = MachineUnderTest("cpu", Ranks(), devices=list(devices), **fields)
    return Context(tested, gate(name), "quick")


def on(context, machine):
    return replace(context, tested=replace(context.tested, machine=machine))


def device(index, **facts):
    return CheckedDevice(index, f"cuda:{index}", {**FACTS, **facts})


def named(results):
    return {result.id.partition("/")[2]: result for result in results}


def test_identity_and_memory_pass_on_this_cpu():
    gates = [gate("environment"), gate("identity"), gate("versions"), gate("links"), gate("memory")]
    made = bringup(BringupOptions(backend="cpu"), None, gates)
    validate(json.loads(made.to_text()))
    found = {result.id: result for result in made.results}
    assert found["identity/device"].verdict in (Verdict.PASS, Verdict.UNVERIFIED)
    assert found["identity/count"].verdict is Verdict.PASS
    assert found["memory/patterns"].verdict is Verdict.PASS
    assert found["memory/patterns"].value <= 1 << 20
    assert "8 patterns" in found["memory/patterns"].reason
    assert made.info.devices[0]["kind"] == "cpu"
    assert made.info.versions["torch"] == torch.__version__


def test_another_target_than_this_machine_fails_the_identity_gate_and_blocks_the_rest():
    gates = [gate("identity"), gate("memory", "identity")]
    made = bringup(BringupOptions(backend="cpu", target="nvidia-h200-sxm"), None, gates)
    found = {result.id: result for result in made.results}
    assert found["identity/target"].verdict is Verdict.FAIL
    assert "not nvidia-h200-sxm" in found["identity/target"].reason
    assert found["memory/blocked"].blocked_by == "identity/target"
    assert made.exit_code == 1


def test_a_missing_device_fails_the_count():
    made = bringup(BringupOptions(backend="cpu", expect_devices=8), None, [gate("identity")])
    found = {result.id: result for result in made.results}
    assert found["identity/count"].verdict is Verdict.FAIL
    assert found["identity/count"].reason == "1 devices opened, 8 expected"


@pytest.mark.parametrize("word", [0, 131_071])
def test_a_bit_that_flips_is_found_with_its_offset(word):
    buffer = torch.zeros(131_072, dtype=torch.int64)

    def flip():
        buffer[word] ^= 1 << 40

    report = check_memory(buffer, flip, seed=1)
    assert report["bytes"] == 131_072 * 8
    for name, seen in report["patterns"].items():
        assert seen == {"wrong_words": 1, "first_offset": word * 8}, name


def test_a_stuck_address_line_is_found_by_the_address_patterns_alone():
    """Words 2k and 2k + 1 are one cell: constants cannot distinguish them, addresses can."""
    buffer = torch.zeros(1024, dtype=torch.int64)

    def alias():
        buffer[0::2] = buffer[1::2]

    wrong = {
        name
        for name, seen in check_memory(buffer, alias, 1)["patterns"].items()
        if seen["wrong_words"]
    }
    assert wrong == {"address", "inverse-address", "walking", "random"}


def test_sound_memory_passes_every_pattern():
    report = check_memory(torch.empty(5_000_003, dtype=torch.int64), lambda: None, seed=3)
    assert len(report["patterns"]) == 8
    assert all(seen["wrong_words"] == 0 for seen in report["patterns"].values())


def test_a_gpu_that_the_run_does_not_test_keeps_the_machine_from_passing(monkeypatch):
    gpu = PciGpu(vendor="amd", pci="0000:03:00.0", device_id="0x74a1")
    monkeypatch.setattr(environment, "gpus_on_machine", lambda: (gpu,))
    found = named(environment.check(context_of("environment", shared=True)))
    assert found["gpus"].verdict is Verdict.INCONCLUSIVE
    assert "1 GPU(s) of amd" in found["gpus"].reason


def test_variables_that_hide_devices_are_reported(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    found = named(environment.check(context_of("environment", shared=True)))
    assert found["visible"].verdict is Verdict.UNVERIFIED
    assert "CUDA_VISIBLE_DEVICES='0,1'" in found["visible"].reason


@pytest.mark.parametrize(
    ("backend", "masks", "verdict", "words"),
    [
        ("rocm", {"HIP_VISIBLE_DEVICES": "0, 1"}, Verdict.FAIL, "has blanks"),
        ("rocm", {"CUDA_VISIBLE_DEVICES": "0,1"}, Verdict.UNVERIFIED, "set HIP_VISIBLE_DEVICES"),
        ("cuda", {"CUDA_VISIBLE_DEVICES": "0,0"}, Verdict.FAIL, "names a device again"),
        ("cuda", {"CUDA_VISIBLE_DEVICES": "0,1"}, Verdict.UNVERIFIED, "may be hidden"),
        ("cpu", {"CUDA_VISIBLE_DEVICES": "0,0"}, Verdict.UNVERIFIED, "may be hidden"),
        ("rocm", {}, Verdict.PASS, "no variable"),
    ],
)
def test_masks_that_show_other_devices_than_were_meant_fail(backend, masks, verdict, words):
    context = context_of("environment", machine=Live("/", masks))
    context.tested.backend = backend
    result = environment._visible(context)
    assert (result.verdict, words in result.reason) == (verdict, True), result.reason


def test_the_odd_device_out_is_the_culprit():
    devices = [device(0), device(1), device(2, memory_bytes=40 * 2**30), device(3)]
    result = identity._same_kind(context_of("identity", devices))
    assert result.verdict is Verdict.FAIL
    assert result.device == "cuda:2"
    assert "unlike its 3 peers" in result.reason


def test_a_fact_that_differs_from_the_target_is_a_result_of_its_own():
    h200 = load_target("nvidia-h200-sxm")
    context = context_of("identity", target=h200)
    good = named(identity._facts(context, device(0, capabilities=list(h200.claims)), h200))
    assert {result.verdict for result in good.values()} == {Verdict.PASS, Verdict.SKIP}
    bad = named(identity._facts(context, device(1, reported={"multi_processor_count": 114}), h200))
    assert bad["capabilities"].verdict is Verdict.INCONCLUSIVE
    assert bad["unit-count"].verdict is Verdict.FAIL
    assert bad["unit-count"].device == "cuda:1"
    assert bad["unit-count"].reason == "nvidia-h200-sxm states 132 SM, the device reports 114"


def test_devices_with_different_drivers_fail():
    devices = [device(0), device(1, versions={"driver": "535.1"})]
    (result,) = versions._drivers(context_of("versions", devices))
    assert result.verdict is Verdict.FAIL
    assert "cuda:1: 535.1" in result.reason


@pytest.mark.parametrize(
    ("available", "verdict"), [(None, "SKIP"), (False, "FAIL"), (True, "PASS")]
)
def test_only_a_library_that_should_be_there_is_missing(available, verdict):
    facts = {"torch": torch.__version__, "contract": list(CONTRACT), "comm_version": None}
    facts |= {"comm_library": "none", "comm_available": available}
    context = context_of("versions", [device(0, **facts)])
    found = named(versions.check(context))
    assert found["comm"].verdict == verdict, found["comm"].reason
    assert not [each for name, each in found.items() if each.failed and name != "comm"]


def test_devices_without_collectives_have_nothing_to_communicate():
    (found,) = collectives.check(context_of("collectives", [device(0), device(1)]))
    assert found.verdict is Verdict.SKIP
    assert found.reason == "the cpu backend claims no collectives"


def test_links_that_a_target_claims_and_nobody_read_are_not_passed():
    context = context_of("links", [device(0), device(1)], target=load_target("nvidia-h200-sxm"))
    found = named(links.check(context))
    assert found["devices"].verdict is Verdict.INCONCLUSIVE


def test_the_links_of_the_devices_under_test_are_judged(tmp_path):
    slot = {"current_link_speed": "32.0 GT/s PCIe", "max_link_speed": "32.0 GT/s PCIe"}
    files = {}
    for number, lanes in enumerate(("16", "8", "4")):
        folder = f"sys/bus/pci/devices/0000:0{number}:00.0"
        values = {"class": "0x030200", "vendor": "0x10de", "device": "0x2335", "numa_node": "0"}
        values |= slot | {"current_link_width": lanes, "max_link_width": "16"}
        files |= {f"{folder}/{name}": text for name, text in values.items()}
    machine = Live(write_tree(tmp_path, files))
    devices = [device(0, pci="00000000:00:00.0"), device(1, pci="0000:01:00.0")]
    context = context_of("links", devices, target=load_target("nvidia-h200-sxm"))
    context.tested.machine = machine
    assert named(links.check(context))["pcie-width"].verdict is Verdict.UNVERIFIED
    context.tested.wanted = context.tested.target
    found = named(links.check(context))
    assert found["pcie-width"].verdict is Verdict.FAIL
    assert found["pcie-width"].device == "0000:01:00.0"
    assert found["pcie-width"].reason == "0000:01:00.0 runs at x8, and the target has x16"
    assert found["pcie-generation"].verdict is Verdict.PASS
    assert found["link-count"].verdict is Verdict.INCONCLUSIVE
    assert "devices" not in found


class Recorded(Live):
    """A machine below a folder whose sources say of each GPU that it has uncorrected errors."""

    def __init__(self, root, counts):
        super().__init__(root, {})
        self.counts = counts

    def findings(self):
        readings = tuple(
            Reading(
                source="one",
                vendor="nvidia",
                pci=f"0000:0{number}:00.0",
                name="Example 9000",
                memory=Memory(uncorrected=count),
            )
            for number, count in enumerate(self.counts)
        )
        events = tuple(
            Event(source="log", vendor="nvidia", code=f"Xid {n}", pci=each.pci, fatal=True)
            for n, each in enumerate(readings)
            if n == 2
        )
        return (Findings(kind="kernel log", readings=readings, events=events),)


def test_the_health_of_the_devices_under_test_is_judged(tmp_path):
    devices = [device(0, pci="0000:00:00.0"), device(1, pci="00000000:01:00.0")]
    context = context_of("health", devices)
    found = named(health.check(on(context, Recorded(tmp_path, [0, 4, 9]))))
    errors = found["uncorrected-errors"]
    assert (errors.verdict, errors.device, errors.value) == (Verdict.FAIL, "0000:01:00.0", 4)
    assert found["events"].verdict is Verdict.PASS, "the neighbour's Xid is not theirs"
    assert found["host-memory-errors"].verdict is Verdict.SKIP
    healthy = list(health.check(on(context, Recorded(tmp_path, [0, 0, 9]))))
    assert not any(result.failed for result in healthy)


def test_the_health_of_devices_that_no_source_knows_is_not_passed(tmp_path):
    for devices in ([device(0, pci="0000:09:00.0")], [device(0)]):
        found = named(health.check(context_of("health", devices, machine=Recorded(tmp_path, [0]))))
        assert found["answers"].verdict is Verdict.INCONCLUSIVE


def test_a_run_on_the_cpu_judges_the_host_alone(tmp_path):
    context = context_of("health", [device(0)], shared=True)
    found = named(health.check(on(context, Recorded(tmp_path, [7]))))
    assert set(found) == {"host-memory-errors", "host-temperature", "host-throttling"}


def test_an_interrupt_keeps_the_cases_that_were_judged(monkeypatch):
    from portagpu.checks.bringup.checks import numerics
    from portagpu.runs.results.run import Result

    judged = Result(id="rng/seed", suite="conformance", area="rng", verdict=Verdict.PASS)

    def pressed(run, options, progress, ranks):
        progress.result_added(run.add(judged))
        raise KeyboardInterrupt

    monkeypatch.setattr(numerics, "judge_cases", pressed)
    made = bringup(BringupOptions(backend="cpu"), None, [gate("numerics")])
    assert [result.id for result in made.results] == ["rng/seed", "numerics/interrupted"]
    assert made.exit_code == 130

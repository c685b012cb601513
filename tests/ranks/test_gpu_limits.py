"""Time on machines with many devices and a slow start: limits grow with both, and blame nobody."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

from portagpu.base.documents import decode
from portagpu.checks.bringup import run as contexts
from portagpu.checks.bringup.checks import (
    collectives,
    identity,
    memory,
    numerics,
    sustained,
    transfers,
)
from portagpu.checks.bringup.device import CheckedDevice
from portagpu.checks.bringup.gates import load_gates
from portagpu.checks.bringup.run import Context, MachineUnderTest
from portagpu.devices import registry
from portagpu.runs.results.run import Verdict
from portagpu.runs.world import RankOutcome, Ranks, RankState, WorldOutcome
from portagpu.suites.conformance import ConformOptions
from portagpu.suites.conformance.messages import DeviceUnderTest, ListedCase
from portagpu.suites.conformance.runner import DeviceRun
from portagpu.suites.performance.load import compare_ranks
from tests.process.test_bringup_checks import FACTS
from tests.process.test_third_party import distribute
from tests.support import ranks as rank_functions
from tests.support.registry_state import use_plugins

pytestmark = pytest.mark.torch

RANKS = rank_functions.__file__
GATES = {gate.id: gate for gate in load_gates()}
CHECKS = {
    "memory": memory,
    "numerics": numerics,
    "transfers": transfers,
    "collectives": collectives,
    "sustained": sustained,
}


class Clock:
    """Seconds that pass only where a world runs."""

    def __init__(self, monkeypatch):
        self.now_s = 1000.0
        monkeypatch.setattr(contexts, "time", SimpleNamespace(monotonic=lambda: self.now_s))


class Opening:
    """Worlds in which every device opens, ``seconds`` after it was asked for."""

    def __init__(self, clock, seconds):
        self.clock, self.seconds, self.limits = clock, seconds, []

    def run(self, function, world=1, *, indices, timeout_s, **options):
        self.limits.append(timeout_s)
        self.clock.now_s += min(self.seconds, timeout_s)
        if self.seconds > timeout_s:
            hung = RankOutcome(0, RankState.HUNG, error=f"did not finish within {timeout_s:g} s")
            return WorldOutcome(function, (hung,), timeout_s, culprit=0)
        facts = {**FACTS, "device": f"cuda:{indices[0]}"}
        return WorldOutcome(function, (RankOutcome(0, RankState.DONE, facts),), self.seconds)


class Nothing:
    """Worlds that must not be started."""

    def run(self, function, *arguments, **options):
        pytest.fail(f"{function} was begun when the gate's time was up")


def counted(monkeypatch, devices):
    plugin = SimpleNamespace(name="cuda", count=lambda: devices)
    use_plugins(monkeypatch, plugin)
    assert registry.count("cuda") == devices


@pytest.mark.parametrize("effort", ["quick", "full"])
@pytest.mark.parametrize(("devices", "seconds"), [(1, 30), (8, 30), (64, 10)])
def test_every_device_of_a_large_node_has_the_time_to_open(monkeypatch, devices, seconds, effort):
    clock = Clock(monkeypatch)
    counted(monkeypatch, devices)
    worlds = Opening(clock, seconds)
    context = Context(
        MachineUnderTest("cuda", worlds), GATES["identity"], effort, started_s=clock.now_s
    )
    found = list(identity.check(context))
    assert len(context.tested.devices) == devices, (
        f"{len(context.tested.devices)} of {devices} were opened"
    )
    blamed = [each for each in found if each.verdict in (Verdict.FAIL, Verdict.ERROR)]
    assert not blamed, f"healthy devices: {blamed[0].reason}"
    assert min(worlds.limits) >= 60, f"a device has {min(worlds.limits)} s to open"


def test_a_node_that_takes_longer_is_open_and_its_devices_are_not_blamed(monkeypatch):
    clock = Clock(monkeypatch)
    counted(monkeypatch, 8)
    worlds = Opening(clock, 59)
    context = Context(
        MachineUnderTest("cuda", worlds), GATES["identity"], "quick", started_s=clock.now_s
    )
    found = list(identity.check(context))
    assert not any(each.failed for each in found), [each.reason for each in found]
    opened = [each for each in found if each.id == "identity/device"]
    (left,) = [each for each in opened if each.verdict is Verdict.INCONCLUSIVE]
    assert left.device == f"cuda device {len(context.tested.devices)}"
    assert left.reason == "not run: the gate identity has used up its 270 s"
    assert not any(each.id == "identity/count" for each in found), "what was not tried is counted"


READY = {"free_bytes": 1 << 30, "capabilities": ["collectives"]}


@pytest.mark.parametrize("name", [*CHECKS])
def test_a_gate_whose_time_is_up_begins_nothing_and_blames_nobody(monkeypatch, name):
    clock = Clock(monkeypatch)
    gate = replace(GATES[name], amounts={"quick": {**GATES[name].amounts["quick"]}})
    devices = [CheckedDevice(n, f"cuda:{n}", {**FACTS, **READY}) for n in range(4)]
    context = Context(
        MachineUnderTest("cpu", Nothing(), devices=devices, device_count=4), gate, "quick"
    )
    gate.amounts["quick"]["smoke"] = True
    context.started_s = clock.now_s - 1e5
    if name == "numerics":
        asked = []

        def late(run, options, progress, ranks):
            asked.append((progress.stop_reason(), options.index))

        monkeypatch.setattr(numerics, "judge_cases", late)
        list(numerics.check(context))
        # 600 s, and 120 s for each device after the first
        assert asked == [("not run: the gate numerics has used up its 960 s", [0, 1, 2, 3])]
        return
    found = list(CHECKS[name].check(context))
    assert found, "a gate that ran nothing says so"
    verdicts = {each.verdict for each in found}
    assert verdicts <= {Verdict.INCONCLUSIVE, Verdict.SKIP}, verdicts
    assert Verdict.INCONCLUSIVE in verdicts
    open_ones = [each.reason for each in found if each.verdict is Verdict.INCONCLUSIVE]
    assert all("has used up" in reason for reason in open_ones), open_ones


def test_the_time_of_a_gate_that_goes_by_devices_grows_with_them():
    for name in ("identity", "memory", "numerics", "transfers", "collectives", "sustained"):
        for effort in ("quick", "full"):
            assert GATES[name].amounts[effort]["device_s"] > 0, f"{name} in a {effort} run"


def test_ranks_in_turn_have_longer_where_there_are_more_of_them():
    limits = []

    def run(function, world, *, timeout_s, **options):
        limits.append(timeout_s)
        hung = RankOutcome(0, RankState.HUNG, error="is not here")
        return WorldOutcome(function, (hung,) * world, 0.0)

    for world in (2, 8, 64):
        compare_ranks(SimpleNamespace(run=run), world=world)
    assert limits == sorted(set(limits)), limits


SLOW = """
    import time
    from portagpu import Plugin, Status

    class Slow(Plugin):
        '''A CPU that takes a moment to open, as a GPU whose driver is not loaded.'''
        name, contract, shared = "{name}", (1, 1), True
        start_s = {start_s}

        def status(self):
            return Status(True, "is here")

        def count(self):
            return 1

        def open(self, index):
            from portagpu_cpu.backend import CpuBackend
            time.sleep({opening_s})
            return CpuBackend(self, index)

    PLUGIN = Slow()
"""


@pytest.fixture(scope="module")
def slow_ranks(tmp_path_factory):
    """A rank server of its own, which finds two devices that open late."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("slow")
    for name, start_s, opening_s in (("slow", 60, 3), ("late", 1, 60)):
        plugin = SLOW.format(name=name, start_s=start_s, opening_s=opening_s)
        distribute(folder, f"{name}-device", name, plugin)
    with pytest.MonkeyPatch.context() as patch, Ranks() as ranks:
        patch.syspath_prepend(str(folder))
        ranks.start()
        yield ranks


@pytest.mark.usefixtures("quiet_machine")
def test_ranks_that_do_not_start_are_distinguished_from_those_that_hang(slow_ranks):
    # allowed: time without a CPU does not count
    outcome = slow_ranks.run(f"{RANKS}:value", 1, backend="late", timeout_s=1)
    assert outcome.first_failure.state is RankState.HUNG
    assert "had not opened its device and joined within 2 s" in outcome.first_failure.error


def test_a_rank_that_broke_its_group_need_not_leave_it_in_order(ranks):
    outcome = ranks.run(f"{RANKS}:cannot_leave", 2, backend="cpu", timeout_s=60)
    assert outcome.ok, outcome.sentence


def test_a_case_on_ranks_has_the_time_of_two_starts_and_no_other_has():
    known = {"arch": "sm_90", "capabilities": [], "target": None, "overrides": []}
    named = {"backend": "cuda", "name": "cuda:0", "product": None, "vendor": "nvidia"}
    machine = decode(DeviceUnderTest, {**known, **named, "start_s": 60.0}, "machine")
    run = object.__new__(DeviceRun)
    run.options = ConformOptions(timeout_s=60.0)
    plain = ListedCase(id="rng/a", area="rng", spec="A.")
    on_ranks = replace(plain, capability=("collectives",))
    assert run._time_limit_s(plain, machine) == 60.0
    assert run._time_limit_s(on_ranks, machine) == 180.0
    assert run._time_limit_s(replace(on_ranks, timeout_s=180.0), machine) == 300.0


def test_what_gpus_need_to_start_is_stated_and_a_cpu_needs_none():
    from portagpu_cpu.plugin import CpuPlugin
    from portagpu_cuda.plugin import CudaPlugin
    from portagpu_rocm.plugin import RocmPlugin

    assert CpuPlugin.start_s == 0
    assert CudaPlugin.start_s == RocmPlugin.start_s >= 30

"""What an operator does about a result: the order of actions, and where they are from."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import portagpu
from portagpu.base.errors import ResultError
from portagpu.facts.formats.host import kernel_log
from portagpu.facts.vendors import tables
from portagpu.machine.inventory.gpu import Inventory
from portagpu.runs.engine import broken_world
from portagpu.runs.judges.health import judge_health
from portagpu.runs.results import advice
from portagpu.runs.results.advice import (
    OPEN,
    Action,
    Cause,
    Separation,
    action_of,
    action_source,
    separated,
    separation_of,
    worst_action,
    wrong_value,
)
from portagpu.runs.results.judgement import Judgement, combine
from portagpu.runs.results.run import Result
from portagpu.runs.results.verdicts import Verdict
from portagpu.runs.world import RankOutcome, RankState, WorldOutcome
from tests.support.looped import looped

CATALOGUE = "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html"
PACKAGE = Path(portagpu.__file__).parent


def result(name: str, verdict: Verdict = Verdict.FAIL, **extra: Any) -> Result:
    return Result(
        id=name,
        suite="bringup",
        area=name.partition("/")[0],
        verdict=verdict,
        reason="so",
        extra=extra,
    )


def judged(line: str) -> Judgement:
    """The judgement of one line of a log."""
    found = kernel_log.parse(line)
    (judgement,) = judge_health(Inventory(events=found.events, kinds=(found.kind,)))
    return judgement


def test_actions_are_ordered_by_what_they_take_out_of_use() -> None:
    order = ["none", "monitor", "reset", "isolate", "replace"]
    assert sorted(Action, reverse=True) == [Action(each) for each in reversed(order)]
    assert [str(each) for each in sorted(Action)] == order
    assert max(Action.MONITOR, Action.RESET) is Action.RESET, "not the order of the alphabet"
    assert Action.NONE < Action.MONITOR <= Action.MONITOR < "reset"
    assert Action.REPLACE > Action.ISOLATE >= Action.ISOLATE
    for each in Action:
        assert each.means.endswith("."), each


@pytest.mark.parametrize(
    ("name", "verdict", "action"),
    [
        ("identity/device", Verdict.FAIL, "isolate"),
        ("identity/device", Verdict.ERROR, "isolate"),
        ("identity/count", Verdict.FAIL, "isolate"),
        ("identity/count", Verdict.UNVERIFIED, "none"),
        ("health/row-remapping", Verdict.FAIL, "replace"),
        ("health/row-remapping", Verdict.UNVERIFIED, "monitor"),
        ("health/pending-repair", Verdict.FAIL, "reset"),
        ("health-after/pending-repair", Verdict.FAIL, "reset"),
        ("health/pcie-replays", Verdict.UNVERIFIED, "monitor"),
        ("health/row-remapping", Verdict.PASS, "none"),
        ("health/row-remapping", Verdict.INCONCLUSIVE, "none"),
        ("health/row-remapping", Verdict.SKIP, "none"),
        # a check that broke says nothing of the hardware
        ("memory/patterns", Verdict.ERROR, "monitor"),
        ("nothing/known", Verdict.FAIL, "monitor"),
        ("nothing/known", Verdict.UNVERIFIED, "none"),
    ],
)
def test_a_check_has_the_action_of_its_advice(name: str, verdict: Verdict, action: str) -> None:
    found = result(name, verdict)
    assert action_of(found) == action
    assert action_source(found) == "docs/when-it-fails.md"


def test_a_result_may_state_its_own_action() -> None:
    own = result("health/events", action="replace", action_source="https://example.org/rma")
    assert (action_of(own), action_source(own)) == ("replace", "https://example.org/rma")
    assert worst_action([result("health/pcie-replays"), own]) is Action.REPLACE
    assert worst_action([]) is Action.NONE
    with pytest.raises(ResultError, match=r"extra\.action: must be one of none, monitor, reset"):
        result("health/events", action="drain")


def test_every_action_of_the_tables_is_one() -> None:
    for severity in advice.severities().values():
        assert severity.action in set(Action), severity.id
    for check in advice.checks():
        assert {check.action, check.unverified} <= set(Action), check.ids
        assert Action(check.unverified) <= Action(check.action), (
            f"{check.ids}: unusual is not a fault"
        )


def of_time(suite: str, name: str) -> Result:
    """What a world of ranks gives that hung in this check."""
    hung = RankOutcome(0, RankState.HUNG, where="wait (x.py:3)")
    outcome = WorldOutcome("f", (hung,), 60.0, culprit=0)
    fields = broken_world(outcome, outcome.first_failure)
    area = name.partition("/")[0]
    return Result(id=name, suite=suite, area=area, **fields)


@looped(
    "suite,name",
    [(check.suite, name.replace("*", "x")) for check in advice.checks() for name in check.ids],
)
def test_time_alone_is_never_a_reason_to_take_a_device_out_of_use(suite: str, name: str) -> None:
    found = of_time(suite, name)
    assert found.failed
    assert action_of(found) is Action.MONITOR
    check = advice.check_of(found)
    assert check is not None
    assert check.do.startswith("run it again alone on a quiet machine")
    assert "replace" not in check.do
    assert advice.severity_of(found).id == "hung"
    # the same check keeps its action where something was seen
    seen = replace(found, value="died", reason="rank 0 died of SIGSEGV")
    own = advice.find_check(suite, name)
    assert advice.check_of(seen) == own


def test_a_slow_measure_asks_for_no_other_device() -> None:
    seen = 0
    for check in advice.checks():
        measured = check.suite == "performance" or check.ids[0].startswith(("transfers", "sustai"))
        if check.severity.id == "slow" and measured:
            seen += 1
            assert Action(check.action) <= Action.MONITOR, check.ids
            assert "replace" not in check.do, check.ids
    assert seen >= 5
    late = result("health/time")
    assert action_of(replace(late, suite="health")) is Action.MONITOR


def test_every_entry_of_our_tables_says_what_to_do_to_programs_too() -> None:
    own = [tomllib.loads((PACKAGE / "facts" / "formats" / "kernel_log.toml").read_text("utf-8"))]
    own += [table for name in ("kernel_log", "answers") for table in tables(name).values()]
    seen = 0
    for table in own:
        entries = [
            *(each for each in table["event"] if "codes" not in each),
            *table.get("actions", {}).values(),
            *table.get("recovery", {}).values(),
        ]
        for each in entries:
            seen += 1
            assert each["todo"] in set(Action), each
            if each.get("fatal") and each.get("code") not in (
                "no permission",
                "no access to /dev/kfd",
            ):
                assert Action(each["todo"]) >= Action.RESET, f"{each}: fatal asks for more"
    assert seen > 90


@pytest.mark.parametrize(
    ("line", "action", "source"),
    [
        # the column "Resolution Bucket (Immediate Action)" of NVIDIA's catalogue
        ("NVRM: Xid (PCI:0000:3b:00): 31, pid=1, MMU Fault", "none", CATALOGUE),
        ("NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off", "isolate", CATALOGUE),
        ("NVRM: Xid (PCI:0000:3b:00): 95, pid=1, Uncontained", "reset", CATALOGUE),
        ("NVRM: Xid (PCI:0000:3b:00): 54, x", "isolate", CATALOGUE),
        (
            (
                "NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x0 (None) to "
                "0x2 (Node Reboot Required)"
            ),
            "isolate",
            (
                "https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/"
                "error-recovery-and-response-flags.html"
            ),
        ),
        ("NVRM: Xid (PCI:0000:3b:00): 74, pid=1, NVLINK_X Fatal  x", "reset", CATALOGUE),
        ("EDAC MC0: 1 UE memory read error on CPU_SrcID#0", "replace", "edac_mc.c"),
        ("EDAC MC0: 1 CE memory read error on CPU_SrcID#0", "monitor", "edac_mc.c"),
        (
            (
                "amdgpu 0000:c1:00.0: amdgpu: RAS records:133 exceed threshold:128, GPU will not "
                "be initialized."
            ),
            "replace",
            "amdgpu_ras_eeprom.c",
        ),
        (
            (
                "amdgpu 0000:c1:00.0: amdgpu: socket: 0, die: 0, 1 new uncorrectable hardware "
                "errors detected in umc block"
            ),
            "reset",
            "amdgpu_ras.c",
        ),
    ],
)
def test_an_event_has_the_action_of_its_vendors_document(
    line: str, action: str, source: str
) -> None:
    found = judged(f"[  10.000000] {line}")
    assert found.action == action
    assert (found.action_source or "").endswith(source)
    assert found.fields["extra"]["action"] == action


def test_an_unknown_xid_is_watched_and_names_no_action_of_its_own() -> None:
    found = judged("[  10.000000] NVRM: Xid (PCI:0000:3b:00): 9999, pid=1, x")
    assert (found.verdict, found.action, found.fields["extra"]) == (Verdict.UNVERIFIED, None, {})
    assert action_of(result("health/events", found.verdict)) is Action.MONITOR


def test_the_gravest_action_of_one_device_is_kept_with_its_source() -> None:
    def event(action: Action, source: str) -> Judgement:
        return Judgement(
            Verdict.FAIL, source, name="events", device="a", action=action, action_source=source
        )

    (both,) = combine([event(Action.RESET, "x"), event(Action.REPLACE, "y")])
    assert (both.action, both.action_source) == (Action.REPLACE, "y")


def test_who_gave_a_wrong_value() -> None:
    for peers, distinct, cause, reason in (
        ([], True, Cause.OPEN, f"{OPEN}: no peer did the same work"),
        ([[]], True, Cause.OPEN, f"{OPEN}: no peer did the same work"),
        ([[None, None]], True, Cause.DEVICE, "the device: its peer is right on the same work"),
        (
            [["x", "x"], [None, None]],
            True,
            Cause.DEVICE,
            "the device: 1 of 2 peers are right on the same work",
        ),
        (
            [["x", "x"], ["x", "x"]],
            True,
            Cause.SOFTWARE,
            "the software: all 2 peers are wrong in the same bits",
        ),
        # ranks of one device are that device
        ([["x"]], False, Cause.OPEN, f"{OPEN}: every peer is wrong too, in the same bits"),
        ([["y", "y"]], True, Cause.OPEN, f"{OPEN}: every peer is wrong too, in other bits"),
        # a peer that is wrong in some runs has the same software
        ([["x", None]], True, Cause.SOFTWARE, "the software: its peer is wrong in the same bits"),
    ):
        assert separation_of("x", peers, distinct=distinct) == Separation(cause, reason)
    # digests that nobody made are not the same bits
    assert separation_of("", [[""]]).cause is Cause.OPEN


def test_wrong_values_of_peers_are_separated() -> None:
    right = replace(result("memory/triad", Verdict.PASS), device="cuda:0")
    wrong, other = (
        replace(result("memory/triad", **wrong_value("ab")), device=f"cuda:{index}")
        for index in (1, 2)
    )
    kept, found = separated([right, wrong])
    assert kept is right
    assert found.reason == "so; the device: its peer is right on the same work"
    assert found.extra == wrong_value("ab", Cause.DEVICE)
    assert separated([found, right])[0] == found, "it is said once"
    for each in separated([wrong, other]):
        assert each.reason == "so; the software: its peer is wrong in the same bits"
        assert each.does_not_show == "whether a device is wrong too"
    (alone,) = separated([wrong])
    assert (alone.reason, alone.does_not_show) == ("so", f"{OPEN}: no peer did the same work")
    (shared,) = separated([alone], "the ranks share a device")
    assert (shared.reason, shared.does_not_show) == ("so", f"{OPEN}: the ranks share a device")

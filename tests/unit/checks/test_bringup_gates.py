"""The checklist as data: what the shipped one holds, and how a wrong one is refused."""

from __future__ import annotations

import pytest

from portagpu.base.errors import PortagpuError
from portagpu.checks.bringup.gates import (
    UnknownGate,
    left_out_gates,
    load_gates,
    with_load_duration,
)
from portagpu.checks.bringup.run import check_function
from portagpu.runs.results.verdicts import Evidence

GATE = """
[[gate]]
id = "one"
title = "One"
spec = "One sentence."
earns = "executed"
check = "tests.support.bringup_checks:good"
needs = []
quick = { limit_s = 5 }
full = { limit_s = 5 }
"""


def test_the_checklist_has_the_gates_of_a_bring_up_in_order():
    assert [gate.id for gate in load_gates()] == [
        "environment",
        "identity",
        "versions",
        "links",
        "health",
        "memory",
        "numerics",
        "transfers",
        "collectives",
        "sustained",
        "screen",
        "health-after",
    ]


def test_every_gate_names_a_check_that_exists_and_one_sentence():
    for gate in load_gates():
        assert callable(check_function(gate)), gate.id
        assert gate.replay is None or callable(check_function(gate, replay=True)), gate.id
        assert gate.spec.endswith("."), gate.id


def test_gates_earn_what_their_devices_did():
    earned = {gate.id: gate.earns for gate in load_gates()}
    reads = ("environment", "links", "health", "health-after")
    assert earned == {
        **dict.fromkeys(earned, Evidence.EXECUTED),
        **dict.fromkeys(reads),
        **dict.fromkeys(("identity", "versions"), Evidence.LOADED),
    }


def test_the_limits_of_a_quick_run_are_stated_for_every_gate():
    for gate in load_gates():
        assert 0 < gate.amounts["quick"]["limit_s"] <= gate.amounts["full"]["limit_s"], gate.id


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            ("portagpu.gates/1", "portagpu.gates/9"),
            "schema: is portagpu.gates/9; this version r",
        ),
        (
            ('id = "one"', 'id = "One!"'),
            "gate[0].id: must be a word in lower case and hyphens",
        ),
        (('title = "One"', "title = 1"), "gate[0].title: must be text, not 1"),
        (("needs = []", 'needs = ["two"]'), "gate[0].needs: 'two' is not an earlier gate"),
        (("quick = { limit_s = 5 }", ""), "gate[0].quick: is missing"),
        (
            ("quick = { limit_s = 5 }", "quick = { limit_s = true }"),
            "gate[0].quick.limit_s: must be a number of seconds above 0, not True",
        ),
        (
            ("full = { limit_s = 5 }", "full = { limit_s = 0 }"),
            "gate[0].full.limit_s: must be a number",
        ),
        (
            ('check = "tests.support.bringup_checks:good"', 'check = "no colon"'),
            "gate[0].check: must be 'module:function', not 'no colon'",
        ),
        (("needs = []", 'needs = []\nreplay = "no colon"'), "gate[0].replay: must be"),
        (
            ('earns = "executed"', 'earns = "recorded"'),
            "gate[0].earns: must be one of nothing, l",
        ),
        (("needs = []", 'needs = []\nreplay = "m:f"'), "gate[0].earns: must not be executed for"),
        (("needs = []", "needs = []\nreplay = 1"), "gate[0].replay: must be"),
        (("needs = []", "needs = []\ncolour = 1"), "gate[0].colour: is not a known key"),
        (("[[gate]]", "[gate]"), "gate: must be a list, not {"),
        (("[[gate]]", "[[gate"), "cannot be read as TOML"),
    ],
)
def test_a_wrong_checklist_names_file_key_and_rule(tmp_path, change, said):
    path = tmp_path / "gates.toml"
    path.write_text(('schema = "portagpu.gates/1"\n' + GATE).replace(*change))
    with pytest.raises(PortagpuError) as caught:
        load_gates(path)
    assert said in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value).split("TOML:")[0]


def test_two_gates_of_one_id_are_refused(tmp_path):
    path = tmp_path / "gates.toml"
    path.write_text('schema = "portagpu.gates/1"\n' + GATE + GATE)
    with pytest.raises(PortagpuError, match=r"gate\[1\]\.id: 'one' is the id of an earlier gate"):
        load_gates(path)


def ids(**asked: tuple[str, ...]) -> set[str]:
    gates = load_gates()
    return {gate.id for gate in gates} - set(left_out_gates(gates, **asked))


def test_a_gate_that_is_asked_for_brings_the_gates_it_needs() -> None:
    assert ids(only=("memory",)) == {"environment", "identity", "memory"}
    assert ids(only=("sustained",), skip=("numerics",)) == {"sustained"}
    assert ids(skip=("sustained",)) == {gate.id for gate in load_gates()} - {"sustained"}


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"only": ("memry",)}, "did you mean 'memory'"),
        ({"skip": ("zzz",)}, "gates are environment, identity"),
        ({"only": ("links",), "skip": ("links",)}, "no gate is left"),
    ],
)
def test_a_gate_that_nobody_has_is_named(asked: dict[str, tuple[str, ...]], said: str) -> None:
    with pytest.raises(UnknownGate, match=said):
        left_out_gates(load_gates(), **asked)


def test_a_longer_load_has_a_longer_limit_and_other_gates_stay() -> None:
    before = {gate.id: gate for gate in load_gates()}
    after = {name: with_load_duration(gate, 40.0) for name, gate in before.items()}
    changed = [name for name in before if before[name].amounts != after[name].amounts]
    assert changed == ["sustained"]
    quick, full = (after["sustained"].amounts[effort] for effort in ("quick", "full"))
    assert (quick["seconds"], quick["shared_seconds"], quick["limit_s"]) == (40.0, 40.0, 330.0)
    assert (full["seconds"], full["limit_s"]) == (40.0, 1800.0)

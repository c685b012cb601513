"""Outcomes that a backend publishes for cases: judged, listed, and never a way to pass."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from portagpu import cli
from portagpu.devices.contract import Override
from portagpu.runs.results.run import Verdict
from portagpu.suites.conformance.judge import judge, unused_overrides
from portagpu.suites.conformance.messages import DeviceUnderTest, ListedCase
from tests.conftest import Child
from tests.support import registry_state
from tests.support.case_files import copy_cases, only_files
from tests.support.fake_plugins import install

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("forked")

URL = "https://example.org/priorities"


def _override(outcome: str = "undefined", pattern: str = "streams/x") -> Override:
    return Override(pattern=pattern, outcome=outcome, reason="one queue serves all", url=URL)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"outcome": "exact"}, "unsupported or undefined: 'exact'"),
        ({"outcome": "passes"}, "unsupported or undefined"),
        ({"pattern": ""}, "'' is none"),
        ({"pattern": "streams"}, "'streams' is none"),
        ({"pattern": "*"}, "is none"),
        ({"reason": " "}, "needs a reason of one line"),
        ({"reason": "two\nlines"}, "needs a reason of one line"),
        ({"reason": "red \x1b[31m"}, "needs a reason of one line"),
        ({"url": "http://example.org"}, "must be an https address"),
        ({"url": ""}, "must be an https address"),
    ],
)
def test_an_override_is_complete_or_refused(changes: dict[str, str], said: str) -> None:
    whole = {"pattern": "streams/x", "outcome": "undefined", "reason": "why", "url": URL}
    with pytest.raises(ValueError, match=said):
        Override(**{**whole, **changes})


def _judge(kind: str, override: Override, capability: tuple[str, ...] = ()) -> tuple[Verdict, str]:
    case = ListedCase(id="streams/x[n2]", area="streams", spec="It works.", capability=capability)
    machine = DeviceUnderTest(
        backend="some",
        name="some:0",
        product=None,
        vendor=None,
        arch="none",
        capabilities=frozenset({"streams"}),
        target=None,
        overrides=(override,),
    )
    outcome: dict[str, Any] = {"kind": kind, "reason": "", "duration_s": 1.0, "observed": []}
    if kind != "passed":
        outcome["reason"] = "it was so"
    result = judge(case, outcome, machine)
    return result.verdict, result.reason


@pytest.mark.parametrize(
    ("outcome", "kind", "verdict", "said"),
    [
        ("undefined", "passed", Verdict.UNVERIFIED, "recorded and not judged: it passed"),
        ("undefined", "failed", Verdict.UNVERIFIED, "recorded and not judged: it was so"),
        ("undefined", "unsupported", Verdict.UNVERIFIED, "recorded and not judged: it was so"),
        ("undefined", "raised", Verdict.FAIL, "which is about values: it was so"),
        ("undefined", "lost", Verdict.FAIL, "which is about values: it was so"),
        ("undefined", "hung", Verdict.FAIL, "which is about values: it was so"),
        ("undefined", "starved", Verdict.INCONCLUSIVE, "it was so"),
        ("undefined", "error", Verdict.ERROR, "it was so"),
        ("undefined", "not-here", Verdict.INCONCLUSIVE, "it was so"),
        ("undefined", "not-claimed", Verdict.SKIP, "it was so"),
        ("unsupported", "unsupported", Verdict.SKIP, "it raised Unsupported, as it must"),
        ("unsupported", "passed", Verdict.FAIL, "so it must raise Unsupported; instead it passed"),
        ("unsupported", "failed", Verdict.FAIL, "instead it failed: it was so"),
        ("unsupported", "raised", Verdict.FAIL, "instead it failed: it was so"),
        ("unsupported", "lost", Verdict.FAIL, "instead it failed: it was so"),
        ("unsupported", "hung", Verdict.FAIL, "instead it failed: it was so"),
        ("unsupported", "starved", Verdict.INCONCLUSIVE, "it was so"),
        ("unsupported", "error", Verdict.ERROR, "it was so"),
        ("unsupported", "not-here", Verdict.INCONCLUSIVE, "it was so"),
    ],
)
def test_an_override_decides_and_never_passes(
    outcome: str, kind: str, verdict: Verdict, said: str
) -> None:
    found, reason = _judge(kind, _override(outcome))
    assert found is verdict, reason
    assert said in reason, reason
    if "declares" in reason:
        assert f"some declares it {outcome} (one queue serves all, {URL})" in reason


def test_what_is_claimed_and_refused_is_not_undefined() -> None:
    found, reason = _judge("unsupported", _override(), ("streams",))
    assert found is Verdict.FAIL, reason
    assert "some claims streams, but it raised Unsupported" in reason


def test_an_override_of_another_case_changes_nothing() -> None:
    assert _judge("passed", _override(pattern="streams/y"))[0] is Verdict.PASS
    assert _judge("failed", _override(pattern="streams/x[n3]"))[0] is Verdict.FAIL


def test_an_override_without_a_case_is_an_error() -> None:
    judged = {"streams/x[n2]": Verdict.FAIL}
    assert unused_overrides([_override()], judged) == []
    (found,) = unused_overrides([_override(), _override(pattern="streams/y")], judged)
    assert found.verdict is Verdict.ERROR
    assert found.id == "suite/override-2"
    assert "'streams/y'" in found.reason
    assert "fits no case" in found.reason


def test_an_override_that_never_counts_is_an_error() -> None:
    judged = {"streams/x[n2]": Verdict.FAIL, "streams/y": Verdict.FAIL}
    assert unused_overrides([_override(), _override(pattern="streams/*")], judged) == []
    (found,) = unused_overrides([_override(pattern="streams/*"), _override()], judged)
    assert found.id == "suite/override-2"
    assert "because others stand before it" in found.reason


@pytest.mark.parametrize("name", ["pattern", "outcome", "reason", "url"])
def test_a_part_of_an_override_is_text(name: str) -> None:
    whole: dict[str, Any] = {"pattern": "streams/x", "outcome": "undefined", "reason": "why"}
    with pytest.raises(TypeError, match=f"an override's {name} is text, not 3"):
        Override(**{**whole, "url": URL, name: 3})


@pytest.mark.parametrize(
    ("stated", "said"),
    [
        ('overrides = ["rng/*"]', "states its overrides as ['rng/*'] instead of a tuple"),
        ('overrides = ("rng/*",)', "states its overrides as ('rng/*',) instead of a tuple"),
        ("overrides = None", "states its overrides as None instead of a tuple"),
        ("@property\n    def overrides(self): raise KeyError(7)", "raised KeyError: 7"),
        ("contract = property(lambda self: 1 / 0)", "raised ZeroDivisionError"),
    ],
)
def test_a_plugin_that_states_something_else_is_refused_in_one_line(
    tmp_path: Path, stated: str, said: str
) -> None:
    module = (
        "from portagpu_cpu.plugin import CpuPlugin\n"
        f'class Odd(CpuPlugin):\n    name = "quirky"\n    {stated}\n'
        "PLUGIN = Odd()\n"
    )
    install(tmp_path, "portagpu-quirky", {"quirky": "odd:PLUGIN"}, {"odd": module})
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = _conform(environment, "--list", "--only", "rng")
    assert done.returncode == 3, done.stderr
    (line,) = done.stderr.splitlines()
    assert said in line


QUIRKY = """
from portagpu.devices.contract import Override
from portagpu_cpu.plugin import CpuPlugin

URL = "https://example.org"

class Quirky(CpuPlugin):
    name = "quirky"
    overrides = (
        Override(pattern="rng/seed-repeats[rand]", outcome="undefined", reason="it drifts",
                 url=URL),
        Override(pattern="rng/seed-is-*", outcome="unsupported", reason="it has none", url=URL),
    )
    def open(self, index):
        handle = super().open(index)
        handle.name = "quirky"
        return handle

PLUGIN = Quirky()
"""


@pytest.fixture
def quirky(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Child]:
    """The verb, on a backend that publishes overrides, and with the cases that they are of."""
    install(tmp_path, "portagpu-quirky", {"quirky": "quirky_0:PLUGIN"}, {"quirky_0": QUIRKY})
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "quirky_0", raising=False)
    registry_state.forget(monkeypatch)
    only_files(monkeypatch, copy_cases(tmp_path / "cases", "rng"))

    def run(*words: str) -> Child:
        code = cli.main(["conform", "--backend", "quirky", *words])
        return Child(code, *capsys.readouterr())

    return run


def _conform(environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "portagpu", "conform", "--backend", "quirky", *words],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_the_list_has_a_backends_outcomes(quirky: Callable[..., Child]) -> None:
    done = quirky("--list", "--only", "rng/seed-repeats", "--json", "-")
    outcomes = {case["id"]: case for case in json.loads(done.ok())["cases"]}
    changed = outcomes.pop("rng/seed-repeats[rand]")
    assert changed["outcome"] == "undefined"
    assert changed["override"]["reason"] == "it drifts"
    assert outcomes
    assert all("override" not in case for case in outcomes.values())
    text = quirky("--list", "--only", "rng/seed-repeats").out
    assert text.count("undefined (rng/seed-repeats[rand]): it drifts") == 1


@pytest.mark.torch
def test_a_run_is_judged_by_a_backends_outcomes(quirky: Callable[..., Child]) -> None:
    pytest.importorskip("torch")
    done = quirky("--only", "rng", "--json", "-")
    results = {each["id"]: each for each in json.loads(done.out)["results"]}
    assert results["rng/seed-repeats[rand]"]["verdict"] == "UNVERIFIED"
    assert "quirky declares it undefined" in results["rng/seed-repeats[rand]"]["reason"]
    others = [
        name for name in results if name.startswith("rng/seed-repeats[") and "[rand]" not in name
    ]
    assert others
    assert {results[name]["verdict"] for name in others} == {"PASS"}
    seeds = {name: each for name, each in results.items() if name.startswith("rng/seed-is-")}
    assert seeds, sorted(results)
    assert {each["verdict"] for each in seeds.values()} == {"FAIL"}
    assert done.code == 1, "it claims to be unable to do what it does"

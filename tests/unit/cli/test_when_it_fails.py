"""What a run says when it fails: the gravest first, with value, expectation and next step."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import portagpu
from portagpu.checks.bringup import BringupOptions, bringup, load_gates
from portagpu.checks.bringup.device_properties import ROWS
from portagpu.checks.collectives_doctor import known_findings
from portagpu.checks.recordings.replay import Recording
from portagpu.runs.results import advice
from portagpu.runs.results.judgement import Judgement, combine
from portagpu.runs.results.run import Result, Run
from portagpu.runs.results.verdicts import Verdict
from portagpu.runs.results.wording import (
    at_least,
    at_most,
    exactly,
    expected_in_words,
    failures_text,
    headline,
    within,
)
from portagpu.suites.conformance import list_cases
from portagpu.suites.performance.cases import FURTHER_IDS, metrics
from portagpu.traces.analysis import diagnose
from portagpu.train.exact.probes import PROBES
from tests.support.result_samples import info

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(portagpu.__file__).parent
LOG = """\
[ 100.0] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024
[ 202.0] nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 12028, Fatal, Link 40
[ 201.0] NVRM: Xid (PCI:0000:3c:00): 48, pid=1234, name=python, DBE (double bit error)
[ 200.0] NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', GPU has fallen off the bus.
"""
"""Lines in the form of NVIDIA's Xid documentation and fabric manager guide, which kernel_log.toml
cites; the gravest is the last."""


# ---- ids


def calls(module: str, *callees: str) -> Iterator[ast.Call]:
    """Every call of ``callees`` in a module."""
    for node in ast.walk(ast.parse((PACKAGE / module).read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        callee = node.func.attr if isinstance(node.func, ast.Attribute) else None
        callee = node.func.id if isinstance(node.func, ast.Name) else callee
        if callee in callees:
            yield node


def named(call: ast.Call, keyword: str) -> ast.expr | None:
    """What ``call`` gives for a keyword; None where it gives nothing."""
    return next((each.value for each in call.keywords if each.arg == keyword), None)


def text_of(name: ast.expr) -> str:
    """A name that is constant; one made at run time is its expression, in angle brackets."""
    if isinstance(name, ast.JoinedStr):
        return "".join(
            part.value if isinstance(part, ast.Constant) else "x" for part in name.values
        )
    return name.value if isinstance(name, ast.Constant) else f"<{ast.unparse(name)}>"


def first_words(module: str, *callees: str) -> Iterator[str]:
    """The first argument of every call of ``callees`` in a module."""
    for call in calls(module, *callees):
        if call.args:
            yield text_of(call.args[0])


def names_of_judgements(module: str) -> Iterator[str]:
    """The keyword ``name`` of every Judgement in a module, and of every one that is completed."""
    for call in calls(module, "Judgement", "replace"):
        name = next((each.value for each in call.keywords if each.arg == "name"), None)
        if name is not None:
            yield text_of(name)
        else:
            where = f"{module}:{call.lineno}"
            assert ast.unparse(call.func) == "replace", f"{where}: a judgement of no check"


SAID = ("result", "judge", "failure", "_broken")
MODULES = {
    "environment": ("checks/bringup/checks/environment.py",),
    "identity": ("checks/bringup/checks/identity.py", "checks/bringup/device_properties.py"),
    "versions": ("checks/bringup/checks/versions.py",),
    "links": (
        "checks/bringup/checks/links.py",
        "runs/judges/links.py",
    ),
    "health": (
        "checks/bringup/checks/health.py",
        "runs/judges/health.py",
        "runs/judges/peers.py",
    ),
    "memory": ("checks/bringup/checks/memory.py",),
    "numerics": ("checks/bringup/checks/numerics.py",),
    "transfers": ("checks/bringup/checks/transfers.py",),
    "collectives": ("checks/bringup/checks/collectives.py",),
    "sustained": ("checks/bringup/checks/sustained.py", "checks/bringup/checks/transfers.py"),
    "screen": ("checks/bringup/checks/screen.py",),
}
MADE = {
    "<name>": ("identity", ["arch", "warp-size"]),
    "<row.name>": ("identity", [row.name for row in ROWS]),
    "<rule.name>": ("health", list(first_words("runs/judges/health.py", "_Rule"))),
}
"""Names that are made at run time: their gate, and what they are there."""
OF_NO_CHECK = {"<each.name>", "<found.name>", "<judged.name>", "<name>"}
"""A judgement that is passed on."""


def names_of_gates() -> dict[str, set[str]]:
    """The names of results that the source of each gate's check has."""
    # of transfers.py collectives take "values" alone, by way of adopted()
    found: dict[str, set[str]] = {"collectives": {"values"}}
    for gate, modules in MODULES.items():
        names = found.setdefault(gate, set())
        for module in modules:
            said = [*first_words(module, *SAID), *names_of_judgements(module)]
            for name in said:
                if name in MADE and MADE[name][0] == gate:
                    names |= set(MADE[name][1])
                elif name not in OF_NO_CHECK:
                    assert "<" not in name, f"{module}: add {name} to MADE, with what it can be"
                    names.add(name)
    return found


def ids() -> Iterator[tuple[str, str]]:
    """(suite, id) of every result that the code can produce."""
    for gate, names in names_of_gates().items():
        yield from (("bringup", f"{gate}/{name}") for name in names)
    for gate in (each.id for each in load_gates()):
        yield from (("bringup", f"{gate}/{name}") for name in RUN)
    yield from (("performance", name) for name in metrics())
    yield from (("performance", name) for name in FURTHER_IDS)
    yield from (("conformance", each.id) for each in list_cases())
    yield from (("conformance", f"suite/{name}") for name in SUITE)
    yield from (
        ("health", f"health/{name}") for name in first_words("checks/health/engine.py", "result")
    )
    yield "health", "health/time"
    yield "compile", "kernels/softmax"
    yield from (("screen", f"screen/{each.name}") for each in PROBES)
    yield from (("screen", f"screen/{name}") for name in ("device", "digests", "memory-errors"))
    yield from (("collectives", f"collectives/doctor/{name}") for name in known_findings())
    yield from (("trace", f"trace/diagnose/{name}") for name in diagnose.known_findings())


RUN = set(first_words("checks/bringup/run.py", "result")) - OF_NO_CHECK
SUITE = {"contents", "expected-failure-1", "override-2", "world-of-collectives-x", "unjudged-rng"}


def test_every_gate_is_read_for_its_ids() -> None:
    gates = {each.id for each in load_gates()}
    assert gates == {*MODULES, "health-after"}
    for gate in load_gates():
        module = gate.check.partition(":")[0].removeprefix("portagpu.").replace(".", "/")
        assert f"{module}.py" in MODULES[gate.id.removesuffix("-after")]
    assert {"check", "replay", "blocked", "left-out", "interrupted"} == RUN
    assert all(len(names) >= 1 for names in names_of_gates().values())


def test_the_page_has_every_id_that_the_code_can_produce() -> None:
    missing = [f"{suite} {name}" for suite, name in ids() if advice.find_check(suite, name) is None]
    assert not missing, f"portagpu/runs/results/advice.toml has no entry for {', '.join(missing)}"


def test_the_page_has_no_id_that_nothing_produces() -> None:
    """A check that was renamed would keep its old name on the page."""
    produced: dict[str, set[str]] = {}
    for suite, name in ids():
        produced.setdefault(suite, set()).add(name)
    stale = [
        name
        for check in advice.checks()
        for name in check.ids
        if "*" not in name and name not in produced[check.suite]
    ]
    assert not stale, f"no code produces {', '.join(stale)}"


def test_a_gate_after_load_has_the_advice_of_the_one_before() -> None:
    assert advice.find_check("bringup", "health-after/events") is advice.find_check(
        "bringup", "health/events"
    )
    assert advice.find_check("bringup", "health-after/nothing") is None


# ---- what fails has an expectation


def test_whatever_is_judged_a_failure_says_what_was_expected() -> None:
    """The five positions of Judgement end with the expectation."""
    seen = 0
    for path in sorted((PACKAGE / "runs" / "judges").glob("*.py")):
        for call in calls(f"runs/judges/{path.name}", "Judgement"):
            if "Verdict.FAIL" not in [ast.unparse(each) for each in call.args]:
                continue
            seen += 1
            named = {keyword.arg for keyword in call.keywords}
            where = f"{path.name}:{call.lineno}"
            assert len(call.args) >= 5 or "expected" in named, f"{where} expects nothing"
    assert seen >= 12


@pytest.fixture
def run(tmp_path: Path) -> Run:
    log = tmp_path / "dmesg.log"
    log.write_text(LOG)
    return bringup(BringupOptions(replay=Recording(log), expect_devices=8))


def test_the_headline_is_the_gravest_failure_and_not_the_first(run: Run) -> None:
    assert run.first_failure is not None
    assert run.first_failure.device == "0000:05:00.0", "the log begins with a switch's error"
    assert run.failures[0].device == "0000:3b:00.0", "a GPU that fell off the bus is graver"
    line = run.summary_line()
    assert line.startswith("FAIL: health/events on 0000:3b:00.0: Xid 79 (GPU has fallen off")
    assert "(and 2 more failures); next: " in line
    assert "\n" not in line
    health = [each for each in run.results if each.area == "health"]
    assert headline(health).startswith("0000:3b:00.0: Xid 79"), "the gate says the same"


def test_all_failures_stand_at_the_end_by_severity(run: Run) -> None:
    text = failures_text(run.results)
    assert text[0] == "3 failures, the gravest first:"
    titles = [line for line in text[1:] if line and not line.startswith(" ")]
    assert titles == ["the device is gone:", "memory is faulty:", "a link is down:"]
    for device in ("0000:3b:00.0", "0000:3c:00.0", "0000:05:00.0"):
        at = next(i for i, line in enumerate(text) if device in line)
        assert text[at].startswith("  FAIL  health/events on ")
        assert text[at + 1] == "        found 1, expected 0"
        assert text[at + 2].startswith("  next: do what is stated")


def test_a_run_without_failures_lists_none() -> None:
    assert failures_text([]) == []
    one = Result(id="a/b", suite="bringup", area="a", verdict=Verdict.INCONCLUSIVE, reason="so")
    assert failures_text([one]) == []


def failing(name: str, **fields: object) -> Result:
    values = {"suite": "bringup", "verdict": Verdict.FAIL, "reason": "so", **fields}
    return Result(id=name, area=name.partition("/")[0], **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("graver", "lesser"),
    [
        (failing("identity/device"), failing("health/uncorrected-errors")),
        (failing("health/uncorrected-errors"), failing("links/links-up")),
        (failing("links/links-up"), failing("identity/count")),
        (failing("identity/count"), failing("links/pcie-width")),
        (failing("links/pcie-width"), failing("versions/driver")),
        (failing("versions/driver"), failing("memory/check", verdict=Verdict.ERROR)),
        # a check that broke says little of the hardware, unless the device cannot be opened
        (failing("versions/driver"), failing("memory/patterns", verdict=Verdict.ERROR)),
        (failing("identity/device", verdict=Verdict.ERROR), failing("memory/patterns")),
        (
            failing("collectives/all-reduce", suite="conformance"),
            failing("collectives/all_reduce", suite="performance"),
        ),
    ],
)
def test_severity_orders_failures_whatever_their_order(graver: Result, lesser: Result) -> None:
    assert advice.gravest_first([lesser, graver]) == [graver, lesser]
    assert advice.gravest_first([graver, lesser]) == [graver, lesser]
    assert Run(info(), [lesser, graver]).failures[0] == graver


def test_results_that_a_gate_took_over_keep_their_suite() -> None:
    taken = failing("memory/copy[device]", extra={"suite": "performance", "area": "memory"})
    own = replace(taken, extra={})
    assert advice.severity_of(taken).id == "slow"
    assert advice.check_of(own) is None, "bring-up has no memory/copy of its own"


def test_failures_that_differ_in_the_device_alone_share_a_line() -> None:
    wanted = at_least(16, "the slot")
    slow = [
        failing(
            "links/pcie-width",
            device=f"cuda:{n}",
            reason=f"cuda:{n}: x8",
            value=8,
            unit="1",
            expected=wanted,
        )
        for n in range(64)
    ]
    text = failures_text(slow)
    assert text[0] == "64 failures, the gravest first:"
    assert len([line for line in text if "links/pcie-width" in line]) == 1
    for n in range(64):
        assert f"cuda:{n}" in text[3], "every device is named"
    assert text[4] == "        found 8, expected at least 16"


def test_two_faults_of_one_device_are_one_failure_with_both_values() -> None:
    none = exactly(0, "no error")
    both = combine(
        [
            Judgement(
                Verdict.FAIL, "Xid 48", 2, "1", none, name="events", device="a", severity="memory"
            ),
            Judgement(
                Verdict.FAIL, "Xid 79", 1, "1", none, name="events", device="a", severity="gone"
            ),
        ]
    )
    assert [(each.value, each.expected, each.severity) for each in both] == [(3, none, "gone")]
    unlike = combine(
        [
            Judgement(
                Verdict.FAIL,
                "r",
                "ECC off",
                expected=exactly("ECC on", "peers"),
                name="peers",
                device="a",
            ),
            Judgement(Verdict.FAIL, "s", 8, "1", exactly(16, "peers"), name="peers", device="a"),
        ]
    )
    assert unlike[0].value == "ECC off; 8"
    assert unlike[0].expected == exactly("ECC on; 16", "peers")


@pytest.mark.parametrize(
    ("expected", "words"),
    [
        (exactly(8, "x"), "8"),
        (exactly("on", "x"), "on"),
        (at_least(0.0005, "x", "TFLOPS"), "at least 500 MFLOPS"),
        (at_most(83, "x", "°C"), "at most 83 °C"),
        (within(1000, 0.1, "x", "GB/s"), "0.9 to 1.1 TB/s"),
    ],
)
def test_expectations_are_reported_in_words(expected: dict[str, object], words: str) -> None:
    assert expected_in_words(expected) == words


def test_what_somebody_else_wrote_is_not_a_command_of_the_terminal() -> None:
    bad = "evil\x1b[31m\x9b2J\x7f"
    result = failing("identity/target", value=bad, expected=exactly(bad, bad), reason=bad)
    text = "\n".join(failures_text([result]))
    assert "evil" in text
    assert all(char.isprintable() or char == "\n" for char in text)


def test_a_reason_of_many_lines_is_one_line_of_a_gate() -> None:
    said = Result(
        id="links/hive", suite="bringup", area="links", verdict=Verdict.FAIL, reason="a\nPASS  b"
    )
    passed = replace(said, id="links/lanes", verdict=Verdict.PASS)
    assert headline([said]) == "a PASS b"
    assert headline([said, passed]) == "a PASS b (1 passed)"


def test_a_suite_of_another_type_in_an_untrusted_result_has_no_check() -> None:
    said = Result(
        id="links/hive",
        suite="bringup",
        area="links",
        verdict=Verdict.FAIL,
        reason="a",
        extra={"suite": ["bringup"], "severity": {}},
    )
    assert advice.check_of(said) is None
    assert failures_text([said])

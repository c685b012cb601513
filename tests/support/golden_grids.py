"""Golden files of judges over grids: what each says of every kind of outcome, value and claim."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any, Final

from tests.conftest import ROOT
from tests.support.golden import Golden, answer_of, digest_of
from tests.support.golden_numbers import lines_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def _conformance(_: Path) -> Iterator[str]:
    """Verdicts of conformance cases: how a case ended, what is claimed, overridden and targeted."""
    from portagpu.devices.contract import Override
    from portagpu.runs.results.run import Evidence
    from portagpu.suites.conformance import judge, messages

    case = messages.ListedCase(
        id="streams/order[2]",
        area="streams",
        spec="work of one stream is in order",
        capability=("streams",),
        evidence=Evidence.EXECUTED,
    )
    url = "https://example.org/streams"
    overrides = {
        "": (),
        "unsupported": (
            Override(pattern="streams/order*", outcome="unsupported", reason="none", url=url),
        ),
        "undefined": (
            Override(pattern="streams/order[2]", outcome="undefined", reason="any", url=url),
        ),
    }
    targets = {
        "no target": None,
        "claimed": messages.TargetClaims("example-1", frozenset({"streams"})),
        "not claimed": messages.TargetClaims("example-2", frozenset()),
    }
    device = messages.DeviceUnderTest(
        backend="example",
        name="example:0",
        arch="ex900",
        vendor="example",
        capabilities=frozenset({"streams"}),
        target=None,
    )
    shared = {"state": "hung", "sentence": "rank 1 hung"}
    for kind, claims, override, target in product(
        messages.OutcomeKind, (True, False), overrides, targets
    ):
        here = replace(
            device,
            capabilities=frozenset({"streams"} if claims else {"memory"}),
            overrides=overrides[override],
            target=targets[target],
        )
        outcome = {"kind": str(kind), "reason": "it did so", "duration_s": 0.5}
        found = judge.judge(case, outcome, here)
        claimed = "claimed" if claims else "not claimed"
        yield f"{kind}, {claimed}, {override}, {target}: {_result(found)}"
    plain = {"kind": "passed", "reason": "", "duration_s": 0.5}
    for more in (
        {"shared_world": shared},
        {"shared_world": {**shared, "state": "raised"}},
        {"no_world": True},
        {"observed": ["one", "two"]},
    ):
        yield f"{more}: {_result(judge.judge(case, {**plain, **more}, device))}"
        undefined = replace(case, outcome="undefined", capability=())
        yield f"  undefined: {_result(judge.judge(undefined, {**plain, **more}, device))}"
    for target in ("claimed", "not claimed"):
        found = judge.other_target_result(case, device, targets[target])
        yield f"other target, {target}: {_result(found)}"
    others = [
        judge.not_begun_result(case, "the run was stopped"),
        judge.suite_error("file.py", "no case"),
        judge.unopened_device("example:3", "it is lost"),
        judge.missing_case("streams/gone"),
        judge.device_not_rejudged("example:1"),
        *judge.unjudged_claims(device, [case], {case.id: "SKIP"}),
        *judge.unjudged_claims(device, [case], {case.id: "PASS"}),
        *judge.unused_overrides(overrides["undefined"] * 2, {"streams/order[2]": "PASS"}),
        *judge.unused_overrides(overrides["undefined"], {"streams/other": "PASS"}),
        *judge.shared_world_failures({"a/b": shared, "a/c": shared}, {"a/c"}),
        *judge.shared_world_failures({"a/b": {**shared, "state": "raised"}}, ()),
        *judge.mostly_unjudged_areas([found], {"streams": 1, "memory": 0}),
        *judge.mostly_unjudged_areas([replace(found, verdict="PASS")] * 2, {"streams": 2}),
    ]
    for each in others:
        yield f"{each.id}: {_result(each)}"


def _result(found: Any) -> str:
    """The parts of a result that a judge chooses."""
    said = f"{found.verdict} {found.reason!r} {[str(each) for each in found.evidence]}"
    return f"{said} {found.value} {found.does_not_show!r} {digest_of(str(found.extra))[:6]}"


def _compiled(_: Path) -> Iterator[str]:
    """Verdicts of machine code on each architecture: figures at, below and above their limits."""
    from portagpu.devices.machine_code import MachineCode
    from portagpu.facts.targets import load_targets
    from portagpu.suites.compile import judge

    plain = {
        "threads": 256,
        "registers": 64,
        "spills": 0,
        "spill_unit": "registers",
        "matrix": {},
    }
    changes: tuple[dict[str, Any], ...] = (
        {},
        {"registers": 255},
        {"registers": 256},
        {"registers": 513},
        {"spills": 1},
        {"spills": 3, "spill_unit": "B"},
        {"scalar_spills": 0},
        {"scalar_spills": 2},
        {"stack_bytes": 0},
        {"stack_bytes": 16},
        {"shared_bytes": 48 << 10},
        {"shared_bytes": 65537},
        {"shared_bytes": 300 << 10},
        {"threads": None},
        {"threads": 2048},
        {"wave_size": 16},
        {"matrix": {"HMMA.16816.F32.BF16": 3}},
        {"matrix": {"v_mfma_f32_32x32x8_bf16_1k": 4, "v_mfma_f32_32x32x8_f16": 1}},
        {"unit_reads": {"SR_VIRTUALSMID": 1}},
        {"accumulators": 32},
    )
    for name, target in load_targets().items():
        if target.vendor == "cpu":
            continue
        said = []
        for change in changes:
            code = MachineCode(**{"wave_size": target.arch.warp_size, **plain, **change})
            for matrix in (None, "bf16"):
                found = judge.judge_code(
                    "copy",
                    target,
                    code,
                    matrix=matrix,
                    compiler="Example 1",
                    duration_s=1.0,
                    extra={},
                )
                said.append(f"{found.verdict} {found.reason} {found.extra['occupancy']}")
        counts = [sum(each.startswith(word) for each in said) for word in ("PASS", "FAIL", "UNV")]
        yield f"{name}: {counts} {digest_of('|'.join(said))} {said[4][:90]}"


def _performance(_: Path) -> Iterator[str]:
    """Figures of each target's expectations: values on both sides of their bounds."""
    from portagpu.base.stats import summarise
    from portagpu.facts.targets import load_targets
    from portagpu.suites.performance import judge
    from portagpu.suites.performance.device import MeasuredDevice

    versions = ("2.13.0", "2.13", "v2.14.1", "13.0.48", "6.4.1+rocm", "", "none")
    yield from lines_of(judge.within, versions, (">=2.13", "<2.14,>=2", "==2.13.0", "!=2.13", "x"))
    for name, target in load_targets().items():
        device = answer_of(MeasuredDevice.from_target, target)
        yield f"{name}: {digest_of(str(device))}"
        for each in target.all_expectations:
            around = [low * factor for low in (each.low, each.high, each.reference)
                      if low is not None for factor in (0.98, 1.0, 1.02)]  # fmt: skip
            said = [each.judge(value) for value in around]
            yield f"  {each.metric} {digest_of(str(said))} {judge.expected_of(each)}"[:200]
    yield str(summarise([1.0, 2.0, 3.0]))


def _targets(_: Path) -> Iterator[str]:
    """Files of targets with one value replaced: what is wrong with them."""
    from portagpu.facts.targets import parse_target

    for name in ("nvidia-h100-sxm", "amd-mi300x", "cpu-x86-64"):
        text = (ROOT / f"matrix/targets/{name}.toml").read_text(encoding="utf-8")
        lines = text.splitlines()
        said = []
        for number, line in enumerate(lines):
            key, equals, _ = line.partition(" = ")
            if equals:
                value = ("-1", '"x"', "[]")[number % 3]
                changed = [*lines[:number], f"{key} = {value}", *lines[number + 1 :]]
                found = answer_of(parse_target, "\n".join(changed))
                why = found if isinstance(found, str) else "read"
                said.append(f"{line[:40]} -> {value}: {why}")
        counted = sum(each.endswith(": read") for each in said)
        yield f"# {name}: {len(said)} changes, {counted} read, {digest_of('|'.join(said))}"
        yield from (each[:180] for each in said[::3])


def _tuned(_: Path) -> Iterator[str]:
    """Ranges of measured sizes, what is worth a change, and candidates of vendors."""
    from portagpu.devices.collectives import tuning

    names = ("default", "chunks-2", "chunks-2", "default", "list")
    for sizes in ((1024, 4096, 65536, 1 << 20, 1 << 24), (7, 8, 9, 10, 11)):
        points = [
            (tuning.Candidate(name=name), _point(each))
            for name, each in zip(names, sizes, strict=True)
        ]
        for count in range(1, 6):
            found = tuning.in_ranges(points[:count])
            said = [f"{each.low_bytes} {each.high_bytes} {each.candidate.name}" for each in found]
            yield f"{sizes[:count]}: {said}"
    for ratios in (
        ([1.06] * 3, [1.06]),
        ([1.06, 1.07, 1.2], [1.05, 1.05]),
        ([1.04, 1.04], [1.2, 1.2]),
        ([1.5, 0.9, 1.5], [1.5, 0.9, 1.5]),
        ([1.049] * 4, [1.051] * 4),
        ([2.0] * 8, [0.99] * 8),
    ):
        yield f"{ratios}: {tuning.repeats(ratios)}"
    rows = ({"since": "2.19"}, {"since": "2.19", "before": "2.24.3"})
    for row, version in product(rows, ("2.18.9", "2.19", "2.19.1", "2.24.2", "2.24.3", "3", "x")):
        yield f"{row} {version}: {tuning.holds(row, version)}"
    for vendor, library in (("nvidia", "NCCL"), ("amd", "RCCL"), ("cpu", "Gloo")):
        for version, operation in product(
            (None, "2.10.0", "2.19.3", "2.27.7", "2.30.0"), ("all_reduce", "broadcast")
        ):
            found = tuning.settings(vendor, library, version, operation)
            yield f"{library} {version} {operation}: {[each.name for each in found]}"
            yield f"  {digest_of(str(found))}"


def _point(size_bytes: int) -> Any:
    from portagpu.devices.collectives.tuning import Point

    times = {"default_us": 10.0, "chosen_us": 8.0, "ratio": 1.25, "spread": 0.01, "pairs": 12}
    return Point(size_bytes=size_bytes, **times)  # type: ignore[arg-type]


def _advised(_: Path) -> Iterator[str]:
    """The next step after failures of checks and cases, on a device and without one."""
    from portagpu.runs.results import wording
    from portagpu.runs.results.run import Verdict
    from tests.support.result_samples import failing, gate, passing, stopped

    areas = ("links", "memory", "health", "numerics", "transfers", "identity", "sustained", "x")
    names = ("width", "uncorrected-errors", "count", "throttling", "pattern", "matmul[float32]")
    for area, name, verdict in product(areas, names, (Verdict.FAIL, Verdict.ERROR)):
        for fields in ({}, {"device": "cuda:1", "value": 3, "unit": "GB/s"}):
            found = gate(area, name, verdict, reason="it is wrong", **fields)
            said = list(wording.failures_text([found]))
            step = next((each.strip() for each in said if "next:" in each), "")
            exact = f"{digest_of('|'.join(said))} {step[:120]}"
            yield f"{found.id} {verdict} {len(fields)}: {exact}"
    for run in (failing(), passing(), stopped()):
        yield from wording.failures_text(run.results)
        yield run.summary_line()


GRIDS: Final[dict[str, Golden]] = {
    "conformance.txt": Golden("unit", _conformance),
    "compiled.txt": Golden("unit", _compiled),
    "performance.txt": Golden("unit", _performance),
    "targets.txt": Golden("unit", _targets),
    "tuned.txt": Golden("unit", _tuned),
    "advised.txt": Golden("unit", _advised),
}

"""A made-up fleet with planted faults: what the report of a fleet finds, and its false alarms.

    python tests/support/fleet_simulation.py [--nodes 10000] [--seed 1] [--power] [--files FOLDER]

The ids, units, values and spreads are those of a committed result of real hardware
(``matrix/results``), of which each node has eight devices; the values get the noise below. What is
planted, found and missed is printed for each kind of fault, and how many nodes without one are
named. ``--power`` says from which size a slow device is found, at 3 % noise in every measure.
``--files`` writes the record and a result file for each node, and times the command on them.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import resource
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from portagpu.base.units import worse_side
from portagpu.reports.condensed.nodes import Failure, Measured, Measures, NodeRun, condensed
from portagpu.reports.fleet import measures as pairs
from portagpu.reports.fleet import versions
from portagpu.reports.fleet.measures import LEVEL, MEASURE, NOISE
from portagpu.reports.fleet.record import FleetRecord, Step, StepState, write_record
from portagpu.reports.fleet.report import FleetReport, judge
from portagpu.reports.fleet.result_files import Fleet, Joint, Missing
from portagpu.reports.fleet.tables import tables_of
from portagpu.runs.judges.peers import compare_peers
from portagpu.runs.ledger import Device, Owner, instant
from portagpu.runs.results.run import Run
from portagpu.runs.results.verdicts import FAILING, Verdict, fold

if TYPE_CHECKING:
    from collections.abc import Iterable

DEVICES = 8
ROUNDS = 3
NOISE_OF = {
    "gemm": 0.01,
    "sustained": 0.01,
    "ranks": 0.01,
    "memory": 0.015,
    "transfer": 0.03,
    "launch": 0.05,
    "collectives": 0.03,
}
"""The standard deviation of a family's values between nodes, as a fraction."""
OF_DEVICES = 0.01
"""That of whole devices: one is a little faster than another in everything."""
COMPUTE = frozenset({"gemm", "sustained", "ranks"})
NUMERICS = 160
"""Results of the gate that a quick run has; the committed run is a full one."""
SLOW_GPU, SLOW_LINK, SLOW_NIC, FIRMWARE = 0.15, 0.30, 0.25, 0.04
NOISY = 4.0
STARTED = "2026-11-24T00:00:00Z"
Peer = tuple[str, str | None]


@dataclass
class Simulated:
    """A fleet, and what is wrong in it: kind -> who."""

    fleet: Fleet
    planted: dict[str, set[Any]] = field(default_factory=dict)
    hardware: dict[str, str] = field(default_factory=dict)


def template() -> Run:
    """The committed run, as long as a quick one is."""
    # read_file would also ask a child process for the suite's cases
    bundle = json.loads(min((ROOT / "matrix" / "results").glob("*.json")).read_text())
    run = Run.from_json(bundle["result"])
    left = NUMERICS
    kept = []
    for result in run.results:
        if result.area == "numerics":
            left -= 1
            if left < 0:
                continue
        kept.append(result)
    return Run(run.info, kept)


def of_eight(measures: Iterable[Measured]) -> list[Measured]:
    """The measures of a node with eight devices: collectives are of all together."""
    found = []
    for each in measures:
        if each.what.family == "ranks":
            continue
        if each.what.family == "collectives":
            found.append(each)
        else:
            found += [each._replace(device=f"gpu:{number}") for number in range(DEVICES)]
    rank = next(each for each in measures if each.what.family == "ranks")
    return found + [rank._replace(device=f"rank {number}") for number in range(DEVICES)]


def simulate(
    count: int,
    seed: int = 1,
    *,
    noise: float | None = None,
    slow_gpu: float = SLOW_GPU,
    gpus: int | None = None,
    others: bool = True,
    tails: bool = False,
    rounds: int = ROUNDS,
) -> Simulated:
    """``count`` nodes, of which each tenth is of another target; ``noise`` is that of all measures.

    ``gpus`` devices are slow by ``slow_gpu``; without ``others`` nothing else is wrong. With
    ``tails`` the noise is Student's t with 4 degrees of freedom, of the same standard deviation.
    """
    chance = random.Random(seed)  # noqa: S311 - made-up values
    base = condensed(template(), Path("template"), Owner("", "template", "template"))
    measures = of_eight(base.measures)
    fleet = Fleet()
    made = Simulated(fleet)
    names = [f"node-{number:05d}" for number in range(count)]
    some = iter(chance.sample(names, count))
    few = max(2, count // 500)

    def plant(kind: str, number: int) -> set[str]:
        made.planted[kind] = {next(some) for _ in range(number)}
        return made.planted[kind]

    slow = {
        name: f"gpu:{chance.randrange(DEVICES)}"
        for name in plant("slow device", few if gpus is None else gpus)
    }
    made.planted["slow device"] = set(slow.items())
    wrong = others
    firmware = plant("bad firmware", max(8, count // 50) if wrong else 0)
    noisy = plant("noisy node", few if wrong else 0)
    lost = plant("lost device", few if wrong else 0)
    failed = plant("failed gate", few if wrong else 0)
    missing = plant("no result", few if wrong else 0)
    for number, name in enumerate(names):
        hardware = "example-b" if number % 10 == 9 else "example-a"
        made.hardware[name] = hardware
        if name in missing:
            fleet.missing.append(Missing(name, StepState.LOST, "the node died: NODE_FAIL"))
            continue
        factor = 2.0 if hardware == "example-b" else 1.0
        of_device = [1 + chance.gauss(0, OF_DEVICES if noise is None else 0) for _ in range(8)]
        own = []
        for each in measures:
            family = each.what.family
            device = None if each.device is None else int(each.device[-1])
            if name in lost and device == DEVICES - 1:
                continue
            value = each.value * factor * (1.0 if device is None else of_device[device])
            spread = NOISE_OF[family] if noise is None else noise
            wide = math.sqrt(2 / chance.gammavariate(2, 2)) if tails else 1.0
            value *= 1 + chance.gauss(0, spread) * wide * (NOISY if name in noisy else 1)
            if family in COMPUTE:
                if device is not None and slow.get(name) == f"gpu:{device}":
                    value *= 1 - slow_gpu
                if name in firmware:
                    value *= 1 - FIRMWARE
            samples = abs(value) * spread * chance.lognormvariate(0, 0.25)
            own.append(each._replace(value=value, spread=samples * (NOISY if name in noisy else 1)))
        run = replace(
            base,
            path=Path(name, "result.json"),
            account=replace(
                base.account,
                run=f"run-{name}",
                at_s=instant(STARTED),
                devices=(Device("", number=0),) * (DEVICES - (name in lost)),
            ),
            owner=Owner("", name, name),
            started=STARTED,
            hardware=hardware,
            versions={**base.versions, "driver": "550.2" if name in firmware else "550.1"},
            measures=Measures.of(own),
        )
        fleet.nodes[name] = [_failing(run, chance) if name in failed else run]
    if others and rounds:
        _add_pairs(made, [each for each in names if each not in missing], few, chance, rounds)
    return made


def _failing(run: NodeRun, chance: random.Random) -> NodeRun:
    reason = f"a link is at {chance.choice((2.5, 5))} GT/s and can 32"
    failure = Failure(
        suite="bringup",
        gate="links",
        check="links/numa",
        action="isolate",
        device=None,
        reason=reason,
        next_step="reseat it",
    )
    stated = run.account.statements
    fact = next(each for each in stated if each.id == failure.check)
    account = replace(
        run.account, statements={**stated, fact: stated[fact]._replace(verdict=Verdict.FAIL)}
    )
    return replace(
        run, verdict=Verdict.FAIL, failure=failure, failures={fact: failure}, account=account
    )


def _add_pairs(
    made: Simulated, names: list[str], few: int, chance: random.Random, count: int
) -> None:
    """Rounds in which each node is in one pair; some links and some nodes' adapters are slow."""
    base = made.fleet.nodes[names[0]][0]
    collectives = [each for each in base.measures if each.what.family == "collectives"]
    adapters = set(chance.sample(names, few))
    rounds = []
    for _ in range(count):
        order = chance.sample(names, len(names) // 2 * 2)
        rounds.append([tuple(sorted(order[at : at + 2])) for at in range(0, len(order), 2)])
    well = [pair for pair in rounds[0] if not adapters.intersection(pair)]
    links = set(chance.sample(sorted(well), few))
    made.planted["slow link"] = links
    made.planted["slow adapter"] = adapters
    for number, own in enumerate(rounds):
        for pair in own:
            factor = 1 - SLOW_LINK if pair in links else 1.0
            factor *= 1 - SLOW_NIC if adapters.intersection(pair) else 1.0
            run = replace(
                base,
                account=replace(base.account, run=f"{'-'.join(pair)}-{number}"),
                hardware="",
                measures=Measures.of(
                    each._replace(value=each.value * factor * (1 + chance.gauss(0, 0.03)))
                    for each in collectives
                ),
            )
            made.fleet.joint.append(Joint(pair, number, run))


@dataclass
class Score:
    """Of one kind: how many were planted and found, and how many others were named."""

    planted: int
    found: int
    false: int
    of: int


def scores(made: Simulated, report: FleetReport) -> dict[str, Score]:
    """What the report found of what was planted; devices that are slow for another fault count."""
    planted, nodes = made.planted, set(made.hardware)
    found: dict[str, Score] = {}
    explained = {name for name, _ in planted["slow device"]} | planted["noisy node"]
    explained |= planted["bad firmware"]
    slow = {
        (each.node, (each.device or "").replace("rank ", "gpu:"))
        for each in report.worse
        if each.among in (MEASURE, LEVEL)
    }
    false = {each for each in slow if each[0] not in explained}
    found["slow device"] = Score(
        len(planted["slow device"]),
        len(planted["slow device"] & slow),
        len(false),
        len(nodes) * DEVICES,
    )
    noisy = {each.node for each in report.unlike if each.among == NOISE}
    found["noisy node"] = _score(planted["noisy node"], noisy, len(nodes))
    effects = {
        (each.hardware, group.version)
        for each in report.differing
        for group in each.groups
        if each.component == "driver" and any(effect.worse for effect in group.effects)
    }
    bad = {(made.hardware[name], "550.2") for name in planted["bad firmware"]}
    large = {
        each
        for each in bad
        if sum(made.hardware[n] == each[0] for n in planted["bad firmware"]) > 3
    }
    found["bad firmware"] = _score(large, effects, len(bad))
    fewer = {
        node
        for each in report.differing
        if each.component == versions.DEVICES
        for group in each.groups
        for node in group.nodes
    }
    found["lost device"] = _score(planted["lost device"], fewer, len(nodes))
    failed = {node.name for node in report.nodes if node.verdict in FAILING}
    found["failed gate"] = _score(planted["failed gate"], failed, len(nodes))
    states = {node.name for node in report.nodes if node.verdict is None}
    found["no result"] = _score(planted["no result"], states, len(nodes))
    links = {each.nodes for each in report.slow if each.what != pairs.NODE}
    count = len(report.slow) and len(made.fleet.joint)
    found["slow link"] = _score(planted.get("slow link", set()), links, count)
    adapters = {each.nodes[0] for each in report.slow if each.what == pairs.NODE}
    found["slow adapter"] = _score(planted.get("slow adapter", set()), adapters, len(nodes))
    return found


def _score(planted: set[Any], found: set[Any], of: int) -> Score:
    return Score(len(planted), len(planted & found), len(found - planted), of)


def document_of(run: NodeRun, whole: dict[str, Any]) -> dict[str, Any]:
    """The result file of a node: the committed one with this node's measures and failure."""
    by_id: dict[str, list[Measured]] = {}
    for each in run.measures:
        by_id.setdefault(each.what.id, []).append(each)
    results = []
    for result in whole["results"]:
        own = by_id.pop(result["id"], None)
        if own is not None and result["value"] is not None:
            results += [
                {
                    **result,
                    "device": each.device,
                    "value": each.value,
                    "spread": each.spread,
                    "expected": None,
                    "verdict": "UNVERIFIED",
                }
                for each in own
            ]
        elif not (result["id"].startswith("ranks/") and result["value"] is not None):
            results.append(result)
    failure = run.failure
    if failure is not None:
        at = next(n for n, each in enumerate(results) if each["id"] == failure.check)
        results[at] = {**results[at], "verdict": "FAIL", "reason": failure.reason}
    counted = Counter(each["verdict"] for each in results)
    first = next((each for each in results if each["verdict"] in ("FAIL", "ERROR")), None)
    device = dict(whole["run"]["devices"][0])
    return {
        **whole,
        "verdict": str(fold(Verdict(each["verdict"]) for each in results)),
        "counts": {str(verdict): counted[str(verdict)] for verdict in Verdict},
        "first_failed": first["id"] if first else None,
        "culprit": first["device"] if first else None,
        "run": {
            **whole["run"],
            "id": run.account.run,
            "host": run.owner.host,
            "target": run.hardware,
            "started": run.started,
            "versions": dict(run.versions),
            "devices": [device] * run.devices,
        },
        "results": results,
    }


def write_files(made: Simulated, folder: Path) -> None:
    """The record of a fleet run, and the result of each node and pair, in ``folder``."""
    whole = template().to_json()
    steps = [
        Step(id=each.node, nodes=(each.node,), state=StepState.LOST, reason=each.reason)
        for each in made.fleet.missing
    ]
    for name, (run,) in made.fleet.nodes.items():
        _write(folder / name / "result.json", document_of(run, whole))
        steps.append(_step(name, (name,), 0, run))
    for number, each in enumerate(made.fleet.joint):
        name = f"pair-{number}"
        run = replace(each.run, owner=Owner("", name, name), hardware="example-a")
        only = [r for r in whole["results"] if r["id"].startswith(("collectives/", "identity/"))]
        _write(folder / name / "result.json", document_of(run, {**whole, "results": only}))
        steps.append(_step(name, each.nodes, each.round, run))
    write_record(
        folder,
        FleetRecord(
            id="simulated",
            what="bringup",
            started=STARTED,
            nodes=tuple(made.hardware),
            steps=tuple(steps),
        ),
    )


def _step(name: str, nodes: tuple[str, ...], number: int, run: NodeRun) -> Step:
    state, file = StepState.DONE, f"{name}/result.json"
    verdict = str(run.verdict)
    return Step(id=name, nodes=nodes, round=number, state=state, result=file, verdict=verdict)


def _write(path: Path, document: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(document))


def named_by_few(made: Simulated) -> int:
    """How many devices without a fault the rule names with the 3.5 deviations of few values."""
    planted = {name for name, _ in made.planted["slow device"]}
    well = set(made.fleet.nodes) - planted - made.planted["noisy node"]
    well -= made.planted["bad firmware"]
    return len(
        {
            (table.hardware, each.name)
            for table in tables_of(made.fleet.nodes)
            for each in compare_peers(table.values).outliers
            if table.whose[each.name][0] in well
            and worse_side(table.unit or "") * each.relative > 0
        }
    )


def power(count: int, seed: int, noise: float = 0.03) -> None:
    """From which size a slow device is found, at the same noise in every measure."""
    print(f"{count:,} nodes, {noise:.0%} noise: slow devices found, others named")
    for size in (0.02, 0.05, 0.06, 0.07, 0.08, 0.10, 0.12, 0.15, 0.20):
        made = simulate(count, seed, noise=noise, slow_gpu=size, gpus=count // 10, others=False)
        score = scores(made, judge(made.fleet))["slow device"]
        share = score.found / score.planted
        print(f"  slow by {size:4.0%}: {share:7.2%} of {score.planted}, {score.false} others")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--power", action="store_true")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds of pairs")
    parser.add_argument("--tails", action="store_true", help="noise with heavy tails")
    parser.add_argument("--files", type=Path, help="a new folder")
    options = parser.parse_args()
    if options.power:
        power(options.nodes, options.seed)
        return 0
    made = simulate(options.nodes, options.seed, tails=options.tails, rounds=options.rounds)
    if options.files is not None:
        write_files(made, options.files)
        return timed(options.files)
    start = time.perf_counter()  # allowed: a figure that is printed
    report = judge(made.fleet)
    took_s = time.perf_counter() - start  # allowed: a figure that is printed
    print(f"{'planted':<14}{'number':>7}{'found':>7}{'missed':>8}{'others named':>14}{'of':>9}")
    table = scores(made, report)
    for kind, score in table.items():
        missed = score.planted - score.found
        row = f"{kind:<14}{score.planted:>7}{score.found:>7}{missed:>8}"
        print(f"{row}{score.false:>14}{score.of:>9}")
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    limits = report.limits
    print(f"{limits.comparisons:,} comparisons, {limits.deviations:.2f} deviations")
    print(f"with 3.5 deviations {named_by_few(made)} devices without a fault would be named")
    print(f"analysed in {took_s:.1f} s; {memory:.0f} MiB with the simulation")
    return 0 if all(score.found == score.planted for score in table.values()) else 1


def timed(folder: Path) -> int:
    """Time the command on the files, and say how large they and the page are."""
    size = sum(path.stat().st_size for path in folder.rglob("result.json"))
    number = sum(1 for _ in folder.rglob("result.json"))
    page = folder / "fleet.html"
    command = [sys.executable, "-m", "portagpu", "fleet", "report", str(folder), "--out", str(page)]
    start = time.perf_counter()  # allowed: a figure that is printed
    code = subprocess.run(command, check=False, stdout=subprocess.DEVNULL, cwd=ROOT).returncode
    took_s = time.perf_counter() - start  # allowed: a figure that is printed
    print(f"{number:,} result files, {size / 1e6:.0f} MB: {took_s:.2f} s, exit code {code}")
    print(f"page {page.stat().st_size / 1e6:.2f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())

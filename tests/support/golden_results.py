"""Golden files of verbs that read what runs and profilers left: fleets, pages, peers, timelines."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from datetime import timedelta
from itertools import combinations
from typing import TYPE_CHECKING, Final
from unittest import mock

from tests.conftest import ROOT
from tests.support.golden import Calls, Golden, digest_of, document_lines, plain
from tests.support.golden_verbs import TEXTS, page_lines, samples

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from portagpu.runs.results.run import Result, Run

SPREAD: Final = (0.0, 0.4, -0.3, 0.1, -0.5, 0.2, 0.6, -0.1, -0.2, 0.3)
"""How far each node of the fleet is from the others, in percent."""
CUBE: Final = {"m": 4096, "n": 4096, "k": 4096, "contiguous": 1}
_STARTED: Final = "2025-01-01T08:00:00Z"


def _node_results(number: int) -> list[Result]:
    """A gate, and measures of two devices; node 3 has a slow device, node 5 a noisy one."""
    from portagpu.runs.results.run import Verdict
    from tests.support.history_samples import measure
    from tests.support.result_samples import gate

    level = 1 + SPREAD[number] / 100
    found = [gate("links", "width"), gate("identity", "count")]
    if number in (1, 2):
        reason = f"slot {number} has {number} lanes, and 16 are wanted"
        found[0] = gate("links", "width", Verdict.FAIL, reason=reason, device=f"cuda:{number % 2}")
    if number == 4:
        found[0] = gate("links", "width", Verdict.INCONCLUSIVE, reason="nothing states it")
    for device in ("cuda:0", "cuda:1"):
        slow = 0.8 if (number, device) == (3, "cuda:1") else 1.0
        for name, value, unit, shape in (
            ("gemm/bf16", 300.0, "TFLOP/s", CUBE),
            ("gemm/fp16", 310.0, "TFLOP/s", CUBE),
            ("memory/copy", 2000.0, "GB/s", {"array_bytes": 1 << 30}),
            ("transfer/h2d[pinned]", 25.0, "GB/s", {"bytes": 1 << 28}),
            ("launch/roundtrip", 5.0, "us", {}),
        ):
            value = value * level * slow if unit != "us" else value * level / slow
            spread = value * (0.2 if number == 5 else 0.01)
            more = {"device": device, "spread": spread, "shape": shape}
            found.append(measure(name, value, unit, **more))
    return found


def _fleet_folder(folder: Path) -> None:
    """The record and results of a fleet run over ten nodes, of which some are not well."""
    from portagpu.reports.fleet.record import FleetRecord, Step, StepState, write_record
    from tests.support.history_samples import measure, run

    names = tuple(f"node-{number}" for number in range(10))
    steps = []
    for number, name in enumerate(names):
        if number == 7:
            reason = "the node died: NODE_FAIL"
            steps.append(Step(id=name, nodes=(name,), state=StepState.LOST, reason=reason))
            continue
        if number == 8:
            steps.append(Step(id=name, nodes=(name,), state=StepState.RUNNING, job="12_8"))
            continue
        versions = {"driver": "550.2" if number in (6, 9) else "550.1"}
        made = run(number % 2, _node_results(number), host=name, versions=versions)
        (folder / name).mkdir(parents=True)
        made.write_json(folder / name / "result.json")
        failed = next((each.area for each in made.results if each.verdict in ("FAIL", "ERROR")), "")
        steps.append(
            Step(
                id=name,
                nodes=(name,),
                state=StepState.DONE,
                job=f"12_{number}",
                attempts=1 + number % 2,
                result=f"{name}/result.json",
                verdict=str(made.verdict),
                gate=failed or None,
                action="isolate" if failed else None,
            )
        )
    whole = [each for each in names if each not in ("node-7", "node-8")]
    for number, pair in enumerate(combinations(whole, 2)):
        name = f"pair-{number}"
        value = 40.0 * (1 + SPREAD[number % 10] / 100) * (0.6 if "node-9" in pair else 1.0)
        made = run(number, [measure("collectives/all_reduce", value)], host=name)
        (folder / name).mkdir()
        made.write_json(folder / name / "result.json")
        steps.append(
            Step(
                id=name,
                nodes=pair,
                round=1 + number,
                state=StepState.DONE,
                result=f"{name}/result.json",
                verdict=str(made.verdict),
            )
        )
    write_record(
        folder,
        FleetRecord(
            id="20250101T080000Z-00c0ffee",
            what="bringup",
            arguments=("--level", "smoke"),
            started=_STARTED,
            nodes=names,
            scheduler={"name": "slurm", "version": "24.05.1", "partition": "gpu"},
            steps=tuple(steps),
            drained={"node-1": "portagpu: links/width", "node-2": ""},
        ),
    )


def _fleets(folder: Path) -> Iterator[str]:
    # as on one core, where no other process reads files
    with mock.patch("portagpu.reports.condensed.read._SHARE", 1 << 30):
        yield from _of_fleet(folder)


def _of_fleet(folder: Path) -> Iterator[str]:
    from portagpu.reports.bundles.document import write_clearance
    from portagpu.runs.ledger import Relief
    from tests.support.history_samples import FIRST_DAY, measure, run

    call = Calls(folder)
    _fleet_folder(folder / "fleet")
    yield from call("fleet", "status", "fleet", document=True)
    yield from call("fleet", "report", "fleet", "--out", "fleet.html", document=True)
    yield from page_lines(call.neutral((folder / "fleet.html").read_text(encoding="utf-8")))
    yield from call("fleet", "clear", "fleet", "--node", "node-12", "--replaced", "--reason", "x")
    cleared = ("fleet", "clear", "fleet", "--node", "node-1", "--reason", "new riser")
    yield from call(*cleared)
    yield from call(*cleared, "--cleared", "--device", "cuda:9")
    for number, (node, device, what) in enumerate(
        (
            ("node-1", "", Relief.REPLACED),
            ("node-2", "example:1", Relief.CLEARED),
            ("n" * 90 + "/: x", "", Relief.CLEARED),
        )
    ):
        at = FIRST_DAY + timedelta(days=3, hours=number)
        written = {"node": node, "device": device, "what": what, "reason": "new riser", "now": at}
        yield str(write_clearance(folder / "fleet", **written).relative_to(folder))
    yield from call("fleet", "report", "fleet")
    (folder / "fleet/node-0/result.json").write_text("{")
    (folder / "fleet/node-4/result.json").unlink()
    yield from call("fleet", "report", "fleet")
    yield from call("matrix", "history", "import", "fleet", "--store", "store.sqlite")
    yield from call("fleet", "report", "--history", "store.sqlite", document=True)
    yield from call("fleet", "report", "--history", "store.sqlite", "--of", "host=node-3")
    others = folder / "others"
    others.mkdir()
    for number in range(3):
        made = run(number, [measure("memory/copy", 100.0 + number)], host="twin")
        made.info = type(made.info)(
            **{**made.info.to_json(), "devices": [{"name": "a", "uuid": f"GPU-{number}"}]}
        )
        made.write_json(others / f"{number}.json")
    yield from call("fleet", "report", "others")
    _files(others)
    yield from call("fleet", "report", "others", document=True)
    scripts = ("fleet", "scripts", "--program", "/opt/portagpu/bin/portagpu")
    yield from call(*scripts, "--out", "plain")
    words = ("--expect-devices", "8", "--target", "amd-mi300x")
    yield from call(*scripts, "--out", "chosen", *words)
    for path in sorted(folder.glob("*/*.sh")) + sorted(folder.glob("*/README.txt")):
        text = call.neutral(path.read_text(encoding="utf-8"))
        yield f"{path.relative_to(folder)}: {len(text.splitlines())} lines, {digest_of(text)}"
    pods = ("fleet", "run", "health", "--kubernetes", "3", "--claim", "results")
    yield from call(*pods, "--gres", "nvidia.com/gpu:8", "--image", "example.org/portagpu:1")
    yield from call(*pods, "--gres", "gpu", "--image", "x")
    yield from call(*pods, "--gres", "amd.com/gpu:8", "--image", "x", "--", "--strict")


def _files(folder: Path) -> list[str]:
    """The samples as files, each as a run of its own."""
    made = samples()
    for number, (name, run) in enumerate(made.items()):
        run.info = replace(run.info, id=f"{run.info.id[:-8]}{number:08x}")
        run.write_json(folder / f"{name}.json")
    return [f"{name}.json" for name in made]


def _pages(folder: Path) -> Iterator[str]:
    """The matrix, pages of several runs, and reports in three formats."""
    from portagpu.reports.proofs.table import NOTHING

    call = Calls(folder)
    files = _files(folder)
    # what the project has committed is tested where it is
    with mock.patch("portagpu.reports.proofs.table.read_committed", lambda _: NOTHING):
        show = ("matrix", "show", *files)
        yield from call(*show, document=True)
        yield from call(*show, "--markdown")
        yield from call("matrix", "show", "failing.json")
        yield from call(*show, "--target", "amd-mi300x", "--target", "cpu-x86-64")
        yield from call("matrix", "show", "--target", "nvidia-h100-sxm")
    yield from call("matrix", "report", *files, "--out", "matrix.html")
    yield from page_lines(call.neutral((folder / "matrix.html").read_text(encoding="utf-8")))
    yield from call("matrix", "report", "stopped.json", "failing.json", "--out", "two.html")
    yield from page_lines(call.neutral((folder / "two.html").read_text(encoding="utf-8")))
    for kind, end in (("html", "html"), ("junit", "xml"), ("ocp", "ocp.jsonl")):
        yield from call("report", "--format", kind, *files)
        for name in files:
            path = (folder / name).with_suffix(f".{end}")
            text = call.neutral(path.read_text(encoding="utf-8"))
            yield f"{path.name}: {len(text.splitlines())} lines, {digest_of(text)}"
    for line in (folder / "failing.ocp.jsonl").read_text(encoding="utf-8").splitlines():
        yield _ocp_line(line)


def _ocp_line(line: str) -> str:
    """A line of OCP's output without its moment."""
    document = plain(json.loads(line))
    document.pop("timestamp", None)
    return json.dumps(document)[:160]


def _peers(folder: Path) -> Iterator[str]:
    """Devices and hosts that are compared, and expectations that are proposed."""
    from tests.support.history_samples import run, write

    call = Calls(folder)
    _files(folder)
    runs = [run(number, _node_results(number), host=f"node-{number}") for number in range(10)]
    write(folder / "runs", runs)
    write(folder / "hopper", _same_host(runs[:6], "nvidia-h100-sxm"))
    write(folder / "one", _same_host(runs[3:4], "amd-mi300x"))
    for names in (["runs"], ["failing.json"], ["eight.json"], ["one", "stopped.json"]):
        yield from call("bench", "--peers", *names, document=True, timed=True)
    for names in (["hopper"], ["one"], ["runs"], ["passing.json"], ["hopper", "one"]):
        yield from call("bench", "--calibrate", *names)
    yield from call("bench", "--calibrate", "--peers", "runs")
    yield from call("bench", "--calibrate", "--seed", "3", "runs")
    for words in (["--only", "matmul"], ["--only", "memory/*"], ["--only", "matmull"]):
        yield from call("bench", "--list", *words)


def _same_host(runs: list[Run], target: str) -> list[Run]:
    """The runs of one machine of a target on several days."""
    from tests.support.history_samples import run

    return [
        run(number, each.results, host="node-0", target=target) for number, each in enumerate(runs)
    ]


def _binary(path: Path) -> str:
    """The size and digest of a file."""
    data = path.read_bytes()
    return f"{path.name}: {len(data)} bytes, {hashlib.sha256(data).hexdigest()[:16]}"


def _timelines(folder: Path) -> Iterator[str]:
    """Timelines for Perfetto, pages and tables of one made-up run in three formats."""
    from tests.support import trace_samples

    call = Calls(folder)
    for name, write in trace_samples.WRITERS.items():
        for rank in range(2):
            options = {"wait_ns": 40_000 * rank, "sets": name != "rocpd", "per_step": 40}
            made = trace_samples.timeline(120, rank=rank, world_size=2, **options)
            write(made, folder / f"{name}-{rank}")
        both = (f"{name}-0", f"{name}-1")
        yield from call("trace", "timeline", *both, "--out", f"{name}.pftrace")
        yield _binary(folder / f"{name}.pftrace")
        words = ("--csv", "-", "--top", "3", "--allow", "ranks", "--allow", "work")
        yield from call("trace", "diff", *both, *words)
        yield from call("trace", "diff", *both, "--device", "0", "--allow", "ranks", timed=True)
        yield from call("trace", "diff", *both[::-1], "--allow", "ranks", timed=True)
        yield from call("trace", "diagnose", both[0], "--strict", "--device", "0", timed=True)
        page = ("--html", f"{name}.html", "--device", "0", "--top", "2")
        yield from call("trace", "summary", *both, *page)
        yield from page_lines(call.neutral((folder / f"{name}.html").read_text(encoding="utf-8")))
        yield from call("trace", "summary", both[0], "--range", "*", "--by", "range")
        summary = call("trace", "summary", both[1], "--json", f"{name}.json")
        yield from list(summary)[:1]
        yield from call("trace", "diff", f"{name}.json", both[1], timed=True)
        yield from call("trace", "diagnose", f"{name}.json", document=True, timed=True)
    (folder / "cut-0").write_bytes((folder / "kineto-0").read_bytes()[:5000])
    for words in (("summary", "cut-0", "kineto-1"), ("diagnose", "cut-0"), ("diff", "cut-0", "x")):
        yield from call("trace", *words, timed=True)
    yield from call("trace", "summary", "nsys-0", "rocpd-1", "--by", "device")
    yield from call("trace", "timeline", "nsys-0", "rocpd-1", "kineto-0", "--out", "all.pftrace")
    yield _binary(folder / "all.pftrace")


def _options(folder: Path) -> Iterator[str]:
    """Options of verbs that read or compute, of which no other file has a call."""
    call = Calls(folder)
    choose = ("collectives", "choose", "--ranks", "8", "--target", "nvidia-h100-sxm")
    for words in (
        ("--graph", "Ring=8x24", "--algorithm", "Ring", "--bytes", "3M"),
        ("--graph", "Tree=8x12/12", "--set", "cpu=amd", "--bytes", "64K"),
        ("--library-version", "2.20.1", "--bytes", "1M"),
        ("--library-version", "9.1", "--bytes", "1M"),
        ("--nodes", "2", "--nics", "2", "--nic-gbs", "25", "--bytes", "16M"),
    ):
        yield from call(*choose, *words, document=True)
    for arch, over in (("sm_90", "registers"), ("gfx942", "shared-memory")):
        asked = ("--arch", arch, "--threads", "256", "--regs", "64", "--smem", "9000")
        yield from call("occupancy", *asked, "--over", over, "--plot", f"{arch}.svg")
        text = (folder / f"{arch}.svg").read_text(encoding="utf-8")
        yield f"{arch}.svg: {len(text)} characters, {digest_of(text)}"
    asked = ("plan", "--model", "llama-3.1-8b", "--batch", "16", "--target", "nvidia-h100-sxm")
    for words in (
        ("--ranks", "4", "--frozen", "--lora-rank", "16", "--adapted", "attention"),
        ("--ranks", "2", "--offload", "optimizer"),
        ("--ranks", "1", "--frozen", "--lora-rank", "8", "--adapted", "queries-values"),
        ("--ranks", "8", "--strategy", "tp=8", "--sequence", "131072"),
    ):
        yield from call(*asked, *words)
    yield from call("monitor", "--dashboard", "dashboard.json")
    dashboard = json.loads((folder / "dashboard.json").read_text(encoding="utf-8"))
    yield from document_lines(dashboard)
    recorded = TEXTS / "formats/nvidia_smi_xml"
    xml = sorted(each for each in recorded.iterdir() if each.suffix == ".xml")[:3]
    for path in xml:
        log = TEXTS / "formats/kernel_log"
        kernel = min(each for each in log.iterdir() if each.name != "expected.toml")
        yield from call("health", "--replay", path, "--replay", kernel)
        gated = ("--gate", "prolog", "--fail-on", "replace", "--fail-on-unknown")
        yield from call("health", "--replay", path, *gated, "--reason-file", "reason.txt")
        yield from call("health", "--replay", path, "--ocp", "health.jsonl")
        lines = (folder / "health.jsonl").read_text(encoding="utf-8").splitlines()
        yield from map(_ocp_line, lines[3:9])
        yield from call("bringup", "--only", "identity", "--replay", path, timed=True)
        yield from call("bringup", "--skip", "link*", "--replay", path, "--out", "out", timed=True)
        yield from call("bringup", "--expect-devices", "3", "--replay", path, timed=True)
        yield from call("collectives", "doctor", "--replay", path, timed=True)
    for words in (("--list", "--only", "products/*"), ("--list", "--only", "vectors")):
        yield from call("screen", *words)
    targets = sorted((ROOT / "matrix/targets").glob("*.toml"))
    yield from call("targets", "check", *targets[:3])
    text = targets[0].read_text(encoding="utf-8")
    lines = [number for number, line in enumerate(text.splitlines()) if " = " in line]
    for number in lines[:: max(1, len(lines) // 12)]:
        changed = text.splitlines()
        changed[number] = changed[number].partition(" = ")[0] + " = -1"
        (folder / targets[0].name).write_text("\n".join(changed))
        yield f"# {changed[number]}"
        yield from call("targets", "check", targets[0].name)


RESULTS: Final[dict[str, Golden]] = {
    "fleets.txt": Golden("unit", _fleets, ("sqlalchemy",)),
    "pages.txt": Golden("unit", _pages),
    "peers.txt": Golden("unit", _peers),
    "timelines.txt": Golden("vendor_texts", _timelines, ("pyarrow", "adbc_driver_sqlite")),
    "options.txt": Golden("unit", _options, ("networkx",)),
}

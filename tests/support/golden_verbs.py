"""Golden files of the command line: every verb that runs nothing on a device, over saved inputs."""

from __future__ import annotations

import gzip
import json
import re
import textwrap
from typing import TYPE_CHECKING, Any, Final

from tests.conftest import ROOT
from tests.support.golden import Calls, Golden, digest_of, some_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TEXTS: Final = ROOT / "tests/vendor_texts"
RECORDED: Final = ROOT / "tests/recordings"


def _texts(*kinds: str) -> list[Path]:
    found = [path for kind in kinds for path in sorted((TEXTS / "formats" / kind).iterdir())]
    return [path for path in found if path.name != "expected.toml"]


def _placements() -> list[Path]:
    return [path for path in sorted((TEXTS / "placement").iterdir()) if path.suffix != ".md"]


NVIDIA: Final = ("nvidia_nvlink", "nvidia_smi_text", "nvidia_smi_xml", "nvidia_topo")
AMD: Final = ("amd_smi_json", "amd_smi_text", "amdgpu_top", "rocm_smi_json", "rocm_smi_text")
OTHERS: Final = ("hwloc_xml", "kernel_log", "lspci", "nccl_topo", "rocminfo")


def _replayed(*kinds: str) -> Any:
    def make(folder: Path) -> Iterator[str]:
        call = Calls(folder)
        for path in _texts(*kinds):
            yield from call("info", "--replay", path, document=True)
            yield from call("info", "--topology", "--replay", path, document=True)
            yield from call("health", "--replay", path, document=True)

    return make


def _judged(folder: Path) -> Iterator[str]:
    call = Calls(folder)
    for path in [*some_of(_texts(*NVIDIA, *AMD, *OTHERS), one_in=4), *_placements()]:
        words = ("--verbose",) if path.suffix == ".xml" else ()
        yield from call("bringup", *words, "--replay", path, document=True, timed=True)
    for path in some_of(_texts("nvidia_smi_xml", "amd_smi_json"), one_in=3):
        yield from call("health", "--strict", "--replay", path)
        for gate in ("prolog", "epilog", "healthcheck", "npd"):
            yield from call("health", "--gate", gate, "--replay", path)
        yield from call("health", "--gate", "npd", "--fail-on", "monitor", "--replay", path)
        yield from call("health", "--gate", "prolog", "--fail-on", "replace", "--replay", path)
        yield from call("health", "--expect-devices", "3", "--replay", path)
        yield from call("health", "--target", "amd-mi300x", "--replay", path)
        words = ("--target", "nvidia-h100-sxm", "--strict", "--replay", path)
        yield from call("bringup", *words, timed=True)


def _trees(folder: Path) -> Iterator[str]:
    """File trees of machines."""
    from tests.support import gpu_trees, host_trees

    call = Calls(folder)
    made = {"x86": host_trees.two_socket_x86(), "arm": host_trees.aarch64()}
    links: dict[str, dict[str, str]] = {}
    for name, count, gpu, options in (
        ("nvidia", 2, gpu_trees.nvidia_gpu, {}),
        ("amd", 2, gpu_trees.amd_gpu, {}),
        ("parts", 1, gpu_trees.amd_gpu, {"parts": 4}),
    ):
        files, pointing = host_trees.two_socket_x86(), {}
        for index in range(count):
            more, others = gpu(index, **options)  # type: ignore[operator]
            files |= more
            pointing |= others
        made[name], links[name] = files, pointing
    for name, files in made.items():
        host_trees.build(folder / name, files, links.get(name))
        yield from call("info", "--replay", name, document=True)
        yield from call("info", "--topology", "--replay", name)
        yield from call("health", "--replay", name, document=True)
        yield from call("bringup", "--replay", name, document=True, timed=True)


def _placed(folder: Path) -> Iterator[str]:
    call = Calls(folder)
    for path in _placements():
        yield from call("info", "--topology", "--replay", path, document=True)
        for words in ((), ("--tp", "2"), ("--tp", "4", "--nodes", "2"), ("--pp", "2", "--dp", "2")):
            yield from call("collectives", "placement", "--replay", path, *words, document=True)
    for target in ("amd-mi300x", "nvidia-h100-sxm"):
        words = ("--target", target, "--tp", "2")
        text = TEXTS / "formats/amd_smi_text/topology.txt"
        yield from call("collectives", "placement", "--replay", text, *words)


def _tables(folder: Path) -> Iterator[str]:
    """Outputs of tests of communication libraries."""
    call = Calls(folder)
    for path in sorted((TEXTS / "perf_tables").iterdir()):
        if path.suffix != ".md":
            yield from call("collectives", "verify", "--replay", path, document=True, timed=True)
            size = ("--bytes", "1M", "--ranks", "8")
            yield from call("collectives", "choose", *size, "--measured", path, document=True)


def _choices(folder: Path) -> Iterator[str]:
    call = Calls(folder)
    (folder / "params.json").write_text(json.dumps([4 << 20] * 30 + [1000, 1 << 24]))
    for target in ("nvidia-h100-sxm", "nvidia-b200-sxm", "nvidia-a100-sxm-80gb", "amd-mi300x"):
        one = ("--ranks", "8", "--target", target)
        many = ("--ranks", "32", "--nodes", "4", "--nic-gbs", "50", "--target", target)
        for op in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"):
            given = ("--op", op, "--bytes", "64M")
            yield from call("collectives", "choose", *one, *given, document=True, digest=True)
        for size in ("1K", "96K", "1G"):
            yield from call("collectives", "choose", *one, "--bytes", size, document=True)
            yield from call(
                "collectives", "choose", *many, "--bytes", size, digest=True, document=True
            )
        buckets = ("--params", "params.json", "--backward-ms", "12.5")
        yield from call("collectives", "choose", *one, *buckets, document=True)


def _occupancies(folder: Path) -> Iterator[str]:
    call = Calls(folder)
    for arch, threads, regs, words in (
        ("sm_90", 256, 64, ("--smem", "16384")),
        ("sm_80", 96, 255, ()),
        ("sm_70", 1024, 32, ("--smem", "49152", "--no-opt-in")),
        ("sm_100", 128, 128, ("--smem", "100000", "--carveout", "50", "--barriers", "4")),
        ("sm_89", 33, 17, ("--smem", "1")),
        ("gfx942", 256, 100, ("--acc", "60", "--sgprs", "102", "--smem", "16000")),
        ("gfx90a", 64, 512, ()),
        (
            "gfx908",
            1024,
            24,
            (
                "--smem",
                "65536",
            ),
        ),
        ("gfx1100", 256, 96, ("--wave-size", "32", "--cu-mode")),
        ("gfx1201", 128, 250, ("--smem", "40000")),
        ("sm_90", 2048, 64, ()),
        ("sm_90", 1024, 256, ()),
        ("gfx942", 256, 600, ()),
        ("sm_1", 256, 64, ()),
    ):
        given = ("--arch", arch, "--threads", str(threads), "--regs", str(regs), *words)
        yield from call("occupancy", *given, document=True)


def _history(folder: Path) -> Iterator[str]:
    from tests.support import history_samples
    from tests.support.history_samples import measure, run

    runs = []
    for number in range(16):
        level = 100.0 + number % 3 - 12.0 * (number >= 9)
        versions = {"torch": "2.12.0" if number < 9 else "2.13.0"}
        for host, factor in (("node-1", 1.0), ("node-2", 1.01), ("node-3", 0.8), ("node-4", 1.02)):
            results = [
                measure("memory/copy", level * factor),
                measure("launch/empty", 5.0 + number / 7, "us"),
                measure("matmul/bfloat16", 300.0 * factor, "TFLOP/s", device="cuda:0"),
            ]
            if number % 8 == 7:
                screened = measure("screen/vectors/add", 1000.0 * number, "results")
                results.append(screened)
            runs.append(run(number, results, host=host, versions=versions))
    runs.append(run(40, [measure("memory/copy", 3.0)], host="node-5"))
    history_samples.write(folder / "runs", runs)
    (folder / "runs/notes.json").write_text("{}")
    call, store = Calls(folder), ("--store", "store.sqlite")
    history = ("matrix", "history")
    yield from call(*history, "import", "runs", *store, document=True)
    yield from call(*history, "import", "runs", *store)
    yield from call(*history, "runs", *store, document=True)
    yield from call(*history, "runs", "--last", "3", "--of", "host=node-2", *store)
    yield from call(
        *history, "compare", "host=node-1", "host=node-3", "--all", *store, document=True
    )
    yield from call(*history, "compare", "torch=2.12.0", "torch=2.13.0", "--least", "20", *store)
    for name in ("memory/copy", "launch/empty", "matmul/bfloat16", "memory/none"):
        yield from call(*history, "trend", name, *store, document=True)
    yield from call(*history, "trend", "memory/copy", "--of", "host=node-1", *store)
    yield from call(*history, "regressions", "--all", *store, document=True)
    yield from call(*history, "regressions", "memory/copy", "--top", "1", *store)
    yield from call(*history, "outliers", *store, document=True)
    yield from call(*history, "outliers", "--least", "30", *store)
    yield from call(*history, "screens", "--days", "36500", *store, document=True)
    yield from call(*history, "export", "--of", "host=node-5", "-o", "out", *store)


def page_lines(page: str) -> Iterator[str]:
    """A digest of each section of a page, and the words of the first ones."""
    sections = page.split("<h2")
    for number, section in enumerate(sections):
        words = " ".join(re.sub("<[^>]*>", " ", section).split()).removeprefix("> ")
        shown = words if number in (1, 2) else words[:40]
        yield from textwrap.wrap(shown[:1500], 110)
        yield f"  {len(section)} characters, {digest_of(section)}"


def samples() -> dict[str, Any]:
    from tests.support import bundle_samples, result_samples

    return {
        "passing": result_samples.passing(),
        "failing": result_samples.failing(),
        "stopped": result_samples.stopped(),
        "eight": result_samples.eight_devices(),
        "full": bundle_samples.full_run(),
        "gpus": bundle_samples.full_run("amd-mi300x", "rocm", 2),
    }


def _reports(folder: Path) -> Iterator[str]:
    """Pages and JUnit of runs, as their texts."""
    from portagpu.reports import html, junit

    for name, run in samples().items():
        yield f"# {name}"
        yield from page_lines(html.render(run))
        for line in junit.render(run).splitlines() if name in ("failing", "stopped") else ():
            yield line[:150]
        yield digest_of(junit.render(run))


def _traces(folder: Path) -> Iterator[str]:
    """One made-up timeline of two ranks in three formats."""
    from tests.support import trace_samples

    call = Calls(folder)
    for name, write in trace_samples.WRITERS.items():
        for rank in range(2):
            options = {"wait_ns": 40_000 * rank, "sets": name != "rocpd", "per_step": 50}
            made = trace_samples.timeline(200, rank=rank, world_size=2, **options)
            write(made, folder / f"{name}-{rank}")
        both = (f"{name}-0", f"{name}-1")
        yield from call("trace", "summary", *both, document=True)
        yield from call("trace", "diff", *both, "--allow", "ranks", document=True, timed=True)
        yield from call("trace", "diagnose", *both, document=True, timed=True)
    for by in ("device", "category", "kernel", "range", "collective", "operator", "api"):
        yield from call("trace", "summary", "nsys-0", "--by", by, "--top", "6")
    words = ("--by", "kernel", "--csv", "-", "--range", "forward")
    yield from call("trace", "summary", *both, *words)


def _recorded_traces(folder: Path) -> Iterator[str]:
    """What profilers wrote of real programs."""
    call = Calls(folder)
    files = sorted([*(RECORDED / "torch").iterdir(), *(TEXTS / "trace_recordings").iterdir()])
    files += sorted((RECORDED / "rocprofv3").glob("*.json.gz"))
    for path in files:
        if path.suffix != ".gz":
            continue
        name = path.name.removesuffix(".gz")
        data = gzip.decompress(path.read_bytes())
        (folder / name).write_bytes(data)
        if len(data) > _MAX_TRACE_BYTES:
            continue
        yield from call("trace", "summary", name, document=True)
        yield from call("trace", "diagnose", name, document=True, timed=True)


_MAX_TRACE_BYTES: Final = 3 << 20


def _ported(folder: Path) -> Iterator[str]:
    call = Calls(folder)
    samples = ROOT / "tests/support/port_samples"
    for name in ("before/names.py", "before/processes.py", "kernels", "portable", "train"):
        yield from call("port", "lint", samples / name, document=True)
    yield from call("port", "rewrite", samples / "train", document=True)
    yield from call("port", "rewrite", "--unsafe", samples / "train")
    yield from call("port", "lint", "--format", "github", samples / "train")
    yield from call("port", "lint", "--format", "sarif", samples / "train", digest=True)


def _listed(folder: Path) -> Iterator[str]:
    """What a package has, and its facts."""
    from portagpu.facts.targets import load_targets

    call = Calls(folder)
    yield from call("targets", "list", document=True)
    for name in sorted(load_targets()):
        yield from call("targets", "show", name, digest=name not in _SHOWN)
    for words in (("bench", "--list"), ("bringup", "--list"), ("screen", "--list")):
        yield from call(*words)


_SHOWN: Final = ("amd-mi300x", "cpu-x86-64")


def _printed_profilers(folder: Path) -> Iterator[str]:
    """What would run under vendors' profilers."""
    program = folder / "train"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    call = Calls(folder)
    for tool, version in (("nsys", "2024.5.1"), ("nsys", "2022.1"), ("rocprofv3", "1.1.0")):
        for words in (
            (),
            ("--region",),
            ("--record", "kernels,ranges"),
            ("--delay", "2", "--duration", "3.5"),
        ):
            given = ("--with", tool, "--tool-version", version, "--print", *words)
            yield from call("profile", *given, "--", program, "--lr", "0.1")


VERBS: Final = {
    "replay-nvidia.txt": Golden("vendor_texts", _replayed(*NVIDIA)),
    "replay-amd.txt": Golden("vendor_texts", _replayed(*AMD)),
    "replay-others.txt": Golden("vendor_texts", _replayed(*OTHERS)),
    "judged.txt": Golden("vendor_texts", _judged),
    "trees.txt": Golden("vendor_texts", _trees),
    "placed.txt": Golden("vendor_texts", _placed, ("networkx",)),
    "tables.txt": Golden("vendor_texts", _tables),
    "traces.txt": Golden("vendor_texts", _traces, ("pyarrow", "adbc_driver_sqlite")),
    "recorded-traces.txt": Golden(
        "vendor_texts", _recorded_traces, ("pyarrow", "adbc_driver_sqlite")
    ),
    "choices.txt": Golden("unit", _choices),
    "occupancies.txt": Golden("unit", _occupancies),
    "history.txt": Golden("unit", _history, ("sqlalchemy",)),
    "reports.txt": Golden("unit", _reports),
    "ported.txt": Golden("unit", _ported, ("libcst",)),
    "listed.txt": Golden("unit", _listed),
    "profilers.txt": Golden("unit", _printed_profilers),
}

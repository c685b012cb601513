"""Golden files of what verbs that run something print of it: what ran is made up, and read here."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

from tests.support.golden import Calls, Golden

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from portagpu.runs.results.run import Result, Run


def _run(results: list[Result], **fields: Any) -> Run:
    from portagpu.runs.results.run import Run
    from tests.support.result_samples import info

    versions = {"portagpu": "0.1.0", "torch": "2.13.0", "comm": "Gloo"}
    return Run(info(versions=versions, **fields), results)


def _views(folder: Path) -> Iterator[str]:
    call = Calls(folder)
    # whether other work runs on this machine changes nothing
    with mock.patch("portagpu.facts.host.read_host", lambda: SimpleNamespace(busy="")):
        yield from _shown(call)
    yield from (folder / "out.txt").read_text(encoding="utf-8").splitlines()
    yield from _tunes(call, folder)


def _shown(call: Calls) -> Iterator[str]:
    for engine, made, words in (
        ("performance.run", _benchmarked(), ("bench", "--strict")),
        ("screen.run", _screened(), ("screen", "--time", "90s", "--seed", "7")),
        ("collectives.verify", _verified(), ("collectives", "verify", "--tables", "out.txt")),
        ("compile.compile_kernels", _compiled(1), ("compile", "--arch", "sm_90")),
        ("compile.compile_kernels", _compiled(3), ("compile", "--all", "--no-cache")),
    ):
        with mock.patch(f"portagpu.suites.{engine}", lambda *_, made=made, **__: made):
            yield from call(*words, document=True)


def _tunes(call: Calls, folder: Path) -> Iterator[str]:
    tune = ("collectives", "tune", "--profile", "profile.json", "--emit-dir", "emitted")
    (folder / "sizes.json").write_text("[1000, 4194304, 5]")
    buckets = ("--params", "sizes.json", "--backward-ms", "3")
    for made in (_tuned(), _run([])):
        with mock.patch("portagpu.suites.collectives.tune", lambda *_, made=made: made):
            yield from call(*tune, *buckets, document=True)
    for path in sorted((folder / "emitted").iterdir()):
        yield f"# {path.name}"
        yield from path.read_text(encoding="utf-8").splitlines()
    choose = ("collectives", "choose", "--profile", "profile.json", "--ranks", "2", "--bytes")
    for size in ("1K", "3K", "1M", "1G"):
        yield from call(*choose, size)


def _benchmarked() -> Run:
    from portagpu.runs.results.run import Verdict
    from tests.support.history_samples import measure

    ceiling = {"id": "memory/triad", "value": 20.5, "unit": "GB/s"}
    timed = {"clock": "events", "threads": 4, "load_average": 0.75}
    expected = {"reference": 20.0, "lower": -0.1, "upper": None, "unit": "GB/s", "source": "a page"}
    shapes: tuple[Any, ...] = (
        {"m": 64, "n": 32, "k": 16},
        {"array_bytes": 1 << 27},
        {"bytes": 4 << 20, "ranks": 2},
        {"bytes": 1 << 10, "ranks": 1},
        [4096, 8],
        "any",
    )
    found = [
        measure(f"memory/{number}", 10.0 + number, shape=shape, extra={**timed, "of_limit": 0.5})
        for number, shape in enumerate(shapes)
    ]
    found += [
        measure("memory/copy", 18.0, extra={**timed, "ceiling": ceiling, "of_ceiling": 0.878}),
        measure("memory/triad", 20.5, extra={**timed, "ceiling": ceiling, "of_ceiling": 1.0}),
        replace(measure("launch/empty", 0.0, "us"), verdict=Verdict.PASS, does_not_show="load"),
        replace(
            measure("gemm/bf16", 3.5e3, "TFLOP/s", device="cuda:1"),
            verdict=Verdict.FAIL,
            reason="too slow",
            expected={**expected, "unit": "TFLOP/s"},
        ),
        replace(measure("transfer/h2d", 25.0), expected=expected, verdict=Verdict.PASS),
        replace(measure("kernels/sum", 1.0), value=None, verdict=Verdict.SKIP, reason="no Triton"),
    ]
    return _run(found)


def _screened() -> Run:
    from portagpu.suites.screen.judge import Screened, results_of
    from portagpu.suites.screen.runner import CORRECTED, UNCORRECTED, errors_result
    from portagpu.suites.screen.tally import Tally, locate

    where = locate([3, 67, 131], (4, 64), [0, 0, 0], [1, 2, 4], "float32", 16, 32)
    failure = {
        "batch": 4,
        "seed": 99,
        "scale": 2,
        "count": 3,
        "of": 256,
        "where": {**where.to_json(), "sentence": where.sentence},
        "repeated": 4,
        "repeated_wrong": 1,
        "outcomes": 1,
        "digest": "ab" * 32,
    }
    devices = []
    for number in range(4):
        device = Screened(name=f"cuda:{number}", index=number)
        for name in ("vectors/add", "products/float32", "together/all_reduce"):
            tally = Tally()
            for batch in range(3):
                tally.add(
                    {
                        "results": 1000 * (batch + 1),
                        "inputs": 64,
                        "batches": 1,
                        "seconds": 0.5,
                        "judging_s": 0.125,
                        "scale": batch,
                        "digest": f"{number // 3}" * 64,
                        "telemetry": {"t_s": 1.0 * batch, "power_w": 300.0 + batch},
                    }
                )
            device.tallies[name] = tally
        devices.append(device)
    devices[1].tallies["vectors/add"].failure = failure
    devices[1].tallies["products/float32"].failure = {**failure, "batch": -1, "where": None}
    devices[2].hang(60.0, "products/float32 again", 61.0)
    devices[3].tallies["vectors/add"].add({"refused": "no memory", "broke": "it raised"})
    devices[3].tallies["products/float32"] = Tally(refused="needs 3 GiB")
    devices[3].tallies["together/all_reduce"] = Tally(stopped="the limit of temperature")
    before = {("0000:03:00.0", CORRECTED): 5, ("mc0", CORRECTED): 9, ("mc0", UNCORRECTED): 1}
    after = {("0000:03:00.0", CORRECTED): 7, ("mc0", CORRECTED): 2, ("mc0", UNCORRECTED): 1}
    counted = [
        errors_result(before, before),
        errors_result({}, after),
        errors_result(before, after),
        errors_result(before, {**after, ("mc0", UNCORRECTED): 2}),
    ]
    ids = [replace(each, id=f"{each.id}-{number}") for number, each in enumerate(counted)]
    return _run([*results_of(devices, 7), *ids])


def _verified() -> Run:
    from portagpu.suites.collectives.verify import _point_result

    plain: dict[str, Any] = {
        "refused": {},
        "refused_alone": False,
        "checked": 24,
        "wrong": {"out_of_place": 0, "in_place": 0},
        "sentence": "",
        "seconds": {"out_of_place": [1e-3, 1.1e-3, 0.9e-3], "in_place": [2e-3, 2e-3, 2.5e-3]},
    }
    found = []
    for operation, dtype, count in (
        ("all_reduce", "float32", 1 << 20),
        ("all_reduce", "bfloat16", 1 << 20),
        ("all_reduce", "float32", 1000),
        ("broadcast", "int8", 4096),
        ("sendrecv", "float64", 77),
    ):
        of = {"dtype": dtype, "count": count}
        found.append(_point_result(operation, 2, [{**plain, **of}, {**plain, **of}], "a network"))
    refused = {**plain, "dtype": "float8_e5m2", "count": 5, "checked": 0, "refused": {"SUM": "no"}}
    found.append(_point_result("reduce", 4, [refused] * 4, ""))
    wrong = {**plain, "dtype": "float16", "count": 64, "wrong": {"out_of_place": 3, "in_place": 0}}
    answers = [{**plain, "dtype": "float16", "count": 64}, {**wrong, "sentence": "element 5 is 0"}]
    found.append(_point_result("all_gather", 2, answers, ""))
    alone = [{**each, "refused_alone": True} for each in answers]
    found.append(_point_result("gather", 2, alone, ""))
    return _run(found)


def _tuned() -> Run:
    from portagpu.devices.collectives.tuning import Candidate
    from portagpu.facts.targets import load_target
    from portagpu.suites.collectives.tune import _Measured
    from portagpu.suites.performance.device import MeasuredDevice

    device = MeasuredDevice.from_target(load_target("cpu-x86-64"))
    found = []
    for number, size in enumerate((1 << 10, 1 << 12, 1 << 20, 1 << 24)):
        seconds = [size / 1e9 + 1e-5 * factor for factor in (1.0, 1.1, 0.95, 1.05)]
        faster = [each / 1.5 for each in seconds]
        answers = [
            {
                "dtype": "float32",
                "size_bytes": size,
                "checked": 12,
                "wrong": {"call": 0, "chunks-2": 0},
                "refused": {},
                "sentence": "",
                "seconds": {"call": list(seconds), "chunks-2": list(faster)},
                "winner": "chunks-2",
                "believed": number % 2 == 1,
                "pairs": list(zip(seconds, faster, strict=True)) if number else [],
            }
            for _ in range(2)
        ]
        measured = _Measured.of(answers)
        ring = Candidate(name="ring-ll", environment={"NCCL_ALGO": "Ring"})
        times = [each / (3.0 if number == 2 else 0.9) for each in seconds]
        other = {**answers[0], "seconds": {"call": times}, "wrong": {"call": 0}}
        measured.compare(ring, [other, other])
        if measured.challenger is not None:
            measured.repeated([seconds, seconds[::-1]], [times, times[::-1]])
        found.append(measured.result(device, "all_reduce", 2))
    here = {
        "name": "cpu",
        "arch": "x86-64",
        "product": "a CPU",
        "units": 2,
        "shared": True,
        "comm": "gloo",
        "comm_version": None,
    }
    return _run(found, backend="cpu", devices=(here,))


def _compiled(archs: int) -> Run:
    from portagpu.devices.machine_code import MachineCode
    from portagpu.facts.targets import load_architecture
    from portagpu.runs.results.run import Verdict
    from portagpu.suites.compile.judge import judge_code, unjudged_result

    found = []
    for name in ("sm_90", "gfx942", "gfx1100")[:archs]:
        target = load_architecture(name)
        for number, kernel in enumerate(("copy", "matmul[bf16]", "sum")):
            code = MachineCode(
                wave_size=target.arch.warp_size,
                threads=256,
                registers=40 + 60 * number,
                spills=number if name == "gfx942" else 0,
                spill_unit="registers",
                shared_bytes=1024 * number,
                matrix={"HMMA.16816.F32.BF16": 4} if number == 1 else {},
            )
            given = {"matrix": "bf16" if number == 1 else None, "compiler": "Triton 3.5"}
            found.append(judge_code(kernel, target, code, **given, duration_s=0.5, extra={}))
        found.append(unjudged_result("fp8", target, Verdict.SKIP, "no FP8"))
    return _run(found)


def _occupied(_: Path) -> Iterator[str]:
    """Occupancy of compiled kernels, with shared memory that a launch adds."""
    from portagpu.devices.machine_code import CompiledKernel
    from tests.support.golden import answer_of

    for arch, registers, shared in (
        ("sm_90", 32, 0),
        ("sm_80", 128, 4096),
        ("gfx942", 64, 16384),
        ("gfx1100", 96, 1),
        ("x", 1, 1),
    ):
        kernel = CompiledKernel(
            name="k",
            arch=arch,
            compiler="NVRTC 13",
            seconds=1.0,
            registers=registers,
            spills=0,
            spill_unit="bytes",
            stack=0,
            shared_memory=shared,
            wave_size=64 if arch == "gfx942" else 32,
            code=b"",
        )
        for threads, added in ((64, 0), (256, 4096), (1024, 40_000), (2048, 0), (256, 300_000)):
            found = answer_of(kernel.occupancy, threads, dynamic_shared_memory=added)
            said = found if isinstance(found, str) else f"{found.blocks} {found.fraction:.4g}"
            yield f"{arch} {registers} {shared} {threads} {added}: {said}"


VIEWS: Final[dict[str, Golden]] = {
    "views.txt": Golden("torch", _views, ("networkx",)),
    "occupied.txt": Golden("unit", _occupied),
}

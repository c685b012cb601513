"""Profiling: ranges that nest, return their depth, and leave the work as it is."""

from __future__ import annotations

import contextlib
import json

import portagpu as pg
from portagpu.base.errors import Unsupported
from portagpu.facts.captures.labels import decode
from portagpu.suites.conformance import NotClaimed, case

CALLS = ("method", "function")


def _source(gpu, call):
    return gpu if call == "method" else pg


@case(
    "profiling/annotate-marks",
    spec="An annotated block is in torch's profile, or its mark is one of the vendor's profiler.",
    covers=("Backend.annotate",),
    traps=("T07",),
    smoke=True,
    does_not_show="that the vendor's profiler shows the block, where torch's does not",
)
def test_annotate_marks(gpu, torch):
    with torch.profiler.profile() as profile, gpu.annotate("portagpu-annotated-block"):
        torch.ones(10, device=gpu.device).sum()
    seen = any(event.key == "portagpu-annotated-block" for event in profile.key_averages())
    mark = type(gpu.annotate("x"))
    assert seen or mark is not contextlib.nullcontext, "annotate() marks nothing: a nullcontext"


@case(
    "profiling/annotate-keeps-the-work",
    spec="The work inside an annotated block is done, and its result unchanged.",
    covers=("Backend.annotate", "portagpu.annotate"),
    params={"call": CALLS},
)
def test_annotate_keeps_the_work(gpu, torch, call):
    with _source(gpu, call).annotate("work"):
        total = torch.arange(100, device=gpu.device).sum()
    assert int(total) == 4950, f"inside an annotated block the sum is {int(total)}"


@case(
    "profiling/torch-profiler-sees-work",
    spec="torch's profiler counts the operations that ran on the device.",
    traps=("T06",),
)
def test_torch_profiler_sees_work(gpu, torch):
    left = torch.ones(32, 32, device=gpu.device)
    with torch.profiler.profile() as profile:
        for _ in range(5):
            left @ left
    # a device that has the CPU compute an operation shows that one inside of its own
    products = [event for event in profile.events() if event.name == "aten::mm"]
    count = sum(event.cpu_parent not in products for event in products)
    assert count == 5, f"five products are {count} in the profile"


@case(
    "profiling/mark-leaves-no-range",
    spec="A mark of a moment opens no range.",
    covers=("Backend.mark", "portagpu.mark", "portagpu.range_push", "portagpu.range_pop"),
    params={"call": CALLS},
)
def test_mark_leaves_no_range(gpu, torch, call):
    source = _source(gpu, call)
    with torch.profiler.profile():
        source.mark("schöne Grüße")
        depth = source.range_push("after")
        source.range_pop()
    assert depth == 0, f"after a mark the first range has the depth {depth}"


@case(
    "profiling/start-and-stop",
    spec="Work between the start and the stop of the vendor's profiler is done, whether or not one "
    "is attached.",
    covers=(
        "Backend.profiler_start",
        "Backend.profiler_stop",
        "portagpu.profiler_start",
        "portagpu.profiler_stop",
    ),
    params={"call": CALLS},
)
def test_start_and_stop(gpu, torch, call):
    source = _source(gpu, call)
    try:
        source.profiler_start()
    except Unsupported as error:
        raise NotClaimed(str(error)) from None
    try:
        total = int(torch.arange(100, device=gpu.device).sum())
    finally:
        source.profiler_stop()
    assert total == 4950, f"while a profiler may record, the sum is {total}"


@case(
    "profiling/runtime-has-the-profilers-calls",
    spec="cudart() has the calls that start and stop the profiler, or is refused with Unsupported.",
    covers=("Backend.cudart", "portagpu.cudart"),
)
def test_runtime_has_the_profilers_calls(backend):
    for call in (backend.cudart, pg.cudart):
        try:
            runtime = call()
        except Unsupported:
            continue
        for name in ("cudaProfilerStart", "cudaProfilerStop"):
            assert callable(getattr(runtime, name, None)), f"cudart() has no {name}"


def _annotated_in(profile, path):
    """(name, labels, domain) of the annotated blocks in the file that torch's profiler writes."""
    profile.export_chrome_trace(str(path))
    return _annotated(path)


def _annotated(path):
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    return [decode(each["name"]) for each in events if each.get("cat") == "user_annotation"]


@case(
    "profiling/annotate-tells-labels",
    spec="Labels of an annotated block, and any name, are in the trace that torch's profiler "
    "writes.",
    covers=("Backend.labelled_block", "portagpu.annotate"),
    params={"call": CALLS},
)
def test_annotate_tells_labels(gpu, torch, tmp_path, call):
    labels = {"step": 3, "mode": 'dry "run"', "last": True, "loss": 0.5}
    with torch.profiler.profile() as profile:
        with gpu.annotate("plain"):
            torch.ones(10, device=gpu.device).sum()
        if call == "method":
            block = gpu.labelled_block("schön", labels, "mine")
        else:
            block = pg.annotate("schön", domain="mine", color="red", **labels)
        with block:
            torch.ones(10, device=gpu.device).sum()
    found = _annotated_in(profile, tmp_path / "trace.json")
    if not any(name == "plain" for name, _, _ in found):
        raise NotClaimed("torch's profiler shows no annotated block of this device")
    expected = ("schön", labels, "mine")
    assert expected in found, f"the annotated block {expected} is one of {found} in the trace"


@case(
    "profiling/attached-profiler-has-a-name",
    spec="The vendor's profiler that started the process has a name of one word, or there is none.",
    covers=("Backend.attached_profiler",),
)
def test_attached_profiler_has_a_name(backend):
    name = backend.attached_profiler()
    assert name is None or (isinstance(name, str) and len(name.split()) == 1), (
        f"the profiler that started this process is called {name!r}"
    )


@case(
    "profiling/region-keeps-the-work",
    spec="The work inside a region of the vendor's profiler is done, also in one inside another.",
    covers=("portagpu.region",),
)
def test_region_keeps_the_work(gpu, torch):
    try:
        gpu.profiler_start()
        gpu.profiler_stop()
    except Unsupported as error:
        raise NotClaimed(str(error)) from None
    with pg.region("outer"), pg.region():
        total = int(torch.arange(100, device=gpu.device).sum())
    assert total == 4950, f"inside a region the sum is {total}"


@case(
    "profiling/schedule-records-its-steps",
    spec="A schedule records its active steps and no other, with work of the device, in one file "
    "of the rank.",
    covers=("portagpu.profiling",),
    smoke=True,
)
def test_schedule_records_its_steps(gpu, torch, tmp_path):
    if gpu.attached_profiler() is not None:
        raise NotClaimed(f"{gpu.attached_profiler()} records this process")
    output = tmp_path / "trace.json"
    with pg.profiling(output, wait=1, warmup=1, active=2) as steps:
        for step in range(6):
            with pg.annotate("step", step=step):
                torch.ones(10, device=gpu.device).sum()
            gpu.synchronize()
            steps.step()
    assert len(steps.paths) == 1, f"one cycle wrote {steps.paths}"
    found = [labels["step"] for name, labels, _ in _annotated(steps.paths[0]) if name == "step"]
    assert found == [2, 3], f"of the steps 0 to 5 these are recorded: {found}"

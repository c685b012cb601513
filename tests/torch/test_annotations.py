"""Annotations in torch's profiler and in the vendors' tools, and where nothing listens."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

import portagpu as pg
from portagpu.devices import annotations
from portagpu.facts.captures.labels import decode
from tests.support import fake_torch
from tests.support.registry_state import forget
from tests.torch.test_gpu_backends import BY_ID, PLUGINS

NAMES = ('say "hi"', "back\\slash", "line\nbreak", "nul\0in", "schön", "\ud800", "{}", "a:b", "")


@pytest.fixture(autouse=True)
def _on_the_cpu(monkeypatch):
    forget(monkeypatch)
    monkeypatch.setenv("PORTAGPU_BACKEND", "cpu")


def ranges_of(profile, folder):
    """(name, labels, domain) of every annotated block in the file that torch's profiler writes."""
    profile.export_chrome_trace(str(folder / "trace.json"))
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    return [decode(each["name"]) for each in events if each.get("cat") == "user_annotation"]


def test_any_name_with_labels_is_in_torchs_trace(tmp_path):
    with torch.profiler.profile() as profile:
        for name in NAMES:
            with pg.annotate(name, step=3, mode="dry 'run'", last=True, loss=0.5):
                torch.ones(1)
        with pg.annotate("plain"), pg.annotate("there", domain="mine", color="#ff0000"):
            pass
    labels = {"step": 3, "mode": "dry 'run'", "last": True, "loss": 0.5}
    expected = [(name, labels, "") for name in NAMES]
    expected += [("plain", {}, ""), ("there", {}, "mine")]
    assert ranges_of(profile, tmp_path) == expected


def test_where_nothing_listens_the_device_is_not_asked(monkeypatch):
    handle = pg.backend()

    def called(*arguments, **options):
        raise AssertionError("an idle block was made")

    monkeypatch.setattr(type(handle), "annotate", called)
    monkeypatch.setattr(type(handle), "labelled_block", called)

    @pg.annotate("decorated", step=1)
    def twice(n):
        return 2 * n

    with pg.annotate("x"), pg.annotate("y", step=1):
        assert twice(2) == 4
    with torch.profiler.profile(), pytest.raises(AssertionError, match="idle block"):
        twice(2)


def test_a_block_that_is_entered_twice_closes_what_it_opened(tmp_path):
    block = pg.annotate("again")
    with block:
        with torch.profiler.profile() as profile, block, block:
            pass
        with block:
            pass
    assert ranges_of(profile, tmp_path) == [("again", {}, "")] * 2
    assert block._open == []


def test_threads_that_run_a_decorated_function_have_blocks_of_their_own():
    inside, leave = threading.Barrier(3), threading.Event()

    @pg.annotate("decorated")
    def wait():
        inside.wait(60)
        leave.wait(60)

    threads = [threading.Thread(target=wait) for _ in range(2)]
    for each in threads:
        each.start()
    inside.wait(60)
    leave.set()
    for each in threads:
        each.join(60)
    assert wait.__name__ == "wait"


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"domain": "a b"}, ValueError, "a domain is a word of up to 64 letters"),
        ({"color": "reddish"}, ValueError, "a color is 0xRRGGBB, '#rrggbb' or one of black"),
        ({"color": -1}, ValueError, "a color is"),
        ({"color": [1]}, ValueError, "a color is"),
        ({"color": "#+12345"}, ValueError, "a color is"),
        ({"domain": 5}, ValueError, "a domain is"),
    ],
)
def test_what_no_annotation_can_have_is_refused_at_once(options, error, words):
    with pytest.raises(error, match=words):
        pg.annotate("x", **options)


def test_a_label_of_another_type_is_its_text(tmp_path):
    with torch.profiler.profile() as profile, pg.annotate("x", shape=[1, 2], step=3):
        pass
    assert ranges_of(profile, tmp_path) == [("x", {"shape": "[1, 2]", "step": 3}, "")]


def test_a_name_of_another_type_is_its_text(tmp_path):
    with torch.profiler.profile() as profile, pg.annotate(7), pg.annotate(None, step=3):
        pass
    assert ranges_of(profile, tmp_path) == [("7", {}, ""), ("None", {"step": 3}, "")]


def test_what_cannot_be_decorated_is_refused_at_once():
    async def waits():
        pass

    async def yields_later():
        yield

    def yields():
        yield

    for function in (waits, yields_later, yields):
        with pytest.raises(TypeError, match=f"^{function.__name__} returns before its body runs"):
            pg.annotate("x")(function)
    with pytest.raises(TypeError, match="annotate needs a name: @annotate"):
        pg.annotate(len)([])


def test_an_older_backend_is_given_the_labels_in_the_name(monkeypatch, tmp_path):
    from portagpu.devices.contract import Backend

    handle = pg.backend()
    for name in ("listens", "labelled_block"):
        monkeypatch.setattr(type(handle), name, getattr(Backend, name))
    plain = torch.profiler.record_function
    monkeypatch.setattr(type(handle), "annotate", lambda self, name: plain(name))
    with torch.profiler.profile() as profile, pg.annotate("x", step=1), pg.annotate("y"):
        pass
    assert ranges_of(profile, tmp_path) == [("x", {"step": 1}, ""), ("y", {}, "")]


# what the vendors' tools are given

ROCTX = """
#include <stdio.h>
#include <stdlib.h>
#include <stdint.h>
static int level = 0;
static void say(const char *what, const char *text) {
    FILE *out = fopen(getenv("ROCTX_LOG"), "a");
    fprintf(out, "%s %s\\n", what, text);
    fclose(out);
}
void roctxMarkA(const char *text) { say("mark", text); }
int roctxRangePushA(const char *text) { say("push", text); return level++; }
int roctxRangePop(void) { say("pop", ""); return level ? --level : -1; }
int roctxProfilerPause(uint64_t thread) { say("pause", thread ? "one" : "all"); return 0; }
int roctxProfilerResume(uint64_t thread) { say("resume", thread ? "one" : "all"); return 0; }
"""
"""Functions and types as in rocprofiler-sdk-roctx/roctx.h and types.h."""


@pytest.fixture
def roctx(monkeypatch, tmp_path):
    """A stand-in of rocprofiler-sdk's library; returns a function for the lines that it gets."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("a C compiler builds the stand-in of ROCTx")
    folder, log = tmp_path / "rocm" / "lib", tmp_path / "log"
    folder.mkdir(parents=True)
    source = tmp_path / "roctx.c"
    source.write_text(ROCTX, encoding="utf-8")
    library = folder / "librocprofiler-sdk-roctx.so.1"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", str(library), str(source)], check=True, timeout=60
    )
    monkeypatch.setenv("ROCM_PATH", str(tmp_path / "rocm"))
    monkeypatch.setenv("ROCTX_LOG", str(log))
    yield lambda: log.read_text("utf-8").splitlines() if log.exists() else []
    # the stand-in writes to this test's log, and no later test may call it
    module = sys.modules["portagpu_rocm.backend"]
    module.library.cache_clear()
    module.attached.cache_clear()


def open_gpu(monkeypatch, gpu):
    driver = fake_torch.install(monkeypatch, BY_ID[gpu].kind, [BY_ID[gpu]])
    handle = PLUGINS[BY_ID[gpu].kind]().open(0)
    from portagpu.devices import registry

    monkeypatch.setattr(type(handle), "current_index", None)
    monkeypatch.setattr(registry, "_current", handle)
    return handle, driver


@pytest.mark.processes(1, "a compiler builds the stand-in")
def test_roctx_has_domain_and_labels_in_the_name(monkeypatch, roctx):
    handle, driver = open_gpu(monkeypatch, "mi300x-spx")
    with pg.annotate("schön", step=3), handle.annotate("plain"):
        pg.mark("here")
        pg.range_push("torch's own name")
        pg.range_pop()
    assert roctx() == [
        "push portagpu:schön {'step':3}",
        "push portagpu:plain",
        "mark here",
        "push torch's own name",
        "pop ",
        "pop ",
        "pop ",
    ]
    assert driver.ranges == [], "torch's ROCTx is roctracer's, which rocprofv3 does not read"


@pytest.mark.processes(1, "a compiler builds the stand-in")
@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"ROCP_TOOL_LIBRARIES": "/x/libother.so"}, ["resume all", "pause all"]),
        (
            {
                "ROCP_TOOL_LIBRARIES": "/x/librocprofiler-sdk-tool.so",
                "ROCPROF_SELECTED_REGIONS": "1",
            },
            ["resume all", "pause all"],
        ),
        # the whole run is recorded, and a pause would end it
        ({"ROCP_TOOL_LIBRARIES": "/x/librocprofiler-sdk-tool.so"}, []),
    ],
)
def test_a_region_is_roctx_resume_and_pause(monkeypatch, roctx, variables, expected):
    _, driver = open_gpu(monkeypatch, "mi300x-spx")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    driver.calls.clear()
    with pg.region(), pg.region():
        pass
    with pg.profiler.profile():
        pass
    assert [each for each in roctx() if "push" not in each and "pop" not in each] == 2 * expected
    assert not driver.calls, "HIP's own call is a dummy"


@pytest.mark.processes(1, "another process is what is tested")
def test_a_process_that_no_tool_is_announced_to_is_idle(monkeypatch, roctx):
    handle, _ = open_gpu(monkeypatch, "mi300x-spx")
    monkeypatch.delenv("ROCP_TOOL_LIBRARIES")
    assert not handle.listens()
    with pg.annotate("x"):
        pg.mark("y")
    assert roctx() == []
    monkeypatch.setenv("ROCP_TOOL_ATTACH", "1")
    type(handle).range_tool.__globals__["attached"].cache_clear()
    assert handle.listens(), "a tool may be attached later"


class FakeDomain:
    """What ``nvtx.get_domain`` gives where a tool is attached (nvtx 0.2.17, nvtx/_lib/lib.pyx)."""

    def __init__(self, name, reported):
        self.name, self.reported = name, reported

    def get_event_attributes(self, message=None, color=None, category=None, payload=None):
        assert category is None
        return message, color, payload

    def push_range(self, attributes):
        self.reported.append((self.name, *attributes))

    def pop_range(self):
        self.reported.append((self.name, "pop"))


class DummyDomain:
    """The same where none is."""


def test_the_nvtx_package_gets_domain_color_and_payload(monkeypatch):
    reported = []
    module = SimpleNamespace(get_domain=lambda name: FakeDomain(name, reported))
    monkeypatch.setitem(sys.modules, "nvtx", module)
    _, driver = open_gpu(monkeypatch, "h100")
    with pg.annotate("forward", color="red", step=3), pg.annotate("plain", domain="mine"):
        pass
    with pg.annotate("all", step=3, name_="ü", last=True, loss=0.5, huge=2**70, empty=""):
        pass
    record = reported[4][3]
    assert reported[:4] == [
        ("portagpu", "forward {'step':3}", 0xFF0000, 3),
        ("mine", "plain", None, None),
        ("mine", "pop"),
        ("portagpu", "pop"),
    ]
    assert {name: record[name].item() for name in record.dtype.names} == {
        "step": 3,
        "name_": "ü".encode(),
        "last": 1,
        "loss": 0.5,
        "huge": str(2**70).encode(),
        "empty": b"",
    }
    pg.mark("here")
    pg.range_push("torch's own name")
    assert (driver.marks, driver.ranges) == (["here"], ["torch's own name"])
    pg.range_pop()


def test_without_the_package_torchs_nvtx_has_it_in_the_text(monkeypatch):
    monkeypatch.setitem(sys.modules, "nvtx", None)
    _, driver = open_gpu(monkeypatch, "h100")
    with pg.annotate("nul\0", step=3), pg.annotate("plain"):
        assert driver.ranges == ["portagpu:nul%00 {'step':3}", "portagpu:plain"]
    assert driver.ranges == []


def test_nvtx_that_no_tool_took_is_idle(monkeypatch):
    handle, driver = open_gpu(monkeypatch, "h100")
    monkeypatch.delenv("NVTX_INJECTION64_PATH")
    pushed = []
    # NVTX_NO_PUSH_POP_TRACKING of nvToolsExt.h
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", lambda text: pushed.append(text) or -2)
    assert not handle.listens()
    with pg.annotate("x"):
        pg.mark("y")
    assert pushed == ["portagpu"], "the tool is looked for once"
    assert driver.marks == []


@pytest.mark.parametrize(
    ("gpu", "variables", "name"),
    [
        ("h100", {"NSYS_PROFILING_SESSION_ID": "1"}, "nsys"),
        ("h100", {"NVTX_INJECTION64_PATH": "/opt/nsys/libToolsInjection64.so"}, "nsys"),
        ("h100", {"NV_NSIGHT_INJECTION_TRANSPORT_TYPE": "1"}, "ncu"),
        ("h100", {}, None),
        ("mi300x-spx", {"LD_PRELOAD": "/x/librocprofiler-sdk-tool.so"}, "rocprofv3"),
        ("mi300x-spx", {"ROCP_TOOL_LIBRARIES": "/x/libtorch_cpu.so"}, None),
    ],
)
def test_the_profiler_that_started_the_process(monkeypatch, gpu, variables, name):
    handle, _ = open_gpu(monkeypatch, gpu)
    for key, value in variables.items():
        monkeypatch.setenv(key, value)
    assert handle.attached_profiler() == name


def test_a_region_on_cuda_is_that_of_its_profiler_calls(monkeypatch):
    _, driver = open_gpu(monkeypatch, "h100")
    driver.calls.clear()
    with pytest.raises(KeyError), pg.region("epoch"), pg.region():
        assert driver.ranges == ["portagpu:epoch"]
        raise KeyError
    with pg.region():
        pass
    started = [call[0] for call in driver.calls]
    assert started == ["profiler_start", "profiler_stop"] * 2, "of nested regions the outer counts"


def test_a_region_on_a_cpu_marks_the_block(tmp_path):
    with torch.profiler.profile() as profile, pg.region("epoch"):
        torch.ones(1)
    assert ranges_of(profile, tmp_path) == [("epoch", {}, "")]


def test_a_region_where_no_profiler_can_be_controlled_is_a_block(monkeypatch):
    from portagpu.devices.optional import OptionalCalls

    handle = pg.backend()
    for name in ("profiler_start", "profiler_stop"):
        monkeypatch.setattr(type(handle), name, getattr(OptionalCalls, name))
    with pg.region(), pg.region("inner"):
        pass
    with pytest.raises(pg.Unsupported):
        pg.profiler.start()
    assert annotations._regions == 0


def test_a_region_that_could_not_begin_is_not_open(monkeypatch):
    _, driver = open_gpu(monkeypatch, "h100")
    monkeypatch.setattr(annotations, "profiler_start", lambda: {}["broken"])
    with pytest.raises(KeyError, match="broken"), pg.region():
        pass
    monkeypatch.undo()
    _, driver = open_gpu(monkeypatch, "h100")
    driver.calls.clear()
    with pg.region():
        pass
    assert [call[0] for call in driver.calls] == ["profiler_start", "profiler_stop"]

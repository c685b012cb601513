"""What the GPU plugins say, count and read without a device and without torch."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import pytest

from portagpu.base.errors import BackendNotFound
from portagpu.base.subprocesses import call
from portagpu.devices import registry
from portagpu.facts.host import PciGpu, visibility_variables
from portagpu.facts.host.tree import Tree
from portagpu.facts.visible import RUNTIMES
from portagpu_cuda.plugin import CudaPlugin
from portagpu_rocm.plugin import RocmPlugin
from tests.support.fake_plugins import FakePlugin
from tests.support.registry_state import forget, machine, use_plugins
from tests.support.visibility_rows import DEVICES, ROCM_ROWS, ROWS
from tests.support.waits import wait_until

PLUGINS = {"cuda": CudaPlugin, "rocm": RocmPlugin}
VENDORS = {"cuda": "nvidia", "rocm": "amd"}
MAKERS = {"cuda": "NVIDIA", "rocm": "AMD"}
# what a status leaves to advice elsewhere: other devices than asked for are not shown because of it
ADVICE = {"empty-mask", "leaving-variable", "two-masks", "uuid-support"}
both = pytest.mark.parametrize("kind", ["cuda", "rocm"])


@pytest.fixture(autouse=True)
def _no_masks(monkeypatch):
    for name in visibility_variables():
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def driver_here(tmp_path):
    """A root in which both vendors' drivers have their control files."""
    (tmp_path / "dev").mkdir()
    for name in ("nvidiactl", "kfd"):
        (tmp_path / "dev" / name).touch()
    return Tree(tmp_path)


# --- status


@both
def test_the_right_build_next_to_its_gpus_is_chosen(monkeypatch, driver_here, kind):
    machine(monkeypatch, kind, (VENDORS[kind], VENDORS[kind], "other"))
    found = PLUGINS[kind](driver_here).status()
    assert (found.usable, found.automatic) == (True, True), found.reason
    assert found.reason == f"torch 2.13.0 is a {kind} build for 2 {MAKERS[kind]} GPUs"


@both
@pytest.mark.parametrize("build", ["cpu", "cuda", "rocm", "xpu"])
def test_the_wrong_build_is_one_line_with_the_remedy(monkeypatch, driver_here, kind, build):
    if build == kind:
        return
    machine(monkeypatch, build, (VENDORS[kind],))
    found = PLUGINS[kind](driver_here).status()
    assert not found.usable
    assert not found.automatic
    assert found.reason.startswith(
        f"torch 2.13.0 is a {build} build and cannot use 1 {MAKERS[kind]} GPU: install a "
    ), found.reason
    assert "\n" not in found.reason, "more than one line"


@both
def test_a_cpu_build_without_a_gpu_needs_no_remedy(monkeypatch, driver_here, kind):
    machine(monkeypatch, "cpu")
    found = PLUGINS[kind](driver_here).status()
    expected = f"torch 2.13.0 is a cpu build, and this machine shows no {MAKERS[kind]} GPU"
    assert (found.usable, found.reason) == (False, expected)


@both
def test_the_right_build_without_a_gpu_is_not_usable(monkeypatch, driver_here, kind):
    machine(monkeypatch, kind, ("other",))
    found = PLUGINS[kind](driver_here).status()
    expected = f"this machine shows no {MAKERS[kind]} GPU"
    assert (found.usable, found.reason) == (False, expected)


@both
def test_without_torch_the_reason_says_what_to_install(monkeypatch, driver_here, kind):
    machine(monkeypatch, kind, (VENDORS[kind],), installed=False)
    found = PLUGINS[kind](driver_here).status()
    assert not found.usable
    assert found.reason.startswith("torch is not installed: install a "), found.reason


@both
def test_a_broken_torch_is_the_reason(monkeypatch, driver_here, kind):
    machine(monkeypatch, None, (VENDORS[kind],))
    assert PLUGINS[kind](driver_here).status().reason == "torch/version.py is broken"


@pytest.mark.parametrize(
    ("kind", "file", "remedy"),
    [("cuda", "/dev/nvidiactl", "load NVIDIA's driver"), ("rocm", "/dev/kfd", "--device=/dev/kfd")],
)
def test_a_gpu_without_its_driver_says_which_file_is_missing(
    monkeypatch, tmp_path, kind, file, remedy
):
    machine(monkeypatch, kind, (VENDORS[kind],))
    found = PLUGINS[kind](Tree(tmp_path)).status()
    assert not found.usable
    assert f"no {file}" in found.reason, found.reason
    assert remedy in found.reason, found.reason


def test_a_kfd_that_may_not_be_opened_names_the_groups(monkeypatch, driver_here):
    machine(monkeypatch, "rocm", ("amd",))
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    found = RocmPlugin(driver_here).status()
    assert not found.usable
    assert "render and video" in found.reason, found.reason


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (kind, layer_name)
        for kind in ("cuda", "rocm")
        for layer in RUNTIMES[kind].layers
        for layer_name in layer.variables
    ],
)
@pytest.mark.parametrize("value", ["", "-1", " -1,0", ",0", "3"])
def test_a_mask_that_hides_every_gpu_is_the_reason(monkeypatch, driver_here, kind, name, value):
    machine(monkeypatch, kind, (VENDORS[kind],))
    monkeypatch.setenv(name, value)
    found = PLUGINS[kind](driver_here).status()
    assert not found.usable, f"{name}={value!r} leaves the backend usable with no device"
    assert found.reason.startswith(f"{name}={value!r} hides every GPU"), found.reason


@both
@pytest.mark.parametrize("value", ["0", "0,-1", "GPU-1,GPU-2", "0,3"])
def test_a_mask_that_names_a_device_hides_not_all(monkeypatch, driver_here, kind, value):
    machine(monkeypatch, kind, (VENDORS[kind],))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert PLUGINS[kind](driver_here).status().usable


@both
def test_two_vendors_in_one_machine_are_decided_by_the_build(monkeypatch, driver_here, kind):
    forget(monkeypatch)
    machine(monkeypatch, kind, ("amd", "nvidia", "nvidia"))
    use_plugins(monkeypatch, CudaPlugin(driver_here), RocmPlugin(driver_here), FakePlugin("cpu"))
    assert registry.resolve() == kind, f"the {kind} build chose {registry.resolve()}"


def test_two_vendors_and_a_torch_for_neither_run_on_the_cpu(monkeypatch, driver_here):
    forget(monkeypatch)
    machine(monkeypatch, "cpu", ("amd", "nvidia"))
    use_plugins(monkeypatch, CudaPlugin(driver_here), RocmPlugin(driver_here), FakePlugin("cpu"))
    assert registry.resolve() == "cpu"
    reasons = {name: status.reason for name, status in registry.statuses().items()}
    assert "cannot use 1 NVIDIA GPU" in reasons["cuda"], reasons
    assert "cannot use 1 AMD GPU" in reasons["rocm"], reasons


def test_the_other_vendors_build_is_an_error_with_both_reasons(monkeypatch, driver_here):
    forget(monkeypatch)
    machine(monkeypatch, "cuda", ("amd",))
    use_plugins(monkeypatch, CudaPlugin(driver_here), RocmPlugin(driver_here), FakePlugin("cpu"))
    with pytest.raises(BackendNotFound, match=r"1 GPU.s. of amd") as caught:
        registry.resolve()
    assert "install a ROCm build of torch" in str(caught.value), str(caught.value)
    assert "shows no NVIDIA GPU" in caught.value.reasons["cuda"], caught.value.reasons


# --- counting


def loaded_torch(monkeypatch, *, initialized, count, opened=0):
    cuda = SimpleNamespace(is_initialized=lambda: initialized, device_count=lambda: count)
    # torch 2.11 counts by NVML also after the driver was opened; what it opened is below
    driver = SimpleNamespace(_cuda_getDeviceCount=lambda: opened)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda, _C=driver))


@both
def test_an_initialised_torch_counts_itself(monkeypatch, kind):
    loaded_torch(monkeypatch, initialized=True, count=8, opened=1)
    plugin = PLUGINS[kind]()
    monkeypatch.setattr(plugin, "count_without_opening", lambda: pytest.fail("asked again"))
    assert plugin.count() == 1, "NVML's count, and not that of the driver"


@both
def test_where_nothing_else_counts_a_child_does_once(monkeypatch, kind):
    loaded_torch(monkeypatch, initialized=False, count=99)
    asked = []

    def answer(module, function, arguments=(), *, limit_s):
        asked.append((module, function, arguments))
        return [["0000:05:00.0", None]] * 3, ""

    monkeypatch.setattr("portagpu.base.subprocesses.call", answer)
    plugin = PLUGINS[kind]()
    monkeypatch.setattr(plugin, "count_without_opening", lambda: None)
    assert (plugin.count(), plugin.count()) == (3, 3)
    expected = ("portagpu_torch_gpu.device", "addresses", (f"portagpu_{kind}.backend",))
    assert asked == [expected], f"{len(asked)} children were asked"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    plugin.count()
    assert len(asked) == 2, "the count under other masks is the former one"


@pytest.mark.torch
@both
def test_what_a_process_prepared_its_ranks_need_not_ask(monkeypatch, kind):
    torch = pytest.importorskip("torch")
    plugin, asked = PLUGINS[kind](), []
    monkeypatch.setattr(plugin, "count_without_opening", lambda: None)
    monkeypatch.setattr(
        "portagpu.base.subprocesses.call",
        lambda *a, **o: asked.append(a) or ([[None, None]] * 2, ""),
    )
    plugin.prepare()
    assert f"portagpu_{kind}.backend" in sys.modules, "a rank would import the backend itself"
    assert not torch.cuda.is_initialized(), "preparing opened a device"
    assert (plugin.count(), len(asked)) == (2, 1), f"{len(asked)} children were asked"


class Nvml:
    """libnvidia-ml.so.1 as far as a count asks it; names, numbers and errors are nvml.h's."""

    SUCCESS, UNINITIALIZED, NOT_SUPPORTED = 0, 1, 3

    def __init__(self, *modes, broken=""):
        self.modes, self.broken, self.open = modes, broken, 0

    def nvmlInit_v2(self):  # noqa: N802 - the library's name
        self.open += 1
        return 9 if self.broken == "nvmlInit_v2" else self.SUCCESS

    def nvmlShutdown(self):  # noqa: N802 - the library's name
        self.open -= 1
        return self.SUCCESS

    def nvmlDeviceGetCount_v2(self, count):  # noqa: N802 - the library's name
        count._obj.value = len(self.modes)
        return 999 if self.broken == "nvmlDeviceGetCount_v2" else self.SUCCESS

    def nvmlDeviceGetHandleByIndex_v2(self, index, handle):  # noqa: N802 - the library's name
        handle._obj.value = index + 1
        return self.SUCCESS

    def nvmlDeviceGetMigMode(self, handle, current, pending):  # noqa: N802 - the library's name
        found = self.modes[handle.value - 1]
        if found is None:
            return self.NOT_SUPPORTED
        current._obj.value = pending._obj.value = found
        return self.SUCCESS


@pytest.mark.parametrize(
    ("modes", "counted"),
    [((None, None), 4), ((0, 0), 4), ((0, 1), None), ((1, 1), None), ((None, 1), None)],
    ids=["no MIG", "off", "one cut", "all cut", "an older one too"],
)
def test_cuda_counts_through_torch_where_nvml_counts_what_cuda_shows(monkeypatch, modes, counted):
    loaded_torch(monkeypatch, initialized=False, count=4)
    nvml = Nvml(*modes)
    monkeypatch.setattr("ctypes.CDLL", lambda name: nvml)
    assert CudaPlugin().count_without_opening() == counted
    assert nvml.open == 0, "NVML stays open"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1")
    assert CudaPlugin().count_without_opening() is None, "torch would open the driver for MIG"


def test_a_count_of_nothing_is_left_to_the_driver_which_says_why(monkeypatch):
    loaded_torch(monkeypatch, initialized=False, count=0)
    monkeypatch.setattr("ctypes.CDLL", lambda name: Nvml(None))
    assert CudaPlugin().count_without_opening() is None


@pytest.mark.parametrize("nvml", ["missing", "nvmlInit_v2", "nvmlDeviceGetCount_v2", "old"])
def test_cuda_does_not_let_torch_open_the_driver_where_nvml_does_not_answer(monkeypatch, nvml):
    loaded_torch(monkeypatch, initialized=False, count=4)

    def load(name):
        if nvml == "missing":
            raise OSError(f"{name}: cannot open shared object file")
        return SimpleNamespace() if nvml == "old" else Nvml(None, broken=nvml)

    monkeypatch.setattr("ctypes.CDLL", load)
    assert CudaPlugin().count_without_opening() is None


def kfd_machine(root, *, partitions=1):
    """One AMD GPU in a KFD tree, with the device files of its partitions."""
    nodes = root / "sys/class/kfd/kfd/topology/nodes"
    (root / "dev/dri").mkdir(parents=True)
    for index in range(partitions):
        folder = nodes / str(index + 1)
        folder.mkdir(parents=True)
        fields = {
            "simd_count": 152,
            "simd_per_cu": 4,
            "vendor_id": 0x1002,
            "location_id": 0x500,
            "gfx_target_version": 90402,
            "unique_id": 7,
            "drm_render_minor": 128 + index,
        }
        text = "".join(f"{key} {value}\n" for key, value in fields.items())
        (folder / "properties").write_text(text)
        (root / f"dev/dri/renderD{128 + index}").touch()


@pytest.mark.parametrize("partitions", [1, 8])
def test_rocm_counts_the_partitions_that_it_may_open(monkeypatch, tmp_path, partitions):
    kfd_machine(tmp_path, partitions=partitions)
    monkeypatch.setattr(os, "access", lambda path, mode: True)
    assert RocmPlugin(Tree(tmp_path)).count_without_opening() == partitions
    monkeypatch.setattr(os, "access", lambda path, mode: str(path).endswith("renderD128"))
    assert RocmPlugin(Tree(tmp_path)).count_without_opening() == 1, "it counts what it may not open"


def eight_gpus(vendor):
    """The machine of the truth table."""
    return tuple(
        PciGpu(vendor, uuid=each.uuid, device_file=f"/dev/dri/renderD{128 + each.index}")
        for each in DEVICES
    )


@pytest.mark.parametrize("row", ROCM_ROWS, ids=lambda row: row.name)
def test_what_rocm_counts_alone_is_what_the_truth_table_has(monkeypatch, row):
    monkeypatch.setattr("portagpu.facts.host.gpus_on_machine", lambda root="/": eight_gpus("amd"))
    monkeypatch.setattr(os, "access", lambda path, mode: True)
    for name, value in row.environment.items():
        monkeypatch.setenv(name, value)
    found = RocmPlugin().count_without_opening()
    agreed = len(row.shows) == row.torch and row.shows
    assert found in (None, len(row.shows)), f"{found} are counted"
    if not row.problems and agreed:
        assert found == row.torch, "a mask without a problem is left to a child process"
    if not agreed:
        assert found is None, "the runtime and torch disagree, and neither was asked"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_status_is_usable_exactly_where_the_runtime_shows_a_device(
    monkeypatch, driver_here, row
):
    machine(monkeypatch, row.runtime)
    gpus = eight_gpus(VENDORS[row.runtime])
    monkeypatch.setattr("portagpu.facts.host.gpus_on_machine", lambda root="/": gpus)
    for name, value in row.environment.items():
        monkeypatch.setenv(name, value)
    found = PLUGINS[row.runtime](driver_here).status()
    assert found.usable == bool(row.shows), found.reason
    plain = f"torch 2.13.0 is a {row.runtime} build for 8 {MAKERS[row.runtime]} GPUs"
    if not row.shows:
        assert "every GPU" in found.reason, found.reason
        assert any(name in found.reason for name in row.environment), "no variable is named"
    elif found.reason != plain:
        assert found.reason.startswith(f"{plain}; "), found.reason
        assert row.problems - ADVICE, f"nothing is wrong, and it says: {found.reason}"
    else:
        assert not row.problems - ADVICE, f"{row.problems} are not said"
    assert "\n" not in found.reason, "more than one line"


@both
def test_a_uuid_that_the_kernels_files_do_not_show_hides_nothing(monkeypatch, driver_here, kind):
    machine(monkeypatch, kind, (VENDORS[kind],))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-c333")
    assert PLUGINS[kind](driver_here).status().usable, "only the runtime knows that UUID"


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"ROCR_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "0"}, "ROCR_VISIBLE_DEVICES=''"),
        ({"ROCR_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "-1"}, "HIP_VISIBLE_DEVICES='-1'"),
        (
            {"ROCR_VISIBLE_DEVICES": "2,3", "CUDA_VISIBLE_DEVICES": "2,3"},
            "ROCR_VISIBLE_DEVICES='2,3' and CUDA_VISIBLE_DEVICES='2,3' together hide every GPU",
        ),
    ],
)
def test_the_masks_that_hide_every_device_are_named(
    monkeypatch, driver_here, environment, expected
):
    machine(monkeypatch, "rocm", ("amd",) * 4)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    found = RocmPlugin(driver_here).status()
    assert not found.usable
    assert found.reason.startswith(expected), found.reason


@pytest.mark.torch
@both
def test_a_torch_that_cannot_count_says_why(monkeypatch, driver_here, kind):
    forget(monkeypatch)
    machine(monkeypatch, kind, (VENDORS[kind],))
    plugin = PLUGINS[kind](driver_here)
    monkeypatch.setattr(plugin, "count_without_opening", lambda: None)
    monkeypatch.setattr(
        "portagpu.base.subprocesses.call", lambda *a, **o: (None, "torch failed: no such mask")
    )
    use_plugins(monkeypatch, plugin)
    with pytest.raises(BackendNotFound, match="no such mask") as caught:
        registry.backend()
    assert "\n" not in str(caught.value), "more than one line"
    plugin.prepare()


def test_rocm_without_files_is_unknown_and_not_none(tmp_path):
    assert RocmPlugin(Tree(tmp_path)).count_without_opening() is None


# --- asking in a child


@pytest.mark.processes(1, "the child is what is tested")
def test_a_child_answers_and_what_it_prints_is_not_an_answer(stand_in):
    stand_in("talks", "def f(a, b):\n    print('noise')\n    return {'sum': a + b}")
    assert call("talks", "f", (1, 2), limit_s=60) == ({"sum": 3}, "")


@pytest.mark.processes(1, "the child is what is tested")
@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("def f():\n    raise RuntimeError('driver not loaded')", "driver not loaded"),
        ("import nowhere_to_be_found", "nowhere_to_be_found"),
        ("def f():\n    import os; os.abort()", "SIGABRT"),
        ("def f():\n    import os; os.kill(os.getpid(), 11)", "SIGSEGV"),
        ("def f():\n    import sys; sys.exit(3)", "ends ended with status 3"),
        ("def f():\n    import os; os._exit(0)", "gave no answer"),
        ("def f():\n    return object()", "not JSON serializable"),
    ],
    ids=["raises", "missing", "aborts", "crashes", "exits", "vanishes", "unspeakable"],
)
def test_what_ends_a_child_is_a_reason(stand_in, source, reason):
    stand_in("ends", source)
    value, problem = call("ends", "f", limit_s=60)
    assert value is None
    assert reason in problem, problem
    assert "\n" not in problem, "more than one line"


@pytest.mark.processes(1, "the child is what is tested")
def test_a_child_that_hangs_is_ended_with_what_it_started(stand_in, tmp_path):
    stand_in(
        "hangs",
        f"""
        import subprocess, sys, time
        def f():
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            open({str(tmp_path / "pid")!r}, "w").write(str(child.pid))
            time.sleep(600)
        """,
    )
    value, problem = call("hangs", "f", limit_s=2)  # allowed: what it limits never ends
    assert value is None
    assert problem.startswith("hangs did not answer within 2 s")
    pid = int((tmp_path / "pid").read_text())

    def has_ended():
        words = (Tree().text(f"proc/{pid}/stat") or "").rpartition(")")[2].split()
        return not words or words[0] in "ZX"

    wait_until(has_ended, "the hanging child's own child is still running")


# --- as installed

"""What a real CUDA build of torch does on a machine without a GPU: ``tox run -e cuda-build``.

No fake has a part in it but the kernel's files and, for one test, NVML. Elsewhere all of it is
skipped: a build for the CPU has none of these ways, and on a machine with a GPU they lead further.
"""

from __future__ import annotations

import shutil
import subprocess

import pytest

torch = pytest.importorskip("torch")

from portagpu.base.errors import BackendNotFound
from portagpu.checks.bringup.checks import identity
from portagpu.checks.bringup.gates import load_gates
from portagpu.checks.bringup.run import Context, MachineUnderTest
from portagpu.devices import registry
from portagpu.facts.host import Tree, gpus_on_machine
from portagpu.runs.results.run import Verdict
from portagpu.runs.world import Ranks
from portagpu_cuda.plugin import CudaPlugin
from tests.support import fake_torch, host_trees
from tests.support.registry_state import forget, use_plugins

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(
        torch.version.cuda is None or bool(gpus_on_machine()),
        reason="needs torch's CUDA build on a machine without a GPU",
    ),
]


@pytest.fixture
def dead_driver(monkeypatch, tmp_path):
    """The plugin on a machine with a GPU and a control device, and no driver that answers."""
    files = host_trees.pci_device("0000:05:00.0", "0x030200", "0x10de", "0x2335")
    host_trees.build(tmp_path, {**files, "dev/nvidiactl": ""})
    plugin = CudaPlugin(Tree(tmp_path))
    forget(monkeypatch)
    use_plugins(monkeypatch, plugin)
    return plugin


def test_a_dead_driver_is_reported_in_torchs_own_words(dead_driver):
    assert dead_driver.status().usable, "the premise: the kernel's files show a GPU"
    with pytest.raises(BackendNotFound, match="Found no NVIDIA driver on your system") as caught:
        registry.backend("cuda")
    assert "\n" not in str(caught.value), "more than one line"
    assert not torch.cuda.is_initialized(), "the driver was opened in this process"


def test_bring_up_fails_on_a_dead_driver_and_names_it(dead_driver):
    context = Context(MachineUnderTest(dead_driver.name, Ranks()), load_gates()[1], "quick")
    (result,) = identity.check(context)
    assert (result.id, result.verdict) == ("identity/device", Verdict.FAIL), result
    assert "Found no NVIDIA driver" in result.reason, result.reason


NVML = """
static int none[2];
int nvmlInit(void) { return 0; }
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{ *device = &none[index]; return 0; }
int nvmlDeviceGetMigMode(void *device, unsigned *current, unsigned *pending)
{ *current = *pending = MODE && device == &none[1]; return 0; }
"""
COUNTS = """
import torch
from portagpu_cuda.plugin import CudaPlugin
plugin = CudaPlugin()
print(torch.cuda.device_count(), plugin.count_without_opening(), torch.cuda.is_initialized())
"""


@pytest.mark.parametrize("mode", [0, 1], ids=["whole GPUs", "one of them cut"])
def test_what_nvml_counts_is_not_the_number_of_devices_where_mig_cuts_one(child, tmp_path, mode):
    compiler = shutil.which("cc")
    assert compiler, "a C compiler builds the stand-in of NVML"
    source = tmp_path / "nvml.c"
    source.write_text(NVML.replace("MODE", str(mode)), encoding="utf-8")
    library = tmp_path / "libnvidia-ml.so.1"
    made = [compiler, "-shared", "-fPIC", "-o", str(library), str(source)]
    subprocess.run(made, check=True, timeout=60)
    found = child("-c", COUNTS, environment={"LD_LIBRARY_PATH": str(tmp_path)}).ok()
    # torch itself asks NVML alone, and would have two devices
    assert found.split() == ["2", "None" if mode else "2", "False"], found


def test_a_range_stands_in_code_that_is_compiled_whole():
    from portagpu_torch_gpu.device import TorchGpu

    handle = object.__new__(TorchGpu)

    def twice(x):
        with handle.annotate("twice"):
            return x * 2

    assert twice(torch.ones(2)).tolist() == [2.0, 2.0], "torch's nvtx does not take the range"
    compiled = torch.compile(twice, fullgraph=True, backend="eager")
    assert compiled(torch.ones(2)).tolist() == [2.0, 2.0]


def test_what_the_fake_build_replaces_is_there(monkeypatch):
    real = {name for name in dir(torch._C) if name.startswith(("_cuda", "_Cuda", "_CUDA"))}
    replaced: set[str] = set()

    def note(owner, name, *value, **options):
        if owner is torch._C:
            replaced.add(name)

    monkeypatch.setattr(monkeypatch, "setattr", note)
    fake_torch._functions(monkeypatch, fake_torch.FakeDriver("cuda", []))
    monkeypatch.undo()
    missing = {name for name in replaced if name.startswith("_cuda")} - real
    assert replaced, "nothing below torch._C is replaced"
    assert not missing, f"no build of torch has {sorted(missing)}"

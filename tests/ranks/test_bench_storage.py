"""Direct storage: planned by what a backend names, measured on the CPU, and refused in words."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from portagpu.base.errors import Unsupported
from portagpu.runs.results.run import Result, Verdict
from portagpu.suites.performance.cases import plan
from portagpu.suites.performance.timing import Effort, take_turns
from portagpu_cuda.libraries import STORAGE as CUFILE
from portagpu_cuda.libraries import counts_of
from portagpu_rocm.libraries import STORAGE as HIPFILE
from tests.conftest import ROOT
from tests.process.test_bench_suite import CPU, GPU

if TYPE_CHECKING:
    from portagpu.runs.world import Ranks

FAULTS = ROOT / "tests/support/bench_faults.py"
SIZE = 1 << 16
# NVIDIA, GPUDirect Storage Troubleshooting Guide, "Displaying GDS NVIDIA FS Driver Statistics",
# with numbers in place of some zeros
STATISTICS = """GDS Version: 1.0.0.71
NVFS statistics(ver: 4.0)
NVFS Driver(version: 2:7:47)
Mellanox PeerDirect Supported: True
IO stats: Enabled, peer IO stats: Enabled
Logging level: info

Active Shadow-Buffer (MiB): 0
Active Process: 0
Reads                           : n=5 ok=5 err=0 readMiB=640 io_state_err=0
Reads                           : Bandwidth(MiB/s)=0 Avg-Latency(usec)=0
Sparse Reads : n=6 io=0 holes=0 pages=0
Writes                          : n=1 ok=1 err=0 writeMiB=3 io_state_err=0
        pg-cache=0 pg-cache-fail=0 pg-cache-eio=0
Ops : Read=0 Write=0
"""


def test_it_is_planned_where_the_backend_names_it() -> None:
    for without in plan(["storage"], CPU, Effort.QUICK, 2, None):
        assert without.absent is not None
        assert without.absent.verdict is Verdict.SKIP
    named = replace(GPU, direct_storage=dict(CUFILE.environment))
    found = plan(["storage"], named, Effort.FULL, 2, None)
    assert [case.id for case in found] == ["storage/read", "storage/write"]
    assert all(case.absent is None for case in found)
    assert dict(found[0].environment) == {"CUFILE_ALLOW_COMPAT_MODE": "false"}


def test_the_way_through_the_host_is_off_by_the_vendors_variable() -> None:
    for storage in (CUFILE, HIPFILE):
        ((name, value),) = storage.environment.items()
        assert storage.proof.startswith(f"{name}={value} ")


def test_the_drivers_counts_are_read_where_they_are_on() -> None:
    assert counts_of(STATISTICS) == {"read_bytes": 640 << 20, "write_bytes": 3 << 20}
    assert counts_of(STATISTICS.replace("IO stats: Enabled,", "IO stats: Disabled,")) == {}
    assert counts_of("") == {}


def test_each_of_two_calls_goes_first_as_often_and_is_prepared() -> None:
    said: list[str] = []
    stopwatch = SimpleNamespace(time=lambda call, repeats: call() * repeats)
    calls = (lambda: said.append("one") or 1.0, lambda: said.append("two") or 3.0)
    taken = take_turns(stopwatch, calls, (2, 4), 2, lambda: said.append("-"))  # type: ignore[arg-type]
    assert taken == ([1.0, 1.0], [3.0, 3.0])
    assert said == ["-", "two", "-", "one", "-", "one", "-", "two"]


def measured(ranks: Ranks, name: str, fault: str | None = None) -> Result:
    pytest.importorskip("torch")
    from portagpu.suites.performance import MeasuredDevice, open_device
    from portagpu.suites.performance.case_runner import BenchContext

    device = open_device(ranks, "cpu")
    assert isinstance(device, MeasuredDevice)
    (case,) = plan([name], device, Effort.QUICK, 2, None)
    case = replace(case, arguments={**case.arguments, "size": SIZE})
    if fault is not None:
        case = replace(case, function=f"{FAULTS}:{fault}")
    found = BenchContext(ranks, device, Effort.QUICK, None).result(case)
    if fault != "storage_in_memory" and found.verdict is Verdict.SKIP:
        assert "TMPDIR" in found.reason or "/proc/self/io" in found.reason
        pytest.skip(found.reason)
    return found


@pytest.mark.torch
@pytest.mark.parametrize("way", ["read", "write"])
def test_a_cpu_moves_a_file_past_the_cache_and_says_what_the_kernel_counted(
    ranks: Ranks, way: str
) -> None:
    found = measured(ranks, f"storage/{way}")
    assert found.verdict in (Verdict.UNVERIFIED, Verdict.INCONCLUSIVE), found.reason
    assert found.value is not None
    assert found.value > 0
    assert found.extra["library"] == "O_DIRECT"
    assert found.extra["bytes"] == SIZE
    other = "write" if way == "read" else "read"
    assert found.extra["counted"] == {f"{way}_bytes": SIZE, f"{other}_bytes": 0}
    assert found.extra["ordinary_gb_per_s"] > 0
    assert found.extra["over_ordinary"] > 0
    assert found.extra["file_system"]


@pytest.mark.torch
@pytest.mark.parametrize("way", ["read", "write"])
def test_a_wrong_byte_keeps_no_number(ranks: Ranks, way: str) -> None:
    found = measured(ranks, f"storage/{way}", "storage_that_flips_a_bit")
    assert found.verdict is Verdict.FAIL, found.reason
    assert f"{way} of {SIZE} bytes: byte 4711 is" in found.reason
    assert found.value is None


@pytest.mark.torch
def test_a_folder_in_memory_is_skipped_and_says_what_to_do(ranks: Ranks) -> None:
    found = measured(ranks, "storage/read", "storage_in_memory")
    assert found.verdict is Verdict.SKIP
    assert "set TMPDIR" in found.reason


@pytest.mark.torch
@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="no /dev/shm")  # noqa: S108
def test_files_in_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from portagpu.base.files import Scratch
    from portagpu_cpu.storage import STORAGE

    monkeypatch.setenv("TMPDIR", "/dev/shm")  # noqa: S108
    with Scratch("storage", Path("/dev/shm")) as folder:  # noqa: S108
        (folder / "bytes").write_bytes(bytes(SIZE))
        with pytest.raises(Unsupported, match="TMPDIR"):
            STORAGE.open(torch.device("cpu"), folder / "bytes", SIZE)


class Gds(ModuleType):
    """torch.cuda.gds over an ordinary file, as its source has it; ``refused`` is what it raises."""

    def __init__(self, refused: str = "") -> None:
        super().__init__("torch.cuda.gds")
        self.registered = 0
        this = self

        class GdsFile:
            def __init__(self, filename: str, flags: int) -> None:
                self.fd = os.open(filename, flags)

            def __del__(self) -> None:
                os.close(self.fd)

            def load_storage(self, storage, offset=0):
                if refused:
                    raise RuntimeError(f"cuFileRead failed: {refused}")
                this.torch_bytes(storage).copy_(this.of_file(self.fd, storage.nbytes(), offset))

            def save_storage(self, storage, offset=0):
                os.pwrite(self.fd, bytes(this.torch_bytes(storage).tolist()), offset)

        self.GdsFile = GdsFile

    @staticmethod
    def torch_bytes(storage):
        import torch

        return torch.empty(0, dtype=torch.uint8).set_(storage)

    @staticmethod
    def of_file(descriptor, size, offset):
        import torch

        return torch.frombuffer(bytearray(os.pread(descriptor, size, offset)), dtype=torch.uint8)

    def gds_register_buffer(self, storage) -> None:
        self.registered += 1

    def gds_deregister_buffer(self, storage) -> None:
        self.registered -= 1


@pytest.mark.torch
def test_a_gpus_file_is_read_written_and_given_back(monkeypatch, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    gds = Gds()
    monkeypatch.setattr(torch.cuda, "gds", gds)
    monkeypatch.setitem(__import__("sys").modules, "torch.cuda.gds", gds)
    path = tmp_path / "bytes"
    path.write_bytes(bytes(range(256)))
    file = CUFILE.open(torch.device("cpu"), path, 256)
    assert file.memory.tolist() == list(range(256))
    file.memory.copy_(file.memory.flip(0))
    file.write()
    assert path.read_bytes() == bytes(range(255, -1, -1))
    assert gds.registered == 1
    file.close()
    file.close()
    assert gds.registered == 0


@pytest.mark.torch
def test_what_cannot_go_directly_is_one_line(monkeypatch, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "bytes"
    path.write_bytes(bytes(256))
    # this build of torch, on a CPU, has the module and no library for it
    with pytest.raises(Unsupported, match=r"hipFile does not read .* not supported on this"):
        HIPFILE.open(torch.device("cpu"), path, 256)
    gds = Gds("GPUDirect Storage not supported on current file")
    monkeypatch.setattr(torch.cuda, "gds", gds)
    monkeypatch.setitem(__import__("sys").modules, "torch.cuda.gds", gds)
    with pytest.raises(Unsupported, match=r"cuFile does not .*not supported on current file"):
        CUFILE.open(torch.device("cpu"), path, 256)
    assert gds.registered == 0

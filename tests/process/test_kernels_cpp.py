"""The C++ kernels' numbers at warp sizes 32 and 64: their own sources, over the lanes of a host."""

from __future__ import annotations

import contextlib
import sys
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
import numpy as np

from portagpu.base.errors import MissingDependency, Unsupported
from portagpu.devices.discovery import toolchain_for
from portagpu.devices.registry import backend
from portagpu.devices.sizing import Sizing
from portagpu.facts.arch import Arch
from portagpu.train.kernels import cpp
from tests.support import lane_shim, suite_harness
from tests.support.looped import looped

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(lane_shim.COMPILER is None, reason="neither g++ nor clang++ is here"),
]

SEED = 20261121
NUMBERS = (torch.float32, torch.float64, torch.int32, torch.int64)
SHAPES = (
    (0,),
    (1,),
    (7, 0),
    (0, 5),
    (3, 1),
    (5, 31),
    (5, 32),
    (3, 33),
    (2, 3, 63),
    (4, 64),
    (2, 65),
)
LENGTHS = (0, 1, 31, 32, 33, 63, 64, 65, 127, 1000, 40_001)


class FakeCupy:
    """CuPy's names, over kernels that were built for the host: 64-bit words for every argument."""

    def __init__(self, warp_size: int, *, is_hip: bool) -> None:
        self.backward = False
        self.launches: list[tuple[str, int, int]] = []
        self.streams: list[tuple[int, int]] = []
        self._warp_size = warp_size
        self.cuda = SimpleNamespace(
            runtime=SimpleNamespace(is_hip=is_hip),
            Device=contextlib.nullcontext,
            Stream=SimpleNamespace(from_external=self._stream),
        )

    def _stream(self, stream):
        self.streams.append(stream.__cuda_stream__())
        return contextlib.nullcontext()

    def RawModule(self, *, code, options):  # noqa: N802 - CuPy's name
        assert '#include "portagpu.h"' not in code
        assert options == ("--std=c++17",)
        return self

    def get_function(self, name):
        def launch(grid, block, arguments):
            self.launches.append((name, *grid, *block))
            lane_shim.kernels(self._warp_size).launch(
                name, *grid, *block, arguments, backward=self.backward
            )

        return launch


@pytest.fixture(params=lane_shim.WARP_SIZES, ids=lambda size: f"warp{size}")
def gpu(request, monkeypatch):
    """A device whose tensors are the host's, with warps of 32 or 64."""
    warp_size = request.param
    arch = {32: Arch("nvidia", "sm_90", 32), 64: Arch("amd", "gfx942", 64)}[warp_size]
    cupy = FakeCupy(warp_size, is_hip=arch.vendor == "amd")
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    found = toolchain_for(arch.vendor)
    assert found is not None
    return SimpleNamespace(
        name="fake",
        arch=arch,
        plugin=SimpleNamespace(toolchain=lambda: found[1]),
        device=torch.device("cpu"),
        sizing=Sizing(warp_size, 2, 1024, 2048, 16),
        current_stream=lambda: SimpleNamespace(cuda_stream=1234),
        cupy=cupy,
    )


def numbers(shape, dtype):
    """Random numbers; floats are whole and small enough that every order of additions is exact."""
    generator = torch.Generator().manual_seed(SEED)
    if dtype.is_floating_point:
        return torch.randint(-100, 101, shape, generator=generator).to(dtype)
    return torch.randint(-(2**30), 2**30, shape, generator=generator, dtype=dtype)


def same(found, x, reduced):
    """The same numbers, shape and dtype as ``reduced`` of float64 or int64 gives."""
    expected = reduced(x.double() if x.is_floating_point() else x.long())
    assert found.dtype == (x.dtype if x.is_floating_point() else torch.int64)
    assert torch.equal(found, expected.to(found.dtype))


@looped("dtype", NUMBERS)
@looped("shape", SHAPES)
def test_rows_are_scanned(gpu, shape, dtype):
    x = numbers(shape, dtype)
    same(cpp.scan_rows(x, gpu=gpu), x, lambda wide: wide.cumsum(-1))


@looped("share", [0.0, 0.3, 1.0])
@looped("shape", SHAPES)
def test_flags_are_ranked_as_plain_counting_does(gpu, shape, share):
    flags = torch.rand(shape, generator=torch.Generator().manual_seed(SEED)) < share
    expected = []
    for row in flags.reshape(-1, shape[-1]).tolist() if flags.numel() else []:
        before = 0
        for flag in row:
            expected.append(before)
            before += flag
    found = cpp.rank_rows(flags, gpu=gpu)
    assert found.shape == flags.shape
    assert found.dtype == torch.int64
    assert found.flatten().tolist() == expected


def test_ranks_are_where_set_flags_move_to(gpu):
    values = torch.arange(500)
    flags = values % 3 == 0
    kept = torch.full((int(flags.sum()),), -1)
    kept[cpp.rank_rows(flags, gpu=gpu)[flags]] = values[flags]
    assert torch.equal(kept, values[flags])


@looped("backward", [False, True])
@looped("dtype", NUMBERS)
@looped("n", LENGTHS)
def test_all_is_summed_in_any_order_of_threads(gpu, n, dtype, backward):
    gpu.cupy.backward = backward
    x = numbers((n,), dtype)
    same(cpp.sum_all(x, gpu=gpu), x, lambda wide: wide.sum())


@looped("bins", [1, 7, 2048, 2049])
@looped("dtype", [torch.int32, torch.int64])
@looped("n", [0, 1, 65, 20_001])
def test_values_are_counted(gpu, n, dtype, bins):
    generator = np.random.default_rng(SEED)
    values = torch.from_numpy(generator.integers(0, bins, n)).to(dtype)
    found = cpp.histogram(values, bins, gpu=gpu)
    assert found.dtype == torch.int64
    assert found.tolist() == np.bincount(values.numpy(), minlength=bins).tolist()


@pytest.mark.parametrize("bins", [np.int64(5), torch.tensor(5)], ids=["numpy", "torch"])
def test_bins_may_be_any_integer(gpu, bins):
    values = torch.tensor([0, 4, 4])
    assert cpp.histogram(values, bins, gpu=gpu).tolist() == [1, 0, 0, 0, 2]


def test_a_value_outside_raises_as_an_index_does(gpu):
    values = torch.tensor([0, 4, 5, -1, 2**40, 4])
    with pytest.raises(IndexError, match="3 of 6 values are outside 0 to 4"):
        cpp.histogram(values, 5, gpu=gpu)
    assert cpp.histogram(values, 5, check=False, gpu=gpu).tolist() == [1, 0, 0, 0, 2]


def test_large_values_do_not_overflow_where_torch_does_not(gpu):
    x = torch.full((70, 70), 2**31 - 1, dtype=torch.int32)
    assert cpp.sum_all(x, gpu=gpu).item() == 4900 * (2**31 - 1)
    assert cpp.sum_rows(x, gpu=gpu)[0].item() == 70 * (2**31 - 1)
    assert cpp.scan_rows(x, gpu=gpu)[0, -1].item() == 70 * (2**31 - 1)


def test_the_same_input_gives_the_same_bits(gpu):
    x = torch.randn(30_000, generator=torch.Generator().manual_seed(SEED))
    first = cpp.sum_all(x, gpu=gpu)
    gpu.cupy.backward = True
    assert torch.equal(first, cpp.sum_all(x, gpu=gpu))


def test_fractions_are_summed_within_the_bound_of_their_additions(gpu):
    x = torch.randn(2, 1000, generator=torch.Generator().manual_seed(SEED))
    bound = 1000 * torch.finfo(torch.float32).eps / 2 * x.double().abs().sum(-1)
    assert ((cpp.sum_rows(x, gpu=gpu) - x.double().sum(-1)).abs() <= bound).all()


def test_nothing_is_launched_for_nothing(gpu):
    # CuPy would start one block for a grid of 0
    cpp.sum_rows(torch.empty(0, 4), gpu=gpu)
    cpp.scan_rows(torch.empty(3, 0), gpu=gpu)
    cpp.rank_rows(torch.empty(0, dtype=torch.bool), gpu=gpu)
    cpp.histogram(torch.empty(0, dtype=torch.int64), 4, gpu=gpu)
    assert cpp.sum_all(torch.empty(0), gpu=gpu).item() == 0
    assert gpu.cupy.launches == []


def test_launches_go_to_the_current_stream_in_whole_warps(gpu):
    cpp.sum_all(torch.ones(10_000), gpu=gpu)
    assert gpu.cupy.streams == [(0, 1234)] * 2
    assert len(gpu.cupy.launches) == 2
    assert all(block % gpu.arch.warp_size == 0 for _, _, block in gpu.cupy.launches)


def test_arrays_of_others_are_read_in_place(gpu):
    values = np.arange(100, dtype=np.int32)
    assert cpp.sum_rows(values, gpu=gpu).item() == 4950


def test_input_is_left_as_it_was_and_gradients_are_not_recorded(gpu):
    x = numbers((5, 40), torch.float32).requires_grad_()
    before = x.detach().clone()
    assert not cpp.scan_rows(x, gpu=gpu).requires_grad
    assert torch.equal(x.detach(), before)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda gpu: cpp.sum_rows(torch.ones(4, 6).t(), gpu=gpu), ValueError, "contiguous"),
        (lambda gpu: cpp.sum_rows(torch.ones(4).half(), gpu=gpu), ValueError, "float16 has no"),
        (lambda gpu: cpp.sum_all(torch._neg_view(torch.ones(4)), gpu=gpu), ValueError, "negative"),
        (lambda gpu: cpp.sum_rows(torch.tensor(1.0), gpu=gpu), ValueError, "no dimension"),
        (lambda gpu: cpp.rank_rows(torch.ones(4), gpu=gpu), ValueError, "bool, uint8"),
        (lambda gpu: cpp.sum_all([1, 2], gpu=gpu), TypeError, "list is neither"),
        (lambda gpu: cpp.histogram(torch.ones(4).int(), 0, gpu=gpu), ValueError, "bins is 0"),
        (lambda gpu: cpp.sum_all(torch.ones(4, device="meta"), gpu=gpu), ValueError, "meta"),
    ],
)
def test_what_has_no_kernel_is_refused_in_one_line(gpu, call, error, words):
    with pytest.raises(error, match=words) as caught:
        call(gpu)
    assert "\n" not in str(caught.value)


def test_a_cpu_has_no_kernels_in_cpp():
    with pytest.raises(Unsupported, match="need a GPU"):
        cpp.sum_all(torch.ones(4), gpu=backend("cpu"))


def test_without_cupy_the_error_says_what_to_install(gpu, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    wanted = {"nvidia": "pip install 'cupy-cuda13x", "amd": "pip install 'cupy-rocm-7-0"}
    with pytest.raises(MissingDependency, match=wanted[gpu.arch.vendor]):
        cpp.sum_all(torch.ones(4), gpu=gpu)


def test_a_cupy_for_the_other_vendor_is_named(gpu):
    gpu.cupy.cuda.runtime.is_hip = not gpu.cupy.cuda.runtime.is_hip
    with pytest.raises(MissingDependency, match="another vendor"):
        cpp.sum_all(torch.ones(4), gpu=gpu)


def suites_cases():
    """The file of cases as the suite loads it."""
    suite_harness.everything()
    return sys.modules["portagpu_cases_test_kernels"]


@pytest.mark.parametrize("n", [1, 33, 65, 1000])
def test_the_suites_case_passes_over_the_lanes(gpu, n):
    suites_cases().test_portable_kernels_in_cpp(gpu, torch, n)


@pytest.mark.parametrize(
    ("function", "said"),
    [("scan_rows", "prefix sums of rows of 33"), ("rank_rows", "ranks of rows of 33")],
)
def test_the_suites_case_states_what_is_wrong(gpu, monkeypatch, function, said):
    right = getattr(cpp, function)
    monkeypatch.setattr(cpp, function, lambda *given, **options: right(*given, **options) + 1)
    with pytest.raises(AssertionError, match=said):
        suites_cases().test_portable_kernels_in_cpp(gpu, torch, 33)


@pytest.mark.parametrize(("blocks", "right"), [(8, True), (6, False)])
def test_the_suites_case_compares_the_drivers_occupancy(gpu, monkeypatch, blocks, right):
    """On sm_90: 2048 threads a unit, 65536 registers over 32 for each of 256 threads: 8 blocks."""
    kernel = SimpleNamespace(kernel=SimpleNamespace(ptr=7), num_regs=32, shared_size_bytes=0)
    asked = []
    driver = SimpleNamespace(
        occupancyMaxActiveBlocksPerMultiprocessor=lambda *given: asked.append(given) or blocks
    )
    gpu.cupy.cuda.driver = driver
    monkeypatch.setattr(FakeCupy, "get_function", lambda self, name: kernel)
    gpu.arch, gpu.target = Arch("nvidia", "sm_90", 32), None
    gpu.cupy.cuda.runtime.is_hip = False
    gpu.plugin.toolchain = lambda: toolchain_for("nvidia")[1]
    check = suites_cases().test_occupancy_is_the_drivers
    if right:
        check(gpu, "warp_scan", 256)
        assert asked == [(7, 256, 0)] * 4
    else:
        with pytest.raises(AssertionError, match="8 blocks a unit by our rule, 6 by the driver's"):
            check(gpu, "warp_scan", 256)

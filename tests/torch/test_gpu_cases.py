"""Cases of the suite against what GPUs and their libraries do, where a source says it.

Each stand-in does what its source states and nothing else; nothing here ran on a GPU.
"""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist

import portagpu as pg
from portagpu.devices.precision.products import wide_partial_sums
from portagpu.runs.results.run import Verdict
from portagpu.suites.conformance.cases import base_id
from tests.support import suite_harness

pytestmark = pytest.mark.torch


def function_of(case, name):
    """What the file of that case has under that name."""
    forms = (form for full, form in suite_harness.everything().items() if base_id(full) == case)
    return next(forms).function.__globals__[name]


class Hangs(BaseException):
    """Somebody waits for what never comes."""


class Nccl:
    """Two ranks over NCCL, of which the other one stops answering when ``others_go`` is called.

    A wait without a limit puts itself into the stream and returns, and only the device then waits;
    with one it raises (torch, ProcessGroupNCCL.cpp, ``WorkNCCL::wait``). A communicator connects at
    its first call of a kind, for which the host waits for the other rank (NCCL 2.22's release
    notes, NCCL_RUNTIME_CONNECT).
    """

    def __init__(self, monkeypatch):
        self.answers, self.stuck, self.connected = True, False, set()
        self.device = torch.device("cpu")
        replaced = {
            "new_group": lambda *a, **o: "group",
            "all_reduce": self.all_reduce,
            "isend": lambda tensor, other, group=None: self.start("send", True),
            "send": lambda tensor, other, group=None: self.start("send", False),
            "irecv": None,
            "batch_isend_irecv": lambda ops: [self.start(each, True) for each in ops],
            "P2POp": lambda op, tensor, other, group: "recv" if op is None else "send",
            "barrier": lambda group=None: None,
        }
        for name, value in replaced.items():
            monkeypatch.setattr(dist, name, value)

    def all_reduce(self, tensor, group=None, async_op=False):
        return self.start(("sum", tensor.numel()), async_op)

    def start(self, kind, async_op):
        if not self.answers and kind not in self.connected:
            raise Hangs(f"{kind} waits for the other rank to connect")
        self.connected.add(kind)
        self.stuck = self.stuck or not self.answers
        work = SimpleNamespace(wait=self.wait)
        return work if async_op else work.wait() and None

    def wait(self, limit=None):
        if self.stuck and limit is not None:
            raise dist.DistBackendError("Work WorkNCCL(...) timed out in blocking wait.")
        return True

    def synchronize(self):
        if self.stuck:
            raise Hangs("the device waits for the other rank")


@pytest.fixture
def nccl(monkeypatch):
    return Nccl(monkeypatch)


def rank_of(nccl, **more):
    return SimpleNamespace(rank=0, world=2, gpu=nccl, broke_group=False, **more)


def test_a_killed_rank_is_reported_where_only_a_wait_with_a_limit_raises(monkeypatch, nccl):
    run = function_of("failures/killed-rank-ends-the-collective", "_lose_rank_in_plain_group")
    # rank 1 dies after the ranks have connected
    monkeypatch.setattr(nccl, "synchronize", lambda: setattr(nccl, "answers", False))
    seconds = run(rank_of(nccl), victim=1)
    assert seconds is not None, "nothing was raised"


def test_crossed_sends_end_where_only_a_wait_with_a_limit_raises(monkeypatch, nccl):
    run = function_of("failures/crossed-sends-time-out", "_cross_sends")
    monkeypatch.setattr(nccl, "synchronize", lambda: setattr(nccl, "answers", False))
    rank = rank_of(nccl)
    assert run(rank)[0] == "DistBackendError"
    # the watchdog sleeps a minute over the aborted work before it ends its process
    assert rank.broke_group, "the ranks would wait to leave a group that is aborted"


@pytest.mark.parametrize("how", ["killed", "absent"])
def test_ranks_connect_before_one_of_them_is_lost(monkeypatch, nccl, how):
    run = function_of("failures/lost-rank-is-named", "_lose_rank_in_checked_group")
    limits = []

    def checked(timeout_s):
        limits.append(timeout_s)
        nccl.answers = False
        group = SimpleNamespace(barrier=lambda: None)
        group.all_reduce = dist.all_reduce
        return group

    nccl.comm = SimpleNamespace(checked=checked)
    run(rank_of(nccl), victim=1, how=how)
    assert limits == [2.0], f"groups with the limits {limits} were made"


def test_what_was_shared_is_waited_for_on_the_device_it_lies_on(monkeypatch):
    from multiprocessing.reduction import ForkingPickler

    shared = SimpleNamespace(device=torch.device("cuda:0"), fill_=lambda value: None, tolist=list)
    waited = []
    monkeypatch.setattr(ForkingPickler, "loads", lambda data: shared)
    monkeypatch.setattr(dist, "broadcast_object_list", lambda handles, src: None)
    monkeypatch.setattr(dist, "barrier", lambda: waited.append("barrier"))
    monkeypatch.setattr(pg, "synchronize", waited.append)
    run = function_of("collectives/memory-of-another-rank", "_write_to_shared_memory")
    monkeypatch.setitem(run.__globals__, "json_values", lambda tensor: tensor.tolist())
    gpu = SimpleNamespace(device=torch.device("cuda:1"), synchronize=lambda: waited.append("own"))
    monkeypatch.setattr(torch.multiprocessing, "set_sharing_strategy", lambda name: None)
    run(SimpleNamespace(rank=1, gpu=gpu))
    assert waited[:2] == [shared.device, "barrier"], f"before the barrier: {waited}"


class Counting:
    """A GPU that counts at 345 MHz until it has been busy for 10 ms, then at 1980 MHz.

    The two clocks of an H200, idle and under load; ``strange`` is how often each spin really lasts.
    """

    def __init__(self, strange=(1.0,)):
        self.now_ms, self.spins, self.strange = 0.0, 0, strange
        self.device = SimpleNamespace(type="cuda")

    def sleep(self, cycles):
        slow = min(cycles, max(0.0, 10.0 - self.now_ms) * 345e3)
        lasts_ms = slow / 345e3 + (cycles - slow) / 1980e3
        self.now_ms += lasts_ms * self.strange[self.spins % len(self.strange)]
        self.spins += 1

    def Event(self, enable_timing):  # noqa: N802 - torch's name
        event = SimpleNamespace(synchronize=lambda: None)
        event.record = lambda: setattr(event, "at", self.now_ms)
        event.elapsed_time = lambda end: end.at - event.at
        return event


def spin(gpu):
    named = SimpleNamespace(get_device_module=lambda device: SimpleNamespace(_sleep=gpu.sleep))
    suite_harness.everything()["kernels/calibrated-spin"].function(gpu, named)


def test_a_spin_is_calibrated_at_the_clock_of_a_busy_device():
    gpu = Counting()
    spin(gpu)
    assert gpu.now_ms < 1000, f"{gpu.now_ms:.0f} ms were spun"


@pytest.mark.parametrize("strange", [(1.0, 3.0), (0.0,)], ids=["by chance", "not at all"])
def test_a_spin_that_follows_no_count_fails(strange):
    with pytest.raises(AssertionError, match="calibrated to 20"):
        spin(Counting(strange))


@pytest.mark.parametrize("deterministic", [True, False])
def test_the_group_of_repeated_sums_is_made_with_deterministic_algorithms(
    monkeypatch, deterministic
):
    run = function_of("collectives/sums-repeat-at-every-size", "_repeat_sum")
    # ProcessGroupNCCL's constructor reads the switch and sets NCCL_ALGO=^NVLS
    made = []
    asked = torch.are_deterministic_algorithms_enabled
    monkeypatch.setattr(dist, "new_group", lambda: made.append(asked()) or "group")

    def all_reduce(tensor, group):
        seeds = [torch.Generator().manual_seed(100 + each) for each in range(4)]
        tensor.copy_(sum(torch.randn(len(tensor), generator=each) for each in seeds))

    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    gpu = SimpleNamespace(device=torch.device("cpu"))
    try:
        assert run(SimpleNamespace(rank=0, world=4, gpu=gpu), 16, deterministic) == [0, ""]
    finally:
        torch.use_deterministic_algorithms(False)
    assert made == [deterministic]


def split(dtype):
    """A product whose K is split in four, each part written in the dtype where torch allows it.

    aten/src/ATen/cuda/CUDABlas.cpp, ``allow_*_reduced_precision_reduction``: cuBLAS may then
    reduce in the type of the output.
    """
    right = torch.Tensor.__matmul__

    def multiply(left, other):
        switches = torch.backends.cuda.matmul
        kind = "fp16" if dtype is torch.float16 else "bf16"
        narrow = getattr(switches, f"allow_{kind}_reduced_precision_reduction")
        if left.dtype is not dtype:
            return right(left, other)
        parts = [
            right(a.double(), b.double())
            for a, b in zip(left.chunk(4, 1), other.chunk(4, 0), strict=True)
        ]
        return sum(part.to(dtype).double() if narrow else part for part in parts).to(dtype)

    return multiply


@pytest.fixture
def partial_sums_as_torch_starts():
    """torch lets a library round partial sums; what measured before in this process may not."""
    for kind in ("fp16", "bf16"):
        setattr(torch.backends.cuda.matmul, f"allow_{kind}_reduced_precision_reduction", True)


@pytest.mark.usefixtures("partial_sums_as_torch_starts")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_partial_sums_that_torch_lets_a_library_round_are_not_judged(monkeypatch, dtype):
    gpu = suite_harness.open_device(monkeypatch)
    monkeypatch.setattr(torch.Tensor, "__matmul__", split(getattr(torch, dtype)))
    found = suite_harness.run(gpu, f"precision/matmul-is-accurate[{dtype}]")
    assert found.verdict is Verdict.PASS, found.reason
    # and it is they that the case would fail
    function = suite_harness.everything()[f"precision/matmul-is-accurate[{dtype}]"].function
    monkeypatch.setitem(function.__globals__, "wide_partial_sums", nullcontext)
    found = suite_harness.run(gpu, f"precision/matmul-is-accurate[{dtype}]")
    assert found.verdict is Verdict.FAIL, "the premise: partial sums are rounded by default"


def test_the_switch_of_partial_sums_is_put_back():
    switches = torch.backends.cuda.matmul
    before = switches.allow_fp16_reduced_precision_reduction
    with pytest.raises(KeyError), wide_partial_sums():
        assert not switches.allow_fp16_reduced_precision_reduction
        assert not switches.allow_bf16_reduced_precision_reduction
        raise KeyError
    assert switches.allow_fp16_reduced_precision_reduction == before


VARIABLE = "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"


@pytest.mark.parametrize("value", [None, "0", "1"])
def test_a_product_that_a_variable_rounds_names_it(monkeypatch, value):
    monkeypatch.delenv(VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(VARIABLE, value)
    gpu = suite_harness.open_device(monkeypatch)

    def tf32(left, right):
        cut = left.view(torch.int32).bitwise_and(-(1 << 13)).view(torch.float32)
        return torch.mm(cut, right)

    monkeypatch.setattr(torch.Tensor, "__matmul__", tf32)
    found = suite_harness.run(gpu, "precision/float32-matmul-is-float32")
    assert found.verdict is Verdict.FAIL
    named = f"because {VARIABLE}=1 is set: unset it" in found.reason
    assert named is (value == "1"), found.reason

"""A device of a vendor that no file of the project knows, and that lacks what a device may lack."""

from __future__ import annotations

import json
import re
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import strict_device
from tests.support.fake_plugins import install

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Child

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

ON_RANKS = ("collectives", "parallel", "failures")
"""Areas of cases on several ranks."""
DETERMINANT = (
    r"(?:linalg\.)?(?:slog|log)?det in \w+, sample \d+ \([\dx]+\), backward(?:, not contiguous)?: "
)
"""What at::native::cpu_fallback gets wrong: gradients of determinants of tensors with gaps.

It gives the CPU contiguous copies, and the gradient goes by the layout of what was given.
"""
HOUSEHOLDER = (
    r"linalg\.householder_product in \w+, sample \d+ \([^)]*\), backward, channels last: element "
)
"""The same of a factor whose last dimensions lie as channels do.

Plain torch on this device gives that gradient too, with the right result; on a CPU it is right.
"""
GROUP_NORM = (
    r"nn\.functional\.group_norm in \w+, sample \d+ \([^)]*\), channels last[^:]*: "
    r"it raised RuntimeError: view size is not compatible"
)
"""What a device without a group norm of its own refuses: channels last.

torch's math_group_norm takes a view of the input as it lies (aten/src/ATen/native/group_norm.cpp).
"""
FALLBACK = rf"^(?:(?:; and )?(?:{DETERMINANT}|{HOUSEHOLDER}|{GROUP_NORM})[^;]*)+$"

FP8 = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")

CONFORM = ("-m", "portagpu", "conform", "--seed", "0", "--json", "-")

LIAR = """
from dataclasses import replace
from types import MappingProxyType

from portagpu import Arch, Capability, Support
from portagpu_strict import StrictPlugin


class Liar(StrictPlugin):
    name = "liar"
    {lie}

    def open(self, index):
        import torch
        from portagpu_strict.device import StrictBackend

        class LiarBackend(StrictBackend):
            {method}

        handle = LiarBackend(self, index)
        handle.name = "liar"
        table = handle.precision.table
        {change}
        return handle


PLUGIN = Liar()
"""
TABLE = "handle.precision = replace(handle.precision, table=MappingProxyType({table}))"
LIES: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    # what is said, and the cases that have to fail
    "every capability is claimed": (
        {"change": "handle.capabilities = frozenset(Capability)"},
        (
            "precision/autocast-programs",
            "precision/scaler-programs",
            "graphs/pool-is-shared[method]",
            "memory/pinned-copies-are-right[method]",
            "streams/external-stream-is-the-same[method]",
            "memory/snapshot-lists-what-is-held[function]",
            "collectives/init-string",
            "streams/random-programs",
        ),
    ),
    "memory is said to be shared between processes": (
        {
            "change": "handle.capabilities |= {Capability.IPC}",
            "method": "def ipc_collect(self): pass",
        },
        ("memory/shared-with-a-child",),
    ),
    "no capability is claimed": (
        {"change": "handle.capabilities = frozenset()"},
        (
            "streams/priorities[priority0]",
            "streams/elapsed-time-adds-up",
            "memory/peak-resets[method]",
        ),
    ),
    "dtypes are claimed that are not held": (
        {
            "change": TABLE.format(
                table="{**table, torch.float64: Support.NATIVE, torch.complex128: Support.STORAGE,"
                " torch.float8_e4m3fn: Support.STORAGE}"
            )
        },
        tuple(
            f"precision/storage-holds[{each}]"
            for each in ("float64", "complex128", "float8_e4m3fn")
        ),
    ),
    "a dtype that is held is not claimed": (
        {
            "change": TABLE.format(
                table="{k: v for k, v in table.items() if k is not torch.float16}"
            )
        },
        ("precision/storage-holds[float16]",),
    ),
    "warps are claimed": (
        {"change": "handle.arch = Arch('strictmaker', 'strict1', 32)"},
        ("identity/warp-size-is-the-devices",),
    ),
    "its text for exhausted memory is not declared": (
        {"lie": "from portagpu.devices import oom; oom.vendors = dict"},
        ("memory/too-much-is-an-error",),
    ),
    "the generator is the host's": (
        {"method": "def generator(self): return torch.default_generator"},
        ("rng/seed-is-the-devices",),
    ),
    "a new stream is the current one": (
        {"method": "def Stream(self, priority=0): return self.current_stream()"},
        ("streams/random-programs",),
    ),
    "autocast is a block that does nothing": (
        {
            "change": "handle.capabilities |= {Capability.AUTOCAST}",
            "method": "def autocast(self, *arguments, **options):"
            " return super().autocast(enabled=False)",
        },
        ("precision/autocast-programs",),
    ),
    "calls without a capability do nothing": (
        {
            "change": "handle.capabilities = frozenset()",
            "method": "def set_stream(self, stream): pass",
        },
        ("identity/unclaimed-calls-are-refused[set_stream]",),
    ),
    "a stream of another library is any new one": (
        {
            "change": "handle.capabilities |= {Capability.EXTERNAL_STREAMS}",
            "method": "def ExternalStream(self, stream_ptr): return self.Stream()",
        },
        ("streams/external-stream-is-the-same[method]",),
    ),
    "its vendor is another's": (
        {"lie": "vendor = 'nvidia'"},
        ("identity/vendor-is-the-archs",),
    ),
    "another device than the one asked for": (
        {"change": "handle.device = torch.device('strict', 1 - index)"},
        ("identity/device-of-index",),
    ),
}


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the strict device is installed."""
    if strict_device.compiler() is None:
        pytest.skip("the strict device needs a C++ compiler, and this machine shows none")
    shared = tmp_path_factory.getbasetemp()
    # workers of one run build it once
    shared = shared.parent if shared.name.startswith("popen-") else shared
    try:
        built = strict_device.library(shared)
    except subprocess.CalledProcessError as error:
        pytest.fail(f"strict.cpp does not compile: {error.stderr[-4000:]}")
    folder = tmp_path_factory.mktemp("strict")
    strict_device.put_into(folder, built)
    install(folder, "portagpu-strict", strict_device.ENTRY_POINTS, vendors=strict_device.VENDORS)
    return folder


def judged(ended: Child) -> dict[str, dict[str, Any]]:
    """The results of a run by id."""
    assert ended.out.startswith("{"), f"conform wrote no result: {ended.err}"
    return {each["id"]: each for each in json.loads(ended.out)["results"]}


def test_the_strict_device_passes(child: Callable[..., Child], strict: Path) -> None:
    ended = child(*CONFORM, "--backend", "strict", path=[strict], limit_s=600)
    found = judged(ended)
    bad = [
        f"{name}: {each['verdict']}: {each['reason']}"
        for name, each in found.items()
        if each["verdict"] not in ("PASS", "SKIP")
        and not re.search(FALLBACK, each["reason"])
        # what a busy machine kept from being judged says nothing of the device
        and not (each["verdict"] == "INCONCLUSIVE" and "on a busy machine" in each["reason"])
    ]
    assert not bad, "\n".join(bad)
    # it claims no collectives
    about = [each for each in found.values() if each["area"] not in ON_RANKS]
    passed = sum(each["verdict"] == "PASS" for each in about)
    # a device that skips nearly everything would pass too
    assert passed > len(about) / 2, f"only {passed} of {len(about)} cases are about this device"
    failing = {name for _, names in LIES.values() for name in names}
    assert failing <= set(found), f"no such case: {sorted(failing - set(found))}"
    silent = {name for name in failing if found[name]["verdict"] == "SKIP"}
    for name in silent:
        reason = found[name]["reason"]
        reported = ("does not claim", "which other cases judge")
        assert any(each in reason for each in reported), f"{name} judges nothing here: {reason}"


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_about_the_device_is_caught(
    lie: str, child: Callable[..., Child], strict: Path, tmp_path: Path
) -> None:
    parts, failing = LIES[lie]
    source = LIAR.format(**{"lie": "pass", "method": "pass", "change": "pass", **parts})
    folder = tmp_path / "liar"
    folder.mkdir()
    install(folder, "portagpu-liar", {"liar": "portagpu_liar:PLUGIN"}, {"portagpu_liar": source})
    chosen = [word for name in failing for word in ("--only", name)]
    ended = child(*CONFORM, "--backend", "liar", *chosen, path=[folder, strict], limit_s=300)
    found = judged(ended)
    assert ended.code == 1, ended.err
    passed = [name for name in failing if found[name]["verdict"] != "FAIL"]
    assert not passed, "\n".join(f"{name}: {found[name]}" for name in passed)


TRAIN = """
import os, sys, torch, portagpu as pg
pg.set_device(1)
gpu = pg.backend()
assert gpu.index == 1 and gpu.device == torch.device("strict:1"), gpu
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.Flatten(), torch.nn.Linear(144, 2))
model = model.to(pg.device())
optimiser = torch.optim.AdamW(model.parameters(), lr=0.02)
inputs = torch.randn(32, 1, 8, 8, device=pg.device())
wanted = (inputs.mean((1, 2, 3)) > 0).long()
scaler = pg.GradScaler(enabled=False)
losses = []
for _ in range(20):
    optimiser.zero_grad()
    with pg.autocast(enabled=False):
        loss = torch.nn.functional.cross_entropy(model(inputs), wanted)
    scaler.scale(loss).backward()
    scaler.step(optimiser)
    scaler.update()
    losses.append(loss.item())
assert losses[-1] < losses[0] / 2, losses
assert model[0].weight.device.index == 1
for call in (pg.autocast, pg.GradScaler, pg.Graph, lambda: gpu.comm.init_string):
    try:
        call()
    except pg.Unsupported as error:
        print(error)
    else:
        raise SystemExit(f"{call} must raise Unsupported")
print("trained")
sys.stdout.flush()
os._exit(0)
"""
"""Ends without finalization, in which torch's autograd thread of a device may abort the process: it
may free a tensor after Python began to end (pytorch/pytorch#38228 and #190489)."""


def test_training_on_the_second_device(child: Callable[..., Child], strict: Path) -> None:
    environment = {"PORTAGPU_BACKEND": "strict"}
    said = child("-c", TRAIN, path=[strict], environment=environment).ok().splitlines()
    assert said[-1] == "trained"
    assert "the strict backend has no autocast" in said[0]
    assert "no communication library moves strict tensors" in said[3]


FACTS = """
import json
from types import SimpleNamespace
import portagpu
from portagpu.suites.performance import device as bench
from portagpu.checks.bringup import device as bringup
rank = SimpleNamespace(gpu=portagpu.backend("strict", 1))
print(json.dumps([bringup.describe(rank), bench.describe(rank)]))
"""


def test_bring_up_and_bench_know_what_the_device_lacks(
    child: Callable[..., Child], strict: Path
) -> None:
    brought, benched = json.loads(child("-c", FACTS, path=[strict]).ok())
    assert brought["comm_available"] is None, "there is no library that could be missing"
    assert (brought["device"], brought["count"], brought["warp_size"]) == ("strict:1", 2, 1)
    assert "collectives" not in brought["capabilities"]
    assert (benched["shared"], benched["triton"], benched["comm"]) == (False, False, "none")
    assert (benched["support"]["fp64"], benched["support"]["fp16"]) == ("none", "emulated")


def test_a_screen_judges_what_the_device_has(
    child: Callable[..., Child], strict: Path, tmp_path: Path
) -> None:
    words = ["-m", "portagpu", "screen", "--time", "1s", "--backend", "strict", "--json", "-"]
    ended = child(*words, path=[strict], limit_s=600)
    found = judged(ended)
    assert ended.code == 0, ended.err
    names = [each["id"] for each in json.loads(ended.out)["results"]]
    assert names.count("screen/device") == 2
    reasons = {
        each["reason"].partition(" here: ")[0]
        for each in found.values()
        if each["verdict"] == "SKIP"
    }
    assert reasons == {
        "nothing here counts errors of memory",
        "the strict backend does not compute in float64",
        "the strict backend multiplies float32 in ieee, not in tf32",
        "it needs two devices or more that a communication library joins",
        *(f"the strict backend has no instructions for {each}" for each in FP8),
        *(
            f"torch has no product of {each} with results in float32"
            for each in ("bfloat16", "float16")
        ),
    }
    assert {each["verdict"] for each in found.values()} == {"PASS", "SKIP"}

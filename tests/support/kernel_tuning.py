"""Run ``kernels.tune`` in Triton's interpreter with seeded faults; print what is wrong, as JSON.

Started by test_kernels_tune.py with TRITON_INTERPRET=1: the interpreter is chosen when triton is
imported. Nothing is timed: what a config takes is in ``TIMES``. Each line of the answer is
{"case": ..., "problem": "" or what is wrong}; what Triton prints lies between.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import os
import tempfile
import traceback
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import torch

from portagpu.base.errors import Unsupported
from portagpu.train import kernels
from portagpu.train.kernels.cache import Cache
from portagpu.train.kernels.plan import Limits, all_configs

tuning = importlib.import_module("portagpu.train.kernels.tuning")
errors = importlib.import_module("triton.runtime.errors")

SEED = 20261122
torch.manual_seed(SEED)
X = torch.randn(3, 40)
CONFIGS = all_configs("row")
TIMES = (5.0, 3.0, 1.0, 2.0, 4.0)
"""What each config is measured to take: neither in order, nor is the first or the last fastest."""
FASTEST_THREE = (2, 3, 1)


def main() -> None:
    for name, check in CHECKS.items():
        problem = ""
        try:
            check()
        except Exception:  # noqa: BLE001 - it is handed on
            problem = traceback.format_exc()
        print(f"\n{json.dumps({'case': name, 'problem': problem})}", flush=True)


class Bench:
    """softmax measured by ``TIMES``, with faults by config.

    One is wrong, writes nothing, or is too large at once or only when it is timed.
    """

    def __init__(self, folder: Path, wrong=(), empty=(), too_large=(), too_large_later=()):
        self.cache = Cache(folder)
        self.wrong, self.empty = {*wrong}, {*empty}
        self.too_large, self.later = {*too_large}, {*too_large_later}
        self.memory = {}
        self.ran = []
        self.timed = []

    def run(self, x, *, config=None):
        at = CONFIGS.index(config)
        self.ran.append(at)
        if at in self.too_large or (at in self.later and self.ran.count(at) > 2):
            raise errors.OutOfResources(99, 1, "shared memory")
        # as an allocator that gives out what it got back last
        result = self.memory.setdefault(x.shape, torch.empty_like(x))
        if at not in self.empty:
            result.copy_(kernels.softmax(x, config=config) * (1.01 if at in self.wrong else 1))
        return result

    def measure(self, call):
        call()
        self.timed.append(self.ran[-1])
        return TIMES[self.ran[-1]]

    def tune(self, *, again=False, x=X):
        """What is tuned, as its place in ``CONFIGS``; ``again`` is as another process would."""
        if again:
            tuning._checked.clear()
        self.ran, self.timed = [], []
        entry = dataclasses.replace(tuning.TUNABLE["softmax"], run=self.run)
        with mock.patch.object(tuning, "TUNABLE", {**tuning.TUNABLE, "softmax": entry}):
            return CONFIGS.index(kernels.tune("softmax", x, cache=self.cache, measure=self.measure))

    def kept(self):
        files = self.cache.folder.glob("*.json")
        return [self.cache.get(file.stem)["config"] for file in files]


@contextlib.contextmanager
def bench(**faults):
    tuning._checked.clear()
    with tempfile.TemporaryDirectory() as folder:
        yield Bench(Path(folder) / "kept", **faults)


def raises(expected, call):
    try:
        call()
    except expected as error:
        return str(error)
    raise AssertionError(f"{expected.__name__} was not raised")


def check_fastest():
    with bench() as b:
        assert b.tune() == FASTEST_THREE[0]
        assert sorted(b.timed) == [0, 1, 2, 3, 4]


def check_wrong():
    with bench(wrong=FASTEST_THREE[:1]) as b:
        assert b.tune() == FASTEST_THREE[1]
        assert sorted(b.timed) == [0, 1, 3, 4], "a wrong config was timed"


def check_unwritten():
    with bench(empty=FASTEST_THREE[:1]) as b:
        assert b.tune() == FASTEST_THREE[1]
        assert FASTEST_THREE[0] in b.ran
        assert FASTEST_THREE[0] not in b.timed


def check_too_large():
    with bench(too_large=FASTEST_THREE[:2]) as b:
        assert b.tune() == FASTEST_THREE[2]
        assert sorted(b.timed) == [0, 1, 4]


def check_too_large_later():
    with bench(too_large_later=FASTEST_THREE[:1]) as b:
        assert b.tune() == FASTEST_THREE[1]


def check_only_one_right():
    with bench(wrong={0, 2, 3}, too_large={4}) as b:
        assert b.tune() == 1


def check_none_right():
    with bench(wrong=range(5)) as b:
        for _ in range(2):
            said = raises(kernels.NoConfig, b.tune)
            assert "softmax" in said
            assert "\n" not in said
            assert {*b.ran} == {0, 1, 2, 3, 4}, "it is asked again each time"
            assert not b.timed
            assert not b.kept()
        b.wrong.clear()
        assert b.tune() == FASTEST_THREE[0]


def check_one_listed():
    """Triton's autotuner does not prune a config that is the only one it is given."""
    with bench(wrong={4}) as b:
        for kind in {each.kind for each in tuning.TUNABLE.values()}:
            assert len(all_configs(kind)) > 1
        with mock.patch.object(tuning, "candidates", lambda *_: CONFIGS[4:]):
            raises(kernels.NoConfig, b.tune)
            assert {*b.ran} == {4}
            b.wrong.clear()
            assert b.tune() == 4
            assert {*b.ran} == {4}, "one that does not fit has run"


def check_kept():
    with bench() as b:
        assert b.tune() == FASTEST_THREE[0]
        assert b.kept() == [FASTEST_THREE[0]]
        assert b.tune() == FASTEST_THREE[0]
        assert b.ran == [], "this process has checked it"
        assert b.tune(again=True) == FASTEST_THREE[0]
        assert {*b.ran} == {FASTEST_THREE[0]}, "what the cache names is checked once"
        assert not b.timed
        b.tune(x=X[:, :16].contiguous())
        assert b.timed, "another shape is another key"
        assert len(b.kept()) == 2


def check_kept_and_wrong():
    for fault in ("wrong", "too_large"):
        with bench() as b:
            b.tune()
            setattr(b, fault, {FASTEST_THREE[0]})
            assert b.tune(again=True) == FASTEST_THREE[1]
            assert FASTEST_THREE[0] not in b.timed
            assert b.kept() == [FASTEST_THREE[1]], "the cache still names the wrong one"


def check_kept_nonsense():
    with bench() as b:
        b.tune()
        (file,) = b.cache.folder.glob("*.json")
        file.write_text("")
        assert b.tune(again=True) == FASTEST_THREE[0]
        for nonsense in ({}, {"config": 5}, {"config": -1}, {"config": True}):
            b.cache.put(file.stem, nonsense)
            assert b.tune(again=True) == FASTEST_THREE[0]
            assert b.timed
            assert b.kept() == [FASTEST_THREE[0]]


def check_integers():
    """A float64 holds neither of these sums apart."""
    tuning._checked.clear()
    x = torch.tensor([2**53, 1])

    def run(x, *, config=None):
        return kernels.sum(x, config=config) - 1

    entry = dataclasses.replace(tuning.TUNABLE["sum"], run=run)
    call = lambda: kernels.tune("sum", x, cache=Cache(None), measure=once)  # noqa: E731
    with mock.patch.object(tuning, "TUNABLE", {"sum": entry}):
        raises(kernels.NoConfig, call)
    assert call() in all_configs("sum")


def arguments():
    h = torch.randn(17, 33).half()
    return {
        "triad": (torch.randn(1000), torch.randn(1000), 3.0),
        "sum": (torch.randn(3, 2000),),
        "softmax": (torch.randn(3, 40),),
        "rms_norm": (torch.randn(3, 40), torch.randn(40)),
        "matmul": (h, torch.randn(33, 18).half()),
    }


def once(call):
    call()
    return 1.0


def check_untouched():
    tuning._checked.clear()
    for name, given in arguments().items():
        before = [each.clone() if isinstance(each, torch.Tensor) else each for each in given]
        config = kernels.tune(name, *given, cache=Cache(None), measure=once)
        for one, other in zip(before, given, strict=True):
            assert one is other or torch.equal(one, other), f"{name} has changed its input"
        plain = getattr(kernels, name)(*given, config=config)
        exact, bound = (
            getattr(kernels.reference, each)(*given) for each in (name, f"{name}_bound")
        )
        assert ((plain.double() - exact).abs() <= bound).all(), f"{name} in {config}"


def check_as_the_function():
    """No elements, any strides, wrong arguments: what the function takes and refuses."""
    tuning._checked.clear()
    h, x = torch.randn(17, 33).half(), torch.randn(3, 4)
    given = [
        *(("softmax", torch.empty(shape)) for shape in ((0, 4), (4, 0), (0,))),
        ("sum", torch.empty(0)),
        ("triad", torch.empty(0), torch.empty(0), 1.0),
        ("rms_norm", torch.empty(0, 4), torch.ones(4)),
        *(
            ("matmul", torch.empty(m, k).half(), torch.empty(k, 4).half())
            for m, k in ((3, 0), (0, 3))
        ),
        ("matmul", h.T, torch.randn(5, 17).half().T),
        ("matmul", h[::2, ::3], h[:11, 4:9]),
        *(("softmax", each) for each in (x.T, x.int(), x[0, 0], x.clone().requires_grad_())),
        ("sum", x.T),
        ("triad", x, x[0], 1.0),
        ("triad", x, x),
        ("rms_norm", x, x),
        ("matmul", h, h),
        ("matmul", h[0], h),
        ("matmul", x, x.T),
    ]
    for name, *words in given:
        expected = outcome(lambda: getattr(kernels, name)(*words))  # noqa: B023 - called at once
        got = outcome(
            lambda: kernels.tune(name, *words, cache=Cache(None), measure=once)  # noqa: B023
        )
        assert got == expected, f"{name}: tune {got}, the function {expected}"


def outcome(call):
    try:
        call()
    except Exception as error:  # noqa: BLE001 - compared
        return f"{type(error).__name__}: {error}"
    return "works"


def check_refused():
    nothing = Cache(None)
    assert "copy" in raises(ValueError, lambda: kernels.tune("copy", X, cache=nothing))
    assert "tensor" in raises(ValueError, lambda: kernels.tune("softmax", cache=nothing))
    said = raises(Unsupported, lambda: kernels.tune("softmax", X[:2], cache=nothing))
    assert "measure=" in said


def check_without_triton_cache():
    """What TRITON_CACHE_AUTOTUNING=1 turns on outside of the interpreter is not asked."""
    triton = importlib.import_module("triton")
    decorate, made = triton.autotune, []

    def autotune(**words):
        def decorator(fn):
            with mock.patch.dict(os.environ, TRITON_INTERPRET="0", TRITON_CACHE_AUTOTUNING="1"):
                tuner = decorate(**words)(fn)
            made.append(tuner.cache_results)
            return tuner

        return decorator

    asked = AssertionError("Triton's own cache was asked")
    with (
        bench() as b,
        mock.patch.object(triton, "autotune", autotune),
        mock.patch.object(triton.runtime.Autotuner, "check_disk_cache", side_effect=asked),
    ):
        assert b.tune() == FASTEST_THREE[0]
    assert made == [True], "the variable has no effect: this test shows nothing"


class Device(tuning.ops.Place):
    """The interpreter with the limits of a device of waves of 64, which says when it is current."""

    def __init__(self):
        arch = SimpleNamespace(name="gfx942")
        self.gpu = SimpleNamespace(arch=arch, product="", part=None, versions={})
        self.limits = Limits(64, 512, 65536)
        self.is_current = False

    @contextlib.contextmanager
    def current(self):
        before, self.is_current = self.is_current, True
        yield
        self.is_current = before


def check_device():
    """Without ``measure``, Triton's benchmark times what fits, with the tensors' device current."""
    tuning._checked.clear()
    place, options, runs = Device(), [], []
    launch = tuning._Trial.run

    def run(trial, key, *, config, **given):
        options.append((config, given["num_warps"], given["num_stages"]))
        return launch(trial, key, config=config, **given)

    def benchmark(call, quantiles):
        assert place.is_current
        call()
        runs.append(options[-1][0])
        return [TIMES[CONFIGS.index(runs[-1])], *quantiles[1:]]

    driver = SimpleNamespace(get_benchmarker=lambda: benchmark)
    autotuner = importlib.import_module("triton.runtime.autotuner")
    with (
        mock.patch.object(tuning.ops, "place_of", lambda *_: place),
        mock.patch.object(tuning._Trial, "run", run),
        mock.patch.object(autotuner, "driver", SimpleNamespace(active=driver)),
    ):
        chosen = kernels.tune("softmax", X, cache=Cache(None))
    fitting = [each for each in CONFIGS if each.threads <= 512]
    assert runs == fitting
    assert len(fitting) == len(CONFIGS) - 1
    assert chosen == min(fitting, key=lambda each: TIMES[CONFIGS.index(each)])
    for config, warps, stages in options:
        assert warps * 64 == config.threads
        assert stages == config.stages


CHECKS = {
    "fastest": check_fastest,
    "wrong": check_wrong,
    "unwritten": check_unwritten,
    "too-large": check_too_large,
    "too-large-later": check_too_large_later,
    "only-one-right": check_only_one_right,
    "none-right": check_none_right,
    "one-listed": check_one_listed,
    "kept": check_kept,
    "kept-and-wrong": check_kept_and_wrong,
    "kept-nonsense": check_kept_nonsense,
    "integers": check_integers,
    "untouched": check_untouched,
    "as-the-function": check_as_the_function,
    "refused": check_refused,
    "without-triton-cache": check_without_triton_cache,
    "device": check_device,
}

if __name__ == "__main__":
    main()

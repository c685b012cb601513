"""No case passes over results that nobody computed: zeros, or one value, of the right shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

pytest.importorskip("torch")

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from portagpu.runs.results.run import Verdict
from tests.support import suite_harness

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch

PRODUCTS: Final = (
    *("mm", "bmm", "addmm", "baddbmm", "_scaled_mm", "_softmax", "_log_softmax"),
    *("native_layer_norm", "convolution", "_scaled_dot_product_flash_attention_for_cpu"),
)
"""torch's operations whose results a case may be about; the last is attention on a CPU."""
DRAWS: Final = (
    *("rand", "randn", "randint", "randperm", "uniform_", "normal_", "random_", "exponential_"),
    *("bernoulli", "bernoulli_", "multinomial", "native_dropout"),
)
"""torch's operations that draw random numbers."""
NOT_ABOUT_THEM: Final = {
    "precision/matmul-bfloat16-subnormals": "zero is one of its two answers, where it is claimed",
    "rng/questions-draw-nothing": "its products are what must not draw",
    "streams/": "the order and the time of work, whatever it is",
    "profiling/": "the record of work, whatever it is",
    "memory/": "the memory of results, whatever they hold",
}
"""Cases, or areas, that use a result and are not about its values."""


class Unwritten(TorchDispatchMode):
    """Operations of these names leave ``value`` where their result belongs.

    Results of the dtypes of ``oracle`` stay right. ``used`` says whether another was asked for.
    """

    def __init__(
        self, names: tuple[str, ...], value: float, oracle: tuple[torch.dtype, ...]
    ) -> None:
        super().__init__()
        self.names, self.value, self.oracle, self.used = names, value, oracle, False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        result = func(*args, **(kwargs or {}))
        if func._schema.name.partition("::")[2] not in self.names:
            return result
        return tree_map(self._unwritten, result)

    def _unwritten(self, result: Any) -> Any:
        if not isinstance(result, torch.Tensor) or result.dtype in self.oracle:
            return result
        if not result.numel():
            return result
        self.used = True
        with torch.no_grad():
            return result.copy_(torch.full(result.shape, self.value).to(result.dtype))


def _about(name: str) -> bool:
    base = name.partition("[")[0]
    return not any(base == each or base.startswith(each) for each in NOT_ABOUT_THEM)


def test_no_case_passes_over_what_nobody_computed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Draws alone: tests/full has products too, which are in a hundred cases."""
    nothing_passes_over(0.0, monkeypatch, tmp_path, DRAWS)


def nothing_passes_over(
    value: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, names: tuple[str, ...]
) -> None:
    gpu = suite_harness.open_device(monkeypatch)
    oracle = () if names is DRAWS else (torch.float64, torch.complex128, torch.int64)
    passed, used = [], 0
    for name, case in suite_harness.everything().items():
        # elsewhere draws are inputs, which may be any
        draws = names is DRAWS
        if case.needs_ranks or (draws and case.listed.area != "rng") or not _about(name):
            continue
        with Unwritten(names, value, oracle) as stub:
            result = suite_harness.run(gpu, name, tmp_path, programs=suite_harness.WELL, shrinks=0)
        used += stub.used
        if stub.used and result.verdict is Verdict.PASS:
            passed.append(name)
    assert used >= (20 if names is DRAWS else 100), f"only {used} cases use such a result"
    assert not passed, f"{len(passed)} cases pass over results of {value}: {passed}"


def test_every_exception_is_a_case_or_an_area() -> None:
    known = suite_harness.everything()
    strange = [each for each in NOT_ABOUT_THEM if not any(name.startswith(each) for name in known)]
    assert not strange, f"no case is called {strange}"

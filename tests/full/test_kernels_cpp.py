"""The C++ kernels' numbers at warp sizes 32 and 64: their own sources, over the lanes of a host."""

from __future__ import annotations

import pytest

from portagpu.train.kernels import cpp
from tests.process.test_kernels_cpp import NUMBERS, SHAPES, numbers, same
from tests.process.test_kernels_cpp import gpu as gpu
from tests.support import lane_shim
from tests.support.looped import looped

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(lane_shim.COMPILER is None, reason="neither g++ nor clang++ is here"),
]


@looped("dtype", NUMBERS)
@looped("shape", SHAPES)
def test_rows_are_summed(gpu, shape, dtype):
    x = numbers(shape, dtype)
    same(cpp.sum_rows(x, gpu=gpu), x, lambda wide: wide.sum(-1))

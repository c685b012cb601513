"""Registers of Triton's kernels against ptxas, for the architectures that the tier full leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.full import test_compile_occupancy as of_full

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Child

pytestmark = of_full.pytestmark


@pytest.mark.parametrize("arch", ["sm_80", "sm_120"])
def test_ptxas_reports_the_registers_that_the_cubin_states(
    child: Callable[..., Child], tmp_path: object, arch: str
) -> None:
    of_full.test_ptxas_reports_the_registers_that_the_cubin_states(child, tmp_path, arch)

"""Cases of the suite against what GPUs and their libraries do, where a source says it.

Each stand-in does what its source states and nothing else; nothing here ran on a GPU."""

from __future__ import annotations

import os

import pytest

from tests.torch.test_gpu_cases import VARIABLE

pytestmark = pytest.mark.torch


@pytest.mark.processes(2, "torch reads the variable when it is imported")
def test_the_variable_switches_torch_by_itself(child):
    code = (
        "import torch; from portagpu.devices.precision.products import switched_by_variable as by; "
        "print(torch.get_float32_matmul_precision(), by())"
    )
    environment = {key: value for key, value in os.environ.items() if key != VARIABLE}
    assert child("-c", code, environment={**environment, VARIABLE: "0"}).ok().split() == ["highest"]
    found = child("-c", code, environment={VARIABLE: "1"}).ok().split()
    assert found == ["high", f"{VARIABLE}=1"]

"""What one rank does under load, in this process, by a clock that the test moves."""

from __future__ import annotations

import pytest

from tests.torch.test_bench_load import SIZE, sustained

pytestmark = pytest.mark.torch


def test_a_load_states_its_rate_in_each_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    found, steps = sustained(monkeypatch)
    assert found["wrong"] == ""
    assert found["shape"]["m"] == SIZE
    # a look before each interval, four in it (of 0.0, 0.1, 0.2 and 0.3 s), and one after it
    times = [at for at, _ in found["throughput"]]
    assert times == pytest.approx([0.6, 1.2, 1.8, 2.4])
    assert all(rate > 0 for _, rate in found["throughput"])
    assert found["compared"] >= found["batches"] >= 4 * 3
    assert found["judged"].startswith("every element")
    assert found["sampled"] == ""
    assert [each["t_s"] for each in steps] == times


@pytest.mark.parametrize("dtype", ["fp64", "fp32", "bf16", "fp16", "int8"])
def test_a_sound_device_passes_under_load_in_each_dtype(
    monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    found, _ = sustained(monkeypatch, dtype=dtype, seconds=0.5)
    assert found["wrong"] == ""
    assert found["sampled"] == ""

"""The reader of torch's table of averages, against the objects that torch printed it from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function

pytest.importorskip("pyarrow")

from portagpu.traces.analysis.reading import read

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("options", [{}, {"record_shapes": True, "with_flops": True}])
def test_a_table_of_this_torch_has_its_averages(tmp_path: Path, options: dict[str, bool]) -> None:
    with (
        profile(activities=[ProfilerActivity.CPU], profile_memory=True, **options) as prof,
        record_function("a step of it"),
    ):
        torch.nn.functional.linear(torch.ones(64, 32), torch.ones(16, 32)).relu().sum()
    averages = prof.key_averages(group_by_input_shape=bool(options))
    file = tmp_path / "table.txt"
    file.write_text(averages.table(sort_by="self_cpu_time_total", row_limit=-1, time_unit="us"))
    found = read(file)
    assert found.totals is not None
    assert found.dropped == 0
    columns = ("name", "calls", "total_ns", "self_ns")
    of_file = zip(*(found.totals.column(each).to_pylist() for each in columns), strict=True)
    wanted = [
        (
            each.key,
            each.count,
            round(each.cpu_time_total * 1000),
            round(each.self_cpu_time_total * 1000),
        )
        for each in averages
    ]
    assert sorted(of_file) == sorted(wanted)
    assert {"a step of it", "aten::linear"} <= {row[0] for row in wanted}

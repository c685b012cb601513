"""Reports of ``nsys stats`` that have the same kernels: what several of them say counts once.

The headings are those of Nsight Systems 2024 and 2025 (User Guide, "Report Scripts").
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyarrow")

from portagpu.traces.analysis.reading import read

if TYPE_CHECKING:
    from pathlib import Path

SUMS = """\
Processing [r.sqlite] with [/opt/nsys/reports/cuda_gpu_kern_sum.py]...
** CUDA GPU Kernel Summary (cuda_gpu_kern_sum):
 Time (%)  Total Time (ns)  Instances  Avg (ns)  Med (ns)  Min (ns)  Max (ns)  StdDev (ns)  Name
 --------  ---------------  ---------  --------  --------  --------  --------  -----------  ----
 100.0             3000          3    1000.0    1000.0       900      1100        100.0  gemm
"""
SHAPES = """\
Processing [r.sqlite] with [/opt/nsys/reports/cuda_gpu_kern_gb_sum.py]...
 ** CUDA GPU Kernel/Grid/Block Summary (cuda_gpu_kern_gb_sum):
 Time (%)  Total Time (ns)  Instances  Avg (ns)  Min (ns)  Max (ns)  GridXYZ     BlockXYZ     Name
 --------  ---------------  ---------  --------  --------  --------  ----------  -----------  ----
     66.7             2000          2    1000.0       900      1100   1   1   1  256   1   1  gemm
     33.3             1000          1    1000.0      1000      1000   2   1   1  256   1   1  gemm
"""
BOTH = """\
Processing [r.sqlite] with [/opt/nsys/reports/cuda_gpu_sum.py]...
 ** CUDA GPU Summary (Kernels/MemOps) (cuda_gpu_sum):
 Time (%)  Total Time (ns)  Instances  Avg (ns)  Min (ns)  Max (ns)   Category    Operation
 --------  ---------------  ---------  --------  --------  --------  -----------  ---------
    100.0             3000          3    1000.0       900      1100  CUDA_KERNEL  gemm
"""
CSV = """\
Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),Category,Operation
75.0,3000,3,1000.0,1000.0,900,1100,CUDA_KERNEL,"gemm(int, int)"
20.0,800,2,400.0,400.0,400,400,MEMORY_OPER,[CUDA memcpy Host-to-Device]
5.0,200,1,200.0,200.0,200,200,CUDA_API,cudaLaunchKernel
"""


def totals(path: Path) -> list[tuple[object, ...]]:
    found = read(path).totals
    assert found is not None
    names = ("kind", "name", "calls", "total_ns")
    return list(zip(*(found.column(name).to_pylist() for name in names), strict=True))


@pytest.mark.parametrize("text", [SUMS, SUMS + SHAPES, SUMS + BOTH, BOTH + SHAPES + SUMS])
def test_kernels_of_several_reports_count_once(tmp_path: Path, text: str) -> None:
    file = tmp_path / "stats.txt"
    file.write_text(text)
    assert totals(file) == [("kernel", "gemm", 3, 3000)]
    left_out = read(file).details
    assert len(left_out) == text.count("Processing") - 1
    assert all("the same in another order" in each for each in left_out)


def test_the_numbers_of_a_grid_are_not_columns(tmp_path: Path) -> None:
    file = tmp_path / "stats.txt"
    file.write_text(SHAPES)
    assert totals(file) == [("kernel", "gemm", 2, 2000), ("kernel", "gemm", 1, 1000)]


def test_a_report_of_several_kinds_has_each_by_its_category(tmp_path: Path) -> None:
    file = tmp_path / "report_cuda_api_gpu_sum.csv"
    file.write_text(CSV)
    assert totals(file) == [
        ("kernel", "gemm(int, int)", 3, 3000),
        ("copy", "Memcpy HtoD", 2, 800),
        ("api", "cudaLaunchKernel", 1, 200),
    ]

"""THAPI's tally: lines in the form that iprof prints, with figures worked out by hand.

Public tallies with the same traits: argonne-lcf/THAPI's README, talks and pages on Intel GPUs.
"""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyarrow")

from portagpu.facts.readings.model import FormatError
from portagpu.traces.analysis.reading import read
from portagpu.traces.analysis.summary import summarize

if TYPE_CHECKING:
    from pathlib import Path

TEXT = """\
> iprof ./app
BACKEND_PYTORCH | 1 Hostnames | 1 Processes | 1 Threads |

        Name |    Time | Time(%) | Calls | Average |     Min |     Max |
aten::matmul | 64.61ms | 100.00% |     2 | 32.30ms | 31.00ms | 33.61ms |
       Total | 64.61ms | 100.00% |     2 |

BACKEND_OPENCL,BACKEND_ZE | 1 Hostnames | 1 Processes | 1 Threads |

           Name |   Time | Time(%) | Calls | Average |     Min |      Max | Failed |
zeModuleCreate |  1.50s |  90.48% |     3 | 500.00ms |   171ns |  1.20s |      1 |
         Total |  1.50s | 100.00% |     3 |                             1 |

Device profiling | 1 Hostnames | 1 Processes | 1 Threads | 1 Devices | 1 Subdevices |

               Name |     Time | Time(%) | Calls |  Average |      Min |      Max |
        gemm_kernel | 817.60us |  93.85% |     1 | 817.60us | 817.60us | 817.60us |
  zeMemoryCopy(M2D) |  41.92us |   4.81% |     4 |  10.48us |  10.00us |  11.00us |
 zeMemoryFill(DATA) |   1.00us |   0.11% |     1 |   1.00us |   1.00us |   1.00us |
              Total | 860.52us | 100.00% |     6 |

Explicit memory traffic (BACKEND_ZE) | 1 Hostnames | 1 Processes | 1 Threads |

              Name |   Byte | Byte(%) | Calls | Average |    Min |    Max |
 zeMemoryCopy(M2D) | 4.00kB | 100.00% |     4 |  1.00kB | 1.00kB | 1.00kB |
"""
WANTED = [
    ("operator", "aten::matmul", 2, 64_610_000, 31_000_000, 33_610_000),
    ("api", "zeModuleCreate", 3, 1_500_000_000, 171, 1_200_000_000),
    ("kernel", "gemm_kernel", 1, 817_600, 817_600, 817_600),
    ("copy", "zeMemoryCopy(M2D)", 4, 41_920, 10_000, 11_000),
    ("set", "zeMemoryFill(DATA)", 1, 1000, 1000, 1000),
]
FORMS = {
    "as it is": lambda text: text.encode(),
    "CRLF": lambda text: text.replace("\n", "\r\n").encode(),
    "UTF-16": lambda text: text.encode("utf-16"),
    "in a gzip": lambda text: gzip.compress(text.encode()),
}


def totals(path: Path) -> list[tuple[object, ...]]:
    found = read(path).totals
    assert found is not None
    names = ("kind", "name", "calls", "total_ns", "min_ns", "max_ns")
    return list(zip(*(found.column(name).to_pylist() for name in names), strict=True))


@pytest.mark.parametrize("form", FORMS)
def test_each_name_is_a_row_of_the_kind_that_its_table_is_of(tmp_path: Path, form: str) -> None:
    file = tmp_path / "tally.txt"
    file.write_bytes(FORMS[form](TEXT))
    assert totals(file) == WANTED
    found = read(file)
    assert (found.dropped, found.problems) == (0, ())
    summary = summarize([found])
    assert summary.api_ns == {"zeModuleCreate": 1_500_000_000}
    assert {row["name"] for row in summary.rows.to_pylist()} == {row[1] for row in WANTED[2:]}


def test_rows_that_somebody_cut_out_are_missed(tmp_path: Path) -> None:
    file = tmp_path / "tally.txt"
    cut = "\n".join("[...]" if "gemm_kernel" in each else each for each in TEXT.splitlines())
    file.write_text(cut)
    assert "5.0% of the total that iprof states" in read(file).problems[0]


def test_a_tally_that_ends_anywhere_gives_whole_rows_or_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "tally.txt"
    for end in range(len(TEXT)):
        file.write_text(TEXT[:end])
        try:
            found = totals(file)
        except FormatError as error:
            assert "\n" not in str(error)
            continue
        assert [row[1] for row in found] == [row[1] for row in WANTED][: len(found)]

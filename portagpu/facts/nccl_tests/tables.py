"""What nccl-tests and rccl-tests print: read from their text and JSON, and written as both.

Sources: https://github.com/NVIDIA/nccl-tests from b188a15 (2017) to a0b82b2 (2.19.6),
``src/util.cu``, ``src/common.cu`` and ``print_header`` of older ``src/*.cu``;
https://github.com/ROCm/rccl-tests to ae3e635 (2024), the same files. Layouts of the text:

- 2017: ``bytes N type [op|root] time algbw busbw res``, times in ms;
- 2019: ``size count type [redop|root] time algbw busbw error``, times in µs; ``error`` is the
  largest deviation, and rccl-tests marks one out of bounds with an asterisk;
- since 2022: ``size count type redop root time algbw busbw #wrong``; ``#wrong`` counts elements,
  and is "N/A" where nothing was checked. Columns of options (``i_min``, ``sidebw``, ``timestamp``)
  are skipped, and columns that an author removed may be missing.

Each has a second half for the operation in place, or only that half. The environment in a JSON
document may hold secrets: it is neither read nor written.
"""

from __future__ import annotations

from portagpu.facts.formats.cleaning import clean_streams
from portagpu.facts.nccl_tests.json_text import read_json, write_json
from portagpu.facts.nccl_tests.model import (
    PLACES,
    REDUCTIONS,
    ROOTED,
    TYPE_NAMES,
    PerfTable,
    RankDevice,
    Row,
    Timing,
    fitting_operations,
    item_bytes,
    operation_of,
)
from portagpu.facts.nccl_tests.text import HEADER, TextReader, write_text
from portagpu.facts.readings.model import FormatError

__all__ = [
    "PLACES",
    "REDUCTIONS",
    "ROOTED",
    "TYPE_NAMES",
    "PerfTable",
    "RankDevice",
    "Row",
    "Timing",
    "fitting_operations",
    "item_bytes",
    "operation_of",
    "read_tables",
    "write_json",
    "write_text",
]


def read_tables(text: str) -> tuple[PerfTable, ...]:
    """Every table in ``text``, which is a program's output, several of them, or its JSON.

    Prefixes of lines (``srun --label``, ``mpirun --tag-output``) and lines of the library's log are
    removed. A line that breaks off is left out, with a sentence in ``problems``. Raises FormatError
    where no row can be read.
    """
    if text.lstrip("\ufeff \t\r\n")[:1] == "{":
        return (read_json(text),)
    cut = "" if text.endswith("\n") else text[text.rfind("\n") + 1 :].rstrip()
    found: list[PerfTable] = []
    for stream in clean_streams(text, lambda each: HEADER.search(each) is not None):
        found += TextReader().read(stream, cut)
    if not any(table.rows for table in found):
        said = next((problem for table in found for problem in table.problems), "")
        raise FormatError(
            f"there is no row of a table of nccl-tests or rccl-tests{': ' * bool(said)}{said}"
        )
    return tuple(table for table in found if table.rows)

"""What an annotation costs, against torch's ``record_function``.

    python tests/benchmarks/annotate_overhead.py [--repeats N]

Each row times ours and torch's in turn in one process, in both orders, and compares the medians;
the time of an empty loop is taken off both. The last rows run while torch's profiler records. The
figures belong to the machine and its load. The bounds are those of a block where nothing listens:
1 microsecond, and a tenth of ``record_function``.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any, Final

import torch
from torch.profiler import record_function

import portagpu as pg
from tests.benchmarks.overhead import compare

BOUND_US: Final = 1.0
BOUND_RATIO: Final = 0.1
OWN: Final = "with record_function('x'): pass"
IDLE: Final = (
    ("block", "with pg.annotate('x'): pass", OWN),
    ("block with a label", "with pg.annotate('x', step=3): pass", OWN),
    ("block with five labels", "with pg.annotate('x', a=1, b=2, c='c', d=0.5, e=True): pass", OWN),
    ("decorated function", "ours()", "theirs()"),
    ("block of a handle", "with gpu.annotate('x'): pass", OWN),
    ("range of torch's name", "pg.range_push('x'); pg.range_pop()", OWN),
)
RECORDING: Final = IDLE[:2]


@pg.annotate("x")
def ours() -> None:
    """Nothing."""


@record_function("x")
def theirs() -> None:
    """Nothing."""


def table(
    title: str, rows: tuple[tuple[str, str, str], ...], repeats: int, *, judged: bool
) -> None:
    """Time and print the rows."""
    names: dict[str, Any] = {"pg": pg, "gpu": pg.backend(), "record_function": record_function}
    names |= {"ours": ours, "theirs": theirs}
    print(f"\n{title:<26}{'us':>8}{'own us':>9}{'ratio':>8}{'within' if judged else '':>9}")
    for name, our_call, own_call in rows:
        our_ns, own_ns = compare(our_call, own_call, names, repeats)
        ratio = our_ns / own_ns
        good = our_ns <= 1e3 * BOUND_US and ratio <= BOUND_RATIO
        within = ("yes" if good else "no") if judged else ""
        print(f"{name:<26}{our_ns / 1e3:>8.2f}{own_ns / 1e3:>9.2f}{ratio:>8.3f}{within:>9}")


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=41)
    options = parser.parse_args()
    gpu = pg.backend()
    print(
        f"torch {torch.__version__} on {gpu.device}, medians of {options.repeats} rounds, both "
        f"orders; listening: {gpu.listens()}"
    )
    table("nothing listens", IDLE, options.repeats, judged=True)
    # a profile that is thrown away, and no longer than what it can hold
    with torch.profiler.profile():
        table("torch's profiler records", RECORDING, min(options.repeats, 7), judged=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())

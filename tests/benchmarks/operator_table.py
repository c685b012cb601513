"""``python -m tests.benchmarks.operator_table``: every operator and dtype of torch's database here.

A pair is run, excepted by torch in a direction, not compared, not claimed, or failed.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter

import torch

import portagpu
from portagpu.suites.search.operators.area import KINDS, judged
from portagpu.suites.search.operators.calls import class_of
from portagpu.suites.search.operators.database import claimed_dtypes, dtype_name, operators

DTYPES = (
    torch.float64, torch.float32, torch.float16, torch.bfloat16,
    torch.complex128, torch.complex64, torch.complex32,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=KINDS, action="append")
    parser.add_argument("--dtype", action="append")
    parser.add_argument("--part", default="0/1", help="of the operators: number/of how many")
    given = parser.parse_args()
    part, parts = map(int, given.part.split("/"))
    gpu = portagpu.backend("cpu")
    gpu.set_float32_precision("ieee")
    columns = ("run", "whole", "excepted", "not compared", "not claimed", "failed", "comparisons")
    rows: dict[tuple[str, str], Counter[str]] = {}
    reasons: Counter[str] = Counter()
    slow: list[tuple[float, str]] = []
    for number, ((name, variant), operator) in enumerate(operators().items()):
        kind = class_of(operator)
        if number % parts != part or (given.kind and kind not in given.kind):
            continue
        claimed = claimed_dtypes(operator, gpu.device.type)
        dtypes = {*map(dtype_name, DTYPES), *claimed}
        for dtype in sorted(dtypes):
            if given.dtype and dtype not in given.dtype:
                continue
            row = rows.setdefault((kind, dtype), Counter())
            if dtype not in claimed:
                row["not claimed"] += 1
                continue
            started = time.monotonic()
            found = judged(gpu, name, variant, dtype)
            slow.append((time.monotonic() - started, f"{name} {variant} {dtype}"))
            aside = set(found.aside)
            reasons.update(aside)
            row["comparisons"] += found.compared
            row["run"] += bool(found.compared)
            row["whole"] += bool(found.compared) and not aside and not found.difference
            row["excepted"] += any(each.startswith("excepted") for each in aside)
            row["not compared"] += any(each.startswith("not compared") for each in aside)
            if found.difference:
                row["failed"] += 1
                print(f"FAILED {kind} {found.difference}", flush=True)
    print(f"{'class':12} {'dtype':10}", *(f"{each:>12}" for each in columns))
    total: Counter[str] = Counter()
    for (kind, dtype), row in sorted(rows.items()):
        print(f"{kind:12} {dtype:10}", *(f"{row[each]:12}" for each in columns))
        total.update(row)
    print(f"{'all':12} {'':10}", *(f"{total[each]:12}" for each in columns))
    for reason, count in reasons.most_common():
        print(f"{count:6} pairs: {reason}")
    for seconds, pair in sorted(slow, reverse=True)[:8]:
        print(f"{seconds:6.1f} s: {pair}")
    print(f"{sum(seconds for seconds, _ in slow):.0f} s")


if __name__ == "__main__":
    main()

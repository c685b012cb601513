"""How often regressions are false, and how soon true ones are found, on simulated series.

    python -m tests.benchmarks.false_alarms

The first table has the share of stores in which anything is found although nothing changed, at a
stated rate of 5 %. "drift" breaks what the method assumes: each value is half of its neighbour's
deviation and new noise. The second table has the share of series whose change is found, within one
run of its place, this many runs after it: one series of 60 runs before the change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from portagpu.reports.history.regressions import change_points

if TYPE_CHECKING:
    from collections.abc import Callable

STORES = 2000
SIZES = ((1, 20), (1, 100), (100, 50))


def drift(random: Any, count: int) -> Any:
    noise = random.normal(size=count)
    for at in range(1, count):
        noise[at] += 0.5 * noise[at - 1]
    return noise


NOISES: dict[str, Callable[[Any, int], Any]] = {
    "normal": lambda random, count: random.normal(size=count),
    "heavy tails (Cauchy)": lambda random, count: random.standard_cauchy(size=count),
    "skewed (lognormal)": lambda random, count: random.lognormal(size=count),
    "three values": lambda random, count: random.integers(0, 3, size=count).astype(float),
    "drift": drift,
}


def main() -> None:
    random = np.random.default_rng(16)
    heads = [f"{number} of {count} runs" for number, count in SIZES]
    print(f"{'false alarms':24}", *(f"{head:>16}" for head in heads))
    for name, noise in NOISES.items():
        shares = []
        for number, count in SIZES:
            stores = max(STORES // number, 400)
            found = sum(
                bool(change_points([noise(random, count) for _ in range(number)]))
                for _ in range(stores)
            )
            shares.append(found / stores)
        print(f"{name:24}", *(f"{share:16.1%}" for share in shares))
    print(f"\n{'runs after':24}", *(f"{after:6}" for after in (4, 5, 6, 8, 10, 20)))
    for factor in (2, 3, 5, 10):
        shares = []
        for after in (4, 5, 6, 8, 10, 20):
            found = 0
            for _ in range(400):
                values = random.normal(size=60 + after)
                values[60:] += factor
                found += any(abs(each.at - 60) <= 1 for each in change_points([values]))
            shares.append(found / 400)
        print(f"{f'{factor} standard deviations':24}", *(f"{share:6.0%}" for share in shares))


if __name__ == "__main__":
    main()

"""How far losses and norms over ranks are from one process's.

``python -m tests.benchmarks.parallel_losses``. The trainings are those of
``tests/full/test_parallel.py``, which holds them to a bound.
"""

from __future__ import annotations

from portagpu.runs.world import Ranks
from tests.full.test_parallel import CLIP, RUNS, WRONG, furthest
from tests.support.parallel_ranks import reference


def main() -> None:
    """Print a row for each form of parallelism."""
    with Ranks() as ranks:
        for world in (2, 4):
            runs = [each for each in RUNS if each[0] == world and each is not WRONG]
            calls = {
                str(number): (function, {**options, "clip": CLIP})
                for number, (_, function, options) in enumerate(runs)
            }
            done = ranks.run(
                "tests.support.parallel_ranks:several",
                world,
                arguments={"calls": calls},
                backend="cpu",
                timeout_s=400.0,
            )
            for number, (_, function, options) in enumerate(runs):
                expected = reference(dtype=options.get("dtype", "float64"), clip=CLIP)
                off = max(furthest(each[str(number)], expected) for each in done.values)
                print(f"{world} ranks  {off:8.1e}  {function} {options}", flush=True)


if __name__ == "__main__":
    main()

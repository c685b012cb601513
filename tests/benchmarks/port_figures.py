"""Recall of ``portagpu port`` over uses of torch.cuda in public code, and the time to lint files.

    python -m tests.benchmarks.port_figures [FOLDER]

The uses are those of ``torch_cuda_uses.toml``, each written in its form without a guard. With a
folder its Python files are linted and timed too.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass

from portagpu.train.port.lint import lint
from portagpu.train.port.reading import Source
from portagpu.train.port.rewrite import Rewritten, rewrite_source
from portagpu.train.port.rules import load_rules
from tests.benchmarks.coverage import Use, load_uses

_FORMS = {
    "device": "torch.zeros(2, device=torch.cuda.{name}())",
    "with": "with torch.cuda.{name}(0):\n    pass",
    "type": "isinstance(x, torch.cuda.{name})",
    "reference": "f = torch.cuda.{name}",
    "call": "torch.cuda.{name}()",
}


@dataclass(frozen=True, slots=True)
class Recall:
    """Shares of the uses: found at all, and rewritten by the safe rules and by all."""

    found: float
    safe: float
    unsafe: float


def recall() -> Recall:
    """Over all uses but is_available, which asks and breaks nothing."""
    uses = [each for each in load_uses() if each.name != "is_available"]
    total = sum(each.uses for each in uses)
    shares = {"found": 0, "safe": 0, "unsafe": 0}
    for each in uses:
        for key, hit in _hits(each).items():
            shares[key] += each.uses * hit
    return Recall(**{key: count / total for key, count in shares.items()})


def _hits(use: Use) -> dict[str, bool]:
    text = f"import torch\n{_FORMS.get(use.form, 'torch.cuda.{name}').format(name=use.name)}\n"
    source = Source("use.py", "python", text, "utf-8", b"")
    safe, unsafe = (rewrite_source(source, load_rules(), unsafe=each) for each in (False, True))
    if not isinstance(safe, Rewritten) or not isinstance(unsafe, Rewritten):
        return {"found": False, "safe": False, "unsafe": False}
    return {
        "found": bool(safe.done or safe.left),
        "safe": not safe.left,
        "unsafe": not unsafe.left,
    }


def main() -> None:
    """Print the figures."""
    found = recall()
    print(f"found {found.found:.1%}, safe {found.safe:.1%}, with --unsafe {found.unsafe:.1%}")
    for folder in sys.argv[1:]:
        wall, start = time.perf_counter(), sum(os.times()[:4])
        result = lint([folder], processes=len(os.sched_getaffinity(0)))
        cpu, wall = sum(os.times()[:4]) - start, time.perf_counter() - wall
        count = f"{result.files} files, {len(result.findings)} uses, {len(result.unread)} not read"
        print(f"{folder}: {count}, {cpu:.1f} CPU s, {wall:.1f} s")


if __name__ == "__main__":
    main()

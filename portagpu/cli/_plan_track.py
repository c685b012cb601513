"""``portagpu plan --track FILE:FUNCTION``: the user's own module beside the closed form."""

from __future__ import annotations

import runpy
import sys
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from portagpu.base.text import error_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from portagpu.train.planning import Model, Recipe, Tracked


def tracked_lines(spec: str, model: Model, recipe: Recipe) -> tuple[list[str], dict[str, Any]]:
    """Lines of text, and plain values: torch's trackers, the closed form, and their disagreement.

    The function of ``spec`` takes nothing and returns what :func:`portagpu.train.planning.track`
    takes: what builds the module, what makes a step's loss, and what makes the optimiser. It is of
    one rank that shares nothing, and is compared with the closed form of ``model`` and ``recipe``
    without a device's own needs. Raises ValueError for a spec that leads to no such function."""
    from portagpu.base.units import size
    from portagpu.facts.targets import load_target
    from portagpu.train.planning import Layout, estimate, track

    found = _run(spec, lambda: track(*_parts(spec)))
    alone = replace(recipe, sharding="ddp", foreach=False)
    expected = estimate(model, alone, Layout(), target=load_target("cpu-x86-64")).expected
    off = found.disagreement(expected)
    parts = ", ".join(f"{name} {size(part)}" for name, part in found.parts.items())
    lines = [
        f"torch's tracker on {spec}, one rank: {size(found.peak)} ({parts})",
        f"closed form of the same step: {size(expected)}, {off:+.1%} from the tracker",
    ]
    document = {"peak": found.peak, "parts": dict(found.parts), "closed_form": expected}
    return lines, document | {"disagreement": off}


def _run(spec: str, work: Callable[[], Tracked]) -> Tracked:
    """Run what calls the user's code.

    It prints to stderr, does not end this program, and imports what lies beside it, as a script.
    """
    folder = str(Path(spec).resolve().parent)
    sys.path.insert(0, folder)
    try:
        with redirect_stdout(sys.stderr):
            return work()
    except SystemExit as error:
        raise ValueError(f"{spec} ended the program (exit code {error.code})") from error
    finally:
        sys.path.remove(folder)


def _parts(spec: str) -> tuple[Any, Any, Any]:
    path, _, name = spec.rpartition(":")
    if not path or not name.isidentifier():
        raise ValueError(f"{spec!r} is no FILE:FUNCTION, as in train.py:planned")
    try:
        function = runpy.run_path(path, run_name="__portagpu_plan__").get(name)
        parts = None if function is None else function()
    except Exception as error:
        raise ValueError(f"{spec} did not run: {error_line(error)}") from error
    if function is None:
        raise ValueError(f"{path} has no function {name}")
    if not (isinstance(parts, tuple) and len(parts) == 3 and all(map(callable, parts))):
        raise ValueError(f"{spec} returns no (build, step, optimizer), which are functions")
    return parts

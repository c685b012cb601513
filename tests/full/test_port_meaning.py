"""A rewrite means the same on CUDA, and runs on a CPU: programs run before and after it.

The oracle is the original program under a fake CUDA build: what reaches torch.cuda, in which order,
with which arguments, from which line, and where CUDA is opened. Forms of use are of public
training code, in words of our own; their sources are next to them."""

from __future__ import annotations

import random
from textwrap import dedent, indent

import pytest

pytest.importorskip("libcst")

from typing import Final

from portagpu.train.port.reading import Source
from portagpu.train.port.rewrite import Rewritten, rewrite_source
from portagpu.train.port.rules import load_rules
from tests.conftest import ROOT
from tests.support.fake_cuda_programs import Ran, as_the_original, run
from tests.support.looped import looped

pytestmark = pytest.mark.torch

SUPPORT: Final = ROOT / "tests" / "support"


def ported(text: str) -> Rewritten | None:
    new = rewrite_source(
        Source("a.py", "python", text, "utf-8", text.encode()), load_rules(), unsafe=False
    )
    assert new is None or isinstance(new, Rewritten), new
    return new


FORMS: Final = [
    each
    for each in (SUPPORT / "port_forms.txt").read_text(encoding="utf-8").strip().split("\n\n")
    if not each.startswith("#")
]

IMPORTS: Final = """\
import functools
import io
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
"""

START: Final = (
    "rank = int(os.environ.get('LOCAL_RANK', '0'))\nx, model = torch.ones(2), nn.Linear(2, 2)\n"
)


def both(text: str, **options: object) -> tuple[Ran, Ran, Rewritten | None]:
    """The original and the rewritten program under the fake build."""
    new = ported(text)
    before = run(text, **options)  # type: ignore[arg-type]
    if new is None:
        return before, before, None
    after = run(new.text, **options)  # type: ignore[arg-type]
    return before, as_the_original(after, text, new.text), new


def check_same(text: str, **options: object) -> None:
    before, after, new = both(text, **options)
    shown = text if new is None else new.text
    assert after.error.partition(":")[0] == before.error.partition(":")[0], f"{shown}\n{after}"
    assert (after.line, after.notes) == (before.line, before.notes), shown
    assert (after.printed, after.opened) == (before.printed, before.opened), shown
    assert after.seeds == before.seeds, shown


@looped("number", range(60))
def test_random_programs_mean_the_same_on_cuda(number: int) -> None:
    """Several forms in one program, at its top and in functions that are called later."""
    rng = random.Random(number)  # noqa: S311 - no secret
    parts = [IMPORTS, START]
    for place in range(rng.randint(2, 5)):
        form = rng.choice(FORMS)
        if rng.random() < 0.5:
            parts.append(f"{form}\n")
        else:
            parts.append(f"def f{place}(x, model, rank):\n{indent(form, '    ')}\n")
            parts.append(f"f{place}(x, nn.Linear(2, 2), {rng.randrange(2)})\n")
    env = {"LOCAL_RANK": "1"} if rng.random() < 0.3 else {}
    check_same("".join(parts), env=env)


@looped("form", FORMS)
def test_a_form_means_the_same_on_cuda(form: str) -> None:
    check_same(f"{IMPORTS}{START}{form}\n")


@looped("form", FORMS)
def test_a_form_means_the_same_in_a_function_of_a_rank(form: str) -> None:
    """As in ranks of ``mp.spawn``: two GPUs, and a rank whose number nobody set as current."""
    body = indent(dedent(START + form), "    ").replace("os.environ.get('LOCAL_RANK', '0')", "1")
    check_same(f"{IMPORTS}def main():\n{body}\nmain()\n")


def test_a_cpu_runs_what_was_rewritten_or_a_line_says_why_not() -> None:
    """What raises on a CPU is in a line that was left with its reason."""
    wrong = []
    for form in FORMS:
        new = ported(f"{IMPORTS}{START}{form}\n")
        if new is None:
            continue
        ran = run(new.text, gpus=0)
        left = {
            each.line + new.text.split(each.code)[0].count("portagpu as pg") for each in new.left
        }
        if ran.error and not left:
            wrong.append((form, ran.error))
    assert not wrong, "\n".join(map(str, wrong))

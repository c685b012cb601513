"""How many calls of its own functions a program makes: waste in every process shows as a number.

What reads the machine or waits does not count: it does more where there is more to read or a load.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from tests.support.forked_verbs import ForkedVerbs

pytestmark = pytest.mark.usefixtures("forked")

COUNTED: Final = """
import collections, json, os, sys, threading
import portagpu, portagpu_cpu

ROOTS = tuple(os.path.dirname(each.__path__[0]) for each in (portagpu, portagpu_cpu))
calls = []

def package(code):
    # as in portagpu/facts/targets or portagpu_cpu/identity.py; empty for what is not this project's
    root = next((each for each in ROOTS if code.co_filename.startswith(f"{{each}}/portagpu")), "")
    return "/".join(code.co_filename[len(root) + 1:].split("/")[:3]) if root else ""

def count(frame, event, argument):
    if event == "call" and frame.f_code.co_name != "<module>":
        calls.append((frame.f_code, frame.f_back and frame.f_back.f_code))

threading.setprofile(count)
sys.setprofile(count)
try:
    {program}
finally:
    sys.setprofile(None)
    threading.setprofile(None)
    packages = [(package(code), package(caller) if caller else "") for code, caller in calls]
    apart = {{"portagpu/facts/host", "portagpu/base/patience.py"}}
    own = collections.Counter(
        called for called, caller in packages if called and not apart & {{called, caller}}
    )
    print(json.dumps(own), file=sys.stderr)
"""
TRAINING: Final = """
    import torch
    gpu = portagpu.backend("cpu")
    with gpu.autocast(torch.bfloat16), portagpu.annotate("step"):
        torch.ones(4, 4) @ torch.ones(4, 4)
    gpu.synchronize()
"""
VERB: Final = """
    from portagpu.cli import main
    assert main(sys.argv[1:]) == 0
"""


def own_calls(written: str) -> dict[str, int]:
    """The number of calls by package, as the counted program wrote it last."""
    found: dict[str, int] = json.loads(written.splitlines()[-1])
    assert found["portagpu/facts/targets"] > 100, f"the calls were not counted: {found}"
    return found


@pytest.mark.torch
def test_six_lines_of_training_make_few_calls() -> None:
    """One target of 35 is read; with all of them it was 75,000 calls."""
    code = COUNTED.format(program=TRAINING.strip())
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
    )
    found = own_calls(ended.stderr)
    assert sum(found.values()) < 3000, found


@pytest.mark.parametrize(
    ("words", "most"),
    [
        ("collectives choose --target nvidia-h100-sxm --ranks 16 --bytes 64M", 5000),
        ("targets show nvidia-h100-sxm", 4000),
    ],
)
def test_a_verb_about_one_product_makes_few_calls(
    verbs: ForkedVerbs, words: str, most: int
) -> None:
    ended = verbs(*words.split(), body=COUNTED.format(program=VERB.strip()))
    ended.ok()
    found = own_calls(ended.err)
    assert sum(found.values()) < most, found

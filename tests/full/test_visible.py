"""Masks are read as the runtimes and torch read them, and a child sees what it is given."""

from __future__ import annotations

import random
import unicodedata

import pytest

from portagpu.facts import visible
from tests.support.visibility_rows import DEVICES
from tests.torch.test_visible import NAMES, masks


@pytest.mark.parametrize("runtime", ["cuda", "rocm"])
def test_no_text_makes_reading_fail(runtime: str) -> None:
    rng = random.Random(5)  # noqa: S311 - reproducible, not secret
    for _ in range(3000):
        environment = masks(rng, runtime)
        found = visible.resolve(environment, DEVICES, runtime)
        assert set(found.devices) <= set(DEVICES)
        assert len(set(found.devices)) == len(found.devices), "a device is shown twice"
        for problem in (*found.problems, *visible.diagnose(environment, runtime)):
            assert not any(unicodedata.category(each)[0] == "C" for each in problem.message)


@pytest.mark.parametrize("runtime", ["cuda", "rocm"])
@pytest.mark.parametrize(
    ("mask", "shows"),
    [
        (",".join(map(str, range(10_000))), 8),
        (",".join(["-7"] * 10_000), 0),
        (",".join(["GPU-c333", "3"] * 5_000), 1),
        (",".join(["3", *(f"GPU-{at:016x}" for at in range(9_999))]), 1),
        ("9" * 10_000, 0),
        ("," * 10_000, 0),
    ],
    ids=["numbers", "negative", "mixed", "uuids", "digits", "commas"],
)
def test_ten_thousand_entries_are_one_clear_line(runtime: str, mask: str, shows: int) -> None:
    for name in NAMES[runtime]:
        found = visible.resolve({name: mask}, DEVICES, runtime)
        assert len(found.devices) == shows
        kinds = [problem.id for problem in found.problems]
        assert len(kinds) == len(set(kinds)), "a problem is said once, not once an entry"
        assert all(len(problem.message) < 250 for problem in found.problems)

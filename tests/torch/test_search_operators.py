"""What a nudged result is off by, and what becomes of a sample that a device cannot hold."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from portagpu.suites.search.operators import database, pair
from portagpu.suites.search.operators.compare import _change

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("right", "other", "changes"),
    [
        (None, None, 0.0),
        # what is not a number of a continuum says nothing, on either side
        ([1, 2, 3], [1, 3, 2], [0.0, INF, INF]),
        ([True, False], [True, True], [0.0, INF]),
        (4, 5, INF),
        # a change divided by the relative change of the input, here an eighth
        ([1.0, 2.0, 4.0], [1.0, 2.5, 3.0], [0.0, 4.0, 8.0]),
        ([1j, 0j], [1j, 3 + 4j], [0.0, 40.0]),
        ([NAN, INF, -INF], [NAN, INF, -INF], [0.0, 0.0, 0.0]),
        ([NAN, 1.0, INF], [1.0, NAN, 1.0], [INF, INF, INF]),
        # other shapes cannot be compared
        ([1.0, 2.0], [1.0], [INF, INF]),
        ([1.0], None, [INF]),
    ],
)
def test_a_changed_result_is_off_by(right: Any, other: Any, changes: Any) -> None:
    given = [None if each is None else torch.tensor(each) for each in (right, other)]
    assert _change(given[0], given[1], 0.125).tolist() == changes


NO_KERNEL = NotImplementedError("\"copy_\" not implemented for 'Half'")
SAID = "mul in float16, sample 0 (2 x 2), forward: it raised NotImplementedError"


@pytest.mark.processes(1, "the first import of torch's common_utils asks a program")
@pytest.mark.parametrize(
    ("device", "errors", "difference", "aside"),
    [
        # torch declares the dtype, and the CPU is a device that its database knows
        ("cpu", [NO_KERNEL, NO_KERNEL], SAID, []),
        ("cpu", [NO_KERNEL, None], "", ["torch has kernels for some samples alone"]),
        ("cpu", [NotImplementedError("later"), None], SAID, []),
        ("acme", [NO_KERNEL, None], "", ["torch has no kernel of it for acme"]),
        ("acme", [None, None], "", []),
    ],
)
def test_a_sample_that_cannot_be_copied_to_the_device(
    device: str,
    errors: list[Exception | None],
    difference: str,
    aside: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run(self: Any, number: int, *_: object) -> None:
        if (error := errors[number]) is not None:
            raise error
        self.ran.add(database.FORWARD)

    every = [(number, None, True) for number in range(len(errors))]
    monkeypatch.setattr(pair._Pair, "_sample", run)
    monkeypatch.setattr(pair._Pair, "_lacks", lambda *_: False)
    monkeypatch.setattr(pair, "samples", lambda *_: every)
    monkeypatch.setattr(pair, "shown", lambda _: "2 x 2")
    monkeypatch.setattr(pair, "has_backward", lambda *_: False)
    monkeypatch.setattr(database, "own_reason", lambda *_: "")
    monkeypatch.setattr(database, "declared", lambda *_: "")
    operator: Any = SimpleNamespace(name="mul", variant_test_name="")
    found = pair.judge(SimpleNamespace(type=device), operator, torch.float16)
    assert found.difference.startswith(difference)
    assert bool(found.difference) == bool(difference)
    assert found.aside == [f"not compared: {each}" for each in aside]

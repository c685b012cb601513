"""Children that tests fork (``tests/support/forked.py``) are what they would be if started."""

from __future__ import annotations

import json
from contextlib import nullcontext

import pytest

pytest.importorskip("torch")

from typing import TYPE_CHECKING

from tests.process.test_forked import _without_times
from tests.support.forked import starting

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Child

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("forked")]


def test_a_forked_run_and_a_started_one_give_the_same_document(child: Callable[..., Child]) -> None:
    words = ("-m", "portagpu", "conform", "--backend", "cpu", "--json", "-")
    only = ("--only", "rng/seed-*", "--only", "collectives/barrier*", "--only", "graphs")
    ended, documents = [], []
    for way in (nullcontext, starting):
        with way():
            ended.append(child(*words, *only))
        documents.append(json.loads(ended[-1].out))
    assert [each.code for each in ended] == [0, 0], ended[0].err + ended[1].err
    forked, started = map(_without_times, documents)
    assert forked == started
    verdicts = {each["id"].partition("/")[0]: each["verdict"] for each in started["results"]}
    assert verdicts == {"rng": "PASS", "collectives": "PASS", "graphs": "SKIP"}
    lines = [[line.split() for line in each.err.splitlines()] for each in ended]
    assert [line[:1] for line in lines[0]] == [line[:1] for line in lines[1]]

"""Backends that claim more than they have fail every case of what they claim."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

pytest.importorskip("torch")

from portagpu.base.errors import Unsupported
from portagpu.devices.contract import Backend, Capability
from portagpu.runs.results.run import Verdict
from portagpu_cpu.backend import CpuBackend
from tests.support import suite_harness

pytestmark = pytest.mark.torch

CLAIMED = frozenset(Capability) - {Capability.COLLECTIVES}
"""All that a case without ranks can ask for."""


def _refuses(self: Any, *arguments: Any, **options: Any) -> None:
    raise Unsupported("there is nothing here")


def _answers_none(self: Any, *arguments: Any, **options: Any) -> None:
    return None


def _backend(name: str, answer: Any) -> type[CpuBackend]:
    """A backend whose every primitive and every method above them is that answer."""
    members = {
        each: answer
        for each, _ in inspect.getmembers(CpuBackend, inspect.isfunction)
        if not each.startswith("_")
    }
    return type(name, (CpuBackend,), members)


EMPTY = {"refuses": _backend("Refuses", _refuses), "answers-none": _backend("None", _answers_none)}
CASES = [
    name
    for name, case in suite_harness.everything().items()
    if case.listed.capability
    and set(case.listed.capability) <= CLAIMED
    and case.listed.outcome != "undefined"
    and not case.needs_ranks
    # ipc_collect returns nothing, also where it works, and tensors are shared by torch
    and Capability.IPC not in case.listed.capability
]

CAPABILITIES = {name: set(suite_harness.everything()[name].listed.capability) for name in CASES}


@pytest.mark.parametrize("answer", EMPTY)
def test_empty_backend_fails_every_case_of_what_it_claims(
    monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    gpu = suite_harness.open_device(monkeypatch, EMPTY[answer], capabilities=CLAIMED)
    verdicts = {name: suite_harness.run(gpu, name).verdict for name in CASES}
    passed = {name: str(each) for name, each in verdicts.items() if each is not Verdict.FAIL}
    needed = {each for name in CASES for each in CAPABILITIES[name]}
    assert needed == CLAIMED - {Capability.IPC}, f"cases need {sorted(needed)} alone"
    assert not passed, f"a backend that {answer} does not fail {passed}"


def test_every_primitive_of_the_contract_is_empty_in_them() -> None:
    for kind in EMPTY.values():
        own = set(vars(kind))
        missing = {name for name in Backend.__abstractmethods__ if name not in own}
        assert not missing, f"{', '.join(sorted(missing))} still works"

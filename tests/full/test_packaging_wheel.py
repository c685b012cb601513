"""The wheel: it tests, measures and brings up without the checkout."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Child


@pytest.mark.torch
def test_installed_wheel_runs_its_own_cases_and_measures(
    installed: Callable[..., Child],
) -> None:
    ended = installed(
        "-m", "portagpu", "conform", "--backend", "cpu", "--only", "rng", "--json", "-"
    )
    conformance = json.loads(ended.ok())
    assert conformance["counts"]["PASS"] > 20
    ended = installed("-m", "portagpu", "bench", "launch", "--backend", "cpu", "--json", "-")
    measures = {entry["id"]: entry for entry in json.loads(ended.out)["results"]}
    assert measures["launch/issue"]["value"] > 0, ended.err


@pytest.mark.torch
def test_installed_wheel_brings_a_machine_up_to_the_gate_that_fails(
    installed: Callable[..., Child],
) -> None:
    ended = installed("-m", "portagpu", "bringup", "--target", "amd-mi300x", "--json", "-")
    assert json.loads(ended.out)["first_failed"] == "identity/target", ended.err
    assert ended.code == 1

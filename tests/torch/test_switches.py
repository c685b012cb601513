"""Variables for debugging: a run states them, and what cannot be seen under them is not judged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from portagpu.base.environment import (
    ASYNCHRONY,
    CACHING,
    COMPILER,
    Switch,
    switched_on,
    unjudged,
)
from portagpu.facts.vendors import vendors
from portagpu.runs.results.run import Run, RunInfo, new_run
from portagpu.suites.conformance import case

if TYPE_CHECKING:
    from collections.abc import Sequence


def on(vendor: str, **environment: str) -> list[tuple[str, str | None]]:
    """The switches that are on for a device of that vendor, and what each changes."""
    switches = vendors()[vendor].switches if vendor else ()
    return [(each.variable, each.changes) for each in switched_on(environment, switches)]


@pytest.mark.parametrize(
    ("vendor", "variable", "value", "changes"),
    [
        # CUDA C++ Programming Guide: 0 is the default, 1 disables asynchronous launches
        ("nvidia", "CUDA_LAUNCH_BLOCKING", "1", ASYNCHRONY),
        ("nvidia", "CUDA_LAUNCH_BLOCKING", "0", ""),
        ("nvidia", "CUDA_LAUNCH_BLOCKING", "", ""),
        ("nvidia", "AMD_SERIALIZE_KERNEL", "3", ""),
        # HIP environment variables: 0 off, 1 before, 2 after, 3 both
        ("amd", "AMD_SERIALIZE_KERNEL", "3", ASYNCHRONY),
        ("amd", "AMD_SERIALIZE_KERNEL", "1", ASYNCHRONY),
        ("amd", "AMD_SERIALIZE_KERNEL", "0", ""),
        ("amd", "AMD_SERIALIZE_COPY", "2", ASYNCHRONY),
        ("amd", "HIP_LAUNCH_BLOCKING", "1", ASYNCHRONY),
        ("amd", "CUDA_LAUNCH_BLOCKING", "1", ""),
        ("amd", "HSA_ENABLE_SDMA", "0", None),
        ("amd", "HSA_ENABLE_SDMA", "1", ""),
        ("amd", "HSA_DISABLE_CACHE", "1", None),
        # torch compares with "1"
        ("", "TORCHDYNAMO_DISABLE", "1", COMPILER),
        ("", "TORCHDYNAMO_DISABLE", "true", ""),
        ("", "TORCH_COMPILE_DISABLE", "1", COMPILER),
        # torch asks whether it is set
        ("", "PYTORCH_NO_CUDA_MEMORY_CACHING", "0", CACHING),
        ("", "PYTORCH_NO_HIP_MEMORY_CACHING", "1", CACHING),
        ("", "TRITON_INTERPRET", "1", None),
        ("", "TRITON_INTERPRET", "0", ""),
    ],
)
def test_a_variable_is_on_at_the_values_that_its_document_states(
    vendor: str, variable: str, value: str, changes: str | None
) -> None:
    found = on(vendor, **{variable: value, "PATH": "/bin"})
    assert found == ([] if changes == "" else [(variable, changes)])


@pytest.mark.parametrize(
    ("needed", "reason"),
    [
        (
            [ASYNCHRONY],
            "AMD_SERIALIZE_COPY is '3', with which copies run one by one: unset it",
        ),
        ([COMPILER], ""),
        ([], ""),
    ],
)
def test_only_what_is_changed_is_not_judged(needed: Sequence[str], reason: str) -> None:
    environment = {"AMD_SERIALIZE_COPY": "3", "HSA_DISABLE_CACHE": "1"}
    found = switched_on(environment, vendors()["amd"].switches)
    assert len(found) == 2
    assert unjudged(needed, found, environment) == reason


def test_a_switch_that_nothing_can_match_is_refused() -> None:
    with pytest.raises(ValueError, match="X changes 'colour', not asynchrony, compiler, caching"):
        Switch("X", "all is red", "colour")
    with pytest.raises(ValueError, match="no variable changes 'colour', only asynchrony"):
        case("rng/x", spec="It works.", unaltered=("colour",))


def test_a_run_states_what_is_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setenv("HSA_ENABLE_SDMA", "0")
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "0")
    run = new_run()
    assert run.info.switches == {"TRITON_INTERPRET": "1", "HSA_ENABLE_SDMA": "0"}
    document = run.to_json()
    assert Run.from_json(document).info == run.info
    del document["run"]["switches"]
    assert Run.from_json(document).info.switches == {}, "an older document has no such key"
    assert RunInfo(id="r", started="2026-01-01T00:00:00Z").switches == {}
    recording = {"name": "x", "sha256": None, "source": None}
    assert new_run(replay=[recording]).info.switches == {}, "this machine was not judged"

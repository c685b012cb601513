"""A test that runs once for each value: it runs all, and names the one that fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.looped import looped

if TYPE_CHECKING:
    from pathlib import Path


def test_every_value_is_run_with_a_folder_of_its_own(tmp_path: Path) -> None:
    seen: list[tuple[int, str, bool]] = []

    @looped("one", [1, 2])
    @looped("other,same", [("a", True), ("b", False)])
    def each(tmp_path: Path, one: int, other: str, same: bool) -> None:
        (tmp_path / "file").touch(exist_ok=False)
        seen.append((one, other, same))

    each(tmp_path=tmp_path)
    assert seen == [(1, "a", True), (1, "b", False), (2, "a", True), (2, "b", False)]


def test_a_failure_states_its_values() -> None:
    @looped("seed", range(5))
    def each(seed: int) -> None:
        assert seed != 3

    with pytest.raises(AssertionError) as caught:
        each()
    assert caught.value.__notes__ == ["with seed=3"]


def test_nothing_to_run_is_an_error() -> None:
    with pytest.raises(AssertionError, match="no value of seed"):
        looped("seed", [])

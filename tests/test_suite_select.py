"""Parts of the suite, its order, and what failed last time."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from portagpu.suite import Selection
from portagpu.suite.ids import base_id
from portagpu.suite.machine import Listed
from portagpu.suite.select import SelectionError

if TYPE_CHECKING:
    from pathlib import Path

CASES = [
    Listed(id=f"rng/case-{letter}[n{n}]", area="rng", spec="Passes.")
    for letter in "abcdefg"
    for n in range(3)
]


def ids(selection: Selection) -> list[str]:
    return [each.id for each in selection.of(CASES)]


def document(path: Path, **verdicts: str) -> Path:
    results = [
        {"id": f"rng/case-{name[0]}[{name[2:]}]", "verdict": verdict}
        for name, verdict in verdicts.items()
    ]
    path.write_text(json.dumps({"results": results}), encoding="utf-8")
    return path


def test_shuffle_is_a_permutation_that_repeats() -> None:
    first = ids(Selection(shuffle=7))
    assert first == ids(Selection(shuffle=7))
    assert first != ids(Selection(shuffle=8))
    assert sorted(first) == sorted(ids(Selection())) != first
    assert not Selection(shuffle=7).partial


@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_shards_are_the_whole_and_share_no_function(n: int) -> None:
    parts = [ids(Selection(shard=(i, n))) for i in range(1, n + 1)]
    assert sorted(each for part in parts for each in part) == sorted(ids(Selection()))
    functions = [{base_id(each) for each in part} for part in parts]
    assert sum(map(len, functions)) == len(set().union(*functions))


@pytest.mark.parametrize(
    ("shard", "said"),
    [((0, 2), "no part 0 of 2"), ((3, 2), "parts are 1/2 to 2/2"), ((8, 8), "is empty")],
)
def test_a_part_that_is_none_is_refused(shard: tuple[int, int], said: str) -> None:
    with pytest.raises(SelectionError, match=said):
        ids(Selection(shard=shard))


def test_last_failed_takes_failures_and_errors_alone(tmp_path: Path) -> None:
    file = document(
        tmp_path / "result.json", a_n0="FAIL", b_n1="PASS", c_n2="ERROR", d_n0="INCONCLUSIVE"
    )
    for given in (file, tmp_path):
        chosen = Selection(failed_in=given)
        assert ids(chosen) == ["rng/case-a[n0]", "rng/case-c[n2]"]
        assert chosen.partial
    assert ids(Selection(failed_in=file, only=("rng/case-c",))) == ["rng/case-c[n2]"]


def test_last_failed_without_a_failure_says_so(tmp_path: Path) -> None:
    file = document(tmp_path / "good.json", a_n0="PASS")
    with pytest.raises(SelectionError, match=r"no case that is asked for failed in .*good\.json"):
        ids(Selection(failed_in=file))


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "7", '{"results": [7]}', '{"results": {"id": 1}}', "[" * 100_000]
)
def test_last_failed_of_another_file_is_one_line(tmp_path: Path, text: str) -> None:
    file = tmp_path / "other.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(SelectionError, match="no result document") as caught:
        ids(Selection(failed_in=file))
    assert "\n" not in str(caught.value)
    with pytest.raises(SelectionError, match="cannot be read: No such file"):
        ids(Selection(failed_in=tmp_path / "missing.json"))

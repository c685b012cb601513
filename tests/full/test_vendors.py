"""Vendors of distributions that are broken, slow or in each other's way: named, and in no way."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.process.test_vendors import distribute

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.forked_verbs import ForkedVerbs


@pytest.mark.parametrize(
    "table", ["kernel_log", "answers", "health"], ids=["events", "answers", "health"]
)
def test_bring_up_is_inconclusive_without_a_table(
    verbs: ForkedVerbs, tmp_path: Path, table: str
) -> None:
    distribute(
        tmp_path, "other", "other", "VENDOR = Vendor(name='other', tables=Path(__file__).parent)"
    )
    (tmp_path / f"{table}.toml").write_text("[", "utf-8")
    (tmp_path / "log.txt").write_text(
        "[    1.000000] Linux version 6.8.0-45-generic (buildd@lcy02) #45-Ubuntu SMP\n",
        "utf-8",
    )
    words = ("bringup", "--replay", str(tmp_path / "log.txt"), "--json", "-")
    ended = verbs(*words, path=[tmp_path])
    assert ended.code == 3, ended
    document = json.loads(ended.out)
    (result,) = [each for each in document["results"] if each["id"] == "environment/declarations"]
    assert result["verdict"] == "INCONCLUSIVE"
    assert f"the table {table}.toml of the vendor 'other' is left out" in result["reason"]
    words = ("info", "--json", "-")
    remarks = json.loads(verbs(*words, path=[tmp_path]).ok())["remarks"]
    assert any(f"the table {table}.toml of the vendor 'other'" in each for each in remarks)

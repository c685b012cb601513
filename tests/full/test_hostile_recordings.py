"""More mutations of recordings: each is read, or refused in one line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from portagpu.base.errors import RecordingError
from portagpu.checks.bringup import BringupOptions, bringup
from portagpu.checks.info import collect
from portagpu.checks.recordings.replay import Recording
from portagpu.facts.host import tree
from portagpu.machine.inventory.join import MAX_GPUS
from tests.support.fuzz_trees import own
from tests.support.host_trees import build
from tests.support.read_parts import read_all
from tests.vendor_texts.test_hostile_recordings import (
    mutated_texts_are_read,
    mutated_trees_are_read,
)

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("machine", list(own()), ids=lambda machine: machine.name)
def test_no_mutation_of_a_tree_breaks_its_readers(tmp_path: Path, machine: Any) -> None:
    mutated_trees_are_read(machine, 25, tmp_path)


def test_no_mutation_of_a_text_breaks_what_is_made_of_it(tmp_path: Path) -> None:
    mutated_texts_are_read(2, tmp_path)


def test_one_long_line_of_a_table_is_read_in_linear_time() -> None:
    text = "GPU  POWER  GFX_CLK\n" + "0 " + "x " * (1 << 21) + "\n"
    assert read_all(text + "0  10 W  100 MHz\n").readings


def test_a_tree_that_multiplies_its_reads_by_links_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree, "MAX_READS", 20_000)
    zones = {f"sys/class/thermal/thermal_zone{n}": "../zone" for n in range(200)}
    trips = {f"sys/class/zone/trip_point_{n}_type": "passive" for n in range(200)}
    root = build(tmp_path, trips | {"sys/class/zone/temp": "1"}, zones)
    with pytest.raises(RecordingError, match="more than any machine has") as caught:
        collect(machine=Recording(root))
    assert str(caught.value).isprintable()


def test_a_machine_of_the_most_gpus_is_judged(tmp_path: Path) -> None:
    head = "index, name, pci.bus_id, memory.total [MiB], driver_version, ecc.mode.current\n"
    rows = (
        f"{n}, NVIDIA H200 {n}, 00000000:{n >> 5:02x}:{n & 31:02x}.0, {n} MiB, {n}.1, Enabled\n"
        for n in range(MAX_GPUS)
    )
    (tmp_path / "csv").write_text(head + "".join(rows))
    run = bringup(BringupOptions(replay=Recording(tmp_path / "csv")))
    assert not [result.reason for result in run.results if "the check broke" in result.reason]
    assert len(run.results) > MAX_GPUS

"""``portagpu monitor``: the loop over real child processes, what changes over time, the verb."""

from __future__ import annotations

import json
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.process.test_monitor import _start
from tests.support.waits import wait_until

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("words", [(), ("--json", "-")], ids=["text", "json"])
def test_it_ends_when_its_reader_has_enough(words: tuple[str, ...]) -> None:
    with _start("--interval", "0.1", *words, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline()
        child.stdout.close()
        assert child.wait(timeout=60) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    path = tmp_path / "samples.jsonl"
    child = _start("--interval", "0.1", "--json", str(path))
    wait_until(lambda: path.exists() and path.read_text().count("\n") > 2, "no sample was written")
    child.send_signal(number)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 130
    assert err.decode().splitlines()[-1] == "portagpu: interrupted"
    assert [json.loads(line) for line in path.read_text().splitlines()], "lines are whole"

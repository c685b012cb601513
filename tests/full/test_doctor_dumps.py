"""The doctor on dumps of torch's flight recorder, real and written ones, next to torch's own."""

from __future__ import annotations

import pickle
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from portagpu.checks.collectives_doctor import DoctorOptions, doctor
from portagpu.checks.collectives_doctor.flight_recorder import load_data
from portagpu.facts.readings.model import FormatError
from tests.process.test_doctor_dumps import KINDS, OPEN, document, entry, evidence, problems
from tests.process.test_doctor_dumps import real as real

if TYPE_CHECKING:
    from pathlib import Path


HOSTILE_KEYS = {
    # the hash of each takes the process's stack, or longer than anybody waits
    "nested half a million deep": b"\x80\x02})" + b"\x85" * 500_000 + b"K\x01s.",
    "nested half a million deep among others": (
        b"\x80\x02}(K\x01K\x01)" + b"\x85" * 500_000 + b"K\x01u."
    ),
    "two to the power of sixty": (
        b"\x80\x02})q\x00" + b"".join(b"h%c\x86q%c" % (n, n + 1) for n in range(60)) + b"K\x01s."
    ),
}


@pytest.mark.torch
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["rank_?", "rank_?.json"])
def test_real_dumps_of_gloo_are_solved(real: Path, kind: str, form: str) -> None:
    files = sorted((real / kind).glob(form))
    assert len(files) == 3
    run = doctor(DoctorOptions(paths=files))
    assert problems(run) == KINDS[kind]
    if KINDS[kind] and not form.endswith("json"):
        # the line of the program, and none of torch's
        assert "hang_ranks.py:" in run.results[-1].reason
        assert "distributed_c10d.py" not in run.results[-1].reason


def test_a_dump_of_a_thousand_ranks_that_wait_in_a_circle_names_them(tmp_path: Path) -> None:
    """Each rank waits for half of all others: every pair is looked at once."""
    world = 1000
    members = str(list(range(world)))
    config = {name: {"name": name, "desc": name, "ranks": members} for name in "ab"}
    for rank in range(world):
        name = "a" if rank < world // 2 else "b"
        call = entry(0, process_group=(name, name), **OPEN)
        data = pickle.dumps(document([call], pg_config=config), 2)
        (tmp_path / f"rank_{rank}").write_bytes(data)
    run = doctor(DoctorOptions(paths=[tmp_path]))
    assert Counter(each for each, _ in problems(run)) == {"other-group": world}
    assert evidence(run, "dumps") == "ranks 0 to 999: 1000 calls in 2 groups"


@pytest.mark.parametrize("kind", HOSTILE_KEYS)
def test_a_key_whose_hash_never_ends_is_refused(kind: str) -> None:
    with pytest.raises(FormatError, match="has a tuple as a key"):
        load_data(HOSTILE_KEYS[kind])

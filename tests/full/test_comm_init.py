"""``gpu.comm.init`` and ``shutdown``: every launcher, and every way to fail, on real processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.ranks.test_comm_init import alone as alone
from tests.ranks.test_comm_init import check_afterwards, free_port, values
from tests.support.waits import LOST_S

if TYPE_CHECKING:
    from pathlib import Path

    from portagpu.runs.world import Ranks

pytest.importorskip("torch")

pytestmark = pytest.mark.torch


def test_torchrun_restarts_ranks_with_the_store_that_they_had(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, sys\n"
        "import portagpu\n"
        "with portagpu.backend().comm.init(timeout_s=30) as world:\n"
        "    line = f'joined {world.rank} {world.launcher} {world.local_rank}'\n"
        "    os.write(1, f'{line}\\n'.encode())\n"
        "sys.exit(os.environ['TORCHELASTIC_RESTART_COUNT'] == '0')\n"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    found = subprocess.run(
        [*command, "--nproc_per_node=2", "--max-restarts=1", str(script)],
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "PORTAGPU_BACKEND": "cpu"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    joined = sorted(line for line in found.stdout.splitlines() if line.startswith("joined"))
    assert found.returncode == 0, found.stderr
    assert joined == ["joined 0 torchrun 0"] * 2 + ["joined 1 torchrun 1"] * 2


@pytest.mark.parametrize(
    ("victim", "how", "members"),
    [
        (0, "stopped", [0, 1, 2, 3]),
        (0, "killed", [1, 2, 3]),
        (1, "killed", [0, 1, 2, 3]),
    ],
)
def test_a_checked_call_names_who_is_lost_also_with_the_store(
    ranks: Ranks, victim: int, how: str, members: list[int]
) -> None:
    options = {"victim": victim, "how": how, "lost": [victim], "members": members}
    reported = values(ranks, "checked_is_lost", 4, port=free_port(), **options)
    for rank, found in enumerate(reported):
        if rank != victim:
            assert (found[0], found[2]) == ("RankLost", [victim])


@pytest.mark.parametrize(
    ("victims", "how", "after", "world"),
    [
        ([1], "killed", "groups", 2),
        ([1], "killed", "nothing", 4),
        ([2], "stopped", "groups", 4),
        ([1, 3], "ends", "checked", 4),
        ([0], "killed", "checked", 3),
        ([0], "stopped", "nothing", 3),
    ],
)
def test_who_is_lost_before_shutdown_is_named_by_all_others(
    ranks: Ranks, victims: list[int], how: str, after: str, world: int
) -> None:
    options = {"victims": victims, "how": how, "after": after, "lost": victims}
    reported = values(ranks, "lost_before_shutdown", world, port=free_port(), **options)
    survivors = [found for rank, found in enumerate(reported) if rank not in victims]
    for found in survivors:
        name, message, lost = found["first"]
        assert (name, lost) == ("RankLost", victims)
        words = "ranks 1 and 3" if len(victims) > 1 else f"rank {victims[0]}"
        assert message.startswith(words)
        assert f"look at the output of {words}" in message
        assert "\n" not in message
        rest = {"again": None, "alone": 1, "threads": ["MainThread"], "said": ""}
        assert found == {**found, **rest}
    # the connection to rank 0, which holds the store, may end for each rank in another way
    said = {re.sub(r"\(Dist\w+: .*?\);", "", found["first"][1]) for found in survivors}
    assert len(said) == 1


@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_rank_that_is_lost_during_init_is_named(ranks: Ranks, victim: int, how: str) -> None:
    reported = values(
        ranks,
        "fail",
        3,
        victim=victim,
        how=how,
        lost=[victim],
        port=free_port(),
        world_size=[3] * 3,
    )
    for rank, found in enumerate(reported):
        if rank == victim:
            assert found is None
            continue
        name, message, lost = found["first"]
        assert (name, lost) == ("RankLost", [victim])
        assert message.startswith(f"rank {victim}")
        assert "\n" not in message
        check_afterwards(found)


@pytest.mark.parametrize("how", ["tcp", "file"])
@pytest.mark.parametrize("late", [0, 1])
def test_a_rank_that_comes_when_all_others_have_ended_ends_well(
    ranks: Ranks, tmp_path: Path, late: int, how: str
) -> None:
    """Rank 0 holds the store, which is gone when rank 1 comes."""
    file = tmp_path / "store"
    method = f"tcp://127.0.0.1:{free_port()}" if how == "tcp" else f"file://{file}"
    options = {"late": late, "note": str(tmp_path), "method": method}
    for rank, found in enumerate(values(ranks, "comes_late", 3, **options)):
        first, said, group, threads = found
        assert (first, group, threads) == (None, False, ["MainThread"])
        warned = f"rank {late} did not shut down within {LOST_S:g} s and may still be at work; "
        assert said == ("" if rank == late else f"{warned}going on without it\n")
    assert not file.exists()

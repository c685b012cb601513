"""The prolog, epilog and HealthCheckProgram that are generated, also as a real Slurm runs them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.support import slurm_cluster
from tests.support.fleet_scripts import FAULT, scripts_in
from tests.support.waits import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.slurm_cluster import Cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with slurm_cluster.running() as started:
        yield started


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    return scripts_in(tmp_path)


def state_and_reason(cluster: Cluster, node: str) -> tuple[str, str]:
    said = cluster.ask("sinfo", "-h", "-N", "-n", node, "-p", "all", "-o", "%T|%E")
    state, _, reason = said.partition("|")
    return state, reason


def wait(cluster: Cluster, node: str, *states: str) -> str:
    """The reason of a node, once it has one of these states."""
    found: list[tuple[str, str]] = []

    def is_there() -> bool:
        found[:] = [state_and_reason(cluster, node)]
        return found[0][0] in states

    wait_until(is_there, lambda: f"{node} is {found}")
    return found[0][1]


def wait_for_checks(checked: Path, *nodes: str) -> None:
    """Wait until a check of each node has begun and ended from now on."""
    begun = Counter(checked.read_text().split())

    def are_through() -> bool:
        # the first to end may have begun before
        ended = Counter(checked.read_text().split()) - begun
        return all(ended[node] >= 2 for node in nodes)

    wait_until(are_through, f"no check of {nodes}")


def test_slurm_drains_for_a_fault_and_the_check_resumes_its_own(
    cluster: Cluster, scripts: Path, tmp_path: Path
) -> None:
    """As slurmd runs the HealthCheckProgram, on every node each second."""
    # slurm.conf takes no blanks in the name; slurmd passes on no variable but the node's name
    program = tmp_path / "hc.sh"
    # a line in "checked" for each check that has ended
    checked = tmp_path / "checked"
    program.write_text(
        f"#!/bin/sh\nSLURM_CONF={cluster.conf} '{scripts}/healthcheck.sh'\nended=$?\n"
        f"echo $SLURMD_NODENAME >>'{checked}'\nexit $ended\n"
    )
    program.chmod(0o755)
    lines = f"HealthCheckProgram={program}\nHealthCheckInterval=1\nHealthCheckNodeState=IDLE\n"
    cluster.ask("scontrol", "update", "NodeName=m2", "State=DRAIN", "Reason=by hand")
    for node in ("m1", "m2", "m3"):
        (tmp_path / node).write_text("1\n")
    with cluster.configured(lines):
        assert wait(cluster, "m1", "drained") == FAULT
        assert wait(cluster, "m3", "drained") == FAULT
        assert state_and_reason(cluster, "m2") == ("drained", "by hand")
        assert state_and_reason(cluster, "m4")[0].startswith("idle")
        # a reason that an administrator changed is theirs, though the check drained the node
        cluster.ask("scontrol", "update", "NodeName=m3", "State=DRAIN", "Reason=keep it")
        # what could not be judged changes nothing
        (tmp_path / "m1").write_text("3\n")
        wait_for_checks(checked, "m1")
        assert state_and_reason(cluster, "m1")[0] == "drained"
        for node in ("m1", "m2", "m3"):
            (tmp_path / node).unlink()
        # it does not answer for a moment
        wait(cluster, "m1", "idle", "idle*")
        wait_for_checks(checked, "m2", "m3")
        assert state_and_reason(cluster, "m2") == ("drained", "by hand")
        assert state_and_reason(cluster, "m3") == ("drained", "keep it")
    cluster.heal()


def test_slurm_drains_a_node_whose_prolog_finds_a_fault(
    cluster: Cluster, scripts: Path, tmp_path: Path
) -> None:
    (tmp_path / "prolog.sh").symlink_to(scripts / "prolog.sh")
    (tmp_path / "h1").write_text("1\n")
    with cluster.configured(f"Prolog={tmp_path}/prolog.sh\nPrologFlags=Alloc\n"):
        out = cluster.folder / "well"
        cluster.ask("sbatch", "-p", "nvidia", "-w", "h2", "-o", str(out), "--wrap=echo ran")
        cluster.ask("sbatch", "-p", "nvidia", "-w", "h1", "-o", "/dev/null", "--wrap=true")
        assert wait(cluster, "h1", "drained").lower().startswith("prolog error")
        wait_until(lambda: out.exists() and out.read_text(), cluster.log)
        assert out.read_text() == "ran\n"
        assert state_and_reason(cluster, "h2")[0] in ("idle", "completing", "allocated")
    cluster.heal()

"""A fleet run on an emulated cluster, end to end, with a node that is killed meanwhile.

    python tests/benchmarks/fleet_slurm.py [--seconds S]

It starts Slurm with six nodes on this machine and runs a step of ``S`` seconds on four of them. One
node is killed while its step runs. The command is repeated after the node is back. The times are
those of the machine, of Slurm's own scheduling (a second for a job) and of its limit for a node
that does not answer, which is 2 s here and 300 s by default.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from portagpu.reports.fleet.record import FleetRecord, Step, StepState
from portagpu.reports.fleet.request import FleetOptions
from portagpu.reports.fleet.run import FleetProgress, run
from tests.support import slurm_cluster

NODE = Path(__file__).parents[1] / "support/fleet_node.py"


class Kill(FleetProgress):
    """Kills the node of the first step that runs."""

    def __init__(self, cluster: slurm_cluster.Cluster) -> None:
        self.cluster, self.killed = cluster, ""

    def changed(self, step: Step, record: FleetRecord) -> None:
        if step.state is StepState.RUNNING and not self.killed:
            self.killed = step.id
            self.cluster.crash(step.id)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=2.0)
    seconds = parser.parse_args().seconds
    started = time.monotonic()
    with slurm_cluster.running() as cluster:
        print(f"cluster of six nodes up: {time.monotonic() - started:.2f} s")
        os.environ["SLURM_CONF"] = str(cluster.conf)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        options = FleetOptions(
            what="bringup",
            nodes="m[1-4]",
            folder=cluster.shared / "run",
            program=[sys.executable, str(NODE)],
            arguments=[f"sleep={seconds}"],
            minutes=5,
            poll_s=0.2,
        )
        kill = Kill(cluster)
        show("first run, a node killed", options, kill)
        cluster.heal()
        show("the same command again", options, FleetProgress())
        show("nothing left to do", options, FleetProgress())


def show(what: str, options: FleetOptions, progress: FleetProgress) -> None:
    """Run, and print the time and what became of each node."""
    started = time.monotonic()
    record = run(options, progress).record
    states = ", ".join(f"{step.id} {step.verdict or step.state}" for step in record.steps)
    print(f"{what}: {time.monotonic() - started:.2f} s: {states}")
    for step in record.steps:
        if step.state is StepState.LOST:
            print(f"  {step.id}: {step.reason}")


if __name__ == "__main__":
    main()

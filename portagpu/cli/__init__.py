"""The command line ``portagpu VERB``. Each verb has one module, imported when it is called."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from portagpu._version import __version__
from portagpu.cli._process import open_standard_files, prepare_output, signals_as_interrupts

if TYPE_CHECKING:
    from collections.abc import Sequence

VERBS: Final[dict[str, tuple[str, str]]] = {
    "info": (
        "portagpu.cli.info:info",
        "Show the hardware, torch, libraries, the matching target and every backend's status.",
    ),
    "record": (
        "portagpu.cli.info:record",
        "Save this machine's description to replay it elsewhere.",
    ),
    "monitor": (
        "portagpu.cli.monitor:monitor",
        "Watch all devices: on the terminal, as JSON lines, for Prometheus; finds stalled jobs.",
    ),
    "bringup": (
        "portagpu.cli.bringup:bringup",
        "Run the ordered bring-up checks on this machine and print one verdict.",
    ),
    "health": (
        "portagpu.cli.health:health",
        "Judge this node once, with an action for each finding; for people and schedulers.",
    ),
    "conform": (
        "portagpu.cli.conform:conform",
        "Run the conformance suite: does the device do what its backend claims?",
    ),
    "bench": (
        "portagpu.cli.bench:bench",
        "Measure how fast a device is, from matrix products to a training step and collectives.",
    ),
    "screen": (
        "portagpu.cli.screen:screen",
        "Look for silent corruption: exact work for a while, every result judged.",
    ),
    "profile": (
        "portagpu.cli.profile:profile",
        "Run a command under the vendor's profiler or torch's, and check what was captured.",
    ),
    "collectives": (
        "portagpu.cli.collectives:collectives",
        "Verify, choose, tune and diagnose collectives, and place ranks.",
    ),
    "trace": (
        "portagpu.cli.trace:trace",
        "Summarise, show, compare and diagnose what a profiler captured.",
    ),
    "port": (
        "portagpu.cli.port:port",
        "Find and rewrite what ties training programs to one vendor.",
    ),
    "occupancy": (
        "portagpu.cli.occupancy:occupancy",
        "Compute a kernel's occupancy, its limits, and how to raise it.",
    ),
    "plan": (
        "portagpu.cli.plan:plan",
        "Plan a training: memory of a GPU, and parallel layouts that fit, ranked by time.",
    ),
    "targets": (
        "portagpu.cli.targets:targets",
        "List the known targets, or show one with its facts and sources.",
    ),
    "matrix": (
        "portagpu.cli.matrix:matrix",
        "Show and run the matrix of all targets, compare runs, and keep their history.",
    ),
    "fleet": (
        "portagpu.cli.fleet:fleet",
        "Check many nodes through Slurm, ssh or Kubernetes, and say what they show together.",
    ),
    "report": (
        "portagpu.cli.report:report",
        "Write reports from result files: HTML, JUnit, OCP Test & Validation.",
    ),
    "compile": (
        "portagpu.cli.compile:compile_kernels",
        "Build the portable kernels for any architecture and check their machine code.",
    ),
    "docs": (
        "portagpu.cli.docs:docs",
        "Print a page of the documentation, such as one that an error names.",
    ),
}
"""Verb -> (module:command, one-line help). The command is a click command or group."""

GROUPS: Final[dict[str, tuple[str, ...]]] = {
    "Check a machine, health first, then bringup": (
        *("health", "bringup", "monitor", "info", "record", "screen", "fleet"),
    ),
    "Test a product, conform --level smoke first": ("conform", "bench", "compile", "collectives"),
    "Train, port lint first": ("port", "plan", "occupancy", "profile", "trace"),
    "Understand, docs first": ("docs", "report", "matrix", "targets"),
}
"""The verbs as ``portagpu --help`` lists them, and with which one each group begins."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code. Never raises, never prints a traceback."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    open_standard_files()
    prepare_output()
    try:
        if words == ["--version"]:
            # before click is imported, which takes longer than everything else here
            print(f"portagpu {__version__}", flush=True)
            return 0
        from portagpu.base.paths import check_unpacked, working_folder
        from portagpu.cli._call import begin_call, run

        begin_call(words)
        check_unpacked()
        # raises if the working folder is gone: paths mean nothing, and torch's libraries abort
        working_folder()
        with signals_as_interrupts():
            return run(words)
    except BaseException as error:  # noqa: BLE001 - the one place where every error ends
        from portagpu.cli._process import report

        return report(error)

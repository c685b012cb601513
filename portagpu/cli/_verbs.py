"""The verbs of ``portagpu``: the table of their modules, each imported when its verb is called."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import click

from portagpu._version import __version__
from portagpu.base.text import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

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


class VerbGroup(click.Group):
    """A click group over a table of verbs like ``VERBS``, so that --help imports no verb."""

    def __init__(
        self, *args: Any, verbs: Mapping[str, tuple[str, str]] = VERBS, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._verbs = verbs

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._verbs)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return self._load(cmd_name) if cmd_name in self._verbs else None

    def _load(self, verb: str) -> click.Command:
        module, _, attribute = self._verbs[verb][0].partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command), verb  # noqa: S101 - the table is ours
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        verbs = self._verbs
        if name not in verbs and not name.startswith("-"):
            root = ctx.find_root().command
            elsewhere = list(root.paths(name)) if isinstance(root, VerbGroup) else []
            if elsewhere:
                hint = f"did you mean 'portagpu {elsewhere[0]}'?"
            else:
                hint = did_you_mean(name, verbs, f"verbs are {', '.join(verbs)}")
            raise click.UsageError(f"there is no verb {name!r}: {hint}", ctx)
        return super().resolve_command(ctx, args)

    def paths(self, name: str) -> Iterator[str]:
        """Where a verb of that name is in this group: "matrix history compare"."""
        for verb in self._verbs:
            if verb == name:
                yield verb
            command = self._load(verb)
            if isinstance(command, VerbGroup):
                yield from (f"{verb} {below}" for below in command.paths(name))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups = GROUPS if self._verbs is VERBS else {"Verbs": tuple(self._verbs)}
        for title, names in groups.items():
            with formatter.section(title):
                formatter.write_dl([(name, self._verbs[name][1]) for name in names])


@click.group(
    cls=VerbGroup,
    invoke_without_command=True,
    subcommand_metavar="VERB ...",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="portagpu", message="%(prog)s %(version)s")
@click.pass_context
def app(ctx: click.Context) -> None:
    """Check and measure NVIDIA GPUs, AMD GPUs and CPUs through torch."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
        ctx.exit(2)


def run(arguments: Sequence[str]) -> int:
    """Run the verb that ``arguments`` name and return its exit code; raise its errors.

    A verb returns its exit code, or None for 0.
    """
    result = app.main(args=list(arguments), prog_name="portagpu", standalone_mode=False)
    code = result if isinstance(result, int) else 0
    if code:
        # a verb that says why in its own lines, and has nothing to write
        from portagpu.cli._error_document import write_error

        write_error(code, "nothing was written: standard error says why")
    sys.stdout.flush()
    return code

"""The click group of the verbs: listed from a table, imported when called."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from portagpu._version import __version__
from portagpu.base.text import did_you_mean
from portagpu.cli import VERBS
from portagpu.cli._document import write_error

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


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
        with formatter.section("Verbs"):
            formatter.write_dl([(name, text) for name, (_, text) in self._verbs.items()])


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
        write_error(code, "nothing was written: standard error says why")
    sys.stdout.flush()
    return code

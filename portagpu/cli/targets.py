"""``portagpu targets``: the list of targets, and one target with its facts and sources."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from portagpu.base.text import printable
from portagpu.cli._common import STDOUT, TARGET, check_outputs, json_option, terminal, write_json
from portagpu.cli._tables import print_table
from portagpu.cli._verbs import VerbGroup

if TYPE_CHECKING:
    from portagpu.facts.targets import Fact, Target

_HEAD: Final = ("id", "product", "architecture", "vendor", "facts")


_VERBS: Final[dict[str, tuple[str, str]]] = {
    "list": (
        "portagpu.cli.targets:list_targets",
        "List every target of this installation and of installed packages.",
    ),
    "show": (
        "portagpu.cli.targets:show_target",
        "Show every fact of a target, with its unit, confidence and sources.",
    ),
    "check": (
        "portagpu.cli.targets:check_files",
        "Check target files; the exit code is 1 if one is wrong.",
    ),
}
"""As ``portagpu.cli._verbs.VERBS``."""


@click.group(
    cls=VerbGroup, verbs=_VERBS, invoke_without_command=True, subcommand_metavar="[VERB ...]"
)
@click.pass_context
def targets(context: click.Context) -> None:
    """List the targets (the default), show one, or check target files."""
    if context.invoked_subcommand is None:
        context.invoke(list_targets, json_to=None)


@click.command("list")
@json_option
def list_targets(json_to: str | None) -> None:
    """List every target of this installation and of installed packages."""
    from portagpu.facts.targets import load_targets, target_problems

    check_outputs(json_to)
    found = list(load_targets().values())
    entries = [
        {"id": t.id, "product": t.product, "arch": t.arch.name, "vendor": t.vendor} for t in found
    ]
    write_json({"schema": "portagpu.targets/1", "targets": entries}, json_to)
    if json_to == STDOUT:
        return
    rows = [
        (t.id, t.product or "any", t.arch.name, t.vendor, str(len(t.facts)))
        for t in sorted(found, key=lambda target: target.id)
    ]
    print_table(sys.stdout, terminal(), _HEAD, rows, {"facts"})
    for problem in target_problems():
        left_out = f"left out: the targets of {problem.entry_point}: {problem.reason}"
        click.echo(printable(left_out))


@click.command("show")
@click.argument("name", type=TARGET, metavar="ID|FILE")
@json_option
def show_target(name: str, json_to: str | None) -> None:
    """Show every fact of a target, with its unit, confidence and sources."""
    from portagpu.facts.targets import load_target

    check_outputs(json_to)
    target = load_target(name)
    write_json(document(target), json_to)
    if json_to != STDOUT:
        click.echo("\n".join(_lines(target)))


@click.command("check")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
def check_files(files: tuple[str, ...]) -> int:
    """Check target files; the exit code is 1 if one is wrong."""
    from portagpu.base.errors import TargetError
    from portagpu.facts.targets import parse_target

    wrong = 0
    for name in files:
        try:
            target = parse_target(Path(name))
        except TargetError as error:
            wrong = 1
            click.echo(printable(str(error)), err=True)
        else:
            click.echo(printable(f"{name}: {target.id}, {len(target.facts)} facts"))
    return wrong


def document(target: Target) -> dict[str, Any]:
    """The document that ``targets show --json`` writes."""
    return {
        "schema": "portagpu.target/1",
        "id": target.id,
        "product": target.product,
        "vendor": target.vendor,
        "arch": target.arch.name,
        "scope": str(target.scope),
        "claims": list(target.claims),
        "facts": {
            key: {
                "value": list(fact.value) if isinstance(fact.value, tuple) else fact.value,
                "unit": fact.unit,
                "confidence": str(fact.confidence),
                "source": list(fact.source),
                "scope": str(fact.scope),
                "note": fact.note,
            }
            for key, fact in sorted(target.facts.items())
        },
        "expectations": [
            {
                "metric": each.metric,
                "reference": each.reference,
                "lower": each.lower,
                "upper": each.upper,
                "unit": each.unit,
                "statistic": each.statistic,
                "shape": each.shape,
                "algorithm": each.algorithm,
                "ranks": each.ranks,
                "size_bytes": each.size_bytes,
                "dtype": each.dtype,
                "operands": each.operands,
                "contiguous": each.contiguous,
                "source": list(each.source),
                "dated": str(each.dated) if each.dated else None,
                "authority": str(each.authority),
                "note": each.note,
            }
            for each in target.all_expectations
        ],
    }


def _lines(target: Target) -> list[str]:
    """One line for each fact, with its note below it."""
    width = max(map(len, target.facts), default=0)
    lines = [
        f"{target.id}: {target.product or 'any product'}, {target.arch.name} of {target.vendor}",
        f"claims {', '.join(target.claims) or 'nothing'}",
        "",
    ]
    for key, fact in sorted(target.facts.items()):
        lines.append(f"{key:<{width}}  {_value(fact)}  [{', '.join(fact.source)}]")
        lines += [f"{'':<{width}}  {fact.note}"] if fact.note else []
    if target.all_expectations:
        lines += ["", "expected of measures:"]
    lines += [
        f"{each.metric:<{width}}  {each.reference:g} {each.unit}, {each.shape}  "
        f"[{', '.join(each.source)}{f', {each.dated}' if each.dated else ''}, {each.authority}]"
        for each in target.all_expectations
    ]
    return lines


def _value(fact: Fact) -> str:
    values = fact.value if isinstance(fact.value, tuple) else (fact.value,)
    return f"{', '.join(map(str, values))} {fact.unit or ''}".rstrip() + f", {fact.confidence}"

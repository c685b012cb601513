"""``portagpu port``: what ties programs to one vendor, found and rewritten."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from portagpu.base.errors import MissingDependency
from portagpu.base.plugins import install
from portagpu.base.text import error_line
from portagpu.base.units import count
from portagpu.cli._common import (
    STDOUT,
    check_kept,
    check_outputs,
    json_option,
    live_console,
    print_lines,
    text_stream,
    write_json,
)
from portagpu.cli._verbs import VerbGroup

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from portagpu.train.port.reading import Report
    from portagpu.train.port.rewrite import Rewriting
    from portagpu.train.port.rules import Unread


def require_libcst(verb: str) -> None:
    """Raise MissingDependency, with what to install, if libcst is not installed."""
    if find_spec("libcst") is None:
        raise MissingDependency(f"portagpu port {verb} needs libcst: {install('port')}")


def check_paths(paths: Sequence[str], json_to: str | None) -> None:
    """Raise UsageError for an empty path, and for an output that cannot be written or is read."""
    from portagpu.train.port.reading import files

    if "" in paths:
        raise click.UsageError("a path is empty: name files or folders ('.' is this one)")
    check_outputs(json_to)
    if json_to not in (None, STDOUT):
        check_kept(files(paths), json_to)


@contextlib.contextmanager
def _counted() -> Iterator[Report]:
    """Shows on a terminal how many of many files were judged, while it lasts."""
    console = live_console(sys.stderr)
    with contextlib.ExitStack() as shown:
        status = None if console is None else console.status("")

        def report(done: int, count: int) -> None:
            if status is None or count < _MIN_SHOWN:
                return
            if done == 1:
                shown.enter_context(status)
            status.update(f"{done} of {count} files")

        yield report


_MIN_SHOWN: Final = 100
"""Fewer files are judged before anybody looks."""


def unread_lines(unread: Sequence[Unread]) -> list[str]:
    """One line for each file that was not judged."""
    return [f"portagpu: {each.path} {each.why}" for each in unread]


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", type=click.Path())
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "sarif", "github"]),
    default="text",
    help="What to print: text, JSON, SARIF 2.1.0, or annotations of GitHub.",
)
@json_option
def lint(paths: tuple[str, ...], form: str, json_to: str | None) -> int:
    """List every use that ties a program to one vendor, and change nothing.

    Paths are files and folders: Python, C++ and CUDA sources, shell scripts, Dockerfiles and
    requirements. A comment "portagpu: ignore[PG001]" ends a line's finding. Exit codes: 0 if
    nothing breaks, 1 if something does, 3 if a file could not be read.
    """
    from portagpu.train.port import lint as engine

    require_libcst("lint")
    check_paths(paths, json_to)
    if json_to == "-":
        form = "json"
    with _counted() as report:
        result = engine.lint(paths, processes=len(os.sched_getaffinity(0)), report=report)
    if form in ("json", "sarif"):
        write_json(engine.document(result) if form == "json" else engine.sarif(result), "-")
    else:
        lines = engine.text(result) if form == "text" else engine.github(result)
        print_lines(list(lines), text_stream(json_to))
    if form == "text" and any(each.path.endswith(".py") for each in result.findings):
        shown = f"portagpu port rewrite {shlex.join(paths)}"
        print_lines([f"next: '{shown}' shows what it can write for you"], sys.stderr)
    if json_to not in (None, "-"):
        write_json(engine.document(result), json_to)
    print_lines(unread_lines(result.unread), sys.stderr)
    return result.exit_code


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", type=click.Path())
@click.option("--write", is_flag=True, help="Write the files; without it a diff is printed.")
@click.option(
    "--unsafe",
    is_flag=True,
    help="Also rewrite what may change the results on the GPU that the program was written for.",
)
@json_option
def rewrite(paths: tuple[str, ...], write: bool, unsafe: bool, json_to: str | None) -> int:
    """Rewrite Python programs so that the same source runs on every backend.

    Without --write a diff is printed and nothing is written; patch -p0 applies the diff. On a
    terminal, control characters of the source are shown as escapes. Each file is written as a
    whole or not at all. What cannot be decided stays, with the reason. Exit codes: 0 if nothing
    is left that breaks, 1 if something is, 3 if a file could not be read or written.
    """
    from portagpu.train.port.rewrite import rewrite as engine

    require_libcst("rewrite")
    check_paths(paths, json_to)
    with _counted() as report:
        result = engine(paths, unsafe=unsafe, report=report)
    stream = text_stream(json_to)
    if write:
        result.write()
    else:
        for each in result.changed:
            click.echo(each.shown_diff if stream.isatty() else each.diff, file=stream, nl=False)
    print_lines(list(_lines(result, write)), sys.stderr)
    print_lines(unread_lines(result.unread), sys.stderr)
    write_json(_document(result, write), json_to)
    return result.exit_code


def _lines(result: Rewriting, write: bool) -> Iterator[str]:
    from portagpu.train.port.lint import code_line

    for each in result.left:
        yield f"{each.path}:{each.line}: {each.rule.id} stays: {code_line(each)}"
        yield f"    {each.left}; write {each.rule.write}"
    done = sum(len(each.done) for each in result.files)
    word = "rewritten" if write else "to rewrite, shown and not written (--write writes)"
    places = f"{count(done, 'use')} in {count(len(result.changed), 'file')}"
    yield f"{places} {word}; {count(len(result.left), 'stays', 'stay')}"


def _document(result: Rewriting, write: bool) -> dict[str, object]:
    from portagpu.train.port.lint import SCHEMA, finding, unread

    return {
        "schema": SCHEMA,
        "written": [each.source.path for each in result.changed] if write else [],
        "done": [finding(each) for file in result.files for each in file.done],
        "left": [finding(each) for each in result.left],
        "unread": [unread(each) for each in result.unread],
    }


def _why_not_run(script: Path) -> str:
    """Why Python cannot read the script; Python runs archives and compiled files too."""
    if script.suffix == ".ipynb":
        return "is a notebook: export it first (jupyter nbconvert --to script)"
    if script.suffix != ".py" or not script.is_file():
        return ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns when it runs it
            compile(script.read_bytes(), script, "exec", dont_inherit=True)
    except SyntaxError as error:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        place = "" if error.lineno is None else f"line {error.lineno}, "
        return f"is not Python {version}: {place}{error.msg}"
    except (OSError, RecursionError, MemoryError, ValueError) as error:
        return f"cannot be read: {error_line(error)}"
    return ""


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("script", type=click.Path(exists=True, dir_okay=False), metavar="SCRIPT")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[ARGUMENT...]")
def run(script: str, words: tuple[str, ...]) -> int:
    """Run an unchanged program that was written for one vendor's GPUs on this backend.

    torch's names of that vendor, and its devices, answer with this backend's for the process; what
    was answered is listed at the end, by line. It is for trying a program, not for measurements,
    and refused where torch's own build for GPUs works. The exit code is the program's.
    """
    import runpy
    import traceback

    from portagpu.train.port.bridge import activate

    if why := _why_not_run(Path(script)):
        raise click.BadParameter(f"File {script!r} {why}", param_hint="'SCRIPT'")
    activate()
    sys.argv[:] = [script, *words]
    sys.path.insert(0, str(Path(script).resolve().parent))
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        print_lines([str(error.code)], sys.stderr)
        return 1
    except Exception:  # noqa: BLE001 - the program's own, shown as Python shows it
        traceback.print_exc()
        return 1
    return 0


_VERBS: Final[dict[str, tuple[str, str]]] = {
    "lint": (
        "portagpu.cli.port:lint",
        "List what ties programs to one vendor, why it breaks, and what to write.",
    ),
    "rewrite": (
        "portagpu.cli.port:rewrite",
        "Rewrite Python programs so that they run on every backend.",
    ),
    "run": (
        "portagpu.cli.port:run",
        "Run an unchanged program for one vendor's GPUs on this backend, to try it.",
    ),
}
"""As ``portagpu.cli._verbs.VERBS``."""


@click.group(cls=VerbGroup, verbs=_VERBS, subcommand_metavar="VERB ...")
def port() -> None:
    """Find and rewrite what ties training programs to one vendor, or try one unchanged."""

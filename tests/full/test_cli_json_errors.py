"""Every verb that is asked for JSON writes one document, whatever its exit code.

The verbs are those of the command tree, so that a new one is tested by itself."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytest

from portagpu.base.errors import BackendNotFound, MissingDependency, TargetNotFound
from portagpu.cli import main
from tests.unit.cli.test_cli_json_errors import VERBS, check, command_of

if TYPE_CHECKING:
    from pathlib import Path


ENDS: dict[int, list[BaseException]] = {
    1: [RuntimeError("something broke"), MemoryError()],
    2: [click.UsageError("something is wrong"), TargetNotFound("there is no target 'x'")],
    3: [BackendNotFound("cannot be used"), MissingDependency("is not installed")],
    130: [KeyboardInterrupt()],
}


def needed(command: click.Command, folder: Path) -> list[str]:
    """Words for what the verb cannot do without."""
    (folder / "input.json").write_text("{}\n")
    words: list[str] = []
    for each in command.params:
        if not each.required:
            continue
        value = "8"
        if isinstance(each.type, click.Choice):
            value = str(each.type.choices[0])
        elif isinstance(each.type, click.Path):
            value = str(folder / "input.json" if each.type.file_okay else folder)
        words += [each.opts[0], value] if isinstance(each, click.Option) else [value]
    return words


@pytest.mark.parametrize("names", VERBS, ids=" ".join)
def test_an_error_of_any_verb_has_its_document(
    names: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = command_of(names)
    (tmp_path / "input").mkdir()
    given = needed(command, tmp_path / "input")
    own = command.callback
    assert own is not None
    for code, errors in ENDS.items():
        for error in errors:

            @functools.wraps(own)
            def ends(*_: Any, error: BaseException = error, **__: Any) -> None:
                raise error

            monkeypatch.setattr(command, "callback", ends)
            said = "interrupted" if code == 130 else str(error) or "memory is exhausted"
            if isinstance(error, click.UsageError):
                said = error.message
            assert main([*names, *given, "--json", "-"]) == code
            out, err = capsys.readouterr()
            check(out, names, code, said)
            assert len(err.strip().splitlines()) == 1
            if getattr(own, "writes_series", False):
                continue
            file = tmp_path / f"{code}" / "result.json"
            assert main([*names, *given, f"--json={file}"]) == code
            check(file.read_text(), names, code, said)
            assert capsys.readouterr().out == ""

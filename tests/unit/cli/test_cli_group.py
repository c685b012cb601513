"""What the command line says of a verb that is not where it was typed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from portagpu.cli import main
from portagpu.cli._verbs import app

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest


def below(group: click.Group, *names: str) -> Iterator[tuple[str, ...]]:
    """The names of every verb that a group of verbs has, from the first one on."""
    for name in group.list_commands(click.Context(group)):
        verb = group.get_command(click.Context(group), name)
        yield (*names, name)
        if isinstance(verb, click.Group):
            yield from below(verb, *names, name)


def test_a_verb_of_a_group_is_found_by_its_own_name(capsys: pytest.CaptureFixture[str]) -> None:
    paths = list(below(app))
    top = {each[0] for each in paths}
    nested = {each[-1] for each in paths} - top
    assert len(nested) > 10
    for name in sorted(nested):
        assert main([name]) == 2
        said = capsys.readouterr().err
        places = [" ".join(each) for each in paths if each[-1] == name]
        assert any(f"did you mean 'portagpu {place}'?" in said for place in places), (name, said)


def test_every_out_says_whether_it_is_a_file_or_a_folder() -> None:
    found = {}
    for path in below(app):
        name = " ".join(path)
        verb: click.Command | None = app
        for word in path:
            assert isinstance(verb, click.Group)
            verb = verb.get_command(click.Context(verb), word)
        assert verb is not None
        for option in verb.params:
            if isinstance(option, click.Option) and "--out" in option.opts:
                found[name] = (option.metavar, option.help or "")
    assert len(found) > 10
    for name, (metavar, said) in found.items():
        assert metavar in ("FILE", "FOLDER"), name
        assert str(metavar).lower() in said, (name, said)

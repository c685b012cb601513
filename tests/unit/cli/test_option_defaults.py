"""A caller from Python has the defaults that the command line documents."""

from __future__ import annotations

import dataclasses
from typing import Any

import click
import pytest

from portagpu.checks.bringup.run import BringupOptions
from portagpu.checks.health.watchdog import HealthOptions
from portagpu.checks.monitor.sample import MonitorOptions
from portagpu.cli._verbs import app
from portagpu.reports.fleet.kubernetes import PodOptions
from portagpu.reports.fleet.request import FleetOptions
from portagpu.suites.compile.run import CompileOptions
from portagpu.suites.conformance.engine import ConformOptions
from portagpu.suites.performance.runner import BenchOptions
from portagpu.suites.screen.options import ScreenOptions

OF_VERBS = [
    ("bench", BenchOptions),
    ("bringup", BringupOptions),
    ("compile", CompileOptions),
    ("conform", ConformOptions),
    ("fleet run", FleetOptions),
    ("fleet run", PodOptions),
    ("health", HealthOptions),
    ("monitor", MonitorOptions),
    ("screen", ScreenOptions),
]
DECIDED_LATER = {("health", "limit_s"), ("screen", "seconds")}
"""Where the verb takes one of two defaults, by another option; its help says both."""


def _default(option: click.Parameter, context: click.Context) -> Any:
    """What the verb has without the option; None for nothing at all."""
    value = option.process_value(context, option.get_default(context))
    # click's own mark of an option that was not given differs between its versions
    return None if value in (False, "", ()) or "UNSET" in repr(value) else value


def defaults_of(verb: str) -> dict[str, Any]:
    """The default of each option of a verb."""
    command: click.Command = app
    for name in verb.split():
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), name)
        assert found is not None
        command = found
    context = click.Context(command)
    return {
        each.name: _default(each, context)
        for each in command.params
        if each.name is not None and not each.required
    }


@pytest.mark.parametrize(("verb", "options"), OF_VERBS)
def test_the_options_of_a_verb_have_its_defaults(verb: str, options: Any) -> None:
    said = defaults_of(verb)
    stated = {
        each.name: None if each.default in (False, "", ()) else each.default
        for each in dataclasses.fields(options)
        if each.default is not dataclasses.MISSING and (verb, each.name) not in DECIDED_LATER
    }
    both = stated.keys() & said.keys()
    assert len(both) >= 3, "the fields are named as the options"
    assert {name: stated[name] for name in both} == {name: said[name] for name in both}

"""Shell completion for options: targets, architectures, areas, gates and measures.

Turned on with ``eval "$(_PORTAGPU_COMPLETE=bash_source portagpu)"``, which click answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from portagpu.base.errors import PortagpuError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import click


def complete_target(context: click.Context, option: click.Parameter, incomplete: str) -> list[str]:
    """The ids of targets with this prefix."""
    from portagpu.facts.targets import load_targets

    return _matching_names(incomplete, load_targets)


def complete_arch(context: click.Context, option: click.Parameter, incomplete: str) -> list[str]:
    """The names of architectures with this prefix."""
    from portagpu.facts.targets import architecture_names

    return _matching_names(incomplete, architecture_names)


def complete_gate(context: click.Context, option: click.Parameter, incomplete: str) -> list[str]:
    """The ids of gates with this prefix."""
    from portagpu.checks.bringup.gates import load_gates

    return _matching_names(incomplete, lambda: [gate.id for gate in load_gates()])


def complete_area(context: click.Context, option: click.Parameter, incomplete: str) -> list[str]:
    """The areas of the conformance suite with this prefix."""
    from portagpu.suites.conformance.cases import AREAS

    return _matching_names(incomplete, lambda: AREAS)


def complete_measure(context: click.Context, option: click.Parameter, incomplete: str) -> list[str]:
    """The areas and metrics of the performance suite with this prefix."""
    from portagpu.suites.performance.cases import metrics

    names = {name: None for metric in metrics() for name in (metric.partition("/")[0], metric)}
    return _matching_names(incomplete, lambda: names)


def _matching_names(incomplete: str, names: Callable[[], Iterable[Any]]) -> list[str]:
    """The names with this prefix, sorted; empty if they cannot be read."""
    try:
        return sorted(name for name in names() if name.startswith(incomplete))
    except PortagpuError:
        return []

"""What a shell completes after an option: targets, architectures, areas and gates.

Turned on with ``eval "$(_PORTAGPU_COMPLETE=bash_source portagpu)"``, which click answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from portagpu.errors import PortagpuError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import click


def complete_target(context: click.Context, option: click.Parameter, begun: str) -> list[str]:
    """The ids of targets that begin so."""
    from portagpu.target import load_targets

    return _beginning(begun, load_targets)


def complete_arch(context: click.Context, option: click.Parameter, begun: str) -> list[str]:
    """The names of the targets' architectures that begin so."""
    from portagpu.target import load_targets

    return _beginning(begun, lambda: {each.arch.name for each in load_targets().values()})


def complete_gate(context: click.Context, option: click.Parameter, begun: str) -> list[str]:
    """The ids of gates that begin so."""
    from portagpu.bringup.gates import load_gates

    return _beginning(begun, lambda: [gate.id for gate in load_gates()])


def complete_area(context: click.Context, option: click.Parameter, begun: str) -> list[str]:
    """The areas of the conformance suite that begin so."""
    from portagpu.suite.cases import AREAS

    return _beginning(begun, lambda: AREAS)


def complete_measure(context: click.Context, option: click.Parameter, begun: str) -> list[str]:
    """The areas and metrics of the performance suite that begin so."""
    from portagpu.bench.suite import metrics

    names = {name: None for metric in metrics() for name in (metric.partition("/")[0], metric)}
    return _beginning(begun, lambda: names)


def _beginning(begun: str, names: Callable[[], Iterable[Any]]) -> list[str]:
    """None where they cannot be read: a shell that waits for words has no use for an error."""
    try:
        return sorted(name for name in names() if name.startswith(begun))
    except PortagpuError:
        return []

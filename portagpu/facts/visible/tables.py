"""The runtimes with known masks: those that vendors' distributions declare."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from portagpu.facts.vendors import LazyMapping, vendors
from portagpu.facts.visible.model import VisibilityError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from portagpu.facts.vendors import MaskRules, Runtime

RUNTIMES: Final[Mapping[str, Runtime]] = LazyMapping(
    lambda: {each.masks.name: each.masks for each in vendors().values() if each.masks is not None}
)
"""The runtimes by the name of the torch build that uses them."""

RULES: Final[Mapping[str, MaskRules]] = LazyMapping(
    lambda: {rules.layer: rules for each in RUNTIMES.values() for rules in each.layers}
)
"""The layers by name."""


def runtime_named(name: str) -> Runtime:
    """The runtime of that name; raises VisibilityError for an unknown one."""
    try:
        return RUNTIMES[name]
    except KeyError:
        raise VisibilityError(
            f"no runtime is called {name!r}: choose one of {', '.join(RUNTIMES)}"
        ) from None


def relevant_runtimes(build: str | None, vendors: Iterable[str]) -> tuple[str, ...]:
    """The runtimes of a torch build of that kind and of GPUs of those vendors."""
    present = set(vendors)
    return tuple(
        name for name, runtime in RUNTIMES.items() if name == build or runtime.vendor in present
    )

"""The variables of the environment that hide or disguise devices."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from portagpu.facts.vendors import vendors

if TYPE_CHECKING:
    from collections.abc import Mapping


def visibility_variables() -> tuple[str, ...]:
    """The variables that hide or disguise devices, of all declared vendors."""
    names: dict[str, None] = {}
    for each in vendors().values():
        masks = each.masks.variables if each.masks is not None else ()
        names.update(dict.fromkeys((*each.visibility, *masks, *each.disguises)))
    return tuple(names)


def visibility(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The set variables that hide or disguise devices, with their values, also empty ones."""
    values = os.environ if environment is None else environment
    return {name: values[name] for name in visibility_variables() if name in values}

"""Checks the targets when a wheel is built: what is installed takes them as they are."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CheckTargets(BuildHookInterface):  # type: ignore[type-arg]
    """Stops the build with the first error in ``matrix/targets``, between files too."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Raise TargetError, which names file, key and rule; not for an editable installation."""
        if version == "editable":
            return
        sys.path.insert(0, self.root)
        try:
            from portagpu.facts.targets.folder import read_folder

            read_folder(Path(self.root, "matrix", "targets"))
        finally:
            sys.path.remove(self.root)

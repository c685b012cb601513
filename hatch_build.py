"""Checks the targets when a wheel is built, and adds the pages that errors name."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_MARK = "<!-- book: "
"""In pages that only the book can fill."""


class CheckTargets(BuildHookInterface):  # type: ignore[type-arg]
    """Stops the build with the first error in ``matrix/targets``, between files too."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Raise TargetError, which names file, key and rule; not for an editable installation."""
        if version == "editable":
            return
        sys.path.insert(0, self.root)
        try:
            from portagpu.facts.targets.read import read_folder

            read_folder(Path(self.root, "matrix", "targets"))
        finally:
            sys.path.remove(self.root)
        docs = Path(self.root, "docs")
        for path in (*docs.glob("*.md"), *docs.glob("book/*.md")):
            if _MARK not in path.read_text("utf-8"):
                name = path.relative_to(docs).as_posix()
                build_data["force_include"][str(path)] = f"portagpu/_docs/{name}"

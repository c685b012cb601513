"""A file tree that traces what is read, so that exactly that can be saved."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from portagpu.facts.host.tree import Tree


@dataclass(frozen=True, slots=True)
class TracedTree(Tree):
    """A tree that keeps what is read: files with their bytes, links, and folders."""

    files: dict[str, bytes] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)

    def data(self, path: str) -> bytes | None:
        found = Tree.data(self, path)
        if found is not None:
            self.files[path] = found
        return found

    def exists(self, path: str) -> bool:
        found = Tree.exists(self, path)
        if found:
            self._record_path(path)
        return found

    def names(self, path: str, pattern: str = ".*") -> tuple[str, ...]:
        found = Tree.names(self, path, pattern)
        if found:
            self.folders.add(path)
        for name in found:
            self._record_path(f"{path}/{name}")
        return found

    def link_parts(self, path: str) -> tuple[str, ...]:
        found = Tree.link_parts(self, path)
        if found:
            self._record_path(path)
        return found

    def _record_path(self, path: str) -> None:
        """Record that a path exists, and its kind."""
        link = self.link(path)
        if link is not None:
            self.links[path] = link
        elif self.is_folder(path):
            self.folders.add(path)
        else:
            self.files.setdefault(path, b"")

    def save(self, folder: Path) -> None:
        """Write what was read below ``folder``, which has to exist; links stay inside it."""
        root = folder.resolve()
        # a link before what is reached through it
        for path in sorted(self.links, key=lambda path: path.count("/")):
            place = _parent(root, path) / Path(path).name
            target = Path(os.path.normpath(place.parent.resolve() / self.links[path]))
            if target.is_relative_to(root) and not place.exists():
                place.symlink_to(self.links[path])
        for path in sorted(self.folders):
            _folder(root, path)
        for path, data in sorted(self.files.items()):
            place = _parent(root, path) / Path(path).name
            if not place.is_dir():
                place.write_bytes(data)


def _parent(root: Path, path: str) -> Path:
    return _folder(root, str(Path(path).parent))


def _folder(root: Path, path: str) -> Path:
    """The folder below ``root``, following links; it is created if it is missing."""
    here = root
    for part in Path(path).parts:
        here = Path(os.path.normpath((here / part).resolve()))
        if not here.is_relative_to(root):
            # a link that leads out of the tree was not saved, so that this cannot be one
            raise ValueError(f"{path} leads out of the recording")
        here.mkdir(parents=True, exist_ok=True)
    return here

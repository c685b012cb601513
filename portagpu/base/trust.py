"""Whether another user can have placed or can change the file at a path."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_MOST_LINKS: Final = 40
"""The number that the kernel follows (path_resolution(7))."""
_ROOT: Final = 0
_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True, slots=True)
class _Step:
    """A folder, link or file on a path; ``folder`` is the status of the folder that it is in."""

    place: Path
    about: os.stat_result
    folder: os.stat_result


def why_not_trusted(path: Path) -> str:
    """Why other users may control what is read at ``path``, and what to do; "" where they cannot.

    Trusted: every folder, link and file on the path belongs to this user or root, and others may
    not write to it. In a folder with the sticky bit, such as /tmp, they cannot replace files of
    other users. A missing file is trusted. Raises OSError where a file's status cannot be read.
    """
    steps, _ = _path_steps(path)
    for step in steps:
        mode = step.about.st_mode
        if step.about.st_uid not in (os.geteuid(), _ROOT):
            return f"{step.place} belongs to another user (uid {step.about.st_uid})"
        sticky = stat.S_ISDIR(mode) and mode & stat.S_ISVTX
        if mode & _BY_OTHERS and not sticky and not stat.S_ISLNK(mode):
            return f"others may write {step.place} (chmod go-w ends that)"
    return ""


def destination(path: Path) -> Path:
    """The path that ``path`` leads to, for writing; it need not exist.

    In a world-writable folder with the sticky bit, a link, pipe or device of another user is
    refused, as Linux does with ``fs.protected_symlinks`` and ``fs.protected_fifos``
    (proc_sys_fs(5)): it may redirect this user's output. Raises OSError for it, and for links in a
    circle.
    """
    steps, end = _path_steps(path)
    for step in steps:
        plain = stat.S_ISREG(step.about.st_mode) or stat.S_ISDIR(step.about.st_mode)
        for_all = step.folder.st_mode & stat.S_ISVTX and step.folder.st_mode & stat.S_IWOTH
        if not plain and for_all and step.about.st_uid not in (os.geteuid(), step.folder.st_uid):
            raise OSError(errno.EACCES, f"{step.place} is a link, pipe or device of another user")
    return end


def _path_steps(path: Path) -> tuple[list[_Step], Path]:
    """Every step from the root to the target of ``path``, and that target."""
    place = Path("/")
    folder = place.lstat()
    steps = [_Step(place, folder, folder)]
    links = 0
    waiting = list(reversed((Path.cwd() / path).parts[1:]))
    while waiting:
        name = waiting.pop()
        if name == "..":
            place = place.parent
            folder = place.lstat()
            continue
        try:
            about = (place / name).lstat()
        except FileNotFoundError:
            return steps, place.joinpath(name, *reversed(waiting))
        steps.append(_Step(place / name, about, folder))
        if not stat.S_ISLNK(about.st_mode):
            place, folder = place / name, about
            continue
        links += 1
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        target = (place / name).readlink()
        if target.is_absolute():
            place = Path("/")
            folder = place.lstat()
        waiting.extend(reversed(target.parts[1:] if target.is_absolute() else target.parts))
    return steps, place

"""Whether another user can have put what lies at a path there, or can change it."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_MOST_LINKS: Final = 40
"""As many as the kernel follows (path_resolution(7))."""
_ROOT: Final = 0
_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True, slots=True)
class _Step:
    """A folder, link or file that the kernel passes; ``folder`` is about the folder it lies in."""

    place: Path
    about: os.stat_result
    folder: os.stat_result


def why_not_trusted(path: Path) -> str:
    """Why others may decide what is read at ``path``, and what to do; "" where they cannot.

    Every folder, link and file on the way belongs to this user or to root, and none of them may be
    written by others; in a folder with the sticky bit, such as /tmp, they cannot replace what is
    not theirs. What is not there yet is trusted. Raises OSError for what cannot be looked at.
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
    """What ``path`` leads to, which need not be there, when something is to be written there.

    In a folder that all may write and that has the sticky bit, a link, pipe or device of another
    user is refused, as Linux does with ``fs.protected_symlinks`` and ``fs.protected_fifos``
    (proc_sys_fs(5)): it may have been put there to have this user write elsewhere. Raises OSError
    for it, and for links in a circle.
    """
    steps, end = _path_steps(path)
    for step in steps:
        plain = stat.S_ISREG(step.about.st_mode) or stat.S_ISDIR(step.about.st_mode)
        for_all = step.folder.st_mode & stat.S_ISVTX and step.folder.st_mode & stat.S_IWOTH
        if not plain and for_all and step.about.st_uid not in (os.geteuid(), step.folder.st_uid):
            raise OSError(errno.EACCES, f"{step.place} is a link, pipe or device of another user")
    return end


def _path_steps(path: Path) -> tuple[list[_Step], Path]:
    """Every step from the root to what ``path`` leads to, and where that is."""
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

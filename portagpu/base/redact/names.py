"""Names of this machine, its user and its environment, to be found in texts."""

from __future__ import annotations

import contextlib
import getpass
import os
import platform
import re
import socket
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from portagpu.base.paths import matrix_dir
from portagpu.base.redact.keys import identifying_kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_NAMING: Final = re.compile(
    r"TOKEN|SECRET|PASSW|_KEY|CREDENTIAL|AUTH|COOKIE|ACCOUNT|NODELIST|HOST|USER|LOGNAME|PROXY|MAIL"
)
"""Variables whose values are names or secrets, next to those that the list of keys has."""
_FOLDERS: Final = frozenset({"PWD", "OLDPWD"})
"""What "pwd" means to a shell."""
_LEAST: Final = 3
_WORD: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def machine_names(environment: Mapping[str, str] | None = None) -> list[tuple[str, str]]:
    """(kind, text) of everything that names this machine: hosts, users, folders, variables.

    A name that is a word of this package's own sources ("gpu", "node", "root") is left out: it is
    in the results of every machine.
    """
    environment = os.environ if environment is None else environment
    found = dict.fromkeys(
        [
            *_hosts(),
            *_users(environment),
            *_paths(),
            *_variables(environment),
            ("kernel", platform.release()),
        ]
    )
    words = _own_words()
    return [
        (kind, text) for kind, text in found if len(text) >= _LEAST and text.lower() not in words
    ]


def _hosts() -> Iterator[tuple[str, str]]:
    for name in {platform.node(), socket.gethostname(), _qualified_host()}:
        yield "host", name
        short, _, domain = name.partition(".")
        yield "host", short
        if "." in domain:
            yield "host", domain


def _qualified_host() -> str:
    """The host's name with its domain from /etc/hosts; no name server is queried."""
    try:
        lines = Path("/etc/hosts").read_text("utf-8", "replace").splitlines()
    except OSError:
        return ""
    short = platform.node().partition(".")[0]
    for line in lines:
        for name in line.partition("#")[0].split()[1:]:
            if name.startswith(f"{short}."):
                return name
    return ""


def _users(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    with contextlib.suppress(KeyError, OSError):  # no entry for this number, and no variable
        yield "user", getpass.getuser()
    for name in ("SUDO_USER", "LOGNAME", "USER"):
        yield "user", environment.get(name, "")


def _paths() -> Iterator[tuple[str, str]]:
    for place in (Path.home, Path.cwd, tempfile.gettempdir):
        # there is no home, or the folder that this was started in is gone
        with contextlib.suppress(RuntimeError, OSError):
            yield "path", str(place())


def _variables(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name, value in environment.items():
        naming = _NAMING.search(name) is not None or identifying_kind(name) is not None
        if naming and name not in _FOLDERS and not value.isdigit():
            yield "environment", value


@cache
def _own_words() -> frozenset[str]:
    """Every word of this package's sources, in lower case."""
    roots = (Path(__file__).parents[2], matrix_dir())
    files = {file for root in roots for kind in ("*.py", "*.toml") for file in root.rglob(kind)}
    words: set[str] = set()
    for file in files:
        words.update(word.lower() for word in _WORD.findall(file.read_text("utf-8")))
    return frozenset(words)

"""Names of this machine, its user and its environment, and what a key says of its value.

A key is that of a document, a label, an option or a variable.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import platform
import re
import socket
import tempfile
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.environment import host_name
from portagpu.base.paths import matrix_dir

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


_JOINTS: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z]{2})|[^A-Za-z0-9]++")

_SECRETS: Final = (
    r"token|secret|passw(?:or)?d|passphrase|pwd|credential|authori[sz]ation|cookie|connection_?string"
    r"|sess(?:ion)?_?(?:id|key)"
    r"|(?:api|access|private|secret|ssh|account|auth|sign(?:ing|ature)|encryption|license|shared|client)_?key"
)
"""Words of secrets, also at the end of a longer word: "hftoken", "dbPwd"."""
_ALONE: Final = r"pass|pw|creds?|auths?|oauth|sig|signature|session"
"""Words of secrets that other words hold, or that prose has: the last word of a key alone."""
_GUIDS: Final = r"(?:node|port|sys_?(?:image|img)|system_?(?:image|img)|hca|ca|switch|chassis|base)"
_KINDS: Final = tuple(
    (re.compile(form), kind)
    for form, kind in (
        (rf"(?:\A|_){_GUIDS}_?guids?\Z", "address"),
        (r"(?:\A|_)(?:mac|mac_?addr(?:ess)?|hw_?addr(?:ess)?|wwn|wwid|nguid|eui_?64)\Z", "address"),
        (r"(?:\A|_)e?_?mail(?:_?addr(?:ess)?)?\Z", "address"),
        (r"(?:\A|_)(?:uuid|guid|unique_?id|machine_?id|boot_?id|pdi)s?\Z|uuid\Z", "uuid"),
        (r"(?:\A|_)(?:serial(?:_?(?:num|no|nr|id))?|s_?n)\Z|serial_?numbers?\Z", "serial"),
        (r"(?:\A|_)(?:asset|service)_?tag\Z", "serial"),
        (r"(?:\A|_)(?:host_?(?:name|hash)?|node_?name|computer_?name|fqdn)\Z", "host"),
        (r"(?:\A|_)(?:users?_?(?:name)?|login(?:_?name)?|log_?name)\Z", "user"),
        (rf"(?:{_SECRETS})s?(?:_|\Z)|(?:\A|_)(?:{_ALONE})\Z", "secret"),
    )
)
"""The first form that fits a key's words gives the kind of its values."""
_IN_PROSE: Final = re.compile(rf"\A(?:{_ALONE}|host|users?|login|mac|e?_?mail)\Z")
_COUNTS: Final = re.compile(
    rf"tokens(?:_|\Z)|(?:per|first|next|last|each)_token\Z"
    rf"|token_(?:count|type|id|index|idx|len|length|size|limit)(?:s?\Z|_)|(?:\A|_)(?:{_ALONE})\Z"
)
ROUGHLY: Final = (
    "token|secret|pass|pwd?|key|cred|auth|cookie|sess|sig|string"
    "|mac|addr|host|name|user|login|mail|fqdn|wwn|wwid|guid|eui"
)
"""Parts of words, one of which each key has that identifies within a sentence."""
_NOTHING: Final = frozenset({"", "0", "n/a", "[n/a]", "none", "null", "nil", "unknown"})
"""What tools write where they have no value."""
_SETTING: Final = re.compile(
    r"(?i:true|false|yes|no|on|off|enabled|disabled|required|not (?:set|available|supported))"
    r"|(?i:\[?redacted\]?|x{3,}+)|[|>][+-]?|\*++|\.\.\.|\$\{?[A-Z_][A-Z0-9_]*+\}?"
    r"|(?i:(?:basic|bearer|token|digest) )?<[^<>]*+>"
)
"""What stands in the place of a secret, or begins a text of YAML's that does."""


@lru_cache(maxsize=4096)
def identifying_kind(key: str) -> str | None:
    """The kind that values of that key identify, or None."""
    words = _words(key)
    return next((kind for form, kind in _KINDS if form.search(words) is not None), None)


def nearest_key(above: str, name: str, table: Mapping[str, Any]) -> str:
    """The key that says what the value under ``name`` of the table is.

    That is ``name``, the name in a table of a name and a value, or the key above that keeps a
    secret.
    """
    named = table.get("name")
    if name.lower() == "value" and isinstance(named, str):
        name = named
    if identifying_kind(name) is None and identifying_kind(above) == "secret":
        return name if _COUNTS.search(_words(above)) is not None else above
    return name


@lru_cache(maxsize=1024)
def is_word_of_prose(key: str) -> bool:
    """Whether sentences have the key as a word, so that a colon after it says nothing."""
    return _IN_PROSE.match(_words(key)) is not None


def names_something(kind: str, key: str, value: object) -> bool:
    """Whether an identifying key has a value to remove.

    Numbers identify under uuid, serial, address and secret, unless the key counts: "tokens".
    """
    if isinstance(value, str):
        bare = value.strip().lower()
        if bare in _NOTHING or _SETTING.fullmatch(value.strip()) is not None:
            return False
        counts = kind == "secret" and not any(map(str.isalpha, bare))
        return not counts or _COUNTS.search(_words(key)) is None
    if type(value) not in (int, float):
        return False
    if kind == "secret":
        return _COUNTS.search(_words(key)) is None
    return kind in ("uuid", "serial", "address")


def _words(key: str) -> str:
    return _JOINTS.sub("_", key.strip()).lower()


_NAMING: Final = re.compile(
    r"TOKEN|SECRET|PASSW|_KEY|CREDENTIAL|AUTH|COOKIE|ACCOUNT|NODELIST|HOST|USER|LOGNAME|PROXY|MAIL"
)
"""Variables whose values are names or secrets, next to those that the list of keys has."""
_FOLDERS: Final = frozenset({"PWD", "OLDPWD"})
"""What "pwd" means to a shell."""
_MIN: Final = 3
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
    return [(kind, text) for kind, text in found if len(text) >= _MIN and text.lower() not in words]


def _hosts() -> Iterator[tuple[str, str]]:
    for name in {host_name(), platform.node(), socket.gethostname(), _qualified_host()}:
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

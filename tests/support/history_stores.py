"""Stores to test with: a file, and a database of a PostgreSQL server that is started for it."""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.support.waits import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LIMIT_S: Final = 60
_number = itertools.count(1)


def program(name: str) -> str | None:
    """A program of PostgreSQL: on PATH, or where Debian has it."""
    debian = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return shutil.which(name) or (str(debian[-1]) if debian else None)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Callable[[], str]]:
    """Makes a new database and returns its URL; skips where there is no server to start."""
    pytest.importorskip("psycopg")
    if why := missing():
        pytest.skip(why)
    with server() as new_database:
        yield new_database


def missing() -> str:
    """Why no server can be started here; empty where one can."""
    absent = [name for name in ("initdb", "postgres") if program(name) is None]
    return f"there is no {absent[0]} here: install Debian's postgresql" if absent else ""


@contextlib.contextmanager
def server() -> Iterator[Callable[[], str]]:
    """A server of PostgreSQL with a socket in a folder of its own: makes a new database a call."""
    initdb, postgres = str(program("initdb")), str(program("postgres"))
    # it refuses root, and its socket's path must be short
    user = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
    as_user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []} if user else {}
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C"}
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="pg") as folder:
        if user:
            os.chown(folder, user.pw_uid, user.pw_gid)
        data, log = f"{folder}/data", Path(folder, "log")
        made = subprocess.run(
            [initdb, "-D", data, "-U", "portagpu", "-A", "trust", "-E", "UTF8", "--no-sync"],
            env=environment, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S,
            check=False, **as_user,
        )  # fmt: skip
        assert made.returncode == 0, made.stdout + made.stderr
        words = ["-k", folder, "-c", "listen_addresses=", "-c", "fsync=off"]
        with log.open("wb") as output:
            process = subprocess.Popen(
                [postgres, "-D", data, *words], env=environment, cwd=folder, stdout=output,
                stderr=output, **as_user,
            )  # fmt: skip
        try:
            _wait(process, folder, log)
            yield lambda: _new_database(folder)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(LIMIT_S)


def _wait(process: subprocess.Popen[bytes], folder: str, log: Path) -> None:
    import psycopg

    def answers() -> bool:
        assert process.poll() is None, log.read_text()
        with contextlib.suppress(psycopg.OperationalError):
            psycopg.connect(f"host={folder} user=portagpu dbname=postgres").close()
            return True
        return False

    wait_until(answers, log.read_text)


def _new_database(folder: str) -> str:
    import psycopg

    name = f"test{next(_number)}"
    with psycopg.connect(
        f"host={folder} user=portagpu dbname=postgres", autocommit=True
    ) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return f"postgresql+psycopg://portagpu@/{name}?host={folder}"


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a store may be made: a file, and a database of the server."""
    if request.param == "sqlite":
        return str(tmp_path / "store.db")
    new: str = request.getfixturevalue("postgres_server")()
    return new

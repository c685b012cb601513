"""What every verb shares: dispatch, exit codes, one-line errors, ``--json`` and plain output."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

from tests.process.test_cli_basics import ENVIRONMENT


@pytest.mark.parametrize(
    ("closed", "words", "code"),
    [
        ("<&- >&-", "info", 0),
        (">&-", "--help", 0),
        ("<&- >&- 2>&-", "conform --list", 0),
        ("<&- 2>&-", "bringupp", 2),
    ],
)
def test_closed_standard_files_change_nothing(closed: str, words: str, code: int) -> None:
    """As a service or a launcher may start it; what nobody can read goes nowhere."""
    done = subprocess.run(
        ["/bin/sh", "-c", f'exec "$0" -m portagpu {words} {closed}', sys.executable],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert (done.stdout, done.stderr) == ("", ""), "something was said to the wrong file"


@pytest.mark.parametrize(
    ("variables", "colour"),
    [
        ({}, True),
        ({"NO_COLOR": "1"}, False),
        ({"TERM": "dumb"}, False),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
    ],
    ids=["terminal", "NO_COLOR", "dumb", "both"],
)
def test_colour_needs_a_terminal_that_wants_it(variables: dict[str, str], colour: bool) -> None:
    leader, follower = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-m", "portagpu", "info"],
        env=ENVIRONMENT | {"TERM": "xterm-256color", "COLUMNS": "80"} | variables,
        stdout=follower,
        stderr=follower,
    )
    os.close(follower)
    output = b""
    try:
        while chunk := os.read(leader, 65536):
            output += chunk
    except OSError:
        # Linux reports the end of a pseudo-terminal as an I/O error
        pass
    finally:
        os.close(leader)
    assert child.wait(timeout=60) == 0, output
    assert b"Devices" in output
    assert (b"\x1b[36m" in output) is colour, f"colour: {output[:80]!r}"

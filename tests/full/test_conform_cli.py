"""``portagpu conform``: listing, files, exit codes and one-line errors."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from portagpu.suites import conformance as suite

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Child


def test_installed_wheel_has_the_suite(
    child: Callable[..., Child], portagpu_installed: Path
) -> None:
    script = (
        "import portagpu, portagpu.suites.conformance as suite;"
        "print(portagpu.__file__); print(len(suite.list_cases()))"
    )
    place, count = child("-c", script, path=[portagpu_installed]).ok().split()
    assert place.startswith(str(portagpu_installed)), f"another portagpu was listed: {place}"
    assert int(count) == len(suite.list_cases()), "the wheel has other cases than the checkout"


def test_the_suite_runs_without_a_standard_input(tmp_path: Path) -> None:
    """The pipe to its process would get the number 0, which the process opens again."""
    pytest.importorskip("torch")
    command = 'exec "$0" -m portagpu conform --only identity/handle-is-one <&-'
    done = subprocess.run(
        ["/bin/sh", "-c", command, sys.executable],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr

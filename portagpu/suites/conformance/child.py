"""The child process that runs pytest, free of the user's configuration."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from portagpu.base.errors import PortagpuError
from portagpu.base.files import Scratch
from portagpu.base.subprocesses import Subprocess

if TYPE_CHECKING:
    from portagpu.base.subprocesses.fork import Forker

_INI: Final = Path(__file__).with_name("suite.ini")
_PYTEST: Final = "pytest"
LEFT_OUT: Final = (
    "PYTEST_ADDOPTS",
    "PYTEST_PLUGINS",
    "PYTHONOPTIMIZE",
    "PYTHONWARNINGS",
    "TRITON_INTERPRET",
)
"""Variables that change which tests run, what an assertion means, or where a kernel runs."""


class SuiteError(PortagpuError, RuntimeError):
    """The suite itself could not run; the message says why."""


class Child(Subprocess):
    """One pytest process over the files of a folder; a context manager that cleans up.

    A ``forker`` has imported what cases need; without one the process does when they need it.
    """

    def __init__(self, folder: Path, forker: Forker | None = None) -> None:
        self._scratch = Scratch("suite")
        scratch = self._scratch.path
        options = (
            "-p",
            "portagpu.suites.conformance.child_plugin",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:junitxml",
        )
        try:
            super().__init__(
                *(_PYTEST, str(folder), "-c", str(_INI), "--rootdir", str(folder), "--noconftest"),
                *("--import-mode=importlib", "--capture=no", "-qq", *options),
                *("--continue-on-collection-errors", f"--basetemp={scratch / 'pytest'}"),
                leave_out=LEFT_OUT,
                environment={
                    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
                    # the default is a name in /tmp that any user can guess and create first
                    "TORCHINDUCTOR_CACHE_DIR": str(scratch / "inductor"),
                },
                folder=None,
                prints=False,
                forker=forker,
            )
        except BaseException:
            self._scratch.remove()
            raise

    def close(self, limit_s: float = 0.0) -> None:
        """End the process and remove its folder."""
        super().close(limit_s)
        self._scratch.remove()

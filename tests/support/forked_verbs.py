"""The command line in forks of a process that has imported it: milliseconds for each call.

What a test needs of a new process stays: its own environment, working folder, standard files, path
of modules and end. What it does not have is a start of Python; tests of that start their own.
torch is never imported ahead, and neither is an entry point of a distribution loaded.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.conftest import Child

VERB: Final = "from portagpu.cli import main\nsys.exit(main(sys.argv[1:]))"
LIBRARIES_HERE: Final = """
import importlib, json
import portagpu.facts.readings.stream
def call(module, function, arguments=(), *, limit_s, environment=None):
    try:
        value = getattr(importlib.import_module(module), function)(*arguments)
    except Exception as error:
        return None, f"{module} failed: {error}"
    return json.loads(json.dumps(value)), ""
portagpu.facts.readings.stream.call = call
"""
"""The beginning of a body: vendors' libraries are asked in the fork, and not in a child of it.

For tests in which no library hangs or dies.
"""
_LIMIT_S: Final = 120
_IMPORTED: Final = ("cli", "checks.info", "checks.health", "checks.bringup", "reports.html")
"""Modules of portagpu that most verbs need; those of each verb are added."""


class ForkedVerbs:
    """A context: a process that forks for each call, and ends with this one or before it.

    ``files`` is a folder for what calls print; it starts in ``folder``, with ``environment``.
    """

    def __init__(
        self,
        files: Path,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
        imports: Sequence[str] | None = None,
        python: str = sys.executable,
    ) -> None:
        # not at the top: this file is a program too, which finds no tests
        from tests.support.forked import starting

        with starting():
            self._process = subprocess.Popen(
                [python, "-P", str(Path(__file__).resolve())],
                cwd=folder,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        self._files = files
        self._ask({"imports": imports})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # it ends at the end of its input
        self._process.communicate(timeout=_LIMIT_S)

    def __call__(
        self,
        *words: str,
        folder: Path | str | None = None,
        path: Sequence[Path] = (),
        environment: Mapping[str, str] | None = None,
        body: str = VERB,
    ) -> Child:
        """Run ``portagpu WORDS``, or another program ``body``, with ``path`` before all others.

        ``environment`` is all of it; without it, this process's.
        """
        from tests.conftest import Child

        with tempfile.TemporaryDirectory(dir=self._files) as place:
            given = {
                "words": words,
                "folder": str(folder or place),
                "path": [str(each) for each in path],
                "environment": dict(os.environ if environment is None else environment),
                "body": body,
                "files": [f"{place}/out", f"{place}/err"],
            }
            code = self._ask(given)
            out, err = (Path(file).read_text("utf-8", errors="replace") for file in given["files"])
        return Child(code, out, err)

    def _ask(self, call: dict[str, Any]) -> int:
        assert self._process.stdin
        assert self._process.stdout
        print(json.dumps(call), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        assert answer, "the process that forks has ended"
        return int(answer)


def _import_ahead(names: Sequence[str] | None) -> None:
    import gc
    import importlib

    if names is None:
        from portagpu.cli._verbs import VERBS

        names = [f"portagpu.{name}" for name in _IMPORTED]
        names += [target.partition(":")[0] for target, _ in VERBS.values()]
    for name in names:
        importlib.import_module(name)
    assert "torch" not in sys.modules
    # forks copy no page of what is collected never
    gc.collect()
    gc.freeze()


def _become(call: dict[str, Any]) -> None:
    """Make this fork what a new process would be."""
    import signal

    os.setsid()
    signal.alarm(_LIMIT_S)
    for number, file in enumerate(call["files"], 1):
        opened = os.open(file, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    os.environ.clear()
    os.environ.update(call["environment"])
    os.chdir(call["folder"])
    sys.path[:0] = call["path"]
    sys.argv[:] = ["portagpu", *call["words"]]


def _wait(pid: int) -> None:
    """Wait for the end of a fork, or for that of the process that asked: then nobody is left."""
    import select
    import signal

    ended = select.poll()
    ended.register(pidfd := os.pidfd_open(pid), select.POLLIN)
    # it reports nothing but that the other end is closed
    ended.register(0, 0)
    if 0 in dict(ended.poll()):
        os.killpg(pid, signal.SIGKILL)
        os._exit(1)
    os.close(pidfd)


def serve() -> None:
    """Answer each line of standard input with an exit code; a fork returns from here."""
    for line in iter(sys.stdin.readline, ""):
        call = json.loads(line)
        if "imports" in call:
            _import_ahead(call["imports"])
            print(0, flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            _become(call)
            exec(compile(f"import sys\n{call['body']}", "<body>", "exec"), {"__name__": "__main__"})
            return
        _wait(pid)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    serve()

"""The command to profile: what it starts, and why some cannot be profiled as they are."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from portagpu.devices.collectives.launcher import stated_rank
from portagpu.facts.captures.profilers import Refused

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from portagpu.facts.captures.profilers import Profiler

_JOB_LAUNCHERS: Final = ("srun", "mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prun", "jsrun")
_TORCHRUN_MODULES: Final = ("torch.distributed.run", "torch.distributed.launch")
_PROFILER_MODULES: Final = ("triton.profiler", "triton.profiler.proton")


@dataclass(frozen=True, slots=True)
class Command:
    """A command that can be profiled; ``words`` begins with the absolute path of its program."""

    words: tuple[str, ...]
    rank: int | None
    """The rank that this process's launcher gave it."""
    rank_python: str
    """The Python that runs the ranks which torchrun starts; empty for any other command."""


def read_command(
    words: Sequence[str], environment: Mapping[str, str], profilers: Mapping[str, Profiler]
) -> Command:
    """The command of ``words`` in ``environment``. Raises Refused."""
    if not words:
        raise Refused("give the command after --: portagpu profile -- python train.py")
    program = _program(words[0], environment)
    name = Path(words[0]).name
    module = _module(words, name)
    _refuse_nesting(name, module, environment, profilers)
    if name in _JOB_LAUNCHERS:
        raise Refused(
            f"{name} starts its tasks elsewhere: put portagpu profile behind it "
            f"({name} ... portagpu profile -- PROGRAM), and each task is profiled"
        )
    python = ""
    if name == "torchrun":
        python = _interpreter(program)
    elif module in _TORCHRUN_MODULES:
        python = program
    return Command((program, *words[1:]), None if python else stated_rank(environment), python)


def _program(word: str, environment: Mapping[str, str]) -> str:
    found = shutil.which(word, path=environment.get("PATH", os.defpath))
    if found is None:
        if re.search(r"\s", word):
            raise Refused(
                f"{word!r} is one word: give the command's words one by one, without quotes around "
                "them all"
            )
        why = "is no program that can be run" if "/" in word else "is no program in PATH"
        raise Refused(f"{word!r} {why}")
    # links are kept: a virtual environment's python is one
    return str(Path(found).absolute())


def _module(words: Sequence[str], name: str) -> str:
    """The module of ``python -m MODULE``; empty for any other command."""
    if not re.fullmatch(r"python[\d.]*", name):
        return ""
    rest = iter(words[1:])
    for word in rest:
        if word == "-m":
            return next(rest, "")
        if word in ("-X", "-W"):
            next(rest, "")
        elif not word.startswith("-"):
            break
    return ""


def _refuse_nesting(
    name: str, module: str, environment: Mapping[str, str], profilers: Mapping[str, Profiler]
) -> None:
    """Raise Refused where another profiler records the command, or is it."""
    inside = next((each for each in profilers.values() if name in each.programs), None)
    if inside is not None or module in _PROFILER_MODULES:
        raise Refused(
            f"{name if inside else module} is a profiler, and two at a time lose data or hang: "
            "give the command that it runs"
        )
    for each in profilers.values():
        if variable := each.attached(environment):
            raise Refused(
                f"a profiler records this process already ({variable} is set), and two at a time "
                "lose data or hang: run portagpu profile outside of it"
            )


def _interpreter(script: str) -> str:
    """The Python of a console script, from its first line. Raises Refused."""
    try:
        with Path(script).open("rb") as file:
            line = file.readline(1024).decode(errors="replace").strip()
    except OSError as error:
        raise Refused(f"{script} cannot be read: {error.strerror}") from error
    python = line.removeprefix("#!").split()[0] if line.startswith("#!/") else ""
    if "python" not in Path(python).name:
        raise Refused(
            f"{script} does not say which Python runs it: use python -m torch.distributed.run"
        )
    return python

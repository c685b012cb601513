"""The engine: chooses a profiler, runs the command under it, opens the output and judges it."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from portagpu.base.files import Scratch
from portagpu.base.patience import LIMITS
from portagpu.base.subprocesses.start import run_attached, run_program
from portagpu.base.text import excerpt
from portagpu.devices.collectives.launcher import stated_rank
from portagpu.facts.captures.model import arrow
from portagpu.facts.captures.profilers import RECORDED, Launch, Recorded, Refused, Request
from portagpu.facts.readings.model import FormatError
from portagpu.runs.engine import Progress, RunOptions, add_result, complete
from portagpu.traces.profile.choice import Choice, choose, profilers, start_environment
from portagpu.traces.profile.judge import (
    Launched,
    command_result,
    judge_ranks,
    read_notes,
    step_result,
    unread_result,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from portagpu.facts.captures.model import Capture
    from portagpu.facts.captures.profilers import Profiler
    from portagpu.runs.results.run import Run

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
            f"{name} starts its tasks elsewhere: run portagpu profile inside it "
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
        why = "is not an executable program" if "/" in word else "is not a program in PATH"
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


_FOLDER_MODE: Final = 0o755


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileOptions(RunOptions):
    """What to run, and what to record of it; the fields are those of ``Request``."""

    words: Sequence[str]
    """The command. Its program is looked up in PATH."""
    folder: Path
    """Where the captures go; made where it is missing."""
    record: frozenset[Recorded] = frozenset(RECORDED)
    region: bool = False
    delay_s: float | None = None
    duration_s: float | None = None
    tool: str | None = None
    """The profiler's name; by default that of the default backend's vendor, else torch's."""
    tool_version: str | None = None
    """Its version where it is not installed: the plan is then for reading alone."""
    stdout: int | None = None
    """A descriptor that replaces the command's standard output."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How a command will be run."""

    choice: Choice
    request: Request
    launch: Launch

    def environment(self, notes: Path | None = None) -> dict[str, str]:
        """The changes of the environment; ``notes`` is the folder for notes of its processes."""
        start = start_environment(self.request, self.choice.profiler.name, os.environ, notes)
        return {**start, **self.launch.environment}


def make_plan(options: ProfileOptions) -> Plan:
    """What :func:`profile` will run. Nothing is started but the tool's ``--version``.

    Raises Refused, with what to do.
    """
    if options.region and (options.delay_s is not None or options.duration_s is not None):
        raise Refused("give either --region, or --delay and --duration: each says when to record")
    if not options.record:
        raise Refused("nothing is left to record: name at least one kind with --record")
    command = read_command(options.words, os.environ, profilers().by_name)
    choice = choose(options.tool, options.tool_version)
    request = Request(
        command=command.words,
        folder=options.folder.absolute(),
        record=options.record,
        region=options.region,
        delay_s=options.delay_s,
        duration_s=options.duration_s,
        rank=command.rank,
        rank_python=command.rank_python,
    )
    return Plan(choice, request, choice.profiler.launch(request, choice.tool))


def profile(
    options: ProfileOptions,
    progress: Progress | None = None,
    *,
    plan: Plan | None = None,
    read: Callable[[Path], Capture] | None = None,
) -> Run:
    """Run a command under a profiler, and judge what was captured.

    :param options: The command, what to record and where.
    :param progress: Reports results as they come.
    :param plan: That of ``options``, where the caller has made it already.
    :param read: Reads a capture; by default as ``portagpu trace`` does.
    :returns: A run with one result for the command, and one for each rank.
    :raises Refused: The command cannot be profiled so; nothing was started.
    :raises MissingDependency: The libraries that read captures are not installed.
    """
    progress = progress or Progress()
    plan = plan or make_plan(options)
    if options.tool_version is not None:
        raise Refused("--tool-version needs --print: a tool that runs states its own version")
    if read is None:
        arrow()
        from portagpu.traces.analysis.reading import read as read_capture

        read = read_capture
    reader = read
    _prepare_folder(plan)

    def work(run: Run) -> None:
        with Scratch("profile") as notes:
            start = time.monotonic()
            progress.item_begins(Path(plan.launch.argv[0]).name, 1, 1)
            code = _run_command(plan, notes, options.stdout)
            add_result(run, progress, command_result(code, time.monotonic() - start))
            said = read_notes(notes)
        unread = []
        for file, problem in _run_steps(plan):
            unread.append(file)
            add_result(run, progress, step_result(file, problem))
        captures: dict[Path, Capture] = {}
        for file in find_files(plan.request.folder, plan.launch.outputs):
            try:
                captures[file] = reader(file)
            except FormatError as error:
                unread.append(file)
                add_result(run, progress, unread_result(file, excerpt(str(error), 400)))
        launched = Launched(
            request=plan.request, choice=plan.choice, code=code, notes=said, unread=unread
        )
        for result in judge_ranks(captures, launched):
            add_result(run, progress, result)

    tool = plan.choice.tool.version or None
    return complete(options.new_run(versions={plan.choice.profiler.name: tool}), progress, work)


def _run_command(plan: Plan, notes: Path, stdout: int | None) -> int:
    """The exit code of the command under its profiler. Raises Refused where it cannot start."""
    try:
        return run_attached(*plan.launch.argv, environment=plan.environment(notes), stdout=stdout)
    except OSError as error:
        raise Refused(f"{plan.launch.argv[0]} cannot be started: {error.strerror}") from error


def find_files(folder: Path, pattern: str) -> list[Path]:
    """The files in ``folder`` that match, sorted, without hidden ones."""
    return sorted(each for each in folder.glob(pattern) if not each.name.startswith("."))


def _prepare_folder(plan: Plan) -> None:
    """Make the folder and the launch's scripts. Raises Refused."""
    folder, launch = plan.request.folder, plan.launch
    patterns = [launch.outputs, *(step.inputs for step in launch.steps)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        there = [file for pattern in patterns for file in find_files(folder, pattern)]
        if there:
            raise Refused(
                f"{folder} holds captures of another run ({there[0].name}): name another folder "
                "with --output"
            )
        tempfile.TemporaryFile(dir=folder).close()
        for name, text in launch.scripts.items():
            (folder / name).write_text(text, encoding="utf-8")
            (folder / name).chmod(_FOLDER_MODE)
    except OSError as error:
        raise Refused(
            f"{folder} cannot be written ({error.strerror}): name another folder with --output"
        ) from error


def _run_steps(plan: Plan) -> Iterator[tuple[Path, str]]:
    """Run what comes after the command; yields a file and why its step failed."""
    for step in plan.launch.steps:
        for file in find_files(plan.request.folder, step.inputs):
            output = file.with_suffix(step.suffix)
            argv = step.command(str(file), str(output))
            try:
                done = run_program(*argv, limit_s=LIMITS.step_s)
            except (OSError, TimeoutError) as error:
                yield file, f"{Path(argv[0]).name} {argv[1]} failed: {excerpt(str(error))}"
                continue
            if done.returncode or not output.exists():
                said = (done.stderr or done.stdout).decode(errors="replace").strip()
                last = excerpt(said.splitlines()[-1]) if said else "it said nothing"
                yield (
                    file,
                    (f"{Path(argv[0]).name} {argv[1]} exited with code {done.returncode}: {last}"),
                )

"""A judgement in a child process, with a time limit that holds whatever hangs; the child sends the
run as it is after each stage.

A library that hangs may leave a process that not even SIGKILL ends, because it waits in the driver,
and a read of the kernel's files may block in the same way. So a child judges, and this process only
waits for it. What was judged in time is kept; the rest is INCONCLUSIVE.
"""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.errors import RecordingError
from portagpu.base.patience import LIMITS
from portagpu.base.subprocesses.channel import Subprocess, parent_channel
from portagpu.base.text import error_line
from portagpu.checks.health.options import HealthOptions

if TYPE_CHECKING:
    from portagpu.runs.results.run import Run


_CHILD: Final = "portagpu.checks.health.watchdog"
_SHARE: Final = 0.85
"""Of the limit, for the child: the rest is for this process's start and its own answer."""


def health_within(options: HealthOptions) -> Run:
    """Judge the node in a child process, within ``options.limit_s`` seconds.

    What was not judged by then is the result ``health/time``, which is INCONCLUSIVE; so is what a
    child that died left open. Raises RecordingError for a recording that cannot be read, and
    PortagpuError or OSError where no child can be started.
    """
    deadline = time.monotonic() + _SHARE * options.limit_s
    child = Subprocess(_CHILD)
    try:
        child.send(_request(options))
        # while the child starts
        from portagpu.runs.results.run import Run

        last: dict[str, Any] | None = None
        problem = ""
        while True:
            try:
                message = child.receive(max(0.0, deadline - time.monotonic()))
            except TimeoutError:
                problem = f"not judged within {options.limit_s:g} s"
                break
            if message is None:
                problem = f"the judging process {child.how_it_ended()}: {child.last_line()}"
                break
            if "recording" in message:
                raise RecordingError(message["recording"])
            if "broke" in message:
                problem = f"the judgement broke: {message['broke']}"
                break
            if "done" in message:
                break
            last = message["run"]
    except BaseException:
        child.abandon(LIMITS.end_s)
        raise
    if problem:
        child.abandon(LIMITS.end_s)
    else:
        child.close(LIMITS.end_s)
    run = options.new_run() if last is None else Run.from_json(last)
    return _with_problem(run, problem, nothing=last is None) if problem else run


def _request(options: HealthOptions) -> dict[str, Any]:
    given = asdict(replace(options, target=None))
    target = options.target
    name = target if target is None or isinstance(target, str) else target.id
    return {
        **given,
        "target": name,
        "replay": list(options.replay),
        "command": list(options.command),
    }


def _with_problem(run: Run, problem: str, *, nothing: bool) -> Run:
    from portagpu.runs.results.run import Result, Verdict

    left = "nothing was judged" if nothing else "the results that are missing were not judged"
    run.add(
        Result(
            id="health/time",
            suite="health",
            area="health",
            verdict=Verdict.INCONCLUSIVE,
            reason=f"{problem}: {left}",
        )
    )
    return run.finish(duration_s=run.info.duration_s)


def main() -> None:
    """Judge in the child, and send the run as it is after each stage."""
    channel = parent_channel()
    request = channel.receive()
    if request is None:
        return
    try:
        # imported here, so that a broken installation is an answer too
        from portagpu.checks.health.engine import health_so_far

        for run in health_so_far(HealthOptions(**request)):
            channel.send({"run": run.to_json()})
        channel.send({"done": True})
    except RecordingError as error:
        channel.send({"recording": str(error)})
    except Exception as error:  # noqa: BLE001 - whatever breaks is the answer
        channel.send({"broke": error_line(error)})


if __name__ == "__main__":
    main()

"""Writers of one store that are killed, or that write at once.

    python history_writers.py kill PLACE FOLDER COUNT
    python history_writers.py together PLACE FOLDER COUNT

``kill`` forks a process that imports the folder and kills it at some moment, COUNT times: while it
opens the store, and while it adds documents. ``together`` has COUNT processes import it at once.
Both print one object of JSON. Processes are forked, so that each starts in a moment.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import sys
import time
from pathlib import Path

import alembic.command  # noqa: F401 - imported here, so that no forked process has to

from portagpu.reports.history.files import Outcome, import_files
from portagpu.reports.history.store import open_store


def child(place: str, folder: str, first: int = 0) -> tuple[int, int]:
    """A process that imports; the other end of its pipe says what it has finished.

    It begins with file number ``first``: a killed one has no time to look at all files again.
    """
    files = sorted(Path(folder).iterdir())
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    code = 1
    try:
        with open_store(place, create=True) as store:
            os.write(writing, b"open\n")
            for each in import_files(store, files[first:] + files[:first]):
                os.write(writing, f"{each.outcome} {each.path.name} {each.why}\n".encode())
                code = 2 if each.outcome is Outcome.REFUSED else 0
    finally:
        os._exit(code)


def lines(pipe: int, early: bytes = b"") -> list[str]:
    """What a process said until it ended; ``early`` was read before."""
    with os.fdopen(pipe, "rb") as stream:
        return (early + stream.read()).decode().splitlines()


def wait_for(pipe: int, count: int) -> bytes:
    """What a process says until it has said that many lines, has ended, or is silent for long."""
    said = b""
    while said.count(b"\n") < count and select.select([pipe], [], [], 30)[0]:
        if not (more := os.read(pipe, 4096)):
            break
        said += more
    return said


def kill(place: str, folder: str, count: int) -> dict[str, object]:
    random_ = random.Random(16)  # noqa: S311 - moments
    reported: list[str] = []
    killed = at_work = 0
    for number in range(count):
        pid, pipe = child(place, folder, random_.randrange(300))
        # while it opens the store, looks at its first file, or adds: however fast the machine is
        early = wait_for(pipe, (0, 1, 1, 2, 3)[number % 5])
        time.sleep(random_.uniform(0, 0.05))  # allowed: any moment will do
        os.kill(pid, signal.SIGKILL)
        killed += os.WIFSIGNALED(os.waitpid(pid, 0)[1])
        said = [line for line in lines(pipe, early) if line.startswith(Outcome.ADDED)]
        at_work += bool(said)
        reported += [line.split()[1] for line in said]
    return {"killed": killed, "at_work": at_work, "reported": reported}


def together(place: str, folder: str, count: int) -> dict[str, object]:
    children = [child(place, folder) for _ in range(count)]
    reported = [line for _, pipe in children for line in lines(pipe)]
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid, _ in children]
    return {"codes": codes, "reported": [line for line in reported if line != "open"]}


if __name__ == "__main__":
    mode, place_, folder_, count_ = sys.argv[1:]
    print(json.dumps({"kill": kill, "together": together}[mode](place_, folder_, int(count_))))

"""The child process that judges: it sends the run so far after each stage."""

from __future__ import annotations

from portagpu.base.errors import RecordingError
from portagpu.base.subprocesses.channel import parent_channel
from portagpu.base.text import error_line


def main() -> None:
    channel = parent_channel()
    request = channel.receive()
    if request is None:
        return
    try:
        # imported here, so that a broken installation is an answer too
        from portagpu.checks.health.engine import health_so_far
        from portagpu.checks.health.watchdog import HealthOptions

        for run in health_so_far(HealthOptions(**request)):
            channel.send({"run": run.to_json()})
        channel.send({"done": True})
    except RecordingError as error:
        channel.send({"recording": str(error)})
    except Exception as error:  # noqa: BLE001 - whatever breaks is the answer
        channel.send({"broke": error_line(error)})


if __name__ == "__main__":
    main()

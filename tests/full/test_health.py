"""``portagpu health``: what is judged, what the kernel's log adds, and what schedulers read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from portagpu.checks.health import machine as logs
from portagpu.runs.results.run import Run, Verdict
from tests.process.test_health import ECC, LOST, dmesg, found
from tests.process.test_health import node as node
from tests.process.test_health import root_of_node as root_of_node

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_of_a_log_of_gigabytes_the_end_is_read(tmp_path: Path, node: Callable[..., Run]) -> None:
    path = tmp_path / "kern.log"
    line = b"[  1.000000] pci 0000:00:00.0: bridge\n"
    with path.open("wb") as stream:
        stream.write(dmesg(LOST).encode())
        # a hole of 4 GiB takes no room on the disk
        stream.seek(4 << 30)
        stream.write(line * ((logs.MAX_BYTES // len(line)) + 100))
        stream.write(f"[  200.000000] {ECC}".encode())
    run = node(log=str(path))
    (event,) = found(run, "health/events")
    assert "Xid 95" in event.reason
    assert "Xid 79" not in event.reason
    (cut,) = found(run, "health/log")
    assert (cut.verdict, cut.reason) == (
        Verdict.UNVERIFIED,
        f"{path}: only its last 16 MiB were read",
    )

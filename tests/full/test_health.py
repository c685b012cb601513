"""``portagpu health``: what is judged, what the kernel's log adds, and what schedulers read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from portagpu.checks.health import engine as logs
from portagpu.runs.results.run import Run, Verdict
from tests.process.test_health import ECC, LOST, PAGES, dmesg, found
from tests.process.test_health import fork as fork
from tests.process.test_health import node as node
from tests.process.test_health import root_of_node as root_of_node

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Child


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


@pytest.mark.parametrize(
    ("words", "code", "out", "err"),
    [
        (("--gate", "prolog"), 1, "", "portagpu health: isolate: health/answers on "),
        (("--gate", "healthcheck"), 1, "portagpu health: isolate: health/answers", ""),
        (("--gate", "npd"), 1, "isolate: health/answers on ", ""),
        (("--gate", "prolog", "--fail-on", "replace"), 0, "", "isolate: health/answers on "),
    ],
)
def test_a_gate_answers_where_its_caller_reads(
    words: tuple[str, ...],
    code: int,
    out: str,
    err: str,
    tmp_path: Path,
    fork: Callable[..., Child],
) -> None:
    """A prolog has no PATH, no HOME and no terminal: the environment here has neither."""
    reason = () if "npd" in words else ("--reason-file", str(tmp_path / "reason"))
    done = fork(*words, *reason, "--replay", str(PAGES / "v13-lost.xml"))
    assert done.code == code, done.err
    assert out in done.out
    assert bool(out) == bool(done.out)
    assert err in done.err
    assert len(done.out.splitlines()) <= 1
    if reason:
        assert " isolate: health/answers on " in (tmp_path / "reason").read_text()

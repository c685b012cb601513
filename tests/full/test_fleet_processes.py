"""``portagpu fleet run --ssh`` through a real sshd of this machine, as 64 nodes."""

from __future__ import annotations

import getpass
import os
import re
import shutil
import socket
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from portagpu.reports.fleet import run as fleet_run
from portagpu.reports.fleet.record import StepState, read_record
from portagpu.reports.fleet.request import FleetOptions
from tests.support.waits import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:" + os.environ.get("PATH", ""))
pytestmark = pytest.mark.skipif(
    SSHD is None or shutil.which("ssh-keygen") is None, reason="OpenSSH's server is not installed"
)
NODES = 64


@pytest.fixture
def config(tmp_path: Path) -> Iterator[Path]:
    """A client's configuration for ``node1`` to ``node64``, each under its own name of one sshd."""
    for name in ("host", "user"):
        key = tmp_path / name
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True, timeout=60
        )
    (tmp_path / "authorized").write_text((tmp_path / "user.pub").read_text())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (tmp_path / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\n"
        f"HostKey {tmp_path}/host\nPidFile {tmp_path}/pid\nStrictModes no\nUsePAM no\n"
        f"AuthorizedKeysFile {tmp_path}/authorized\nMaxStartups 200\nPermitRootLogin yes\n"
        f"AcceptEnv PLACE\n"
    )
    public = (tmp_path / "host.pub").read_text().split()
    (tmp_path / "known").write_text(
        "".join(f"node{n} {public[0]} {public[1]}\n" for n in range(1, NODES + 1))
    )
    (tmp_path / "ssh_config").write_text(
        "".join(f"Host node{n}\n  HostKeyAlias node{n}\n" for n in range(1, NODES + 1))
        + f"Host *\n  HostName 127.0.0.1\n  Port {port}\n  User {getpass.getuser()}\n"
        f"  IdentityFile {tmp_path}/user\n"
        f"  IdentitiesOnly yes\n  UserKnownHostsFile {tmp_path}/known\n"
        "  StrictHostKeyChecking yes\n"
    )
    assert SSHD is not None
    with (tmp_path / "sshd.log").open("wb") as log:
        server = subprocess.Popen(
            [SSHD, "-D", "-e", "-f", str(tmp_path / "sshd_config")], stderr=log
        )
    try:

        def listens() -> bool:
            if server.poll() is not None:
                pytest.skip(f"sshd does not start: {(tmp_path / 'sshd.log').read_text()}")
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        wait_until(listens, "sshd does not listen")
        yield tmp_path / "ssh_config"
    finally:
        server.terminate()
        server.wait()


def options(config: Path, nodes: str, **others: Any) -> FleetOptions:
    node = config.parent / "node"
    if not node.exists():
        from tests.support.result_samples import passing

        result = config.parent / "result.json"
        result.write_text(passing().to_text())
        node.write_text(f"#!/bin/sh\necho $$ >> {config.parent}/pids\nexec cat {result}\n")
        node.chmod(0o755)
    asked: dict[str, Any] = {"what": "bringup", "program": [str(node)], "settle_s": 0.0}
    folder = config.parent / "fleet"
    return FleetOptions(**asked, folder=folder, ssh=nodes, ssh_config=config, **others)


@pytest.mark.processes(80, "64 connections and their server")
def test_sixty_four_nodes_of_one_machine(config: Path) -> None:
    names = ",".join(f"node{number}" for number in range(1, NODES + 1))
    fleet_run.run(options(config, names))
    steps = read_record(config.parent / "fleet").steps
    assert len(steps) == NODES
    bad = [step for step in steps if step.state is not StepState.DONE or step.verdict != "PASS"]
    assert not bad, bad[0].reason


def test_a_host_key_that_changed_is_named(config: Path) -> None:
    known = config.parent / "known"
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(config.parent / "other")],
        check=True,
        timeout=60,
    )
    other = (config.parent / "other.pub").read_text().split()[1]
    # of the second node alone
    known.write_text(re.sub(r"(?m)^(node2 \S+) .*", rf"\1 {other}", known.read_text()))
    fleet_run.run(options(config, "node1,node2"))
    first, second = read_record(config.parent / "fleet").steps
    assert first.state is StepState.DONE
    assert second.state is StepState.LOST
    assert (
        "its host key changed; where it was installed again, ssh-keygen -R node2" in second.reason
    )


@pytest.mark.processes(20, "connections through another one, and their server")
def test_a_jump_host_is_named_where_it_fails(config: Path) -> None:
    through = {"node1": "node3", "node2": "node4", "node5": "node3"}
    known = config.parent / "known"
    # the jump host of node2 has another key than is known
    other = (config.parent / "user.pub").read_text().split()[1]
    known.write_text(re.sub(r"(?m)^(node4 \S+) .*", rf"\1 {other}", known.read_text()))
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        config.write_text(
            f"Host node5\n  Port {closed.getsockname()[1]}\n"
            + "".join(f"Host {node}\n  ProxyJump {jump}\n" for node, jump in through.items())
            + config.read_text()
        )
        fleet_run.run(options(config, ",".join(through)))
    reached, changed, refused = read_record(config.parent / "fleet").steps
    assert reached.state is StepState.DONE
    assert "its jump host's host key changed" in changed.reason
    assert "ssh-keygen -R node4 helps" in changed.reason
    assert "no server answers there" in refused.reason

"""AMD's own librocm_smi64 over recorded machines, compared with what this package reads of them.

Optional: it needs the library (Debian: librocm-smi64-1), root in a mount namespace, and the
recordings. What passes here is the badge ``loaded``: the vendor's library answered, over files
that were recorded, and no GPU was there.
"""

from __future__ import annotations

import ctypes
import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from portagpu.checks.recordings.replay import Recording
from portagpu.facts.readings.model import Node
from tests.support import rocm_smi_replay

RECORDINGS = Path(__file__).parents[3] / "shared/recordings/kfd"
NAMESPACE = ("unshare", "--mount", "--propagation", "private")
LIMIT_S = 120


def _missing() -> str:
    if not RECORDINGS.is_dir():
        return "no recordings next to this checkout"
    try:
        ctypes.CDLL(rocm_smi_replay.LIBRARY)
    except OSError:
        return f"{rocm_smi_replay.LIBRARY} is not installed"
    try:
        done = subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False, timeout=60)
    except FileNotFoundError:
        return "there is no unshare"
    return "" if done.returncode == 0 else "this user may make no mount namespace"


pytestmark = pytest.mark.skipif(bool(_missing()), reason=_missing() or "everything is here")


@cache
def answers(recording: str) -> dict[str, Any]:
    """What the library says of that recording."""
    command = [*NAMESPACE, sys.executable, rocm_smi_replay.__file__, str(RECORDINGS / recording)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["init"] == 0, f"rsmi_init answers {found['init']}"
    return found


@pytest.mark.parametrize(
    ("recording", "gpus", "partitions"),
    [("mi210-8gpu-xgmi-pcie", 8, 8), ("mi300x-cpx-64part", 8, 63)],
)
def test_the_library_finds_the_devices_that_we_find(
    recording: str, gpus: int, partitions: int
) -> None:
    theirs, inventory = answers(recording), Recording(RECORDINGS / recording).inventory()
    assert re.fullmatch(r"\d+\.\d+\.\d+", theirs["version"]), "the library names its version"
    assert len(inventory.gpus) == gpus
    ours = sum(len(gpu.parts) or 1 for gpu in inventory.gpus)
    assert ours == partitions == len(theirs["devices"])
    # a partition has another function than its GPU
    addresses = {device["pci"].rpartition(".")[0] for device in theirs["devices"]}
    assert addresses == {str(gpu.pci).rpartition(".")[0] for gpu in inventory.gpus}
    assert {device["device_id"] for device in theirs["devices"]} == {
        gpu.device_id for gpu in inventory.gpus
    }


@pytest.mark.parametrize(
    ("recording", "weights"),
    [("mi210-8gpu-xgmi-pcie", {15}), ("mi300x-cpx-64part", {13, 41})],
)
def test_the_library_weighs_the_links_as_we_do(recording: str, weights: set[int]) -> None:
    theirs = answers(recording)["devices"]
    topology = Recording(RECORDINGS / recording).topology()
    stated = [link for link_group in topology.link_groups for link in link_group.statements]
    ours = {
        (link.a.pci, link.b.pci): link.weight
        for link in stated
        if link.kind == "xgmi" and link.a.node is link.b.node is Node.GPU
    }
    compared = set()
    for device in theirs:
        for other, (kind, _, weight) in device["links"].items():
            pair = (device["pci"], theirs[int(other)]["pci"])
            if kind != "xgmi" or pair not in ours:
                continue
            assert weight == ours[pair], f"{pair}: the library says {weight}, we {ours[pair]}"
            compared.add(weight)
    assert compared == weights

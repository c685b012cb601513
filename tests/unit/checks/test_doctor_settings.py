"""The doctor on settings of machines: variables, configuration files, interfaces and limits."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from portagpu.base.errors import RecordingError
from portagpu.checks.collectives_doctor import DoctorOptions, doctor, known_findings
from portagpu.checks.collectives_doctor.settings import _tables, judge_machine
from portagpu.checks.recordings.replay import Recording
from portagpu.facts.torchbuild import TorchBuild
from portagpu.machine.inventory.sources import Live
from portagpu.runs.results.run import Verdict
from tests.support.gpu_trees import amd_gpu
from tests.support.gpu_trees import machine as gpu_machine
from tests.support.host_trees import build

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

NET = "sys/class/net"


class Box(Live):
    """A machine below a folder, with a torch of that kind and these variables."""

    def __init__(self, root: Path, environment: Mapping[str, str], kind: str | None) -> None:
        super().__init__(root, environment)
        self._kind = kind

    def torch(self) -> TorchBuild | None:
        return None if self._kind is None else TorchBuild(location="", kind=self._kind)


def box(
    root: Path,
    files: Mapping[str, str] | None = None,
    kind: str | None = None,
    **environment: str,
) -> Box:
    interfaces = {
        f"{NET}/{name}/{key}": value
        for name, mtu, state in (("lo", 65536, "unknown"), ("eth0", 1500, "up"),
                                 ("eth1", 9000, "up"), ("ib0", 4092, "down"))
        for key, value in (("mtu", str(mtu)), ("operstate", state))
    }  # fmt: skip
    build(root, {**interfaces, **(files or {})})
    return Box(root, environment, kind)


def problems(machine: Any) -> dict[str, str]:
    return {
        each.id: each.evidence
        for each in judge_machine(machine)
        if known_findings()[each.id].verdict is not Verdict.PASS
    }


def test_a_machine_without_settings_has_no_problem(tmp_path: Path) -> None:
    machine = box(tmp_path)
    assert problems(machine) == {}
    run = doctor(DoctorOptions(machine=machine))
    assert run.verdict is Verdict.PASS
    assert "eth0 (MTU 1500), eth1 (MTU 9000), ib0 (MTU 4092)" in run.results[0].reason


@pytest.mark.parametrize("variable", ["NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"])
@pytest.mark.parametrize(
    ("value", "finding"),
    [
        ("eth0", None),
        ("eth0,eth1", "mtu-differs"),
        ("10.0.0.1", "interface-address"),
        ("eth0,10.0.0.0/24", "interface-address"),
        ("fe80::1", "interface-address"),
        ("bond7", "interface-missing"),
        ("ib0", "interface-down"),
        ("lo", "interface-local"),
    ],
)
def test_an_interface_is_judged(
    tmp_path: Path, variable: str, value: str, finding: str | None
) -> None:
    found = problems(box(tmp_path, **{variable: value}))
    assert list(found) == ([finding] if finding else [])
    if finding:
        assert f"{variable}={value}" in found[finding]


@pytest.mark.parametrize(
    ("value", "here", "gloo"),
    [
        ("^lo,docker", [], "interface-syntax"),
        ("=eth0", [], "interface-syntax"),
        ("=eth", ["interface-missing"], "interface-syntax"),
        ("eth", ["mtu-differs"], "interface-missing"),
        ("^eth,ib,lo", ["interface-missing"], "interface-syntax"),
        ("eth0:1", ["interface-missing"], "interface-syntax"),
        ("=eth0,eth7", ["interface-missing"], "interface-syntax"),
    ],
)
def test_gloo_has_not_the_syntax_of_the_other(
    tmp_path: Path, value: str, here: list[str], gloo: str
) -> None:
    assert list(problems(box(tmp_path / "a", NCCL_SOCKET_IFNAME=value))) == here
    assert list(problems(box(tmp_path / "b", GLOO_SOCKET_IFNAME=value))) == [gloo]


def test_a_recording_without_interfaces_says_nothing_of_their_names(tmp_path: Path) -> None:
    build(tmp_path, {"proc/cmdline": "quiet"})
    assert problems(Box(tmp_path, {"NCCL_SOCKET_IFNAME": "bond7"}, None)) == {}


VARIABLES = {
    ("NCCL_P2P_DISABLE", "1"): "p2p-turned-off",
    ("NCCL_P2P_DISABLE", "0"): None,
    ("NCCL_P2P_LEVEL", "LOC"): "p2p-turned-off",
    ("NCCL_P2P_LEVEL", "NVL"): None,
    ("NCCL_IB_DISABLE", "1"): "rdma-turned-off",
    ("NCCL_SHM_DISABLE", "1"): "shm-turned-off",
    ("NCCL_ALGO", "Ring"): "debug-variable",
    ("NCCL_MIN_CTAS", "32"): "debug-variable",
    ("NCCL_ENV_PLUGIN", "none"): None,
    ("NCCL_ENV_PLUGIN", "librccl-env-json.so"): "environment-plugin",
    ("NCCL_TREE_THRESHOLD", "0"): "unread-variable",
    ("NCCL_BLOCKING_WAIT", "1"): "old-variable",
    ("RCCL_DEBUG", "INFO"): "unread-variable",
    ("RCCL_MSCCL_ENABLE", "1"): "unread-variable",
    ("TORCH_FR_BUFFER_SIZE", "0"): "no-recorder",
    ("NCCL_DEBUG", "INFO"): None,
}


@pytest.mark.parametrize(("name", "value"), VARIABLES)
def test_a_variable_is_judged(tmp_path: Path, name: str, value: str) -> None:
    wanted = VARIABLES[name, value]
    found = problems(box(tmp_path, **{name: value}))
    assert list(found) == ([wanted] if wanted else [])
    if wanted:
        assert found[wanted].startswith(f"{name}={value}: ")


@pytest.mark.parametrize(
    ("kind", "name", "foreign"),
    [
        ("cuda", "HSA_FORCE_FINE_GRAIN_PCIE", True),
        ("rocm", "HSA_FORCE_FINE_GRAIN_PCIE", False),
        ("rocm", "NCCL_MNNVL_ENABLE", True),
        ("cuda", "NCCL_MNNVL_ENABLE", False),
        ("cpu", "HSA_FORCE_FINE_GRAIN_PCIE", False),
        (None, "NCCL_MNNVL_ENABLE", False),
        ("rocm", "NCCL_DEBUG", False),
    ],
)
def test_a_variable_of_the_other_vendor_is_reported(
    tmp_path: Path, kind: str | None, name: str, foreign: bool
) -> None:
    found = problems(box(tmp_path, kind=kind, **{name: "1"}))
    assert ("foreign-variable" in found) is foreign


def test_configuration_files_are_read_as_the_library_reads_them(tmp_path: Path) -> None:
    files = {
        "etc/nccl.conf": "# all jobs\nNCCL_IB_DISABLE=1\nNCCL_ALGO=Tree",
        "home/u/.nccl.conf": "NCCL_ALGO=Ring\nexport NCCL_PROTO=LL",
    }
    found = problems(box(tmp_path, files, HOME="/home/u"))
    assert found["rdma-turned-off"].startswith("NCCL_IB_DISABLE=1")
    assert found["debug-variable"].startswith("NCCL_ALGO=Ring"), "the user's file counts first"
    assert (
        "/home/u/.nccl.conf sets a variable of the name 'export NCCL_PROTO'"
        in (found["configuration-line"])
    )
    assert {"configuration-file"} < set(found)
    assert "rdma-turned-off" not in problems(
        box(tmp_path, files, HOME="/home/u", NCCL_IB_DISABLE="0")
    ), "the environment counts before files"


def test_only_the_files_of_the_build_are_read(tmp_path: Path) -> None:
    files = {"etc/nccl.conf": "NCCL_IB_DISABLE=1", "etc/rccl.conf": "NCCL_P2P_DISABLE=1"}
    assert set(problems(box(tmp_path, files, "cuda"))) == {"configuration-file", "rdma-turned-off"}
    assert set(problems(box(tmp_path, files, "rocm"))) == {"configuration-file", "p2p-turned-off"}


def test_a_configuration_file_that_is_missing_is_reported_on_this_machine() -> None:
    machine = Live(environment={"NCCL_CONF_FILE": "/nowhere/nccl.conf"})
    assert "NCCL_CONF_FILE=/nowhere/nccl.conf" in problems(machine)["configuration-missing"]


LIMIT = "Max locked memory         {0}                {0}                bytes"


@pytest.mark.parametrize(
    ("limit", "card", "small"),
    [("65536", True, True), ("unlimited", True, False), ("65536", False, False)],
)
def test_locked_memory_matters_where_there_is_rdma(
    tmp_path: Path, limit: str, card: bool, small: bool
) -> None:
    files = {"proc/self/limits": LIMIT.format(limit)}
    if card:
        files["sys/class/infiniband/mlx5_0/ports/1/link_layer"] = "InfiniBand"
    assert ("small-locked-memory" in problems(box(tmp_path, files))) is small


def test_small_packets_of_rdma_over_ethernet_are_reported(tmp_path: Path) -> None:
    card = "sys/class/infiniband/mlx5_0"
    files = {f"{card}/ports/1/link_layer": "Ethernet", f"{card}/device/net/eth0/mtu": "1500"}
    assert "mlx5_0 sends over eth0, whose MTU is 1500" in problems(box(tmp_path, files)).values()
    files[f"{card}/ports/1/link_layer"] = "InfiniBand"
    assert "small-mtu" not in problems(box(tmp_path, files))


@pytest.mark.parametrize(
    ("config", "lacking"),
    [
        ("CONFIG_PCI_P2PDMA=y\nCONFIG_DMABUF_MOVE_NOTIFY=y", ""),
        ("# CONFIG_PCI_P2PDMA is not set\nCONFIG_DMABUF_MOVE_NOTIFY=y", "has no CONFIG_PCI_P2PDMA"),
        (None, ""),
    ],
)
def test_kernel_options_matter_to_several_gpus(
    tmp_path: Path, config: str | None, lacking: str
) -> None:
    files, links = gpu_machine(amd_gpu(0), amd_gpu(1))
    files["proc/sys/kernel/osrelease"] = "6.8.0"
    if config is not None:
        files["boot/config-6.8.0"] = config
    build(tmp_path, files, links)
    found = problems(box(tmp_path))
    assert ("kernel-option" in found) is bool(lacking)
    assert lacking in found.get("kernel-option", "")


def test_what_info_says_of_the_machine_is_said_too(tmp_path: Path) -> None:
    mounts = "1 0 0:1 / /dev/shm rw - tmpfs shm rw,size=65536k"
    found = problems(box(tmp_path, {"proc/self/mountinfo": mounts}))
    assert list(found) == ["small-shared-memory"]
    assert "has 64 MiB" in found["small-shared-memory"]


def test_masks_that_conflict_are_reported(tmp_path: Path) -> None:
    masks = {"ROCR_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "2"}
    found = [
        each for each in judge_machine(box(tmp_path, kind="rocm", **masks)) if each.id == "mask"
    ]
    assert any("leaves 2 device(s)" in each.evidence for each in found)
    assert not problems(box(tmp_path, kind="cuda", CUDA_VISIBLE_DEVICES="0,1"))


def test_a_recording_is_judged_by_what_it_holds(tmp_path: Path) -> None:
    build(tmp_path / "tree", {"etc/nccl.conf": "NCCL_IB_DISABLE=1", "proc/cmdline": "quiet"})
    manifest = {"schema": "portagpu.recording/1", "environment": {"ROCR_VISIBLE_DEVICES": "1,1"}}
    (tmp_path / "recording.json").write_text(json.dumps(manifest))
    found = problems(Recording(tmp_path))
    assert set(found) == {"configuration-file", "rdma-turned-off"}


def test_every_kind_of_the_tables_is_known() -> None:
    tables = _tables()
    assert {each.variable for each in tables.interfaces} == {
        "NCCL_SOCKET_IFNAME",
        "GLOO_SOCKET_IFNAME",
    }
    assert {each.finding for each in tables.variables} <= set(known_findings())
    assert set(tables.foreign) == {"cuda", "rocm"}


@pytest.mark.parametrize("data", [b"\xff\xfe=\0\n=\n==", b"A" * 200_000, b"\n" * 100_000])
def test_a_damaged_configuration_file_stops_nothing(tmp_path: Path, data: bytes) -> None:
    machine = box(tmp_path, {"etc/nccl.conf": "x"})
    (tmp_path / "etc/nccl.conf").write_bytes(data)
    for finding in judge_machine(machine):
        assert finding.evidence.isprintable()


def test_findings_are_of_one_line() -> None:
    kinds = known_findings()
    assert all(each.isprintable() for kind in kinds.values() for each in (kind.means, kind.remedy))
    assert not any("|" in text for k in kinds.values() for text in (k.means, k.cause, k.remedy))


def test_a_recording_without_any_setting_is_not_called_fine(tmp_path: Path) -> None:
    path = tmp_path / "kernel.log"
    path.write_text(
        "[    1.0] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  590.48.01\n", "utf-8"
    )
    run = doctor(DoctorOptions(machine=Recording(str(path))))
    assert [each.id for each in run.results] == ["collectives/doctor/no-settings"]
    assert run.exit_code == 3


def test_an_empty_path_is_not_this_folder() -> None:
    with pytest.raises(RecordingError, match="a path is empty"):
        doctor(DoctorOptions(paths=[""]))

"""Secrets of every kind in every place that a recording keeps: none is in what is written."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from portagpu.checks.recordings import record as record_module
from portagpu.checks.recordings.record import record
from portagpu.checks.recordings.replay import Recording
from portagpu.facts.readings.model import Event, Findings, GpuPart, GpuState, Process, Reading
from portagpu.machine.inventory.sources import CommandOutput, Live
from tests.support.gpu_trees import amd_gpu, machine, nvidia_gpu
from tests.support.host_trees import build, two_socket_x86
from tests.vendor_texts.test_recording_secrets import (
    ANYWHERE,
    EVERY,
    FORMS,
    GROUPS,
    KNOWN,
    OF_PROCESSES,
    SERIALS,
    UUID,
    printed,
    written,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import pytest


def planted_tree() -> tuple[Mapping[str, str], Mapping[str, str]]:
    gpu_files, links = machine(nvidia_gpu(1), amd_gpu(2))
    group = "/".join(text for _, text, _ in GROUPS)
    filer = "\n".join(f"1 2 0:3 / /{text} rw - nfs {text}:/x rw,addr=1" for _, text in KNOWN)
    files = {
        "proc/cmdline": " ".join(["iommu=pt", *(text for _, text, _ in EVERY)]),
        "proc/1/comm": OF_PROCESSES[0][1],
        "proc/1/cgroup": f"0::/{group}",
        "proc/self/cgroup": f"12:cpu,cpuacct:/{group}\n1:name={GROUPS[0][1]}:/{group}\n0::/{group}",
        "proc/self/status": f"Name:\t{OF_PROCESSES[0][1]}\nCpus_allowed_list:\t0-3",
        "proc/self/mountinfo": f"{filer}\n2 2 0:4 /{group} /sys/fs/cgroup rw,x={KNOWN[0][1]} "
        f"shared:1 - cgroup2 {KNOWN[1][1]} rw,name={GROUPS[0][1]}\n"
        f"3 2 0:5 / /home/{KNOWN[2][1]}/cgroup rw - tmpfs x rw",
        f"sys/fs/cgroup/{group}/memory.max": "1073741824",
        "sys/fs/cgroup/memory.max": "max",
        "run/systemd/container": KNOWN[0][1],
    }
    for at, (kind, text, _) in enumerate(ANYWHERE):
        # four numbers under "fw_ver" are a version, and nothing distinguishes them from an address
        nic = f"sys/class/infiniband/mlx5_{at}"
        files |= {
            f"sys/class/hwmon/hwmon{at}/name": text,
            f"sys/class/hwmon/hwmon{at}/temp1_input": "40000",
            f"sys/class/hwmon/hwmon{at}/temp1_label": f"at {text}",
            f"sys/class/thermal/thermal_zone{at}/type": text,
            f"sys/class/thermal/thermal_zone{at}/temp": "40000",
            f"sys/devices/system/edac/mc/mc0/dimm{at}/dimm_label": text,
            f"sys/devices/system/edac/mc/mc0/dimm{at}/dimm_ce_count": "0",
            f"{nic}/board_id": text,
            f"{nic}/fw_ver": "20.38.1002" if kind == "ipv4" else text,
            f"{nic}/device/uevent": f"DRIVER={text}\nPCI_SLOT_NAME=0000:07:00.0",
        }
        if "/" not in text:
            name = f"sys/class/infiniband/ib_{text}"
            files[f"{name}/ports/1/state"] = "4: ACTIVE"
            links[f"{name}/driver"] = f"../{text}"
            links[f"{nic}/device/driver"] = f"../../{text}/nvidia"
    for at, (_, text, _) in enumerate(SERIALS):
        files[f"sys/class/infiniband/mlx5_{at}/node_guid"] = text
    return two_socket_x86() | gpu_files | files, links


def library_findings() -> Findings:
    reading = Reading(
        source="NVML",
        vendor="nvidia",
        pci="0000:07:00.0",
        uuid=UUID,
        name="NVIDIA H200",
        parts=(GpuPart(index=0, uuid="MIG-aaaaaaaa-bbbb-5ccc-8ddd-eeeeeeeeeeee"),),
        firmware={"vbios": "10.11.12.13"},
        state=GpuState(
            processes=3, process_list=(Process(pid=47110815, memory_bytes=47110815 << 10),)
        ),
        missing={f"power_w {text}": text for _, text, _ in ANYWHERE},
        extra={f"note {text}": text for _, text, _ in ANYWHERE} | {"serial": SERIALS[3][1]},
    )
    event = Event(source="x", vendor="nvidia", code="Xid 31", line=ANYWHERE[0][1])
    return Findings(
        kind=f"NVML of {KNOWN[0][1]}",
        readings=(reading,),
        events=(event,),
        versions={"driver": "535.104.05.01"},
        problems=tuple(f"it said {text}" for _, text, _ in ANYWHERE),
    )


def kernel_log() -> str:
    xid = "NVRM: Xid (PCI:0000:07:00): 31, pid=47110815, name={}, Ch 00000010, intr 00000000."
    fault = (
        "amdgpu 0000:83:00.0: amdgpu: [gfxhub0] no-retry page fault (src_id:0 ring:24 vmid:3 "
        "pasid:32769, for process {0} pid 47110815 thread {0} pid 4712)"
    )
    names = [text[:15] for _, text, _ in OF_PROCESSES]
    lines = [f"[  100.5] {form.format(name)}" for form in (xid, fault) for name in names]
    lines += [f"[  101.5] {xid.format('x')} {text}" for _, text, _ in ANYWHERE]
    lines.append(f"[  102.5] audit: {OF_PROCESSES[0][1]}")
    return "\n".join(lines) + "\n"


class Planted(Live):
    """A machine whose libraries answer with secrets, and whose software does."""

    def __init__(self, tree: Any) -> None:
        super().__init__(tree)
        self.asked = (library_findings(),)

    def library_findings(self) -> tuple[Findings, ...]:
        return self.asked

    def log_output(self) -> CommandOutput:
        return CommandOutput(("dmesg",), kernel_log())


def test_no_planted_secret_is_in_a_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, links = planted_tree()
    root = build(tmp_path / "machine", files, links)
    monkeypatch.setattr(record_module, "run_commands", lambda _: iter(printed()))
    monkeypatch.setattr(record_module, "_ProbedOnce", Planted)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"{UUID},{FORMS[0][1]}")
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", KNOWN[0][1])
    saved = record(tmp_path / "saved", root, names=KNOWN)
    # placeholders apart, so that a needle of few letters is not found in one
    texts = {
        where: re.sub(r"<[a-z]+-\d+>", "", text).lower() for where, text in written(saved.folder)
    }
    assert len(texts) > 300, "every place is there"
    found = [
        f"{kind} {text!r} in {where}"
        for kind, text, part in EVERY
        for where, whole in texts.items()
        if part.lower() in whole
    ]
    assert not found, f"{len(found)} found: " + "\n".join(found[:60])
    assert "47110815" not in "".join(texts.values()), "numbers of processes"
    assert {
        "process",
        "secret",
        "group",
        "host",
        "user",
        "path",
        "address",
    } <= saved.scrubbed.keys()
    replayed = Recording(saved.folder).inventory()
    by_address = {gpu.pci: gpu for gpu in replayed.gpus}
    assert by_address["0000:07:00.0"].uuid == UUID, "what joins the sources stays"
    assert "third-tool: what it printed is of no known format and is left out" in saved.problems

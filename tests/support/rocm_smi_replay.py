"""Asks AMD's librocm_smi64 about a recorded machine; runs as root in a mount namespace of its own.

``python rocm_smi_replay.py TREE`` builds, on file systems in memory over /sys/class and
/sys/module, what the library looks at: the recorded KFD topology, a DRM card for each of its GPUs
with the files of PCI that name it, and a driver that is loaded. Files that the recording lacks and
the library insists on (``gpu_id``, ``name``, the ids of PCI) are made from the properties next to
them. It prints one JSON document with what the library answers.

Behaviour of the library: ROCm/rocm_smi_lib, src/rocm_smi_main.cc and rocm_smi_kfd.cc.
"""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
import sys
from pathlib import Path

LIBRARY = "librocm_smi64.so.1"
CLASS = Path("/sys/class")
MODULE = Path("/sys/module")
KFD = CLASS / "kfd/kfd/topology"
LINK_TYPES = {1: "pcie", 2: "xgmi"}
"""RSMI_IO_LINK_TYPE of rocm_smi.h."""


class Version(ctypes.Structure):
    """rsmi_version_t."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("patch", ctypes.c_uint32),
        ("build", ctypes.c_char_p),
    ]


def properties(node: Path) -> dict[str, int]:
    lines = (line.split() for line in (node / "properties").read_text().splitlines())
    return {line[0]: int(line[1]) for line in lines if len(line) == 2}


def lay_out(tree: Path) -> None:
    for place in (CLASS, MODULE):
        subprocess.run(["mount", "-t", "tmpfs", "none", str(place)], check=True)
    shutil.copytree(tree / "nodes", KFD / "nodes")
    (MODULE / "amdgpu").mkdir()
    (MODULE / "amdgpu/initstate").write_text("live\n")
    (CLASS / "drm").mkdir()
    # the library counts cards and then opens them from 0 on
    cards = 0
    for node in sorted((KFD / "nodes").iterdir(), key=lambda path: int(path.name)):
        values = properties(node)
        is_gpu = values.get("simd_count", 0) > 0
        (node / "io_links").mkdir(exist_ok=True)
        for name, text in (("gpu_id", f"{int(node.name) * is_gpu}\n"), ("name", "\n")):
            if not (node / name).exists():
                (node / name).write_text(text)
        if is_gpu:
            card(cards, values)
            cards += 1


def card(index: int, values: dict[str, int]) -> None:
    location = values["location_id"]
    address = f"{values.get('domain', 0):04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 31:02x}"
    real = CLASS / f"drm/.{address}.{location & 7}-{index}/{address}.{location & 7}/drm/card{index}"
    device = real / "device"
    device.mkdir(parents=True)
    for name, number in (("vendor", 0x1002), ("device", values["device_id"])):
        (device / name).write_text(f"{number:#06x}\n")
    (device / "vbios_version").write_text("not-recorded\n")
    (device / "uevent").write_text(f"PCI_SLOT_NAME={address}.{location & 7}\n")
    (device / "unique_id").write_text(f"{values.get('unique_id', 0):016x}\n")
    (CLASS / f"drm/card{index}").symlink_to(real.relative_to(CLASS / "drm"))


def ask() -> dict[str, object]:
    library = ctypes.CDLL(LIBRARY)
    version = Version()
    library.rsmi_version_get(ctypes.byref(version))
    status = library.rsmi_init(ctypes.c_uint64(0))
    found: dict[str, object] = {
        "version": f"{version.major}.{version.minor}.{version.patch}",
        "build": (version.build or b"").decode(),
        "init": status,
        "devices": [],
    }
    if status:
        return found
    count = ctypes.c_uint32()
    library.rsmi_num_monitor_devices(ctypes.byref(count))
    found["devices"] = [device(library, index, count.value) for index in range(count.value)]
    library.rsmi_shut_down()
    return found


def device(library: ctypes.CDLL, index: int, count: int) -> dict[str, object]:
    number, identity = ctypes.c_uint64(), ctypes.c_uint16()
    address = library.rsmi_dev_pci_id_get(index, ctypes.byref(number))
    device_id = library.rsmi_dev_id_get(index, ctypes.byref(identity))
    links = {}
    for other in range(count):
        hops, kind, weight = ctypes.c_uint64(), ctypes.c_int(), ctypes.c_uint64()
        if other == index:
            continue
        status = library.rsmi_topo_get_link_type(
            index, other, ctypes.byref(hops), ctypes.byref(kind)
        )
        if status:
            continue
        weighed = library.rsmi_topo_get_link_weight(index, other, ctypes.byref(weight))
        links[other] = [
            LINK_TYPES.get(kind.value, f"type {kind.value}"),
            hops.value,
            None if weighed else weight.value,
        ]
    value = number.value
    text = f"{value >> 32:04x}:{value >> 8 & 0xFF:02x}:{value >> 3 & 31:02x}.{value & 7}"
    return {
        "pci": None if address else text,
        "device_id": None if device_id else identity.value,
        "links": links,
    }


if __name__ == "__main__":
    lay_out(Path(sys.argv[1]))
    json.dump(ask(), sys.stdout)

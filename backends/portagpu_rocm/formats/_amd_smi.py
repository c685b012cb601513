"""A GPU's reading from any output of AMD SMI.

Its JSON, text and CSV are one tree of keys (``amdsmi_cli/amdsmi_logger.py``: the text is the JSON
with keys in upper case, the CSV the same without sections), so each form is read into *records*:
mappings of lower-case keys, one a GPU. Keys of ROCm 6.0 to 7.14 (``amdsmi_commands.py``, the
tool's CHANGELOG).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from portagpu.facts.formats import pci_address
from portagpu.facts.readings import Reading
from portagpu.facts.readings.model import without_none
from portagpu_rocm.formats._amd import (
    VENDOR,
    count,
    first_stated,
    gfx_arch,
    product_name,
    runtime_uuid,
    scalar_text,
    size,
    unique_id_from_uuid,
)
from portagpu_rocm.formats._amd_smi_records import Record, field, inner
from portagpu_rocm.formats._amd_smi_state import memory, pcie, state


def reading(record: Record, source: str) -> Reading:
    """One GPU's record as a Reading."""
    uuid = scalar_text(first_stated(record.get("uuid"), record.get("gpu_uuid")))
    hip_uuid = scalar_text(record.get("hip_uuid"))
    unique_id = first_stated(
        count(field(record, "asic", "asic_serial")), unique_id_from_uuid(hip_uuid), _unique_id(uuid)
    )
    unique_id = unique_id or None
    bdf = first_stated(record.get("bdf"), record.get("gpu_bdf"), field(record, "bus", "bdf"))
    return Reading(
        source=source,
        vendor=VENDOR,
        index=count(record.get("gpu")),
        pci=pci_address(scalar_text(bdf)),
        uuid=hip_uuid if unique_id_from_uuid(hip_uuid) is not None else runtime_uuid(unique_id),
        unique_id=unique_id,
        name=product_name(scalar_text(field(record, "asic", "market_name"))),
        arch=gfx_arch(scalar_text(field(record, "asic", "target_graphics_version"))),
        device_id=count(field(record, "asic", "device_id")),
        subsystem_id=count(field(record, "asic", "subsystem_id")),
        memory_bytes=first_stated(
            size(inner(record, "vram", "size")),
            size(field(record, "mem_usage", "total_vram")),
            size(record.get("vram_total")),
        ),
        unit_count=count(field(record, "asic", "num_compute_units")),
        numa_node=count(inner(record, "numa", "node")),
        driver=scalar_text(inner(record, "driver", "name")),
        firmware=_firmware(record),
        compute_partition=_partition(
            record, "compute_partition", "accelerator_partition", "accelerator_type"
        ),
        memory_partition=_partition(record, "memory_partition", "current", "memory"),
        pcie=pcie(record),
        memory=memory(record),
        state=state(record),
        extra=_extra(record, uuid),
    )


def driver_version(record: Record) -> str | None:
    """The version of the kernel driver that a record of ``static`` states."""
    return scalar_text(inner(record, "driver", "version"))


def _unique_id(uuid: str | None) -> int | None:
    """The serial number in AMD SMI's own UUID.

    ``amd_smi_uuid.cc``: the serial's highest byte is the first, the next one follows the variant,
    the lower six stand at the end; function and device id are between.
    """
    match = re.fullmatch(
        r"([0-9a-f]{2})[0-9a-f]{2}[0-9a-f]{4}-0000-1[0-9a-f]{3}-[89ab][0-9a-f]([0-9a-f]{2})-"
        r"([0-9a-f]{12})",
        (uuid or "").lower(),
    )
    return int("".join(match.groups()), 16) if match is not None else None


def _partition(record: Record, *keys: str) -> str | None:
    section = record.get("partition")
    values: list[object] = [section.get(key) for key in keys] if isinstance(section, dict) else []
    values += [inner(record, "memory_partition", key) for key in keys]
    name = first_stated(*(scalar_text(value) for value in values), scalar_text(record.get(keys[0])))
    return name.rstrip("*") if name is not None else None


def _firmware(record: Record) -> dict[str, str]:
    found: dict[str, str] = {}
    listed = record.get("fw_list")
    entries = listed.values() if isinstance(listed, Mapping) else listed
    for entry in entries if isinstance(entries, Iterable) and not isinstance(entries, str) else ():
        if isinstance(entry, Mapping):
            name, version = scalar_text(entry.get("fw_id")), scalar_text(entry.get("fw_version"))
            if name is not None and version is not None:
                found[name] = version
    vbios = scalar_text(inner(record, "vbios", "version"))
    return found | ({"VBIOS": vbios} if vbios is not None else {})


def _extra(record: Record, uuid: str | None) -> dict[str, str]:
    values = {
        "amd-smi uuid": uuid if re.fullmatch(r"[0-9a-fA-F-]{36}", uuid or "") else None,
        "kfd_id": scalar_text(record.get("kfd_id")),
        "node_id": scalar_text(record.get("node_id")),
        "partition_id": first_stated(
            scalar_text(record.get("partition_id")),
            scalar_text(inner(record, "partition", "partition_id")),
        ),
        "oam_id": scalar_text(field(record, "asic", "oam_id")),
        "vram_usage": scalar_text(record.get("vram_usage")),
        "xgmi_ports": scalar_text(record.get("xgmi_ports")),
        "xgmi_err": scalar_text(record.get("xgmi_err")),
        "deferred_errors": scalar_text(field(record, "ecc", "total_deferred_count")),
    }
    return without_none(values)

"""A GPU's reading from any output of nvidia-smi, with the names of all driver generations.

The XML, the text of ``-q`` and the columns of ``--query-gpu`` have the same values under names that
changed from driver to driver. Each form is first made a mapping from a path to a text. Paths of the
XML are elements below a GPU's ("pci/replay_counter"), those of ``-q`` the titles and labels of its
outline ("pci/replays_since_reset"), columns stand as they are ("pcie.link.gen.max"). Sources:
nvsmi_device_v2.dtd to v13.dtd as recorded outputs show them, ``nvidia-smi --help-query-gpu`` of
driver 595, nvidia-smi(1) of drivers 340 to 418.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from portagpu.base.text import excerpt
from portagpu.facts.formats import integer, is_error, number, pci_address, stated
from portagpu.facts.readings.model import GpuPart, GpuState, Memory, Pcie, Reading, without_none
from portagpu.facts.targets import arch_of_generation
from portagpu_cuda.formats._fabric import fabric_error, fabric_wait, hive

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    Values = Mapping[str, str]


VENDOR: Final = "nvidia"
_PCI_VENDOR: Final = 0x10DE
_MIB: Final = 1 << 20
NO_HANDLE: Final = r"[Uu]nable to (?:determine|detect|get) the device handle for "
_REASON: Final = re.compile(
    r"clocks_(?:event|throttle)_reasons(?:\.|/(?:.*/)?(?:clocks_(?:event|throttle)_reason_)?)(\w+)"
)
_REASON_ALIASES: Final = {
    "idle": "gpu_idle",
    "display_clock_setting": "display_clocks_setting",
    "user_defined_clocks": "applications_clocks_setting",
}
# nvml.h, nvmlClocksEventReason*
_REASON_BITS: Final = (
    "gpu_idle", "applications_clocks_setting", "sw_power_cap", "hw_slowdown", "sync_boost",
    "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown",
    "display_clocks_setting",
)  # fmt: skip
_NO_SLOWDOWN: Final = "gpu_idle"
# what stands in the place of values when the whole GPU is gone, and not one value
_LOST: Final = frozenset({"gpu is lost", "gpu requires reset", "gpu reset required"})
# what every GPU that answers states some of
_MEASURES: Final = ("temperature", "memory", "memory_used", "utilization", "clock")
_PENDING: Final = ("retirement_pending", "rows_pending", "channel_pending", "tpc_pending")


def slug(label: str) -> str:
    """A label as a part of a path: "GPU Current Temp" is "gpu_current_temp"."""
    return re.sub(r"[^a-z0-9]+", "_", label.lower()).strip("_")


def unmasked_uuid(text: str | None) -> str | None:
    """The UUID; None for the zeros with which captures are masked."""
    value = stated(text)
    return value if value is not None and re.search(r"[1-9a-fA-F]", value[4:]) else None


def memory_bytes(text: str | None) -> int | None:
    """ "81559 MiB" in bytes; old drivers write "MB" and mean the same."""
    value = number(text)
    return None if value is None else int(value * _MIB)


def yes_or_no(text: str | None) -> bool | None:
    """ "Yes", "Enabled" and "Active" against "No", "Disabled" and "Not Active"."""
    answers = {"yes": True, "enabled": True, "active": True, "true": True, "1": True,
               "no": False, "disabled": False, "not active": False, "false": False,
               "0": False}  # fmt: skip
    return answers.get((stated(text) or "").lower())


def pick(values: Values, field: str) -> str | None:
    """The first of the field's paths that states a value."""
    return _first_stated(values, NAMES[field])


def reading(
    values: Values,
    source: str,
    *,
    index: int | None = None,
    parts: tuple[GpuPart, ...] = (),
    processes: int | None = None,
) -> Reading:
    """The reading of one GPU from all that the tool says of it."""
    minor = integer(pick(values, "minor"))
    capability = re.fullmatch(r"(\d{1,2})\.(\d)", pick(values, "capability") or "")
    stated_index = integer(pick(values, "index"))
    return Reading(
        source=source,
        vendor=VENDOR,
        index=index if stated_index is None else stated_index,
        pci=pci_address(pick(values, "pci")),
        uuid=unmasked_uuid(pick(values, "uuid")),
        name=pick(values, "name"),
        arch=f"sm_{capability.group(1)}{capability.group(2)}" if capability else _arch(values),
        device_id=pci_id(pick(values, "device")),
        subsystem_id=subsystem_id(pick(values, "subsystem")),
        memory_bytes=memory_bytes(pick(values, "memory")),
        device_file=None if minor is None else f"/dev/nvidia{minor}",
        firmware=_texts(values, FIRMWARE),
        mig_enabled=yes_or_no(pick(values, "mig")),
        parts=parts,
        hive=hive(pick(values, "fabric_uuid"), pick(values, "fabric_clique")),
        pcie=_pcie(values),
        memory=_memory(values),
        state=_state(values, processes),
        extra=_texts(values, EXTRA),
    )


def version_texts(stated_as: Values) -> dict[str, str]:
    """The versions of driver and CUDA, under the names of a tool of any generation.

    Since driver 610 they are those of the kernel's and the user's part, and the old names say that
    they are deprecated.
    """
    found = {name: _first_stated(stated_as, paths) for name, paths in VERSIONS.items()}
    return {name: text for name, text in found.items() if text is not None and text[0].isdigit()}


def _arch(values: Values) -> str | None:
    """The architecture by the vendor's name of the generation and the product's name."""
    generation = slug(pick(values, "generation_name") or "")
    return arch_of_generation(VENDOR, generation, pick(values, "name")) if generation else None


def mig_part(values: Values) -> GpuPart:
    """A MIG device of the XML or of ``-q``."""
    return GpuPart(
        index=integer(values.get("index")),
        uuid=unmasked_uuid(values.get("uuid")),
        memory_bytes=memory_bytes(
            _first_stated(values, ("fb_memory_usage/total", "shared_fb_memory_usage/total"))
        ),
        unit_count=integer(values.get("device_attributes/shared/multiprocessor_count")),
    )


def failures(values: Values, found: Reading) -> str | None:
    """A sentence if errors stand in the place of values: the GPU no longer answers in full."""
    words = [text.strip().strip("[]") for text in values.values() if is_error(text)]
    if not words:
        return None
    named = found.name if found.index is None else f"number {found.index}"
    who = found.pci or found.uuid or named
    return f"GPU {who} answers {words[0]!r} in the place of {len(words)} values"


def lost_gpu(line: str) -> tuple[Reading, str] | None:
    """The GPU in a line like "Unable to determine the device handle for GPU3: ..."."""
    match = re.search(rf"{NO_HANDLE}(?:GPU|gpu)(.{{0,200}})", line)
    if match is None:
        return None
    where = re.search(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]", match.group(1))
    # "GPU3: 0000:5F:00.0: ..." and, of other drivers, "GPU0000:25:00.0: ..." without an index
    index = re.match(r"(\d{1,3})(?::|$)", match.group(1))
    why = excerpt(match.group(1).rsplit(": ", 1)[-1]) or "no reason stated"
    found = Reading(
        source="nvidia-smi",
        vendor=VENDOR,
        index=int(index.group(1)) if index else None,
        pci=pci_address(where.group()) if where else None,
        state=GpuState(error=why),
    )
    name = found.pci or (f"number {found.index}" if index else "without an address")
    return found, f"GPU {name} has no handle: {why}"


def _first_stated(values: Values, paths: Iterable[str]) -> str | None:
    return next((v for path in paths if (v := stated(values.get(path))) is not None), None)


def _texts(values: Values, names: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    return without_none({name: _first_stated(values, paths) for name, paths in names.items()})


def _integers(values: Values, names: Mapping[str, str]) -> dict[str, int]:
    return without_none({name: integer(pick(values, field)) for name, field in names.items()})


def _numbers(values: Values, names: Mapping[str, tuple[str, ...]]) -> dict[str, float]:
    return without_none({name: number(_first_stated(values, p)) for name, p in names.items()})


def _id_pair(text: str | None) -> tuple[int, int] | None:
    """(device, vendor) of "20B010DE" or "0x233010DE"."""
    match = re.fullmatch(r"(?:0x)?([0-9A-Fa-f]{4})([0-9A-Fa-f]{4})", text or "", re.IGNORECASE)
    return None if match is None else (int(match.group(1), 16), int(match.group(2), 16))


def pci_id(text: str | None) -> int | None:
    pair = _id_pair(text)
    return pair[0] if pair is not None and pair[1] == _PCI_VENDOR else None


def subsystem_id(text: str | None) -> int | None:
    pair = _id_pair(text)
    return None if pair is None else pair[0]


def _width(text: str | None) -> int | None:
    return integer((text or "").removesuffix("x"))


def _pcie(values: Values) -> Pcie:
    return Pcie(
        generation=integer(pick(values, "generation")),
        width=_width(pick(values, "width")),
        max_generation=integer(pick(values, "max_generation")),
        # documented as of GPU and system, and of GPUs in narrow slots it is the GPU's: a T4 at 8x
        # states 16x (nvidia-smi-xml of github.com/influxdata/telegraf, tesla-t4.xml)
        device_width=_width(pick(values, "max_width")),
        device_generation=integer(pick(values, "device_generation")),
        replays=integer(pick(values, "replays")),
    )


def _memory(values: Values) -> Memory:
    corrected, uncorrected, blocks = _errors(values, "volatile")
    corrected_total, uncorrected_total, _ = _errors(values, "aggregate")
    rows = {"correctable": "rows_correctable", "uncorrectable": "rows_uncorrectable"}
    pages = {"single-bit": "retired_single", "double-bit": "retired_double"}
    return Memory(
        ecc_enabled=yes_or_no(pick(values, "ecc")),
        corrected=corrected,
        uncorrected=uncorrected,
        corrected_total=corrected_total,
        uncorrected_total=uncorrected_total,
        by_block=blocks,
        retired_pages=_integers(values, pages),
        remapped_rows=_integers(values, rows),
        pending=_any_yes(values, _PENDING),
        remap_failed=yes_or_no(pick(values, "rows_failed")),
        exhausted_banks=integer(pick(values, "exhausted_banks")),
        beyond_repair=_any_yes(values, ("sram_exceeded", "unrepairable")),
    )


def _any_yes(values: Values, fields: Iterable[str]) -> bool | None:
    """True if a field says yes, False if one says no, else None."""
    answers = [yes_or_no(pick(values, field)) for field in fields]
    return True if True in answers else False if False in answers else None


def _errors(
    values: Values, scope: str
) -> tuple[int | None, int | None, dict[str, tuple[int | None, int | None]]]:
    """Corrected and uncorrected errors in all and by block, of "volatile" or "aggregate" counters.

    Since Ampere the XML and the text state SRAM and DRAM alone: all is their sum, where both are
    stated.
    """
    counts = [_counts(values, scope, kind) for kind in ("corrected", "uncorrected")]
    blocks = {
        name: (counts[0].get(name), counts[1].get(name))
        for name in BLOCKS
        if name in counts[0] or name in counts[1]
    }
    return counts[0].get(_ALL), counts[1].get(_ALL), blocks


_ALL: Final = "all"


def _counts(values: Values, scope: str, kind: str) -> dict[str, int]:
    bits = "single_bit" if kind == "corrected" else "double_bit"
    word = "correctable" if kind == "corrected" else "uncorrectable"
    found: dict[str, int] = {}
    for name, keys in (*BLOCKS.items(), (_ALL, ("total",))):
        for key in keys:
            paths = (
                f"ecc_errors/{scope}/{bits}/{key}",
                f"ecc_errors/{scope}/{key}_{word}",
                f"ecc.errors.{kind}.{scope}.{key}",
            )
            count = integer(_first_stated(values, paths))
            if count is not None:
                found.setdefault(name, count)
    split = [
        integer(
            _first_stated(
                values, (f"ecc_errors/{scope}/sram_uncorrectable_{name}" for name in names)
            )
        )
        for names in (("parity",), ("secded", "sec_ded"))
    ]
    if kind == "uncorrected" and split[0] is not None and split[1] is not None:
        found.setdefault("SRAM", split[0] + split[1])
    if "SRAM" in found and "DRAM" in found:
        found.setdefault(_ALL, found["SRAM"] + found["DRAM"])
    return found


def _state(values: Values, processes: int | None) -> GpuState:
    temperatures = {"gpu": NAMES["temperature"], "memory": NAMES["memory_temperature"]}
    return GpuState(
        temperatures_c=_numbers(values, temperatures),
        limits_c=_numbers(values, LIMITS),
        power_w=number(pick(values, "power")),
        power_limit_w=number(pick(values, "power_limit")),
        clock_mhz=number(pick(values, "clock")),
        max_clock_mhz=number(pick(values, "max_clock")),
        memory_clock_mhz=number(pick(values, "memory_clock")),
        max_memory_clock_mhz=number(pick(values, "max_memory_clock")),
        utilization_percent=number(pick(values, "utilization")),
        memory_used_bytes=memory_bytes(pick(values, "memory_used")),
        throttling=_throttling(values),
        processes=processes,
        margin_c=number(pick(values, "margin")),
        recovery=pick(values, "recovery")
        or ("Reset" if yes_or_no(pick(values, "reset_required")) else None),
        error=_error(values),
        fabric_wait=fabric_wait(texts := _texts(values, EXTRA)),
        fabric_error=fabric_error(texts),
    )


def _error(values: Values) -> str | None:
    """The error text of a lost GPU: a word for it, or an error instead of every measure."""
    gone = next((text for text in values.values() if _is_lost(text)), None)
    if gone is None and all(pick(values, field) is None for field in _MEASURES):
        failing = [
            text
            for field in _MEASURES
            for path in NAMES[field]
            if is_error(text := values.get(path))
        ]
        gone = failing[0] if len(failing) > 1 else None
    return None if gone is None else gone.strip().strip("[]")


def _is_lost(text: str) -> bool:
    return text.strip().strip("[]").lower() in _LOST


def _throttling(values: Values) -> tuple[str, ...] | None:
    active: dict[str, bool] = {}
    for path, text in values.items():
        match = _REASON.fullmatch(path)
        answer = yes_or_no(text)
        if match is not None and answer is not None:
            active[_REASON_ALIASES.get(match.group(1), match.group(1))] = answer
    mask = integer(pick(values, "reasons_mask"))
    if not active and mask is not None:
        active = {name: bool(mask >> bit & 1) for bit, name in enumerate(_REASON_BITS)}
    if not active:
        return None
    return tuple(name for name, answer in active.items() if answer and name != _NO_SLOWDOWN)


_LINK: Final = "pci/pci_gpu_link_info"
_LINK_TEXT: Final = "pci/gpu_link_info"
_RETIRED: Final = "retired_pages"
_ROWS: Final = "remapped_rows"

# field: its paths, XML first, then text, then columns; of several that are there the first counts
NAMES: Final[dict[str, tuple[str, ...]]] = {
    "name": ("product_name", "name", "gpu_name"),
    "uuid": ("uuid", "gpu_uuid"),
    "pci": ("pci/pci_bus_id", "pci/bus_id", "pci.bus_id", "gpu_bus_id", "bus_id"),
    "minor": ("minor_number",),
    "index": ("index",),
    "device": ("pci/pci_device_id", "pci/device_id", "pci.device_id"),
    "subsystem": ("pci/pci_sub_system_id", "pci/sub_system_id", "pci.sub_device_id"),
    "capability": ("compute_cap",),
    "generation_name": ("product_architecture",),
    "mig": ("mig_mode/current_mig", "mig_mode/current", "mig.mode.current"),
    "memory": ("fb_memory_usage/total", "memory_usage/total", "memory.total"),
    "memory_used": ("fb_memory_usage/used", "memory_usage/used", "memory.used"),
    "generation": (
        f"{_LINK}/pcie_gen/current_link_gen", f"{_LINK_TEXT}/pcie_generation/current",
        "pcie.link.gen.current"),
    "max_generation": (
        f"{_LINK}/pcie_gen/max_link_gen", f"{_LINK_TEXT}/pcie_generation/max", "pcie.link.gen.max"),
    "device_generation": (
        f"{_LINK}/pcie_gen/max_device_link_gen", f"{_LINK_TEXT}/pcie_generation/device_max",
        "pcie.link.gen.gpumax"),
    "width": (
        f"{_LINK}/link_widths/current_link_width", f"{_LINK_TEXT}/link_width/current",
        "pcie.link.width.current"),
    "max_width": (
        f"{_LINK}/link_widths/max_link_width", f"{_LINK_TEXT}/link_width/max",
        "pcie.link.width.max"),
    "replays": ("pci/replay_counter", "pci/replays_since_reset"),
    "ecc": ("ecc_mode/current_ecc", "ecc_mode/current", "ecc.mode.current"),
    "temperature": ("temperature/gpu_temp", "temperature/gpu_current_temp", "temperature/gpu",
                    "temperature.gpu"),
    "memory_temperature": ("temperature/memory_temp", "temperature/memory_current_temp",
                           "temperature.memory"),
    # what the board draws and may draw now; without it the average, which old drivers called so
    "power": (
        "gpu_power_readings/power_draw", "gpu_power_readings/average_power_draw",
        "gpu_power_readings/instant_power_draw", "gpu_power_readings/instantaneous_power_draw",
        "power_readings/power_draw", "power.draw"),
    "power_limit": (
        "gpu_power_readings/current_power_limit", "power_readings/enforced_power_limit",
        "enforced.power.limit", "power_readings/power_limit", "power.limit"),
    "clock": ("clocks/sm_clock", "clocks/sm", "clocks.current.sm", "clocks.sm",
              "clocks/graphics_clock", "clocks/graphics", "clocks.current.graphics", "clocks.gr"),
    "max_clock": ("max_clocks/sm_clock", "max_clocks/sm", "clocks.max.sm",
                  "max_clocks/graphics_clock", "max_clocks/graphics", "clocks.max.graphics"),
    "memory_clock": ("clocks/mem_clock", "clocks/memory", "clocks.current.memory", "clocks.mem"),
    "max_memory_clock": ("max_clocks/mem_clock", "max_clocks/memory", "clocks.max.memory"),
    "utilization": ("utilization/gpu_util", "utilization/gpu", "utilization.gpu"),
    "reasons_mask": ("clocks_event_reasons.active", "clocks_throttle_reasons.active"),
    "retired_single": (f"{_RETIRED}/multiple_single_bit_retirement/retired_count",
                       f"{_RETIRED}/single_bit_ecc", "retired_pages.single_bit_ecc.count"),
    "retired_double": (f"{_RETIRED}/double_bit_retirement/retired_count",
                       f"{_RETIRED}/double_bit_ecc", "retired_pages.double_bit.count"),
    "retirement_pending": (f"{_RETIRED}/pending_retirement", f"{_RETIRED}/pending_blacklist",
                           f"{_RETIRED}/pending_page_blacklist", f"{_RETIRED}/pending",
                           "retired_pages.pending"),
    "rows_correctable": (f"{_ROWS}/remapped_row_corr", f"{_ROWS}/correctable_error",
                         "remapped_rows.correctable"),
    "rows_uncorrectable": (f"{_ROWS}/remapped_row_unc", f"{_ROWS}/uncorrectable_error",
                           "remapped_rows.uncorrectable"),
    "rows_pending": (f"{_ROWS}/remapped_row_pending", f"{_ROWS}/pending", "remapped_rows.pending"),
    "rows_failed": (f"{_ROWS}/remapped_row_failure", f"{_ROWS}/remapping_failure_occurred",
                    "remapped_rows.failure"),
    "exhausted_banks": (f"{_ROWS}/row_remapper_histogram/row_remapper_histogram_none",
                        f"{_ROWS}/bank_remap_availability_histogram/none",
                        "remapped_rows.histogram.none"),
    "channel_pending": ("ecc_errors/channel_repair_pending",),
    "tpc_pending": ("ecc_errors/tpc_repair_pending",),
    "sram_exceeded": ("ecc_errors/aggregate/sram_threshold_exceeded",
                      "ecc.errors.uncorrected.aggregate.sram.thresholdexceeded"),
    "unrepairable": ("ecc_errors/unrepairable_memory",),
    # T.Limit values are margins, not temperatures: they may be negative, and are not limits
    "margin": (
        "temperature/gpu_temp_tlimit", "temperature/gpu_t_limit_temp", "temperature.gpu.tlimit"),
    "recovery": ("gpu_recovery_action",),
    "reset_required": ("gpu_reset_status/reset_required",),
    "fabric_uuid": ("fabric/clusteruuid", "fabric.clusteruuid"),
    "fabric_clique": ("fabric/cliqueid", "fabric.cliqueid"),
}  # fmt: skip

# names in State.limits_c
LIMITS: Final[dict[str, tuple[str, ...]]] = {
    "shutdown": ("temperature/gpu_temp_max_threshold", "temperature/gpu_shutdown_temp"),
    "slowdown": ("temperature/gpu_temp_slow_threshold", "temperature/gpu_slowdown_temp"),
    "max-operating": (
        "temperature/gpu_temp_max_gpu_threshold",
        "temperature/gpu_max_operating_temp",
    ),
    "memory-max-operating": (
        "temperature/gpu_temp_max_mem_threshold",
        "temperature/memory_max_operating_temp",
    ),
}

# before "Driver Version" and "CUDA Version" were deprecated (nvidia-smi's release notes, 610)
VERSIONS: Final[dict[str, tuple[str, ...]]] = {
    "driver": ("kmd_version", "driver_version"),
    "cuda": ("cuda_umd_version", "cuda_version"),
}

FIRMWARE: Final[dict[str, tuple[str, ...]]] = {
    "vbios": ("vbios_version",),
    "gsp": ("gsp_firmware_version",),
    "inforom": ("inforom_version/img_version", "inforom_version/image_version", "inforom.img"),
}

EXTRA: Final[dict[str, tuple[str, ...]]] = {
    "architecture": ("product_architecture",),
    "brand": ("product_brand",),
    "serial": ("serial", "serial_number", "gpu_serial"),
    "performance state": ("performance_state", "pstate"),
    "persistence mode": ("persistence_mode",),
    "compute mode": ("compute_mode",),
    "virtualization mode": (
        "gpu_virtualization_mode/virtualization_mode",
        "gpu_virtualization_mode",
    ),
    "module power": ("module_power_readings/power_draw",
                     "module_power_readings/average_power_draw", "module.power.draw.average"),
    "fabric state": ("fabric/state", "fabric.state"),
    "fabric status": ("fabric/status", "fabric.status"),
    "fabric health": ("fabric/health/summary", "fabric.health.summary"),
    "fabric bandwidth": ("fabric/health/bandwidth", "fabric.health.bandwidth"),
    "c2c mode": ("c2c_mode", "gpu_c2c_mode", "c2c.mode"),
}  # fmt: skip

# blocks as the vendor names them: before Ampere "device memory" is what is DRAM since
BLOCKS: Final = {
    "DRAM": ("dram", "device_memory"), "SRAM": ("sram",), "register file": ("register_file",),
    "L1 cache": ("l1_cache",), "L2 cache": ("l2_cache",), "texture memory": ("texture_memory",),
    "texture shared": ("texture_shm", "texture_shared"), "CBU": ("cbu",),
}  # fmt: skip

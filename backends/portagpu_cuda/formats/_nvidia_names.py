"""Names of nvidia-smi's values in all its forms and generations.

Paths of the XML are elements below a GPU's ("pci/replay_counter"), those of ``-q`` the titles and
labels of its outline ("pci/replays_since_reset"), columns stand as they are ("pcie.link.gen.max").
Sources: nvsmi_device_v2.dtd to v13.dtd as recorded outputs show them, ``nvidia-smi
--help-query-gpu`` of driver 595, nvidia-smi(1) of drivers 340 to 418.
"""

from __future__ import annotations

from typing import Final

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
    # T.Limit values are margins, not temperatures: they may be negative and are no limit
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
    "c2c mode": ("c2c_mode", "gpu_c2c_mode", "c2c.mode"),
}  # fmt: skip

# blocks as the vendor names them: before Ampere "device memory" is what is DRAM since
BLOCKS: Final = {
    "DRAM": ("dram", "device_memory"), "SRAM": ("sram",), "register file": ("register_file",),
    "L1 cache": ("l1_cache",), "L2 cache": ("l2_cache",), "texture memory": ("texture_memory",),
    "texture shared": ("texture_shm", "texture_shared"), "CBU": ("cbu",),
}  # fmt: skip

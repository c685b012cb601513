"""What backends and pages imported from deep modules at contract 1.4, by the old names of these.

A line is a module below ``portagpu`` and its names. It is a record: what moves later gets a line in
``portagpu/_moved.py``, and nothing is taken from here before contract 2.
"""

from __future__ import annotations

from typing import Final

_RECORD: Final = """
arch: Arch base_name
availability: Need availability count_reachable
captures.annotations: take_apart
captures.arrow: arrow import_library
captures.columns: FARTHEST_NS Rows json_object text_of whole
captures.event_batches: Columns Numbered Words decoded joined narrow positive to_table
    translated
captures.json_stream: CHUNK_BYTES Document Events
captures.labels: Color DOMAIN Label check encode
captures.marked_blocks: Annotation RangeTool torch_records
captures.model: COPY_KINDS Capture CapturedDevice EVENT_COLUMNS Kind METRIC_COLUMNS Process
    Source TOTAL_COLUMNS ToolMessage table
captures.profilers: Hint Launch Recorded Refused Request Step Tool plain_folder
captures.sqlite: SqliteFile Type all_whole first_number is_sqlite opened wholes
captures.text_tables: batches column decimal_mark delimiter_of kept lines number rows size_scale
    split_blocks time_scale times whole_number
collectives: helpers
collectives.choice: Candidate CostModel Graph Hardware Input KnownError Prediction Question
    Shots
collectives.comm: Comm
collectives.compression: TopK top_k_hook
collectives.cost: Candidate Graph Input KnownError Prediction Question Shots
collectives.launcher: place_of_rank
contract: Backend CONTRACT Capability Description Override Part Plugin Status
discovery: samplers
errors: BackendNotFound CollectiveError MissingDependency Unsupported
formats: Shape integer is_error number pci_address stated within_device_limit
formats.events: no_answer_events
formats.json_text: json_documents json_start
formats.pci: hexadecimal
formats.xml: Element read_xml
host: Tree gpus_on_machine pci_of_uuid visibility
host.cgroup: memory_usage_file read_cgroup
host.cpu: Cpu read_cpu
host.gpus: PCI_DEVICES pci_gpus
host.kfd: gfx_name rocr_uuid
host.sensors: read_sensors
host.tree: Tree
kernels: cpp
kernels.cpp: compile_kernel compile_source
machine_code.compiled: CompileError CompiledKernel CompilerEnded
machine_code.compiler: Compiler stamp
machine_code.elf: Elf library
machine_code.toolchain: CodeError Cupy MachineCode Toolchain
objects: Event Stream
optional: Optional
pcie: GENERATION
placement: device_mesh
precision: EVERYWHERE Precision Support cast convert quantize
precision.facts: precision_from_facts
precision.formats: FP8_NAMES
readings: End Findings FormatError GpuPart GpuState Link Memory Node Pcie Process Reading
readings.cpu: SOURCE
readings.document: to_document
readings.first_known: first_known
readings.library: Library Rarely integer number open_library table text
readings.model: End Findings FormatError GpuPart GpuState Link Memory Node Pcie Reading
    without_none
readings.probe: probe telemetry_of
readings.source: Source
readings.stream: Stream
report: write_report
report.junit: write_junit
results.actions: action_of
results.run: Evidence Result Verdict new_run read_json
rng: launch_wave
sizing: Sizing occupancy
sizing.launch: sizing_of_device
storage: DirectFile DirectStorage
suite: case conform
suite.dtypes:
suite.near:
switches: ASYNCHRONY Switch
target: arch_of_generation identify load_architecture load_target load_targets
torchbuild: torch_build
tracing: run_by_the_compiler
tuners: Tuner TunerState files_below
variables: Variables
vendors: Blanks DriverFiles Fabric MaskRules Numbers Repeated Runtime TorchRules Tuning
    UuidMatch Vendor tables
world: Ranks
"""


def _read() -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for line in _RECORD.replace("\n    ", " ").strip().splitlines():
        module, _, names = line.partition(":")
        found[f"portagpu.{module}"] = tuple(names.split())
    return found


NAMES: Final = _read()

"""Module names of contract 1.x, from before the rooms: a plugin that names them still works.

A name of :data:`MOVED` imports the module where it is now, and warns. Any other old name says in
one line what to import instead. ``docs/design.md`` has the rule; contract 2 ends it.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from functools import partial
from importlib import import_module
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType, ModuleType

MOVED: Final = {
    "arch": "facts.arch",
    "availability": "devices.availability",
    "bench": "suites.performance",
    "bench.samples": "suites.performance.timing",
    "capability": "facts.capability",
    "captures": "facts.captures",
    "captures.annotations": "facts.captures.columns",
    "captures.arrow": "facts.captures.model",
    "captures.event_batches": "facts.captures.columns",
    "collectives": "devices.collectives",
    "collectives.alpha_beta": "devices.collectives.cost",
    "collectives.bandwidth": "facts.nccl_tests.model",
    "collectives.call_hooks": "devices.collectives.calls",
    "collectives.measured": "devices.collectives.tuning",
    "collectives.membership": "devices.collectives.init",
    "collectives.perf_tables": "facts.nccl_tests.tables",
    "collectives.tuner_csv": "devices.collectives.emit",
    "contract": "devices.contract",
    "discovery": "devices.discovery",
    "errors": "base.errors",
    "formats": "facts.formats",
    "formats.json_text": "facts.formats.json_xml",
    "formats.xml": "facts.formats.json_xml",
    "host": "facts.host",
    "host.cgroup": "facts.host.limits",
    "host.kfd": "facts.host.gpus",
    "kernels": "train.kernels",
    "kernels.catalogue": "train.kernels.plan",
    "kernels.dtypes": "train.kernels.plan",
    "kernels.optimiser": "train.kernels.ops",
    "machine_code": "devices.machine_code",
    "machine_code.compiled": "devices.machine_code",
    "machine_code.compiler": "devices.machine_code",
    "machine_code.elf": "devices.machine_code",
    "machine_code.toolchain": "devices.machine_code",
    "objects": "devices.objects",
    "oom": "devices.oom",
    "optional": "devices.optional",
    "parallel": "train.parallel",
    "parallel.clipping": "train.parallel.data",
    "parallel.gradients": "train.parallel.data",
    "parallel.pipeline": "train.parallel.layout",
    "parallel.planned": "train.parallel.data",
    "parallel.scaling": "train.parallel.data",
    "pcie": "facts.pcie",
    "placement": "machine.placement",
    "planning": "train.planning",
    "planning.activations": "train.planning.memory",
    "planning.rules": "train.planning.plans",
    "planning.stages": "train.planning.recipe",
    "planning.terms": "train.planning.states",
    "planning.timing": "train.planning.cluster",
    "precision": "devices.precision",
    "precision.facts": "devices.precision.model",
    "precision.flavours": "devices.precision.casts",
    "precision.float32": "devices.precision.products",
    "precision.levels": "devices.precision.model",
    "precision.mixed": "devices.precision.model",
    "precision.scaling": "devices.precision.casts",
    "precision.support": "devices.precision.model",
    "readings": "facts.readings",
    "readings.document": "facts.readings.model",
    "readings.first_known": "facts.readings.model",
    "readings.probe": "facts.readings.stream",
    "readings.source": "facts.readings.model",
    "report": "reports.html",
    "report.checks": "reports.html.components",
    "report.junit": "reports.junit",
    "report.style": "reports.html.markup",
    "results": "runs.results",
    "results.actions": "runs.results.advice",
    "results.expectations": "runs.results.wording",
    "results.findings": "runs.results.judgement",
    "results.judgement": "runs.results.judgement",
    "rng": "devices.rng",
    "sizing": "devices.sizing",
    "sizing.explain": "devices.sizing.calculator",
    "sizing.reduce": "devices.sizing.launch",
    "sizing.residency": "devices.sizing.rules",
    "sizing.steps": "devices.sizing.calculator",
    "storage": "devices.plugin_parts",
    "suite": "suites.conformance",
    "suite.child": "suites.conformance.messages",
    "suite.dtypes": "suites.conformance.closeness",
    "suite.near": "suites.conformance.closeness",
    "suite.select": "suites.conformance.options",
    "switches": "base.environment",
    "target": "facts.targets",
    "torchbuild": "facts.torchbuild",
    "tracing": "devices.training",
    "training": "devices.training",
    "tuners": "devices.plugin_parts",
    "variables": "devices.plugin_parts",
    "vendors": "facts.vendors",
    "vendors.masks": "facts.vendors.model",
    "visible": "facts.visible",
    "world": "runs.world",
}
"""The old names below ``portagpu`` that plugins and pages of contract 1.x import; their submodules
follow."""
_GONE: Final = """
    bringup bundle codec commbench compile contents diagnostics distributions doctor documents
    files fleet foreign functions health history info inventory lazy ledger matrix monitor paths
    patience port profile recordings redact registry rules running scratch search sharing stats
    subprocesses text trust units
"""
COMMANDS: Final = {"bundle": "reports.bundles", "compile": "suites.compile.record"}
"""Internal names below which people ran a module with ``python -m``, and that module now."""


_GONE_BELOW: Final = {
    "bench": "caches calibrate ceilings figures fp8 pairs software suite telemetry",
    "captures": "packed",
    "collectives": "meeting own_answer perf_json perf_model perf_text processes renamed tuned ways",
    "formats": "parts",
    "host": "edac features memory power rooted settings",
    "parallel": "recompute",
    "placement": "algorithms live",
    "report": "anchors checks_data controls fleet_map fleet_style fleet_tables overview parts "
    "runs scale trace_tables",
    "results": "rules",
    "sizing": "kernel",
    "suite": "batch case_ids expected_failures session",
    "target": "folder limits schema",
    "traces": "collective_skew columns compare comparison device_times diagnose differences "
    "document intervals kernel_names kineto model operators ranges reading roofline "
    "summary timeline trace_words work",
    "vendors": "validation",
    "visible": "child diagnosis model tables torchview",
}
"""Internal modules of packages that are in :data:`MOVED`, or that have the name of a room."""
GONE: Final = frozenset(_GONE.split()) | {
    f"{package}.{name}" for package, names in _GONE_BELOW.items() for name in names.split()
}
"""Old names that were never public."""


def new_name(name: str) -> str | None:
    """Where the module ``name`` is now; None for a name that is not an old one.

    Raises ModuleNotFoundError with what to import, for a name that was internal. ``from portagpu
    import NAME`` passes over that error, and gets an ImportError.
    """
    package, _, old = name.partition(".")
    parts = old.split(".")
    if package != __package__ or not old:
        return None
    lost = next((gone for gone in (parts[0], ".".join(parts[:2])) if gone in GONE), None)
    for end in range(0 if lost else len(parts), 0, -1):
        new = MOVED.get(".".join(parts[:end]))
        if new is not None:
            return ".".join([package, new, *parts[end:]])
    if lost:
        command = COMMANDS.get(lost)
        ran = f"; as a command it is python -m {package}.{command}" if command else ""
        from_list = any(each.f_code.co_name == "_handle_fromlist" for each in _import_frames())
        raise (ImportError if from_list else ModuleNotFoundError)(
            f"{package}.{lost} was internal and is gone: a plugin imports from "
            f"{package}.plugin, and training code from {package}{ran}",
            name=name,
        )
    return None


def find_spec(name: str) -> ModuleSpec | None:
    """The spec of an old name, whose module has the names of the new one; None for other names."""
    new = new_name(name)
    if new is None:
        return None
    try:
        found = importlib.util.find_spec(new)
    except ModuleNotFoundError:  # what stands before the last dot is not a package, or not there
        return None
    return None if found is None else ModuleSpec(name, Loader(new), is_package=True)


def _is_for_submodule(name: str) -> bool:
    """Whether the module of that name is loaded for an import of a module below it, which warns."""
    asked = (str(frame.f_locals.get("name")) for frame in _import_frames())
    return any(each.startswith(f"{name}.") for each in asked)


def _import_frames() -> Iterator[FrameType]:
    """The frames of the import that runs this module, up to the statement that imports."""
    frame: FrameType | None = sys._getframe()
    ours = {__file__, sys.modules[str(__package__)].__file__}
    while frame is not None and frame.f_code.co_filename in ours:
        frame = frame.f_back
    while frame is not None and frame.f_code.co_filename.startswith("<frozen importlib"):
        yield frame
        frame = frame.f_back


class Loader(importlib.abc.Loader):
    """Loads a module under its old name: a module that looks up every name in the new one."""

    def __init__(self, new: str) -> None:
        self.new = new

    def create_module(self, spec: ModuleSpec) -> None:
        """None: an empty module."""

    def exec_module(self, module: ModuleType) -> None:
        """Import the module under its new name, and forward every name to it."""
        import warnings

        found = import_module(self.new)
        if not _is_for_submodule(module.__name__):
            warnings.warn(
                f"{module.__name__} is {self.new} now: a plugin imports from {__package__}.plugin",
                DeprecationWarning,
                stacklevel=2,
            )
        names = getattr(found, "__all__", None)  # for "from ... import *"
        if names is None:
            names = [name for name in vars(found) if not name.startswith("_")]
        forwarding = {"__getattr__": partial(getattr, found), "__dir__": partial(dir, found)}
        vars(module).update(forwarding, __all__=names, __doc__=found.__doc__)

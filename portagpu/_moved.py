"""Module names of contract 1.x, from before the rooms: a plugin that names them still works.

A name of :data:`MOVED` imports the module where it is now, and warns. Any other old name says in
one line what to import instead. ``docs/design.md`` has the rule; contract 2 ends it.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
from functools import partial
from importlib import import_module
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from types import ModuleType

MOVED: Final = {
    "arch": "facts.arch",
    "availability": "devices.availability",
    "bench": "suites.performance",
    "capability": "facts.capability",
    "captures": "facts.captures",
    "collectives": "devices.collectives",
    "collectives.bandwidth": "facts.nccl_tests.bandwidth",
    "collectives.perf_tables": "facts.nccl_tests.tables",
    "contract": "devices.contract",
    "discovery": "devices.discovery",
    "errors": "base.errors",
    "formats": "facts.formats",
    "host": "facts.host",
    "kernels": "train.kernels",
    "kernels.dtypes": "train.kernels.plan",
    "kernels.optimiser": "train.kernels.ops",
    "machine_code": "devices.machine_code",
    "objects": "devices.objects",
    "oom": "devices.oom",
    "parallel": "train.parallel",
    "parallel.clipping": "train.parallel.gradients",
    "parallel.planned": "train.parallel.data",
    "parallel.scaling": "train.parallel.gradients",
    "pcie": "facts.pcie",
    "placement": "machine.placement",
    "planning": "train.planning",
    "planning.activations": "train.planning.memory",
    "planning.rules": "train.planning.plans",
    "planning.stages": "train.planning.recipe",
    "planning.terms": "train.planning.states",
    "planning.timing": "train.planning.cluster",
    "precision": "devices.precision",
    "readings": "facts.readings",
    "report": "reports.html",
    "report.junit": "reports.junit",
    "results": "runs.results",
    "rng": "devices.rng",
    "sizing": "devices.sizing",
    "storage": "devices.storage",
    "suite": "suites.conformance",
    "suite.near": "suites.conformance.closeness",
    "switches": "base.debug_variables",
    "target": "facts.targets",
    "torchbuild": "facts.torchbuild",
    "tracing": "devices.torch_compile",
    "training": "devices.training",
    "tuners": "devices.tuners",
    "variables": "devices.variables",
    "vendors": "facts.vendors",
    "visible": "facts.visible",
    "world": "runs.world",
}
"""The old names below ``portagpu`` that plugins and pages of contract 1.x import; their submodules
follow."""
GONE: Final = frozenset(
    [
        "bringup",
        "bundle",
        "codec",
        "commbench",
        "compile",
        "contents",
        "diagnostics",
        "distributions",
        "doctor",
        "files",
        "fleet",
        "foreign",
        "functions",
        "health",
        "history",
        "info",
        "inventory",
        "ledger",
        "matrix",
        "monitor",
        "optional",
        "paths",
        "patience",
        "port",
        "profile",
        "recordings",
        "redact",
        "registry",
        "report",
        "rules",
        "running",
        "scratch",
        "search",
        "sharing",
        "stats",
        "subprocesses",
        "text",
        "traces",
        "trust",
        "units",
    ]
)
"""Old names that were never public."""


def new_name(name: str) -> str | None:
    """Where the module ``name`` is now; None for a name that is not an old one.

    Raises ModuleNotFoundError with what to import, for a name that was internal.
    """
    package, _, old = name.partition(".")
    parts = old.split(".")
    if package != __package__ or not old:
        return None
    for end in range(len(parts), 0, -1):
        new = MOVED.get(".".join(parts[:end]))
        if new is not None:
            return ".".join([package, new, *parts[end:]])
    if parts[0] in GONE:
        raise ModuleNotFoundError(
            f"{package}.{parts[0]} was internal and is gone: a plugin imports from "
            f"{package}.plugin, and training code from {package}",
            name=name,
        )
    return None


def find_spec(name: str) -> ModuleSpec | None:
    """The spec of an old name, whose module has the names of the new one; None for other names."""
    new = new_name(name)
    if new is None or importlib.util.find_spec(new) is None:
        return None
    return ModuleSpec(name, Loader(new), is_package=True)


class Loader(importlib.abc.Loader):
    """Loads a module under its old name: one that takes every name from the new one."""

    def __init__(self, new: str) -> None:
        self.new = new

    def create_module(self, spec: ModuleSpec) -> None:
        """None: an empty module."""

    def exec_module(self, module: ModuleType) -> None:
        """Let ``module`` take its names from where it is now."""
        import warnings

        found = import_module(self.new)
        warnings.warn(
            f"{module.__name__} is {self.new} now: a plugin imports from portagpu.plugin",
            DeprecationWarning,
            stacklevel=2,
        )
        module.__doc__ = found.__doc__
        vars(module).update(__getattr__=partial(getattr, found), __dir__=partial(dir, found))
        for name in getattr(found, "__all__", ()):  # for "from ... import *"
            setattr(module, name, getattr(found, name))

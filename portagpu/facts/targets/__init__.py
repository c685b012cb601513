"""Hardware targets: sourced facts of products and architectures, and what to expect of them.

A target is one file of ``matrix/targets``; ``docs/targets.md`` describes it. Nothing here needs
torch, opens a device or, before the first call, reads a file.

>>> from portagpu.facts.targets import load_target
>>> load_target("nvidia-h200-sxm").peak("bf16").value
989.4
"""

from __future__ import annotations

from portagpu.facts.targets.load import (
    TargetProblem,
    arch_of_generation,
    architecture_names,
    identify,
    load_architecture,
    load_target,
    load_targets,
    named_product,
    parse_target,
    product_with_pci_id,
    target_problems,
    use_target_file,
    wrong_files,
)
from portagpu.facts.targets.model import (
    Authority,
    BoundsCheck,
    Confidence,
    Expectation,
    ExpectedFailure,
    Fact,
    Match,
    Peak,
    Scope,
    Target,
    dtype_name,
    peak_key,
)

__all__ = [
    "Authority",
    "BoundsCheck",
    "Confidence",
    "Expectation",
    "ExpectedFailure",
    "Fact",
    "Match",
    "Peak",
    "Scope",
    "Target",
    "TargetProblem",
    "arch_of_generation",
    "architecture_names",
    "dtype_name",
    "identify",
    "load_architecture",
    "load_target",
    "load_targets",
    "named_product",
    "parse_target",
    "peak_key",
    "product_with_pci_id",
    "target_problems",
    "use_target_file",
    "wrong_files",
]

"""What the core says of vendors in code: each literal with why it is there, and no other.

A table of vendors' words belongs into a vendor's own distribution (``portagpu.vendors``).
"""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest

import portagpu
from portagpu.facts.vendors import vendors

if TYPE_CHECKING:
    from collections.abc import Iterator

CORE: Final = Path(portagpu.__file__).parent
READERS: Final = CORE / "facts" / "formats"
"""Of tools' outputs: what they read is in vendors' words, and no table of vendors."""

WORDS: Final = re.compile(
    r"nvidia|geforce|\btesla\b|nouveau|nvlink|nvswitch|nvml|nvrm|\bs?xid\b|cuda|cudnn|cublas|nccl"
    r"|\bmig\b|\bsm_|\bamd|radeon|instinct|rocm|rocr|rccl|\bhip|hsa_|miopen|xgmi|gfx\d|\bgpu-"
    r"|intel\b|habana|gaudi|huawei|(?<!-)apple",
    re.IGNORECASE,
)


class Allowed(NamedTuple):
    """Literals of the file of that name that match ``literal``, and why the core has them."""

    file: str
    literal: str
    why: str


ALLOWED: Final = (
    Allowed("_moved.py", r"facts\.nccl_tests\..*", "where a reader of these tools is"),
    Allowed("optional.py", r".*has no CUDA runtime.*", "what torch.cuda.cudart is"),
    Allowed("run.py", "__cuda_array_interface__", "an attribute of torch's tensors"),
    Allowed("state.py", "cuda", "a type of device of torch, whoever made it"),
    Allowed("model.py", r"torch\.cuda", "torch's module for the devices of both its builds"),
    Allowed("sitecustomize.py", r"torch\.cuda\.profiler", "the same"),
    Allowed("mask.py", "GPU-|MIG-", "torch/cuda/__init__.py compares with these itself"),
    Allowed("model.py", "GPU-", "the prefix of UUIDs where a vendor states no other"),
    Allowed("environment.py", "PYTORCH_NO_CUDA_MEMORY_CACHING", "of both torch's builds"),
    Allowed("torchbuild.py", "cuda|hip|rocm", "torch/version.py has these names of builds"),
    Allowed("_info_view.py", "cuda|hip", "the same names, shown"),
    Allowed("products.py", r"cudnn|(cuda|cudnn)\.\w+|TORCH_ALLOW_TF32_\w+", "torch's settings"),
    Allowed("run.py", "AMDGCN_", "variables that Triton reads, whoever's GPU it builds for"),
    Allowed("arch.py", r"\(sm_.*", "architectures' names are compared without their suffixes"),
    Allowed("compile.py", r".*\(sm_90\).*", "an example in a help text"),
    Allowed("occupancy.py", r".*\"sm_90\", \"gfx942\".*", "an example in a help text"),
    Allowed("sources.py", r".*CUDA or HIP C\+\+.*", "the languages that kernels/cpp compiles"),
    Allowed("run.py", r".*CUDA or HIP C\+\+.*", "the languages that kernels/cpp compiles"),
    Allowed("bridge.py", "cuda", "a method of torch's storages"),
    Allowed("scope.py", "CUDAGraph", "the name of torch's class, which torch has for both"),
    Allowed("questions.py", r"gpu\|cuda\|.*", "words of programs that ask for any GPU"),
    Allowed("patterns.py", r".*\.(?:amd|nvidia)\.com", "hosts that a published bundle may name"),
    Allowed(
        "patterns.py", r".*\b(?:dev/\(|GPU\|MIG).*", "hides more, whichever vendor is installed"
    ),
    Allowed("anonymous.py", r".*GPU\|MIG.*", "hides more, whichever vendor is installed"),
    Allowed("cpu.py", "NVIDIA|Apple", "makers of CPUs, as Arm numbers them"),
    Allowed("cpu.py", "amd64", "a word for x86"),
    Allowed("machine.py", r".*amd_\|intel_.*", "parameters of the kernel"),
    Allowed("diagnostics.py", r".*NCCL user guide.*", "the source of a remark on PCI bridges"),
    Allowed("environment.py", r".*NCCL.*", "the source of a bound of the host's"),
    Allowed("stream.py", r".*driver or ROCm brings", "an advice that names no table"),
    Allowed("gpus.py", "GPU-", "the kernel's KFD numbers its GPUs so"),
    Allowed("join.py", r"gpu-\(.*", "the kernel's KFD numbers its GPUs so"),
    Allowed("kernel_links.py", "xgmi", "a link's type in the kernel's KFD"),
    Allowed("tables.py", r".*nccl-tests.*|nccl-|nccl_version", "the program whose form this is"),
    Allowed("collectives_sweep.py", r".* of nccl-tests.*", "what --replay reads, --tables writes"),
    Allowed("replay.py", r".*doc/PERFORMANCE.md of nccl-tests", "the source of a definition"),
    Allowed("peers.py", "MIG mode", "the field mig_enabled of portagpu.info/1"),
    Allowed("_info_view.py", "MIG o(n|ff)", "the field mig_enabled of portagpu.info/1"),
)


def _literals(file: Path) -> Iterator[str]:
    """Texts and vendors' ids in the code of ``file``; a docstring is none."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    reported = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    numbers = {number for each in vendors().values() for number in each.pci_ids}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in reported:
            if isinstance(node.value, str) and WORDS.search(node.value):
                yield node.value
            elif type(node.value) is int and node.value in numbers:
                yield f"{node.value:#x}"


def _core_files(pattern: str) -> list[Path]:
    """The core's files; a wheel has the matrix among them, where vendors differ."""
    return [file for file in sorted(CORE.rglob(pattern)) if "_matrix" not in file.parts]


@cache
def _found() -> list[tuple[Path, str]]:
    files = [file for file in _core_files("*.py") if not file.is_relative_to(READERS)]
    return [(file, literal) for file in files for literal in _literals(file)]


def _is_allowed(file: Path, literal: str, by: Allowed) -> bool:
    return file.name == by.file and re.fullmatch(by.literal, literal, re.DOTALL) is not None


def test_the_core_has_no_vendors_words_but_those_with_a_reason() -> None:
    wrong = [
        f"{file.relative_to(CORE)}: {literal!r}"
        for file, literal in _found()
        if not any(_is_allowed(file, literal, each) for each in ALLOWED)
    ]
    assert not wrong, "\n".join(
        [
            "what is known of a vendor belongs into its distribution (portagpu.facts.vendors):",
            *wrong,
        ]
    )


def test_every_reason_is_still_needed() -> None:
    found = _found()
    idle = [each for each in ALLOWED if not any(_is_allowed(*one, each) for one in found)]
    assert not idle, f"nothing has these literals any more: {idle}"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ('TABLE = {"nvidia": 1}', ["nvidia"]),
        ("IDS = {0x1002: 1}", ["0x1002"]),
        ('"""AMD\'s word."""\nX = f"of {1} NVLinks"', [" NVLinks"]),
        ('X = "accelerator"', []),
    ],
)
def test_a_table_of_vendors_would_be_found(tmp_path: Path, code: str, expected: list[str]) -> None:
    file = tmp_path / "x.py"
    file.write_text(code, encoding="utf-8")
    assert list(_literals(file)) == expected


def _keys(value: Any) -> Iterator[str]:
    """Every key in ``value``, and whose vendor an entry says to be."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield key
            if key == "vendor":
                yield str(each)
            yield from _keys(each)
    elif isinstance(value, list):
        for each in value:
            yield from _keys(each)


def test_no_table_of_the_core_is_kept_by_vendor() -> None:
    files = _core_files("*.toml")
    assert files
    for file in files:
        known = set(vendors()) & set(_keys(tomllib.loads(file.read_text(encoding="utf-8"))))
        assert not known, f"{file.name} has entries of {', '.join(known)}"

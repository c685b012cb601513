"""The sources: each is whole in one text, and has no words that mean something else elsewhere."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from portagpu.train.kernels.cpp import KERNELS, read_source
from portagpu.train.kernels.cpp.sources import inline_header

# what only the header may spell, and what it hides there: one sample of each
HAZARDS = {
    "a mask of 32 lanes": (r"0x[fF]{8}\b", "__ballot_sync(0xffffffff, p)"),
    "a lane of 32": (r"&\s*(31|0x1[fF])\b|%\s*32\b", "threadIdx.x & 31"),
    "a warp of 32": (r">>\s*5\b|/\s*32\b", "threadIdx.x >> 5"),
    "warpSize": (r"\bwarpSize\b", "int s[warpSize]"),
    "a builtin of one vendor": (r"\b__\w*(ballot|shfl|popc|ffs|amdgcn|activemask)", "__popc(m)"),
    "an assert": (r"\bassert\s*\(", "assert(i < n)"),
    "a toolkit's version": (r"\b(CUDA|HIP|ROCM|TORCH_HIP)_VERSION\b", "#if CUDA_VERSION >= 12000"),
    "bounds of one vendor": (r"__launch_bounds__", "__launch_bounds__(256, 4)"),
    "assembly": (r"\basm\b", 'asm volatile("bar.sync 0;")'),
    "a header of one vendor": (r"#\s*include\s*<", "#include <cuda_fp16.h>"),
}


@pytest.mark.parametrize(("pattern", "sample"), HAZARDS.values(), ids=HAZARDS)
@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_spells_nothing_of_one_vendor(name, pattern, sample):
    text = (files("portagpu.train.kernels.cpp") / f"{name}.cpp").read_text("utf-8")
    code = re.sub(r"//.*", "", text)
    assert re.search(pattern, sample)
    assert not re.search(pattern, code)


@pytest.mark.parametrize("name", KERNELS)
def test_a_source_is_one_text_that_includes_nothing(name):
    source = read_source(name)
    included = [line for line in source.splitlines() if line.startswith("#include")]
    assert included == ['#include "portagpu_platform.h"']  # of another compiler than the vendors'
    assert all(entry in source for entry in KERNELS[name])


def test_lines_of_a_source_keep_their_numbers():
    source = inline_header('// one\n#include "portagpu.h"\n// three\n')
    assert source.startswith('// one\n#line 1 "portagpu.h"\n')
    assert source.endswith('#line 3 "kernel.cpp"\n// three\n')
    assert inline_header("// nothing") == "// nothing"


def test_every_file_of_the_folder_is_a_kernel():
    here = {path.name for path in files("portagpu.train.kernels.cpp").iterdir()}
    assert {name for name in here if name.endswith(".cpp")} == {f"{name}.cpp" for name in KERNELS}

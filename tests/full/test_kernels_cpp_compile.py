"""The C++ kernels as machine code of every architecture, where a compiler for it is installed."""

from __future__ import annotations

import pytest

from portagpu.train.kernels.cpp import KERNELS
from tests.support import built_kernels
from tests.support.built_kernels import AMD, ARCHES, NVIDIA
from tests.support.built_kernels import one_child as one_child


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_is_built_for_every_architecture(name, arch):
    built_kernels.check_kernel(name, arch)


@pytest.mark.parametrize("arch", ARCHES)
def test_shared_memory_follows_the_number_of_warps(arch):
    built_kernels.check_shared_memory(arch)


@pytest.mark.parametrize("arch", ARCHES)
def test_the_header_says_what_the_facts_say(arch):
    built_kernels.check_header(arch)


@pytest.mark.parametrize("blocks", [1, 4, 6])
@pytest.mark.parametrize("arch", ARCHES)
def test_launch_bounds_leave_room_for_the_blocks_that_they_name(arch, blocks):
    built_kernels.check_launch_bounds(arch, blocks)


@pytest.mark.parametrize("arch", ARCHES)
def test_the_code_states_the_block_that_its_source_bounds(arch):
    built_kernels.check_block(arch)


@pytest.mark.parametrize("arch", NVIDIA)
def test_cuobjdump_reads_the_same_of_a_cubin(arch, tmp_path):
    built_kernels.check_with_cuobjdump(arch, tmp_path)


@pytest.mark.parametrize("arch", AMD)
def test_clang_counts_the_same_waves(arch, tmp_path):
    built_kernels.check_waves(arch, tmp_path)

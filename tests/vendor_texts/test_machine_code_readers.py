"""Readers of code objects, cubins and ptxas's report, over files that are written here by hand."""

from __future__ import annotations

import struct
import sys

import pytest

pytest.importorskip("elftools")
pytest.importorskip("msgpack")

from portagpu.base.errors import MissingDependency
from portagpu_cuda_build.nvrtc import Usage, max_threads, read_usage
from portagpu_rocm_build.clang import read_code_object

NULL, PROGBITS, STRTAB, NOTE, NOBITS = 0, 1, 3, 7, 8


def elf(machine: int, *sections: tuple[str, int, bytes]) -> bytes:
    """An ELF file: the header, the sections' bytes, then their headers."""
    rows = [("", NULL, b""), *sections]
    names = b"\0".join(name.encode() for name, _, _ in [*rows, (".shstrtab", 0, b"")]) + b"\0"
    rows.append((".shstrtab", STRTAB, names))
    body, table, at = b"", b"", 64
    for name, kind, data in rows:
        kept = b"" if kind == NOBITS else data
        start = names.index(name.encode() + b"\0")
        table += struct.pack("<IIQQQQIIQQ", start, kind, 0, 0, at, len(data), 0, 0, 1, 0)
        body += kept
        at += len(kept)
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    head = struct.pack(
        "<16sHHIQQQIHHHHHH",
        ident,
        3,
        machine,
        1,
        0,
        0,
        at,
        0x54C,
        64,
        0,
        0,
        64,
        len(rows),
        len(rows) - 1,
    )
    return head + body + table


def note(owner: bytes, kind: int, content: bytes) -> bytes:
    owner += b"\0"
    padded = owner + bytes(-len(owner) % 4), content + bytes(-len(content) % 4)
    return struct.pack("<III", len(owner), len(content), kind) + b"".join(padded)


def packed(value) -> bytes:
    """MessagePack, written with the widest forms, which readers meet least."""
    match value:
        case None:
            return b"\xc0"
        case bool():
            return b"\xc3" if value else b"\xc2"
        case int() if value < 0:
            return b"\xd3" + struct.pack(">q", value)
        case int():
            return b"\xcf" + struct.pack(">Q", value)
        case float():
            return b"\xcb" + struct.pack(">d", value)
        case str():
            return b"\xdb" + struct.pack(">I", len(value.encode())) + value.encode()
        case list():
            return b"\xdd" + struct.pack(">I", len(value)) + b"".join(map(packed, value))
        case dict():
            pairs = b"".join(packed(key) + packed(each) for key, each in value.items())
            return b"\xdf" + struct.pack(">I", len(value)) + pairs
    raise TypeError(value)


KERNEL = {
    ".name": "row_sum",
    ".vgpr_count": 84,
    ".agpr_count": 20,
    ".sgpr_count": 30,
    ".vgpr_spill_count": 3,
    ".sgpr_spill_count": 2,
    ".private_segment_fixed_size": 16,
    ".group_segment_fixed_size": 512,
    ".wavefront_size": 64,
    ".max_flat_workgroup_size": 256,
}


def code_object(kernels, target="amdgcn-amd-amdhsa--gfx942:sramecc+:xnack-") -> bytes:
    document = packed({"amdhsa.target": target, "amdhsa.kernels": kernels})
    notes = note(b"GNU", 3, b"12345") + note(b"AMDGPU", 32, document)
    return elf(
        224, (".note", NOTE, notes), (".text", PROGBITS, b"\x7f"), (".bss", NOBITS, bytes(9))
    )


def read(code):
    return read_code_object(code, compiler="clang 1", seconds=0.5)


def test_a_code_object_says_what_its_kernels_take():
    code = code_object([KERNEL, {**KERNEL, ".name": "other", ".wavefront_size": 32}])
    first, second = read(code)
    assert (first.name, first.arch, first.compiler, first.seconds) == (
        "row_sum",
        "gfx942",
        "clang 1",
        0.5,
    )
    assert (first.registers, first.accumulators, first.scalar_registers) == (84, 20, 30)
    assert (first.spills, first.spill_unit, first.scalar_spills, first.stack) == (
        3,
        "registers",
        2,
        16,
    )
    assert (first.shared_memory, first.wave_size, first.max_threads) == (512, 64, 256)
    assert first.code == code
    assert (second.name, second.wave_size) == ("other", 32)


def test_accumulators_are_counted_once_where_they_share_the_file():
    (kernel,) = read(code_object([KERNEL]))
    found = kernel.occupancy(256)
    assert (found.kernel.registers, found.kernel.accumulators) == (64, 20)
    (kernel,) = read(code_object([KERNEL], "amdgcn-amd-amdhsa--gfx908"))
    found = kernel.occupancy(256)
    assert (found.kernel.registers, found.kernel.accumulators) == (84, 20)


def test_newer_triples_name_the_architecture_too():
    (kernel,) = read(code_object([KERNEL], "amdgpu9.42-amd-amdhsa-unknown-gfx942"))
    assert kernel.arch == "gfx942"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (b"", "not a 64-bit little-endian ELF"),
        (b"PK\3\4" + bytes(80), "not a 64-bit little-endian ELF"),
        (elf(62), "machine EM_X86_64, not a code object"),
        (elf(224), "no metadata note"),
        (elf(224, (".note", NOTE, note(b"AMDGPU", 32, b"\xc0"))), "lists no kernels"),
        (code_object([3]), "lists no kernels"),
        (code_object([{".name": "k"}]), r"has no \.vgpr_count"),
        (code_object([KERNEL])[:300], "is damaged"),
    ],
)
def test_what_is_not_a_code_object_is_refused(code, words):
    with pytest.raises(ValueError, match=words):
        read(code)


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", b"\x92\x01", b"\xa5abc", b"\x91" * 2000, b"\xa1\xff"]
)
def test_damaged_metadata_is_refused(data):
    with pytest.raises(ValueError, match="damaged MessagePack"):
        read(elf(224, (".note", NOTE, note(b"AMDGPU", 32, data))))


@pytest.mark.parametrize(("missing", "said"), [("elftools", "pyelftools"), ("msgpack", "msgpack")])
def test_a_library_that_is_not_there_is_named(monkeypatch, missing, said):
    for name in [each for each in sys.modules if each.partition(".")[0] == missing]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(MissingDependency, match=rf"read by {said}: pip install .*\[compile\]"):
        read(code_object([KERNEL]))


def test_a_cubin_names_its_kernels():
    cubin = elf(
        190,
        (".text.row_sum_f32", PROGBITS, b"\1\2"),
        (".text.empty", PROGBITS, b""),
        (".text.bounded", PROGBITS, b"\1"),
        # a byte, a half word, 8 bytes of another attribute, then the bound of a block
        (
            ".nv.info.bounded",
            0x70000000,
            bytes.fromhex("02100100 03190c00 04170800 0000000005000000 04050c00")
            + struct.pack("<III", 32, 8, 2),
        ),
    )
    assert max_threads(cubin) == {"row_sum_f32": None, "bounded": 512}
    with pytest.raises(ValueError, match="machine EM_AMDGPU, not a cubin"):
        max_threads(elf(224))


def test_attributes_that_are_cut_off_are_refused():
    for cut in (bytes.fromhex("0405"), bytes.fromhex("04050c00 20000000")):
        with pytest.raises(ValueError, match="cut off"):
            max_threads(elf(190, (".text.k", PROGBITS, b"\1"), (".nv.info.k", 1, cut)))


CUDA_13 = """\
kernel.cpp(3): warning #177-D: function "f" was declared but never referenced

ptxas info    : 12 bytes gmem
ptxas info    : Compiling entry function 'row_sum_i64' for 'sm_90a'
ptxas info    : Function properties for row_sum_i64
ptxas         .     72 bytes stack frame, 88 bytes spill stores, 104 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 72 bytes cumulative stack size, 256 bytes smem
ptxas info    : Compile time = 67.789 ms
ptxas info    : Compiling entry function 'row_rank' for 'sm_90a'
ptxas info    : Function properties for row_rank
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, used 0 barriers
ptxas info    : Compile time = 38.062 ms
"""
CUDA_12 = """\
ptxas info    : 0 bytes gmem, 16 bytes cmem[4]
ptxas info    : Compiling entry function 'k' for 'sm_70'
ptxas info    : Function properties for k
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 12 registers, 128 bytes smem, 360 bytes cmem[0]
"""


def test_the_assembler_says_what_each_kernel_takes():
    assert read_usage(CUDA_13) == (
        Usage("row_sum_i64", "sm_90a", 255, 256, 72, 192),
        Usage("row_rank", "sm_90a", 40, 0, 0, 0),
    )
    assert read_usage(CUDA_12) == (Usage("k", "sm_70", 12, 128, 0, 0),)


def test_a_report_that_is_cut_off_says_nothing_of_its_last_kernel():
    assert [each.name for each in read_usage(CUDA_13[: CUDA_13.index("Used 40")])] == [
        "row_sum_i64"
    ]
    assert read_usage("") == ()

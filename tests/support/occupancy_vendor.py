"""Random kernels, and what the vendors' own code says of them: cuda_occupancy.h and LLVM.

``python tests/support/occupancy_vendor.py`` writes ``tests/vendor_texts/occupancy_nvidia.csv.gz``
and ``tests/vendor_texts/occupancy_amd.csv.gz``. It needs a C++ compiler, the header (a wheel such
as nvidia-cuda-runtime, or a CUDA toolkit) and llvmlite. The limits of devices below are written
down here a second time, from the CUDA programming guide and LLVM's AMDGPU usage, so that a wrong
fact does not agree with itself.
"""

from __future__ import annotations

import csv
import gzip
import io
import random
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
STORED = HERE.parent / "vendor_texts"
SEED = 20261121
KIB = 1024
NO_LIMIT = 2**31 - 1

# arch: (major, minor, threads a multiprocessor, shared memory a unit, with opt-in, reserved)
CUDA = {
    "sm_70": (7, 0, 2048, 96 * KIB, 96 * KIB, 0),
    "sm_75": (7, 5, 1024, 64 * KIB, 64 * KIB, 0),
    "sm_80": (8, 0, 2048, 164 * KIB, 163 * KIB, KIB),
    "sm_86": (8, 6, 1536, 100 * KIB, 99 * KIB, KIB),
    "sm_89": (8, 9, 1536, 100 * KIB, 99 * KIB, KIB),
    "sm_90": (9, 0, 2048, 228 * KIB, 227 * KIB, KIB),
    "sm_100": (10, 0, 2048, 228 * KIB, 227 * KIB, KIB),
    "sm_103": (10, 3, 2048, 228 * KIB, 227 * KIB, KIB),
    "sm_120": (12, 0, 1536, 100 * KIB, 99 * KIB, KIB),
}
CUDA_ASKED = (
    "arch",
    "threads",
    "registers",
    "static",
    "dynamic",
    "barriers",
    "opt_in",
    "carveout",
)
CUDA_FOUND = (
    "blocks",
    "by_waves",
    "by_registers",
    "by_memory",
    "by_slots",
    "by_barriers",
    "allocated_registers",
    "allocated_memory",
    "mask",
)

# processor: (accumulation VGPRs, addressable SGPRs, LDS a workgroup)
AMD = {
    "gfx906": (0, 102, 64 * KIB),
    "gfx908": (256, 102, 64 * KIB),
    "gfx90a": (256, 102, 64 * KIB),
    "gfx942": (256, 102, 64 * KIB),
    "gfx950": (256, 102, 160 * KIB),
    "gfx1030": (0, 106, 64 * KIB),
    "gfx1100": (0, 106, 64 * KIB),
    "gfx1201": (0, 106, 64 * KIB),
}
MODES = ("", "+wavefrontsize64", "+cumode", "+wavefrontsize64,+cumode")
AMD_ASKED = ("arch", "features", "threads", "vgprs", "accumulators", "sgprs", "memory")
AMD_FOUND = ("used_vgprs", "used_accumulators", "total_sgprs", "waves_per_simd")


def _threads(numbers: random.Random, wave: int) -> int:
    whole = wave * numbers.randint(1, 1024 // wave)
    return numbers.choice([whole, whole, numbers.randint(1, 1024)])


def _memory(numbers: random.Random, most: int) -> int:
    return numbers.choice(
        [0, numbers.randint(1, 4096), numbers.randint(1, most), numbers.randint(1, most)]
    )


def cuda_cases(seed: int, count: int) -> list[dict[str, int | str]]:
    """``count`` kernels; one in twenty asks for more shared memory than a block can have."""
    numbers = random.Random(seed)  # noqa: S311 - cases of a test
    cases: list[dict[str, int | str]] = []
    for _ in range(count):
        arch = numbers.choice(sorted(CUDA))
        optin = CUDA[arch][4]
        memory = _memory(numbers, optin if numbers.random() < 0.95 else optin + 40 * KIB)
        static = min(memory, numbers.choice([0, 48 * KIB, numbers.randint(0, 48 * KIB)]))
        # header and facts know another number of barriers of 10.3 before CUDA 13.5
        barriers = numbers.choice([1, 1, 1, 0, numbers.randint(2, 16)])
        cases.append(
            {
                "arch": arch,
                "threads": _threads(numbers, 32),
                "registers": numbers.randint(1, 255),
                "static": static,
                "dynamic": memory - static,
                "barriers": min(barriers, 1) if arch == "sm_103" else barriers,
                "opt_in": int(numbers.random() < 0.8),
                "carveout": numbers.randint(0, 100) if numbers.random() < 0.3 else -1,
            }
        )
    return cases


def amd_cases(seed: int, count: int) -> list[dict[str, int | str]]:
    """``count`` kernels, in wave64 and CU mode too where the architecture has them."""
    numbers = random.Random(seed)  # noqa: S311 - cases of a test
    cases: list[dict[str, int | str]] = []
    for _ in range(count):
        arch = numbers.choice(sorted(AMD))
        accumulators, sgprs, memory = AMD[arch]
        features = "" if arch.startswith("gfx9") else numbers.choice(MODES)
        wave = 64 if arch.startswith("gfx9") or "64" in features else 32
        cases.append(
            {
                "arch": arch,
                "features": features,
                "threads": _threads(numbers, wave),
                "vgprs": numbers.randint(1, 256),
                "accumulators": numbers.choice([0, numbers.randint(0, accumulators)]),
                "sgprs": numbers.choice([0, numbers.randint(1, sgprs)]),
                "memory": _memory(numbers, memory),
            }
        )
    return cases


def cuda_header() -> Path | None:
    """The newest cuda_occupancy.h of an installed wheel or of a CUDA toolkit, or None."""
    packages = Path(sysconfig.get_path("purelib"))
    roots = [Path("/usr/local/cuda/include"), Path("/opt/cuda/include")]
    found = [*packages.glob("nvidia/*/include/cuda_occupancy.h")]
    found += [root / "cuda_occupancy.h" for root in roots]
    found = [path for path in found if path.is_file()]
    return max(found, key=lambda path: path.stat().st_size, default=None)


def cuda_compiler() -> str | None:
    return next(
        (found for name in ("g++", "c++", "clang++") if (found := shutil.which(name))), None
    )


def run_cuda(cases: list[dict[str, int | str]]) -> list[dict[str, int | str]]:
    """``cases`` with what cuda_occupancy.h answers."""
    header, compiler = cuda_header(), cuda_compiler()
    assert header is not None
    assert compiler is not None
    with tempfile.TemporaryDirectory() as folder:
        program = str(Path(folder) / "occupancy")
        subprocess.run(
            [
                compiler,
                "-O1",
                f"-I{header.parent}",
                str(HERE / "occupancy_cuda.cpp"),
                "-o",
                program,
            ],
            check=True,
            timeout=120,
        )
        lines = [
            " ".join(str(number) for number in (*_device(str(case["arch"])), *_kernel(case)))
            for case in cases
        ]
        done = subprocess.run(
            [program],
            input="\n".join(lines),
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
    answers = [[int(word) for word in line.split()] for line in done.stdout.splitlines()]
    assert len(answers) == len(cases)
    assert not any(error for error, *_ in answers), "the header refused a case"
    return [
        {**case, **dict(zip(CUDA_FOUND, found, strict=True))}
        for case, (_, *found) in zip(cases, answers, strict=True)
    ]


def _device(arch: str) -> tuple[int, ...]:
    major, minor, threads, unit, optin, reserved = CUDA[arch]
    return major, minor, threads, 48 * KIB, unit, optin, reserved


def _kernel(case: dict[str, int | str]) -> list[int | str]:
    return [case[name] for name in CUDA_ASKED[1:]]


def run_amd(cases: list[dict[str, int | str]]) -> list[dict[str, int | str]]:
    """``cases`` with what LLVM makes of them, in a child: LLVM ends the process on an error."""
    sheet = io.StringIO()
    _write(sheet, AMD_ASKED, cases)
    done = subprocess.run(
        [sys.executable, __file__, "--llvm"],
        input=sheet.getvalue(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return _read(io.StringIO(done.stdout))


def _llvm(cases: list[dict[str, int | str]]) -> list[dict[str, int | str]]:
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    places: dict[tuple[str, str], list[int]] = {}
    for place, case in enumerate(cases):
        places.setdefault((str(case["arch"]), str(case["features"])), []).append(place)
    found: dict[int, dict[str, int]] = {}
    for (arch, features), group in places.items():
        text = "".join(_function(place, cases[place]) for place in group)
        module = llvm.parse_assembly(f'target triple = "amdgcn-amd-amdhsa"\n{text}')
        machine = llvm.Target.from_triple("amdgcn-amd-amdhsa").create_target_machine(
            cpu=arch, features=features, opt=2
        )
        machine.set_asm_verbosity(True)
        kernels = machine.emit_assembly(module).split("; Kernel info:")[1:]
        assert len(kernels) == len(group)
        for place, kernel in zip(group, kernels, strict=True):
            found[place] = _figures(kernel)
    return [{**case, **found[place]} for place, case in enumerate(cases)]


def _function(place: int, case: dict[str, int | str]) -> str:
    """A kernel that marks the highest register of each kind as used, and its shared memory."""
    marks = [
        f"~{{{kind}{int(case[name]) - 1}}}"
        for kind, name in (("v", "vgprs"), ("a", "accumulators"), ("s", "sgprs"))
        if case[name]
    ]
    memory = case["memory"]
    variable = f"@m{place} = internal addrspace(3) global [{memory} x i8] poison, align 1\n"
    use = f"  store volatile i8 1, ptr addrspace(3) @m{place}\n"
    return (
        f"{variable if memory else ''}define amdgpu_kernel void @k{place}() #{place} {{\n"
        f'  call void asm sideeffect "", "{",".join(marks)}"()\n'
        f"{use if memory else ''}  ret void\n}}\n"
        f'attributes #{place} = {{ "amdgpu-flat-work-group-size"='
        f'"{case["threads"]},{case["threads"]}" }}\n'
    )


def _figures(kernel: str) -> dict[str, int]:
    def figure(name: str) -> int:
        found = re.search(rf"^; {name}: (\d+)$", kernel, re.MULTILINE)
        return int(found.group(1)) if found else 0

    names = ("NumVgprs", "NumAgprs", "TotalNumSgprs", "Occupancy")
    return {asked: figure(name) for asked, name in zip(AMD_FOUND, names, strict=True)}


def _write(
    stream: io.TextIOBase, columns: tuple[str, ...], rows: list[dict[str, int | str]]
) -> None:
    writer = csv.DictWriter(stream, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def _read(stream: io.TextIOBase) -> list[dict[str, int | str]]:
    texts = ("arch", "features")
    return [
        {name: text if name in texts else int(text) for name, text in row.items()}
        for row in csv.DictReader(stream)
    ]


def stored(vendor: str) -> list[dict[str, int | str]]:
    """The stored cases and answers of ``vendor``: "nvidia" or "amd"."""
    packed = (STORED / f"occupancy_{vendor}.csv.gz").read_bytes()
    return _read(io.StringIO(gzip.decompress(packed).decode("utf-8")))


def _store(vendor: str, columns: tuple[str, ...], rows: list[dict[str, int | str]]) -> None:
    sheet = io.StringIO()
    _write(sheet, columns, rows)
    packed = gzip.compress(sheet.getvalue().encode("utf-8"), mtime=0)
    (STORED / f"occupancy_{vendor}.csv.gz").write_bytes(packed)


def main(words: list[str]) -> None:
    if words == ["--llvm"]:
        _write(sys.stdout, AMD_ASKED + AMD_FOUND, _llvm(_read(sys.stdin)))
        return
    _store("nvidia", CUDA_ASKED + CUDA_FOUND, run_cuda(cuda_cases(SEED, 10_000)))
    _store("amd", AMD_ASKED + AMD_FOUND, run_amd(amd_cases(SEED, 10_000)))


if __name__ == "__main__":
    main(sys.argv[1:])
